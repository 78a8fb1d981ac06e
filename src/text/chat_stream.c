/* The streaming parser: thought and answer, events, and the public functions. */
#include "text/chat_stream.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* ---- Output ---- */

static void send(di_chat_parser *p, di_chat_event_type type, const char *text, size_t size) {
    bool is_text = type == DI_CHAT_REASONING || type == DI_CHAT_CONTENT;
    di_chat_event event = {type, is_text ? 0 : p->index, text, size};
    p->on_event(p->user, &event);
}

/* Sends what waits. A character that is not complete stays, unless the text ends here. */
static void flush(di_chat_parser *p, bool everything) {
    if (p->out.size == 0 || p->out.failed) return;
    size_t tail = everything ? 0 : di_utf8_incomplete_tail(p->out.data, p->out.size);
    size_t size = p->out.size - tail;
    if (size == 0) return;
    send(p, p->out_type, p->out.data, size);
    memmove(p->out.data, p->out.data + size, tail);
    p->out.size = tail;
}

void stream__emit(di_chat_parser *p, di_chat_event_type type, const char *text, size_t size) {
    if (size == 0) return;
    if (p->out_type != type) flush(p, true);
    p->out_type = type;
    di_buffer_append(&p->out, text, size);
}

void stream__event(di_chat_parser *p, di_chat_event_type type, const char *text, size_t size) {
    flush(p, true);
    send(p, type, text, size);
}

/* ---- Text ---- */

static void emit_text(di_chat_parser *p, const char *text, size_t size) {
    stream__emit(p, p->reasoning ? DI_CHAT_REASONING : DI_CHAT_CONTENT, text, size);
}

static void emit_newlines(di_chat_parser *p) {
    for (; p->newlines; p->newlines--) emit_text(p, "\n", 1);
}

/* Text that is certain: what was held in front of it comes first. */
static void certain_text(di_chat_parser *p, const char *text, size_t size) {
    if (size == 0) return;
    emit_newlines(p);
    p->after_block = false;
    if (!p->reasoning) p->answer_started = true;
    emit_text(p, text, size);
}

static void hold_newline(di_chat_parser *p) {
    bool dropped = !p->reasoning && !p->answer_started;
    if (!dropped) p->newlines++;
}

static bool marker_is(const di_chat_parser *p, const char *marker) {
    return p->n_marker == strlen(marker) && memcmp(p->marker, marker, p->n_marker) == 0;
}

static bool marker_may_become(const di_chat_parser *p, const char *marker) {
    return p->n_marker <= strlen(marker) && memcmp(p->marker, marker, p->n_marker) == 0;
}

/* The held bytes are no marker. None of the markers has "<" inside, so none can begin in them. */
static void release_marker(di_chat_parser *p) {
    size_t n = p->n_marker;
    p->n_marker = 0;
    certain_text(p, p->marker, n);
}

/* </think>: the end of the thought, or one too many. */
static void end_thought(di_chat_parser *p) {
    p->n_marker = 0;
    if (!p->reasoning) return;
    emit_newlines(p);
    p->reasoning = false;
}

void stream__text_byte(di_chat_parser *p, char c) {
    if (p->n_marker) {
        p->marker[p->n_marker++] = c;
        if (!p->calls_off && marker_is(p, DSML_OPEN)) {
            stream__begin_markup(p);
            return;
        }
        if (marker_is(p, CHAT_THINK_CLOSE)) {
            end_thought(p);
            return;
        }
        /* A whole EOS stays held: it is one only at the end of everything. */
        if ((!p->calls_off && marker_may_become(p, DSML_OPEN)) ||
            marker_may_become(p, CHAT_THINK_CLOSE) || marker_may_become(p, CHAT_EOS)) {
            return;
        }
        p->n_marker--;
        release_marker(p);
    }
    if (c == '\n') {
        hold_newline(p);
    } else if (c == '<') {
        p->marker[p->n_marker++] = c;
    } else {
        certain_text(p, &c, 1);
    }
}

/* A run of bytes, at least one. */
static size_t read_text(di_chat_parser *p, const char *text, size_t size) {
    size_t n = 0;
    if (p->n_marker == 0) {
        while (n < size && text[n] != '<' && text[n] != '\n') n++;
    }
    if (n) {
        certain_text(p, text, n);
        return n;
    }
    stream__text_byte(p, text[0]);
    return 1;
}

static void end_text(di_chat_parser *p) {
    if (marker_is(p, CHAT_EOS)) p->n_marker = 0;
    release_marker(p);
    if (p->after_block) p->newlines = 0;
    emit_newlines(p);
}

/* ---- Public ---- */

di_chat_parser *di_chat_parser_create(bool thinking, di_chat_event_fn on_event, void *user) {
    di_chat_parser *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->on_event = on_event;
    p->user = user;
    p->reasoning = thinking;
    return p;
}

static di_status check_memory(di_chat_parser *p, di_error *error) {
    p->failed = p->failed || p->out.failed || p->raw.failed || p->name.failed || p->value.failed ||
                p->scratch.failed;
    if (!p->failed) return DI_OK;
    return di_fail(error, DI_ERR_MEMORY, "out of memory while parsing the model's output");
}

di_status di_chat_parser_push(di_chat_parser *p, const char *text, size_t size, di_error *error) {
    if (p->finished) {
        return di_fail(error, DI_ERR_USAGE, "text for a chat parser that was finished");
    }
    while (size > 0 && !p->failed) {
        size_t n =
            p->state == STREAM_TEXT ? read_text(p, text, size) : stream__markup(p, text, size);
        text += n;
        size -= n;
    }
    DI_TRY(check_memory(p, error));
    flush(p, false);
    return DI_OK;
}

di_status di_chat_parser_finish(di_chat_parser *p, di_error *error) {
    if (p->finished) return di_fail(error, DI_ERR_USAGE, "a chat parser can be finished once");
    p->finished = true;
    if (p->state != STREAM_TEXT) {
        if (stream__may_end(p))
            p->n_marker = 0;
        else
            stream__fail_markup(p);
    }
    end_text(p);
    DI_TRY(check_memory(p, error));
    flush(p, true);
    return DI_OK;
}

bool di_chat_parser_has_calls(const di_chat_parser *p) { return p->n_calls > 0; }

size_t di_chat_parser_held(const di_chat_parser *p) {
    size_t markup = p->state == STREAM_TEXT ? 0 : p->raw.size;
    return p->out.size + p->newlines + p->n_marker + markup;
}

void di_chat_parser_destroy(di_chat_parser *p) {
    if (!p) return;
    di_buffer_free(&p->out);
    di_buffer_free(&p->raw);
    di_buffer_free(&p->name);
    di_buffer_free(&p->value);
    di_buffer_free(&p->scratch);
    dsml__keys_free(&p->keys);
    free(p);
}
