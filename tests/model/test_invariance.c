/* Row invariance (design: promise 1): a sequence's logits are the same bits however its prompt is
 * cut, whether it is decoded one by one or in one go, alone or among others, with one thread or
 * two.
 */
/* ctest: slow gpu */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "support/device.h"
#include "support/golden.h"

enum { SLOTS = 8 };

typedef struct setup {
    const char *directory;
    test_backend backend;
    di_numerics numerics;
    int32_t n; /* tokens */
    int32_t cut_step;
} setup;

static void open_model(test_model *m, const setup *s, int32_t threads) {
    di_context_options context = {.n_slots = SLOTS,
                                  .max_context = 512,
                                  .max_rows = 256,
                                  .max_out = 256};
    test_model_open(m, s->directory,
                    &(test_model_options){s->backend, s->numerics, threads, context});
}

/* Any ids will do; every slot has its own. */
static void make_ids(const test_model *m, int32_t slot, int32_t *ids, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        uint32_t words[4];
        di_philox(77, (uint64_t)i, (uint64_t)slot, words);
        ids[i] = (int32_t)(words[0] % (uint32_t)m->config->vocab_size);
    }
}

static void expect_rows(const test_model *m, const float *got, const float *want, int32_t from,
                        int32_t n, const char *how) {
    size_t vocab = (size_t)m->config->vocab_size;
    if (memcmp(got, want + (size_t)from * vocab, (size_t)n * vocab * sizeof *got) == 0) return;
    for (int32_t i = 0; i < n; i++) {
        const float *a = got + (size_t)i * vocab, *b = want + (size_t)(from + i) * vocab;
        if (memcmp(a, b, vocab * sizeof *a) != 0) {
            fail_msg("%s: logits at position %d differ (%.9g, want %.9g first)", how, from + i,
                     (double)a[0], (double)b[0]);
        }
    }
}

static void check_cuts(test_model *m, const int32_t *ids, int32_t n, int32_t step,
                       const float *want) {
    char how[64];
    for (int32_t cut = 1; cut < n; cut += step) {
        di_context_reset(m->context, 0);
        float *a = test_feed_all(m, 0, ids, cut);
        float *b = test_feed_all(m, 0, ids + cut, n - cut);
        snprintf(how, sizeof how, "cut at %d", cut);
        expect_rows(m, a, want, 0, cut, how);
        expect_rows(m, b, want, cut, n - cut, how);
        free(a);
        free(b);
    }
}

static void check_one_by_one(test_model *m, int32_t slot, const int32_t *ids, int32_t n,
                             const float *want) {
    di_context_reset(m->context, slot);
    for (int32_t i = 0; i < n; i++) {
        float *row = test_feed_all(m, slot, ids + i, 1);
        expect_rows(m, row, want, i, 1, "one by one");
        free(row);
    }
}

/* Eight sequences in steps of random chunks, in random slot order; `watched` must not notice. */
static void check_company(test_model *m, int32_t n, int32_t watched, const float *want) {
    int32_t *ids = malloc((size_t)(SLOTS * n) * sizeof *ids), at[SLOTS] = {0};
    assert_non_null(ids);
    for (int32_t s = 0; s < SLOTS; s++) {
        /* the watched slot runs the ids of slot 0 */
        make_ids(m, s == watched ? 0 : s + 100, ids + s * n, n);
        di_context_reset(m->context, s);
    }
    for (uint64_t round = 0; at[watched] < n; round++) {
        di_row rows[256];
        int32_t out[256], n_rows = 0, n_out = 0, from = at[watched];
        for (int32_t k = 0; k < SLOTS; k++) {
            int32_t slot = (int32_t)((uint64_t)k * 3 + round) % SLOTS;
            uint32_t words[4];
            di_philox(5, round, (uint64_t)slot, words);
            int32_t chunk = (int32_t)(words[0] % (round % 3 ? 4 : 31));
            if (slot == watched && round > 200) chunk = 1;
            for (int32_t i = 0; i < chunk && at[slot] < n; i++, at[slot]++) {
                if (slot == watched) out[n_out++] = n_rows;
                rows[n_rows++] = (di_row){ids[slot * n + at[slot]], slot, i};
            }
        }
        if (n_rows == 0) continue;
        di_error error;
        di_step step = {.rows = rows, .n_rows = n_rows, .out_rows = out, .n_out = n_out};
        if (di_forward(m->context, &step, &error) != DI_OK) fail_msg("%s", error.message);
        if (n_out == 0) continue;
        float *logits = malloc((size_t)n_out * (size_t)m->config->vocab_size * sizeof *logits);
        assert_non_null(logits);
        assert_int_equal(di_context_read_logits(m->context, logits, &error), DI_OK);
        expect_rows(m, logits, want, from, n_out, "among others");
        free(logits);
    }
    free(ids);
}

static void check(const setup *s) {
    int32_t threads = s->backend == TEST_CPU ? 2 : 1;
    int32_t *ids = malloc((size_t)s->n * sizeof *ids);
    assert_non_null(ids);
    float *want = NULL;
    for (int32_t t = 1; t <= threads; t++) {
        test_model m;
        open_model(&m, s, t);
        make_ids(&m, 0, ids, s->n);
        float *all = test_feed_all(&m, 0, ids, s->n);
        if (want) {
            expect_rows(&m, all, want, 0, s->n, "two threads");
            free(all);
        } else {
            want = all;
        }
        check_cuts(&m, ids, s->n, t == 1 ? s->cut_step : 13, want);
        check_one_by_one(&m, 3, ids, s->n, want);
        check_company(&m, s->n, 0, want);
        check_company(&m, s->n, 5, want);
        test_model_close(&m);
    }
    free(want);
    free(ids);
}

