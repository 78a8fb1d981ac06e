/* Products of a single x row with AVX2: decoding is fused with the FMA.
 *
 * The sums are those of product_avx2.c term by term. A FP8 scale belongs to 32 rows, so x takes it,
 * once for the tile. A power of two makes that exact; where it would leave the range of floats, the
 * tile is done the other way.
 */
#include "kernels/cpu/simd_avx2.h"

/* scaled = x times the scales of one FP8 tile row and 2^120 (see fma_fp8). False when that is not
 * exact somewhere (results out of range): then the weights must take the scale. */
static bool scale_x(const float *x, const uint8_t *scales, int32_t k, float *scaled) {
    __m256i good = _mm256_set1_epi32(-1);
    for (int32_t i = 0; i < k; i += 32) {
        int32_t byte = scales[i / 32];
        if (byte + 120 > 254) return false;
        __m256 f = _mm256_set1_ps(scale_e8m0((uint8_t)(byte + 120)));
        __m256i shift = _mm256_set1_epi32((byte + 120 - 127) * (1 << 23));
        for (int j = 0; j < 32; j += 8) {
            __m256 v = _mm256_loadu_ps(x + i + j), y = _mm256_mul_ps(v, f);
            _mm256_storeu_ps(scaled + i + j, y);
            /* exact: the exponent moved by the scale's, or the value is 0 */
            __m256i moved = _mm256_add_epi32(_mm256_castps_si256(v), shift);
            __m256i same = _mm256_cmpeq_epi32(moved, _mm256_castps_si256(y));
            __m256i zero = _mm256_castps_si256(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_EQ_OQ));
            good = _mm256_and_si256(good, _mm256_or_si256(same, zero));
        }
    }
    return _mm256_movemask_epi8(good) == -1;
}

/* 32 values of one row of each format, against x. */
CPU_INLINE __m256 fma_fp8(const uint8_t *codes, const float *x, __m256 acc) {
    __m256i a = both_halves(codes), b = both_halves(codes + 16);
    acc = _mm256_fmadd_ps(_mm256_loadu_ps(x), e4m3_floats(a, false), acc);
    acc = _mm256_fmadd_ps(_mm256_loadu_ps(x + 8), e4m3_floats(a, true), acc);
    acc = _mm256_fmadd_ps(_mm256_loadu_ps(x + 16), e4m3_floats(b, false), acc);
    return _mm256_fmadd_ps(_mm256_loadu_ps(x + 24), e4m3_floats(b, true), acc);
}
CPU_INLINE __m256 fma_fp4(fp4_block block, const float *x, __m256 acc) {
    __m256 v[8];
    fp4_values(block, v);
    for (int j = 0; j < 8; j++) acc = _mm256_fmadd_ps(_mm256_loadu_ps(x + 8 * j), v[j], acc);
    return acc;
}
CPU_INLINE __m256 fma_bf16(const uint8_t *words, const float *x, __m256 acc) {
    return _mm256_fmadd_ps(_mm256_loadu_ps(x), load_bf16(words), acc);
}
CPU_INLINE __m256 fma_f32(const uint8_t *words, const float *x, __m256 acc) {
    return _mm256_fmadd_ps(_mm256_loadu_ps(x), load_f32(words), acc);
}

/* Fetches the next four rows while these are worked on: the hardware's own prefetching stops at
 * every page. Rows of a page or more are fetched side by side, shorter ones in the order of
 * addresses (measured: four streams in one page are slow). Behind the end of a matrix this does
 * nothing. */
typedef struct fetch {
    const uint8_t *rows;
    int64_t apart, speed;
} fetch;
CPU_INLINE fetch fetch_start(const uint8_t *rows, int64_t row_bytes) {
    return row_bytes < 4096 ? (fetch){rows, 64, 4} : (fetch){rows, row_bytes, 1};
}
CPU_INLINE void fetch_ahead(fetch f, int64_t at) { /* at: a multiple of 64 */
    for (int j = 0; j < 4; j++)
        _mm_prefetch((const char *)(f.rows + f.speed * at + f.apart * j), _MM_HINT_T0);
}

/* Four weight rows against one x, K by blocks. Rows are consecutive; those past `last` repeat it.
 */
