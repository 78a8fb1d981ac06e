/* The picks of a step, sorted by expert on the device. */
#ifndef DI_KERNELS_CUDA_MMA_PICKS_CUH
#define DI_KERNELS_CUDA_MMA_PICKS_CUH

#include "kernels/cuda/mma_jobs.cuh"

/* No list of tiles is longer. */
static inline int64_t mma_most_tiles(const di_experts_args *args, int32_t width) {
    int64_t picks = static_cast<int64_t>(args->n_rows) * args->top_k;
    return picks / width + (picks < args->n_experts ? picks : args->n_experts);
}

/* Columns of a tile: as picks an expert has on average make it worth. Experts are chosen unevenly (256
 * rows of the release's bench choose some 290 of 384), so that many have more picks than the average.
 * Wide tiles of 32 read and decode each weight once where narrow ones of 8 begin anew for every 8
 * picks, and have a fifth fewer instructions a weight; but rows are gathered for them first. */
static constexpr uint64_t MMA_WIDE_PICKS = 2; /* an expert; wide from here on */
static inline int32_t mma_expert_columns(uint64_t picks, int32_t n_experts) {
    uint64_t experts = static_cast<uint64_t>(n_experts);
    return picks > 24 * experts                ? 128
           : picks > 10 * experts              ? 64
           : picks >= MMA_WIDE_PICKS * experts ? 32
                                               : 8;
}

/* Slots of wide tiles: every expert's begin at a multiple of 8. */
static inline uint64_t mma_wide_slots(uint64_t picks, int32_t n_experts) {
    uint64_t experts = static_cast<uint64_t>(n_experts);
    return (picks + 7 * (picks < experts ? picks : experts) + 7) / 8 * 8;
}
/* The most that tiles of at most so many picks and experts have: of fewer experts (a draft layer's),
 * whose tiles are wide before those of all would be, too. */
static inline uint64_t mma_most_wide_slots(uint64_t picks, int32_t n_experts) {
    uint64_t wide = picks / MMA_WIDE_PICKS;
    return mma_wide_slots(picks, wide < static_cast<uint64_t>(n_experts)
                                     ? static_cast<int32_t>(wide)
                                     : n_experts);
}

/* Up to so many picks that are not for wide tiles are sorted by a thread each. */
static constexpr uint64_t MMA_FEW_PICKS = 512;

static inline __host__ __device__ pick_source mma_picks_of(const di_experts_args *args) {
    return pick_source{cuda_at<const int32_t>(args->picks), cuda_at<const int32_t>(args->pos),
                       args->n_rows, args->top_k};
}

/* The lists, in the workspace, with tiles of at most `width` picks. The same kernel makes `in` ready
 * for the first product (NULL: there is nothing to make). */
pick_lists mma_sort_picks(di_stream *s, const di_experts_args *args, int32_t width, bool wide,
                          const mma_input *in);

/* Rows made ready in the order of slots. */
void mma_gather_rows(di_stream *s, const mma_input *in, const pick_lists *lists, int64_t slots,
                     int32_t top_k);

#endif
