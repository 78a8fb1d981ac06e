/* bench: every scenario runs and says plausible numbers, the document is JSON, impossible options
 * are refused, Ctrl-C leaves what was done. */
/* ctest: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/json.h"
#include "support/program.h"
#include "support/temp.h"

static di_arena arena;

static const di_json *parse(const char *text) {
    const di_json *out;
    di_error error;
    if (di_json_parse(text, strlen(text), "the document", &arena, &out, &error) != DI_OK) {
        fail_msg("%s:\n%.3000s", error.message, text);
    }
    return out;
}

static const di_json *document(const char *command) {
    const program_result *r = program_run(command, NULL);
    if (r->code != 0) fail_msg("%s: %d, %s", command, r->code, r->error);
    assert_string_equal(r->error, "");
    const di_json *d = parse(r->out);
    assert_true(di_json_get(d, "complete")->type == DI_JSON_TRUE);
    return d;
}

static const di_json *table(const di_json *d, const char *name, size_t n_rows) {
    const di_json *t = di_json_get(di_json_get(d, "tables"), name);
    if (!t) fail_msg("there is no table %s", name);
    if (t->length != n_rows) fail_msg("%s has %zu rows, not %zu", name, t->length, n_rows);
    return t;
}

static double number(const di_json *row, const char *key) {
    double x;
    if (!di_json_double(di_json_get(row, key), &x)) fail_msg("%s is no number", key);
    return x;
}

/* Every row's `key` is in [low, high]. */
static void all_in(const di_json *rows, const char *key, double low, double high) {
    for (const di_json *row = rows->first; row; row = row->next) {
        double x = number(row, key);
        if (!(x >= low && x <= high)) fail_msg("%s is %g, not in [%g, %g]", key, x, low, high);
    }
}

static void test_steps(void **state) {
    (void)state;
    if (!program_can_compute()) skip();
    const di_json *d = document(
        "bench models/demo -q --json --scenario prefill,decode,row,gap --prompt-tokens 200 "
        "--batches 1,3 --spec fixed --pairs 2 --seed 5");
    const di_json *t = table(d, "prefill", 1);
    all_in(t, "tokens", 200, 200);
    all_in(t, "seconds", 1e-4, 100);
    all_in(t, "tokens_per_second", 4, 4e6);
    all_in(t, "floor_share", 1e-6, 1);
    assert_int_equal(di_json_get(t->first, "samples")->length, 2);
    all_in(t, "coverage", 0.5, 0.5);
    t = table(d, "decode", 2);
    all_in(t, "coverage", 0.5, 0.5);
    assert_true(number(t->first, "requests") == 1 && number(t->first->next, "requests") == 3);
    all_in(t, "step_seconds", 1e-5, 100);
    /* A token each: no drafts. One step more or less is in it when steps run ahead. */
    for (const di_json *row = t->first; row; row = row->next) {
        double each = number(row, "tokens_per_second") * number(row, "row_seconds");
        assert_true(each > 0.9 && each < 1.1);
    }
    t = table(d, "row", 2);
    all_in(t, "ratio", 0.01, 100);
    all_in(t, "coverage", 0.5, 0.5);
    all_in(table(d, "gap", 4), "share", 1e-6, 100);
    assert_true(number(di_json_get(d, "options"), "seed") == 5);
    assert_true(number(di_json_get(d, "model"), "layers") == 10);
    assert_true(number(di_json_get(d, "machine"), "read_bytes_per_second") > 1e8);
    assert_non_null(strstr(di_json_get(d, "command")->text, "--spec fixed --pairs 2 --seed 5"));
}

