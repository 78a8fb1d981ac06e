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

/* UNCACHED: requests again, with a window cache that no bound would allow if it were taken. */
typedef enum kind { SEQUENCES, REQUESTS, UNCACHED, N_KINDS } kind;
static const char *const kind_names[] = {"sequences", "requests", "uncached requests"};

static int read_sequence(di_engine *engine, const int32_t *ids, size_t n) {
    di_sequence *sequence;
    if (di_sequence_create(engine, &sequence, &error) != DI_OK) return 4;
    if (di_sequence_prompt(sequence, ids, n, NULL, &error) != DI_OK) return 5;
    di_sequence_destroy(sequence);
    return 0;
}

/* As run and chat do: each prompt leaves snapshots behind, each answer is drafted. */
static int serve_requests(di_engine *engine, const int32_t *ids, size_t n, bool cached) {
    for (size_t i = 0; i < 3; i++) {
        di_request request = {.ids = ids + i,
                              .n_ids = n - i - 100,
                              .max_tokens = 90,
                              .sampling = di_sampling_defaults(),
                              .n_choices = 1};
        if (di_engine_submit(engine, &request, NULL, &error) != DI_OK) return 4;
        for (bool busy = true; busy;) {
            if (di_engine_step(engine, &busy, &error) != DI_OK) return 5;
        }
    }
    return (di_engine_get_stats(engine).snapshots > 0) == cached ? 0 : 6;
}

/* Reads prompts as long as the context; the exit code is 0, or 1 where memory is refused. */
static int run(const char *directory, kind what, uint64_t memory) {
    di_engine_options o = di_engine_options_defaults();
    o.context = CONTEXT;
    o.memory = memory;
    o.n_threads = 2;
    o.window_cache = what == UNCACHED ? UINT64_C(1) << 40 : MIB;
    o.prefix_cache = what != UNCACHED;
    o.max_batch = what == SEQUENCES ? 0 : 1;
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
    int code = what == SEQUENCES ? read_sequence(engine, ids, CONTEXT - 1)
                                 : serve_requests(engine, ids, CONTEXT - 1, what == REQUESTS);
    di_engine_close(engine);
    return code;
}

static int run_in_child(const char *directory, kind what, uint64_t memory, uint64_t *peak) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(run(directory, what, memory));
    struct rusage usage;
    int status;
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    assert_true(WIFEXITED(status));
    *peak = (uint64_t)usage.ru_maxrss << 10;
    return WEXITSTATUS(status);
}

/* From the least that is accepted. Returns false where nothing can be computed. */
static bool check_bounds(const char *directory, kind what) {
    uint64_t peak, least = 20 * MIB;
    int code;
    while ((code = run_in_child(directory, what, least, &peak)) == 1) {
        least += MIB;
        assert_true(least < 200 * MIB);
    }
    const uint64_t bounds[3] = {least, least + 16 * MIB, 2 * least};
    for (int i = 0; i < 3 && code != 77; i++) {
        code = run_in_child(directory, what, bounds[i], &peak);
        print_message("  %s, bound %u MiB: peak %u MiB\n", kind_names[what],
                      (unsigned)(bounds[i] / MIB), (unsigned)(peak / MIB));
        assert_int_equal(code, 0);
        assert_true(peak <= bounds[i]);
    }
    return code != 77;
}

static void test_bound(void **state) {
    (void)state;
    if (is_sanitized()) skip();
    char *root = temp_dir_create(), *directory = temp_printf("%s/model", root);
    write_model(directory);
    bool computes = true;
    for (int what = 0; what < N_KINDS && computes; what++) {
        computes = check_bounds(directory, (kind)what);
    }
    temp_dir_destroy(root);
    free(directory);
    if (!computes) skip(); /* no AVX2 */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bound)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
