/* eval: what it counts is what the answers say, comparisons find what differs and nothing else, and
 * bad lines, bad options and Ctrl-C leave the rest as it is. */
/* ctest: slow */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "support/program.h"
#include "support/temp.h"

static char *tasks; /* path of a task file of the test's own */
static di_arena arena;

static int setup(void **state) {
    temp_root_create(state);
    tasks = temp_printf("%s/mine.jsonl", temp_root);
    return 0;
}

static int teardown(void **state) {
    free(tasks);
    di_arena_free(&arena);
    return temp_root_destroy(state);
}

static const program_result *run(const char *options) {
    char *command = temp_printf("eval models/demo --context 2560 %s", options);
    const program_result *r = program_run(command, NULL);
    free(command);
    return r;
}

static const di_json *parse(const program_result *r) {
    const di_json *out;
    di_error error;
    if (di_json_parse(r->out, r->out_size, "report", &arena, &out, &error) != DI_OK) {
        fail_msg("%s\n%s%s", error.message, r->out, r->error);
    }
    return out;
}

static double number(const di_json *object, const char *key) {
    double x;
    if (!di_json_double(di_json_get(object, key), &x)) fail_msg("%s is no number", key);
    return x;
}

static const di_json *item(const di_json *list, size_t index) {
    assert_non_null(list);
    assert_true(index < list->length);
    const di_json *at = list->first;
    while (index-- > 0) at = at->next;
    return at;
}

static const di_json *setting(const di_json *report, size_t index) {
    return item(di_json_get(report, "settings"), index);
}

static const di_json *task(const di_json *run_of, const char *name) {
    const di_json *list = di_json_get(run_of, "tasks");
    for (const di_json *t = list->first; t; t = t->next) {
        if (di_json_is_string(di_json_get(t, "task"), name)) return t;
    }
    fail_msg("%s is missing", name);
    return NULL;
}

/* ---- What is counted ---- */

static void test_demo_tasks(void **state) {
    (void)state;
    const program_result *r =
        run("--tasks facts,copy,tool_call,add_think,count_think --limit 5 --json -q");
    assert_string_equal(r->error, "");
    assert_int_equal(r->code, 0);
    const di_json *report = parse(r), *only = setting(report, 0);
    assert_true(di_json_get(report, "complete")->type == DI_JSON_TRUE);
    static const char *const perfect[] = {"facts", "copy", "tool_call", "add_think"};
    for (size_t i = 0; i < 4; i++) { /* 1.00 in the model's card */
        const di_json *t = task(only, perfect[i]);
        assert_true(number(t, "n") == 5);
        assert_true(number(t, "right") == 5);
        assert_true(number(t, "whole") == 5);
        assert_true(number(t, "cut") == 0);
    }
    assert_true(number(task(only, "count_think"), "right") < 5); /* 0.10 */
    const di_json *together = di_json_get(only, "all_tasks");
    assert_true(number(together, "n") == 25);
    assert_true(number(together, "right") == 20 + number(task(only, "count_think"), "right"));
}

#define ASK "\"messages\": [{\"role\": \"user\", \"content\": \"What is 12 + 13?\"}], "
#define ASK_CHAT ASK "\"mode\": \"chat\", "

