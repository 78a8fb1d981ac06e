/* Right and wrong, by every judge; and what a judge cannot work with. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The file whole: the program is not a library. */
#include "cli/eval_judge.c"

static di_arena arena;

static const di_json *json(const char *t) {
    const di_json *value;
    di_error error;
    if (di_json_parse(t, strlen(t), "test", &arena, &value, &error) != DI_OK) {
        fail_msg("%s: %s", error.message, t);
    }
    return value;
}

/* wanted: JSON of the field "answer". */
static bool is_right(di_judge judge, const char *wanted, const char *answer) {
    di_eval_want want = {.judge = judge, .answer = json(wanted)};
    di_error error;
    assert_int_equal(di_judge_check(&want, &error), DI_OK);
    di_answer given = {0};
    bool right = false;
    di_buffer_puts(&given.text, answer);
    assert_int_equal(di_judge_answer(&want, &given, &right, &error), DI_OK);
    /* Beside a call it is no answer. */
    di_answer_call call = {DI_BUFFER_EMPTY, DI_BUFFER_EMPTY};
    bool right_beside = true;
    given.calls = &call;
    given.n_calls = 1;
    assert_int_equal(di_judge_answer(&want, &given, &right_beside, &error), DI_OK);
    assert_false(right_beside);
    di_buffer_free(&given.text);
    return right;
}

static void test_texts(void **state) {
    (void)state;
    assert_true(is_right(DI_JUDGE_EXACT, "\"It is 5.\"", "It is 5."));
    assert_true(is_right(DI_JUDGE_EXACT, "\"It is 5.\"", "\n It is 5.\t\n"));
    assert_true(is_right(DI_JUDGE_EXACT, "\"\"", ""));
    assert_true(is_right(DI_JUDGE_EXACT, "[\"yes\", \"no\"]", "no"));
    assert_false(is_right(DI_JUDGE_EXACT, "\"It is 5.\"", "It is  5."));
    assert_false(is_right(DI_JUDGE_EXACT, "\"It is 5.\"", "It is 5"));
    assert_false(is_right(DI_JUDGE_EXACT, "\"It is 5.\"", ""));
    assert_false(is_right(DI_JUDGE_EXACT, "[\"yes\", \"no\"]", "yes or no"));
    assert_true(is_right(DI_JUDGE_CONTAINS, "\"plum\"", "It was a plum, I think."));
    assert_true(is_right(DI_JUDGE_CONTAINS, "[\"fig\", \"plum\"]", "plum"));
    assert_false(is_right(DI_JUDGE_CONTAINS, "\"plum\"", "plu m"));
    assert_false(is_right(DI_JUDGE_CONTAINS, "\"plum\"", ""));
}

static void test_numbers(void **state) {
    (void)state;
    assert_true(is_right(DI_JUDGE_NUMBER, "157", "64 + 93 = 157"));
    assert_true(is_right(DI_JUDGE_NUMBER, "\"157\"", "It is 157."));
    assert_true(is_right(DI_JUDGE_NUMBER, "2.50", "2.5"));
    assert_true(is_right(DI_JUDGE_NUMBER, "-3", "That makes -3."));
    assert_true(is_right(DI_JUDGE_NUMBER, "7", "007"));
    assert_true(is_right(DI_JUDGE_NUMBER, "2", "5-3 leaves (3)-2")); /* a minus, no sign */
    assert_true(is_right(DI_JUDGE_NUMBER, "[\"1\", \"2\"]", "2"));
    assert_false(is_right(DI_JUDGE_NUMBER, "157", "157 is more than 93"));
    assert_false(is_right(DI_JUDGE_NUMBER, "3", "That makes -3."));
    assert_false(is_right(DI_JUDGE_NUMBER, "0", "none"));
    assert_false(is_right(DI_JUDGE_NUMBER, "0", ""));
    assert_false(is_right(DI_JUDGE_NUMBER, "5", "2.5"));
    /* More digits than any number has. */
    char digits[2000];
    memset(digits, '9', sizeof digits - 1);
    digits[sizeof digits - 1] = '\0';
    assert_false(is_right(DI_JUDGE_NUMBER, "9", digits));
}

static void test_json(void **state) {
    (void)state;
    const char *want = "{\"a\": 1, \"b\": [true, null, \"x\"], \"c\": {\"d\": 2.5}}";
    assert_true(
        is_right(DI_JUDGE_JSON, want,
                 " {\"c\": {\"d\": 2.50}, \"b\": [true, null, \"\\u0078\"], \"a\": 1.0}\n"));
    assert_true(is_right(DI_JUDGE_JSON, "\"[1, 2]\"", "[1,2]"));
    assert_true(is_right(DI_JUDGE_JSON, "[1, 2]", "[1,2]"));
    assert_true(is_right(DI_JUDGE_JSON, "[\"1\", \"[2]\"]", "[2]"));
    assert_false(is_right(DI_JUDGE_JSON, want, "{\"a\": 1, \"b\": [true, null, \"x\"]}"));
    assert_false(is_right(DI_JUDGE_JSON, "[1, 2]", "[2, 1]"));
    assert_false(is_right(DI_JUDGE_JSON, "[1, 2]", "[1, 2, 3]"));
    assert_false(is_right(DI_JUDGE_JSON, "[1, 2]", "[1, 2"));
    assert_false(is_right(DI_JUDGE_JSON, "[1, 2]", ""));
    assert_false(is_right(DI_JUDGE_JSON, "{\"a\": 1}", "{\"b\": 1}"));
    assert_false(is_right(DI_JUDGE_JSON, "{\"a\": \"1\"}", "{\"a\": 1}"));
    assert_false(
        is_right(DI_JUDGE_JSON, "{\"a\": 12345678901234567890}", "{\"a\": 1234567890123456789}"));
}

