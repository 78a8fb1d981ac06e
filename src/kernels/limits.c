/* Limits of several contexts on one backend. */
#include "kernels/backend.h"

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

di_limits di_limits_join(const di_limits *a, const di_limits *b) {
    return (di_limits){
        .max_rows = larger(a->max_rows, b->max_rows),
        .max_out = larger(a->max_out, b->max_out),
        .width = larger(a->width, b->width),
        .hc = larger(a->hc, b->hc),
        .vocab = larger(a->vocab, b->vocab),
        .n_heads = larger(a->n_heads, b->n_heads),
        .head_dim = larger(a->head_dim, b->head_dim),
        .q_rank = larger(a->q_rank, b->q_rank),
        .o_low = larger(a->o_low, b->o_low),
        .n_experts = larger(a->n_experts, b->n_experts),
        .top_k = larger(a->top_k, b->top_k),
        .inner = larger(a->inner, b->inner),
        .index_heads = larger(a->index_heads, b->index_heads),
        .index_dim = larger(a->index_dim, b->index_dim),
        .index_top_k = larger(a->index_top_k, b->index_top_k),
        .top_blocks = larger(a->top_blocks, b->top_blocks),
        .block_size = larger(a->block_size, b->block_size),
        .max_entries = a->max_entries > b->max_entries ? a->max_entries : b->max_entries,
        .engram_columns = larger(a->engram_columns, b->engram_columns),
        .engram_width = larger(a->engram_width, b->engram_width),
        .max_k = larger(a->max_k, b->max_k),
    };
}
