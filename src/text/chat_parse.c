/* The strict parser: reads a whole output the way the official one does (spec chat.md 6), and
 * refuses what it refuses. A cursor goes from stop string to stop string; nothing is scanned twice.
 */
#include <string.h>

#include "text/chat.h"
#include "text/chat_format.h"
#include "text/dsml.h"

#define CALLS_BEGIN "\n\n" DSML_OPEN DSML_CALLS
#define CALLS_END DSML_CLOSE DSML_CALLS ">"
#define INVOKE_BEGIN DSML_OPEN DSML_INVOKE
#define INVOKE_END DSML_CLOSE DSML_INVOKE
#define PARAMETER_BEGIN DSML_OPEN DSML_PARAMETER
#define PARAMETER_END "/" CHAT_DSML DSML_PARAMETER

typedef struct slice {
    const char *text;
    size_t size;
} slice;

typedef struct cursor {
    const char *begin, *at, *end;
    di_arena *arena;
    di_error *error;
    di_buffer arguments; /* of the call being read */
    dsml_keys keys;
    di_buffer calls; /* di_chat_call each */
} cursor;

static di_status fail(const cursor *c, const char *reason) {
    return di_fail(c->error, DI_ERR_INVALID, "model output, byte %zu: %s",
                   (size_t)(c->at - c->begin), reason);
}

static di_status no_memory(const cursor *c) {
    return di_fail(c->error, DI_ERR_MEMORY, "out of memory while parsing the model's output");
}

static bool begins_with(const char *at, const char *end, const char *word) {
    size_t n = strlen(word);
    return (size_t)(end - at) >= n && memcmp(at, word, n) == 0;
}

/* Reads up to the first of two stop strings and over it. Returns 0 or 1, which one it was; -1 and
 * everything that is left when there is none. */
static int read_until(cursor *c, const char *first, const char *second, slice *out) {
    const char *from = c->at;
    for (; c->at < c->end; c->at++) {
        const char *stop = *c->at == first[0] && begins_with(c->at, c->end, first)     ? first
                           : *c->at == second[0] && begins_with(c->at, c->end, second) ? second
                                                                                       : NULL;
        if (!stop) continue;
        *out = (slice){from, (size_t)(c->at - from)};
        c->at += strlen(stop);
        return stop == first ? 0 : 1;
    }
    *out = (slice){from, (size_t)(c->at - from)};
    return -1;
}

static bool equals(slice s, const char *text) {
    return s.size == strlen(text) && memcmp(s.text, text, s.size) == 0;
}

/* Takes a literal from the front or the back; false when it is not there. */
static bool take_front(slice *s, const char *literal) {
    size_t n = strlen(literal);
    if (s->size < n || memcmp(s->text, literal, n) != 0) return false;
    s->text += n;
    s->size -= n;
    return true;
}

static bool take_back(slice *s, const char *literal) {
    size_t n = strlen(literal);
    if (s->size < n || memcmp(s->text + s->size - n, literal, n) != 0) return false;
    s->size -= n;
    return true;
}

/* ` name="KEY" string="true|false">VALUE<`; the key ends at the first such attribute. */
static di_status read_parameter(cursor *c) {
    slice rest;
    if (read_until(c, PARAMETER_END, PARAMETER_END, &rest) < 0) {
        return fail(c, "a parameter is not closed");
    }
    if (!take_front(&rest, " name=\"") || !take_back(&rest, "<")) {
        return fail(c, "malformed parameter");
    }
    slice key = rest;
    bool is_string = false;
    for (;; rest.text++, rest.size--) {
        if (rest.size == 0) return fail(c, "a parameter's tag has no string=\"true|false\"");
        if (*rest.text != '"') continue;
        key.size = (size_t)(rest.text - key.text);
        if (take_front(&rest, "\" string=\"true\">")) {
            is_string = true;
            break;
        }
        if (take_front(&rest, "\" string=\"false\">")) break;
    }
    switch (dsml__keys_add(&c->keys, key.text, key.size)) {
    case DSML_ADDED: break;
    case DSML_DUPLICATE: return fail(c, "a call gives the same parameter twice");
    case DSML_NO_MEMORY: return no_memory(c);
    }
    if (c->arguments.size > 1) di_buffer_puts(&c->arguments, ", ");
    di_json_write_string(&c->arguments, key.text, key.size);
    di_buffer_puts(&c->arguments, ": ");
    if (is_string) {
        di_json_write_string(&c->arguments, rest.text, rest.size);
    } else {
        di_buffer_append(&c->arguments, rest.text, rest.size);
    }
    return DI_OK;
}

static di_status add_call(cursor *c, slice name) {
    di_chat_call call = {0};
    if (!di_chat_split_name(name.text, name.size, c->arena, &call.name, &call.name_space)) {
        return call.name ? fail(c, "a function's name must be NAME or NAMESPACE::NAME")
                         : no_memory(c);
    }
    di_buffer_putc(&c->arguments, '}');
    if (c->arguments.failed) return no_memory(c);
    call.arguments = di_arena_strndup(c->arena, c->arguments.data, c->arguments.size);
    if (!call.arguments) return no_memory(c);
    di_buffer_append(&c->calls, &call, sizeof call);
    return DI_OK;
}

