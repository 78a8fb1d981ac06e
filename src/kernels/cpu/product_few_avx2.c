/* Products of a few x rows with AVX2: weights are decoded in registers, four rows of them at a
 * time, and used for up to three x rows at once.
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

/* Four weight rows, consecutive; those past the last repeat it. */
typedef struct four {
    const uint8_t *data[4], *scale[4]; /* scale: FP4 only */
    fetch next;
} four;

/* a[r][j] += x[r][i ..] . row j, for `count` (32 or 64) values from i, all decoded. */
CPU_INLINE void add_values(int rows, int j, int count, const __m256 *v, const float *const x[3],
                           int64_t i, __m256 a[3][4]) {
    for (int q = 0; q < count / 8; q++)
        for (int r = 0; r < rows; r++)
            a[r][j] = _mm256_fmadd_ps(_mm256_loadu_ps(x[r] + i + 8 * q), v[q], a[r][j]);
}

CPU_INLINE void fp8_values(const uint8_t *codes, __m256 v[4]) {
    __m256i a = both_halves(codes), b = both_halves(codes + 16);
    v[0] = e4m3_floats(a, false);
    v[1] = e4m3_floats(a, true);
    v[2] = e4m3_floats(b, false);
    v[3] = e4m3_floats(b, true);
}

/* One block of K for `rows` x rows. rows and dtype are constants where this is called. */
CPU_INLINE void block_sums(di_dtype dtype, int rows, const four *w, const float *const x[3],
                           int64_t k0, int64_t end, __m256 a[3][4]) {
    __m256 v[8];
    int64_t i = k0;
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < 4; j++) a[r][j] = _mm256_setzero_ps();
    if (dtype == DI_F8_E4M3) {
        for (; i < end; i += 32) {
            if (i % 64 == 0) fetch_ahead(w->next, i);
            for (int j = 0; j < 4; j++) {
                fp8_values(w->data[j] + i, v);
                add_values(rows, j, 32, v, x, i, a);
            }
        }
    } else if (dtype == DI_FP4_PAIR) {
        for (; i + 64 <= end; i += 64) {
            if (i % 128 == 0) fetch_ahead(w->next, i / 2);
            for (int j = 0; j < 4; j++) {
                fp4_values(load_fp4(w->data[j] + i / 2, w->scale[j] + i / 32), v);
                add_values(rows, j, 64, v, x, i, a);
            }
        }
        for (int j = 0; j < 4 && i < end; j++) {
            fp4_values(load_fp4_half(w->data[j] + i / 2, w->scale[j] + i / 32), v);
            add_values(rows, j, 64, v, x, i, a);
        }
    } else {
        const bool bf16 = dtype == DI_BF16;
        const int64_t size = bf16 ? 2 : 4;
        for (; i < end; i += 8) {
            const int64_t at = i * size;
            if (at % 64 == 0) fetch_ahead(w->next, at);
            for (int j = 0; j < 4; j++) {
                v[0] = bf16 ? load_bf16(w->data[j] + at) : load_f32(w->data[j] + at);
                add_values(rows, j, 8, v, x, i, a);
            }
        }
    }
}

CPU_INLINE void block_rows(di_dtype dtype, int rows, const four *w, const float *const x[3],
                           int64_t k0, int64_t end, float *acc) {
    __m256 a[3][4];
    block_sums(dtype, rows, w, x, k0, end, a);
    for (int r = 0; r < rows; r++)
        add_block(acc + (int64_t)r * CPU_TILE_N, reduce4(a[r][0], a[r][1], a[r][2], a[r][3]),
                  k0 == 0);
}

/* Four weight rows times all x rows; a block of their K stays in L1 for them. */
CPU_INLINE void four_rows(di_dtype dtype, const four *w, int64_t k, const float *const *x,
                          int32_t m, float *acc) {
    for (int64_t k0 = 0; k0 < k; k0 += CPU_TILE_K) {
        int64_t end = k0 + CPU_TILE_K < k ? k0 + CPU_TILE_K : k;
        for (int32_t r = 0; r < m; r += 3) {
            const float *some[3] = {x[r], x[r + 1 < m ? r + 1 : r], x[r + 2 < m ? r + 2 : r]};
            float *out = acc + (int64_t)r * CPU_TILE_N;
            if (m - r >= 3)
                block_rows(dtype, 3, w, some, k0, end, out);
            else if (m - r == 2)
                block_rows(dtype, 2, w, some, k0, end, out);
            else
                block_rows(dtype, 1, w, some, k0, end, out);
        }
    }
}

static void four_fp8(const four *w, int64_t k, const float *const *x, int32_t m, float *acc) {
    four_rows(DI_F8_E4M3, w, k, x, m, acc);
}
static void four_fp4(const four *w, int64_t k, const float *const *x, int32_t m, float *acc) {
    four_rows(DI_FP4_PAIR, w, k, x, m, acc);
}
static void four_bf16(const four *w, int64_t k, const float *const *x, int32_t m, float *acc) {
    four_rows(DI_BF16, w, k, x, m, acc);
}
static void four_f32(const four *w, int64_t k, const float *const *x, int32_t m, float *acc) {
    four_rows(DI_F32, w, k, x, m, acc);
}

bool cpu_product_few_rows(const di_matrix *w, int64_t n0, int32_t n, const float *const *x,
                          int64_t x_at, int32_t m, float *acc, float *scaled) {
    const int64_t k = w->k, row_bytes = cpu_stored_bytes(w->dtype, k), scales = (k + 31) / 32;
    const uint8_t *data = cpu_at(w->data), *scale = cpu_at(w->scale);
    const float *inputs[CPU_FEW_ROWS];
    void (*rows)(const four *, int64_t, const float *const *, int32_t, float *) =
        w->dtype == DI_F8_E4M3    ? four_fp8
        : w->dtype == DI_FP4_PAIR ? four_fp4
        : w->dtype == DI_BF16     ? four_bf16
                                  : four_f32;
    if (k % (w->dtype == DI_F8_E4M3 ? 32 : 8)) return false;
    for (int32_t r = 0; r < m; r++) {
        inputs[r] = x[r] + x_at;
        if (w->dtype != DI_F8_E4M3) continue;
        float *out = scaled + r * (k + 16);
        if (!scale_x(inputs[r], scale + n0 / 32 * scales, w->k, out)) return false;
        inputs[r] = out;
    }
    for (int32_t j = 0; j < n; j += 4) {
        four f;
        for (int i = 0; i < 4; i++) {
            int64_t row = n0 + (j + i < n ? j + i : n - 1);
            f.data[i] = data + row * row_bytes;
            f.scale[i] = w->dtype == DI_FP4_PAIR ? scale + row * scales : scale; /* may be NULL */
        }
        f.next = fetch_start(data + (n0 + j + 4) * row_bytes, row_bytes);
        rows(&f, k, inputs, m, acc + j);
    }
    return true;
}
