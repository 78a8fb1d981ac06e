/* Statistics of the bench: known values, the coverage that intervals promise, arrivals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/philox.h"
#include "cli/bench_stat.c"

static void near(double x, double want) {
    if (!(fabs(x - want) <= 1e-12 * fabs(want))) fail_msg("%.17g is not %.17g", x, want);
}

static void test_quantiles(void **state) {
    (void)state;
    double v[] = {5, 1, 4, 2, 3};
    di_stat_sort(v, 5);
    for (int i = 0; i < 5; i++) near(v[i], i + 1);
    near(di_stat_quantile(v, 5, 0.5), 3);
    near(di_stat_quantile(v, 5, 0.9), 4.6);
    near(di_stat_quantile(v, 5, 0), 1);
    near(di_stat_quantile(v, 5, 1), 5);
    near(di_stat_quantile(v, 4, 0.5), 2.5);
    near(di_stat_quantile(v, 1, 0.99), 1);
    near(di_stat_mean(v, 5), 3);
    assert_true(isnan(di_stat_quantile(v, 0, 0.5)) && isnan(di_stat_mean(v, 0)));
}

/* Ranks and coverage of the table that every textbook has. */
static void test_intervals(void **state) {
    (void)state;
    static const struct {
        size_t n, k;
        double coverage;
    } known[] = {{1, 1, 0},       {2, 1, 0.5},     {3, 1, 0.75},    {5, 1, 0.9375},
                 {6, 1, 0.9688},  {8, 1, 0.9922},  {9, 2, 0.9609},  {15, 4, 0.9648},
                 {16, 4, 0.9787}, {20, 6, 0.9586}, {30, 10, 0.9572}};
    double v[30];
    for (int i = 0; i < 30; i++) v[i] = i + 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        di_stat_interval x = di_stat_median(v, known[i].n);
        near(x.median, (double)(known[i].n + 1) / 2);
        near(x.low, (double)known[i].k);
        near(x.high, (double)(known[i].n + 1 - known[i].k));
        assert_true(fabs(x.coverage - known[i].coverage) < 5e-5);
    }
    assert_true(isnan(di_stat_median(v, 0).median));
    /* Many values: no overflow of the binomials. */
    static double many[1000];
    for (int i = 0; i < 1000; i++) many[i] = i + 1;
    near(di_stat_median(many, 1000).low, 469);
}

/* Of 2000 samples of 15 values, the interval misses the true median of about 3.5 %. */
static void test_interval_covers(void **state) {
    (void)state;
    int missed = 0;
    for (uint64_t s = 0; s < 2000; s++) {
        double v[15];
        for (uint64_t i = 0; i < 15; i++) v[i] = di_stat_gap(s, i, 1);
        di_stat_sort(v, 15);
        di_stat_interval x = di_stat_median(v, 15);
        missed += x.low > log(2) || x.high < log(2);
    }
    assert_in_range(missed, 40, 105);
}

static void test_pairs(void **state) {
    (void)state;
    /* Both sides drift; the ratio does not. */
    double a[] = {2, 4, 20, 8, 10, 12, 14}, b[] = {1, 2, 10, 4, 5, 6, 6}, scratch[7];
    di_stat_pairs x = di_stat_compare(a, b, 7, scratch);
    near(x.a, 10);
    near(x.b, 5);
    near(x.ratio.median, 2);
    near(x.ratio.low, 2);
    near(x.ratio.high, 14.0 / 6);
}

/* Mean and variance of the gaps, and of the number of arrivals in a second, which are equal. */
static void test_arrivals_are_poisson(void **state) {
    (void)state;
    enum { N = 200000 };
    const double rate = 4;
    double sum = 0, squares = 0, at = 0, counts = 0, count_squares = 0;
    int64_t in_second = 0, seconds = 0;
    for (uint64_t i = 0; i < N; i++) {
        double gap = di_stat_gap(7, i, rate);
        assert_true(gap > 0 && isfinite(gap));
        sum += gap;
        squares += gap * gap;
        for (at += gap; at >= 1; at -= 1) {
            counts += (double)in_second;
            count_squares += (double)(in_second * in_second);
            in_second = 0;
            seconds++;
        }
        in_second++;
    }
    double mean = sum / N, variance = squares / N - mean * mean;
    assert_true(fabs(mean * rate - 1) < 0.01);
    assert_true(fabs(variance * rate * rate - 1) < 0.03);
    double count = counts / (double)seconds;
    double spread = count_squares / (double)seconds - count * count;
    assert_true(fabs(count / rate - 1) < 0.01);
    assert_true(fabs(spread / rate - 1) < 0.04);
    /* Of the seed and the index alone. */
    near(di_stat_gap(7, 3, 8), di_stat_gap(7, 3, 4) / 2);
    assert_true(di_stat_gap(7, 3, 4) != di_stat_gap(8, 3, 4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles),
        cmocka_unit_test(test_intervals),
        cmocka_unit_test(test_interval_covers),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_arrivals_are_poisson),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
