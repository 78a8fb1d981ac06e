/* Products with AVX2: a tile of at most 32 weight rows times any number of x rows.
 *
 * Many rows: blocks of 512 K values of the tile are decoded once, then all x rows run over them in
 * register tiles of 3 x rows by 4 weight rows. One row: decoding is fused with the FMA, and the power of
 * two that belongs to a FP8 scale tile goes to x, once for 32 rows. Both form the same products of
 * the same real numbers in the same order (cpu.h), hence the same bits.
 */
#include "kernels/cpu/simd_avx2.h"

enum {
    ROW_CHUNK = 48,        /* x rows that pass over a tile while their block stays in L2 */
    FEW_ROWS = 12,
    TILE_LD = CPU_TILE_LD, /* floats between rows of a decoded tile */
};

/* ---- decoding a tile ---- */

/* Order of bytes that moves bytes 0..7, or 8..15, to the tops of 8 lanes; both halves hold all 16. */
CPU_INLINE __m256i tops(bool upper) {
    return upper ? _mm256_setr_epi32(0x08FFFFFF, 0x09FFFFFF, 0x0AFFFFFF, 0x0BFFFFFF, 0x0CFFFFFF,
                                     0x0DFFFFFF, 0x0EFFFFFF, 0x0FFFFFFF)
                 : _mm256_setr_epi32(0x00FFFFFF, 0x01FFFFFF, 0x02FFFFFF, 0x03FFFFFF, 0x04FFFFFF,
                                     0x05FFFFFF, 0x06FFFFFF, 0x07FFFFFF);
}
CPU_INLINE __m256i both_halves(const uint8_t *at) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)at));
}

/* 8 of 16 E4M3 codes as floats worth code * 2^-120: the fields of E4M3 moved to those of a float,
 * subnormals included. */
CPU_INLINE __m256 e4m3_floats(__m256i codes, bool upper) {
    __m256i top = _mm256_shuffle_epi8(codes, tops(upper));
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_srai_epi32(top, 4), _mm256_set1_epi32((int)0x87F00000u)));
}

/* 32 e2m1 codes as floats worth value * 2^25: doubled values are integers, looked up as bytes and put
 * to the tops of the lanes before conversion. */
CPU_INLINE void e2m1_integers(const uint8_t *pairs, __m256 out[4]) {
    const __m256i table =
        _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12, 0, 1, 2, 3, 4, 6,
                         8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i bytes = both_halves(pairs);
    __m256i even = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, nibble));
    __m256i odd =
        _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble));
    __m256i low = _mm256_unpacklo_epi8(even, odd), high = _mm256_unpackhi_epi8(even, odd);
    out[0] = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(low, tops(false)));
    out[1] = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(low, tops(true)));
    out[2] = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(high, tops(false)));
    out[3] = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(high, tops(true)));
}

/* Scale times 2^up in two factors, so that neither leaves the range of floats. */
typedef struct factors {
    __m256 first, second;
    bool both;
} factors;
CPU_INLINE factors factors_of(uint8_t byte, int up) {
    int whole = byte + up;
    if (whole >= 1 && whole <= 254)
        return (factors){_mm256_set1_ps(scale_e8m0((uint8_t)whole)), _mm256_setzero_ps(), false};
    return (factors){_mm256_set1_ps(scale_e8m0((uint8_t)(127 + up))),
                     _mm256_set1_ps(scale_e8m0(byte)), true};
}
CPU_INLINE __m256 times(__m256 v, factors f) {
    v = _mm256_mul_ps(v, f.first);
    return f.both ? _mm256_mul_ps(v, f.second) : v;
}

CPU_INLINE void decode_fp8_block(const uint8_t *codes, uint8_t scale, __m256 v[4]) {
    factors f = factors_of(scale, 120);
    __m256i a = both_halves(codes), b = both_halves(codes + 16);
    v[0] = times(e4m3_floats(a, false), f);
    v[1] = times(e4m3_floats(a, true), f);
    v[2] = times(e4m3_floats(b, false), f);
    v[3] = times(e4m3_floats(b, true), f);
}