static void test_waits(void **state) {
    (void)state;
    if (!program_can_compute()) skip();
    const di_json *d =
        document("bench models/demo -q --json --scenario latency,cache,cut --prompt-tokens 200 "
                 "--pairs 1 --limit 4 --max-tokens 5 --rates 200%,40");

    /* Nothing here has a floor, so the machine was not measured. */
    assert_true(di_json_get(di_json_get(d, "machine"), "read_bytes_per_second")->type ==
                DI_JSON_NULL);

    /* All at once and two rates, each with four figures; what a client waits for is in order. */
    const di_json *t = table(d, "latency", 12);
    all_in(t, "requests", 4, 4);
    for (const di_json *row = t->first; row; row = row->next) {
        assert_true(number(row, "p50") <= number(row, "p90"));
        assert_true(number(row, "p90") <= number(row, "p95"));
        assert_true(number(row, "p95") <= number(row, "p99"));
        assert_true(number(row, "mean") >= 0);
    }
    for (const di_json *row = t->first; row; row = row->next->next->next->next) {
        const di_json *whole = row->next->next->next;
        assert_true(number(row, "mean") <= number(whole, "mean"));
    }
    const di_json *last = t->first->next->next->next->next->next->next->next->next;
    assert_true(number(last, "rate") == 40);

    /* In stable no snapshot serves 64 new tokens behind a window of 128. */
    t = table(d, "cache", 5);
    all_in(t, "tokens", 200, 200);
    all_in(t, "ratio", 0.001, 100);
    for (const di_json *row = t->first; row; row = row->next) {
        bool snapshot = di_json_is_string(di_json_get(row, "start"), "snapshot");
        bool bounded = di_json_is_string(di_json_get(row, "replay"), "bounded");
        assert_true(snapshot == (row == t->first->next || !row->next));
        assert_true(bounded == (!row->next || !row->next->next));
        if (snapshot) assert_true(number(row, "cached_tokens") == 200);
        assert_true((number(row, "replayed_rows") == 0) == snapshot);
    }
    t = table(d, "cut", 2);
    all_in(t, "saved", -5, 1);
}

/* Drafts change no token of greedy and coupled answers; some of them stand. */
static void test_speculation(void **state) {
    (void)state;
    if (!program_can_compute()) skip();
    const di_json *d =
        document("bench models/demo -q --json --scenario speculation,sampled --tasks "
                 "json,models/demo/eval/prose.txt --batches 2 --limit 2 --max-tokens 12 --pairs 1");
    static const char *const names[] = {"speculation", "sampled"};
    for (int i = 0; i < 2; i++) {
        const di_json *t = table(d, names[i], i == 0 ? 6 : 10);
        all_in(t, "tokens_per_second", 1, 1e6);
        assert_true(di_json_is_string(di_json_get(t->first, "speed_of"), "run"));
        for (const di_json *row = t->first; row; row = row->next) {
            bool off = di_json_is_string(di_json_get(row, "spec"), "off");
            bool fixed = di_json_is_string(di_json_get(row, "spec"), "fixed");
            bool json = di_json_is_string(di_json_get(row, "task"), "json");
            if (!di_json_is_string(di_json_get(row, "sampling"), "reject")) {
                assert_true(di_json_is_string(di_json_get(row, "same_tokens"), "yes"));
            }
            if (off) assert_true(number(row, "speed_up") == 1 && number(row, "drafted") == 0);
            if (!fixed) continue;
            double length = number(row, "accepted_length");
            assert_true(length >= 1 && length <= 6);
            if (json) assert_true(length > 3);
        }
    }
    program_refuses("bench models/demo -q --scenario speculation --tasks no_such", NULL, 2,
                    "bench: --tasks: 'no_such' is neither a file nor a task in models/demo/eval");
}

static void test_random_weights(void **state) {
    (void)state;
    if (!program_can_compute()) skip();
    const di_json *d =
        document("bench --weights random --config tiny --engram-rows 500 -q --json --scenario "
                 "prefill,decode --prompt-tokens 40 --batches 2 --pairs 1 --backend ref");
    all_in(table(d, "prefill", 1), "seconds", 1e-4, 100);
    all_in(table(d, "decode", 1), "step_seconds", 1e-5, 100);
    assert_true(di_json_get(di_json_get(d, "model"), "directory")->type == DI_JSON_NULL);
    assert_int_equal(di_json_get(d, "left_out")->length, 0);
}