/* ---- Calls ---- */

#define WEATHER "{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 2}}"

typedef struct given_call {
    const char *name, *arguments;
} given_call;

static bool calls_right(const char *wanted, const given_call *calls, int n) {
    di_eval_want want = {.judge = DI_JUDGE_CALLS, .calls = json(wanted)};
    di_error error;
    assert_int_equal(di_judge_check(&want, &error), DI_OK);
    di_answer_call given[4] = {{DI_BUFFER_EMPTY, DI_BUFFER_EMPTY}};
    di_answer answer = {.calls = given, .n_calls = n};
    for (int i = 0; i < n; i++) {
        given[i] = (di_answer_call){DI_BUFFER_EMPTY, DI_BUFFER_EMPTY};
        di_buffer_puts(&given[i].name, calls[i].name);
        di_buffer_puts(&given[i].arguments, calls[i].arguments);
    }
    di_buffer_puts(&answer.text, "I look it up.");
    bool right = false;
    assert_int_equal(di_judge_answer(&want, &answer, &right, &error), DI_OK);
    for (int i = 0; i < n; i++) {
        di_buffer_free(&given[i].name);
        di_buffer_free(&given[i].arguments);
    }
    di_buffer_free(&answer.text);
    return right;
}

static void test_calls(void **state) {
    (void)state;
    const given_call rome = {"weather", "{\"days\": 2, \"city\": \"Rome\"}"};
    const given_call wrong[] = {{"weather", "{\"days\": 3, \"city\": \"Rome\"}"},
                                {"weathers", "{\"days\": 2, \"city\": \"Rome\"}"},
                                {"weather", "{\"days\": 2, \"city\": \"Rome\""},
                                {"weather", ""},
                                {"", "{\"days\": 2, \"city\": \"Rome\"}"}};
    const given_call two[] = {rome, {"now", "{}"}}, turned[] = {{"now", "{}"}, rome};
    assert_true(calls_right("[" WEATHER "]", &rome, 1));
    assert_true(calls_right("[{\"id\": \"x\", \"type\": \"function\", \"function\": {\"name\": "
                            "\"weather\", \"arguments\": \"{\\\"city\\\": \\\"Rome\\\", "
                            "\\\"days\\\": 2}\"}}]",
                            &rome, 1));
    assert_true(calls_right("[]", NULL, 0));
    assert_true(calls_right("[" WEATHER ", {\"name\": \"now\", \"arguments\": {}}]", two, 2));
    assert_false(calls_right("[" WEATHER ", {\"name\": \"now\", \"arguments\": {}}]", turned, 2));
    assert_false(calls_right("[" WEATHER "]", two, 2));
    assert_false(calls_right("[" WEATHER "]", NULL, 0));
    assert_false(calls_right("[]", &rome, 1));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(calls_right("[" WEATHER "]", &wrong[i], 1));
    }
}

/* ---- What cannot be judged by ---- */

static void refused(di_judge judge, const char *answer, const char *calls, const char *message) {
    di_eval_want want = {.judge = judge,
                         .answer = answer ? json(answer) : NULL,
                         .calls = calls ? json(calls) : NULL};
    di_error error;
    assert_int_equal(di_judge_check(&want, &error), DI_ERR_INVALID);
    assert_string_equal(error.message, message);
}

static void test_checks(void **state) {
    (void)state;
    di_judge judge;
    for (int i = 0; i < DI_N_JUDGES; i++) {
        const char *name = di_judge_name((di_judge)i);
        assert_true(di_judge_find(name, strlen(name), &judge));
        assert_int_equal(judge, i);
    }
    assert_false(di_judge_find("exac", 4, &judge));
    refused(DI_JUDGE_EXACT, NULL, NULL, "answer: it is missing");
    refused(DI_JUDGE_EXACT, "5", NULL, "answer: a string or a list of strings is needed");
    refused(DI_JUDGE_CONTAINS, "[]", NULL, "answer: a string or a list of strings is needed");
    refused(DI_JUDGE_CONTAINS, "[\"a\", 1]", NULL,
            "answer: a string or a list of strings is needed");
    refused(DI_JUDGE_NUMBER, "\"five\"", NULL, "answer: it is no number, which judge number needs");
    refused(DI_JUDGE_NUMBER, "[\"5\", \"\"]", NULL,
            "answer: it is no number, which judge number needs");
    refused(DI_JUDGE_JSON, "\"{\"", NULL, "answer: it is no JSON, which judge json needs");
    refused(DI_JUDGE_CALLS, "\"a\"", NULL, "tool_calls: a list is needed");
    static const char *const calls[] = {"[1]", "[{\"name\": \"a\"}]", "[{\"arguments\": {}}]",
                                        "[{\"name\": \"a\", \"arguments\": \"{\"}]",
                                        "[{\"name\": \"a\", \"arguments\": [1]}]"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        refused(DI_JUDGE_CALLS, NULL, calls[i],
                "tool_calls: each needs a name and arguments, an object or its JSON text");
    }
}

static int teardown(void **state) {
    (void)state;
    di_arena_free(&arena);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts), cmocka_unit_test(test_numbers),
                                       cmocka_unit_test(test_json), cmocka_unit_test(test_calls),
                                       cmocka_unit_test(test_checks)};
    return cmocka_run_group_tests(tests, NULL, teardown);
}
