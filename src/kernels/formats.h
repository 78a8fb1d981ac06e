/* The small number formats of the release, one value at a time: BF16, E4M3, E8M0, E2M1.
 *
 * Exact and branch-light; computed, no tables that could be wrong. Encoders round to nearest with
 * ties to even and saturate. The formats are those of the OCP 8-bit and microscaling
 * specifications; the quantisers built on them are in quantize.h. Shared by the twins, the CPU
 * kernels and tests.
 */
#ifndef DI_KERNELS_FORMATS_H
#define DI_KERNELS_FORMATS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/inline.h"

DI_INLINE uint32_t di_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

DI_INLINE float di_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- BF16: the upper half of a float32 ---- */

DI_INLINE float di_bf16_decode(uint16_t word) { return di_f32_from_bits((uint32_t)word << 16); }

/* Values beyond the largest BF16 become infinite, as in hardware; a NaN stays a (quiet) NaN. */
DI_INLINE uint16_t di_bf16_encode(float value) {
    uint32_t bits = di_f32_bits(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

DI_INLINE float di_bf16_round(float value) { return di_bf16_decode(di_bf16_encode(value)); }

/* ---- E4M3 ("fn"): 4 exponent bits of bias 7, largest 448, no infinities, 0x7F and 0xFF NaN ----
 */

#define DI_E4M3_MAX 448.0f

DI_INLINE float di_e4m3_decode(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, magnitude = code & 0x7Fu;
    if (magnitude == 0x7Fu) return di_f32_from_bits(sign | 0x7FC00000u);
    if (magnitude < 8u) { /* subnormal: steps of 2^-9 */
        float value = (float)magnitude * 0x1p-9f;
        return sign ? -value : value;
    }
    return di_f32_from_bits(sign | ((magnitude << 20) + (120u << 23))); /* bias 7 to 127 */
}

/* Saturates at +-448. A NaN gives a NaN code. */
DI_INLINE uint8_t di_e4m3_encode(float value) {
    uint32_t bits = di_f32_bits(value), magnitude = bits & 0x7FFFFFFFu;
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80u);
    if (magnitude > 0x7F800000u) return (uint8_t)(sign | 0x7Fu);
    if (magnitude >= 0x43E00000u) return (uint8_t)(sign | 0x7Eu); /* 448 and above */
    if (magnitude < 0x3C800000u) {                                /* below 2^-6: subnormal */
        return (uint8_t)(sign | (uint8_t)lrintf(di_f32_from_bits(magnitude) * 512.0f));
    }
    uint32_t rounded = (magnitude + 0x7FFFFu + (magnitude >> 20 & 1u)) >> 20;
    return (uint8_t)(sign | (rounded - (120u << 3))); /* below 448: never past 0x7E */
}

/* ---- E8M0: a scale 2^(code - 127); 255 is NaN ---- */

DI_INLINE float di_e8m0_decode(uint8_t code) {
    if (code == 0) return 0x1p-127f;
    if (code == 255) return di_f32_from_bits(0x7FC00000u);
    return di_f32_from_bits((uint32_t)code << 23);
}

/* The code of 2^ceil(log2(value)) by the exponent bits; value > 0, finite and normal, or subnormal
 * (which counts as 2^-126). */
DI_INLINE uint8_t di_e8m0_ceil(float value) {
    uint32_t bits = di_f32_bits(value), up = (bits & 0x7FFFFFu) != 0;
    uint32_t code = (bits >> 23 & 0xFFu) + up;
    return (uint8_t)(code > 255u ? 255u : code);
}

/* ---- E2M1: bit 3 the sign, 0 .5 1 1.5 2 3 4 6; two a byte, the low nibble first ---- */

#define DI_E2M1_MAX 6.0f

DI_INLINE float di_e2m1_decode(uint8_t code) {
    static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return values[code & 15u];
}

/* Saturates at +-6; ties to the even code. The sign of zero is kept; a NaN gives code 0 or 8. */
DI_INLINE uint8_t di_e2m1_encode(float value) {
    float m = fabsf(value);
    unsigned code = (unsigned)(m > 0.25f) + (unsigned)(m >= 0.75f) + (unsigned)(m > 1.25f) +
                    (unsigned)(m >= 1.75f) + (unsigned)(m > 2.5f) + (unsigned)(m >= 3.5f) +
                    (unsigned)(m > 5.0f);
    return (uint8_t)(code | (di_f32_bits(value) >> 28 & 8u));
}

#endif
