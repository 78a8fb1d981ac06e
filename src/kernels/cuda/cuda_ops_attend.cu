/* Queries and window keys, attention over a list, its output projection (model.md 3.6). */
#include "kernels/cuda/device.cuh"

void cuda_op_qkv(di_stream *s, const di_qkv_args *args) {
    (void)s, (void)args;
    cuda_missing("qkv");
}

void cuda_op_window_kv(di_stream *s, const di_window_kv_args *args) {
    (void)s, (void)args;
    cuda_missing("window_kv");
}

void cuda_op_attend(di_stream *s, const di_attend_args *args) {
    (void)s, (void)args;
    cuda_missing("attend");
}

void cuda_op_attend_list(di_stream *s, const di_attend_list_args *args) {
    (void)s, (void)args;
    cuda_missing("attend_list");
}

void cuda_op_attn_out(di_stream *s, const di_attn_out_args *args) {
    (void)s, (void)args;
    cuda_missing("attn_out");
}
