/* Stored weights, decoded in registers: eight values at a time, exactly.
 *
 * All decoded values are exact in float32, and but for F32 weights in bf16 too. A chunk of eight
 * never crosses a scale.
 */
#ifndef DI_KERNELS_CUDA_WEIGHTS_CUH
#define DI_KERNELS_CUDA_WEIGHTS_CUH

#include "kernels/cuda/device.cuh"

/* Eight e2m1 codes times a scale. */
static __device__ __forceinline__ void decode_e2m1(uint32_t word, float scale, float *out) {
    for (int i = 0; i < 8; i++) out[i] = e2m1_value(word >> (4 * i)) * scale;
}

/* Row n of a matrix of K = w.k columns: where it and its scales begin. */
typedef struct weight_row {
    const uint8_t *data, *scale;
} weight_row;
template <di_dtype W> static __device__ weight_row row_of(const di_matrix &w, int64_t n) {
    const uint8_t *data = cuda_at<const uint8_t>(w.data), *scale = cuda_at<const uint8_t>(w.scale);
    int64_t k = w.k;
    if (W == DI_F8_E4M3) return weight_row{data + n * k, scale + n / 32 * ((k + 31) / 32)};
    if (W == DI_FP4_PAIR) return weight_row{data + n * (k / 2), scale + n * (k / 32)};
    return weight_row{data + n * k * (W == DI_BF16 ? 2 : 4), scale};
}

/* Values k .. k + 7 of a row; k a multiple of 8, all inside. */
template <di_dtype W>
static __device__ __forceinline__ void decode8(const weight_row &row, int64_t k, float *out) {
    if (W == DI_F8_E4M3) {
        uint32_t words[2];
        load_words<2>(row.data + k, words);
        decode_e4m3<2>(words, di_e8m0_decode(row.scale[k / 32]), out);
    } else if (W == DI_FP4_PAIR) {
        decode_e2m1(load_u32(row.data + k / 2), di_e8m0_decode(row.scale[k / 32]), out);
    } else if (W == DI_BF16) {
        uint32_t words[4];
        load_words<4>(row.data + 2 * k, words);
        for (int i = 0; i < 4; i++) {
            out[2 * i] = __uint_as_float(words[i] << 16);
            out[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
        }
    } else {
        uint32_t words[8];
        load_words<8>(row.data + 4 * k, words);
        for (int i = 0; i < 8; i++) out[i] = __uint_as_float(words[i]);
    }
}

/* One value, for what is left of a row whose length is no multiple of 8. */
template <di_dtype W>
static __device__ __forceinline__ float decode1(const weight_row &row, int64_t k) {
    if (W == DI_F8_E4M3) return di_e4m3_decode(row.data[k]) * di_e8m0_decode(row.scale[k / 32]);
    if (W == DI_FP4_PAIR)
        return e2m1_value(row.data[k / 2] >> (k % 2 ? 4 : 0)) * di_e8m0_decode(row.scale[k / 32]);
    return W == DI_BF16 ? load_bf16(row.data + 2 * k) : load_f32(row.data + 4 * k);
}

/* Eight activations from x on. `aligned`: x is a multiple of 8 values from a 32-byte address. */
static __device__ __forceinline__ void load8(const float *x, bool aligned, float *out) {
    if (aligned) {
        float4 a = reinterpret_cast<const float4 *>(x)[0],
               b = reinterpret_cast<const float4 *>(x)[1];
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
        out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    } else {
        for (int i = 0; i < 8; i++) out[i] = x[i];
    }
}
static __device__ __forceinline__ void load8(const __nv_bfloat16 *x, bool aligned, float *out) {
    if (aligned) {
        uint4 v = *reinterpret_cast<const uint4 *>(x);
        uint32_t words[4] = {v.x, v.y, v.z, v.w};
        for (int i = 0; i < 4; i++) {
            out[2 * i] = __uint_as_float(words[i] << 16);
            out[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
        }
    } else {
        for (int i = 0; i < 8; i++) out[i] = to_float(x[i]);
    }
}

#endif