/* Usual lengths are cut to a context of 512; what the model cannot do is left out, saying so. */
static void test_small_model(void **state) {
    (void)state;
    if (!program_can_compute()) skip();
    const di_json *d = document("bench --weights random --config tiny -q --json --scenario all "
                                "--batches 2 --limit 4 --max-tokens 4 --pairs 1");
    const di_json *t = table(d, "prefill", 2);
    assert_true(number(t->first, "tokens") == 256 && number(t->first->next, "tokens") == 511);
    all_in(table(d, "row", 1), "context", 192, 511);
    all_in(table(d, "cache", 6), "tokens", 447, 447);
    all_in(table(d, "cut", 2), "tokens", 511, 511);
    table(d, "latency", 12);
    const di_json *out = di_json_get(d, "left_out");
    assert_int_equal(out->length, 2);
    assert_true(di_json_is_string(di_json_get(out->first, "scenario"), "speculation"));
    assert_true(di_json_is_string(di_json_get(out->first->next, "scenario"), "sampled"));
    assert_true(di_json_is_string(di_json_get(out->first, "why"),
                                  "speculation: it needs text, and this model has no "
                                  "tokenizer.json"));
    d = document("bench --weights random --config tiny -q --json --scenario all --batches 512 "
                 "--limit 1 --max-tokens 600 --pairs 1");
    out = di_json_get(d, "left_out");
    assert_int_equal(out->length, 6);
    assert_true(di_json_is_string(di_json_get(out->first, "why"),
                                  "decode: a context of 512 tokens is too short for it"));
    table(d, "prefill", 2);
}

static void test_table_for_people(void **state) {
    (void)state;
    if (!program_can_compute()) skip();
    const program_result *r =
        program_run("bench models/demo -q --scenario prefill --prompt-tokens 64,128 --pairs 1",
                    NULL);
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "models/demo: 10 layers of width 256"));
    const char *head = strstr(r->out, "\nprefill: ");
    assert_non_null(head);
    int lines = 0;
    for (; *head; head++) lines += *head == '\n';
    assert_int_equal(lines, 5);
}

static void test_file_of_requests(void **state) {
    (void)state;
    if (!program_can_compute()) skip();
    char *root = temp_dir_create(), *path = temp_printf("%s/in.jsonl", root);
    const char *lines =
        "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/completions\", "
        "\"body\": {\"prompt\": \"One day\", \"max_tokens\": 3}}\n"
        "{\"custom_id\": \"b\", \"method\": \"POST\", \"url\": \"/v1/completions\", "
        "\"body\": {\"prompt\": \"Once\", \"temperature\": 0}}\n";
    temp_write(path, lines, strlen(lines));
    char *command = temp_printf("bench models/demo -q --json --scenario latency -i %s --rates 50 "
                                "--max-tokens 6",
                                path);
    const di_json *t = table(document(command), "latency", 8);
    all_in(t, "requests", 2, 2);
    assert_true(di_json_get(t->first, "prompt_tokens")->type == DI_JSON_NULL);
    free(command);
    /* The file's own sampling: this bias leaves the end token alone, so that answers have one;
     * and an answer ends where the context does. */
    static const char *const ends[] = {"\"logit_bias\": {\"1\": 1000}, \"max_tokens\": 9",
                                       "\"max_tokens\": 1000000"};
    for (int i = 0; i < 2; i++) {
        char *text = temp_printf("\xEF\xBB\xBF\r\n{\"custom_id\": \"a\", \"method\": \"POST\", "
                                 "\"url\": \"/v1/completions\", \"body\": {\"prompt\": [5, 6], "
                                 "%s}}\r\n \r\n",
                                 ends[i]);
        temp_write(path, text, strlen(text));
        command = temp_printf("bench models/demo -q --json --scenario latency -i %s --rates 50 "
                              "--context 300",
                              path);
        t = table(document(command), "latency", 8);
        all_in(t, "requests", 1, 1);
        if (i == 0) assert_true(di_json_get(t->first->next, "mean")->type == DI_JSON_NULL);
        free(command);
        free(text);
    }
    free(path);
    temp_dir_destroy(root);
}

