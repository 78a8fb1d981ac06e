/* The demo model's evaluation prompts, written by an independent encoder: encoding the messages
 * must give the prompt, parsing the completion (both parsers) must give the answer and the calls.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/chat_support.h"
#include "text/chat.h"

typedef struct line {
    const di_json *root;
    bool thinking;
    di_arena arena;
} line;

static void check_prompt(line *l) {
    di_chat_options options = di_chat_options_defaults();
    options.thinking = l->thinking;
    int64_t effort;
    if (di_json_int64(di_json_get(l->root, "reasoning_effort"), &effort)) {
        options.reasoning_effort = (int)effort;
    }
    di_chat_prompt prompt;
    di_error error = {0};
    di_status status = di_chat_encode(di_json_get(l->root, "messages"), NULL, &options, &l->arena,
                                      &prompt, &error);
    if (status != DI_OK) fail_msg("%s", error.message);
    di_buffer text = DI_BUFFER_EMPTY;
    di_chat_render(&prompt, &text);
    assert_string_equal(text.data, di_json_get(l->root, "prompt")->text);
    di_buffer_free(&text);
}

/* "name arguments" lines in the form of chat_collected.calls. */
static void expected_calls(const line *l, di_buffer *out) {
    const di_json *calls = di_json_get(l->root, "tool_calls");
    for (const di_json *call = calls ? calls->first : NULL; call; call = call->next) {
        di_buffer_puts(out, di_json_get(call, "name")->text);
        di_buffer_putc(out, ' ');
        di_json_write(out, di_json_get(call, "arguments"));
        di_buffer_putc(out, '\n');
    }
}

static void check_completion(line *l) {
    const di_json *completion = di_json_get(l->root, "completion");
    const char *answer = di_json_get(l->root, "answer")->text;
    di_buffer calls = DI_BUFFER_EMPTY, strict_calls = DI_BUFFER_EMPTY;
    expected_calls(l, &calls);

    di_chat_message message;
    di_error error = {0};
    di_status status = di_chat_parse(completion->text, completion->length, l->thinking, &l->arena,
                                     &message, &error);
    if (status != DI_OK) fail_msg("%s", error.message);
    assert_string_equal(message.content, answer);
    for (size_t i = 0; i < message.n_calls; i++) {
        di_buffer_printf(&strict_calls, "%s %s\n", message.calls[i].name,
                         message.calls[i].arguments);
    }
    assert_string_equal(chat_buffer_text(&strict_calls), chat_buffer_text(&calls));

    chat_collected stream;
    assert_true(chat_collect(completion->text, completion->length, l->thinking, 0, 1, &stream));
    assert_string_equal(chat_buffer_text(&stream.content), answer);
    assert_string_equal(chat_buffer_text(&stream.reasoning), message.reasoning);
    assert_string_equal(chat_buffer_text(&stream.calls), chat_buffer_text(&calls));
    assert_int_equal(stream.has_calls, calls.size > 0);
    assert_false(stream.bad_event);
    chat_collected_free(&stream);
    di_buffer_free(&calls);
    di_buffer_free(&strict_calls);
}

static void evaluation_prompts(void **state) {
    (void)state;
    char *data;
    uint64_t size;
    di_error error = {0};
    const char *path = DI_SOURCE_DIR "/tests/data/chat/conversations.jsonl";
    assert_int_equal(di_file_read(path, 1 << 24, &data, &size, &error), DI_OK);
    int n = 0, n_thinking = 0, n_calls = 0;
    for (char *at = data, *end; *at; at = end + 1) {
        end = strchr(at, '\n');
        line l = {.arena = DI_ARENA_EMPTY};
        di_status status =
            di_json_parse(at, (size_t)(end - at), "conversation", &l.arena, &l.root, &error);
        if (status != DI_OK) fail_msg("%s", error.message);
        l.thinking = di_json_is_string(di_json_get(l.root, "mode"), "thinking");
        check_prompt(&l);
        check_completion(&l);
        n++;
        n_thinking += l.thinking;
        n_calls += di_json_get(l.root, "tool_calls") != NULL;
        di_arena_free(&l.arena);
    }
    assert_int_equal(n, 200);
    assert_int_equal(n_thinking, 64);
    assert_int_equal(n_calls, 16);
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(evaluation_prompts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
