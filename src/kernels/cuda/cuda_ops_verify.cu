/* Which drafts are verified, and which of them stand (dspark.md 6 and 8). */
#include "kernels/cuda/device.cuh"

void cuda_op_allot(di_stream *s, const di_allot_args *args) {
    (void)s, (void)args;
    cuda_missing("allot");
}

void cuda_op_accept(di_stream *s, const di_accept_args *args) {
    (void)s, (void)args;
    cuda_missing("accept");
}
