/* bench_gpu_graph.cu, as the rest of bench_gpu sees it: kernels of a step, counted, and what an empty
 * one costs. Only where the program was built with CUDA (BENCH_CUDA).
 */
#ifndef DI_BENCH_GPU_GRAPH_H
#define DI_BENCH_GPU_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"

typedef struct graph_nodes {
    int32_t kernels, others; /* others: copies and fills */
} graph_nodes;

/* For di_backend: record and recorded that count what they are given, and run it. */
bool graph_count_record(di_stream *stream, const uint64_t key[2]);
void graph_count_recorded(di_stream *stream);
graph_nodes graph_counted(void); /* since the last call */

/* Seconds of one of a chain of empty kernels in a graph; 0 when the device fails. */
double graph_empty_kernel_s(di_stream *stream);

#endif