CPU_INLINE void four_rows(di_dtype dtype, const di_matrix *w, int64_t n0, int64_t last,
                          const float *x, float *acc) {
    const int64_t k = w->k, s = (k + 31) / 32;
    const int64_t row_bytes = dtype == DI_F8_E4M3    ? k
                              : dtype == DI_FP4_PAIR ? k / 2
                              : dtype == DI_BF16     ? 2 * k
                                                     : 4 * k;
    const uint8_t *data = cpu_at(w->data), *scale = cpu_at(w->scale);
    const uint8_t *d[4], *e[4] = {0};
    const fetch next = fetch_start(data + (n0 + 4) * row_bytes, row_bytes);
    for (int j = 0; j < 4; j++) {
        int64_t row = n0 + j < last ? n0 + j : last;
        d[j] = data + row * row_bytes;
        if (dtype == DI_FP4_PAIR) e[j] = scale + row * s;
    }
    for (int64_t k0 = 0; k0 < k; k0 += CPU_TILE_K) {
        int64_t end = k0 + CPU_TILE_K < k ? k0 + CPU_TILE_K : k;
        __m256 a0 = _mm256_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
        if (dtype == DI_F8_E4M3) {
            for (int64_t i = k0; i < end; i += 32) {
                if (i % 64 == 0) fetch_ahead(next, i);
                a0 = fma_fp8(d[0] + i, x + i, a0);
                a1 = fma_fp8(d[1] + i, x + i, a1);
                a2 = fma_fp8(d[2] + i, x + i, a2);
                a3 = fma_fp8(d[3] + i, x + i, a3);
            }
        } else if (dtype == DI_FP4_PAIR) {
            int64_t i = k0;
            for (; i + 64 <= end; i += 64) {
                if (i % 128 == 0) fetch_ahead(next, i / 2);
                a0 = fma_fp4(load_fp4(d[0] + i / 2, e[0] + i / 32), x + i, a0);
                a1 = fma_fp4(load_fp4(d[1] + i / 2, e[1] + i / 32), x + i, a1);
                a2 = fma_fp4(load_fp4(d[2] + i / 2, e[2] + i / 32), x + i, a2);
                a3 = fma_fp4(load_fp4(d[3] + i / 2, e[3] + i / 32), x + i, a3);
            }
            if (i < end) {
                a0 = fma_fp4(load_fp4_half(d[0] + i / 2, e[0] + i / 32), x + i, a0);
                a1 = fma_fp4(load_fp4_half(d[1] + i / 2, e[1] + i / 32), x + i, a1);
                a2 = fma_fp4(load_fp4_half(d[2] + i / 2, e[2] + i / 32), x + i, a2);
                a3 = fma_fp4(load_fp4_half(d[3] + i / 2, e[3] + i / 32), x + i, a3);
            }
        } else {
            const bool bf16 = dtype == DI_BF16;
            const int64_t size = bf16 ? 2 : 4;
            for (int64_t i = k0; i < end; i += 8) {
                const int64_t at = i * size;
                if (at % 64 == 0) fetch_ahead(next, at);
                a0 = bf16 ? fma_bf16(d[0] + at, x + i, a0) : fma_f32(d[0] + at, x + i, a0);
                a1 = bf16 ? fma_bf16(d[1] + at, x + i, a1) : fma_f32(d[1] + at, x + i, a1);
                a2 = bf16 ? fma_bf16(d[2] + at, x + i, a2) : fma_f32(d[2] + at, x + i, a2);
                a3 = bf16 ? fma_bf16(d[3] + at, x + i, a3) : fma_f32(d[3] + at, x + i, a3);
            }
        }
        add_block(acc, reduce4(a0, a1, a2, a3), k0 == 0);
    }
}

static void four_rows_fp8(const di_matrix *w, int64_t n0, int64_t last, const float *x,
                          float *acc) {
    four_rows(DI_F8_E4M3, w, n0, last, x, acc);
}
static void four_rows_fp4(const di_matrix *w, int64_t n0, int64_t last, const float *x,
                          float *acc) {
    four_rows(DI_FP4_PAIR, w, n0, last, x, acc);
}
static void four_rows_bf16(const di_matrix *w, int64_t n0, int64_t last, const float *x,
                           float *acc) {
    four_rows(DI_BF16, w, n0, last, x, acc);
}
static void four_rows_f32(const di_matrix *w, int64_t n0, int64_t last, const float *x,
                          float *acc) {
    four_rows(DI_F32, w, n0, last, x, acc);
}

bool cpu_product_one_row(const di_matrix *w, int64_t n0, int32_t n, const float *x, float *acc,
                         float *scaled) {
    void (*rows)(const di_matrix *, int64_t, int64_t, const float *, float *);
    switch (w->dtype) {
    case DI_F8_E4M3:
        if (w->k % 32) return false;
        if (!scale_x(x, (const uint8_t *)cpu_at(w->scale) + n0 / 32 * (w->k / 32), w->k, scaled))
            return false;
        x = scaled;
        rows = four_rows_fp8;
        break;
    case DI_FP4_PAIR: rows = four_rows_fp4; break;
    case DI_BF16: rows = four_rows_bf16; break;
    default: rows = four_rows_f32; break;
    }
    if (w->k % 8) return false;
    for (int32_t j = 0; j < n; j += 4) rows(w, n0 + j, n0 + n - 1, x, acc + j);
    return true;
}