static void decode_fp8(const uint8_t *codes, const uint8_t *scales, int32_t k, float *out) {
    __m256 v[4];
    int32_t i = 0;
    for (; i + 32 <= k; i += 32) {
        decode_fp8_block(codes + i, scales[i / 32], v);
        for (int j = 0; j < 4; j++) _mm256_storeu_ps(out + i + 8 * j, v[j]);
    }
    if (i == k) return;
    uint8_t bytes[32] = {0};
    memcpy(bytes, codes + i, (size_t)(k - i));
    decode_fp8_block(bytes, scales[i / 32], v);
    for (int j = 0; i + 8 * j < k; j++) _mm256_storeu_ps(out + i + 8 * j, v[j]);
}

static void decode_fp4(const uint8_t *pairs, const uint8_t *scales, int32_t k, float *out) {
    for (int32_t i = 0; i < k; i += 32) {
        factors f = factors_of(scales[i / 32], -25);
        __m256 v[4];
        e2m1_integers(pairs + i / 2, v);
        for (int j = 0; j < 4; j++) _mm256_storeu_ps(out + i + j * 8, times(v[j], f));
    }
}

CPU_INLINE __m256 load_bf16(const uint8_t *at) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

CPU_INLINE __m256 load_f32(const uint8_t *at) {
    return _mm256_loadu_ps((const float *)(const void *)at);
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

/* k values of row n from column k0 (a multiple of CPU_TILE_K) */
static void decode_row(const di_matrix *w, int64_t n, int64_t k0, int32_t k, float *out) {
    const uint8_t *data = cpu_at(w->data), *scale = cpu_at(w->scale);
    int64_t scales_a_row = ((int64_t)w->k + 31) / 32;
    switch (w->dtype) {
    case DI_F8_E4M3:
        decode_fp8(data + n * w->k + k0, scale + n / 32 * scales_a_row + k0 / 32, k, out);
        break;
    case DI_FP4_PAIR:
        decode_fp4(data + (n * w->k + k0) / 2, scale + n * scales_a_row + k0 / 32, k, out);
        break;
    case DI_BF16:
        decode_plain(data + (n * w->k + k0) * 2, true, k, out);
        break;
    default:
        decode_plain(data + (n * w->k + k0) * 4, false, k, out);
        break;
    }
}

/* n rows and, up to the next multiple of 4, zeros */
static void decode_tile(const di_matrix *w, int64_t n0, int32_t n, int64_t k0, int32_t k,
                        float *tile) {
    for (int32_t j = 0; j < n; j++) decode_row(w, n0 + j, k0, k, tile + (int64_t)j * TILE_LD);
    for (int32_t j = n; j % 4; j++)
        memset(tile + (int64_t)j * TILE_LD, 0, (size_t)(k + 7) / 8 * 32);
}

/* ---- register tiles ---- */

/* out_r = the sums of x_r with 4 rows of w, over k8 vectors. `rows` is a constant where it is called. */
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

/* The first block of K sets the sum, later ones add to it. */
CPU_INLINE void add_block(float *sum, __m128 block, bool first) {
    _mm_storeu_ps(sum, first ? block : _mm_add_ps(_mm_loadu_ps(sum), block));
}

/* All x rows times a decoded tile of n rows. */
static void tile_times_rows(const float *tile, int32_t n, int32_t k, const float *const *x,
                            int64_t x_at, int32_t m, bool first, float *acc) {
    int32_t k8 = (k + 7) / 8;
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
                    micro_any(rows, x0, x1, x2, tile + (int64_t)j * TILE_LD, TILE_LD, k8,
                              sums);
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
        tile_times_rows(tile, n, k, x, x_at + k0, m, k0 == 0, acc);
    }
}

/* ---- one row ---- */

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

