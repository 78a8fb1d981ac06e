/* Products with AVX2: a tile of at most 32 weight rows times any number of x rows.
 *
 * Many rows: blocks of 512 K values of the tile are decoded once, then all x rows run over them in
 * register tiles of 3 x rows by 4 weight rows. Few rows: product_few_avx2.c. Both form the same
 * products of the same real numbers in the same order (cpu.h), hence the same bits.
 */
#include "kernels/cpu/simd_avx2.h"

enum {
    ROW_CHUNK = 48,  /* x rows that pass over a tile while their block stays in L2 */
    LOW_TILE = 8,    /* weight rows of the lowest tile */
    LONG_ROW = 1024, /* values; see few_rows */
    SHORT_ROW = 128,
    L1_TILE = 4096,        /* values of a tile that stays in L1 beside x */
    TILE_LD = CPU_TILE_LD, /* floats between rows of a decoded tile */
};

/* ---- decoding a tile ---- */

static void decode_fp8(const uint8_t *codes, const uint8_t *scales, int32_t k, float *out) {
    int32_t i = 0;
    for (; i + 32 <= k; i += 32) decode_e4m3_block(codes + i, scales[i / 32], 4, out + i);
    if (i == k) return;
    uint8_t bytes[32] = {0};
    memcpy(bytes, codes + i, (size_t)(k - i));
    decode_e4m3_block(bytes, scales[i / 32], (k - i + 7) / 8, out + i);
}

/* In FP4 order, filled up to a multiple of 64. */
static void decode_fp4(const uint8_t *pairs, const uint8_t *scales, int32_t k, float *out) {
    __m256 v[8];
    for (int32_t i = 0; i < k; i += 64) {
        bool whole = i + 64 <= k;
        fp4_values(whole ? load_fp4(pairs + i / 2, scales + i / 32)
                         : load_fp4_half(pairs + i / 2, scales + i / 32),
                   v);
        for (int j = 0; j < 8; j++) _mm256_storeu_ps(out + i + 8 * j, v[j]);
    }
}

/* Values of a bf16 or f32 row; the last vector is filled with zeros. */
CPU_INLINE void decode_plain(const uint8_t *data, bool bf16, int32_t k, float *out) {
    const int64_t size = bf16 ? 2 : 4;
    int32_t i = 0;
    for (; i + 8 <= k; i += 8)
        _mm256_storeu_ps(out + i, bf16 ? load_bf16(data + size * i) : load_f32(data + size * i));
    if (i == k) return;
    uint8_t rest[32] = {0};
    memcpy(rest, data + size * i, (size_t)(size * (k - i)));
    _mm256_storeu_ps(out + i, bf16 ? load_bf16(rest) : load_f32(rest));
}

/* Values of a decoded row of k, with the filling. */
static int32_t decoded_width(di_dtype dtype, int32_t k) {
    return dtype == DI_FP4_PAIR ? (k + 63) / 64 * 64 : (k + 7) / 8 * 8;
}

/* k values from column k0 (a multiple of CPU_TILE_K) of n rows and, up to the next multiple of 4
 * rows, zeros. What will be decoded next is fetched meanwhile: a row's next block, at its end the
 * row that is LOW_TILE below. dtype is a constant where this is called. */
CPU_INLINE void decode_rows(di_dtype dtype, const di_matrix *w, int64_t n0, int32_t n, int64_t k0,
                            int32_t k, float *tile) {
    const int64_t row_bytes = cpu_stored_bytes(dtype, w->k), bytes = cpu_stored_bytes(dtype, k);
    const int64_t scales_a_row = ((int64_t)w->k + 31) / 32;
    const int64_t ahead =
        k0 + k < w->k ? bytes : LOW_TILE * row_bytes - cpu_stored_bytes(dtype, k0);
    const uint8_t *data =
        (const uint8_t *)cpu_at(w->data) + n0 * row_bytes + cpu_stored_bytes(dtype, k0);
    const uint8_t *scale = cpu_at(w->scale);
    for (int32_t j = 0; j < n; j++, data += row_bytes, tile += TILE_LD) {
        if (dtype != DI_F32) /* whose rows lie whole pages apart and would share L1 sets */
            for (int64_t i = 0; i < bytes; i += 64)
                _mm_prefetch((const char *)(data + ahead + i), _MM_HINT_T1);
        if (dtype == DI_F8_E4M3)
            decode_fp8(data, scale + (n0 + j) / 32 * scales_a_row + k0 / 32, k, tile);
        else if (dtype == DI_FP4_PAIR)
            decode_fp4(data, scale + (n0 + j) * scales_a_row + k0 / 32, k, tile);
        else
            decode_plain(data, dtype == DI_BF16, k, tile);
    }
    for (int32_t j = n; j % 4; j++, tile += TILE_LD)
        memset(tile, 0, 4 * (size_t)decoded_width(dtype, k));
}

