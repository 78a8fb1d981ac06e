/* Results to figures, and settings from their text. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The files whole: the program is not a library. */
#include "cli/eval_score.c"
#include "cli/eval_setting.c"
#include "cli/eval_stats.c"
#include "cli/option_parse.c"
#include "cli/option_suggest.c"
#include "cli/option_table.c"

static void near(double x, double want) {
    if (!(fabs(x - want) <= 1e-12)) fail_msg("%.15g, wanted %.15g", x, want);
}

/* Two task files of 3 and 2 items, and a text of 3 rows. */
static di_eval_group groups[] = {{.name = "a", .first = 0, .n_items = 3},
                                 {.name = "b", .first = 3, .n_items = 2},
                                 {.name = "t", .is_text = true, .first = 5, .n_items = 3}};
static di_eval_item items[8] = {{.group = 0}, {.group = 0}, {.group = 0}, {.group = 1},
                                {.group = 1}, {.group = 2}, {.group = 2}, {.group = 2}};
static const di_eval_set set = {.groups = groups, .n_groups = 3, .items = items, .n_items = 8};

static int32_t one[] = {7}, two[] = {7, 8}, other[] = {7, 9};
#define IDS(array)                                                                                 \
    { .data = (array), .size = sizeof(array) / sizeof *(array) }

static di_eval_result first_results[8] =
    {{.done = true, .right = true, .answer = IDS(one), .n_prompt = 10, .n_cached = 4},
     {.done = true, .right = true, .answer = IDS(two), .n_prompt = 20, .whole = true},
     {.done = true, .right = false, .answer = IDS(two), .cut = true},
     {.done = true, .right = true, .answer = IDS(one)},
     {.done = false, .right = true},
     {.done = true, .logprobs = -20, .n_scored = 10},
     {.done = true, .logprobs = -60, .n_scored = 20},
     {.done = true, .logprobs = -40, .n_scored = 10}};
static di_eval_result second_results[8] = {{.done = true, .right = true, .answer = IDS(one)},
                                           {.done = true, .right = false, .answer = IDS(other)},
                                           {.done = true, .right = false, .answer = IDS(one)},
                                           {.done = true, .right = true, .answer = IDS(one)},
                                           {.done = true, .right = true},
                                           {.done = true, .logprobs = -20, .n_scored = 10},
                                           {.done = true, .logprobs = -64, .n_scored = 20},
                                           {.done = false}};
static const di_eval_run first = {.results = first_results, .n_items = 8};
static const di_eval_run second = {.results = second_results, .n_items = 8};

static void test_tasks(void **state) {
    (void)state;
    items[1].want.completion = "";
    di_eval_score s = di_eval_score_tasks(&set, &first, &groups[0]);
    assert_int_equal(s.n, 3);
    assert_int_equal(s.right, 2);
    assert_int_equal(s.n_whole, 1);
    assert_int_equal(s.whole, 1);
    assert_int_equal(s.n_cut, 1);
    assert_int_equal(s.n_prompt, 30);
    assert_int_equal(s.n_cached, 4);
    near(s.share, 2.0 / 3);
    near(s.bounds.low, di_eval_stats_proportion(2, 3).low);
    s = di_eval_score_tasks(&set, &first, NULL); /* no text, nothing that is not done */
    assert_int_equal(s.n, 4);
    assert_int_equal(s.right, 3);
    di_eval_run none = {0};
    assert_int_equal(di_eval_score_tasks(&set, &none, NULL).n, 0);
}

static void test_pairs(void **state) {
    (void)state;
    di_eval_pair p = di_eval_pair_tasks(&set, &first, &second, &groups[0]);
    assert_int_equal(p.n, 3);
    assert_int_equal(p.only_first, 1);
    assert_int_equal(p.only_second, 0);
    assert_int_equal(p.same, 1);
    near(p.difference, -1.0 / 3);
    near(p.bounds.high, di_eval_stats_paired(1, 0, 3).high);
    p = di_eval_pair_tasks(&set, &second, &first, NULL);
    assert_int_equal(p.n, 4);
    assert_int_equal(p.only_second, 1);
    assert_int_equal(p.same, 2);
    p = di_eval_pair_tasks(&set, &first, &(di_eval_run){0}, NULL);
    assert_int_equal(p.n, 0);
}

static void test_texts(void **state) {
    (void)state;
    di_error error;
    di_eval_text_score s;
    assert_int_equal(di_eval_score_text(&first, &groups[2], &s, &error), DI_OK);
    assert_int_equal(s.n_rows, 3);
    assert_int_equal(s.n_tokens, 40);
    near(s.nats, 3); /* 2, 3, 4 */
    assert_true(s.has_bounds);
    near(s.bounds.high - s.nats, di_eval_stats_t(2) / sqrt(3));
    di_eval_text_pair p;
    assert_int_equal(di_eval_pair_text(&first, &second, &groups[2], &p, &error), DI_OK);
    assert_int_equal(p.n_rows, 2);
    assert_int_equal(p.same, 1);
    near(p.difference, 0.1); /* 0, 0.2 */
    near(p.bounds.high - p.difference, di_eval_stats_t(1) * 0.1);
    assert_int_equal(di_eval_score_text(&(di_eval_run){0}, &groups[2], &s, &error), DI_OK);
    assert_int_equal(s.n_rows, 0);
    assert_false(s.has_bounds);
}

