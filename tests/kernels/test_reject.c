/* Rejection: known answers and edges. That it keeps distributions under a schedule is
 * tests/engine/test_spec_lossless.c, that the operation accept does what it says test_accept.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/philox.h"
#include "kernels/reject.h"
#include "support/spec_support.h"

enum { V = 4 };

static void test_argmax(void **state) {
    (void)state;
    assert_int_equal(di_reject_argmax((const double[]){1, 3, 3, 2}, V), 1); /* ties: lower id */
    assert_int_equal(di_reject_argmax((const double[]){-INFINITY, -9, -INFINITY, -8}, V), 3);
    assert_int_equal(di_reject_argmax((const double[]){1, NAN, 0, 0}, V), DI_NO_TOKEN);
    assert_int_equal(di_reject_argmax((const double[]){1, INFINITY, 0, 0}, V), DI_NO_TOKEN);
    const double none[] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    assert_int_equal(di_reject_argmax(none, V), DI_NO_TOKEN);
    assert_int_equal(di_reject_sample(none, V, 1, 1), DI_NO_TOKEN);
    assert_int_equal(di_reject_sample((const double[]){1, NAN, 0, 0}, V, 1, 1), DI_NO_TOKEN);
}

static void test_seeds(void **state) {
    (void)state;
    uint64_t seeds[] = {42,
                        di_noise_seed(42, DI_NOISE_DRAFT, 7),
                        di_noise_seed(42, DI_NOISE_DRAFT, 8),
                        di_noise_seed(43, DI_NOISE_DRAFT, 7),
                        di_noise_seed(42, DI_NOISE_ACCEPT, 7),
                        di_noise_seed(42, DI_NOISE_RESIDUAL, 7),
                        di_noise_seed(42, DI_NOISE_REQUEST, 7)};
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        for (size_t j = 0; j < i; j++) assert_true(seeds[i] != seeds[j]);
    }
    assert_true(di_noise_seed(42, DI_NOISE_DRAFT, 7) == seeds[1]);
}

typedef struct outcome {
    int32_t accepted, token;
} outcome;

/* A round of n drafts over V ids; p and q are [n + 1][V] and [n][V]. */
static outcome verdict(int32_t n, const int32_t *drafts, const double *p, const double *q,
                       uint64_t seed) {
    for (int32_t i = 0; i < n; i++) {
        di_verdict v =
            di_reject_draft(p + i * V, q ? q + i * V : NULL, V, drafts[i], seed, 100 + i);
        if (!v.stands) return (outcome){i, v.token};
        assert_int_equal(v.token, drafts[i]);
    }
    return (outcome){n, di_reject_sample(p + n * V, V, seed, 100 + n)};
}

static const double target[3 * V] = {0, 1, 2, -INFINITY, 1, 1, 0, 0, 0.5, 0, 0, 0};

/* q = p, also when shifted by a constant: everything stands, and the last token is plain. */
static void test_same_distribution(void **state) {
    (void)state;
    double shifted[2 * V];
    for (int i = 0; i < 2 * V; i++) shifted[i] = target[i] + 30;
    for (uint64_t seed = 0; seed < 500; seed++) {
        int32_t drafts[2] = {di_reject_sample(target, V, seed + 1000, 100),
                             di_reject_sample(target + V, V, seed + 1000, 101)};
        outcome got = verdict(2, drafts, target, target, seed);
        assert_int_equal(got.accepted, 2);
        assert_int_equal(got.token, di_reject_sample(target + 2 * V, V, seed, 102));
        /* The shift rounds differently, so a residual of rounding may remain: next to never. */
        assert_int_equal(verdict(2, drafts, target, shifted, seed).accepted, 2);
    }
}

/* No drafts: plain decoding to the bit. */
static void test_no_drafts(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        outcome got = verdict(0, NULL, target, NULL, seed);
        assert_int_equal(got.accepted, 0);
        assert_int_equal(got.token, di_reject_sample(target, V, seed, 100));
    }
}

/* Nothing in common: always rejected, and the residual is p. */
static void test_disjoint(void **state) {
    (void)state;
    const double p[2 * V] = {0, 1, -INFINITY, -INFINITY, 0, 0, 0, 0};
    const double q[V] = {-INFINITY, -INFINITY, 0, 1};
    const int32_t drafts[] = {3};
    int64_t counts[2] = {0};
    for (uint64_t seed = 0; seed < 4000; seed++) {
        outcome got = verdict(1, drafts, p, q, seed);
        assert_int_equal(got.accepted, 0);
        assert_in_range(got.token, 0, 1);
        counts[got.token]++;
    }
    double a = 1 / (1 + exp(1));
    assert_true(spec_chi_square(counts, (const double[]){a, 1 - a}, 2) < 4);
}

/* p (0.7, 0.3), q (0.5, 0.5): draft 0 always stands; draft 1 at 0.6, else 0 is the only residual.
 */
