/* Philox4x32-10: a counter-based generator (Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", 2011). A pure function of (key, counter): any order, any thread, the same numbers.
 */
#ifndef DI_BASE_PHILOX_H
#define DI_BASE_PHILOX_H

#include <math.h>
#include <stdint.h>

#include "base/inline.h"

DI_INLINE void di_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high,
                         uint32_t out[4]) {
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Uniform in (0, 1), never 0 or 1: the top 52 bits of two words, at the middle of their step. (With
 * 53 bits the largest would be rounded up to 1.) */
DI_INLINE double di_uniform53(uint32_t high, uint32_t low) {
    uint64_t bits = ((uint64_t)high << 32 | low) >> 12;
    return ((double)bits + 0.5) * 0x1p-52;
}

/* Standard Gumbel noise of one token: a function of (seed, position, id) alone. */
DI_INLINE double di_gumbel(uint64_t seed, int64_t position, int32_t id) {
    uint32_t words[4];
    di_philox(seed, (uint64_t)position, (uint64_t)(uint32_t)id >> 1, words);
    const uint32_t *pair = words + 2 * (id & 1);
    return -log(-log(di_uniform53(pair[0], pair[1])));
}

#endif
