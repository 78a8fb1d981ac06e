/* Exact selection of the best scores: a radix search for the k-th, then one pass in index order. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

enum { MANY = 4096, MAX_BINS = 1 << 11 };

/* Keys are 0 for what is never taken. The largest key such that at least k keys are not below it;
 * *above: how many are above it. At least k keys are not 0. The more keys, the larger the tables of
 * counts, which must be cleared and searched, may be. */
static uint32_t kth_key(const uint32_t *keys, int32_t n, int32_t k, int32_t *above) {
    const int digit = n < MANY ? 8 : 11;
    uint32_t prefix = 0, mask = 0;
    int32_t counts[MAX_BINS], taken = 0;
    for (int shift = 32; shift > 0;) {
        int bits = shift < digit ? shift : digit;
        shift -= bits;
        uint32_t low = (1u << bits) - 1;
        memset(counts, 0, (low + 1) * sizeof *counts);
        for (int32_t i = 0; i < n; i++)
            if ((keys[i] & mask) == prefix) counts[keys[i] >> shift & low]++;
        int32_t bin = (int32_t)low;
        while (taken + counts[bin] < k) taken += counts[bin--];
        prefix |= (uint32_t)bin << shift;
        mask |= low << shift;
    }
    *above = taken;
    return prefix;
}

int32_t cpu_best(const di_stream *s, const float *scores, int32_t n, int32_t k, uint32_t *keys,
                 int32_t *out) {
    int32_t valid = s->k->sort_keys(scores, n, keys), count = 0, above = 0;
    uint32_t least = 1;
    int32_t ties = valid; /* how many of those that equal the least may be taken */
    if (valid > k) {
        if (k <= 0) return 0;
        least = kth_key(keys, n, k, &above);
        ties = k - above;
    }
    for (int32_t i = 0; i < n; i++) {
        if (keys[i] < least) continue;
        if (valid > k && keys[i] == least && ties-- <= 0) continue;
        out[count++] = i;
    }
    return count;
}

void cpu_candidate_blocks(const di_stream *s, cpu_scratch *scratch, const float *scores, int32_t n,
                          int32_t visible, int32_t top_blocks, int32_t block_size, int32_t *out) {
    float *best = scratch->best;
    int32_t n_blocks = n / block_size + (n % block_size != 0);
    for (int32_t b = 0; b < n_blocks; b++) {
        float top = -INFINITY;
        int32_t end = n - b * block_size < block_size ? n : (b + 1) * block_size;
        for (int32_t j = b * block_size; j < end; j++)
            if (scores[j] > top) top = scores[j];
        best[b] = top;
    }
    if (visible > 0) best[(visible - 1) / block_size] = INFINITY; /* the newest is always kept */
    int32_t count = cpu_best(s, best, n_blocks, top_blocks, scratch->sort_keys, out);
    for (int32_t i = count; i < top_blocks; i++) out[i] = -1;
}
