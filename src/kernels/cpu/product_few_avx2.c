/* Products of a few x rows with AVX2: weights are decoded in registers, and used for all x rows of a
 * group at once: four weight rows for up to three x rows, two for four or five. Either way the sums
 * fill the registers.
 *
 * The sums are those of product_avx2.c term by term. A FP8 scale belongs to 32 rows, so x takes it,
 * once for the tile. A power of two makes that exact; where it would leave the range of floats, the
 * tile is done the other way.
 */
#include "kernels/cpu/simd_avx2.h"

enum { MOST_WIDE = 6 }; /* x rows of a group: 10 sums, 2 weight vectors, 1 x, 3 constants */

/* scaled = x times the scales of one FP8 tile row and 2^120 (see fma_fp8). False when that is not
 * exact somewhere (results out of range): then the weights must take the scale. */
static bool scale_x(const float *x, const uint8_t *scales, int32_t k, float *scaled) {
    const __m256 sign = _mm256_set1_ps(-0.0f), infinity = _mm256_set1_ps(INFINITY);
    __m256i good = _mm256_set1_epi32(-1);
    for (int32_t i = 0; i < k; i += 32) {
        int32_t byte = scales[i / 32];
        if (byte + 120 > 254) return false;
        __m256 f = _mm256_set1_ps(scale_e8m0((uint8_t)(byte + 120)));
        __m256i shift = _mm256_set1_epi32((byte + 120 - 127) * (1 << 23));
        for (int j = 0; j < 32; j += 8) {
            __m256 v = _mm256_loadu_ps(x + i + j), y = _mm256_mul_ps(v, f);
            _mm256_storeu_ps(scaled + i + j, y);
            /* exact: the exponent moved by the scale's, not to infinity's, or the value is 0 */
            __m256i moved = _mm256_add_epi32(_mm256_castps_si256(v), shift);
            __m256i same = _mm256_cmpeq_epi32(moved, _mm256_castps_si256(y));
            __m256 finite = _mm256_cmp_ps(_mm256_andnot_ps(sign, y), infinity, _CMP_LT_OQ);
            same = _mm256_and_si256(same, _mm256_castps_si256(finite));
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
CPU_INLINE void add_values(int rows, int j, int count, const __m256 *v, const float *const *x,
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
CPU_INLINE void block_sums(di_dtype dtype, int rows, const four *w, const float *const *x,
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

CPU_INLINE void block_rows(di_dtype dtype, int rows, const four *w, const float *const *x,
                           int64_t k0, int64_t end, float *acc) {
    __m256 a[3][4];
    block_sums(dtype, rows, w, x, k0, end, a);
    for (int r = 0; r < rows; r++)
        add_block(acc + (int64_t)r * CPU_TILE_N, reduce4(a[r][0], a[r][1], a[r][2], a[r][3]),
                  k0 == 0);
}

/* Six x rows that lie `apart` floats from each other: twelve sums, two weight vectors and one of x are
 * all registers but one, so the order is not left to the compiler. */
CPU_INLINE void add_pair6(__m256 v0, __m256 v1, const float *x, int64_t apart,
                          __m256 a[MOST_WIDE][2]) {
#define X_ROW(r, at)                                                                               \
    "vmovups " at ", %%ymm15\n\tvfmadd231ps %%ymm15, %[v0], %[a" #r "]\n\t"                        \
    "vfmadd231ps %%ymm15, %[v1], %[b" #r "]\n\t"
#define SUMS(r) [a##r] "+x"(a[r][0]), [b##r] "+x"(a[r][1])
    __asm__ volatile(X_ROW(0, "(%[x])") X_ROW(1, "(%[x],%[n],4)") X_ROW(2, "(%[x],%[n],8)")
                         X_ROW(3, "(%[y])") X_ROW(4, "(%[y],%[n],4)") X_ROW(5, "(%[y],%[n],8)")
                     : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5)
                     :
                     [v0] "x"(v0), [v1] "x"(v1), [x] "r"(x), [y] "r"(x + 3 * apart), [n] "r"(apart)
                     : "xmm15", "memory");
#undef X_ROW
#undef SUMS
}

/* The same for 4 or 5 x rows and two weight rows, j and j + 1; not for FP4. */
CPU_INLINE void add_pair(int rows, __m256 v0, __m256 v1, const float *const *x, int64_t i,
                         __m256 a[MOST_WIDE][2]) {
    if (rows == 6) {
        add_pair6(v0, v1, x[0] + i, x[1] - x[0], a);
        return;
    }
    for (int r = 0; r < rows; r++) {
        __m256 y = _mm256_loadu_ps(x[r] + i);
        a[r][0] = _mm256_fmadd_ps(y, v0, a[r][0]);
        a[r][1] = _mm256_fmadd_ps(y, v1, a[r][1]);
    }
}

CPU_INLINE void pair_sums(di_dtype dtype, int rows, const four *w, int j, const float *const *x,
                          int64_t k0, int64_t end, __m256 a[MOST_WIDE][2]) {
    const uint8_t *first = w->data[j], *second = w->data[j + 1];
    const int64_t size = cpu_stored_bytes(dtype, 1), step = dtype == DI_F8_E4M3 ? 32 : 8;
    for (int r = 0; r < rows; r++) a[r][0] = a[r][1] = _mm256_setzero_ps();
    for (int64_t i = k0; i < end; i += step) {
        const int64_t at = i * size;
        if (at % 64 == 0) fetch_ahead(w->next, at);
        if (dtype == DI_F8_E4M3) {
            for (int q = 0; q < 4; q++) {
                __m256i c = both_halves(first + at + 16 * (q / 2));
                __m256i d = both_halves(second + at + 16 * (q / 2));
                add_pair(rows, e4m3_floats(c, q % 2), e4m3_floats(d, q % 2), x, i + 8 * q, a);
            }
        } else if (dtype == DI_BF16) {
            add_pair(rows, load_bf16(first + at), load_bf16(second + at), x, i, a);
        } else {
            add_pair(rows, load_f32(first + at), load_f32(second + at), x, i, a);
        }
    }
}

/* Two sums of each of two x rows go to, or are added to, their places. */
CPU_INLINE void add_pairs_at(float *first, float *second, __m128 sums, bool start) {
    if (!start) {
        __m128 old = _mm_loadl_pi(sums, (const __m64 *)(const void *)first);
        sums = _mm_add_ps(_mm_loadh_pi(old, (const __m64 *)(const void *)second), sums);
    }
    _mm_storel_pi((__m64 *)(void *)first, sums);
    _mm_storeh_pi((__m64 *)(void *)second, sums);
}

CPU_INLINE void wide_rows(di_dtype dtype, int rows, const four *w, const float *const *x,
                          int64_t k0, int64_t end, float *acc) {
    __m256 a[MOST_WIDE][2];
    for (int j = 0; j < 4; j += 2) {
        pair_sums(dtype, rows, w, j, x, k0, end, a);
        for (int r = 0; r < rows; r += 2) {
            int s = r + 1 < rows ? r + 1 : r;
            add_pairs_at(acc + (int64_t)r * CPU_TILE_N + j, acc + (int64_t)s * CPU_TILE_N + j,
                         reduce4(a[r][0], a[r][1], a[s][0], a[s][1]), k0 == 0);
        }
    }
}

/* x rows of a group, by what was measured on Zen 3: decoding FP8 pays for two weight rows at a time,
 * reading F32 does not. */
CPU_INLINE int32_t most_in_group(di_dtype dtype) {
    return dtype == DI_F8_E4M3 ? MOST_WIDE : dtype == DI_BF16 ? 5 : 3;
}

/* Four weight rows times all x rows, in groups of about the same size; a block of their K stays in
 * L1 for them. */
CPU_INLINE void four_rows(di_dtype dtype, const four *w, int64_t k, const float *const *x,
                          int32_t m, float *acc) {
    const int32_t most = most_in_group(dtype), groups = (m + most - 1) / most;
    for (int64_t k0 = 0; k0 < k; k0 += CPU_TILE_K) {
        int64_t end = k0 + CPU_TILE_K < k ? k0 + CPU_TILE_K : k;
        for (int32_t g = 0; g < groups; g++) {
            int32_t r = m * g / groups, n = m * (g + 1) / groups - r;
            float *out = acc + (int64_t)r * CPU_TILE_N;
            if (n == 1) block_rows(dtype, 1, w, x + r, k0, end, out);
            if (n == 2) block_rows(dtype, 2, w, x + r, k0, end, out);
            if (n == 3) block_rows(dtype, 3, w, x + r, k0, end, out);
            if (n == 4) wide_rows(dtype, 4, w, x + r, k0, end, out);
            if (n == 5) wide_rows(dtype, 5, w, x + r, k0, end, out);
            if (n == 6) wide_rows(dtype, 6, w, x + r, k0, end, out);
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
