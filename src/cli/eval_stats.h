/* Statistics of an evaluation: how far a proportion, a difference or a mean may be off.
 *
 * All intervals are two-sided at 95 %, computed in closed form or by bisection: nothing is drawn, so
 * the same results give the same intervals.
 */
#ifndef DI_CLI_EVAL_STATS_H
#define DI_CLI_EVAL_STATS_H

#include <stdint.h>

typedef struct di_interval {
    double low, high;
} di_interval;

/* Of a proportion, `right` of n >= 1: Wilson's score interval. It stays in [0, 1], and is no point
 * at 0 of n and n of n. */
di_interval di_eval_stats_proportion(int64_t right, int64_t n);

/* Of the difference of two proportions over the same n >= 1 items, second minus first: Tango's score
 * interval for paired data. It depends on the items on which the two disagree, and unlike an interval
 * from those alone it is no point when there are none: n items without a difference do not show that
 * there is none. */
di_interval di_eval_stats_paired(int64_t only_first, int64_t only_second, int64_t n);

/* Of a mean, from n >= 2 independent values: Student's t. */
di_interval di_eval_stats_mean(const double *values, int64_t n);
double di_eval_stats_average(const double *values, int64_t n);

/* Half of 95 % on either side of 0 for Student's t with `freedom` >= 1 degrees. */
double di_eval_stats_t(int64_t freedom);

#endif
