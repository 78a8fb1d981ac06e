/* What operations do with one row, by a block of ROW_THREADS threads: norms, RoPE, quantisers. */
#ifndef DI_KERNELS_CUDA_ROWS_CUH
#define DI_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/device.cuh"

static constexpr int ROW_WARPS = 8, ROW_THREADS = ROW_WARPS * WARP;

/* 1 / sqrt(mean(x^2) + eps) of n values, in every thread. */
template <typename T>
static __device__ __forceinline__ float row_inverse(const T *x, int64_t n, double eps) {
    float sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += ROW_THREADS) {
        float v = to_float(x[i]);
        sum = fmaf(v, v, sum);
    }
    double mean = static_cast<double>(block_sum<ROW_WARPS>(sum)) / static_cast<double>(n);
    return static_cast<float>(1 / sqrt(mean + eps));
}

/* out = a(w * (x * inverse)); may be in place. */
template <typename A, typename T>
static __device__ __forceinline__ void row_norm(const T *x, const di_vector &w, int64_t n,
                                                double eps, A *out) {
    float inverse = row_inverse(x, n, eps);
    for (int64_t i = threadIdx.x; i < n; i += ROW_THREADS)
        out[i] = from_float<A>(vector_value(w, i) * (to_float(x[i]) * inverse));
}

/* RoPE of `heads` vectors of `width` values at one position, in place. */
template <typename A>
static __device__ __forceinline__ void
row_rope(A *x, int32_t heads, int32_t width, const di_rope &rope, int32_t position, bool inverse) {
    int32_t half = rope.dims / 2;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < half; i += ROW_THREADS) {
        float2 angle = rope_angle(rope, position, i, inverse);
        for (int32_t h = 0; h < heads; h++) {
            A *pair = x + static_cast<int64_t>(h + 1) * width - rope.dims + 2 * i;
            float2 y = rotated(make_float2(to_float(pair[0]), to_float(pair[1])), angle);
            pair[0] = from_float<A>(y.x);
            pair[1] = from_float<A>(y.y);
        }
    }
}

/* Codes and scales of a row; width a multiple of the quantiser's block (ops.h). */
template <typename A>
static __device__ __forceinline__ void row_quantize(di_quantizer kind, const A *x, int32_t width,
                                                    uint8_t *codes, uint8_t *scales) {
    int lane = lane_id();
    for (int32_t begin = warp_id() * WARP; begin < width; begin += ROW_THREADS) {
        int32_t at = begin + lane; /* beyond the end only for Q4C, half a warp */
        float value = at < width ? to_float(x[at]) : 0.0f;
        uint8_t scale, code;
        if (kind == DI_Q8) {
            code = warp_q8(value, &scale);
            codes[at] = code;
        } else {
            code = kind == DI_Q4I ? warp_q4i(value, &scale) : warp_q4c(value, &scale);
            if (at < width && lane % 2 == 0) codes[at / 2] = code;
        }
        int per_scale = kind == DI_Q4C ? 16 : 32;
        if (at < width && lane % per_scale == 0) scales[at / per_scale] = scale;
    }
}

#endif
