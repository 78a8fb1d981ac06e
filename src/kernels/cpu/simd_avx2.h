/* AVX2 pieces shared by the *_avx2.c files: reductions, rounding, exp, decoding of codes.
 *
 * FMA appears only where it is written. Whatever a lane computes depends on its own value alone, so
 * a value's place in a vector never shows in its bits.
 */
#ifndef DI_KERNELS_CPU_SIMD_AVX2_H
#define DI_KERNELS_CPU_SIMD_AVX2_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

#define CPU_INLINE static inline __attribute__((always_inline))

/* Sums of neighbours, in each half those of a, then those of b: haddps, which takes AMD's CPUs twice
 * as long as its parts (measured). */
CPU_INLINE __m256 add_pairs(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xDD));
}

/* The one reduction of eight lanes: ((0+1)+(2+3)) + ((4+5)+(6+7)), for four vectors at once. */
CPU_INLINE __m128 reduce4(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 t = add_pairs(add_pairs(a, b), add_pairs(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
}

CPU_INLINE float reduce1(__m256 a) { return _mm_cvtss_f32(reduce4(a, a, a, a)); }

CPU_INLINE float reduce_max(__m256 a) {
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}

/* Nearest bf16, ties to even, as a float. Not for NaNs whose payload is all ones. */
CPU_INLINE __m256 to_bf16(__m256 x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32((int)0xFFFF0000u)));
}

CPU_INLINE __m256 to_a(__m256 x, bool round) { return round ? to_bf16(x) : x; }

/* First n < 8 values, zeros behind; and the store of n values. */
CPU_INLINE __m256i tail_mask(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
CPU_INLINE __m256 load_n(const float *x, int64_t n) {
    return n >= 8 ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, tail_mask(n));
}
CPU_INLINE void store_n(float *x, int64_t n, __m256 v) {
    if (n >= 8)
        _mm256_storeu_ps(x, v);
    else
        _mm256_maskstore_ps(x, tail_mask(n), v);
}

/* exp within 1 ulp: 2^n times the Taylor sum of degree 7 on |r| <= ln 2 / 2 (its error is 2^-27.5).
 * Below -87.33, where results would be subnormal, 0; above 88.72 infinity. */
CPU_INLINE __m256 exp8(__m256 x) {
    const __m256 low = _mm256_set1_ps(-87.33654f), high = _mm256_set1_ps(88.722839f);
    __m256 in = _mm256_min_ps(_mm256_max_ps(x, low), high);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(in, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e4p-1f), in);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.7f7d1cp-20f), r);
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(_mm256_mul_ps(p, r), r, r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
    /* 2^n in two factors: n = 128 has no float of its own */
    __m256i whole = _mm256_cvtps_epi32(n);
    __m256i half = _mm256_srai_epi32(whole, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256i f1 = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i f2 = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
    p = _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(f1)), _mm256_castsi256_ps(f2));
    p = _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), p);
    p = _mm256_blendv_ps(p, _mm256_set1_ps(INFINITY), _mm256_cmp_ps(x, high, _CMP_GT_OQ));
    return _mm256_blendv_ps(p, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* 2^(byte - 127), also for byte 0, whose value is subnormal. */
CPU_INLINE float scale_e8m0(uint8_t byte) {
    uint32_t bits = byte ? (uint32_t)byte << 23 : 0x00400000u;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* 32 e2m1 codes (16 bytes) -> four vectors of 8 values, in order. The upper byte of a half decides.
 */
CPU_INLINE void e2m1_values(const uint8_t *pairs, __m256 out[4]) {
    const __m128i table =
        _mm_setr_epi8(0x00, 0x38, 0x3C, 0x3E, 0x40, 0x42, 0x44, 0x46, (char)0x80, (char)0xB8,
                      (char)0xBC, (char)0xBE, (char)0xC0, (char)0xC2, (char)0xC4, (char)0xC6);
    const __m128i nibble = _mm_set1_epi8(15), zero = _mm_setzero_si128();
    __m128i bytes = _mm_loadu_si128((const __m128i *)pairs);
    __m128i even = _mm_shuffle_epi8(table, _mm_and_si128(bytes, nibble));
    __m128i odd = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble));
    __m128i first = _mm_unpacklo_epi8(even, odd), second = _mm_unpackhi_epi8(even, odd);
    out[0] = _mm256_cvtph_ps(_mm_unpacklo_epi8(zero, first));
    out[1] = _mm256_cvtph_ps(_mm_unpackhi_epi8(zero, first));
    out[2] = _mm256_cvtph_ps(_mm_unpacklo_epi8(zero, second));
    out[3] = _mm256_cvtph_ps(_mm_unpackhi_epi8(zero, second));
}