/* The answer is "12 + 13 = 25", by every judge. */
static void test_judges(void **state) {
    (void)state;
    static const char lines[] =
        "{" ASK_CHAT "\"answer\": \"12 + 13 = 25\"}\n"
        "{" ASK "\"answer\": \"25\", \"judge\": \"contains\"}\n"
        "{" ASK "\"answer\": 25, \"judge\": \"number\"}\n"
        "{" ASK_CHAT "\"answer\": [\"38\", \"12 + 13 = 25\"]}\n"
        "{" ASK_CHAT
        "\"answer\": \"12 + 13 = 25\", \"completion\": \"12 + 13 = 25\"}\n" /* no end */
        "{" ASK_CHAT "\"answer\": \"25\"}\n"
        "{" ASK_CHAT "\"answer\": 12, \"judge\": \"number\"}\n"
        "{" ASK_CHAT "\"answer\": \"25\", \"judge\": \"json\"}\n"
        "{" ASK_CHAT "\"tool_calls\": []}\n"
        "{" ASK_CHAT "\"answer\": \"12 + 13 = 25\", \"max_tokens\": 3}\n";
    temp_write(tasks, lines, sizeof lines - 1);
    char *options = temp_printf("--tasks %s --json -q", tasks);
    const program_result *r = run(options);
    free(options);
    assert_string_equal(r->error, "");
    assert_int_equal(r->code, 0);
    const di_json *t = task(setting(parse(r), 0), "mine");
    assert_true(number(t, "n") == 10);
    assert_true(number(t, "right") == 6); /* the first five, and no calls were wanted and made */
    assert_true(number(t, "n_whole") == 1);
    assert_true(number(t, "whole") == 0);
    assert_true(number(t, "cut") == 1);
    const di_json *wrong = di_json_get(t, "wrong_lines");
    assert_int_equal(wrong->length, 4);
    for (size_t i = 0; i < 4; i++) {
        int64_t line;
        assert_true(di_json_int64(item(wrong, i), &line));
        assert_int_equal(line, i < 3 ? 6 + i : 10);
    }
}

static void test_table(void **state) {
    (void)state;
    const program_result *r = run("--tasks facts,copy --limit 2 -q");
    assert_int_equal(r->code, 0);
    const char *want = "task            n  right  95 % interval   whole\n"
                       "facts           2  1.000  0.342 .. 1.000  1.000\n"
                       "copy            2  1.000  0.342 .. 1.000  1.000\n"
                       "all tasks       4  1.000  0.510 .. 1.000  1.000\n"
                       "\n"
                       "4 items in ";
    if (strncmp(r->out, want, strlen(want)) != 0) fail_msg("%s", r->out);
}

/* ---- Comparisons ---- */

static void test_what_does_not_matter(void **state) {
    (void)state;
    const program_result *r = run("--tasks multi_turn,count,recall --limit 3 --json -q "
                                  "--compare max-batch=1+spec=off,max-batch=12+chunk=33,threads=1");
    assert_string_equal(r->error, "");
    assert_int_equal(r->code, 0);
    const di_json *report = parse(r);
    assert_true(di_json_get(report, "warm")->type == DI_JSON_TRUE);
    for (size_t i = 1; i < 3; i++) {
        const di_json *all = di_json_get(setting(report, i), "all_tasks");
        const di_json *pair = di_json_get(all, "against_first");
        assert_true(number(pair, "n") == 9);
        assert_true(number(pair, "same_answers") == 9);
        assert_true(number(pair, "difference") == 0);
    }
}

/* Samples follow from the seed, not from company; another seed gives others. */
static void test_sampled(void **state) {
    (void)state;
    static const char *const options[] =
        {"--tasks talk,facts --seed 5 --compare max-batch=1,max-batch=8", "--tasks facts --seed 5",
         "--tasks facts --seed 6"};
    double tokens[3];
    for (size_t i = 0; i < 3; i++) {
        char *all_options =
            temp_printf("%s --limit 5 --temperature 3 --max-tokens 12 --json -q", options[i]);
        const di_json *report = parse(run(all_options));
        free(all_options);
        if (i == 0) {
            const di_json *all = di_json_get(setting(report, 1), "all_tasks");
            assert_true(number(di_json_get(all, "against_first"), "same_answers") == 10);
        }
        tokens[i] = number(setting(report, 0), "answer_tokens");
    }
    assert_true(tokens[1] != tokens[2]); /* by this seed */
    assert_true(tokens[0] > tokens[1]);
}

/* Prompts are found cached, and bounded computes less of them than exact. */
static void test_replay_saves(void **state) {
    (void)state;
    const program_result *r = run("--tasks needle --limit 1 --json -q "
                                  "--compare replay=exact,replay=stable,replay=bounded,"
                                  "replay=exact+prefix-cache=off");
    assert_string_equal(r->error, "");
    const di_json *report = parse(r);
    double saved[4];
    for (size_t i = 0; i < 4; i++) {
        saved[i] = number(di_json_get(setting(report, i), "all_tasks"), "cached_tokens");
    }
    assert_true(saved[2] > saved[1] && saved[1] > saved[0]);
    assert_true(saved[3] == 0);
    const di_json *pair =
        di_json_get(di_json_get(setting(report, 3), "all_tasks"), "against_first");
    assert_true(number(pair, "same_answers") == 1); /* exact is exact, cached or not */
}

