#include "server/turns.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "server/fields.h"
#include "server/recent.h"

typedef struct turn {
    di_recent_entry recent;
    char key[DI_TURN_KEY];
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
    di_recent all; /* turns */
};

static void free_turn(di_recent_entry *recent) {
    turn *t = (turn *)recent;
    free(t->ids);
    free(t->said);
    free(t->thought);
    free(t);
}

di_turns *di_turns_create(size_t max_bytes) {
    di_turns *turns = calloc(1, sizeof *turns);
    if (!turns) return NULL;
    pthread_mutex_init(&turns->lock, NULL);
    di_recent_init(&turns->all, max_bytes, free_turn);
    return turns;
}

void di_turns_destroy(di_turns *turns) {
    if (!turns) return;
    di_recent_deinit(&turns->all);
    pthread_mutex_destroy(&turns->lock);
    free(turns);
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
    t->recent.key = t->key;
    t->recent.key_size = size;
    t->recent.bytes = sizeof *t + t->n_ids * sizeof *t->ids + said.capacity + t->thought_size;
    if (t->ids && t->thought) return t;
    free_turn(&t->recent);
    return NULL;
}

bool di_turns_put(di_turns *turns, const di_turn *given) {
    turn *t = make(given);
    if (!t) return false;
    pthread_mutex_lock(&turns->lock);
    bool fits = di_recent_add(&turns->all, &t->recent);
    pthread_mutex_unlock(&turns->lock);
    if (!fits) free_turn(&t->recent);
    return fits;
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
    turn *t = (turn *)di_recent_find(&turns->all, key, strlen(key));
    if (t) di_recent_use(&turns->all, &t->recent);
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
