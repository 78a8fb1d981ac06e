/* What the tests of speculation share: random numbers from a printed seed, and a chi-square test.
 *
 * A property runs over seeds 1..n; DI_SEED=n in the environment runs that one alone.
 */
#ifndef DI_TESTS_SUPPORT_SPEC_SUPPORT_H
#define DI_TESTS_SUPPORT_SPEC_SUPPORT_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/philox.h"

typedef struct spec_random {
    uint64_t seed, count;
} spec_random;

static inline double spec_uniform(spec_random *random) {
    uint32_t words[4];
    di_philox(random->seed, random->count++, UINT64_MAX, words);
    return di_uniform53(words[0], words[1]);
}

/* In [0, n). */
static inline int32_t spec_below(spec_random *random, int32_t n) {
    return (int32_t)(spec_uniform(random) * n);
}

static inline double spec_normal(spec_random *random) {
    double r = sqrt(-2 * log(spec_uniform(random)));
    return r * cos(6.283185307179586 * spec_uniform(random));
}

/* Calls property(seed) for each seed. */
static inline void spec_each_seed(uint64_t n, void (*property)(uint64_t seed)) {
    const char *one = getenv("DI_SEED");
    if (one != NULL) {
        property(strtoull(one, NULL, 10));
        return;
    }
    for (uint64_t seed = 1; seed <= n; seed++) property(seed);
}

/* A condition of a property; needs `seed` in scope. */
#define SPEC_REQUIRE(condition)                                                                    \
    do {                                                                                           \
        if (!(condition)) fail_msg("seed %llu: %s", (unsigned long long)seed, #condition);         \
    } while (0)

/* How surprising the counts are under the probabilities, in standard deviations: Pearson's
 * chi-square by the approximation of Wilson and Hilferty. 4: one in 30,000. Cells expected less
 * than 5 times are put together; a count where the probability is 0 gives infinity. */
static inline double spec_chi_square(const int64_t *counts, const double *probabilities, int n) {
    double total = 0, sum = 0, rest_count = 0, rest = 0;
    int cells = 0;
    for (int i = 0; i < n; i++) total += (double)counts[i];
    for (int i = 0; i < n; i++) {
        double expected = total * probabilities[i], count = (double)counts[i];
        if (!(probabilities[i] > 0) && counts[i] > 0) return INFINITY;
        if (expected < 5) {
            rest += expected;
            rest_count += count;
            continue;
        }
        sum += (count - expected) * (count - expected) / expected;
        cells++;
    }
    if (rest > 0) {
        sum += (rest_count - rest) * (rest_count - rest) / rest;
        cells++;
    }
    double spread = 2.0 / (9 * (cells - 1));
    return (cbrt(sum / (cells - 1)) - (1 - spread)) / sqrt(spread);
}

#endif
