/* Which kernel takes a product with one stored matrix; a file for each format (cuda_mma_*.cu). */
#ifndef DI_KERNELS_CUDA_MMA_LINEAR_CUH
#define DI_KERNELS_CUDA_MMA_LINEAR_CUH

#include "kernels/cuda/mma_run.cuh"

void mma_run_fp4(di_stream *s, const cuda_product *p, const mma_ready *x);
void mma_run_fp8(di_stream *s, const cuda_product *p, const mma_ready *x);
void mma_run_bf16(di_stream *s, const cuda_product *p, const mma_ready *x);

template <di_dtype W> static void mma_linear_narrow(di_stream *s, const mma_linear<W> &job) {
    using low = mma_narrow<mma_linear<W>, 1, 1>;
    using high = mma_narrow<mma_linear<W>, 2, 1>;
    int64_t items = job.count(high::HEIGHT, high::WIDTH);
    if (items >= 2 * s->n_processors)
        mma_launch_narrow<mma_linear<W>, 2, 1>(s, "product", job, items);
    else
        mma_launch_narrow<mma_linear<W>, 1, 1>(s, "product", job,
                                               job.count(low::HEIGHT, low::WIDTH));
}

/* Tiles that do not fill the device are split. */
template <di_dtype W, int N> static void mma_linear_wide(di_stream *s, const mma_linear<W> &job) {
    int64_t items = job.count(WIDE_HEIGHT, N);
    if (4 * items < 3 * s->n_processors && mma_parts(job.rows.k) > 1)
        mma_launch_split<mma_linear<W>, N>(s, "product", job, items);
    else
        mma_launch_wide<mma_linear<W>, N>(s, "product", job, items);
}

template <di_dtype W>
static void mma_linear_run(di_stream *s, const cuda_product *p, const mma_ready *x) {
    mma_linear<W> job = {};
    job.rows = mma_rows_of(W, p->w.k);
    job.data = cuda_at<const uint8_t>(p->w.data), job.scale = cuda_at<const uint8_t>(p->w.scale);
    job.x = x->data;
    job.n = p->n / p->groups, job.first = p->first, job.groups = p->groups, job.n_rows = p->n_rows;
    job.out = cuda_at<void>(p->out), job.out_stride = p->out_stride, job.to_f = p->to_f;
    if (!x->wide)
        mma_linear_narrow<W>(s, job);
    else if (p->n_rows <= 64)
        mma_linear_wide<W, 64>(s, job);
    else
        mma_linear_wide<W, 128>(s, job);
}

#endif
