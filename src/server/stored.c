#include "server/stored.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/recent.h"

enum {
    N_KEY = 20,
    STRIDE = 64 /* of a conversation at a time under the lock, which the loop waits for */
};

typedef struct entry {
    di_recent_entry recent; /* by what its id shares with those of its items */
    int n_readers;          /* that hold it, whether it is still kept or not */
    bool gone;              /* it is not kept any more: the last reader frees it */
    char id[DI_STORED_ID], previous[DI_STORED_ID];
    char *owner;
    di_buffer items, body;
    size_t given_size; /* of the items; behind it stand those of the answer */
} entry;

struct di_stored {
    pthread_mutex_t lock;
    di_recent all; /* entries */
};

/* ---- One of them ---- */

/* What an id and those of its items share: some characters behind the first '_'. */
static size_t key_of(const char *id, const char **key) {
    const char *mark = strchr(id, '_');
    *key = mark ? mark + 1 : id;
    size_t n = strcspn(*key, "_");
    return n < N_KEY ? n : N_KEY;
}

static void free_entry(entry *e) {
    if (!e) return;
    free(e->owner);
    di_buffer_free(&e->items);
    di_buffer_free(&e->body);
    free(e);
}

/* The store lets go of it. */
static void forget(di_recent_entry *recent) {
    entry *e = (entry *)recent;
    e->gone = true;
    if (e->n_readers == 0) free_entry(e);
}

static void append(di_buffer *out, const di_buffer *more) {
    if (more->size > 0) di_buffer_append(out, more->data, more->size);
    if (more->failed) out->failed = true;
}

static entry *make(const di_stored_response *r) {
    entry *e = calloc(1, sizeof *e);
    if (!e || strlen(r->id) >= DI_STORED_ID || strlen(r->previous) >= DI_STORED_ID) {
        free(e);
        return NULL;
    }
    memcpy(e->id, r->id, strlen(r->id) + 1);
    memcpy(e->previous, r->previous, strlen(r->previous) + 1);
    e->owner = strdup(r->owner);
    append(&e->items, r->given);
    if (r->given->size > 0 && r->answer->size > 0) di_buffer_putc(&e->items, ',');
    e->given_size = e->items.size;
    append(&e->items, r->answer);
    append(&e->body, r->body);
    e->recent.key_size = key_of(e->id, &e->recent.key);
    e->recent.bytes = sizeof *e + strlen(r->owner) + e->items.capacity + e->body.capacity;
    if (e->owner && !e->items.failed && !e->body.failed) return e;
    free_entry(e);
    return NULL;
}

/* ---- The store, under its lock ---- */

/* By its id or by that of one of its items. */
static entry *find_any(const di_stored *stored, const char *id) {
    const char *key;
    size_t n = key_of(id, &key);
    return (entry *)di_recent_find(&stored->all, key, n);
}

static entry *find(const di_stored *stored, const char *id, const char *owner) {
    entry *e = find_any(stored, id);
    return e && strcmp(e->id, id) == 0 && strcmp(e->owner, owner) == 0 ? e : NULL;
}

/* ---- Public ---- */

di_stored *di_stored_create(size_t max_bytes) {
    di_stored *stored = calloc(1, sizeof *stored);
    if (!stored) return NULL;
    pthread_mutex_init(&stored->lock, NULL);
    di_recent_init(&stored->all, max_bytes, forget);
    return stored;
}

void di_stored_destroy(di_stored *stored) {
    if (!stored) return;
    di_recent_deinit(&stored->all);
    pthread_mutex_destroy(&stored->lock);
    free(stored);
}

void di_stored_put(di_stored *stored, const di_stored_response *response) {
    entry *e = make(response);
    if (!e) return;
    pthread_mutex_lock(&stored->lock);
    const char *key;
    size_t n = key_of(e->previous, &key);
    bool fits = e->previous[0] ? di_recent_add_before(&stored->all, &e->recent, key, n)
                               : di_recent_add(&stored->all, &e->recent);
    pthread_mutex_unlock(&stored->lock);
    if (!fits) free_entry(e);
}

/* ---- A conversation ----
 *
 * It may be long, and the loop waits for the lock where it keeps an answer. So those who read one take its entries
 * some at a time, hold them, and copy without the lock. */
typedef struct walk {
    di_stored *stored;
    di_buffer entries; /* of entry *, the last of the conversation first */
    size_t size;       /* bytes of their items, with a comma each */
} walk;

static size_t n_entries(const walk *w) { return w->entries.size / sizeof(entry *); }

static entry *entry_at(const walk *w, size_t i) {
    entry *e;
    memcpy(&e, w->entries.data + i * sizeof e, sizeof e);
    return e;
}

