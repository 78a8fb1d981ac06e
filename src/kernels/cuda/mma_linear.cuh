/* Which kernel takes a product with one stored matrix; a file for each format (cuda_mma_*.cu). low:
 * where quantised rows go (mma_run_low), or NULL. */
#ifndef DI_KERNELS_CUDA_MMA_LINEAR_CUH
#define DI_KERNELS_CUDA_MMA_LINEAR_CUH

#include "kernels/cuda/mma_run.cuh"

void mma_run_fp4(di_stream *s, const cuda_product *p, int32_t n, const mma_ready *x,
                 const mma_ready *low);
void mma_run_fp8(di_stream *s, const cuda_product *p, int32_t n, const mma_ready *x,
                 const mma_ready *low);
void mma_run_bf16(di_stream *s, const cuda_product *p, int32_t n, const mma_ready *x,
                  const mma_ready *low);

/* Tiles of 32 or 16 rows, whichever are done first: blocks take them in rounds, in which each waits
 * for its own products more than for memory, and a round of high ones takes 1.6 of low ones.
 * Quantised weights, whose products take longer than their way, may be spread: where processors have
 * different numbers of tiles, those that have more are waited for. */
template <typename Job> static void mma_linear_narrow(di_stream *s, const Job &job) {
    int64_t high = job.count(32, 8), low = job.count(16, 8);
    int32_t parts = mma_parts(job.rows.k);
    if constexpr (Job::FORMAT == DI_F8_E4M3 && !Job::AS_STORED) {
        int32_t blocks = mma_best_spread(s, high, parts, MMA_SPREAD);
        int64_t whole = mma_share(s, high, parts, 1) * 8, halves = mma_share(s, low, parts, 1) * 5;
        if (high > s->n_processors &&
            10 * mma_share(s, high, parts, blocks) * 8 < 9 * (whole < halves ? whole : halves)) {
            mma_launch_spread<Job, 2>(s, "product", job, high, blocks);
            return;
        }
    }
    int64_t places = static_cast<int64_t>(NARROW_WARPS / parts) * s->n_processors;
    if (8 * cuda_blocks(high, places) <= 5 * cuda_blocks(low, places))
        mma_launch_narrow<Job, 2>(s, "product", job, high);
    else
        mma_launch_narrow<Job, 1>(s, "product", job, low);
}
template <di_dtype W>
static void mma_linear_as_stored(di_stream *s, const mma_linear<W> &job, int64_t stride,
                                 const mma_ready *low) {
    CUDA_REQUIRE(W != DI_FP4_PAIR); /* read_as_stored */
    if constexpr (W != DI_FP4_PAIR) {
        mma_linear_stored<W> stored = {job, stride};
        if (low == NULL) {
            mma_linear_narrow(s, stored);
            return;
        }
        mma_order order = mma_order_of(low->dtype, false, mma_rows8(low->n_rows));
        mma_linear_low<W> quantised = {stored, order, low->data, mma_padded(low->k)};
        mma_launch_narrow<mma_linear_low<W>, 2>(s, "product", quantised, job.count(32, 8));
    }
}

template <di_dtype W, int N>
static bool mma_linear_is_split(const di_stream *s, const mma_linear<W> &job) {
    return mma_is_split<mma_wide<mma_linear<W>, N, true>::BLOCKS>(s, job.rows.k,
                                                                  job.count(WIDE_HEIGHT, N));
}
template <di_dtype W, int N> static void mma_linear_wide(di_stream *s, const mma_linear<W> &job) {
    int64_t items = job.count(WIDE_HEIGHT, N);
    if (mma_linear_is_split<W, N>(s, job))
        mma_launch_split<mma_linear<W>, N>(s, "product", job, items);
    else
        mma_launch_wide<mma_linear<W>, N>(s, "product", job, items);
}

template <di_dtype W>
static mma_linear<W> mma_linear_job(const di_stream *s, const cuda_product *p, int32_t n,
                                    const mma_ready *x) {
    mma_linear<W> job = {};
    job.rows = mma_rows_of(s, W, p->w.k);
    job.x = x->data, job.groups = p->groups, job.n_rows = p->n_rows;
    for (int32_t i = 0; i < n; i++, p++)
        job.of[i] = mma_matrix{cuda_at<const uint8_t>(p->w.data), p->w.n / p->groups, p->to_f,
                               cuda_at<void>(p->out), p->out_stride};
    return job;
}

/* Rows above which tiles have 128 columns. */
static constexpr int32_t MMA_WIDEST_ROWS = 64;

template <di_dtype W>
static void mma_linear_make(di_stream *s, const mma_linear<W> &job, const mma_ready *low) {
    CUDA_REQUIRE(W == DI_F8_E4M3 && low->dtype == W); /* makes_ready */
    if constexpr (W == DI_F8_E4M3) {
        mma_linear_made<W> made = {job, low->data};
        mma_launch_wide<mma_linear_made<W>, 128>(s, "product", made, job.count(WIDE_HEIGHT, 128));
    }
}

template <di_dtype W>
static void mma_linear_run(di_stream *s, const cuda_product *p, int32_t n, const mma_ready *x,
                           const mma_ready *low) {
    mma_linear<W> job = mma_linear_job<W>(s, p, n, x);
    if (x->stride > 0)
        mma_linear_as_stored<W>(s, job, x->stride, low);
    else if (low != NULL)
        mma_linear_make<W>(s, job, low);
    else if (!x->wide)
        mma_linear_narrow(s, job);
    else if (job.n_rows <= 32)
        mma_linear_wide<W, 32>(s, job);
    else if (job.n_rows <= MMA_WIDEST_ROWS)
        mma_linear_wide<W, 64>(s, job);
    else
        mma_linear_wide<W, 128>(s, job);
}

#endif
