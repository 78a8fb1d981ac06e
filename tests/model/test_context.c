/* Contexts: several on one backend, and what is refused when they are made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/network.h"
#include "support/golden.h"

#define TINY_A "tests/data/golden/tiny-a/model"

enum { TOKENS = 120 };

static void make_ids(const test_model *m, int32_t *ids) {
    for (int32_t i = 0; i < TOKENS; i++) ids[i] = (i * 97 + 13) % m->config->vocab_size;
}

/* A backend's workspace serves all of its contexts: a small one made later takes nothing away from
 * a large one, nor the other way round. */
static void check_two(test_backend backend) {
    test_model m;
    di_error error;
    int32_t ids[TOKENS];
    const di_context_options large = {.n_slots = 2,
                                      .max_context = 1024,
                                      .max_rows = 128,
                                      .max_out = 128};
    const di_context_options small = {.n_slots = 1, .max_context = 64, .max_rows = 2, .max_out = 1};
    test_model_open(&m, TINY_A, &(test_model_options){backend, DI_NUMERICS_FLOAT, 2, large});
    make_ids(&m, ids);
    size_t bytes = (size_t)TOKENS * (size_t)m.config->vocab_size * sizeof(float);
    float *want = test_feed_all(&m, 0, ids, TOKENS);
    di_context *first = m.context, *second;
    if (di_context_create(m.model, &small, &second, &error) != DI_OK) fail_msg("%s", error.message);
    for (int i = 0; i < 2; i++) {
        m.context = second;
        di_context_reset(second, 0);
        float *row = test_feed_all(&m, 0, ids, 1);
        assert_memory_equal(row, want, bytes / TOKENS);
        free(row);
        m.context = first;
        di_context_reset(first, 1);
        float *again = test_feed_all(&m, 1, ids, TOKENS);
        assert_memory_equal(again, want, bytes);
        free(again);
    }
    di_context_destroy(second);
    free(want);
    test_model_close(&m);
}

static void test_two_contexts(void **state) {
    (void)state;
    check_two(TEST_CPU);
    check_two(TEST_REF);
    check_two(TEST_LATE);
    check_two(TEST_QUEUE);
}

static void refused(const test_model *m, di_context_options options, di_status status,
                    const char *message) {
    di_error error;
    di_context *context = m->context;
    di_status got = di_context_create(m->model, &options, &context, &error);
    if (got != status || strcmp(error.message, message) != 0) {
        fail_msg("%d, \"%s\"", got, got == DI_OK ? "" : error.message);
    }
    assert_null(context);
}

static void test_refusals(void **state) {
    (void)state;
    test_model m;
    test_model_open(&m, TINY_A, &(test_model_options){TEST_REF, DI_NUMERICS_FLOAT, 1, {0}});
    di_context_options o = di_context_options_defaults(m.config);
    o.n_slots = 0;
    refused(&m, o, DI_ERR_USAGE,
            "context: n_slots 0, max_rows 256 and max_out 32 must be positive, max_out at most "
            "max_rows");
    o = di_context_options_defaults(m.config);
    o.max_context = m.config->max_position_embeddings + 1;
    refused(&m, o, DI_ERR_USAGE, "context of 1048577 tokens: the model takes 1 to 1048576");
    o = di_context_options_defaults(m.config);
    o.n_pages = -1;
    refused(&m, o, DI_ERR_USAGE, "context: a pool of -1 pages");
    o = di_context_options_defaults(m.config);
    o.max_context = 64;
    o.max_bytes = 1 << 20;
    uint64_t need = di_context_plan(m.config, m.backend, &o).total;
    char message[256];
    snprintf(message, sizeof message,
             "not enough memory: a context of 64 tokens in 1 slots needs %u MiB, 1 MiB are left of "
             "what is allowed; ask for a smaller context or allow more",
             (unsigned)((need >> 20) + 1));
    refused(&m, o, DI_ERR_MEMORY, message);
    test_model_close(&m);
}

/* A plan that leaves 64 bits stays at the largest number; it does not wrap to a small one. */
static void test_uncountable(void **state) {
    (void)state;
    test_model m;
    test_model_open(&m, TINY_A, &(test_model_options){TEST_REF, DI_NUMERICS_FLOAT, 1, {0}});
    di_config c = *m.config;
    di_context_options o = di_context_options_defaults(&c);
    c.head_dim = 1 << 16;
    o.n_slots = INT32_MAX;
    o.max_context = INT64_C(1) << 30;
    assert_true(di_context_plan(&c, m.backend, &o).total == UINT64_MAX);
    o.n_slots = 1;
    o.max_context = 1 << 20;
    assert_true(di_context_plan(&c, m.backend, &o).total < UINT64_MAX);
    test_model_close(&m);
}

static uint64_t resident(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long all, now;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &all, &now), 2);
    fclose(file);
    return (uint64_t)now * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Under a bound all of it is resident from the start: it cannot fail to come later. */
static void test_taken_at_start(void **state) {
    (void)state;
    test_model m;
    di_error error;
    di_context *context;
    test_model_open(&m, TINY_A, &(test_model_options){TEST_CPU, DI_NUMERICS_FLOAT, 1, {0}});
    di_context_options o = di_context_options_defaults(m.config);
    o.max_context = 1 << 18;
    const di_context_bytes need = di_context_plan(m.config, m.backend, &o);
    assert_true(need.pages > UINT64_C(16) << 20);
    uint64_t taken[3]; /* the first takes the workspace along */
    for (int i = 0; i < 3; i++) {
        o.max_bytes = i == 2 ? need.total : 0;
        uint64_t before = resident();
        assert_int_equal(di_context_create(m.model, &o, &context, &error), DI_OK);
        taken[i] = resident() - before;
        di_context_destroy(context);
    }
    assert_true(taken[1] < need.pages / 2);
    assert_true(taken[2] > need.pages);
    test_model_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_contexts),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_uncountable),
        cmocka_unit_test(test_taken_at_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
