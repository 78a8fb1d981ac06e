/* The streaming parser's second half: calls.
 *
 *   block     = open(calls) { blank | invoke } close(calls)      open and close may be missing
 *   invoke    = open(invoke name="NAME") { blank | parameter } close(invoke)
 *   parameter = open(parameter name="KEY" string="true|false") VALUE close(parameter)
 *   open(x)   = "<｜DSML｜" spaces x spaces ">"      close(x) the same with "</｜DSML｜"
 *
 * Every byte goes to `raw` first, so that markup that turns out malformed can become text again.
 */
#include <string.h>

#include "text/chat_stream.h"

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* ---- Entering and leaving ---- */

static void enter_tag(di_chat_parser *p, stream_state parent, bool closing) {
    p->parent = parent;
    p->closing = closing;
    p->phase = PHASE_WORD;
    p->n_tag = 0;
    p->n_marker = 0;
    di_buffer_clear(&p->name);
    p->state = STREAM_TAG;
}

void stream__begin_markup(di_chat_parser *p) {
    di_buffer_clear(&p->raw);
    for (; p->newlines; p->newlines--) di_buffer_putc(&p->raw, '\n');
    di_buffer_puts(&p->raw, DSML_OPEN);
    p->n_block = 0;
    enter_tag(p, STREAM_TEXT, false);
}

/* The text behind a block, or behind a call whose block breaks off. */
static void leave_block(di_chat_parser *p) {
    p->state = STREAM_TEXT;
    p->n_marker = 0;
    p->newlines = 0;
    if (p->n_block > 0) {
        p->reasoning = false;
        p->after_block = p->answer_started;
    }
    p->n_block = 0;
}

void stream__fail_markup(di_chat_parser *p) {
    di_buffer raw = p->raw;
    p->raw = (di_buffer)DI_BUFFER_EMPTY;
    p->raw.failed = raw.failed;
    if (p->in_call) {
        stream__event(p, DI_CHAT_CALL_BROKEN, "", 0);
        p->in_call = false;
        p->index++;
    }
    leave_block(p);
    p->calls_off = true;
    for (size_t i = 0; i < raw.size; i++) stream__text_byte(p, raw.data[i]);
    p->calls_off = false;
    di_buffer_free(&raw);
}

bool stream__may_end(const di_chat_parser *p) {
    if (p->n_block == 0 || p->in_call) return false;
    if (p->state == STREAM_TAG) return p->closing; /* cut off inside the block's end */
    return p->n_marker == 0 || (p->n_marker > 1 && p->marker[1] == '/');
}

/* ---- Arguments ---- */

static void emit_arguments(di_chat_parser *p, const char *text, size_t size) {
    stream__emit(p, DI_CHAT_CALL_ARGUMENTS, text, size);
}

/* The inside of a JSON string. */
static void emit_escaped(di_chat_parser *p, const char *text, size_t size) {
    if (size == 0) return;
    di_buffer_clear(&p->scratch);
    di_json_write_string(&p->scratch, text, size);
    if (p->scratch.failed) {
        p->failed = true;
        return;
    }
    emit_arguments(p, p->scratch.data + 1, p->scratch.size - 2);
}

static void add_value(di_chat_parser *p, const char *text, size_t size) {
    if (p->is_string) {
        emit_escaped(p, text, size);
    } else {
        di_buffer_append(&p->value, text, size);
    }
}

/* The value is held as "[VALUE]": it is JSON when that is a list of one. So it is measured where
 * the arguments' reader will find it, one level down. A model may repeat a key, in whatever object it may name
 * keys as it likes: then the last counts, and the value is written anew, since arguments that repeat a key
 * are refused when they come back. */
static bool value_is_json(di_chat_parser *p) {
    di_arena arena = DI_ARENA_EMPTY;
    di_error ignored;
    const di_json *list;
    if (p->value.failed) return false;
    di_status status =
        di_json_parse(p->value.data, p->value.size, "argument", &arena, &list, &ignored);
    if (status == DI_ERR_INVALID) {
        status =
            di_json_parse_last(p->value.data, p->value.size, "argument", &arena, &list, &ignored);
        if (status == DI_OK) {
            di_buffer_clear(&p->value);
            di_json_write(&p->value, list);
        }
    }
    bool one = status == DI_OK && list->length == 1;
    di_arena_free(&arena);
    if (status == DI_ERR_MEMORY) p->failed = true;
    return one;
}

/* A value that says it is JSON, and is not, is what the model would have written as a string. */
static void end_value(di_chat_parser *p) {
    p->state = STREAM_INVOKE;
    p->n_close = 0;
    if (p->is_string) {
        emit_arguments(p, "\"", 1);
        return;
    }
    di_buffer_putc(&p->value, ']');
    bool quoted = !value_is_json(p);
    if (p->value.failed) return;
    const char *text = p->value.data + 1;
    size_t size = p->value.size - 2;
    if (quoted) {
        emit_arguments(p, "\"", 1);
        emit_escaped(p, text, size);
        emit_arguments(p, "\"", 1);
    } else {
        emit_arguments(p, text, size);
    }
}

