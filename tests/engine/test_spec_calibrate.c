/* Calibration: synthetic streams whose heads are wrong by a known temperature. Seeds:
 * spec_support.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/spec_calibrate.h"
#include "support/spec_support.h"

enum { B = 5 };

static di_spec_calibration calibration; /* large; each test starts it anew */

/* Draft k is accepted, when all before it were, with probability sigmoid(s_k / truth[k]). */
typedef struct stream {
    spec_random random;
    double truth[B];
} stream;

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Draws the logits of a block and returns how many of its drafts would be accepted. */
static int32_t draw(stream *s, float *logits) {
    int32_t accepted = 0;
    for (int32_t k = 0; k < B; k++) {
        logits[k] = (float)(1 + 2 * spec_normal(&s->random));
        double u = spec_uniform(&s->random); /* always drawn: a block has fixed noise */
        if (accepted == k && u < sigmoid((double)logits[k] / s->truth[k])) accepted++;
    }
    return accepted;
}

static void train(stream *s, di_spec_law law, int32_t n_blocks) {
    for (int32_t i = 0; i < n_blocks; i++) {
        float logits[B];
        int32_t accepted = draw(s, logits);
        di_spec_observe(&calibration, law, logits, B, accepted);
    }
}

/* The expected calibration error of a_{k+1} over fresh blocks, ten bins of predicted survival. */
static double measure(stream *s, di_spec_law law, int32_t k) {
    enum { N = 6000, BINS = 10 };
    double predicted[BINS] = {0}, survived[BINS] = {0}, sum = 0;
    for (int32_t i = 0; i < N; i++) {
        float logits[B];
        double survivals[B];
        int32_t accepted = draw(s, logits);
        di_spec_survivals(&calibration, law, logits, B, survivals);
        int32_t bin = (int32_t)fmin(survivals[k] * BINS, BINS - 1);
        predicted[bin] += survivals[k];
        survived[bin] += accepted > k;
    }
    for (int32_t b = 0; b < BINS; b++) sum += fabs(predicted[b] - survived[b]);
    return sum / N;
}

/* ---- Known answers ---- */

static void test_prior(void **state) {
    (void)state;
    di_spec_calibrate_init(&calibration);
    const float logits[B] = {0, 100, -100, 3, 3};
    double a[B];
    di_spec_survivals(&calibration, DI_SPEC_COUPLED, logits, B, a);
    assert_true(a[0] == 0.5 && a[1] == 0.5);
    assert_true(a[2] < 1e-40 && a[2] > 0 && a[3] < a[2]);
    for (int32_t k = 0; k < DI_SPEC_MAX_BLOCK; k++)
        assert_true(calibration.positions[DI_SPEC_COUPLED][k].temperature == 1);
}

/* One observation: its bin, its weight, and what decay leaves of it. */
static void test_statistics(void **state) {
    (void)state;
    di_spec_calibrate_init(&calibration);
    const float logits[3] = {-20, 1.5f, 1.25f};
    di_spec_observe(&calibration, DI_SPEC_GREEDY, logits, 2, 1);
    const di_spec_position *p = calibration.positions[DI_SPEC_GREEDY];
    assert_true(p[0].bins[0].n == 1 && p[0].bins[0].logit == -20 && p[0].bins[0].survived == 1);
    assert_true(p[1].bins[9].n == 1 && p[1].bins[9].logit == 1.5 && p[1].bins[9].survived == 0);
    assert_true(fabs(p[1].bins[9].before - sigmoid(-20)) < 1e-15);
    assert_int_equal(p[2].since_fit, 0); /* not verified, not observed */
    di_spec_observe(&calibration, DI_SPEC_GREEDY, logits + 1, 1, 1);
    assert_true(p[0].bins[0].n == 0.999 && p[0].bins[9].n == 1);
}

