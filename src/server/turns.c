#include "server/turns.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "server/fields.h"

enum { N_BUCKETS = 1024 };

typedef struct turn {
    struct turn *next;          /* in its bucket */
    struct turn *older, *newer; /* in order of arrival */
    char key[DI_TURN_KEY];
    size_t bytes;
    bool thinking;
    int32_t *ids;
    size_t n_ids;
    char *said; /* what a message must say: see write_said */
    size_t said_size;
    char *thought;
    size_t thought_size;
} turn;

struct di_turns {
    pthread_mutex_t lock;
    turn *buckets[N_BUCKETS];
    turn *oldest, *newest;
    size_t bytes, max_bytes;
};

di_turns *di_turns_create(size_t max_bytes) {
    di_turns *turns = calloc(1, sizeof *turns);
    if (!turns) return NULL;
    pthread_mutex_init(&turns->lock, NULL);
    turns->max_bytes = max_bytes;
    return turns;
}

static void free_turn(turn *t) {
    if (!t) return;
    free(t->ids);
    free(t->said);
    free(t->thought);
    free(t);
}

void di_turns_destroy(di_turns *turns) {
    if (!turns) return;
    for (turn *t = turns->oldest, *newer; t; t = newer) {
        newer = t->newer;
        free_turn(t);
    }
    pthread_mutex_destroy(&turns->lock);
    free(turns);
}

/* Keys are random already. */
static size_t bucket_of(const char *key) {
    size_t hash = 0;
    for (; *key; key++) hash = hash * 31 + (unsigned char)*key;
    return hash % N_BUCKETS;
}

/* ---- What a turn says, in one form ---- */

/* JSON in the form of one writer, or as it is where it is none. */
static void write_arguments(di_buffer *out, const char *text, size_t size) {
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *value;
    di_error error;
    if (di_json_parse(text, size, "", &arena, &value, &error) == DI_OK) {
        di_json_write(out, value);
    } else {
        di_json_write_string(out, text, size);
    }
    di_arena_free(&arena);
}

static void write_call(di_buffer *out, const char *name, size_t size) {
    di_json_write_string(out, name, size);
    di_buffer_putc(out, ':');
}

static void write_said(const di_turn *t, di_buffer *out) {
    di_json_write_string(out, t->text, t->text_size);
    for (size_t i = 0; i < t->n_calls; i++) {
        write_call(out, t->calls[i].name, t->calls[i].name_size);
        write_arguments(out, t->calls[i].arguments, t->calls[i].arguments_size);
    }
}

/* False: the message is no such turn. *key: of its calls. */
static bool read_key(const di_json *call, size_t number, char key[DI_TURN_KEY]) {
    const di_json *id = di_field(call, "id");
    if (!id || id->type != DI_JSON_STRING || strlen(id->text) != id->length) return false;
    const char *begin = strchr(id->text, '_'), *end = strrchr(id->text, '_');
    if (!begin || end <= begin || (size_t)(end - begin) > DI_TURN_KEY) return false;
    char *rest;
    if (strtoul(end + 1, &rest, 10) != number || *rest || !end[1]) return false;
    size_t n = (size_t)(end - begin) - 1;
    if (number > 0 && (strlen(key) != n || memcmp(key, begin + 1, n) != 0)) return false;
    memcpy(key, begin + 1, n);
    key[n] = '\0';
    return true;
}

static bool write_content(const di_json *content, di_buffer *out) {
    di_buffer text = DI_BUFFER_EMPTY;
    bool list = content && content->type == DI_JSON_ARRAY;
    if (content && !list && content->type != DI_JSON_STRING) return false;
    if (content && !list) di_buffer_append(&text, content->text, content->length);
    for (const di_json *b = list ? content->first : NULL; b; b = b->next) {
        const di_json *part = di_field(b, "text");
        if (part && part->type == DI_JSON_STRING) {
            di_buffer_append(&text, part->text, part->length);
        }
    }
    di_json_write_string(out, text.data ? text.data : "", text.size);
    if (text.failed) out->failed = true;
    di_buffer_free(&text);
    return true;
}

