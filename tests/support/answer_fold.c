#include "support/answer_fold.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"

/* ---- JSON ---- */

static const di_json *parse(const char *text, size_t size, di_arena *arena) {
    const di_json *root;
    di_error error;
    if (di_utf8_valid_prefix(text, size) != size) fail_msg("no UTF-8: %.*s", (int)size, text);
    if (di_json_parse(text, size, "answer", arena, &root, &error) != DI_OK) {
        fail_msg("%s in %.*s", error.message, (int)size, text);
    }
    return root;
}

/* A member that must be a string; NULL where it is null or not there. */
static const di_json *text_of(const di_json *object, const char *key) {
    const di_json *value = di_json_get(object, key);
    if (!value || value->type == DI_JSON_NULL) return NULL;
    assert_int_equal(value->type, DI_JSON_STRING);
    return value;
}

static void append(di_buffer *to, const di_json *text) {
    if (text) di_buffer_append(to, text->text, text->length);
}

static void keep(char *to, size_t room, const di_json *text) {
    snprintf(to, room, "%s", text ? text->text : "");
}

static int64_t number_of(const di_json *object, const char *key) {
    int64_t n = -1;
    assert_true(di_json_int64(di_json_get(object, key), &n));
    return n;
}

/* Arguments must be the JSON of an object; in the form of one writer, for Messages have them as such. */
static void add_call(answer_fold *f, const char *name, const char *arguments, size_t size) {
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *object = parse(arguments, size, &arena);
    assert_int_equal(object->type, DI_JSON_OBJECT);
    di_buffer_printf(&f->calls, "%s ", name);
    di_json_write(&f->calls, object);
    di_buffer_putc(&f->calls, '\n');
    di_arena_free(&arena);
}

static void finish(answer_fold *f, const di_json *reason) {
    static const char *const same[][2] = {{"tool_calls", "calls"},  {"tool_use", "calls"},
                                          {"end_turn", "stop"},     {"stop_sequence", "stop"},
                                          {"max_tokens", "length"}, {"completed", "stop"},
                                          {"incomplete", "length"}};
    assert_non_null(reason);
    assert_string_equal(f->finish, ""); /* one end */
    keep(f->finish, sizeof f->finish, reason);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        if (strcmp(f->finish, same[i][0]) != 0) continue;
        snprintf(f->finish, sizeof f->finish, "%s", same[i][1]);
        return;
    }
}

/* ---- Chat and completions ---- */

static void chat_tokens(answer_fold *f, const di_json *logprobs) {
    const di_json *list = di_json_get(logprobs, "content"),
                  *older = di_json_get(logprobs, "tokens");
    for (const di_json *t = list ? list->first : NULL; t; t = t->next, f->n_tokens++) {
        for (const di_json *b = di_json_get(t, "bytes")->first; b; b = b->next) {
            int64_t byte;
            assert_true(di_json_int64(b, &byte));
            di_buffer_putc(&f->spelled, (char)byte);
        }
    }
    if (older) f->n_tokens += older->length;
}

/* `from`: a message, a delta or a completion's choice. */
static void chat_parts(answer_fold *f, const di_json *from) {
    const di_json *calls = di_json_get(from, "tool_calls");
    append(&f->thought, text_of(from, "reasoning_content"));
    append(&f->text, text_of(from, f->dialect == DI_DIALECT_CHAT ? "content" : "text"));
    for (const di_json *c = calls ? calls->first : NULL; c; c = c->next) {
        const di_json *function = di_json_get(c, "function");
        const di_json *arguments = text_of(function, "arguments");
        assert_non_null(text_of(c, "id"));
        if (di_json_get(c, "index")) assert_int_equal(number_of(c, "index"), f->n_blocks);
        f->n_blocks++;
        add_call(f, text_of(function, "name")->text, arguments->text, arguments->length);
    }
}

