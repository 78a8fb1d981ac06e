#include "server/stored.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/recent.h"

enum { N_KEY = 20 };

typedef struct entry {
    di_recent_entry recent; /* by what its id shares with those of its items */
    struct entry *after;    /* in a conversation, while one is walked */
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

static void free_entry(di_recent_entry *recent) {
    entry *e = (entry *)recent;
    if (!e) return;
    free(e->owner);
    di_buffer_free(&e->items);
    di_buffer_free(&e->body);
    free(e);
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
    free_entry(&e->recent);
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

/* From the end to the beginning, so that of a chain the beginning is the newest. */
static void use_chain(di_stored *stored, entry *e) {
    for (; e; e = e->previous[0] ? find(stored, e->previous, e->owner) : NULL) {
        di_recent_use(&stored->all, &e->recent);
    }
}

/* ---- Public ---- */

di_stored *di_stored_create(size_t max_bytes) {
    di_stored *stored = calloc(1, sizeof *stored);
    if (!stored) return NULL;
    pthread_mutex_init(&stored->lock, NULL);
    di_recent_init(&stored->all, max_bytes, free_entry);
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
    bool fits = di_recent_add(&stored->all, &e->recent);
    if (fits) use_chain(stored, e);
    pthread_mutex_unlock(&stored->lock);
    if (!fits) free_entry(&e->recent);
}

/* The first of the chain that ends with `id`, each with the one behind it in `after`; *size: bytes of
 * their items with a comma each. NULL: not all of it is there. */
static entry *first_of(di_stored *stored, const char *id, const char *owner, size_t *size) {
    entry *first = NULL;
    *size = 0;
    do {
        entry *e = find(stored, id, owner);
        if (!e) return NULL;
        e->after = first;
        first = e;
        *size += e->items.size + 1;
        id = e->previous;
    } while (id[0]);
    return first;
}

di_status di_stored_items(di_stored *stored, const char *id, const char *owner, size_t max_bytes,
                          di_buffer *out, di_error *error) {
    static const char field[] = "previous_response_id";
    entry *first = NULL;
    size_t size = 0;
    if (stored) {
        pthread_mutex_lock(&stored->lock);
        first = first_of(stored, id, owner, &size);
        for (entry *e = size <= max_bytes ? first : NULL; e; e = e->after) {
            append(out, &e->items);
            if (e->after) di_buffer_putc(out, ',');
        }
        if (first) use_chain(stored, find(stored, id, owner));
        pthread_mutex_unlock(&stored->lock);
    }
    if (!first) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s: there is no response '%.60s' here, or some of what it went on from is "
                       "gone; send the whole conversation in input",
                       field, id);
    }
    if (size > max_bytes) {
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
    use_chain(stored, e);
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
