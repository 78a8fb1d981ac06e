/* Sampling, and the counts that penalties need. */
#include "kernels/cuda/device.cuh"

void cuda_op_sample(di_stream *s, const di_sample_args *args) {
    (void)s, (void)args;
    cuda_missing("sample");
}

void cuda_op_tally(di_stream *s, const di_tally_args *args) {
    (void)s, (void)args;
    cuda_missing("tally");
}