#define TINY_A "tests/data/golden/tiny-a/model"
#define TINY_B "tests/data/golden/tiny-b/model"

static void test_cpu_float(void **state) {
    (void)state;
    check(&(setup){TINY_A, TEST_CPU, DI_NUMERICS_FLOAT, 110, 1});
    check(&(setup){TINY_B, TEST_CPU, DI_NUMERICS_FLOAT, 110, 1});
}

static void test_cpu_release(void **state) {
    (void)state;
    check(&(setup){TINY_A, TEST_CPU, DI_NUMERICS_RELEASE, 110, 1});
    check(&(setup){TINY_B, TEST_CPU, DI_NUMERICS_RELEASE, 110, 1});
}

/* Longer than the demo's window, and widths with tails of their own. */
static void test_cpu_demo(void **state) {
    (void)state;
    check(&(setup){"models/demo", TEST_CPU, DI_NUMERICS_FLOAT, 200, 17});
    check(&(setup){"models/demo", TEST_CPU, DI_NUMERICS_RELEASE, 200, 17});
}

static void test_twins(void **state) {
    (void)state;
    check(&(setup){TINY_A, TEST_REF, DI_NUMERICS_FLOAT, 40, 1});
    check(&(setup){TINY_B, TEST_REF, DI_NUMERICS_RELEASE, 40, 1});
}

/* The same bits from a backend that computes later, on another thread, as from one that does not. */
static void check_later(test_backend at_once, test_backend later, const char *how) {
    int32_t ids[40];
    for (int numerics = 0; numerics < 2; numerics++) {
        float *logits[2];
        for (int late = 0; late < 2; late++) {
            test_model m;
            setup s = {TINY_A, late ? later : at_once, (di_numerics)numerics, 40, 1};
            open_model(&m, &s, 2);
            make_ids(&m, 0, ids, 40);
            logits[late] = test_feed_all(&m, 0, ids, 40);
            if (late) {
                check_one_by_one(&m, 2, ids, 40, logits[0]);
                check_company(&m, 40, 5, logits[0]);
                expect_rows(&m, logits[1], logits[0], 0, 40, how);
            }
            test_model_close(&m);
        }
        free(logits[0]);
        free(logits[1]);
    }
}

/* The boundary holds where the model cannot even read the memory, too. */
static void test_late(void **state) {
    (void)state;
    check_later(TEST_REF, TEST_LATE, "late");
}

static void test_queue(void **state) {
    (void)state;
    check_later(TEST_CPU, TEST_QUEUE, "queue");
}

/* Experts of the host in the midst of a stream that runs later: whichever side computes them, the
 * bits are those of one backend, for both sides are of one kind here. */
static void test_split(void **state) {
    (void)state;
    check_later(TEST_REF, TEST_SPLIT_LATE, "late, with a host");
    check_later(TEST_CPU, TEST_SPLIT_QUEUE, "queue, with a host");
}

/* Far more calls of the host than may be under way, and nobody waits between them. */
static void test_split_ahead(void **state) {
    (void)state;
    enum { TOKENS = 300 };
    int32_t ids[TOKENS];
    const int32_t last = TOKENS - 1, first = 0;
    test_model m;
    const setup s = {TINY_A, TEST_SPLIT_QUEUE, DI_NUMERICS_RELEASE, TOKENS, 1};
    open_model(&m, &s, 2);
    make_ids(&m, 0, ids, TOKENS);
    assert_null(test_feed(&m, 0, ids, 200, NULL, 0));
    float *want = test_feed(&m, 0, ids + 200, TOKENS - 200, &(int32_t){last - 200}, 1);
    for (int32_t i = 0; i < last; i++) assert_null(test_feed(&m, 1, ids + i, 1, NULL, 0));
    float *got = test_feed(&m, 1, ids + last, 1, &first, 1);
    expect_rows(&m, got, want, 0, 1, "one by one, ahead");
    free(want);
    free(got);
    test_model_close(&m);
}

static void test_split_cuda(void **state) {
    (void)state;
    test_need_cuda();
    for (int numerics = 0; numerics < 2; numerics++) {
        check(&(setup){TINY_A, TEST_SPLIT_CUDA, (di_numerics)numerics, 110, 1});
        check(&(setup){"models/demo", TEST_SPLIT_CUDA, (di_numerics)numerics, 200, 17});
    }
}

static void test_cuda(void **state) {
    (void)state;
    test_need_cuda();
    for (int numerics = 0; numerics < 2; numerics++) {
        check(&(setup){TINY_A, TEST_CUDA, (di_numerics)numerics, 110, 1});
        check(&(setup){TINY_B, TEST_CUDA, (di_numerics)numerics, 110, 1});
        check(&(setup){"models/demo", TEST_CUDA, (di_numerics)numerics, 200, 17});
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_float),  cmocka_unit_test(test_cpu_release),
        cmocka_unit_test(test_cpu_demo),   cmocka_unit_test(test_twins),
        cmocka_unit_test(test_late),       cmocka_unit_test(test_queue),
        cmocka_unit_test(test_split),      cmocka_unit_test(test_cuda),
        cmocka_unit_test(test_split_cuda), cmocka_unit_test(test_split_ahead),
    };
    test_filter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
