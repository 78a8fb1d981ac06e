/* The compressor of a source (model.md 3.7). */
#include "kernels/cuda/device.cuh"

void cuda_op_compress(di_stream *s, const di_compress_args *args) {
    (void)s, (void)args;
    cuda_missing("compress");
}

void cuda_op_pool(di_stream *s, const di_pool_args *args) {
    (void)s, (void)args;
    cuda_missing("pool");
}
