/* The head, and the token loop of drafts (dspark.md 5). */
#include "kernels/cuda/device.cuh"

void cuda_op_head(di_stream *s, const di_head_args *args) {
    (void)s, (void)args;
    cuda_missing("head");
}

void cuda_op_markov(di_stream *s, const di_markov_args *args) {
    (void)s, (void)args;
    cuda_missing("markov");
}