static bool write_message(const di_json *message, di_buffer *out, char key[DI_TURN_KEY]) {
    const di_json *calls = di_field(message, "tool_calls");
    size_t number = 0;
    if (!di_json_is_string(di_field(message, "role"), "assistant")) return false;
    if (!calls || calls->type != DI_JSON_ARRAY || calls->length == 0) return false;
    if (!write_content(di_field(message, "content"), out)) return false;
    for (const di_json *c = calls->first; c; c = c->next, number++) {
        const di_json *function = di_field(c, "function");
        const di_json *name = di_field(function, "name");
        const di_json *arguments = di_field(function, "arguments");
        if (!read_key(c, number, key) || !name || name->type != DI_JSON_STRING) return false;
        write_call(out, name->text, name->length);
        if (arguments && arguments->type == DI_JSON_STRING) {
            write_arguments(out, arguments->text, arguments->length);
        } else if (arguments) {
            di_json_write(out, arguments);
        } else {
            return false;
        }
    }
    return true;
}

/* ---- The store ---- */

static void unlink_bucket(di_turns *turns, turn *t) {
    turn **at = &turns->buckets[bucket_of(t->key)];
    while (*at != t) at = &(*at)->next;
    *at = t->next;
}

static void drop_oldest(di_turns *turns) {
    turn *t = turns->oldest;
    unlink_bucket(turns, t);
    turns->oldest = t->newer;
    if (t->newer) t->newer->older = NULL;
    if (turns->newest == t) turns->newest = NULL;
    turns->bytes -= t->bytes;
    free_turn(t);
}

static void *copy(const void *data, size_t size) {
    void *out = malloc(size + 1);
    if (out && size > 0) memcpy(out, data, size);
    return out;
}

static turn *make(const di_turn *given) {
    di_buffer said = DI_BUFFER_EMPTY;
    turn *t = calloc(1, sizeof *t);
    size_t size = strlen(given->key);
    write_said(given, &said);
    if (!t || said.failed || size >= sizeof t->key) {
        di_buffer_free(&said);
        free(t);
        return NULL;
    }
    memcpy(t->key, given->key, size + 1);
    t->thinking = given->thinking;
    t->ids = copy(given->ids, given->n_ids * sizeof *given->ids);
    t->n_ids = given->n_ids;
    t->said = said.data;
    t->said_size = said.size;
    t->thought = copy(given->thought, given->thought_size);
    t->thought_size = given->thought_size;
    t->bytes = sizeof *t + t->n_ids * sizeof *t->ids + said.size + t->thought_size;
    if (t->ids && t->thought) return t;
    free_turn(t);
    return NULL;
}

void di_turns_put(di_turns *turns, const di_turn *given) {
    turn *t = make(given);
    if (!t || t->bytes > turns->max_bytes) {
        free_turn(t);
        return;
    }
    pthread_mutex_lock(&turns->lock);
    while (turns->oldest && turns->bytes + t->bytes > turns->max_bytes) drop_oldest(turns);
    turn **bucket = &turns->buckets[bucket_of(t->key)];
    t->next = *bucket;
    *bucket = t;
    t->older = turns->newest;
    if (t->older) {
        t->older->newer = t;
    } else {
        turns->oldest = t;
    }
    turns->newest = t;
    turns->bytes += t->bytes;
    pthread_mutex_unlock(&turns->lock);
}

/* A thought that is not brought back is put back; another one than was thought is somebody's edit. */
static bool same_thought(const turn *t, const di_json *message) {
    const di_json *thought = di_field(message, "reasoning_content");
    if (!thought) thought = di_field(message, "reasoning");
    if (!thought || thought->length == 0) return true;
    return thought->type == DI_JSON_STRING && thought->length == t->thought_size &&
           memcmp(thought->text, t->thought, t->thought_size) == 0;
}

di_status di_turns_find(di_turns *turns, const di_json *message, bool *found, bool *thinking,
                        di_ids *ids, di_error *error) {
    di_buffer said = DI_BUFFER_EMPTY;
    char key[DI_TURN_KEY] = "";
    di_status status = DI_OK;
    *found = false;
    if (!turns || !write_message(message, &said, key) || said.failed) {
        di_buffer_free(&said);
        return DI_OK;
    }
    pthread_mutex_lock(&turns->lock);
    const turn *t = turns->buckets[bucket_of(key)];
    while (t && strcmp(t->key, key) != 0) t = t->next;
    if (t && t->said_size == said.size && memcmp(t->said, said.data, said.size) == 0 &&
        same_thought(t, message)) {
        *found = true;
        *thinking = t->thinking;
        status = di_ids_append(ids, t->ids, t->n_ids, error);
    }
    pthread_mutex_unlock(&turns->lock);
    di_buffer_free(&said);
    return status;
}
