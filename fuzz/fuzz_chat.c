/* Fuzzes the chat: outputs of the model (streaming and strict) and conversations (encoder).
 *
 * First byte: bit 0 thinking, bit 1 the rest is a conversation in JSON and not an output, bits 2..7
 * the size of the pieces it is cut into. What must hold, whatever the bytes:
 *   - cut input and whole input give the same events, neighbours joined;
 *   - events follow the contract: whole characters in valid input, BEGIN before ARGUMENTS before
 *     END, arguments of a completed call one JSON object;
 *   - without a completed call nothing but newlines, "</think>" and a final EOS is lost;
 *   - a prompt's pieces are non-empty, no two texts are neighbours.
 * A violation aborts.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "require.h"
#include "text/chat.h"

#define EOS "<｜end▁of▁sentence｜>"
#define THINK_END "</think>"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct outcome {
    di_buffer log, text, arguments;
    di_chat_event_type last;
    bool valid, open; /* the input is UTF-8; between BEGIN and END or BROKEN */
    int index;
} outcome;

static void check_arguments(const outcome *o) {
    if (!o->valid) return;
    di_arena arena = DI_ARENA_EMPTY;
    di_error error;
    const di_json *value;
    REQUIRE(di_json_parse(o->arguments.data, o->arguments.size, "arguments", &arena, &value,
                          &error) == DI_OK);
    REQUIRE(value->type == DI_JSON_OBJECT);
    di_arena_free(&arena);
}

static void check_order(outcome *o, const di_chat_event *event) {
    bool bare = event->type == DI_CHAT_CALL_END || event->type == DI_CHAT_CALL_BROKEN;
    REQUIRE(bare == (event->size == 0));
    if (o->valid && !bare) {
        REQUIRE(di_utf8_valid_prefix(event->text, event->size) == event->size);
    }
    bool is_text = event->type == DI_CHAT_REASONING || event->type == DI_CHAT_CONTENT;
    REQUIRE(o->open == (!is_text && event->type != DI_CHAT_CALL_BEGIN));
    REQUIRE(event->index == (is_text ? 0 : o->index));
    if (event->type == DI_CHAT_CALL_BEGIN) o->open = true;
    if (bare) {
        o->open = false;
        o->index++;
    }
}

static void on_event(void *user, const di_chat_event *event) {
    outcome *o = user;
    check_order(o, event);
    if (o->log.size == 0 || o->last != event->type) di_buffer_putc(&o->log, (char)event->type);
    di_buffer_append(&o->log, event->text, event->size);
    o->last = event->type;
    switch (event->type) {
    case DI_CHAT_REASONING:
    case DI_CHAT_CONTENT: di_buffer_append(&o->text, event->text, event->size); break;
    case DI_CHAT_CALL_BEGIN: di_buffer_clear(&o->arguments); break;
    case DI_CHAT_CALL_ARGUMENTS: di_buffer_append(&o->arguments, event->text, event->size); break;
    case DI_CHAT_CALL_END: check_arguments(o); break;
    case DI_CHAT_CALL_BROKEN: break;
    }
}

/* True when a call was completed. */
static bool run_stream(const char *text, size_t size, bool thinking, size_t step, outcome *o) {
    di_error error;
    memset(o, 0, sizeof *o);
    o->valid = di_utf8_valid_prefix(text, size) == size;
    di_chat_parser *parser = di_chat_parser_create(thinking, on_event, o);
    REQUIRE(parser);
    for (size_t at = 0; at < size;) {
        size_t n = step < size - at ? step : size - at;
        REQUIRE(di_chat_parser_push(parser, text + at, n, &error) == DI_OK);
        at += n;
    }
    REQUIRE(di_chat_parser_finish(parser, &error) == DI_OK);
    REQUIRE(!o->open);
    bool has_calls = di_chat_parser_has_calls(parser);
    di_chat_parser_destroy(parser);
    return has_calls;
}

static void free_outcome(outcome *o) {
    di_buffer_free(&o->log);
    di_buffer_free(&o->text);
    di_buffer_free(&o->arguments);
}

static bool at_think_end(const char *text, size_t left) {
    size_t n = sizeof THINK_END - 1;
    return left >= n && memcmp(text, THINK_END, n) == 0;
}

/* Walks the input beside the text that came of it; only what may be dropped can differ. The input's
 * "</think>" is always dropped; a text's can only have come together around dropped ones. */
static void check_nothing_lost(const char *text, size_t size, const di_buffer *out) {
    size_t eos = sizeof EOS - 1, k = 0;
    if (size >= eos && memcmp(text + size - eos, EOS, eos) == 0) size -= eos;
    for (size_t i = 0; i < size;) {
        if (at_think_end(text + i, size - i)) {
            i += sizeof THINK_END - 1;
        } else if (k < out->size && out->data[k] == text[i]) {
            i++;
            k++;
        } else {
            REQUIRE(text[i] == '\n');
            i++;
        }
    }
    REQUIRE(k == out->size);
}

static void try_output(const char *text, size_t size, bool thinking, size_t step) {
    outcome whole, cut;
    bool has_calls = run_stream(text, size, thinking, size ? size : 1, &whole);
    REQUIRE(run_stream(text, size, thinking, step, &cut) == has_calls);
    REQUIRE(whole.log.size == cut.log.size);
    REQUIRE(whole.log.size == 0 || memcmp(whole.log.data, cut.log.data, whole.log.size) == 0);
    if (!has_calls) check_nothing_lost(text, size, &whole.text);

    di_arena arena = DI_ARENA_EMPTY;
    di_chat_message message;
    di_error error;
    if (di_chat_parse(text, size, thinking, &arena, &message, &error) == DI_OK) {
        REQUIRE(strlen(message.reasoning) <= message.reasoning_size);
        for (size_t i = 0; i < message.n_calls; i++) REQUIRE(message.calls[i].name[0]);
    } else {
        REQUIRE(error.status == DI_ERR_INVALID && error.message[0]);
    }
    di_arena_free(&arena);
    free_outcome(&whole);
    free_outcome(&cut);
}

static void try_conversation(const char *text, size_t size, bool thinking) {
    di_arena arena = DI_ARENA_EMPTY;
    di_error error;
    const di_json *root;
    di_chat_prompt prompt;
    di_chat_options options = di_chat_options_defaults();
    options.thinking = thinking;
    if (di_json_parse(text, size, "conversation", &arena, &root, &error) != DI_OK) goto done;
    const di_json *messages = root->type == DI_JSON_OBJECT ? di_json_get(root, "messages") : root;
    const di_json *tools = di_json_get(root, "tools");
    di_status status = di_chat_encode(messages, tools, &options, &arena, &prompt, &error);
    if (status != DI_OK) {
        REQUIRE(error.status == status && error.message[0]);
        goto done;
    }
    for (size_t i = 0; i < prompt.n_pieces; i++) {
        REQUIRE(prompt.pieces[i].size > 0);
        REQUIRE(i == 0 || prompt.pieces[i].is_marker || prompt.pieces[i - 1].is_marker);
    }
    di_buffer rendered = DI_BUFFER_EMPTY;
    di_chat_render(&prompt, &rendered);
    REQUIRE(di_utf8_valid_prefix(rendered.data, rendered.size) == rendered.size);
    di_buffer_free(&rendered);
done:
    di_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    bool thinking = data[0] & 1;
    if (data[0] & 2) {
        try_conversation(text, size - 1, thinking);
    } else {
        try_output(text, size - 1, thinking, 1 + (data[0] >> 2));
    }
    return 0;
}