/* Scales of one FP4 row times 2^-25 (see e2m1_integers). */
static void scale_floats(const uint8_t *scales, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i += 8) {
        uint8_t bytes[8] = {0};
        memcpy(bytes, scales + i, n - i < 8 ? (size_t)(n - i) : 8);
        __m256i bits = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes));
        bits = _mm256_max_epi32(_mm256_slli_epi32(bits, 23), _mm256_set1_epi32(0x00400000));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_castsi256_ps(bits),
                                                _mm256_set1_ps(0x1p-25f)));
    }
}

/* 32 values of one row of each format, against x. */
CPU_INLINE __m256 fma_fp8(const uint8_t *codes, const float *x, __m256 acc) {
    __m256i a = both_halves(codes), b = both_halves(codes + 16);
    acc = _mm256_fmadd_ps(_mm256_loadu_ps(x), e4m3_floats(a, false), acc);
    acc = _mm256_fmadd_ps(_mm256_loadu_ps(x + 8), e4m3_floats(a, true), acc);
    acc = _mm256_fmadd_ps(_mm256_loadu_ps(x + 16), e4m3_floats(b, false), acc);
    return _mm256_fmadd_ps(_mm256_loadu_ps(x + 24), e4m3_floats(b, true), acc);
}
CPU_INLINE __m256 fma_fp4(const uint8_t *pairs, float scale, const float *x, __m256 acc) {
    __m256 v[4], s = _mm256_set1_ps(scale);
    e2m1_integers(pairs, v);
    acc = _mm256_fmadd_ps(_mm256_loadu_ps(x), _mm256_mul_ps(v[0], s), acc);
    acc = _mm256_fmadd_ps(_mm256_loadu_ps(x + 8), _mm256_mul_ps(v[1], s), acc);
    acc = _mm256_fmadd_ps(_mm256_loadu_ps(x + 16), _mm256_mul_ps(v[2], s), acc);
    return _mm256_fmadd_ps(_mm256_loadu_ps(x + 24), _mm256_mul_ps(v[3], s), acc);
}
CPU_INLINE __m256 fma_bf16(const uint8_t *words, const float *x, __m256 acc) {
    return _mm256_fmadd_ps(_mm256_loadu_ps(x), load_bf16(words), acc);
}
CPU_INLINE __m256 fma_f32(const uint8_t *words, const float *x, __m256 acc) {
    return _mm256_fmadd_ps(_mm256_loadu_ps(x), load_f32(words), acc);
}

/* Four weight rows against one x, K by blocks. Rows are consecutive; those past `last` repeat it. */
CPU_INLINE void four_rows(di_dtype dtype, const di_matrix *w, int64_t n0, int64_t last,
                          const float *x, float *acc, float *scales) {
    const int64_t k = w->k, s = (k + 31) / 32;
    const int64_t row_bytes = dtype == DI_F8_E4M3 ? k : dtype == DI_FP4_PAIR ? k / 2
                              : dtype == DI_BF16  ? 2 * k
                                                  : 4 * k;
    const uint8_t *data = cpu_at(w->data), *scale = cpu_at(w->scale);
    const uint8_t *d[4];
    const float *e[4] = {0};
    for (int j = 0; j < 4; j++) {
        int64_t row = n0 + j < last ? n0 + j : last;
        d[j] = data + row * row_bytes;
        if (dtype != DI_FP4_PAIR) continue;
        e[j] = scales + j * (s + 7);
        scale_floats(scale + row * s, s, scales + j * (s + 7));
    }
    for (int64_t k0 = 0; k0 < k; k0 += CPU_TILE_K) {
        int64_t end = k0 + CPU_TILE_K < k ? k0 + CPU_TILE_K : k;
        __m256 a0 = _mm256_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
        if (dtype == DI_F8_E4M3) {
            for (int64_t i = k0; i < end; i += 32) {
                a0 = fma_fp8(d[0] + i, x + i, a0);
                a1 = fma_fp8(d[1] + i, x + i, a1);
                a2 = fma_fp8(d[2] + i, x + i, a2);
                a3 = fma_fp8(d[3] + i, x + i, a3);
            }
        } else if (dtype == DI_FP4_PAIR) {
            for (int64_t i = k0; i < end; i += 32) {
                a0 = fma_fp4(d[0] + i / 2, e[0][i / 32], x + i, a0);
                a1 = fma_fp4(d[1] + i / 2, e[1][i / 32], x + i, a1);
                a2 = fma_fp4(d[2] + i / 2, e[2][i / 32], x + i, a2);
                a3 = fma_fp4(d[3] + i / 2, e[3][i / 32], x + i, a3);
            }
        } else {
            const bool bf16 = dtype == DI_BF16;
            const int64_t size = bf16 ? 2 : 4;
            for (int64_t i = k0; i < end; i += 8) {
                const int64_t at = i * size;
                a0 = bf16 ? fma_bf16(d[0] + at, x + i, a0) : fma_f32(d[0] + at, x + i, a0);
                a1 = bf16 ? fma_bf16(d[1] + at, x + i, a1) : fma_f32(d[1] + at, x + i, a1);
                a2 = bf16 ? fma_bf16(d[2] + at, x + i, a2) : fma_f32(d[2] + at, x + i, a2);
                a3 = bf16 ? fma_bf16(d[3] + at, x + i, a3) : fma_f32(d[3] + at, x + i, a3);
            }
        }
        add_block(acc, reduce4(a0, a1, a2, a3), k0 == 0);
    }
}

