/* The bound on memory holds: what a process that runs a model has resident at its peak, for bounds
 * from the least that is accepted, with tables larger than the bound.
 */
#include "deepinfer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/synth.h"
#include "support/sanitized.h"
#include "support/temp.h"

enum { CONTEXT = 512, MIB = 1 << 20 };

static di_error error;

/* Two Engram tables of 132 MB each. */
static void write_model(const char *directory) {
    size_t size;
    const char *json = di_config_builtin("tiny", &size);
    di_synth_overrides overrides = di_synth_overrides_none();
    overrides.engram_rows = 4000000;
    di_buffer config = {0};
    assert_int_equal(di_synth_config(json, size, "tiny", &overrides, &config, &error), DI_OK);
    di_synth_options options = {.config_json = config.data, .config_size = config.size};
    if (di_synth_write(directory, &options, &error) != DI_OK) fail_msg("%s", error.message);
    di_buffer_free(&config);
}

/* Reads a prompt as long as the context; the exit code is 0, or 1 where memory is refused. */
static int run(const char *directory, uint64_t memory) {
    di_engine_options o = di_engine_options_defaults();
    o.context = CONTEXT;
    o.memory = memory;
    o.n_threads = 2;
    di_engine *engine;
    if (di_engine_open(directory, &o, &engine, &error) != DI_OK) {
        return error.status == DI_ERR_MEMORY ? 1 : error.status == DI_ERR_UNSUPPORTED ? 77 : 2;
    }
    if (!di_engine_get_info(engine).releases_layers) return 3;
    int32_t ids[CONTEXT - 1], vocab = di_engine_get_info(engine).vocab_size;
    uint32_t random = 1;
    for (int i = 0; i < CONTEXT - 1; i++) {
        random = random * 1664525 + 1013904223;
        ids[i] = (int32_t)(random >> 8) % vocab;
    }
    di_sequence *sequence;
    if (di_sequence_create(engine, &sequence, &error) != DI_OK) return 4;
    if (di_sequence_prompt(sequence, ids, CONTEXT - 1, NULL, &error) != DI_OK) return 5;
    di_sequence_destroy(sequence);
    di_engine_close(engine);
    return 0;
}

static int run_in_child(const char *directory, uint64_t memory, uint64_t *peak) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(run(directory, memory));
    struct rusage usage;
    int status;
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    assert_true(WIFEXITED(status));
    *peak = (uint64_t)usage.ru_maxrss << 10;
    return WEXITSTATUS(status);
}

static void test_bound(void **state) {
    (void)state;
    if (is_sanitized()) skip();
    char *root = temp_dir_create(), *directory = temp_printf("%s/model", root);
    write_model(directory);
    uint64_t peak, least = 20 * MIB;
    int code;
    while ((code = run_in_child(directory, least, &peak)) == 1) least += MIB;
    const uint64_t bounds[3] = {least, least + 16 * MIB, 2 * least};
    for (int i = 0; i < 3 && code != 77; i++) {
        code = run_in_child(directory, bounds[i], &peak);
        print_message("  bound %u MiB: peak %u MiB\n", (unsigned)(bounds[i] / MIB),
                      (unsigned)(peak / MIB));
        assert_int_equal(code, 0);
        assert_true(peak <= bounds[i]);
    }
    temp_dir_destroy(root);
    free(directory);
    if (code == 77) skip(); /* no AVX2 */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bound)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