static void decode_tile(const di_matrix *w, int64_t n0, int32_t n, int64_t k0, int32_t k,
                        float *tile) {
    switch (w->dtype) {
    case DI_F8_E4M3: decode_rows(DI_F8_E4M3, w, n0, n, k0, k, tile); break;
    case DI_FP4_PAIR: decode_rows(DI_FP4_PAIR, w, n0, n, k0, k, tile); break;
    case DI_BF16: decode_rows(DI_BF16, w, n0, n, k0, k, tile); break;
    default: decode_rows(DI_F32, w, n0, n, k0, k, tile); break;
    }
}

/* ---- register tiles ---- */

/* out_r = the sums of x_r with 4 rows of w, over k8 vectors. `rows` is a constant where it is
 * called. */
CPU_INLINE void micro(int rows, const float *x0, const float *x1, const float *x2, const float *w,
                      int64_t ldw, int32_t k8, __m128 out[3]) {
    __m256 a0 = _mm256_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
    __m256 b0 = a0, b1 = a0, b2 = a0, b3 = a0, c0 = a0, c1 = a0, c2 = a0, c3 = a0;
    const float *w1 = w + ldw, *w2 = w1 + ldw, *w3 = w2 + ldw;
    for (int64_t i = 0; i < (int64_t)k8 * 8; i += 8) {
        /* 12 sums, 3 x and 1 weight vector: all 16 registers */
        __m256 p = _mm256_loadu_ps(x0 + i);
        __m256 q = rows > 1 ? _mm256_loadu_ps(x1 + i) : p;
        __m256 r = rows > 2 ? _mm256_loadu_ps(x2 + i) : p;
#define COLUMN(at, a, b, c)                                                                        \
    do {                                                                                           \
        __m256 v = _mm256_loadu_ps((at) + i);                                                      \
        a = _mm256_fmadd_ps(p, v, a);                                                              \
        if (rows > 1) b = _mm256_fmadd_ps(q, v, b);                                                \
        if (rows > 2) c = _mm256_fmadd_ps(r, v, c);                                                \
    } while (0)
        COLUMN(w, a0, b0, c0);
        COLUMN(w1, a1, b1, c1);
        COLUMN(w2, a2, b2, c2);
        COLUMN(w3, a3, b3, c3);
#undef COLUMN
    }
    out[0] = reduce4(a0, a1, a2, a3);
    out[1] = rows > 1 ? reduce4(b0, b1, b2, b3) : out[0];
    out[2] = rows > 2 ? reduce4(c0, c1, c2, c3) : out[0];
}

CPU_INLINE void micro_any(int32_t rows, const float *x0, const float *x1, const float *x2,
                          const float *w, int64_t ldw, int32_t k8, __m128 out[3]) {
    if (rows >= 3)
        micro(3, x0, x1, x2, w, ldw, k8, out);
    else if (rows == 2)
        micro(2, x0, x1, x0, w, ldw, k8, out);
    else
        micro(1, x0, x0, x0, w, ldw, k8, out);
}

/* All x rows times a decoded tile of n rows. */
static void tile_times_rows(const float *tile, int32_t n, int32_t k8, const float *const *x,
                            int64_t x_at, int32_t m, bool first, float *acc) {
    for (int32_t chunk = 0; chunk < m; chunk += ROW_CHUNK) {
        int32_t end = chunk + ROW_CHUNK < m ? chunk + ROW_CHUNK : m;
        for (int32_t j0 = 0; j0 < n; j0 += 8) /* 16 KB of the tile in L1 */
            for (int32_t r = chunk; r < end; r += 3) {
                int32_t rows = end - r;
                const float *x0 = x[r] + x_at;
                const float *x1 = rows > 1 ? x[r + 1] + x_at : x0;
                const float *x2 = rows > 2 ? x[r + 2] + x_at : x0;
                for (int32_t j = j0; j < n && j < j0 + 8; j += 4) {
                    __m128 sums[3];
                    micro_any(rows, x0, x1, x2, tile + (int64_t)j * TILE_LD, TILE_LD, k8, sums);
                    for (int32_t i = 0; i < rows && i < 3; i++)
                        add_block(acc + (int64_t)(r + i) * CPU_TILE_N + j, sums[i], first);
                }
            }
    }
}