/* What it takes is held until end_walk. False: not all of it is there. */
static bool take_entries(walk *w, const char *id, const char *owner) {
    bool whole = true;
    while (whole && id[0]) {
        pthread_mutex_lock(&w->stored->lock);
        for (int i = 0; i < STRIDE && whole && id[0]; i++) {
            entry *e = find(w->stored, id, owner);
            if (e) di_buffer_append(&w->entries, (const char *)&e, sizeof e);
            whole = e && !w->entries.failed;
            if (!whole) break;
            e->n_readers++;
            w->size += e->items.size + 1;
            id = e->previous;
        }
        pthread_mutex_unlock(&w->stored->lock);
    }
    return whole;
}

/* The conversation was `used`: from its end on each becomes the newest, so that its beginning goes last. Frees what
 * nobody keeps any more. */
static void end_walk(walk *w, bool used) {
    size_t n = n_entries(w);
    for (size_t i = 0; i < n;) {
        pthread_mutex_lock(&w->stored->lock);
        for (int k = 0; k < STRIDE && i < n; k++, i++) {
            entry *e = entry_at(w, i);
            e->n_readers--;
            if (!e->gone && used) di_recent_use(&w->stored->all, &e->recent);
            if (e->gone && e->n_readers == 0) free_entry(e);
        }
        pthread_mutex_unlock(&w->stored->lock);
    }
    di_buffer_free(&w->entries);
}

di_status di_stored_items(di_stored *stored, const char *id, const char *owner, size_t max_bytes,
                          di_buffer *out, di_error *error) {
    static const char field[] = "previous_response_id";
    walk w = {.stored = stored, .entries = DI_BUFFER_EMPTY};
    bool whole = stored && id[0] && take_entries(&w, id, owner);
    bool no_memory = w.entries.failed;
    for (size_t i = whole && w.size <= max_bytes ? n_entries(&w) : 0; i-- > 0;) {
        append(out, &entry_at(&w, i)->items);
        if (i > 0) di_buffer_putc(out, ',');
    }
    if (stored) end_walk(&w, whole);
    if (no_memory) return di_fail(error, DI_ERR_MEMORY, "out of memory: %s", field);
    if (!whole) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s: there is no response '%.60s' here, or some of what it went on from is "
                       "gone; send the whole conversation in input",
                       field, id);
    }
    if (w.size > max_bytes) {
        return di_fail(error, DI_ERR_UNSUPPORTED, "%s: the conversation has more than %zu bytes",
                       field, max_bytes);
    }
    return out->failed ? di_fail(error, DI_ERR_MEMORY, "out of memory: %s", field) : DI_OK;
}

/* The end of the JSON object at the beginning of a text that is well-formed. */
static size_t object_size(const char *text, size_t size) {
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < size; i++) {
        if (quoted) {
            quoted = text[i] != '"';
            if (text[i] == '\\') i++;
            continue;
        }
        quoted = text[i] == '"';
        depth += (text[i] == '{') - (text[i] == '}');
        if (text[i] == '}' && depth == 0) return i + 1;
    }
    return size;
}

/* Items of answers begin with their ids; inside of their strings no quote stands unescaped. */
static bool append_item(const entry *e, const char *item_id, di_buffer *out) {
    char begin[DI_STORED_ID + 16];
    int n = snprintf(begin, sizeof begin, "{\"id\":\"%s\"", item_id);
    if (n >= (int)sizeof begin || e->items.size <= e->given_size) return false;
    const char *answer = e->items.data + e->given_size;
    size_t size = e->items.size - e->given_size;
    const char *at = memmem(answer, size, begin, (size_t)n);
    if (!at) return false;
    di_buffer_append(out, at, object_size(at, size - (size_t)(at - answer)));
    return true;
}

bool di_stored_find(di_stored *stored, const char *item_id, const char *owner, di_buffer *out) {
    if (!stored) return false;
    pthread_mutex_lock(&stored->lock);
    const entry *e = find_any(stored, item_id);
    bool found = e && strcmp(e->owner, owner) == 0 && append_item(e, item_id, out);
    pthread_mutex_unlock(&stored->lock);
    return found;
}

bool di_stored_body(di_stored *stored, const char *id, const char *owner, di_buffer *out) {
    pthread_mutex_lock(&stored->lock);
    entry *e = find(stored, id, owner);
    bool found = e != NULL;
    if (found) append(out, &e->body);
    pthread_mutex_unlock(&stored->lock);
    return found;
}

bool di_stored_remove(di_stored *stored, const char *id, const char *owner) {
    pthread_mutex_lock(&stored->lock);
    entry *e = find(stored, id, owner);
    bool found = e != NULL;
    if (found) di_recent_drop(&stored->all, &e->recent);
    pthread_mutex_unlock(&stored->lock);
    return found;
}
