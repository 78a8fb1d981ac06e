/* Random weights in memory: the checkpoint is whole, its values are those of synth as far as they
 * are drawn, a model runs on them, and nothing is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "deepinfer.h"
#include "model/checkpoint.h"
#include "model/synth_memory.h"
#include "support/temp.h"

enum { DRAWN = 1048573 };

static void ok(di_status status, const di_error *error) {
    if (status != DI_OK) fail_msg("%s", error->message);
}

static void tiny(const di_synth_overrides *o, di_buffer *out) {
    di_error error;
    size_t size;
    const char *json = di_config_builtin("tiny", &size);
    ok(di_synth_config(json, size, "tiny", o, out, &error), &error);
}

static di_synth_memory *create(const di_buffer *config, int32_t n_shards) {
    di_error error;
    di_synth_memory *m;
    di_synth_options o = {.config_json = config->data,
                          .config_size = config->size,
                          .seed = 3,
                          .n_shards = n_shards};
    ok(di_synth_memory_create(&o, 2, &m, &error), &error);
    return m;
}

static void open_checkpoint(const char *directory, const di_buffer *config, di_config *parsed,
                            di_checkpoint **out) {
    di_error error;
    ok(di_config_parse(config->data, config->size, "config", parsed, &error), &error);
    ok(di_checkpoint_open(directory, parsed, out, &error), &error);
}

static uint64_t unit_of(const di_tensor *t) {
    uint64_t n = 1;
    for (int32_t i = 0; i < t->n_dims; i++) n *= (uint64_t)t->shape[i];
    return t->bytes / n;
}

/* Against the files that synth writes; the vocabulary is widened so that two tensors repeat. */
static void test_values(void **state) {
    (void)state;
    di_synth_overrides o = di_synth_overrides_none();
    const char *set[] = {"vocab_size=20000"};
    o.set = set;
    o.n_set = 1;
    o.no_vision = true;
    di_buffer config = DI_BUFFER_EMPTY;
    di_error error;
    tiny(&o, &config);
    char *root = temp_dir_create(), *files = temp_printf("%s/files", root);
    di_synth_options write = {.config_json = config.data, .config_size = config.size, .seed = 3};
    ok(di_synth_write(files, &write, &error), &error);
    di_synth_memory *m = create(&config, 3);
    di_config parsed[2];
    di_checkpoint *want, *got;
    open_checkpoint(files, &config, &parsed[0], &want);
    open_checkpoint(di_synth_memory_directory(m), &config, &parsed[1], &got);
    assert_int_equal(di_checkpoint_n_shards(got), 3);
    assert_int_equal(di_checkpoint_count(got), di_checkpoint_count(want));
    int repeated = 0;
    for (int64_t i = 0; i < di_checkpoint_count(want); i++) {
        const di_tensor *a = di_checkpoint_at(want, i), *b = di_checkpoint_find(got, a->name);
        assert_non_null(b);
        assert_int_equal(a->bytes, b->bytes);
        uint64_t period = DRAWN * unit_of(a), n = a->bytes < period ? a->bytes : period;
        assert_memory_equal(a->data, b->data, n);
        if (a->bytes <= period) continue;
        assert_memory_equal(b->data + period, b->data,
                            a->bytes - period < n ? a->bytes - period : n);
        repeated++;
    }
    assert_true(repeated > 0);
    ok(di_checkpoint_check_scales(got, true, &error), &error);
    di_checkpoint_close(got);
    di_checkpoint_close(want);
    di_synth_memory_destroy(m);
    di_buffer_free(&config);
    free(files);
    temp_dir_destroy(root);
}

/* The engine keeps the weights when the directory is gone. */
static void test_model_runs(void **state) {
    (void)state;
    di_synth_overrides o = di_synth_overrides_none();
    di_buffer config = DI_BUFFER_EMPTY;
    o.no_vision = true;
    tiny(&o, &config);
    di_synth_memory *m = create(&config, 0);
    char *directory = strdup(di_synth_memory_directory(m));
    di_engine_options options = di_engine_options_defaults();
    options.backend = "ref";
    options.context = 64;
    options.chunk = 8;
    di_engine *engine;
    di_sequence *sequence;
    di_error error;
    ok(di_engine_open(directory, &options, &engine, &error), &error);
    di_synth_memory_destroy(m);
    assert_int_not_equal(access(directory, F_OK), 0);
    ok(di_sequence_create(engine, &sequence, &error), &error);
    int32_t ids[] = {5, 6, 7, 8, 9};
    ok(di_sequence_prompt(sequence, ids, 5, NULL, &error), &error);
    di_sampling sampling = di_sampling_defaults();
    di_token token;
    ok(di_sequence_next(sequence, &sampling, &token, &error), &error);
    assert_true(token.logprob < 0 && token.logprob > -50);
    di_sequence_destroy(sequence);
    di_engine_close(engine);
    free(directory);
    di_buffer_free(&config);
}

static bool stop(void *user, uint64_t done, uint64_t total) {
    int *calls = user;
    assert_true(done <= total);
    ++*calls;
    return false;
}

static int entries(const char *directory) {
    char command[400];
    snprintf(command, sizeof command, "exit $(ls -A '%s' | wc -l)", directory);
    return system(command) / 256;
}

static void test_refusals_leave_nothing(void **state) {
    (void)state;
    char *root = temp_dir_create();
    setenv("TMPDIR", root, 1);
    di_buffer config = DI_BUFFER_EMPTY;
    di_error error;
    di_synth_memory *m;
    di_synth_overrides o = di_synth_overrides_none();
    tiny(&o, &config);
    int calls = 0;
    di_synth_options options = {.config_json = config.data,
                                .config_size = config.size,
                                .progress = stop,
                                .user = &calls};
    assert_int_equal(di_synth_memory_create(&options, 1, &m, &error), DI_ERR_CANCELLED);
    assert_int_equal(calls, 1);
    assert_null(m);
    options.config_json = "{}";
    options.config_size = 2;
    assert_int_equal(di_synth_memory_create(&options, 1, &m, &error), DI_ERR_INVALID);
    di_buffer_clear(&config);
    o.engram_rows = INT64_C(1) << 38; /* many TB */
    tiny(&o, &config);
    options.config_json = config.data;
    options.config_size = config.size;
    assert_int_equal(di_synth_memory_create(&options, 1, &m, &error), DI_ERR_MEMORY);
    assert_non_null(strstr(error.message, "take fewer layers"));
    assert_int_equal(entries(root), 0);
    unsetenv("TMPDIR");
    setenv("TMPDIR", "/nowhere/at/all", 1);
    di_buffer_clear(&config);
    o.engram_rows = 0;
    tiny(&o, &config);
    options.config_json = config.data;
    options.config_size = config.size;
    assert_int_equal(di_synth_memory_create(&options, 1, &m, &error), DI_ERR_IO);
    unsetenv("TMPDIR");
    di_buffer_free(&config);
    temp_dir_destroy(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_model_runs),
        cmocka_unit_test(test_refusals_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
