/* The sum behind one product output, for kernels that differ in where rows and outputs lie.
 *
 * A warp makes one output of up to PRODUCT_ROWS rows: weights are decoded once in registers. Lane l
 * takes the K values 8 l .. 8 l + 7 of every 256 and adds their products in increasing K with fma;
 * the lanes are then joined in one fixed way (warp_sum). The order depends on K alone, so that a
 * row's bits do not know how many other rows there were.
 */
#ifndef DI_KERNELS_CUDA_PRODUCT_CUH
#define DI_KERNELS_CUDA_PRODUCT_CUH

#include "kernels/cuda/weights.cuh"

static constexpr int PRODUCT_ROWS = 8, PRODUCT_WARPS = 8, PRODUCT_THREADS = PRODUCT_WARPS * WARP;

/* sum[r] += this lane's share of row . x[r], r < rows, over K from begin (a multiple of 8) to end.
 * `aligned`: every x[r] begins at a multiple of 32 bytes and k is a multiple of 8. */
template <typename A, di_dtype W>
static __device__ __forceinline__ void
lane_products(const weight_row &row, const A *const (&x)[PRODUCT_ROWS], int rows, int64_t begin,
              int64_t end, bool aligned, float *sum) {
    for (int64_t at = begin + 8 * lane_id(); at < end; at += 8 * WARP) {
        if (at + 8 <= end) {
            float w[8], v[8];
            decode8<W>(row, at, w);
#pragma unroll
            for (int r = 0; r < PRODUCT_ROWS; r++) {
                if (r >= rows) break;
                load8(x[r] + at, aligned, v);
                for (int i = 0; i < 8; i++) sum[r] = fmaf(v[i], w[i], sum[r]);
            }
            continue;
        }
        for (int64_t i = at; i < end; i++) {
            float single = decode1<W>(row, i);
#pragma unroll
            for (int r = 0; r < PRODUCT_ROWS; r++) {
                if (r < rows) sum[r] = fmaf(to_float(x[r][i]), single, sum[r]);
            }
        }
    }
}

#endif