static void four_rows_fp8(const di_matrix *w, int64_t n0, int64_t last, const float *x, float *acc,
                          float *scratch) {
    four_rows(DI_F8_E4M3, w, n0, last, x, acc, scratch);
}
static void four_rows_fp4(const di_matrix *w, int64_t n0, int64_t last, const float *x, float *acc,
                          float *scratch) {
    four_rows(DI_FP4_PAIR, w, n0, last, x, acc, scratch);
}
static void four_rows_bf16(const di_matrix *w, int64_t n0, int64_t last, const float *x, float *acc,
                          float *scratch) {
    four_rows(DI_BF16, w, n0, last, x, acc, scratch);
}
static void four_rows_f32(const di_matrix *w, int64_t n0, int64_t last, const float *x, float *acc,
                          float *scratch) {
    four_rows(DI_F32, w, n0, last, x, acc, scratch);
}

/* False when this tile cannot be done the fused way. */
static bool product_one_row(const di_matrix *w, int64_t n0, int32_t n, const float *x, float *acc,
                            float *scaled) {
    void (*rows)(const di_matrix *, int64_t, int64_t, const float *, float *, float *);
    switch (w->dtype) {
    case DI_F8_E4M3: {
        if (w->k % 32) return false;
        const uint8_t *scale = cpu_at(w->scale);
        if (!scale_x(x, scale + n0 / 32 * (w->k / 32), w->k, scaled)) return false;
        x = scaled;
        rows = four_rows_fp8;
        break;
    }
    case DI_FP4_PAIR:
        rows = four_rows_fp4;
        break;
    case DI_BF16:
        rows = four_rows_bf16;
        break;
    default:
        rows = four_rows_f32;
        break;
    }
    if (w->k % 8) return false;
    for (int32_t j = 0; j < n; j += 4) rows(w, n0 + j, n0 + n - 1, x, acc + j, scaled);
    return true;
}

void cpu_product_avx2(const di_matrix *w, int32_t n0, int32_t n, const float *const *x, int64_t x_at,
                      int32_t m, float *acc, cpu_scratch *scratch) {
    if (m == 1 && product_one_row(w, n0, n, x[0] + x_at, acc, scratch->scaled)) return;
    /* Few rows do not pay for a tile's way through L2: take parts of it that stay in L1. */
    int32_t height = m <= FEW_ROWS ? 8 : n;
    for (int32_t j = 0; j < n; j += height)
        product_by_tiles(w, n0 + j, n - j < height ? n - j : height, x, x_at, m, acc + j,
                         scratch->tile);
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