/* ---- weights of products ---- */

/* Order of bytes that moves bytes 0..7, or 8..15, to the tops of 8 lanes; both halves hold all 16.
 */
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
 * subnormals included. The NaN codes 0x7F and 0xFF come out as +-480: looking for them costs a
 * product of one row a sixth of its speed (measured), and ops.h leaves them open. */
CPU_INLINE __m256 e4m3_floats(__m256i codes, bool upper) {
    __m256i top = _mm256_shuffle_epi8(codes, tops(upper));
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_srai_epi32(top, 4), _mm256_set1_epi32((int)0x87F00000u)));
}

/* n <= 4 vectors of 8 values of one scale: codes come out as code * 2^-120, and times 2^120 * scale they are right.
 * Where that factor leaves the range of floats it is two. */
CPU_INLINE void decode_e4m3_block(const uint8_t *codes, uint8_t scale, int n, float *out) {
    __m256i a = both_halves(codes), b = both_halves(codes + 16);
    __m256 v[4] = {e4m3_floats(a, false), e4m3_floats(a, true), e4m3_floats(b, false),
                   e4m3_floats(b, true)};
    bool one = scale <= 254 - 120;
    __m256 f = _mm256_set1_ps(scale_e8m0(one ? (uint8_t)(scale + 120) : 127 + 120));
    for (int j = 0; j < n; j++) v[j] = _mm256_mul_ps(v[j], f);
    for (int j = 0; j < n && !one; j++)
        v[j] = _mm256_mul_ps(v[j], _mm256_set1_ps(scale_e8m0(scale)));
    for (int j = 0; j < n; j++) _mm256_storeu_ps(out + 8 * j, v[j]);
}

/* For every E8M0 byte the 16 e2m1 values times that scale, as bf16 (exact): upper and lower bytes.
 */
typedef struct fp4_table {
    uint8_t high[16], low[16];
} fp4_table;
extern fp4_table cpu_fp4_tables[256]; /* filled by cpu_fp4_init_avx2 */
void cpu_fp4_init_avx2(void);

/* 64 FP4 weights of one row, two scales: the tables of both, one in each half. */
typedef struct fp4_block {
    __m256i bytes, high, low;
} fp4_block;
CPU_INLINE fp4_block load_fp4(const uint8_t *pairs, const uint8_t *scales) {
    const fp4_table *a = &cpu_fp4_tables[scales[0]], *b = &cpu_fp4_tables[scales[1]];
    const __m128i *ah = (const __m128i *)a->high, *al = (const __m128i *)a->low;
    const __m128i *bh = (const __m128i *)b->high, *bl = (const __m128i *)b->low;
    return (fp4_block){
        _mm256_loadu_si256((const __m256i *)pairs),
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(ah)), _mm_loadu_si128(bh),
                                1),
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(al)), _mm_loadu_si128(bl),
                                1),
    };
}
/* The last 32 of a row where k % 64 is 32; the other half is 0. */
CPU_INLINE fp4_block load_fp4_half(const uint8_t *pairs, const uint8_t *scales) {
    const fp4_table *a = &cpu_fp4_tables[scales[0]];
    return (fp4_block){
        _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)pairs)),
        _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)a->high)),
        _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)a->low)),
    };
}