/* All accepted: the best t is the smallest, but the prior holds out against a few. */
static void test_prior_weight(void **state) {
    (void)state;
    const float logit = 2;
    const double *t = &calibration.positions[DI_SPEC_GREEDY][0].temperature;
    di_spec_calibrate_init(&calibration);
    for (int i = 0; i < DI_SPEC_FIT_EVERY; i++)
        di_spec_observe(&calibration, DI_SPEC_GREEDY, &logit, 1, 1);
    assert_true(*t > 0.7 && *t <= 1);
    for (int i = 0; i < 1000; i++) di_spec_observe(&calibration, DI_SPEC_GREEDY, &logit, 1, 1);
    assert_true(*t < 0.7);
}

/* Whatever the logits: in [0, 1], non-increasing. */
static void check_survivals(uint64_t seed) {
    spec_random random = {.seed = seed};
    di_spec_calibrate_init(&calibration);
    for (int32_t k = 0; k < B; k++)
        calibration.positions[DI_SPEC_REJECT][k].temperature = exp2(6 * spec_uniform(&random) - 3);
    float logits[B];
    double a[B];
    for (int32_t k = 0; k < B; k++) {
        logits[k] = (float)(10 * spec_normal(&random));
        if (spec_below(&random, 10) == 0)
            logits[k] = (const float[]){NAN, INFINITY, -INFINITY}[spec_below(&random, 3)];
    }
    di_spec_survivals(&calibration, DI_SPEC_REJECT, logits, B, a);
    for (int32_t k = 0; k < B; k++) {
        SPEC_REQUIRE(a[k] >= 0 && a[k] <= 1);
        SPEC_REQUIRE(k == 0 || a[k] <= a[k - 1]);
        if (isnan(logits[k])) SPEC_REQUIRE(a[k] == 0);
    }
    /* Nor do such blocks hurt the statistics. */
    for (int32_t i = 0; i < 100; i++)
        di_spec_observe(&calibration, DI_SPEC_REJECT, logits, B, spec_below(&random, B + 1));
    for (int32_t k = 0; k < B; k++) {
        double t = calibration.positions[DI_SPEC_REJECT][k].temperature;
        SPEC_REQUIRE(t >= 0.125 && t <= 8);
        for (int32_t b = 0; b < DI_SPEC_BINS; b++)
            SPEC_REQUIRE(isfinite(calibration.positions[DI_SPEC_REJECT][k].bins[b].logit));
    }
}

static void test_survivals(void **state) {
    (void)state;
    spec_each_seed(500, check_survivals);
}

/* ---- Learning ---- */

/* Heads that are too sure, too timid, and right, by position: the error goes down to noise, the
 * temperatures to the truth. */
static void check_learning(uint64_t seed) {
    static const double truths[3][B] = {{2, 2, 2, 2, 2},
                                        {0.5, 0.5, 0.5, 0.5, 0.5},
                                        {3, 1, 2, 0.7, 1.5}};
    for (int which = 0; which < 3; which++) {
        stream s = {.random = {.seed = seed * 10 + (uint64_t)which}};
        memcpy(s.truth, truths[which], sizeof s.truth);
        di_spec_calibrate_init(&calibration);
        double raw[B], learnt = 0, total = 0;
        for (int32_t k = 0; k < B; k++) raw[k] = measure(&s, DI_SPEC_GREEDY, k);
        train(&s, DI_SPEC_GREEDY, 4000);
        for (int32_t k = 0; k < B; k++) {
            double now = measure(&s, DI_SPEC_GREEDY, k);
            SPEC_REQUIRE(now < 0.045);
            learnt += now;
            total += raw[k];
        }
        if (seed == 1)
            print_message("stream %d: mean error %.3f raw, %.3f learnt\n", which, total / B,
                          learnt / B);
        SPEC_REQUIRE(learnt < total / 2 && learnt / B < 0.02);
        for (int32_t k = 0; k < 3; k++) { /* further on few survive, and the prior has its say */
            double t = calibration.positions[DI_SPEC_GREEDY][k].temperature;
            SPEC_REQUIRE(fabs(log2(t / s.truth[k])) < 0.4 + 0.3 * k);
        }
    }
}