/* ---- Text ---- */

/* The first `size` bytes of the demo model's prose, in a file of their own; free() the path. */
static char *prose(size_t size) {
    char *text = temp_read(DI_SOURCE_DIR "/models/demo/eval/prose.txt", NULL);
    char *path = temp_printf("%s/prose.txt", temp_root);
    temp_write(path, text, size);
    free(text);
    return path;
}

static const di_json *text_of(const di_json *run_of) {
    return item(di_json_get(run_of, "texts"), 0);
}

/* Mean of minus the log-probabilities that `score` prints from position `first` on. */
static double scored_nats(const char *path, int64_t first, int64_t *n) {
    char *command = temp_printf("score models/demo --context 2560 -q < %s", path);
    const program_result *r = program_run(command, NULL);
    free(command);
    double sum = 0;
    *n = 0;
    for (const char *at = r->out; *at; at += strcspn(at, "\n") + 1) {
        const di_json *line;
        di_error error;
        int64_t position;
        if (di_json_parse(at, strcspn(at, "\n"), "score", &arena, &line, &error) != DI_OK) {
            fail_msg("%s", error.message);
        }
        assert_true(di_json_int64(di_json_get(line, "position"), &position));
        if (position < first) continue;
        sum -= number(line, "logprob");
        ++*n;
    }
    return sum / (double)*n;
}

/* One row, shorter than others: all of it by itself, its second half in a comparison. */
static void test_perplexity_is_that_of_score(void **state) {
    (void)state;
    char *path = prose(900);
    int64_t n_all, n_half;
    double want = scored_nats(path, 1, &n_all);
    char *options = temp_printf("--text %s --json -q", path);
    const di_json *t = text_of(setting(parse(run(options)), 0));
    assert_true(number(t, "rows") == 1);
    assert_true(number(t, "tokens") == (double)n_all);
    assert_true(fabs(number(t, "nats_per_token") - want) < 1e-6);
    assert_true(fabs(number(t, "perplexity") - exp(want)) < 1e-4);
    assert_true(di_json_get(t, "nats_per_token_95")->type == DI_JSON_NULL);
    free(options);
    want = scored_nats(path, 1 + n_all / 2, &n_half); /* behind the begin token and a half */
    options = temp_printf("--text %s --json -q --compare max-batch=1,replay=exact", path);
    const di_json *report = parse(run(options));
    for (size_t i = 0; i < 2; i++) {
        t = text_of(setting(report, i));
        assert_true(number(t, "tokens") == (double)n_half);
        assert_true(fabs(number(t, "nats_per_token") - want) < 1e-6);
    }
    assert_true(number(di_json_get(t, "against_first"), "same_rows") == 1);
    free(options);
    free(path);
}

/* Rows with an interval; what replay leaves out is seen, and no other thing makes a difference. */
static void test_rows_and_replay(void **state) {
    (void)state;
    const program_result *r = run("--text models/demo/eval/prose.txt --limit 2 --json -q "
                                  "--compare replay=exact,replay=bounded,prefix-cache=off");
    assert_string_equal(r->error, "");
    assert_int_equal(r->code, 0);
    const di_json *report = parse(r), *first = text_of(setting(report, 0));
    assert_true(number(first, "rows") == 2);
    assert_true(number(first, "tokens") == 1024);
    const di_json *bounds = di_json_get(first, "nats_per_token_95");
    assert_int_equal(bounds->type, DI_JSON_ARRAY);
    const di_json *bounded = text_of(setting(report, 1));
    assert_true(number(bounded, "cached_tokens") > 0);
    assert_true(number(di_json_get(bounded, "against_first"), "same_rows") == 0);
    assert_true(fabs(number(di_json_get(bounded, "against_first"), "difference")) < 0.5);
    const di_json *cold = text_of(setting(report, 2));
    assert_true(number(cold, "cached_tokens") == 0);
    assert_true(number(di_json_get(cold, "against_first"), "same_rows") == 2);
}