/* The values, in FP4 order: a 32-bit lane holds two bf16, each of which is a float when it stands
 * above zeros. So vector p of half h (0..3, 0..1) has values 16 h + 4 lane + p of the first 32 in
 * its lower lanes, those of the second 32 above. x is brought into the same order (fp4_order). */
CPU_INLINE void fp4_values(fp4_block b, __m256 out[8]) {
    const __m256i nibble = _mm256_set1_epi8(15), upper = _mm256_set1_epi32((int)0xFFFF0000u);
    __m256i even = _mm256_and_si256(b.bytes, nibble);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi16(b.bytes, 4), nibble);
    __m256i eh = _mm256_shuffle_epi8(b.high, even), el = _mm256_shuffle_epi8(b.low, even);
    __m256i oh = _mm256_shuffle_epi8(b.high, odd), ol = _mm256_shuffle_epi8(b.low, odd);
    __m256i e[2] = {_mm256_unpacklo_epi8(el, eh), _mm256_unpackhi_epi8(el, eh)};
    __m256i o[2] = {_mm256_unpacklo_epi8(ol, oh), _mm256_unpackhi_epi8(ol, oh)};
    for (int h = 0; h < 2; h++) {
        out[4 * h] = _mm256_castsi256_ps(_mm256_slli_epi32(e[h], 16));
        out[4 * h + 1] = _mm256_castsi256_ps(_mm256_slli_epi32(o[h], 16));
        out[4 * h + 2] = _mm256_castsi256_ps(_mm256_and_si256(e[h], upper));
        out[4 * h + 3] = _mm256_castsi256_ps(_mm256_and_si256(o[h], upper));
    }
}

CPU_INLINE __m256 load_bf16(const uint8_t *at) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

CPU_INLINE __m256 load_f32(const uint8_t *at) {
    return _mm256_loadu_ps((const float *)(const void *)at);
}

/* The first block of K sets the sum, later ones add to it. */
CPU_INLINE void add_block(float *sum, __m128 block, bool first) {
    _mm_storeu_ps(sum, first ? block : _mm_add_ps(_mm_loadu_ps(sum), block));
}

/* Bytes of k stored values; k even for FP4. */
static inline int64_t cpu_stored_bytes(di_dtype dtype, int64_t k) {
    switch (dtype) {
    case DI_F8_E4M3: return k;
    case DI_FP4_PAIR: return k / 2;
    case DI_BF16: return 2 * k;
    default: return 4 * k;
    }
}

/* At most CPU_FEW_ROWS x rows times weight rows n0 .. n0 + n - 1, decoding fused with FMA. False
 * when that is not exact for this tile; nothing is done then. scaled: [m][k + 16] scratch. */
bool cpu_product_few_rows(const di_matrix *w, int64_t n0, int32_t n, const float *const *x,
                          int64_t x_at, int32_t m, float *acc, float *scaled);

/* The functions of cpu_kernels that live in other *_avx2.c files. */
void cpu_product_avx2(const di_matrix *w, int32_t n0, int32_t n, const float *const *x,
                      int64_t x_at, int32_t m, float *acc, cpu_scratch *scratch);
void cpu_store_tile_avx2(const float *acc, int32_t m, int32_t n, bool round, float *const *out,
                         int64_t at);
void cpu_dots_avx2(const float *a, int64_t lda, int32_t m, const float *b, int64_t ldb, int32_t n,
                   int32_t k, float *out, int64_t ldo);
void cpu_fp4_order_avx2(const float *x, int64_t k, float *out);
void cpu_quant_init_avx2(cpu_kernels *kernels);
void cpu_rows_init_avx2(cpu_kernels *kernels);
void cpu_attend_init_avx2(cpu_kernels *kernels);
void cpu_peak_init_avx2(cpu_kernels *kernels);

#endif
