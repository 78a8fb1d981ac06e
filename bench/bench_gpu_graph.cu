/* bench_gpu: the kernels of a step, and what they would cost if they were empty. */
#include "kernels/cuda/cuda.h"

extern "C" {
#include "bench_gpu_graph.h"
}

static graph_nodes counted;
static bool capturing;

static void count(cudaGraph_t graph) {
    size_t n = 0;
    if (cudaGraphGetNodes(graph, NULL, &n) != cudaSuccess || n == 0) return;
    cudaGraphNode_t *nodes = static_cast<cudaGraphNode_t *>(malloc(n * sizeof *nodes));
    if (nodes == NULL || cudaGraphGetNodes(graph, nodes, &n) != cudaSuccess) n = 0;
    for (size_t i = 0; i < n; i++) {
        cudaGraphNodeType type;
        if (cudaGraphNodeGetType(nodes[i], &type) != cudaSuccess) continue;
        if (type == cudaGraphNodeTypeKernel)
            counted.kernels++;
        else
            counted.others++;
    }
    free(nodes);
}

static void begin_capture(di_stream *s) {
    cuda_begin(s);
    capturing = s->failed == cudaSuccess &&
                cuda_check(s, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal),
                           "counting kernels");
}

/* What was captured, to be launched and destroyed; NULL after a failure. */
static cudaGraphExec_t end_capture(di_stream *s, bool counts) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable = NULL;
    if (!capturing) return NULL;
    capturing = false;
    cuda_join(s);
    cuda_check(s, cudaStreamEndCapture(s->stream, &graph), "counting kernels");
    if (s->failed == cudaSuccess && counts) count(graph);
    if (s->failed == cudaSuccess)
        cuda_check(s, cudaGraphInstantiate(&executable, graph, 0), "counting kernels");
    if (graph) (void)cudaGraphDestroy(graph);
    return executable;
}

extern "C" bool graph_count_record(di_stream *stream, const uint64_t key[2]) {
    (void)key;
    begin_capture(stream);
    return false;
}

extern "C" void graph_count_recorded(di_stream *s) {
    cudaGraphExec_t graph = end_capture(s, true);
    if (graph == NULL) return;
    cuda_check(s, cudaGraphLaunch(graph, s->stream), "counting kernels");
    (void)cudaStreamSynchronize(s->stream);
    (void)cudaGraphExecDestroy(graph);
}

extern "C" graph_nodes graph_counted(void) {
    graph_nodes since = counted;
    counted = graph_nodes{0, 0};
    return since;
}

/* ---- Empty kernels ---- */

static __global__ void empty() {}

/* One block: the least that a kernel can cost. */
extern "C" double graph_empty_kernel_s(di_stream *s) {
    static constexpr int CHAIN = 1000, RUNS = 5;
    cudaEvent_t begin = NULL, end = NULL;
    float best = 0;
    begin_capture(s);
    for (int i = 0; i < CHAIN; i++) cuda_launch(s, "empty kernel", dim3(1), 32, 0, empty);
    cudaGraphExec_t graph = end_capture(s, false);
    cuda_check(s, cudaEventCreate(&begin), "empty kernels");
    cuda_check(s, cudaEventCreate(&end), "empty kernels");
    for (int i = 0; i <= RUNS && graph && s->failed == cudaSuccess; i++) {
        float ms = 0;
        cuda_check(s, cudaEventRecord(begin, s->stream), "empty kernels");
        cuda_check(s, cudaGraphLaunch(graph, s->stream), "empty kernels");
        cuda_check(s, cudaEventRecord(end, s->stream), "empty kernels");
        cuda_check(s, cudaEventSynchronize(end), "empty kernels");
        cuda_check(s, cudaEventElapsedTime(&ms, begin, end), "empty kernels");
        if (i > 0 && (best == 0 || ms < best)) best = ms; /* the first does not count */
    }
    if (graph) (void)cudaGraphExecDestroy(graph);
    if (begin) (void)cudaEventDestroy(begin);
    if (end) (void)cudaEventDestroy(end);
    return s->failed == cudaSuccess ? 1e-3 * static_cast<double>(best) / CHAIN : 0;
}
