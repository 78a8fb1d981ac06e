/* Products on the matrix units, as operations call them: `release`, stored weights but F32. */
#ifndef DI_KERNELS_CUDA_MMA_LAUNCH_CUH
#define DI_KERNELS_CUDA_MMA_LAUNCH_CUH

#include "kernels/cuda/mma_order.cuh"

/* Whether matrices of this type go by the matrix units. */
static inline bool mma_takes(const di_stream *s, di_dtype dtype) {
    return s->release && (dtype == DI_FP4_PAIR || dtype == DI_F8_E4M3 || dtype == DI_BF16);
}

/* Rows of a product above which wide tiles are used. The bits are those of narrow ones; but above
 * one tile of columns, narrow ones read activations from the second cache too often. */
static constexpr int32_t MMA_NARROW_ROWS = 8;
static inline bool mma_is_wide(int64_t n_rows) { return n_rows > MMA_NARROW_ROWS; }

/* Activations made ready in the workspace, for matrices of this type (mma_order.cuh), or those of
 * few rows where they lie. */
typedef struct mma_ready {
    uint8_t *data;
    int32_t n_rows, groups, k;
    di_dtype dtype;
    bool wide;
    int64_t stride; /* as they lie: of rows, in values; else 0 */
} mma_ready;
/* Room alone, for a kernel that writes rows as it makes them (mma_store_chunk). */
mma_ready mma_room(di_stream *s, di_dtype dtype, int32_t n_rows, int32_t groups, int32_t k);
mma_ready mma_prepare(di_stream *s, di_dtype dtype, di_ptr x, int64_t stride, int32_t n_rows,
                      int32_t groups, int32_t k, bool quantize);

/* Where sublayer_in puts its rows, quantised, for narrow products with matrices of this type, FP8 or
 * FP4; and they, or NULL where those of x are not kept. */
uint8_t *mma_kept_place(di_stream *s, di_dtype dtype);
uint8_t *mma_kept(di_stream *s, di_dtype dtype, di_ptr x, int32_t n_rows, int32_t k);
/* The same of many rows: where their codes are, codes NULL where there is no room; and they, codes
 * NULL where those of x are not kept or matrices of this type do not read them. */
mma_codes mma_codes_place(di_stream *s, int32_t n_rows, int32_t width);
mma_codes mma_kept_codes(di_stream *s, di_dtype dtype, di_ptr x, int32_t n_rows, int32_t k);

/* out = w times what was made ready, for one product or several that all read it; p's x is not
 * looked at. */
static constexpr int32_t MMA_MATRICES = 2;
void mma_run_linear(di_stream *s, const cuda_product *p, int32_t n, const mma_ready *x);
/* The same for one that reads rows p->x, not quantised, whose own go quantised to `ready`, for the
 * product with w. Returns false where that is nothing that a kernel does: then nothing is done. */
bool mma_run_low(di_stream *s, const cuda_product *p, const di_matrix *w, mma_ready *ready);

/* And RoPE of what one gives (mma_jobs.cuh), where the kernel before has written the angles. Returns
 * false where no kernel does that: then nothing is done. */
struct mma_turn;
bool mma_run_turned(di_stream *s, const cuda_product *p, const mma_ready *x, const mma_turn *turn);

/* Several matrices that read the same rows (cuda_linear_groups for one): activations are made ready
 * once, and two neighbours of one type are one kernel. All have the same K. */
typedef struct cuda_linear_part {
    di_matrix w;
    di_ptr out; /* A, or F when to_f, [n_rows][w.n] */
    bool to_f;
} cuda_linear_part;
void cuda_linear_many(di_stream *s, const cuda_linear_part *parts, int32_t n, di_ptr x,
                      int32_t n_rows, int32_t groups, bool quantize);

/* After cuda_begin_beside: it calls cuda_begin when it must. */
void mma_run_experts(di_stream *s, const di_experts_args *args);
void mma_run_shared_expert(di_stream *s, const di_shared_expert_args *args);

#endif
