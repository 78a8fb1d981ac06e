/* Products with one FP8 matrix on the matrix units. */
#include "kernels/cuda/mma_linear.cuh"

void mma_run_fp8(di_stream *s, const cuda_product *p, int32_t n, const mma_ready *x,
                 const mma_ready *low) {
    mma_linear_run<DI_F8_E4M3>(s, p, n, x, low);
}

bool mma_run_turned(di_stream *s, const cuda_product *p, const mma_ready *x, const mma_turn *turn) {
    constexpr di_dtype W = DI_F8_E4M3;
    if (x->dtype != W || x->wide || x->stride > 0 || p->groups != 1 || p->to_f ||
        turn->head_dim % 32 != 0)
        return false;
    CUDA_REQUIRE(p->w.dtype == W && x->k == p->w.k && x->n_rows == p->n_rows && x->groups == 1 &&
                 p->w.n % turn->head_dim == 0 && turn->dims % 2 == 0);
    mma_linear_turned<W> job = {mma_linear_job<W>(s, p, 1, x), *turn};
    mma_launch_narrow<mma_linear_turned<W>, 2>(s, "product", job, job.count(32, 8));
    return true;
}