/* ---- Complete tags ---- */

static bool begin_call(di_chat_parser *p) {
    if (p->name.size == 0 || memchr(p->name.data, '\0', p->name.size)) return false;
    stream__event(p, DI_CHAT_CALL_BEGIN, p->name.data, p->name.size);
    emit_arguments(p, "{", 1);
    dsml__keys_clear(&p->keys);
    p->in_call = true;
    p->n_parameters = 0;
    p->state = STREAM_INVOKE;
    return true;
}

static bool begin_parameter(di_chat_parser *p) {
    const char *key = p->name.size ? p->name.data : "";
    switch (dsml__keys_add(&p->keys, key, p->name.size)) {
    case DSML_ADDED: break;
    case DSML_DUPLICATE: return false;
    case DSML_NO_MEMORY: p->failed = true; return true;
    }
    if (p->n_parameters++) emit_arguments(p, ", ", 2);
    emit_arguments(p, "\"", 1);
    emit_escaped(p, key, p->name.size);
    emit_arguments(p, "\": ", 3);
    if (p->is_string) emit_arguments(p, "\"", 1);
    di_buffer_clear(&p->value);
    di_buffer_putc(&p->value, '[');
    p->n_close = 0;
    p->state = STREAM_VALUE;
    return true;
}

static void end_call(di_chat_parser *p) {
    emit_arguments(p, "}", 1);
    stream__event(p, DI_CHAT_CALL_END, "", 0);
    di_buffer_clear(&p->raw);
    p->in_call = false;
    p->index++;
    p->n_block++;
    p->n_calls++;
    p->state = STREAM_BLOCK;
}

/* Acts on a whole tag; false when it makes no sense here. */
static bool complete_tag(di_chat_parser *p) {
    switch (p->tag) {
    case TAG_CALLS_OPEN: p->state = STREAM_BLOCK; return true;
    case TAG_INVOKE_OPEN: return begin_call(p);
    case TAG_PARAMETER_OPEN: return begin_parameter(p);
    case TAG_INVOKE_CLOSE: end_call(p); return true;
    case TAG_CALLS_CLOSE:
        if (p->n_block == 0) return false; /* a block without a call says nothing: text */
        leave_block(p);
        di_buffer_clear(&p->raw);
        return true;
    case TAG_UNKNOWN: break;
    }
    return false;
}

/* ---- Tags ---- */

/* Which tag the word names, given where it stands; or could still name, when it is not `whole`. */
static stream_tag find_tag(const di_chat_parser *p, bool whole) {
    static const struct {
        const char *word;
        bool closing;
        stream_tag tag;
        bool in_text, in_block, in_call;
    } tags[] = {
        {"calls", false, TAG_CALLS_OPEN, true, false, false},
        {"tool_calls", false, TAG_CALLS_OPEN, true, false, false},
        {"invoke", false, TAG_INVOKE_OPEN, true, true, false},
        {"parameter", false, TAG_PARAMETER_OPEN, false, false, true},
        {"invoke", true, TAG_INVOKE_CLOSE, false, false, true},
        {"calls", true, TAG_CALLS_CLOSE, false, true, false},
        {"tool_calls", true, TAG_CALLS_CLOSE, false, true, false},
    };
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        bool fits = p->parent == STREAM_TEXT    ? tags[i].in_text
                    : p->parent == STREAM_BLOCK ? tags[i].in_block
                                                : tags[i].in_call;
        size_t size = strlen(tags[i].word);
        if (fits && tags[i].closing == p->closing && p->name.size <= size &&
            (p->name.size == size || !whole) &&
            memcmp(p->name.data, tags[i].word, p->name.size) == 0) {
            return tags[i].tag;
        }
    }
    return TAG_UNKNOWN;
}

/* Takes `literal` from the end of s[0..*n). */
static bool take_back(const char *s, size_t *n, const char *literal) {
    size_t size = strlen(literal), end = *n;
    if (end < size || memcmp(s + end - size, literal, size) != 0) return false;
    *n = end - size;
    return true;
}

static size_t without_spaces(const char *s, size_t n) {
    while (n > 0 && s[n - 1] == ' ') n--;
    return n;
}

/* At a ">": whether what follows name=" is a whole tag; then name holds the name alone. A name may
 * contain quotes and ">"; it ends where the rest of the tag fits for the first time. */
static bool name_is_complete(di_chat_parser *p) {
    const char *s = p->name.data;
    size_t n = without_spaces(s, p->name.size);
    if (p->tag == TAG_PARAMETER_OPEN) {
        bool is_string = take_back(s, &n, "string=\"true\"");
        if (!is_string && !take_back(s, &n, "string=\"false\"")) return false;
        size_t spaced = without_spaces(s, n);
        if (spaced == n) return false;
        n = spaced;
        p->is_string = is_string;
    }
    if (n == 0 || s[n - 1] != '"') return false;
    p->name.size = n - 1;
    return true;
}

