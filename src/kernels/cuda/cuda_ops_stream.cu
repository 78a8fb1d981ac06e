/* Streams: embedding, mixing, collapse and expand (model.md 3.4, 3.5). */
#include "kernels/cuda/device.cuh"

void cuda_op_embed(di_stream *s, const di_embed_args *args) {
    (void)s, (void)args;
    cuda_missing("embed");
}

void cuda_op_mix(di_stream *s, const di_mix_args *args) {
    (void)s, (void)args;
    cuda_missing("mix");
}

void cuda_op_sublayer_in(di_stream *s, const di_sublayer_in_args *args) {
    (void)s, (void)args;
    cuda_missing("sublayer_in");
}

void cuda_op_sublayer_out(di_stream *s, const di_sublayer_out_args *args) {
    (void)s, (void)args;
    cuda_missing("sublayer_out");
}

void cuda_op_stream_mean(di_stream *s, const di_stream_mean_args *args) {
    (void)s, (void)args;
    cuda_missing("stream_mean");
}
