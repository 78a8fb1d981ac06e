/* synth and inspect as programs: what they print, their exit codes, and that Ctrl-C leaves nothing.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "model/config.h"
#include "support/temp.h"

#define PROGRAM DI_BUILD_DIR "/deepinfer"

/* Starts the program in `temp_root`, both outputs into the file `out` there. */
static pid_t start(const char *const *arguments) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0) return pid;
    char *argv[24] = {strdup(PROGRAM)};
    for (int i = 0; arguments[i]; i++) argv[i + 1] = strdup(arguments[i]);
    int fd = -1;
    if (chdir(temp_root) == 0) fd = open("out", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd >= 0 && dup2(fd, 1) >= 0 && dup2(fd, 2) >= 0) execv(PROGRAM, argv);
    _exit(99);
}

static int finish(pid_t pid) {
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Its exit code; free() *output. */
static int run(char **output, const char *const *arguments) {
    int code = finish(start(arguments));
    char *path = temp_printf("%s/out", temp_root);
    *output = temp_read(path, NULL);
    free(path);
    return code;
}

#define ARGUMENTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void check_output(int code, const char *expected, const char *const *arguments) {
    char *output;
    int found = run(&output, arguments);
    assert_string_equal(output, expected);
    assert_int_equal(found, code);
    free(output);
}

static void check_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" is not in:\n%s", part, text);
}

static int64_t number(const di_json *object, const char *key) {
    int64_t value = -1;
    if (!di_json_int64(di_json_get(object, key), &value)) fail_msg("no number %s", key);
    return value;
}

static void writes_and_counts(void **state) {
    (void)state;
    check_output(0, "tiny: 936 tensors, 4239844 bytes\n",
                 ARGUMENTS("synth", "--config", "tiny", "--quiet", "tiny"));
    char *output;
    assert_int_equal(run(&output, ARGUMENTS("inspect", "tiny", "--json", "--context", "128",
                                            "--batch", "3")),
                     0);
    di_arena arena = DI_ARENA_EMPTY;
    di_error error;
    const di_json *report;
    assert_int_equal(di_json_parse(output, strlen(output), "out", &arena, &report, &error), DI_OK);
    assert_int_equal(number(report, "tensors"), 936);
    assert_int_equal(number(report, "bytes"), 4239844);
    assert_int_equal(number(report, "files"), 1);
    assert_int_equal(number(report, "unknown"), 0);
    assert_int_equal(number(report, "token_bytes"), 106); /* 53 an entry: twice 1/2 and once 1 */
    assert_int_equal(number(report, "batch"), 3);
    assert_int_equal(number(di_json_get(report, "state"), "pages"), 3 * 2 * 64 * 106 + 64);
    const di_json *layers = di_json_get(report, "layers");
    assert_int_equal(layers->length, 10);
    assert_int_equal(number(layers->first->next->next->next, "kv_source"), 2);
    di_arena_free(&arena);
    free(output);

    assert_int_equal(run(&output, ARGUMENTS("inspect", "tiny")), 0);
    check_contains(output, "936 tensors, 4,239,844 bytes in 1 file of 4.2 MiB\n");
    check_contains(output, "106 bytes a token (a page of 64 tokens: 6,784)\n");
    check_contains(output, "\n6-7          1 6 (own)    6 (own)");
    check_contains(output, "6 candidate source");
    free(output);
    assert_int_equal(run(&output, ARGUMENTS("inspect", "tiny/config.json")), 0);
    check_contains(output, "936 tensors, 4,239,844 bytes (from the config; no weights here)\n");
    free(output);
}

/* Options reach the config: what inspect finds in the slice. */
static void slices(void **state) {
    (void)state;
    char *output;
    assert_int_equal(run(&output, ARGUMENTS("synth", "--config", "tiny", "--layers", "2,6,8",
                                            "--draft-layers", "0", "--experts", "4", "--set",
                                            "vocab_size=600", "--set", "dspark_noise_token_id=599",
                                            "--shards", "2", "--seed", "5", "--json", "slice")),
                     0);
    check_contains(output, "{\"directory\": \"slice\", \"tensors\": ");
    free(output);
    assert_int_equal(run(&output, ARGUMENTS("inspect", "slice")), 0);
    check_contains(output,
                   "slice: 3 layers and 0 draft layers, width 128, 4 experts of which 2 work, "
                   "vocabulary 600\n");
    check_contains(output, " in 2 files of ");
    check_contains(output, "\n0            2 0 (own)    0 (own) ");
    check_contains(output, "\n1            1 1 (own)    1 (own) ");
    check_contains(output, "1 candidate source\n");
    check_contains(output, "\n2            1 1          2 (own) ");
    free(output);
}

