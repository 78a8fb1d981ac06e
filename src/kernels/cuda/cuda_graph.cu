/* Steps that come again, kept as CUDA graphs: one launch instead of a thousand, and kernels that follow
 * each other without the gaps of single launches.
 *
 * A sequence is recorded when it comes for the second time: many come once, and making a graph costs
 * as much as a few steps. The least recently used one makes room for a new one.
 */
#include "kernels/cuda/cuda.h"

enum { N_GRAPHS = 64, RECORD_AT = 2 };

typedef struct kept {
    uint64_t key[2];
    cudaGraphExec_t graph; /* NULL: seen, not recorded */
    uint32_t seen;
    uint64_t used; /* clock; 0: the place is free */
} kept;

struct cuda_graphs {
    kept entries[N_GRAPHS];
    kept *recording; /* what is being captured, NULL: nothing */
    uint64_t clock;
};

di_status cuda_graphs_create(di_stream *s, di_error *error) {
    s->graphs = static_cast<cuda_graphs *>(calloc(1, sizeof *s->graphs));
    return s->graphs ? DI_OK : di_fail(error, DI_ERR_MEMORY, "cuda backend: no memory");
}

static void drop(kept *k) {
    if (k->graph) (void)cudaGraphExecDestroy(k->graph);
    *k = kept{};
}

void cuda_graphs_forget(di_stream *s) {
    if (s->graphs == NULL) return;
    for (kept &k : s->graphs->entries) drop(&k);
}

void cuda_graphs_destroy(di_stream *s) {
    cuda_graphs_forget(s);
    free(s->graphs);
    s->graphs = NULL;
}

/* The entry of key, a new one if there was none. A graph that still runs may be destroyed: the
 * driver keeps it until it is done. */
static kept *find(cuda_graphs *g, const uint64_t key[2]) {
    kept *oldest = &g->entries[0];
    for (kept &k : g->entries) {
        if (k.used > 0 && k.key[0] == key[0] && k.key[1] == key[1]) return &k;
        if (k.used < oldest->used) oldest = &k;
    }
    drop(oldest);
    oldest->key[0] = key[0];
    oldest->key[1] = key[1];
    return oldest;
}

bool cuda_record(di_stream *s, const uint64_t key[2]) {
    cuda_graphs *g = s->graphs;
    cuda_begin(s);
    kept *k = find(g, key);
    k->used = ++g->clock;
    if (k->graph) {
        if (s->failed == cudaSuccess)
            cuda_check(s, cudaGraphLaunch(k->graph, s->stream), "launch of a recorded step");
        return true;
    }
    if (++k->seen < RECORD_AT || s->failed != cudaSuccess) return false;
    if (cuda_check(s, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal),
                   "recording a step"))
        g->recording = k;
    return false;
}

void cuda_recorded(di_stream *s) {
    cuda_graphs *g = s->graphs;
    kept *k = g->recording;
    cudaGraph_t graph = NULL;
    g->recording = NULL;
    if (k == NULL) return;
    cuda_join(s);
    /* Capture must end even where an operation failed. */
    cudaError_t ended = cudaStreamEndCapture(s->stream, &graph);
    cuda_check(s, ended, "recording a step");
    /* Without the flag kernels beside the stream lose the priority that it has (cuda_backend.cu), and
     * wait until all blocks of a product that began before them have found a place. */
    if (s->failed == cudaSuccess)
        cuda_check(s,
                   cudaGraphInstantiate(&k->graph, graph, cudaGraphInstantiateFlagUseNodePriority),
                   "a recorded step");
    if (graph) (void)cudaGraphDestroy(graph);
    if (s->failed == cudaSuccess)
        cuda_check(s, cudaGraphLaunch(k->graph, s->stream), "launch of a recorded step");
}
