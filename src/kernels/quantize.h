/* The three quantisers of the release (model.md 3.1), one block at a time, from float32 values.
 *
 * A block has one scale. Scales and codes are defined by float32 arithmetic step by step, so every
 * backend gets the same bytes. Inputs must be finite; others give unspecified codes.
 */
#ifndef DI_KERNELS_QUANTIZE_H
#define DI_KERNELS_QUANTIZE_H

#include "kernels/formats.h"

enum { DI_Q8_BLOCK = 32, DI_Q4I_BLOCK = 32, DI_Q4C_BLOCK = 16 };

DI_INLINE float di_block_largest(const float *x, int n) {
    float largest = 0.0f;
    for (int i = 0; i < n; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    return largest;
}

/* Q8: 32 values -> 32 E4M3 codes; returns the E8M0 scale. */
DI_INLINE uint8_t di_quantize_q8(const float *x, uint8_t *codes) {
    float largest = di_block_largest(x, DI_Q8_BLOCK);
    if (largest < 1e-4f) largest = 1e-4f;
    uint8_t scale = di_e8m0_ceil(largest * (1.0f / 448.0f));
    float value = di_e8m0_decode(scale);
    for (int i = 0; i < DI_Q8_BLOCK; i++) codes[i] = di_e4m3_encode(x[i] / value);
    return scale;
}

DI_INLINE void di_pack_e2m1(const float *x, int n, float scale, uint8_t *pairs) {
    for (int i = 0; i < n; i += 2) {
        pairs[i / 2] =
            (uint8_t)(di_e2m1_encode(x[i] / scale) | di_e2m1_encode(x[i + 1] / scale) << 4);
    }
}

/* Q4i: 32 values -> 16 bytes of E2M1 pairs; returns the E8M0 scale. */
DI_INLINE uint8_t di_quantize_q4i(const float *x, uint8_t *pairs) {
    float largest = di_block_largest(x, DI_Q4I_BLOCK);
    if (largest < 6.0f * 0x1p-126f) largest = 6.0f * 0x1p-126f;
    uint8_t scale = di_e8m0_ceil(largest * (1.0f / 6.0f));
    di_pack_e2m1(x, DI_Q4I_BLOCK, di_e8m0_decode(scale), pairs);
    return scale;
}

/* Q4c: 16 values -> 8 bytes of E2M1 pairs; returns the E4M3 scale. */
DI_INLINE uint8_t di_quantize_q4c(const float *x, uint8_t *pairs) {
    float largest = di_block_largest(x, DI_Q4C_BLOCK);
    if (largest < 6.0f * 0x1p-9f) largest = 6.0f * 0x1p-9f;
    uint8_t scale = di_e4m3_encode(largest / 6.0f);
    di_pack_e2m1(x, DI_Q4C_BLOCK, di_e4m3_decode(scale), pairs);
    return scale;
}

#endif
