/* Products with one stored matrix on the matrix units. */
#include "kernels/cuda/mma_linear.cuh"

/* Small blocks: with one row all of them are on different processors. */
static constexpr int PREPARE_THREADS = 128;

static __global__ void prepare_kernel(mma_input in) {
    begin_early(); /* the product may ask for its weights */
    mma_prepare_chunk(in, static_cast<int32_t>(blockIdx.x * PREPARE_THREADS + threadIdx.x));
}

mma_ready mma_room(di_stream *s, di_dtype dtype, int32_t n_rows, int32_t groups, int32_t k) {
    return mma_ready{cuda_take<uint8_t>(s, mma_input_bytes(n_rows, groups, k)),
                     n_rows,
                     groups,
                     k,
                     dtype,
                     mma_is_wide(n_rows)};
}

mma_ready mma_prepare(di_stream *s, di_dtype dtype, di_ptr x, int64_t stride, int32_t n_rows,
                      int32_t groups, int32_t k, bool quantize) {
    mma_ready ready = mma_room(s, dtype, n_rows, groups, k);
    mma_input in = {x,         stride, n_rows, groups, k, quantize, mma_order_of(dtype, ready.wide),
                    ready.data};
    CUDA_REQUIRE((!quantize || k % 32 == 0) && mma_input_chunks(in) < INT32_MAX - PREPARE_THREADS);
    cuda_launch_early(s, "prepare", cuda_blocks(mma_input_chunks(in), PREPARE_THREADS),
                      PREPARE_THREADS, 0, prepare_kernel, in);
    return ready;
}

void mma_run_linear(di_stream *s, const cuda_product *p, const mma_ready *x) {
    CUDA_REQUIRE(p->groups >= 1 && p->n % p->groups == 0 && mma_takes(s, p->w.dtype));
    CUDA_REQUIRE(x->dtype == p->w.dtype && x->k == p->w.k && x->n_rows == p->n_rows &&
                 x->groups == p->groups);
    CUDA_REQUIRE(p->w.dtype != DI_FP4_PAIR || p->w.k % 32 == 0);
    if (p->w.dtype == DI_FP4_PAIR)
        mma_run_fp4(s, p, x);
    else if (p->w.dtype == DI_F8_E4M3)
        mma_run_fp8(s, p, x);
    else
        mma_run_bf16(s, p, x);
}
