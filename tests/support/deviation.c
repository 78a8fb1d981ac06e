#include "support/deviation.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* More than any deviation of finite rows: a bound that only asks for finite numbers. */
#define ANY 1e300

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

deviation deviation_of(const float *got, const float *want, int64_t n, int64_t width) {
    double *rows = calloc((size_t)n + 1, sizeof *rows);
    assert_non_null(rows);
    assert_true(n >= 1 && width >= 1);
    for (int64_t i = 0; i < n * width; i++) {
        double off = fabs((double)got[i] - (double)want[i]);
        if (!isfinite(off)) off = INFINITY; /* fmax would pass a NaN over */
        rows[i / width] = fmax(rows[i / width], off);
    }
    qsort(rows, (size_t)n, sizeof *rows, by_value);
    deviation d = {rows[n / 2], rows[(n * 9 + 9) / 10 - 1], rows[n - 1]};
    free(rows);
    return d;
}

deviation deviation_bounds(int64_t length, bool twins) {
    if (twins) return (deviation){1e-5, 1e-5, 1e-5};
    if (length <= 40) return (deviation){1e-3, 1e-3, 1e-3};
    if (length <= 300) return (deviation){1e-3, 5e-2, ANY};
    return (deviation){0.1, ANY, ANY};
}

bool deviation_within(const deviation *found, const deviation *bounds) {
    return found->median <= bounds->median && found->most <= bounds->most &&
           found->largest <= bounds->largest;
}
