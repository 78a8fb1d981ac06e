/* The quantisers of model.md 3.1 and the decoding of what they stored, with AVX2. */
#include "kernels/cpu/simd_avx2.h"

static const float e2m1_table[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

CPU_INLINE __m256 magnitude(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
CPU_INLINE __m256 sign_of(__m256 x) { return _mm256_and_ps(_mm256_set1_ps(-0.0f), x); }

/* E8M0 byte of P2: the smallest power of two that is not below the product. */
static uint8_t power_byte(float product) {
    uint32_t bits = bits_of(product);
    return (uint8_t)((bits >> 23) + ((bits & 0x7FFFFF) != 0));
}

/* 1 / 2^(byte - 127), exact for every byte that power_byte gives */
static float inverse_power(uint8_t byte) {
    return byte < 254 ? float_of((uint32_t)(254 - byte) << 23) : float_of(0x00400000u);
}

/* |v| <= 448 -> its neighbour on the E4M3 grid, ties to even. Adding 2^20 times the value's power
 * of two (at least 2^-6) leaves three mantissa bits. */
CPU_INLINE __m256 round_e4m3(__m256 v) {
    const __m256i exponent = _mm256_set1_epi32(0x7F800000);
    __m256 power = _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(v), exponent));
    power = _mm256_max_ps(power, _mm256_set1_ps(0x1p-6f));
    __m256 magic = _mm256_mul_ps(power, _mm256_set1_ps(0x1p20f));
    return _mm256_sub_ps(_mm256_add_ps(v, magic), magic);
}

/* E4M3 codes, without sign, of values >= 0 on the grid; one per 32-bit lane */
CPU_INLINE __m256i code_e4m3(__m256 q) {
    __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(q), 20),
                                      _mm256_set1_epi32((127 - 7) << 3));
    __m256i small = _mm256_cvtps_epi32(_mm256_mul_ps(q, _mm256_set1_ps(512.0f)));
    __m256 is_small = _mm256_cmp_ps(q, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ);
    return _mm256_blendv_epi8(normal, small, _mm256_castps_si256(is_small));
}

/* e2m1 codes, without sign, of 0 <= v <= 6: how many middles lie below, a tie going to the even
 * code */
CPU_INLINE __m256i code_e2m1(__m256 v) {
    __m256i code = _mm256_setzero_si256();
#define STEP(middle, compare)                                                                      \
    code =                                                                                         \
        _mm256_sub_epi32(code,                                                                     \
                         _mm256_castps_si256(_mm256_cmp_ps(v, _mm256_set1_ps(middle), compare)))
    STEP(0.25f, _CMP_GT_OQ);
    STEP(0.75f, _CMP_GE_OQ);
    STEP(1.25f, _CMP_GT_OQ);
    STEP(1.75f, _CMP_GE_OQ);
    STEP(2.5f, _CMP_GT_OQ);
    STEP(3.5f, _CMP_GE_OQ);
    STEP(5.0f, _CMP_GT_OQ);
#undef STEP
    return code;
}

/* The low bytes of four vectors of 32-bit lanes, in order. */
CPU_INLINE __m256i pack_bytes(const __m256i v[4]) {
    __m256i a = _mm256_packs_epi32(v[0], v[1]), b = _mm256_packs_epi32(v[2], v[3]);
    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* 32 codes of 4 bits, one a byte -> 16 bytes, the even value in the low nibble */
CPU_INLINE void store_pairs(uint8_t *out, __m256i codes) {
    __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001)); /* even + 16 odd */
    __m256i bytes = _mm256_packus_epi16(pairs, pairs);
    bytes = _mm256_permute4x64_epi64(bytes, 0x08);
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(bytes));
}

static void quantize_q8(const float *x, int64_t n, uint8_t *codes, uint8_t *scales, float *values) {
    for (int64_t i = 0; i < n; i += 32) {
        __m256 v[4], top = _mm256_setzero_ps();
        for (int j = 0; j < 4; j++) {
            v[j] = _mm256_loadu_ps(x + i + 8 * j);
            top = _mm256_max_ps(top, magnitude(v[j]));
        }
        float amax = reduce_max(top);
        uint8_t byte = power_byte((amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f));
        if (scales) scales[i / 32] = byte;
        __m256 inverse = _mm256_set1_ps(inverse_power(byte)), s = _mm256_set1_ps(scale_e8m0(byte));
        __m256i code[4];
        for (int j = 0; j < 4; j++) {
            __m256 ratio =
                _mm256_min_ps(magnitude(_mm256_mul_ps(v[j], inverse)), _mm256_set1_ps(448.0f));
            __m256 q = round_e4m3(ratio), sign = sign_of(v[j]);
            if (values)
                _mm256_storeu_ps(values + i + 8 * j, _mm256_or_ps(_mm256_mul_ps(q, s), sign));
            code[j] =
                _mm256_or_si256(code_e4m3(q), _mm256_srli_epi32(_mm256_castps_si256(sign), 24));
        }
        if (codes) _mm256_storeu_si256((__m256i *)(codes + i), pack_bytes(code));
    }
}

/* 32 values over their scale -> e2m1 codes with sign, one a 32-bit lane, and values times scale */
CPU_INLINE __m256i quantize8_e2m1(__m256 x, __m256 ratio, __m256 scale, float *values) {
    ratio = _mm256_min_ps(magnitude(ratio), _mm256_set1_ps(6.0f));
    __m256i code = code_e2m1(ratio);
    __m256 sign = sign_of(x);
    if (values) {
        __m256 q = _mm256_permutevar8x32_ps(_mm256_loadu_ps(e2m1_table), code);
        _mm256_storeu_ps(values, _mm256_or_ps(_mm256_mul_ps(q, scale), sign));
    }
    return _mm256_or_si256(code, _mm256_srli_epi32(_mm256_castps_si256(sign), 28));
}

