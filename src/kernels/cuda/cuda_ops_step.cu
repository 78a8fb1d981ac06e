/* The rows of a step, lengths and history. */
#include "kernels/cuda/device.cuh"

void cuda_op_step_begin(di_stream *s, const di_step_begin_args *args) {
    (void)s, (void)args;
    cuda_missing("step_begin");
}

void cuda_op_step_end(di_stream *s, const di_step_end_args *args) {
    (void)s, (void)args;
    cuda_missing("step_end");
}

void cuda_op_rewind(di_stream *s, const di_rewind_args *args) {
    (void)s, (void)args;
    cuda_missing("rewind");
}

void cuda_op_window_store(di_stream *s, const di_window_store_args *args) {
    (void)s, (void)args;
    cuda_missing("window_store");
}
