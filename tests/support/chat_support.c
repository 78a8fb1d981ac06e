#include "support/chat_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"

static di_status encode(const char *messages, const char *tools, const di_chat_options *options,
                        di_arena *arena, di_chat_prompt *prompt, di_error *error) {
    const di_json *list, *tool_list = NULL;
    assert_int_equal(di_json_parse(messages, strlen(messages), "messages", arena, &list, error),
                     DI_OK);
    if (tools) {
        assert_int_equal(di_json_parse(tools, strlen(tools), "tools", arena, &tool_list, error),
                         DI_OK);
    }
    return di_chat_encode(list, tool_list, options, arena, prompt, error);
}

char *chat_encode_text(const char *messages, const char *tools, const di_chat_options *options) {
    di_arena arena = DI_ARENA_EMPTY;
    di_chat_prompt prompt;
    di_error error = {0};
    if (encode(messages, tools, options, &arena, &prompt, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    di_buffer text = DI_BUFFER_EMPTY;
    di_chat_render(&prompt, &text);
    di_arena_free(&arena);
    return text.data;
}

const char *chat_encode_error(const char *messages, const char *tools,
                              const di_chat_options *options) {
    static di_error error;
    di_arena arena = DI_ARENA_EMPTY;
    di_chat_prompt prompt;
    memset(&error, 0, sizeof error);
    assert_int_not_equal(encode(messages, tools, options, &arena, &prompt, &error), DI_OK);
    di_arena_free(&arena);
    return error.message;
}

const char *chat_buffer_text(const di_buffer *buffer) { return buffer->data ? buffer->data : ""; }

/* Arguments of a completed call are a JSON object, whatever the model wrote; in valid UTF-8. */
static bool good_arguments(const chat_collected *c) {
    const di_buffer *text = &c->arguments;
    if (di_utf8_valid_prefix(chat_buffer_text(text), text->size) != text->size) return true;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *value;
    di_error error;
    bool good = di_json_parse(chat_buffer_text(text), text->size, "arguments", &arena, &value,
                              &error) == DI_OK &&
                value->type == DI_JSON_OBJECT;
    di_arena_free(&arena);
    return good;
}

static void end_call(chat_collected *c) {
    if (!good_arguments(c)) c->bad_event = true;
    di_buffer_append(&c->calls, c->name.data, c->name.size);
    di_buffer_putc(&c->calls, ' ');
    di_buffer_append(&c->calls, c->arguments.data, c->arguments.size);
    di_buffer_putc(&c->calls, '\n');
}

static void check_event(chat_collected *c, const di_chat_event *event) {
    bool bare = event->type == DI_CHAT_CALL_END || event->type == DI_CHAT_CALL_BROKEN;
    if (bare != (event->size == 0)) c->bad_event = true;
    if (event->type <= DI_CHAT_CONTENT && event->index != 0) c->bad_event = true;
}

void chat_collect_event(void *collected, const di_chat_event *event) {
    chat_collected *c = collected;
    static const char letters[] = "RCBAEX";
    check_event(c, event);
    if (c->log.size == 0 || c->last_type != (int)event->type || c->last_index != event->index) {
        if (c->log.size) di_buffer_putc(&c->log, ' ');
        di_buffer_putc(&c->log, letters[event->type]);
        if (event->type > DI_CHAT_CONTENT) di_buffer_printf(&c->log, "%d", event->index);
        if (event->size) di_buffer_putc(&c->log, ':');
    }
    di_buffer_append(&c->log, event->text, event->size);
    c->last_type = (int)event->type;
    c->last_index = event->index;
    switch (event->type) {
    case DI_CHAT_REASONING: di_buffer_append(&c->reasoning, event->text, event->size); break;
    case DI_CHAT_CONTENT: di_buffer_append(&c->content, event->text, event->size); break;
    case DI_CHAT_CALL_BEGIN:
        di_buffer_clear(&c->name);
        di_buffer_clear(&c->arguments);
        di_buffer_append(&c->name, event->text, event->size);
        break;
    case DI_CHAT_CALL_ARGUMENTS: di_buffer_append(&c->arguments, event->text, event->size); break;
    case DI_CHAT_CALL_END: end_call(c); break;
    case DI_CHAT_CALL_BROKEN: break;
    }
}

bool chat_collect(const char *text, size_t size, bool thinking, size_t first, size_t step,
                  chat_collected *out) {
    memset(out, 0, sizeof *out);
    di_error error;
    di_chat_parser *parser = di_chat_parser_create(thinking, chat_collect_event, out);
    if (!parser) return false;
    bool good = true;
    for (size_t at = 0; at < size && good;) {
        size_t n = at == 0 && first ? first : step ? step : size;
        if (n > size - at) n = size - at;
        good = di_chat_parser_push(parser, text + at, n, &error) == DI_OK;
        at += n;
    }
    good = good && di_chat_parser_finish(parser, &error) == DI_OK;
    out->has_calls = di_chat_parser_has_calls(parser);
    di_chat_parser_destroy(parser);
    return good;
}

void chat_collected_free(chat_collected *c) {
    di_buffer_free(&c->reasoning);
    di_buffer_free(&c->content);
    di_buffer_free(&c->log);
    di_buffer_free(&c->calls);
    di_buffer_free(&c->name);
    di_buffer_free(&c->arguments);
}

uint32_t chat_random(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}