static void quantize_q4i(const float *x, int64_t n, uint8_t *codes, uint8_t *scales,
                         float *values) {
    for (int64_t i = 0; i < n; i += 32) {
        __m256 v[4], top = _mm256_set1_ps(6 * 0x1p-126f);
        for (int j = 0; j < 4; j++) {
            v[j] = _mm256_loadu_ps(x + i + 8 * j);
            top = _mm256_max_ps(top, magnitude(v[j]));
        }
        uint8_t byte = power_byte(reduce_max(top) * (1.0f / 6.0f));
        if (scales) scales[i / 32] = byte;
        __m256 inverse = _mm256_set1_ps(inverse_power(byte)), s = _mm256_set1_ps(scale_e8m0(byte));
        __m256i code[4];
        for (int j = 0; j < 4; j++)
            code[j] = quantize8_e2m1(v[j], _mm256_mul_ps(v[j], inverse), s,
                                     values ? values + i + 8 * j : NULL);
        if (codes) store_pairs(codes + i / 2, pack_bytes(code));
    }
}

static void quantize_q4c(const float *x, int64_t n, uint8_t *codes, uint8_t *scales,
                         float *values) {
    for (int64_t i = 0; i < n; i += 32) {
        __m256i code[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                           _mm256_setzero_si256()};
        for (int g = 0; g < 2 && i + 16 * g < n; g++) {
            __m256 a = _mm256_loadu_ps(x + i + 16 * g), b = _mm256_loadu_ps(x + i + 16 * g + 8);
            __m256 top = _mm256_max_ps(magnitude(a), magnitude(b));
            float amax = reduce_max(_mm256_max_ps(top, _mm256_set1_ps(6 * 0x1p-9f)));
            float raw = amax / 6.0f;
            __m256 s = round_e4m3(_mm256_set1_ps(raw < 448.0f ? raw : 448.0f));
            if (scales)
                scales[i / 16 + g] =
                    (uint8_t)_mm_cvtsi128_si32(_mm256_castsi256_si128(code_e4m3(s)));
            float *at = values ? values + i + 16 * g : NULL;
            code[2 * g] = quantize8_e2m1(a, _mm256_div_ps(a, s), s, at);
            code[2 * g + 1] = quantize8_e2m1(b, _mm256_div_ps(b, s), s, at ? at + 8 : NULL);
        }
        bool whole = i + 32 <= n;
        if (!codes) continue;
        uint8_t pairs[16];
        store_pairs(pairs, pack_bytes(code));
        memcpy(codes + i / 2, pairs, whole ? 16 : 8);
    }
}

static void decode_q8(const uint8_t *codes, const uint8_t *scales, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i += 32) decode_e4m3_block(codes + i, scales[i / 32], 4, out + i);
}

static void decode_rows_q8(const cpu_coded *rows, int32_t m, int64_t n, float *out, int64_t ld) {
    for (int32_t r = 0; r < m; r++, out += ld) decode_q8(rows[r].codes, rows[r].scales, n, out);
}

static void decode_rows_q4i(const cpu_coded *rows, int32_t m, int64_t n, float *out, int64_t ld) {
    for (int32_t r = 0; r < m; r++, out += ld)
        for (int64_t i = 0; i < n; i += 32) {
            __m256 v[4], s = _mm256_set1_ps(scale_e8m0(rows[r].scales[i / 32]));
            e2m1_values(rows[r].codes + i / 2, v);
            for (int j = 0; j < 4; j++) _mm256_storeu_ps(out + i + 8 * j, _mm256_mul_ps(v[j], s));
        }
}

static float e4m3_value(uint8_t code) {
    uint16_t half = (uint16_t)((code & 0x80) << 8 | (code & 0x7F) << 7);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half))) * 256.0f;
}

/* 32 values of a row, or its last 16. */
CPU_INLINE void decode_q4c_block(cpu_coded row, int64_t i, bool whole, float *out) {
    uint8_t half[16] = {0};
    if (!whole) memcpy(half, row.codes + i / 2, 8);
    __m256 v[4], s0 = _mm256_set1_ps(e4m3_value(row.scales[i / 16]));
    e2m1_values(whole ? row.codes + i / 2 : half, v);
    _mm256_storeu_ps(out + i, _mm256_mul_ps(v[0], s0));
    _mm256_storeu_ps(out + i + 8, _mm256_mul_ps(v[1], s0));
    if (!whole) return;
    __m256 s1 = _mm256_set1_ps(e4m3_value(row.scales[i / 16 + 1]));
    _mm256_storeu_ps(out + i + 16, _mm256_mul_ps(v[2], s1));
    _mm256_storeu_ps(out + i + 24, _mm256_mul_ps(v[3], s1));
}

static void decode_rows_q4c(const cpu_coded *rows, int32_t m, int64_t n, float *out, int64_t ld) {
    for (int32_t r = 0; r < m; r++, out += ld) {
        for (int64_t i = 0; i + 32 <= n; i += 32) decode_q4c_block(rows[r], i, true, out);
        if (n % 32) decode_q4c_block(rows[r], n / 32 * 32, false, out);
    }
}

void cpu_quant_init_avx2(cpu_kernels *kernels) {
    kernels->decode_q8 = decode_q8;
    kernels->decode_rows_q8 = decode_rows_q8;
    kernels->decode_rows_q4i = decode_rows_q4i;
    kernels->decode_rows_q4c = decode_rows_q4c;
    kernels->quantize_q8 = quantize_q8;
    kernels->quantize_q4i = quantize_q4i;
    kernels->quantize_q4c = quantize_q4c;
}