static void chat_object(answer_fold *f, const di_json *root, const char *part) {
    const di_json *usage = di_json_get(root, "usage");
    if (usage && usage->type == DI_JSON_OBJECT) {
        f->n_answer = number_of(usage, "completion_tokens");
    }
    for (const di_json *c = di_json_get(root, "choices")->first; c; c = c->next) {
        if (number_of(c, "index") != f->choice) continue;
        assert_string_equal(f->finish, ""); /* nothing comes behind the end */
        chat_parts(f, part && f->dialect == DI_DIALECT_CHAT ? di_json_get(c, part) : c);
        chat_tokens(f, di_json_get(c, "logprobs"));
        if (text_of(c, "finish_reason")) finish(f, text_of(c, "finish_reason"));
    }
}

/* ---- Messages ---- */

static void message_block(answer_fold *f, const di_json *b) {
    const char *type = text_of(b, "type")->text;
    if (strcmp(type, "thinking") == 0) {
        append(&f->thought, text_of(b, "thinking"));
    } else if (strcmp(type, "text") == 0) {
        append(&f->text, text_of(b, "text"));
    } else {
        di_buffer input = DI_BUFFER_EMPTY;
        assert_string_equal(type, "tool_use");
        assert_non_null(text_of(b, "id"));
        di_json_write(&input, di_json_get(b, "input"));
        add_call(f, text_of(b, "name")->text, input.data, input.size);
        di_buffer_free(&input);
    }
}

static void message_end(answer_fold *f, const di_json *reason, const di_json *usage) {
    finish(f, text_of(reason, "stop_reason"));
    keep(f->stop, sizeof f->stop, text_of(reason, "stop_sequence"));
    f->n_answer = number_of(usage, "output_tokens");
}

static void message_delta(answer_fold *f, const di_json *delta) {
    const char *type = text_of(delta, "type")->text;
    if (strcmp(type, "thinking_delta") == 0) {
        assert_string_equal(f->kind, "thinking");
        append(&f->thought, text_of(delta, "thinking"));
    } else if (strcmp(type, "text_delta") == 0) {
        assert_string_equal(f->kind, "text");
        append(&f->text, text_of(delta, "text"));
    } else if (strcmp(type, "input_json_delta") == 0) {
        assert_string_equal(f->kind, "tool_use");
        append(&f->block, text_of(delta, "partial_json"));
    } else {
        assert_string_equal(type, "signature_delta");
    }
}

static void message_event(answer_fold *f, const char *type, const di_json *data) {
    const di_json *block = di_json_get(data, "content_block");
    if (f->n_events == 0) {
        assert_string_equal(type, "message_start");
    } else if (strcmp(type, "content_block_start") == 0) {
        assert_false(f->open);
        assert_int_equal(number_of(data, "index"), f->n_blocks);
        f->open = true;
        keep(f->kind, sizeof f->kind, text_of(block, "type"));
        di_buffer_clear(&f->block);
        if (strcmp(f->kind, "tool_use") == 0) {
            append(&f->block, text_of(block, "name"));
            di_buffer_putc(&f->block, '\0');
        }
    } else if (strcmp(type, "message_delta") == 0) {
        assert_false(f->open);
        message_end(f, di_json_get(data, "delta"), di_json_get(data, "usage"));
    } else if (strcmp(type, "message_stop") == 0) {
        f->ended = true;
    } else {
        assert_true(f->open);
        assert_int_equal(number_of(data, "index"), f->n_blocks);
        if (strcmp(type, "content_block_delta") == 0) {
            message_delta(f, di_json_get(data, "delta"));
            return;
        }
        assert_string_equal(type, "content_block_stop");
        f->open = false;
        f->n_blocks++;
        if (strcmp(f->kind, "tool_use") != 0) return;
        size_t n = strlen(f->block.data) + 1;
        add_call(f, f->block.data, f->block.data + n, f->block.size - n);
    }
}

/* ---- Responses ---- */

/* Thoughts may be told as summaries, and then are no content. */
static const di_json *parts_of(const di_json *item) {
    const di_json *summary = di_json_get(item, "summary");
    return summary && summary->length > 0 ? summary : di_json_get(item, "content");
}