static void test_bad_lines(void **state) {
    (void)state;
    if (!program_can_compute()) skip();
    char *root = temp_dir_create(), *path = temp_printf("%s/in.jsonl", root), *command;
    static const struct {
        const char *field, *why;
    } refused[] = {{"\"stop\": \"x\"", "stop: bench does not support it; leave it out"},
                   {"\"n\": 2", "n above 1: bench does not support it; leave it out"},
                   {"\"top_p\": 2", "top_p"}};
    for (int i = 0; i < 3; i++) {
        char *text = temp_printf("\r\n\n{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": "
                                 "\"/v1/completions\", \"body\": {\"prompt\": [5], %s}}\n",
                                 refused[i].field);
        temp_write(path, text, strlen(text));
        command = temp_printf("bench models/demo -q --scenario latency -i %s", path);
        const program_result *r = program_run(command, NULL);
        assert_int_not_equal(r->code, 0);
        assert_non_null(strstr(r->error, "line 3 of "));
        assert_non_null(strstr(r->error, refused[i].why));
        free(command);
        free(text);
    }
    temp_write(path, "{\"custom_id\": 3}\n", 17);
    command = temp_printf("bench models/demo -q --scenario latency -i %s", path);
    const program_result *r = program_run(command, NULL);
    assert_int_equal(r->code, 1);
    assert_non_null(strstr(r->error, "custom_id: a string, not empty, is needed"));
    free(command);
    /* Lines of a task are counted alike. */
    const char *task = "\xEF\xBB\xBF \r\n{\"prompt\": \"One\"}\r\n\r\n{\"prompt\": 3}\n";
    temp_write(path, task, strlen(task));
    command = temp_printf("bench models/demo -q --scenario speculation --tasks %s", path);
    r = program_run(command, NULL);
    assert_int_equal(r->code, 1);
    assert_non_null(strstr(r->error, "line 4 of "));
    assert_non_null(strstr(r->error, "prompt: a text, not empty, is needed"));
    free(command);
    free(path);
    temp_dir_destroy(root);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *options, *message;
    } cases[] = {
        {"", "MODEL is missing: a model directory, or --weights random --config FILE"},
        {"models/demo --weights random",
         "--weights random takes no MODEL; --config says what to make"},
        {"models/demo --layers 3", "--layers goes with --weights random"},
        {"--weights random", "--config is missing: a config.json, or the word released or tiny"},
        {"models/demo --scenario prefill,sleep",
         "--scenario: 'sleep' is unknown; 'deepinfer help bench' lists them"},
        {"models/demo --scenario ''", "--scenario is empty"},
        {"models/demo --batches 1,0",
         "--batches: '1,0' is no list of at most 32 whole numbers from 1 to 1024, separated by "
         "commas"},
        {"models/demo --batches 1,,2",
         "--batches: '1,,2' is no list of at most 32 whole numbers from 1 to 1024, separated by "
         "commas"},
        {"models/demo --prompt-tokens nan",
         "--prompt-tokens: 'nan' is no list of at most 32 whole numbers from 1 to 16777216, "
         "separated by commas"},
        {"models/demo --prompt-tokens 99999999999999999999",
         "--prompt-tokens: '99999999999999999999' is no list of at most 32 whole numbers from 1 to "
         "16777216, separated by commas"},
        {"models/demo --rates -1",
         "--rates: '-1' is no list of rates above 0, such as 0.5,50%,80%"},
        {"models/demo --rates 5,nan",
         "--rates: 'nan' is no list of rates above 0, such as 0.5,50%,80%"},
        {"models/demo --rates 1e300",
         "--rates: 1e+300 requests a second; 0.001 to 1000000 are accepted"},
        {"models/demo --rates 0", "--rates: '0' is no list of rates above 0, such as 0.5,50%,80%"},
        {"models/demo --rates 5,", "--rates ends in a comma"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[200], message[300];
        snprintf(command, sizeof command, "bench %s", cases[i].options);
        snprintf(message, sizeof message, "bench: %s", cases[i].message);
        program_refuses(command, NULL, 2, message);
    }
}

