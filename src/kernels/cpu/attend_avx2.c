/* Attention by blocks of 64 list slots, and index scores, with AVX2 (ops.h, attend, index_select).
 */
#include "kernels/cpu/simd_avx2.h"

/* Lanes 0..7 of slot group g whose bit in `live` is set. */
CPU_INLINE __m256 live_mask(uint64_t live, int32_t g) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i bits = _mm256_and_si256(_mm256_set1_epi32((int)(live >> (8 * g) & 255)), bit);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, bit));
}

/* Dead slots give -inf and so add exactly 0; the maximum starts at the running one. */
static void softmax_block(float *s, int32_t m, uint64_t live, float scale, bool round, float *top,
                          float *sum, float *shrink) {
    const __m256 none = _mm256_set1_ps(-INFINITY), factor = _mm256_set1_ps(scale);
    for (int32_t h = 0; h < m; h++) {
        float *row = s + (int64_t)h * CPU_BLOCK;
        __m256 v[8], best = _mm256_set1_ps(top[h]);
        for (int g = 0; g < 8; g++) {
            v[g] = _mm256_mul_ps(_mm256_loadu_ps(row + 8 * g), factor);
            v[g] = _mm256_blendv_ps(none, v[g], live_mask(live, g));
            best = _mm256_max_ps(best, v[g]);
        }
        float now = reduce_max(best);
        __m256 before = exp8(_mm256_set1_ps(top[h] - now)), t = _mm256_set1_ps(now);
        __m256 total = _mm256_setzero_ps();
        for (int g = 0; g < 8; g++) {
            __m256 p = exp8(_mm256_sub_ps(v[g], t));
            total = _mm256_add_ps(total, p);
            _mm256_storeu_ps(row + 8 * g, to_a(p, round));
        }
        shrink[h] = _mm256_cvtss_f32(before);
        sum[h] = sum[h] * shrink[h] + reduce1(total);
        top[h] = now;
    }
}

/* `heads` heads times 16 channels, or 8, in registers over all n keys. */
CPU_INLINE void values_tile(int heads, int vectors, const float *p, const float *keys, int64_t ldk,
                            int32_t n, int64_t d, const float *shrink, float *o) {
    __m256 a[4][2];
    for (int h = 0; h < heads; h++)
        for (int v = 0; v < vectors; v++)
            a[h][v] = _mm256_mul_ps(_mm256_loadu_ps(o + h * d + 8 * v), _mm256_set1_ps(shrink[h]));
    for (int32_t i = 0; i < n; i++) {
        const float *key = keys + i * ldk;
        __m256 k0 = _mm256_loadu_ps(key), k1 = vectors > 1 ? _mm256_loadu_ps(key + 8) : k0;
        for (int h = 0; h < heads; h++) {
            __m256 w = _mm256_set1_ps(p[h * CPU_BLOCK + i]);
            a[h][0] = _mm256_fmadd_ps(w, k0, a[h][0]);
            if (vectors > 1) a[h][1] = _mm256_fmadd_ps(w, k1, a[h][1]);
        }
    }
    for (int h = 0; h < heads; h++)
        for (int v = 0; v < vectors; v++) _mm256_storeu_ps(o + h * d + 8 * v, a[h][v]);
}

static void values_block(const float *p, int32_t m, const float *keys, int64_t ldk, int32_t n,
                         int32_t d, const float *shrink, float *o) {
    for (int32_t c = 0; c < d; c += 16) {
        bool both = c + 16 <= d;
        int32_t h = 0;
        for (; h + 4 <= m; h += 4) {
            const float *ph = p + (int64_t)h * CPU_BLOCK;
            float *oh = o + (int64_t)h * d + c;
            if (both)
                values_tile(4, 2, ph, keys + c, ldk, n, d, shrink + h, oh);
            else
                values_tile(4, 1, ph, keys + c, ldk, n, d, shrink + h, oh);
        }
        for (; h < m; h++) {
            const float *ph = p + (int64_t)h * CPU_BLOCK;
            float *oh = o + (int64_t)h * d + c;
            if (both)
                values_tile(1, 2, ph, keys + c, ldk, n, d, shrink + h, oh);
            else
                values_tile(1, 1, ph, keys + c, ldk, n, d, shrink + h, oh);
        }
    }
}

/* The sink joins the denominator. Without any slot that is infinite and the result 0. */
static void attend_end(float *o, int32_t m, int32_t d, const float *top, const float *sum,
                       const float *sink, bool round, float *out) {
    for (int32_t h = 0; h < m; h++) {
        float more = _mm256_cvtss_f32(exp8(_mm256_set1_ps(sink[h] - top[h])));
        __m256 total = _mm256_set1_ps(sum[h] + more);
        for (int32_t i = 0; i < d; i += 8) {
            __m256 v = _mm256_div_ps(_mm256_loadu_ps(o + (int64_t)h * d + i), total);
            _mm256_storeu_ps(out + (int64_t)h * d + i, to_a(v, round));
        }
    }
}

static void score(const float *dots, int64_t ld, const float *w, int32_t heads, int32_t n,
                  bool round, float *out) {
    for (int32_t e = 0; e < n; e += 8) {
        __m256 sum = _mm256_setzero_ps();
        for (int32_t h = 0; h < heads; h++) {
            __m256 d = to_a(load_n(dots + h * ld + e, n - e), round);
            d = _mm256_mul_ps(_mm256_max_ps(d, _mm256_setzero_ps()), _mm256_set1_ps(w[h]));
            sum = _mm256_add_ps(sum, to_a(d, round));
        }
        store_n(out + e, n - e, to_a(sum, round));
    }
}

void cpu_attend_init_avx2(cpu_kernels *kernels) {
    kernels->softmax_block = softmax_block;
    kernels->values_block = values_block;
    kernels->attend_end = attend_end;
    kernels->score = score;
}
