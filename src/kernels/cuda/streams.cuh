/* Collapse of a row's streams, for the sublayers and the head. */
#ifndef DI_KERNELS_CUDA_STREAMS_CUH
#define DI_KERNELS_CUDA_STREAMS_CUH

#include "kernels/cuda/rows.cuh"

/* out = a(sum_j pre[j] streams[j]); thread i of ROW_THREADS makes values i, i + ROW_THREADS, ... */
template <typename A>
static __device__ __forceinline__ void collapse_row(const A *streams, const float *pre, int32_t hc,
                                                    int64_t width, A *out) {
    for (int64_t d = threadIdx.x; d < width; d += ROW_THREADS) {
        float sum = 0;
        for (int32_t j = 0; j < hc; j++) sum = fmaf(pre[j], to_float(streams[j * width + d]), sum);
        out[d] = from_float<A>(sum);
    }
}

#endif
