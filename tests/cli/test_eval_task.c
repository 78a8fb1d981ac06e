/* Task files and texts to token ids: the demo model's own files, and everything a line can have
 * wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The files whole: the program is not a library. */
#include "cli/eval_judge.c"
#include "cli/eval_set.c"
#include "cli/eval_task.c"
#include "cli/eval_text.c"
#include "cli/input.c"
#include "cli/json_prompt.c"
#include "cli/lines.c"
#include "cli/terminal.c"
#include "support/temp.h"

static di_tokenizer *tokenizer;
static di_eval_set set;
static di_error error;
static char *path;
static const di_eval_limits all = {.max_tokens = 100};

static int setup(void **state) {
    temp_root_create(state);
    path = temp_printf("%s/mine.jsonl", temp_root);
    return di_tokenizer_open(DI_SOURCE_DIR "/models/demo", &tokenizer, &error) == DI_OK ? 0 : -1;
}

static int teardown(void **state) {
    free(path);
    di_tokenizer_destroy(tokenizer);
    return temp_root_destroy(state);
}

static void read_text_file(const char *text, const di_eval_limits *limits) {
    di_eval_set_free(&set);
    temp_write(path, text, strlen(text));
    if (di_eval_read_tasks(&set, path, tokenizer, limits, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
}

static void same_text(const di_ids *ids, const char *want) {
    char *text;
    size_t size;
    assert_int_equal(di_tokenizer_text(tokenizer, ids->data, ids->size, false, &text, &size,
                                       &error),
                     DI_OK);
    assert_string_equal(text, want);
    di_free(text);
}

#define ASK "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"

static void test_a_line(void **state) {
    (void)state;
    read_text_file("{" ASK ", \"mode\": \"chat\", \"answer\": \"Hello.\"}\n"
                   "\n"
                   "{" ASK ", \"reasoning_effort\": 75, \"answer\": [\"5\"], \"judge\": "
                   "\"number\", \"max_tokens\": 7, \"task\": \"x\", \"id\": 3}\r\n"
                   "{\"prompt\": \"<\xef\xbd\x9c"
                   "User\xef\xbd\x9c>Hi<\xef\xbd\x9c"
                   "Assistant\xef\xbd\x9c><think>\", \"tool_calls\": [], \"completion\": \"abc\"}",
                   &all);
    assert_null(set.complaints.data);
    assert_int_equal(set.n_items, 3);
    assert_string_equal(set.groups[0].name, "mine");
    const di_eval_item *item = set.items;
    assert_false(item[0].thinking);
    assert_int_equal(item[0].max_tokens, 100);
    assert_int_equal(item[0].want.judge, DI_JUDGE_EXACT);
    assert_null(item[0].want.completion);
    same_text(&item[0].ids, "<\xef\xbd\x9c"
                            "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c><\xef\xbd\x9c"
                            "User\xef\xbd\x9c>Hi<\xef\xbd\x9c"
                            "Assistant\xef\xbd\x9c></think>");
    assert_true(item[1].thinking);
    assert_int_equal(item[1].line, 3);
    assert_int_equal(item[1].max_tokens, 7);
    assert_int_equal(item[1].want.judge, DI_JUDGE_NUMBER);
    assert_true(item[2].thinking);
    assert_int_equal(item[2].ids.size, 5); /* as it is: no begin token */
    assert_int_equal(item[2].want.judge, DI_JUDGE_CALLS);
    assert_string_equal(item[2].want.completion, "abc");
}

/* Messages and rendered prompts of the demo model's files agree, or there were complaints. */
static void test_demo_files(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t n;
        bool thinking;
    } files[] = {{"add", 200, false},
                 {"tool_answer_think", 100, true},
                 {"tool_call", 100, false},
                 {"needle", 100, false},
                 {"multi_turn", 200, false}};
    di_eval_set_free(&set);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *file = temp_printf(DI_SOURCE_DIR "/models/demo/eval/%s.jsonl", files[i].name);
        assert_int_equal(di_eval_read_tasks(&set, file, tokenizer, &all, &error), DI_OK);
        free(file);
        const di_eval_group *group = &set.groups[i];
        assert_string_equal(group->name, files[i].name);
        assert_int_equal(group->n_items, files[i].n);
        const di_eval_item *item = &set.items[group->first];
        assert_int_equal(item->group, i);
        assert_int_equal(item->thinking, files[i].thinking);
        assert_non_null(item->want.completion);
    }
    assert_null(set.complaints.data);
    assert_int_equal(set.n_refused, 0);
}

static void test_limit(void **state) {
    (void)state;
    di_eval_limits two = {.lines = 2, .max_tokens = 100};
    read_text_file("{" ASK ", \"answer\": \"a\"}\n\n{}\n{" ASK ", \"answer\": \"c\"}\n", &two);
    assert_int_equal(set.n_items, 1);
    assert_int_equal(set.n_refused, 1);
}

/* ---- Lines that are wrong ---- */

