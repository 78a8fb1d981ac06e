#include "cli/bench_stat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void di_stat_sort(double *values, size_t n) { qsort(values, n, sizeof *values, by_value); }

double di_stat_quantile(const double *sorted, size_t n, double q) {
    if (n == 0) return NAN;
    double at = q * (double)(n - 1);
    size_t below = (size_t)at;
    if (below + 1 >= n) return sorted[n - 1];
    return sorted[below] + (at - (double)below) * (sorted[below + 1] - sorted[below]);
}

double di_stat_mean(const double *values, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += values[i];
    return n > 0 ? sum / (double)n : NAN;
}

/* The number of values below the median is binomial (n, 1/2); [k-th, k-th from the end] misses it
 * when that number is below k or above n - k. */
di_stat_interval di_stat_median(const double *sorted, size_t n) {
    if (n == 0) return (di_stat_interval){NAN, NAN, NAN, 0};
    double term = exp2(-(double)n), below = term; /* P(number < k) for k = 1 */
    size_t k = 1;
    for (;;) {
        double next_term = term * (double)(n - k + 1) / (double)k;
        if (2 * (k + 1) > n + 1 || 1 - 2 * (below + next_term) < 0.95) break;
        term = next_term;
        below += term;
        k++;
    }
    double coverage = 1 - 2 * below;
    return (di_stat_interval){.median = di_stat_quantile(sorted, n, 0.5),
                              .low = sorted[k - 1],
                              .high = sorted[n - k],
                              .coverage = coverage > 0 ? coverage : 0};
}

double di_stat_median_of(const double *values, size_t n, double *scratch) {
    memcpy(scratch, values, n * sizeof *values);
    di_stat_sort(scratch, n);
    return di_stat_quantile(scratch, n, 0.5);
}

di_stat_pairs di_stat_compare(const double *a, const double *b, size_t n, double *scratch) {
    di_stat_pairs out = {.a = di_stat_median_of(a, n, scratch),
                         .b = di_stat_median_of(b, n, scratch)};
    for (size_t i = 0; i < n; i++) scratch[i] = a[i] / b[i];
    di_stat_sort(scratch, n);
    out.ratio = di_stat_median(scratch, n);
    return out;
}

double di_stat_gap(uint64_t seed, uint64_t i, double rate) {
    uint32_t words[4];
    di_philox(seed, i, UINT64_C(0x6172726976616c73), words); /* "arrivals" */
    return -log(di_uniform53(words[0], words[1])) / rate;
}
