/* The indexer: weights, scores, candidate blocks, selection (model.md 3.8). */
#include "kernels/cuda/device.cuh"

void cuda_op_index_select(di_stream *s, const di_index_select_args *args) {
    (void)s, (void)args;
    cuda_missing("index_select");
}

void cuda_op_index_weights(di_stream *s, const di_index_weights_args *args) {
    (void)s, (void)args;
    cuda_missing("index_weights");
}

void cuda_op_index_scores(di_stream *s, const di_index_scores_args *args) {
    (void)s, (void)args;
    cuda_missing("index_scores");
}

void cuda_op_candidates(di_stream *s, const di_candidates_args *args) {
    (void)s, (void)args;
    cuda_missing("candidates");
}

void cuda_op_top_k(di_stream *s, const di_top_k_args *args) {
    (void)s, (void)args;
    cuda_missing("top_k");
}
