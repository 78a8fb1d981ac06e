/* The picks of a step, sorted by expert on the device. */
#ifndef DI_KERNELS_CUDA_MMA_PICKS_CUH
#define DI_KERNELS_CUDA_MMA_PICKS_CUH

#include "kernels/cuda/mma_jobs.cuh"

/* No list of tiles is longer. */
static inline int64_t mma_most_tiles(const di_experts_args *args, int32_t width) {
    int64_t picks = static_cast<int64_t>(args->n_rows) * args->top_k;
    return picks / width + (picks < args->n_experts ? picks : args->n_experts);
}

/* The lists, in the workspace, with tiles of at most `width` picks. The same kernel makes `in` ready
 * for the first product (NULL: there is nothing to make). */
pick_lists mma_sort_picks(di_stream *s, const di_experts_args *args, int32_t width,
                          const mma_input *in);

#endif
