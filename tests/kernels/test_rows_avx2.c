/* The sums of exponentials behind sampling, which decide where top_p cuts and what logprob says,
 * against the C library's exp. (The other loops of rows_avx2.c: kernelcheck and stored vectors.) */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/cpu/cpu.h"

enum { VOCAB = 129280 };

static double x[VOCAB];
static float single[VOCAB];
static cpu_kernels kernels;

/* Values below `top`, the first one at it; some far below, some -inf. Returns sum exp(x - top). */
static double fill(int64_t n, double top, double spread) {
    uint32_t random = 12345;
    double sum = 0, lost = 0; /* compensated: the reference must be closer than what it judges */
    for (int64_t i = 0; i < n; i++) {
        random = random * 1664525u + 1013904223u;
        float down = (float)((double)(random >> 8) * 0x1p-24 * spread);
        single[i] = (float)top - (i == 0 ? 0 : down);
        if (i % 97 == 96) single[i] = -INFINITY;
        x[i] = (double)single[i];
        double term = exp(x[i] - top) - lost, next = sum + term;
        lost = (next - sum) - term;
        sum = next;
    }
    return sum;
}

static void check(int64_t n, double top, double spread) {
    double want = fill(n, top, spread);
    double wide = kernels.sum_exp_double(x, top, n),
           narrow = kernels.sum_exp(single, (float)top, n);
    if (!(fabs(wide - want) <= 1e-13 * want)) {
        fail_msg("sum_exp_double of %lld values: %.17g, expected %.17g", (long long)n, wide, want);
    }
    if (!(fabs(narrow - want) <= 1e-6 * want)) {
        fail_msg("sum_exp of %lld values: %.17g, expected %.17g", (long long)n, narrow, want);
    }
}

static void test_sums_of_exponentials(void **state) {
    (void)state;
    static const double tops[3] = {0, 31.25, -700}, spreads[4] = {0.001, 3, 40, 300};
    if (!cpu_kernels_init(&kernels, ~0u)) skip();
    for (int64_t n = 1; n < 5000; n += n < 20 ? 1 : 331) {
        for (int i = 0; i < 12; i++) check(n, tops[i / 4], spreads[i % 4]);
    }
    for (int i = 0; i < 4; i++) check(VOCAB, 12.5, spreads[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums_of_exponentials)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