/* A name that is no UTF-8 does not make the JSON invalid. */
static void names_of_any_bytes(void **state) {
    (void)state;
    char *output;
    assert_int_equal(run(&output, ARGUMENTS("synth", "--config", "tiny", "--layers", "2", "--json",
                                            "--draft-layers", "0",
                                            "sl\xFF"
                                            "ce")),
                     0);
    check_contains(output, "{\"directory\": \"sl\xEF\xBF\xBD"
                           "ce\", \"tensors\": ");
    free(output);
    assert_int_equal(run(&output, ARGUMENTS("inspect", "--json",
                                            "sl\xFF"
                                            "ce")),
                     0);
    check_contains(output, "{\"model\": \"sl\xEF\xBF\xBD"
                           "ce\", \"tensors\": ");
    free(output);
}

static void released_geometry(void **state) {
    (void)state;
    char *output;
    int code = run(&output, ARGUMENTS("synth", "--config", "released", "--sparse", "full"));
    if (code != 0 && strstr(output, "File too large")) {
        free(output);
        skip();
    }
    assert_string_equal(output, "full: 96085 tensors, 510286023000 bytes (sparse)\n"
                                "holes, but for what the prompt of ids 105 22 39 56 looks at\n");
    free(output);
    assert_int_equal(run(&output, ARGUMENTS("inspect", "full")), 0);
    check_contains(output, "96,085 tensors, 510,286,023,000 bytes in 48 files of 476 GiB\n");
    check_contains(output, "890 bytes a token (a page of 64 tokens: 56,960)\n");
    free(output);
}

static void interrupted(void **state) {
    (void)state;
    struct stat st;
    char *file = temp_printf("%s/stopped/model.safetensors", temp_root), *path;
    pid_t pid =
        start(ARGUMENTS("synth", "--config", "tiny", "--engram-rows", "20000000", "stopped"));
    /* 1.3 GB are planned; as soon as there is some, Ctrl-C comes */
    for (int i = 0; i < 4000 && (stat(file, &st) != 0 || st.st_size < 1 << 20); i++) {
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    assert_int_equal(kill(pid, SIGINT), 0);
    assert_int_equal(finish(pid), 130);
    path = temp_printf("%s/out", temp_root);
    char *output = temp_read(path, NULL);
    check_contains(output, "deepinfer synth: stopped; stopped is removed again\n");
    free(output);
    free(path);
    path = temp_printf("%s/stopped", temp_root);
    assert_int_equal(stat(path, &st), -1);
    free(path);
    free(file);
}

static void refusals(void **state) {
    (void)state;
    check_output(
        2, "deepinfer synth: --config is missing: a config.json, or the word released or tiny\n",
        ARGUMENTS("synth", "x"));
    check_output(2,
                 "deepinfer synth: --layers: '1,x' is neither a number of layers nor layers of the "
                 "full model separated by commas\n",
                 ARGUMENTS("synth", "--config", "tiny", "--layers", "1,x", "x"));
    check_output(2, "deepinfer synth: --layers: expected at least one layer\n",
                 ARGUMENTS("synth", "--config", "tiny", "--layers", "0", "x"));
    check_output(2, "deepinfer synth: 11 layers: tiny has 1 to 10 to choose from\n",
                 ARGUMENTS("synth", "--config", "tiny", "--layers", "11", "x"));
    check_output(1, "deepinfer synth: cannot open nothing.json: No such file or directory\n",
                 ARGUMENTS("synth", "--config", "nothing.json", "x"));
    check_output(1, "deepinfer inspect: cannot open nothing: No such file or directory\n",
                 ARGUMENTS("inspect", "nothing"));
    check_output(
        2,
        "deepinfer inspect: a context of 513 tokens was asked for, the model takes at most 512\n",
        ARGUMENTS("inspect", "tiny/config.json", "--context", "513"));
}

/* A config alone in a directory is inspected; beside a shard without index it is a broken model. */
static void directories_without_weights(void **state) {
    (void)state;
    size_t size;
    char *path = temp_printf("%s/alone", temp_root), *output;
    assert_int_equal(mkdir(path, 0777), 0);
    free(path);
    path = temp_printf("%s/alone/config.json", temp_root);
    const char *json = di_config_builtin("tiny", &size);
    temp_write(path, json, size);
    free(path);
    assert_int_equal(run(&output, ARGUMENTS("inspect", "alone")), 0);
    check_contains(output, "936 tensors, 4,239,844 bytes (from the config; no weights here)\n");
    free(output);
    path = temp_printf("%s/alone/model-00001-of-00002.safetensors", temp_root);
    temp_write(path, "x", 1);
    free(path);
    check_output(1,
                 "deepinfer inspect: alone has neither model.safetensors nor "
                 "model.safetensors.index.json: not a model directory\n",
                 ARGUMENTS("inspect", "alone"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_and_counts),  cmocka_unit_test(slices),
        cmocka_unit_test(names_of_any_bytes), cmocka_unit_test(released_geometry),
        cmocka_unit_test(interrupted),        cmocka_unit_test(directories_without_weights),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("cmd_synth", tests, temp_root_create, temp_root_destroy);
}
