/* Intervals against published values and against a definition that is worked out another way. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* The file whole: the program is not a library. */
#include "cli/eval_stats.c"

static void near(double x, double want, double within) {
    if (!(fabs(x - want) <= within)) fail_msg("%.10g, wanted %.10g", x, want);
}

/* The examples of R. G. Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3. */
static void test_proportion(void **state) {
    (void)state;
    static const struct {
        int64_t right, n;
        double low, high;
    } known[] = {{81, 263, 0.2553, 0.3662},
                 {15, 148, 0.0624, 0.1605},
                 {0, 20, 0.0000, 0.1611},
                 {1, 29, 0.0061, 0.1718}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        di_interval x = di_eval_stats_proportion(known[i].right, known[i].n);
        near(x.low, known[i].low, 0.00005);
        near(x.high, known[i].high, 0.00005);
        di_interval y = di_eval_stats_proportion(known[i].n - known[i].right, known[i].n);
        near(y.low, 1 - x.high, 1e-12);
        near(y.high, 1 - x.low, 1e-12);
    }
    assert_true(di_eval_stats_proportion(7, 7).high == 1);
    assert_true(di_eval_stats_proportion(0, 7).low == 0);
}

/* Of a table (n - first - second, first, second) of counts with these probabilities. */
static double likelihood(double first, double second, double n, double q, double d) {
    double counts[] = {first, second, n - first - second};
    double shares[] = {q, q + d, 1 - 2 * q - d};
    double sum = 0;
    for (int i = 0; i < 3; i++) {
        if (counts[i] == 0) continue;
        if (shares[i] <= 0) return -INFINITY;
        sum += counts[i] * log(shares[i]);
    }
    return sum;
}

/* The score of a difference by its definition: the likeliest q is searched for, not solved for. */
static double searched_score(double first, double second, double n, double d) {
    double low = d < 0 ? -d : 0, high = (1 - d) / 2;
    for (int i = 0; i < 200; i++) {
        double a = low + (high - low) / 3, b = high - (high - low) / 3;
        if (likelihood(first, second, n, a, d) < likelihood(first, second, n, b, d)) {
            low = a;
        } else {
            high = b;
        }
    }
    double q = (low + high) / 2;
    return (second - first - n * d) / sqrt(n * (2 * q + d - d * d));
}

static void test_paired_limits_have_the_score(void **state) {
    (void)state;
    static const int64_t tables[][3] = {{0, 1, 44}, {2, 12, 50},  {0, 0, 100}, {1, 3, 100},
                                        {7, 7, 40}, {0, 20, 100}, {9, 0, 200}, {3, 1, 6}};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        const int64_t *t = tables[i];
        di_interval x = di_eval_stats_paired(t[0], t[1], t[2]);
        double seen = (double)(t[1] - t[0]) / (double)t[2];
        assert_true(-1 < x.low && x.low < seen && seen < x.high && x.high < 1);
        near(searched_score((double)t[0], (double)t[1], (double)t[2], x.low), z, 1e-5);
        near(searched_score((double)t[0], (double)t[1], (double)t[2], x.high), -z, 1e-5);
        di_interval y = di_eval_stats_paired(t[1], t[0], t[2]); /* the other way round */
        near(y.low, -x.high, 1e-12);
        near(y.high, -x.low, 1e-12);
    }
}

static void test_paired_values(void **state) {
    (void)state;
    /* Without a disagreement: z^2 / (n + z^2), and no point. */
    near(di_eval_stats_paired(0, 0, 100).high, z * z / (100 + z * z), 1e-9);
    near(di_eval_stats_paired(0, 0, 100).low, -z * z / (100 + z * z), 1e-9);
    di_interval x = di_eval_stats_paired(2, 12, 50);
    near(x.low, 0.061112, 1e-6);
    near(x.high, 0.344709, 1e-6);
    /* At the edge of what is possible. */
    x = di_eval_stats_paired(5, 0, 5);
    near(x.low, -1, 1e-12);
    assert_true(x.high < 0);
    x = di_eval_stats_paired(0, 0, 1);
    assert_true(x.low > -1 && x.high < 1);
}

static void test_t(void **state) {
    (void)state;
    static const struct {
        int64_t freedom;
        double t;
    } known[] = {{1, 12.7062}, {2, 4.30265},  {3, 3.18245},  {4, 2.77645},   {5, 2.57058},
                 {9, 2.26216}, {10, 2.22814}, {30, 2.04227}, {120, 1.97993}, {1000, 1.96234}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        near(di_eval_stats_t(known[i].freedom), known[i].t, 0.00001 * (1 + 9 * (known[i].t > 10)));
    }
    near(di_eval_stats_t(1000000), di_eval_stats_t(10000), 0.0003);
}

static void test_mean(void **state) {
    (void)state;
    /* Mean 5, standard deviation sqrt(32 / 7). */
    static const double values[] = {2, 4, 4, 4, 5, 5, 7, 9};
    di_interval x = di_eval_stats_mean(values, 8);
    double half = 2.36462425 * sqrt(32.0 / 7 / 8);
    near(di_eval_stats_average(values, 8), 5, 1e-12);
    near(x.low, 5 - half, 1e-6);
    near(x.high, 5 + half, 1e-6);
    static const double same[] = {3, 3, 3};
    x = di_eval_stats_mean(same, 3);
    assert_true(x.low == 3 && x.high == 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_proportion),
                                       cmocka_unit_test(test_paired_limits_have_the_score),
                                       cmocka_unit_test(test_paired_values),
                                       cmocka_unit_test(test_t), cmocka_unit_test(test_mean)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