static void response_item(answer_fold *f, const di_json *item) {
    const char *type = text_of(item, "type")->text;
    bool thought = strcmp(type, "reasoning") == 0;
    if (strcmp(type, "function_call") == 0) {
        const di_json *arguments = text_of(item, "arguments");
        assert_non_null(text_of(item, "call_id"));
        add_call(f, text_of(item, "name")->text, arguments->text, arguments->length);
        return;
    }
    if (!thought) assert_string_equal(type, "message");
    const di_json *parts = parts_of(item);
    for (const di_json *c = parts->first; c; c = c->next) {
        append(thought ? &f->thought : &f->text, text_of(c, "text"));
    }
}

static void response_object(answer_fold *f, const di_json *response) {
    for (const di_json *i = di_json_get(response, "output")->first; i; i = i->next) {
        response_item(f, i);
    }
    finish(f, text_of(response, "status"));
    f->n_answer = number_of(di_json_get(response, "usage"), "output_tokens");
}

static void same_text(const di_buffer *a, const di_json *b) {
    assert_int_equal(a->size, b->length);
    if (a->size > 0) assert_memory_equal(a->data, b->text, a->size);
}

/* The items of the last event are those that were streamed. */
static void response_end(answer_fold *f, const di_json *response) {
    answer_fold last = {.dialect = f->dialect};
    di_buffer told = DI_BUFFER_EMPTY, again = DI_BUFFER_EMPTY;
    assert_false(f->open);
    response_object(&last, response);
    snprintf(f->finish, sizeof f->finish, "%s", last.finish);
    f->n_answer = last.n_answer;
    f->ended = true;
    answer_fold_write(f, &told);
    answer_fold_write(&last, &again);
    assert_string_equal(told.data, again.data);
    assert_int_equal(di_json_get(response, "output")->length, f->n_blocks);
    di_buffer_free(&told);
    di_buffer_free(&again);
    answer_fold_free(&last);
}

static bool ends_in(const char *type, const char *end) {
    size_t n = strlen(type), m = strlen(end);
    return n >= m && strcmp(type + n - m, end) == 0;
}

static void response_delta(answer_fold *f, const char *type, const di_json *delta) {
    assert_non_null(delta);
    append(&f->block, delta);
    if (strcmp(type, "response.reasoning_text.delta") == 0 ||
        strcmp(type, "response.reasoning_summary_text.delta") == 0) {
        assert_string_equal(f->kind, "reasoning");
        append(&f->thought, delta);
    } else if (strcmp(type, "response.output_text.delta") == 0) {
        assert_string_equal(f->kind, "message");
        append(&f->text, delta);
    } else {
        assert_string_equal(type, "response.function_call_arguments.delta");
        assert_string_equal(f->kind, "function_call");
    }
}

static void response_block(answer_fold *f, const char *type, const di_json *data) {
    const di_json *item = di_json_get(data, "item"), *part = di_json_get(data, "part");
    if (strcmp(type, "response.output_item.added") == 0) {
        assert_false(f->open);
        f->open = true;
        keep(f->kind, sizeof f->kind, text_of(item, "type"));
        di_buffer_clear(&f->block);
    }
    assert_true(f->open);
    assert_int_equal(number_of(data, "output_index"), f->n_blocks);
    if (ends_in(type, ".delta")) response_delta(f, type, text_of(data, "delta"));
    if (ends_in(type, "_text.done")) same_text(&f->block, text_of(data, "text"));
    if (ends_in(type, "part.done")) same_text(&f->block, text_of(part, "text"));
    if (ends_in(type, "arguments.done")) same_text(&f->block, text_of(data, "arguments"));
    if (strcmp(type, "response.output_item.done") != 0) return;
    f->open = false;
    f->n_blocks++;
    if (strcmp(f->kind, "function_call") == 0) {
        same_text(&f->block, text_of(item, "arguments"));
        response_item(f, item);
    } else {
        same_text(&f->block, text_of(parts_of(item)->first, "text"));
    }
}

