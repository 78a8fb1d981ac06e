/* How far rows of numbers are from stored ones, and how far they may be: the bounds of the vectors'
 * README ("how close is close"). */
#ifndef DI_TESTS_SUPPORT_DEVIATION_H
#define DI_TESTS_SUPPORT_DEVIATION_H

#include <stdbool.h>
#include <stdint.h>

/* Of rows: each row's largest difference; infinite for a row with a number that is not finite. */
typedef struct deviation {
    double median, most, largest; /* most: of 90 % of the rows */
} deviation;

/* n >= 1 rows of `width`. */
deviation deviation_of(const float *got, const float *want, int64_t n, int64_t width);

/* What a prompt of `length` tokens may differ: the twins by 1e-5 everywhere; the fast path by 1e-3
 * everywhere up to 40 tokens, then as far as one tipped rounding of a cache value leads. */
deviation deviation_bounds(int64_t length, bool twins);
bool deviation_within(const deviation *found, const deviation *bounds);

#endif
