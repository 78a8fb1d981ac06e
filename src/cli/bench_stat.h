/* Statistics of measurements: medians with their intervals, quantiles, random arrivals. */
#ifndef DI_CLI_BENCH_STAT_H
#define DI_CLI_BENCH_STAT_H

#include <stddef.h>
#include <stdint.h>

/* Ascending; what the functions below call sorted. */
void di_stat_sort(double *values, size_t n);
/* q in [0, 1], linear between neighbours; n 0: NAN. */
double di_stat_quantile(const double *sorted, size_t n, double q);
double di_stat_mean(const double *values, size_t n); /* n 0: NAN */

/* The median of what the n values were drawn from lies in [low, high] with probability `coverage`,
 * whatever the distribution: the narrowest pair of order statistics, the k-th from both ends, that
 * covers at least 0.95. With fewer than 6 values the whole range does not: coverage says so. */
typedef struct di_stat_interval {
    double median, low, high, coverage;
} di_stat_interval;

di_stat_interval di_stat_median(const double *sorted, size_t n);

/* The median of values in any order; scratch: room for n. */
double di_stat_median_of(const double *values, size_t n, double *scratch);

/* Two sides of a comparison that ran in turn: medians of both, and of the ratios a[i] / b[i]. */
typedef struct di_stat_pairs {
    double a, b;
    di_stat_interval ratio;
} di_stat_pairs;

/* scratch: room for n values. */
di_stat_pairs di_stat_compare(const double *a, const double *b, size_t n, double *scratch);

/* Seconds from arrival i - 1 to arrival i of a Poisson process, rate a second: exponential, a
 * function of (seed, i) alone. */
double di_stat_gap(uint64_t seed, uint64_t i, double rate);

#endif