/* ---- What goes wrong ---- */

static void test_wrong_lines(void **state) {
    (void)state;
    static const char lines[] = "{" ASK_CHAT "\"answer\": \"12 + 13 = 25\"}\n"
                                "{\"messages\"\n"
                                "{" ASK_CHAT "\"answer\": 25}\n"
                                "{" ASK_CHAT "\"answer\": \"12 + 13 = 25\"}\n";
    temp_write(tasks, lines, sizeof lines - 1);
    char *options = temp_printf("--tasks %s -q --json", tasks);
    const program_result *r = run(options);
    assert_int_equal(r->code, 1);
    char *want = temp_printf(
        "deepinfer eval: %s: line 2: JSON: line 1, column 12: expected ':' after the key\n"
        "deepinfer eval: %s: line 3: answer: a string or a list of strings is needed\n"
        "deepinfer eval: items were left out (2), see above\n",
        tasks, tasks);
    assert_string_equal(r->error, want);
    const di_json *report = parse(r);
    assert_true(number(report, "refused") == 2);
    assert_true(number(task(setting(report, 0), "mine"), "right") == 2);
    free(want);
    free(options);
}

static const char *text_at(const di_json *object, const char *key) {
    const di_json *value = di_json_get(object, key);
    if (!value || value->type != DI_JSON_STRING) fail_msg("%s is no text", key);
    return value->text;
}

/* What was measured with what; also where every line is refused. */
static void test_document(void **state) {
    (void)state;
    static const char bad[] = "{}\n";
    temp_write(tasks, bad, sizeof bad - 1);
    char *options = temp_printf("--tasks %s --json -q --seed 18446744073709551615 --max-tokens 9 "
                                "--temperature 0.5",
                                tasks);
    const program_result *r = run(options);
    assert_int_equal(r->code, 1);
    const di_json *report = parse(r), *given = di_json_get(report, "options");
    assert_true(number(report, "refused") == 1);
    assert_true(di_json_get(report, "complete")->type == DI_JSON_TRUE);
    assert_int_equal(di_json_get(report, "settings")->length, 0);
    assert_true(*text_at(report, "version") >= '0' && *text_at(report, "version") <= '9');
    assert_non_null(strstr(text_at(report, "command"), options));
    assert_non_null(strstr(r->out, "\"seed\": 18446744073709551615, "));
    assert_true(number(given, "temperature") == 0.5);
    assert_true(number(given, "max_tokens") == 9);
    assert_true(number(given, "context") == 2560);
    assert_string_equal(text_at(given, "backend"), "auto");
    assert_string_equal(text_at(given, "numerics"), "release");
    free(options);
    r = program_run("eval models/demo --tasks facts --limit 1 --json -q "
                    "--compare numerics=float,context=512+spec=off",
                    NULL);
    assert_int_equal(r->code, 0);
    report = parse(r);
    assert_int_equal(di_json_get(di_json_get(report, "options"), "context")->type, DI_JSON_NULL);
    assert_true(number(di_json_get(report, "options"), "max_tokens") == 512);
    assert_string_equal(text_at(setting(report, 0), "numerics"), "float");
    assert_int_equal(di_json_get(setting(report, 0), "spec")->type, DI_JSON_NULL);
    assert_true(number(setting(report, 0), "context") > 512);
    assert_string_equal(text_at(setting(report, 1), "numerics"), "release");
    assert_string_equal(text_at(setting(report, 1), "spec"), "off");
    assert_true(number(setting(report, 1), "context") == 512);
}

/* One that is longer than the context is told once, whatever is compared, and no answer is wrong for
 * it. */