/* Those that come to light in a scenario. */
static void test_late_refusals(void **state) {
    (void)state;
    if (!program_can_compute()) skip();
    static const struct {
        const char *options, *message;
    } cases[] = {
        {"--scenario row --prompt-tokens 100", "row: a context of 192 tokens at least is needed"},
        {"--scenario prefill --prompt-tokens 300 --context 200",
         "--context 200: this measurement needs 301 tokens; allow more, or give shorter "
         "--prompt-tokens"},
        {"--scenario cache --prompt-tokens 200 --prefix-cache off",
         "cache: it needs --prefix-cache on"},
        {"--scenario cache --prompt-tokens 200 --pairs 1 --window-cache 0",
         "cache: with --replay exact, 0 of 200 tokens were found and 192 rows replayed, so this "
         "was no start from a snapshot"},
        {"--scenario cache --prompt-tokens 50 --pairs 1",
         "cache: with --replay exact, 0 of 50 tokens were found and 0 rows replayed, so this was "
         "no start from a snapshot"},
        {"--scenario prefill --prompt-tokens 40000",
         "a context of 40001 tokens was asked for, the model takes at most 32768"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[200];
        snprintf(command, sizeof command, "bench models/demo -q %s", cases[i].options);
        const program_result *r = program_run(command, NULL);
        assert_int_equal(r->code, 2);
        if (!strstr(r->error, cases[i].message)) fail_msg("%s: %s", command, r->error);
    }
}

/* What was measured before a scenario fails is printed, and the failure still ends the program. */
static void test_failure_keeps_rows(void **state) {
    (void)state;
    if (!program_can_compute()) skip();
    const program_result *r = program_run("bench models/demo -q --json --scenario prefill,row "
                                          "--prompt-tokens 100 --pairs 1",
                                          NULL);
    assert_int_equal(r->code, 2);
    assert_non_null(strstr(r->error, "row: a context of 192 tokens at least is needed"));
    const di_json *d = parse(r->out);
    assert_true(di_json_get(d, "complete")->type == DI_JSON_FALSE);
    all_in(table(d, "prefill", 1), "tokens", 100, 100);
    table(d, "row", 0);
}

static void test_ctrl_c(void **state) {
    (void)state;
    if (!program_can_compute()) skip();
    char *root = temp_dir_create(), *out = temp_printf("%s/out.json", root);
    char *command =
        temp_printf("cd '%s' && timeout --preserve-status -s INT 4 '%s/deepinfer' bench "
                    "models/demo -q --json --scenario prefill --prompt-tokens 64,30000 --pairs 1 "
                    ">'%s' 2>'%s/err'",
                    DI_SOURCE_DIR, DI_BUILD_DIR, out, root);
    int code = system(command);
    assert_true(WIFEXITED(code));
    if (WEXITSTATUS(code) == 0) skip(); /* a machine that reads 30,000 tokens before it comes */
    assert_int_equal(WEXITSTATUS(code), 130);
    size_t size;
    char *text = temp_read(out, &size);
    const di_json *d = parse(text);
    assert_true(di_json_get(d, "complete")->type == DI_JSON_FALSE);
    all_in(table(d, "prefill", 1), "tokens", 64, 64); /* 30,000 were being read */
    free(text);
    free(command);
    free(out);
    temp_dir_destroy(root);
}

static int free_arena(void **state) {
    (void)state;
    di_arena_free(&arena);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_waits),
        cmocka_unit_test(test_speculation),
        cmocka_unit_test(test_random_weights),
        cmocka_unit_test(test_small_model),
        cmocka_unit_test(test_table_for_people),
        cmocka_unit_test(test_file_of_requests),
        cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_late_refusals),
        cmocka_unit_test(test_failure_keeps_rows),
        cmocka_unit_test(test_ctrl_c),
    };
    return cmocka_run_group_tests(tests, NULL, free_arena);
}
