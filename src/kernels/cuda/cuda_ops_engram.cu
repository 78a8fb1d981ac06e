/* Engram (model.md 5): hashes, table rows, the gate. */
#include "kernels/cuda/device.cuh"

void cuda_op_engram_hash(di_stream *s, const di_engram_hash_args *args) {
    (void)s, (void)args;
    cuda_missing("engram_hash");
}

void cuda_op_engram_rows(di_stream *s, const di_engram_rows_args *args) {
    (void)s, (void)args;
    cuda_missing("engram_rows");
}

void cuda_op_engram_gate(di_stream *s, const di_engram_gate_args *args) {
    (void)s, (void)args;
    cuda_missing("engram_gate");
}
