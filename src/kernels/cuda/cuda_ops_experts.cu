/* Router, routed and shared experts (model.md 4). */
#include "kernels/cuda/device.cuh"

void cuda_op_route(di_stream *s, const di_route_args *args) {
    (void)s, (void)args;
    cuda_missing("route");
}

void cuda_op_experts(di_stream *s, const di_experts_args *args) {
    (void)s, (void)args;
    cuda_missing("experts");
}

void cuda_op_shared_expert(di_stream *s, const di_shared_expert_args *args) {
    (void)s, (void)args;
    cuda_missing("shared_expert");
}

void cuda_op_combine(di_stream *s, const di_combine_args *args) {
    (void)s, (void)args;
    cuda_missing("combine");
}

void cuda_op_swiglu(di_stream *s, const di_swiglu_args *args) {
    (void)s, (void)args;
    cuda_missing("swiglu");
}