/* Behind `<｜DSML｜ invoke`: ` name="NAME">`, parameters, up to the closing tag. */
static di_status read_invoke(cursor *c) {
    slice name, between;
    int stop = read_until(c, PARAMETER_BEGIN, INVOKE_END, &name);
    if (stop < 0) return fail(c, "a call is not closed");
    /* A call without parameters has an empty line, which the official parser does not insist on. */
    bool blank = take_back(&name, "\">\n\n") || take_back(&name, "\">\n");
    if (!blank || !take_front(&name, " name=\"")) return fail(c, "malformed tag of a call");
    dsml__keys_clear(&c->keys);
    di_buffer_clear(&c->arguments);
    di_buffer_putc(&c->arguments, '{');
    while (stop == 0) {
        DI_TRY(read_parameter(c));
        stop = read_until(c, PARAMETER_BEGIN, INVOKE_END, &between);
        if (stop < 0) return fail(c, "a call is not closed");
        if (!equals(between, ">\n")) return fail(c, "unexpected text behind a parameter");
    }
    return add_call(c, name);
}

/* Behind `<｜DSML｜ calls`. */
static di_status read_calls(cursor *c) {
    for (;;) {
        slice between;
        int stop = read_until(c, INVOKE_BEGIN, CALLS_END, &between);
        if (stop < 0) return fail(c, "the calls block is not closed");
        if (!equals(between, ">\n")) return fail(c, "unexpected text between calls");
        if (stop == 1) return DI_OK;
        DI_TRY(read_invoke(c));
    }
}

static di_status check_text(const cursor *c, slice text) {
    static const char *const markers[] = {CHAT_BOS, CHAT_EOS, CHAT_THINK_OPEN, CHAT_THINK_CLOSE,
                                          CHAT_DSML};
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
        if (memmem(text.text, text.size, markers[i], strlen(markers[i]))) {
            return fail(c, "a marker inside the thought or the answer");
        }
    }
    return DI_OK;
}

static di_status read_message(cursor *c, bool thinking, slice *reasoning, slice *content) {
    *reasoning = (slice){"", 0};
    if (thinking && read_until(c, CHAT_THINK_CLOSE, CALLS_BEGIN, reasoning) != 0) {
        return fail(c, "the thought is not closed");
    }
    int stop = read_until(c, CHAT_EOS, CALLS_BEGIN, content);
    if (stop < 0) return fail(c, "the answer does not end with " CHAT_EOS);
    if (stop == 1) {
        slice behind;
        DI_TRY(read_calls(c));
        read_until(c, CHAT_EOS, CHAT_EOS, &behind);
        if (behind.size > 0) return fail(c, "text behind the calls block");
    }
    if (c->at != c->end) return fail(c, "text behind " CHAT_EOS);
    DI_TRY(check_text(c, *reasoning));
    return check_text(c, *content);
}

static di_status store(const cursor *c, slice reasoning, slice content, di_chat_message *out) {
    if (c->calls.failed) return no_memory(c);
    out->reasoning = di_arena_strndup(c->arena, reasoning.text, reasoning.size);
    out->content = di_arena_strndup(c->arena, content.text, content.size);
    out->calls = di_arena_alloc(c->arena, c->calls.size);
    if (!out->reasoning || !out->content || !out->calls) return no_memory(c);
    out->reasoning_size = reasoning.size;
    out->content_size = content.size;
    out->n_calls = c->calls.size / sizeof *out->calls;
    if (out->n_calls) memcpy(out->calls, c->calls.data, c->calls.size);
    return DI_OK;
}

di_status di_chat_parse(const char *text, size_t size, bool thinking, di_arena *arena,
                        di_chat_message *out, di_error *error) {
    memset(out, 0, sizeof *out);
    cursor c = {.begin = text, .at = text, .end = text + size, .arena = arena, .error = error};
    slice reasoning, content;
    di_status status = read_message(&c, thinking, &reasoning, &content);
    if (status == DI_OK) status = store(&c, reasoning, content, out);
    di_buffer_free(&c.arguments);
    di_buffer_free(&c.calls);
    dsml__keys_free(&c.keys);
    return status;
}

bool di_chat_split_name(const char *qualified, size_t size, di_arena *arena, const char **name,
                        const char **name_space) {
    const char *separator = size ? memmem(qualified, size, "::", 2) : NULL;
    const char *bare = separator ? separator + 2 : qualified;
    size_t bare_size = size - (size_t)(bare - qualified);
    bool valid = bare_size > 0 && separator != qualified && !memmem(bare, bare_size, "::", 2) &&
                 !memchr(qualified, '\0', size);
    *name_space = NULL;
    if (!valid || !separator) {
        *name = di_arena_strndup(arena, size ? qualified : "", size);
        return valid && *name;
    }
    *name = di_arena_strndup(arena, bare, bare_size);
    *name_space = di_arena_strndup(arena, qualified, (size_t)(separator - qualified));
    if (!*name_space) *name = NULL;
    return *name != NULL;
}