static void response_event(answer_fold *f, const char *type, const di_json *data) {
    const di_json *response = di_json_get(data, "response");
    assert_int_equal(number_of(data, "sequence_number"), f->n_events);
    if (f->n_events < 2) {
        assert_string_equal(type, f->n_events ? "response.in_progress" : "response.created");
    } else if (response) {
        response_end(f, response);
    } else {
        response_block(f, type, data);
    }
}

/* ---- Whole ---- */

static void begin(di_dialect dialect, int choice, answer_fold *f) {
    memset(f, 0, sizeof *f);
    f->dialect = dialect;
    f->choice = choice;
    f->n_answer = -1;
}

void answer_fold_whole(di_dialect dialect, int choice, const char *body, size_t size,
                       answer_fold *f) {
    di_arena arena = DI_ARENA_EMPTY;
    begin(dialect, choice, f);
    const di_json *root = parse(body, size, &arena);
    switch (dialect) {
    case DI_DIALECT_CHAT:
    case DI_DIALECT_COMPLETION: chat_object(f, root, "message"); break;
    case DI_DIALECT_RESPONSES: response_object(f, root); break;
    case DI_DIALECT_MESSAGES:
        for (const di_json *b = di_json_get(root, "content")->first; b; b = b->next) {
            message_block(f, b);
        }
        message_end(f, root, di_json_get(root, "usage"));
        break;
    }
    di_arena_free(&arena);
}

/* ---- Streams ---- */

static void take_event(answer_fold *f, const char *name, const char *data, size_t size) {
    di_arena arena = DI_ARENA_EMPTY;
    bool openai = f->dialect == DI_DIALECT_CHAT || f->dialect == DI_DIALECT_COMPLETION;
    assert_false(f->ended);
    if (openai && size == 6 && memcmp(data, "[DONE]", 6) == 0) {
        f->ended = true;
        return;
    }
    const di_json *root = parse(data, size, &arena);
    if (openai) {
        assert_string_equal(name, "");
        chat_object(f, root, "delta");
    } else {
        assert_string_equal(name, text_of(root, "type")->text);
        if (f->dialect == DI_DIALECT_MESSAGES) message_event(f, name, root);
        if (f->dialect == DI_DIALECT_RESPONSES) response_event(f, name, root);
    }
    f->n_events++;
    di_arena_free(&arena);
}

void answer_fold_stream(di_dialect dialect, int choice, const char *events, size_t size,
                        answer_fold *f) {
    static const char event[] = "event: ", data[] = "data: ";
    char name[64] = "";
    begin(dialect, choice, f);
    for (size_t at = 0; at < size;) {
        const char *line = events + at, *end = memchr(line, '\n', size - at);
        if (!end) fail_msg("a line without an end: %.*s", (int)(size - at), line);
        size_t n = (size_t)(end - line);
        at += n + 1;
        if (n == 0) {
            name[0] = '\0';
        } else if (n > sizeof event - 1 && memcmp(line, event, sizeof event - 1) == 0) {
            snprintf(name, sizeof name, "%.*s", (int)(n - sizeof event + 1),
                     line + sizeof event - 1);
        } else {
            assert_true(n > sizeof data - 1 && memcmp(line, data, sizeof data - 1) == 0);
            take_event(f, name, line + sizeof data - 1, n - sizeof data + 1);
        }
    }
    assert_true(f->ended);
}

/* ---- The form ---- */

void answer_fold_write(const answer_fold *f, di_buffer *out) {
    const di_buffer *parts[] = {&f->thought, &f->text, &f->calls};
    for (int i = 0; i < 3; i++) {
        di_buffer_printf(out, "%c:", "TAC"[i]);
        di_buffer_append(out, parts[i]->data ? parts[i]->data : "", parts[i]->size);
        di_buffer_putc(out, '|');
    }
    di_buffer_printf(out, "F:%s", f->finish);
}

void answer_fold_free(answer_fold *f) {
    di_buffer_free(&f->thought);
    di_buffer_free(&f->text);
    di_buffer_free(&f->calls);
    di_buffer_free(&f->spelled);
    di_buffer_free(&f->block);
    memset(f, 0, sizeof *f);
}
