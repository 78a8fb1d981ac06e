/* Products with one BF16 matrix on the matrix units. */
#include "kernels/cuda/mma_linear.cuh"

void mma_run_bf16(di_stream *s, const cuda_product *p, int32_t n, const mma_ready *x,
                  const mma_ready *low) {
    mma_linear_run<DI_BF16>(s, p, n, x, low);
}