/* ---- Settings ---- */

static const di_verb verb = {.id = DI_VERB_EVAL,
                             .name = "eval",
                             .arguments = "MODEL",
                             .min_args = 1,
                             .max_args = 1};

static di_args parsed_args(int n, const char *const *words) {
    di_args args;
    di_error error;
    char *const *argv = (char *const *)(uintptr_t)words;
    if (di_args_parse(&verb, n, argv, &args, &error) != DI_OK) fail_msg("%s", error.message);
    return args;
}

static void test_settings(void **state) {
    (void)state;
    const char *argv[] = {"MODEL", "--chunk", "32"};
    di_args args = parsed_args(3, argv);
    di_eval_settings s = {0};
    di_error error;
    if (di_eval_settings_read(&args, "replay=exact,replay=bounded+max-batch=3  window-cache=8K,",
                              &s, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(s.n, 3);
    assert_string_equal(s.items[0].name, "replay=exact");
    assert_string_equal(s.items[1].name, "replay=bounded+max-batch=3");
    assert_string_equal(s.items[2].name, "window-cache=8K");
    assert_string_equal(di_args_text(&s.items[0].args, DI_OPT_REPLAY), "exact");
    assert_string_equal(di_args_text(&s.items[1].args, DI_OPT_REPLAY), "bounded");
    assert_int_equal(di_args_int(&s.items[0].args, DI_OPT_MAX_BATCH), 16);
    assert_int_equal(di_args_int(&s.items[1].args, DI_OPT_MAX_BATCH), 3);
    for (int i = 0; i < 3; i++) assert_int_equal(di_args_int(&s.items[i].args, DI_OPT_CHUNK), 32);
    assert_int_equal(di_args_unsigned(&s.items[1].args, DI_OPT_WINDOW_CACHE), 0);
    assert_int_equal(di_args_unsigned(&s.items[2].args, DI_OPT_WINDOW_CACHE), 8192);
    di_eval_settings_free(&s);
    assert_int_equal(di_eval_settings_read(&args, NULL, &s, &error), DI_OK);
    assert_int_equal(s.n, 1);
    assert_int_equal(di_args_unsigned(&s.items[0].args, DI_OPT_WINDOW_CACHE), 256 << 20);
    di_eval_settings_free(&s);
    di_args_free(&args);
    const char *given[] = {"MODEL", "--window-cache", "1M"};
    args = parsed_args(3, given);
    assert_int_equal(di_eval_settings_read(&args, "chunk=1,chunk=2", &s, &error), DI_OK);
    assert_int_equal(di_args_unsigned(&s.items[0].args, DI_OPT_WINDOW_CACHE), 1 << 20);
    di_eval_settings_free(&s);
    di_args_free(&args);
}

static void test_wrong_settings(void **state) {
    (void)state;
    static const struct {
        const char *list, *message; /* message: its beginning */
    } wrong[] = {
        {"", "--compare: two settings at least are needed"},
        {",,", "--compare: two settings at least are needed"},
        {"replay=exact", "--compare: two settings at least are needed"},
        {"replay=exact,bounded", "--compare: 'bounded' is not OPTION=VALUE"},
        {"replay=exact,=1", "--compare: '=1' is not OPTION=VALUE"},
        {"replay=exact,replay=fast", "--compare: replay: 'fast' is not one of "},
        {"replay=exact+,chunk=1", "--compare: '' is not OPTION=VALUE"},
        {"replay=exact,chunk=0", "--compare: chunk: '0' is not a whole number from 1"},
        {"replay=exact,chunk=", "--compare: chunk: '' is not "},
        {"replay=exact,temperature=1", "--compare: 'temperature' is nothing that can differ; "},
        {"replay=exact,tasks=a", "--compare: 'tasks' is nothing that can differ; "},
        {"replay=exact,nothing=a", "--compare: 'nothing' is nothing that can differ; that can: "},
    };
    const char *argv[] = {"MODEL"};
    di_args args = parsed_args(1, argv);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        di_eval_settings s = {0};
        di_error error;
        assert_int_equal(di_eval_settings_read(&args, wrong[i].list, &s, &error), DI_ERR_USAGE);
        if (strncmp(error.message, wrong[i].message, strlen(wrong[i].message)) != 0) {
            fail_msg("%s: %s", wrong[i].list, error.message);
        }
        di_eval_settings_free(&s);
    }
    di_args_free(&args);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tasks), cmocka_unit_test(test_pairs),
                                       cmocka_unit_test(test_texts),
                                       cmocka_unit_test(test_settings),
                                       cmocka_unit_test(test_wrong_settings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