static void test_too_long(void **state) {
    (void)state;
    const program_result *r =
        program_run("eval models/demo --tasks needle,facts --limit 2 --context 256 --json -q "
                    "--compare chunk=16,chunk=32",
                    NULL);
    assert_int_equal(r->code, 1);
    int lines = 0;
    for (const char *at = r->error; (at = strstr(at, "needle.jsonl: line ")); at++) lines++;
    assert_int_equal(lines, 2);
    assert_non_null(strstr(r->error, "context"));
    assert_non_null(strstr(r->error, "deepinfer eval: items were left out (2), see above\n"));
    const di_json *second = setting(parse(r), 1);
    assert_true(number(task(second, "needle"), "n") == 0);
    assert_true(number(task(second, "facts"), "right") == 2);
}

/* A row of a text is called one. */
static void test_row_too_long(void **state) {
    (void)state;
    const program_result *r = program_run(
        "eval models/demo --text models/demo/eval/prose.txt --limit 1 --context 256 --json -q",
        NULL);
    assert_int_equal(r->code, 1);
    assert_non_null(strstr(r->error, "prose.txt: row 1: "));
    assert_true(number(text_of(setting(parse(r), 0)), "rows") == 0);
}

static void test_usage(void **state) {
    (void)state;
    program_refuses("eval models/demo --tasks facts --compare replay=exact", NULL, 2,
                    "eval: --compare: two settings at least are needed, such as "
                    "replay=exact,replay=bounded");
    program_refuses("eval models/demo --tasks facts,nothing", NULL, 2,
                    "eval: --tasks: 'nothing' is neither a file nor a task in models/demo/eval");
    program_refuses("eval models/demo --tasks ./nothing.jsonl", NULL, 2,
                    "eval: --tasks: './nothing.jsonl' is neither a file nor a task in "
                    "models/demo/eval");
    program_refuses("eval models/demo --text /nonexistent", NULL, 1,
                    "eval: cannot open /nonexistent: No such file or directory");
    char *empty = temp_printf("%s/empty.jsonl", temp_root);
    temp_write(empty, "", 0);
    char *command = temp_printf("eval models/demo --tasks %s", empty);
    const program_result *r = program_run(command, NULL);
    assert_int_equal(r->code, 1);
    assert_string_equal(r->out, "");
    assert_non_null(strstr(r->error, "empty.jsonl: line 1: the file holds no tasks\n"));
    free(command);
    free(empty);
}

/* A long evaluation that is sent SIGINT after some seconds: what it printed; free() it. */
static char *interrupted_after(int seconds) {
    char *out = temp_printf("%s/out", temp_root);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (chdir(DI_SOURCE_DIR) != 0 || !freopen(out, "w", stdout)) _exit(125);
        if (!freopen("/dev/null", "w", stderr)) _exit(125);
        execl(DI_BUILD_DIR "/deepinfer", "deepinfer", "eval", "models/demo", "--tasks",
              "facts,count_think,needle", "--context", "2560", "--max-batch", "4", (char *)NULL);
        _exit(125);
    }
    nanosleep(&(struct timespec){seconds, 0}, NULL);
    kill(child, SIGINT);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 130);
    char *text = temp_read(out, NULL);
    free(out);
    return text;
}

/* What was done is there, and it says that it is not all. On a busy machine nothing may be done yet,
 * and then nothing is printed. */
static void test_interrupted(void **state) {
    (void)state;
    char *text = interrupted_after(2);
    for (int seconds = 4; *text == '\0' && seconds <= 32; seconds *= 2) {
        free(text);
        text = interrupted_after(seconds);
    }
    assert_non_null(strstr(text, "\nPARTIAL: "));
    assert_non_null(strstr(text, "\nfacts "));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_demo_tasks),
        cmocka_unit_test(test_judges),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_what_does_not_matter),
        cmocka_unit_test(test_sampled),
        cmocka_unit_test(test_replay_saves),
        cmocka_unit_test(test_perplexity_is_that_of_score),
        cmocka_unit_test(test_rows_and_replay),
        cmocka_unit_test(test_wrong_lines),
        cmocka_unit_test(test_document),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_row_too_long),
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_interrupted),
    };
    if (!program_can_compute()) return 77;
    return cmocka_run_group_tests(tests, setup, teardown);
}