/* The word is over; c is what follows it. False when it is no tag's. */
static bool end_word(di_chat_parser *p) {
    p->tag = p->name.size ? find_tag(p, true) : TAG_UNKNOWN;
    if (p->tag == TAG_UNKNOWN) return false;
    bool has_name = p->tag == TAG_INVOKE_OPEN || p->tag == TAG_PARAMETER_OPEN;
    p->phase = has_name ? PHASE_ATTRIBUTE : PHASE_CLOSE;
    p->n_matched = 0;
    return true;
}

/* The literal ` name="`, with any number of spaces. */
static bool attribute_byte(di_chat_parser *p, char c) {
    static const char literal[] = " name=\"";
    if (p->n_matched == 1 && c == ' ') return true;
    if (c != literal[p->n_matched]) return false;
    if (literal[++p->n_matched] == '\0') {
        p->phase = PHASE_NAME;
        di_buffer_clear(&p->name);
    }
    return true;
}

/* One byte of a tag; false when there is no such tag. */
static bool tag_byte(di_chat_parser *p, char c) {
    if (++p->n_tag > CHAT_MAX_TAG) return false;
    if (p->phase == PHASE_WORD) {
        if (c == ' ' && p->name.size == 0) return true;
        if ((c >= 'a' && c <= 'z') || c == '_') {
            di_buffer_putc(&p->name, c);
            return p->name.failed || find_tag(p, false) != TAG_UNKNOWN;
        }
        if (!end_word(p)) return false;
    }
    if (p->phase == PHASE_ATTRIBUTE) return attribute_byte(p, c);
    if (p->phase == PHASE_CLOSE) return c == ' ' || (c == '>' && complete_tag(p));
    if (c == '>' && p->name.size && !p->name.failed && name_is_complete(p)) return complete_tag(p);
    di_buffer_putc(&p->name, c);
    return true;
}

/* ---- Between tags, and values ---- */

/* In a block or call: blanks, and the markers that begin a tag. */
static bool between_byte(di_chat_parser *p, char c) {
    if (p->n_marker == 0 && is_blank(c)) return true;
    p->marker[p->n_marker++] = c;
    static const char *const markers[] = {DSML_OPEN, DSML_CLOSE};
    for (int i = 0; i < 2; i++) {
        size_t size = strlen(markers[i]);
        if (p->n_marker > size || memcmp(p->marker, markers[i], p->n_marker) != 0) continue;
        if (p->n_marker == size) enter_tag(p, p->state, i == 1);
        return true;
    }
    p->n_marker = 0;
    return false;
}

static size_t skip_spaces(const char *s, size_t n, size_t at) {
    while (at < n && s[at] == ' ') at++;
    return at;
}

/* Whether the held bytes are a parameter's closing tag: 1 yes, 0 may become one, -1 no. */
static int match_close(const char *s, size_t n) {
    static const char *const words[] = {DSML_CLOSE, "parameter", ">"};
    size_t at = 0;
    for (int i = 0; i < 3; i++) {
        size_t size = strlen(words[i]), left = n - at;
        if (memcmp(s + at, words[i], left < size ? left : size) != 0) return -1;
        if (left < size) return 0;
        at = skip_spaces(s, n, at + size);
        if (i == 2) return 1;
    }
    return 0;
}

/* One byte of a value: the closing tag is held back, everything else is the value. */
static void value_byte(di_chat_parser *p, char c) {
    if (p->n_close == 0 && c != '<') {
        add_value(p, &c, 1);
        return;
    }
    p->close[p->n_close++] = c;
    int match = match_close(p->close, p->n_close);
    if (match > 0) {
        end_value(p);
    } else if (match < 0 || p->n_close == CHAT_MAX_CLOSE) {
        /* The tag has "<" nowhere but at its start, so only c can begin another one. */
        size_t n = p->n_close - 1;
        p->n_close = 0;
        add_value(p, p->close, n);
        value_byte(p, c); /* once: no byte is held now */
    }
}

size_t stream__markup(di_chat_parser *p, const char *text, size_t size) {
    if (p->state == STREAM_VALUE && p->n_close == 0) {
        const char *bracket = memchr(text, '<', size);
        size_t run = bracket ? (size_t)(bracket - text) : size;
        if (run > 0) {
            di_buffer_append(&p->raw, text, run);
            add_value(p, text, run);
            return run;
        }
    }
    char c = text[0];
    di_buffer_putc(&p->raw, c);
    bool good = true;
    switch (p->state) {
    case STREAM_VALUE: value_byte(p, c); break;
    case STREAM_TAG: good = tag_byte(p, c); break;
    case STREAM_BLOCK:
    case STREAM_INVOKE: good = between_byte(p, c); break;
    case STREAM_TEXT: break;
    }
    if (good || p->raw.failed) return 1;
    p->raw.size--; /* the byte that does not fit may begin something of its own */
    stream__fail_markup(p);
    stream__text_byte(p, c);
    return 1;
}
