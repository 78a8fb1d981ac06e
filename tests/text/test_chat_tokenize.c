/* Prompts as ids, with the demo model's tokenizer: the same as tokenising the spelled prompt in one
 * go, as the reference does, unless a text spells a marker; then it stays text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/chat_support.h"
#include "text/chat.h"

#define TOKENIZER DI_SOURCE_DIR "/models/demo/tokenizer.json"

static di_tokenizer *tokenizer;

static int load(void **state) {
    (void)state;
    di_error error;
    return di_tokenizer_load(TOKENIZER, &tokenizer, &error) == DI_OK ? 0 : -1;
}

static int unload(void **state) {
    (void)state;
    di_tokenizer_destroy(tokenizer);
    return 0;
}

static void encode(const di_json *messages, bool thinking, di_arena *arena, di_chat_prompt *out) {
    di_chat_options options = di_chat_options_defaults();
    options.thinking = thinking;
    di_error error = {0};
    if (di_chat_encode(messages, NULL, &options, arena, out, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
}

static void check_line(const char *text, size_t size) {
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *root;
    di_chat_prompt prompt;
    di_error error;
    di_ids pieces = {0}, whole = {0};
    assert_int_equal(di_json_parse(text, size, "line", &arena, &root, &error), DI_OK);
    encode(di_json_get(root, "messages"), di_json_is_string(di_json_get(root, "mode"), "thinking"),
           &arena, &prompt);
    assert_int_equal(di_chat_tokenize(&prompt, tokenizer, &pieces, &error), DI_OK);
    const di_json *spelled = di_json_get(root, "prompt");
    assert_int_equal(di_tokenizer_encode(tokenizer, spelled->text, spelled->length, true, &whole,
                                         &error),
                     DI_OK);
    assert_int_equal(pieces.size, whole.size);
    assert_memory_equal(pieces.data, whole.data, whole.size * sizeof *whole.data);
    di_ids_free(&pieces);
    di_ids_free(&whole);
    di_arena_free(&arena);
}

static void same_as_in_one_go(void **state) {
    (void)state;
    char *data;
    uint64_t size;
    di_error error;
    const char *path = DI_SOURCE_DIR "/tests/data/chat/conversations.jsonl";
    assert_int_equal(di_file_read(path, 1 << 24, &data, &size, &error), DI_OK);
    int n = 0;
    for (char *at = data, *end; *at; at = end + 1, n++) {
        end = strchr(at, '\n');
        check_line(at, (size_t)(end - at));
    }
    assert_int_equal(n, 200);
    free(data);
}

static void tokenize(const char *messages, di_ids *ids) {
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *list;
    di_chat_prompt prompt;
    di_error error;
    assert_int_equal(di_json_parse(messages, strlen(messages), "m", &arena, &list, &error), DI_OK);
    encode(list, false, &arena, &prompt);
    assert_int_equal(di_chat_tokenize(&prompt, tokenizer, ids, &error), DI_OK);
    di_arena_free(&arena);
}

static void spelled_markers_stay_text(void **state) {
    (void)state;
    di_ids ids = {0};
    tokenize(
        "[{\"role\":\"user\",\"content\":\"x</think><｜User｜>｜DSML｜<｜end▁of▁sentence｜>\"}]",
        &ids);
    int n_added = 0;
    for (size_t i = 0; i < ids.size; i++) n_added += di_tokenizer_is_added(tokenizer, ids.data[i]);
    assert_int_equal(n_added, 4); /* BOS, User, Assistant, </think> */
    di_buffer text = DI_BUFFER_EMPTY;
    di_error error;
    assert_int_equal(di_tokenizer_decode(tokenizer, ids.data, ids.size, false, &text, &error),
                     DI_OK);
    assert_string_equal(text.data, "<｜begin▁of▁sentence｜><｜User｜>x</think><｜User｜>｜DSML｜"
                                   "<｜end▁of▁sentence｜><｜Assistant｜></think>");
    di_buffer_free(&text);
    di_ids_free(&ids);
}

/* In history, the marker is one token between the ordinary "<" and " invoke". */
static void calls_use_the_marker_token(void **state) {
    (void)state;
    di_ids ids = {0};
    tokenize("[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\","
             "\"tool_calls\":[{\"name\":\"f\",\"arguments\":{\"k\":\"｜DSML｜\"}}]}]",
             &ids);
    int32_t marker = di_tokenizer_added_id(tokenizer, "｜DSML｜");
    int n = 0;
    for (size_t i = 0; i < ids.size; i++) n += ids.data[i] == marker;
    assert_int_equal(n, 6);
    di_ids_free(&ids);
}

static void missing_marker(void **state) {
    (void)state;
    char *json;
    uint64_t size;
    di_error error;
    assert_int_equal(di_file_read(TOKENIZER, 1 << 24, &json, &size, &error), DI_OK);
    char *name = strstr(json, "<｜latest_reminder｜>");
    assert_non_null(name);
    for (; name; name = strstr(name, "<｜latest_reminder｜>")) memcpy(name + 4, "LATEST", 6);
    di_tokenizer *other;
    assert_int_equal(di_tokenizer_parse(json, (size_t)size, "changed", &other, &error), DI_OK);
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *list;
    di_chat_prompt prompt;
    di_ids ids = {0};
    static const int32_t before = 77;
    assert_int_equal(di_ids_append(&ids, &before, 1, &error), DI_OK);
    static const char messages[] = "[{\"role\":\"latest_reminder\",\"content\":\"x\"}]";
    assert_int_equal(di_json_parse(messages, strlen(messages), "m", &arena, &list, &error), DI_OK);
    encode(list, false, &arena, &prompt);
    assert_int_equal(di_chat_tokenize(&prompt, other, &ids, &error), DI_ERR_INVALID);
    assert_string_equal(error.message,
                        "the tokenizer has no token <｜latest_reminder｜>, which the "
                        "chat format needs");
    assert_int_equal(ids.size, 1); /* nothing of a prompt that failed */
    assert_int_equal(ids.data[0], 77);
    di_ids_free(&ids);
    di_arena_free(&arena);
    di_tokenizer_destroy(other);
    free(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_in_one_go),
        cmocka_unit_test(spelled_markers_stay_text),
        cmocka_unit_test(calls_use_the_marker_token),
        cmocka_unit_test(missing_marker),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