static void test_learning(void **state) {
    (void)state;
    spec_each_seed(4, check_learning);
}

/* A head that is right stays right: from the prior nothing drifts that matters. (Positions that few
 * blocks survive to have a loose temperature; what counts is the error.) */
static void check_no_harm(uint64_t seed) {
    stream s = {.random = {.seed = seed}, .truth = {1, 1, 1, 1, 1}};
    di_spec_calibrate_init(&calibration);
    for (int round = 0; round < 8; round++) {
        train(&s, DI_SPEC_COUPLED, 200);
        for (int32_t k = 0; k < 2; k++) {
            double t = calibration.positions[DI_SPEC_COUPLED][k].temperature;
            SPEC_REQUIRE(fabs(log2(t)) < 0.8);
        }
        if (round % 4 != 3) continue;
        for (int32_t k = 0; k < B; k++) SPEC_REQUIRE(measure(&s, DI_SPEC_COUPLED, k) < 0.04);
    }
}

static void test_no_harm(void **state) {
    (void)state;
    spec_each_seed(6, check_no_harm);
}

/* From the prior outwards: a few observations move nothing, many move it all the way, and when
 * the world changes the old is forgotten. */
static void test_convergence(void **state) {
    (void)state;
    stream s = {.random = {.seed = 77}, .truth = {3, 3, 3, 3, 3}};
    const double *t = &calibration.positions[DI_SPEC_REJECT][0].temperature;
    di_spec_calibrate_init(&calibration);
    train(&s, DI_SPEC_REJECT, DI_SPEC_FIT_EVERY);
    assert_true(*t < 2.2);
    train(&s, DI_SPEC_REJECT, 3000);
    assert_true(fabs(log2(*t / 3)) < 0.4);
    for (int k = 0; k < B; k++) s.truth[k] = 0.6;
    train(&s, DI_SPEC_REJECT, 5000);
    assert_true(fabs(log2(*t / 0.6)) < 0.5);
    /* The other laws have seen none of it. */
    assert_true(calibration.positions[DI_SPEC_GREEDY][0].temperature == 1);
    assert_true(calibration.positions[DI_SPEC_COUPLED][0].since_fit == 0);
}

/* Verifying only what looks good, as the schedule does, does not bend the fit. */
static void check_selected(uint64_t seed) {
    stream s = {.random = {.seed = seed}, .truth = {2, 2, 2, 2, 2}};
    di_spec_calibrate_init(&calibration);
    for (int32_t i = 0; i < 6000; i++) {
        float logits[B];
        double a[B];
        int32_t n = 0, accepted = draw(&s, logits);
        di_spec_survivals(&calibration, DI_SPEC_REJECT, logits, B, a);
        while (n < B && a[n] > 0.4) n++;
        di_spec_observe(&calibration, DI_SPEC_REJECT, logits, n, accepted < n ? accepted : n);
    }
    for (int32_t k = 0; k < 2; k++) {
        double t = calibration.positions[DI_SPEC_REJECT][k].temperature;
        SPEC_REQUIRE(fabs(log2(t / 2)) < 0.6);
    }
}

static void test_selected(void **state) {
    (void)state;
    spec_each_seed(4, check_selected);
}

static void test_deterministic(void **state) {
    (void)state;
    static di_spec_calibration first;
    for (int pass = 0; pass < 2; pass++) {
        stream s = {.random = {.seed = 5}, .truth = {2, 1, 3, 0.5, 1}};
        di_spec_calibrate_init(&calibration);
        train(&s, DI_SPEC_COUPLED, 500);
        if (pass == 0) first = calibration;
    }
    assert_memory_equal(&first, &calibration, sizeof first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prior),         cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_prior_weight),  cmocka_unit_test(test_survivals),
        cmocka_unit_test(test_learning),      cmocka_unit_test(test_no_harm),
        cmocka_unit_test(test_convergence),   cmocka_unit_test(test_selected),
        cmocka_unit_test(test_deterministic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