static void test_rates(void **state) {
    (void)state;
    const double p[2 * V] = {log(0.7), log(0.3), -INFINITY, -INFINITY, 0, 0, 0, 0};
    const double q[V] = {log(0.5), log(0.5), -INFINITY, -INFINITY};
    const int32_t first[] = {0}, second[] = {1};
    int64_t counts[2] = {0};
    for (uint64_t seed = 0; seed < 4000; seed++) {
        assert_int_equal(verdict(1, first, p, q, seed).accepted, 1);
        outcome got = verdict(1, second, p, q, seed);
        counts[got.accepted]++;
        if (got.accepted == 0) assert_int_equal(got.token, 0);
    }
    assert_true(spec_chi_square(counts, (const double[]){0.4, 0.6}, 2) < 4);
    assert_true(fabs(di_reject_overlap(p, q, V) - 0.8) < 1e-12);
}

/* Verdicts have noise of their own: also a draft drawn with the plain noise of its position (which
 * coupled requests do) leaves p as it is. */
static void test_own_noise(void **state) {
    (void)state;
    const double q[V] = {1, -1, 1.5, 2}; /* p - q is 0.22, 0.36 on ids 1, 2 */
    double p[V], total = 0;
    int64_t counts[V] = {0};
    for (int id = 0; id < V; id++) total += exp(target[id]);
    for (int id = 0; id < V; id++) p[id] = exp(target[id]) / total;
    for (uint64_t seed = 0; seed < 8000; seed++) {
        int32_t draft = di_reject_sample(q, V, seed, 100);
        outcome got = verdict(1, &draft, target, q, seed);
        counts[got.accepted > 0 ? draft : got.token]++;
    }
    assert_true(spec_chi_square(counts, p, V) < 4);
}

/* Greedy drafts: q NULL is the same as a one-hot q. */
static void test_one_hot(void **state) {
    (void)state;
    const double q[V] = {-INFINITY, 5, -INFINITY, -INFINITY};
    const int32_t drafts[] = {1};
    int64_t counts[2] = {0};
    for (uint64_t seed = 0; seed < 4000; seed++) {
        outcome got = verdict(1, drafts, target, NULL, seed);
        outcome same = verdict(1, drafts, target, q, seed);
        assert_int_equal(got.accepted, same.accepted);
        assert_int_equal(got.token, same.token);
        counts[got.accepted]++;
        if (got.accepted == 0) assert_int_not_equal(got.token, 1);
    }
    double p1 = exp(1) / (1 + exp(1) + exp(2));
    assert_true(spec_chi_square(counts, (const double[]){1 - p1, p1}, 2) < 4);
}

/* A rejection whose residual is all rounding samples p: q has 2e-9 less on id 1, which u can hit
 * only by being placed there; so the draft is one that q does not know. */
static void test_tiny_residual(void **state) {
    (void)state;
    const double p[2 * V] = {log(0.5), log(0.3), log(0.2 - 2e-9), log(2e-9), 0, 0, 0, 0};
    const double q[V] = {log(0.5), log(0.3), log(0.2), -INFINITY};
    const double far[V] = {log(0.5), log(0.3), log(0.2 - 2e-7), log(2e-7)};
    const int32_t unknown[] = {V}, negative[] = {-1};
    int64_t counts[V] = {0};
    for (uint64_t seed = 0; seed < 3000; seed++) {
        outcome got = verdict(1, unknown, p, q, seed);
        assert_int_equal(got.accepted, 0);
        counts[got.token]++; /* by the residual it would always be 3 */
        assert_int_equal(verdict(1, negative, p, q, seed).token, got.token);
        assert_int_equal(verdict(1, unknown, p, far, seed).token, 2); /* 2e-7 is a residual */
    }
    assert_true(counts[3] < 10);
    assert_true(spec_chi_square(counts, (const double[]){0.5, 0.3, 0.2, 2e-9}, V) < 4);
    /* A draft that q gives no chance. */
    const int32_t impossible[] = {3};
    assert_int_equal(verdict(1, impossible, p, q, 1).accepted, 0);
}

static void test_bad_logits(void **state) {
    (void)state;
    double p[3 * V], q[2 * V];
    memcpy(p, target, sizeof p);
    memcpy(q, target, sizeof q);
    const int32_t drafts[] = {1, 1};
    p[V] = NAN; /* the first draft stands, the row of the second is broken */
    outcome got = verdict(2, drafts, p, q, 3);
    assert_int_equal(got.accepted, 1);
    assert_int_equal(got.token, DI_NO_TOKEN);
    memcpy(p, target, sizeof p);
    q[0] = INFINITY; /* proposes nothing: plain decoding */
    for (uint64_t seed = 0; seed < 50; seed++) {
        got = verdict(2, drafts, p, q, seed);
        assert_int_equal(got.accepted, 0);
        assert_int_equal(got.token, di_reject_sample(p, V, seed, 100));
    }
    memcpy(q, target, sizeof q);
    for (int id = 0; id < V; id++) p[2 * V + id] = -INFINITY;
    got = verdict(2, drafts, p, q, 3);
    assert_int_equal(got.accepted, 2);
    assert_int_equal(got.token, DI_NO_TOKEN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_same_distribution),
        cmocka_unit_test(test_no_drafts),
        cmocka_unit_test(test_disjoint),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_own_noise),
        cmocka_unit_test(test_one_hot),
        cmocka_unit_test(test_tiny_residual),
        cmocka_unit_test(test_bad_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
