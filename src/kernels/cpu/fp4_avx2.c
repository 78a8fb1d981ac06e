/* Tables and the order of inputs for products with FP4 weights (simd_avx2.h, fp4_values). */
#include <pthread.h>

#include "kernels/cpu/simd_avx2.h"

fp4_table cpu_fp4_tables[256];

static void fill_tables(void) {
    static const float values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    for (int byte = 0; byte < 256; byte++)
        for (int code = 0; code < 16; code++) {
            float v = ldexpf(code < 8 ? values[code] : -values[code - 8], byte - 127);
            uint32_t bits;
            memcpy(&bits, &v, sizeof bits);
            cpu_fp4_tables[byte].high[code] = (uint8_t)(bits >> 24);
            cpu_fp4_tables[byte].low[code] = (uint8_t)(bits >> 16);
        }
}

void cpu_fp4_init_avx2(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_tables);
}

/* Lanes of four 4-value pieces, 4 x 4 transposed in each half. */
CPU_INLINE void transpose(const float *first, const float *second, __m256 out[4]) {
    __m256 r[4];
    for (int d = 0; d < 4; d++) {
        __m128 low = _mm_loadu_ps(first + 4 * d);
        __m128 high = second ? _mm_loadu_ps(second + 4 * d) : _mm_setzero_ps();
        r[d] = _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
    }
    __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1]));
    __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
    __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3]));
    __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
    out[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
    out[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
    out[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
    out[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
}

void cpu_fp4_order_avx2(const float *x, int64_t k, float *out) {
    for (int64_t i = 0; i < k; i += 64) {
        const float *second = i + 64 <= k ? x + i + 32 : NULL;
        __m256 v[8];
        transpose(x + i, second, v);
        transpose(x + i + 16, second ? second + 16 : NULL, v + 4);
        for (int j = 0; j < 8; j++) _mm256_storeu_ps(out + i + 8 * j, v[j]);
    }
}