static const struct {
    const char *line, *why; /* why: its beginning */
} wrong[] = {
    {"{\"messages\"", "JSON: line 1, column 12: "},
    {"[]", "no JSON object"},
    {"{" ASK ", \"anwser\": \"a\"}", "anwser: no such field"},
    {"{\"a\\n\\u001b[1m\": 1}", "a??[1m: no such field"}, /* one line, and no colours */
    {"{\"answer\": \"a\"}", "messages or prompt is needed"},
    {"{\"messages\": [], \"answer\": \"a\"}", "messages: a list, not empty, is needed"},
    {"{\"messages\": \"Hi\", \"answer\": \"a\"}", "messages: a list, not empty, is needed"},
    {"{\"messages\": [{\"role\": \"x\"}], \"answer\": \"a\"}", "messages[0].role: "},
    {"{\"prompt\": \"\", \"answer\": \"a\"}", "prompt: a string, not empty, is needed"},
    {"{" ASK ", \"prompt\": \"Hi\", \"answer\": \"a\"}",
     "prompt: it is not what messages come to, from token 0 on; leave out one"},
    {"{" ASK ", \"tools\": 1, \"answer\": \"a\"}", "tools: a list is needed"},
    {"{" ASK ", \"mode\": \"talk\", \"answer\": \"a\"}",
     "mode: it is neither \"chat\" nor \"thinking\""},
    {"{" ASK ", \"reasoning_effort\": [], \"answer\": \"a\"}",
     "reasoning_effort: a number or a name is needed"},
    {"{" ASK ", \"reasoning_effort\": 1000, \"answer\": \"a\"}", "effort: must be none, "},
    {"{" ASK "}", "answer: it is missing"},
    {"{" ASK ", \"answer\": \"a\", \"judge\": \"best\"}", "judge: it is none of "},
    {"{" ASK ", \"answer\": \"a\", \"completion\": 1}", "completion: a string is needed"},
    {"{" ASK ", \"answer\": \"a\", \"max_tokens\": 0}", "max_tokens: a whole number from 1 to "},
    {"{" ASK ", \"answer\": \"a\", \"max_tokens\": 1.5}", "max_tokens: a whole number from 1 to "},
};

static void test_wrong_lines(void **state) {
    (void)state;
    enum { N = sizeof wrong / sizeof *wrong };
    di_buffer text = DI_BUFFER_EMPTY;
    for (size_t i = 0; i < N; i++) di_buffer_printf(&text, "%s\n", wrong[i].line);
    di_buffer_puts(&text, "{" ASK ", \"answer\": \"a\"}\n");
    read_text_file(text.data, &all);
    di_buffer_free(&text);
    assert_int_equal(set.n_items, 1); /* the rest goes on */
    assert_int_equal(set.items[0].line, N + 1);
    assert_int_equal(set.n_refused, N);
    const char *at = set.complaints.data;
    for (size_t i = 0; i < N; i++) {
        char *want = temp_printf("%s: line %zu: %s", path, i + 1, wrong[i].why);
        if (strncmp(at, want, strlen(want)) != 0) {
            fail_msg("%.*s\nwanted: %s", (int)strcspn(at, "\n"), at, want);
        }
        free(want);
        at += strcspn(at, "\n") + 1;
    }
    assert_int_equal(*at, '\0');
}

static void test_empty_and_missing(void **state) {
    (void)state;
    read_text_file("\n \t\n", &all);
    assert_int_equal(set.n_items, 0);
    char *want = temp_printf("%s: line 1: the file holds no tasks\n", path);
    assert_string_equal(set.complaints.data, want);
    free(want);
    assert_int_equal(di_eval_read_tasks(&set, "/nonexistent/x.jsonl", tokenizer, &all, &error),
                     DI_ERR_IO);
}

/* ---- Texts ---- */

/* `n` tokens of text: a digit is one. */
static void read_digits(size_t n, const di_eval_limits *limits) {
    char *text = malloc(n + 1);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++) text[i] = (char)('0' + i % 10);
    temp_write(path, text, n);
    free(text);
    di_eval_set_free(&set);
    if (di_eval_read_text(&set, path, tokenizer, limits, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
}

static void test_rows_of_text(void **state) {
    (void)state;
    di_eval_limits half = {.row_prompt = 512}, one = {.lines = 1};
    read_digits(3 * DI_EVAL_ROW_TOKENS - 1, &all);
    assert_true(set.groups[0].is_text);
    assert_int_equal(set.n_items, 2); /* whole rows only */
    assert_int_equal(set.items[1].ids.size, DI_EVAL_ROW_TOKENS);
    assert_int_equal(set.items[1].n_given, DI_EVAL_ROW_TOKENS);
    assert_int_equal(set.items[1].max_tokens, -1);
    same_text(&(di_ids){.data = set.items[1].ids.data, .size = 3}, "456"); /* 1024, 1025, 1026 */
    read_digits(2 * DI_EVAL_ROW_TOKENS, &half);
    assert_int_equal(set.n_items, 2);
    assert_int_equal(set.items[0].n_given, DI_EVAL_ROW_TOKENS - 512);
    read_digits(2 * DI_EVAL_ROW_TOKENS, &one);
    assert_int_equal(set.n_items, 1);
    read_digits(10, &half); /* shorter than a row: in the same parts */
    assert_int_equal(set.n_items, 1);
    assert_int_equal(set.items[0].ids.size, 10);
    assert_int_equal(set.items[0].n_given, 5);
    temp_write(path, "7", 1);
    assert_int_equal(di_eval_read_text(&set, path, tokenizer, &all, &error), DI_ERR_INVALID);
    temp_write(path, "", 0);
    assert_int_equal(di_eval_read_text(&set, path, tokenizer, &all, &error), DI_ERR_INVALID);
    di_eval_set_free(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_line),
                                       cmocka_unit_test(test_demo_files),
                                       cmocka_unit_test(test_limit),
                                       cmocka_unit_test(test_wrong_lines),
                                       cmocka_unit_test(test_empty_and_missing),
                                       cmocka_unit_test(test_rows_of_text)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
