/* How long a recorded graph takes. */
#ifndef DI_BENCH_GRAPH_TIMES_CUH
#define DI_BENCH_GRAPH_TIMES_CUH

#include <cuda_runtime.h>

/* seconds[i] of `runs` launches, one after the other, each waited for; the first one's error. */
static cudaError_t graph_times(cudaStream_t stream, cudaGraph_t graph, int runs, double *seconds) {
    cudaGraphExec_t ready = NULL;
    cudaEvent_t from = NULL, to = NULL;
    cudaError_t status = cudaGraphInstantiate(&ready, graph, 0);
    if (status == cudaSuccess) status = cudaEventCreate(&from);
    if (status == cudaSuccess) status = cudaEventCreate(&to);
    for (int i = 0; i < runs && status == cudaSuccess; i++) {
        float ms = 0;
        status = cudaEventRecord(from, stream);
        if (status == cudaSuccess) status = cudaGraphLaunch(ready, stream);
        if (status == cudaSuccess) status = cudaEventRecord(to, stream);
        if (status == cudaSuccess) status = cudaEventSynchronize(to);
        if (status == cudaSuccess) status = cudaEventElapsedTime(&ms, from, to);
        seconds[i] = 1e-3 * static_cast<double>(ms);
    }
    if (ready) (void)cudaGraphExecDestroy(ready);
    if (from) (void)cudaEventDestroy(from);
    if (to) (void)cudaEventDestroy(to);
    return status;
}

/* The least of all but the first, which sets things up. */
[[maybe_unused]] static double best_of(const double *seconds, int runs) {
    double best = seconds[1];
    for (int i = 2; i < runs; i++)
        if (seconds[i] < best) best = seconds[i];
    return best;
}

#endif