static void product_by_tiles(const di_matrix *w, int64_t n0, int32_t n, const float *const *x,
                             int64_t x_at, int32_t m, float *acc, float *tile) {
    for (int64_t k0 = 0; k0 < w->k; k0 += CPU_TILE_K) {
        int32_t k = w->k - k0 < CPU_TILE_K ? (int32_t)(w->k - k0) : CPU_TILE_K;
        decode_tile(w, n0, n, k0, k, tile);
        tile_times_rows(tile, n, decoded_width(w->dtype, k) / 8, x, x_at + k0, m, k0 == 0, acc);
    }
}

/* Up to how many rows decoding in registers is faster than tiles (measured on Zen 3): the more work
 * decoding is, the sooner it pays to do it once. For short rows tiles have less to set up; long ones
 * come from memory, where fetching ahead counts. */
static int32_t few_rows(di_dtype dtype, int32_t k) {
    switch (dtype) {
    case DI_FP4_PAIR: return k < 256 ? 0 : k > LONG_ROW ? 2 : 1;
    case DI_F8_E4M3: return k < SHORT_ROW ? 5 : CPU_FEW_ROWS;
    case DI_F32: return 6;
    default: return CPU_FEW_ROWS;
    }
}

/* x rows that pass over a tile once do not pay for its way through L2: they take tiles that stay in
 * L1. */
static int32_t tile_height(int32_t k, int32_t n, int32_t m) {
    if (m > ROW_CHUNK) return n;
    int32_t height = L1_TILE / (k < CPU_TILE_K ? k : CPU_TILE_K) / LOW_TILE * LOW_TILE;
    return height < n ? height : n;
}

void cpu_product_avx2(const di_matrix *w, int32_t n0, int32_t n, const float *const *x,
                      int64_t x_at, int32_t m, float *acc, cpu_scratch *scratch) {
    if (m <= few_rows(w->dtype, w->k) &&
        cpu_product_few_rows(w, n0, n, x, x_at, m, acc, scratch->scaled))
        return;
    int32_t height = tile_height(w->k, n, m);
    for (int32_t j = 0; j < n; j += height)
        product_by_tiles(w, n0 + j, n - j < height ? n - j : height, x, x_at, m, acc + j,
                         scratch->tile);
}

void cpu_store_tile_avx2(const float *acc, int32_t m, int32_t n, bool round, float *const *out,
                         int64_t at) {
    for (int32_t r = 0; r < m; r++)
        for (int32_t j = 0; j < n; j += 8)
            store_n(out[r] + at + j, n - j,
                    to_a(_mm256_loadu_ps(acc + (int64_t)r * CPU_TILE_N + j), round));
}

void cpu_dots_avx2(const float *a, int64_t lda, int32_t m, const float *b, int64_t ldb, int32_t n,
                   int32_t k, float *out, int64_t ldo) {
    for (int32_t k0 = 0; k0 < k; k0 += CPU_TILE_K) {
        int32_t block = k - k0 < CPU_TILE_K ? k - k0 : CPU_TILE_K;
        for (int32_t r = 0; r < m; r += 3) {
            const float *x0 = a + r * lda + k0;
            const float *x1 = r + 1 < m ? x0 + lda : x0, *x2 = r + 2 < m ? x1 + lda : x0;
            for (int32_t j = 0; j < n; j += 4) {
                __m128 sums[3];
                micro_any(m - r, x0, x1, x2, b + j * ldb + k0, ldb, block / 8, sums);
                for (int32_t i = 0; i < m - r && i < 3; i++)
                    add_block(out + (r + i) * ldo + j, sums[i], k0 == 0);
            }
        }
    }
}
