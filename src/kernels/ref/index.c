/* Twins: the indexer (model.md 3.8): scores, candidate blocks, selection. */
#include <math.h>

#include "kernels/ref/ref.h"

double ref_index_score(const di_stream *s, const double *q, const double *key,
                       const double *weights, int32_t heads, int32_t dim) {
    double sum = 0;
    for (int32_t h = 0; h < heads; h++) {
        double dot = 0;
        for (int32_t d = 0; d < dim; d++) dot += q[(int64_t)h * dim + d] * key[d];
        sum += ref_a(s, fmax(ref_a(s, dot), 0) * weights[h]);
    }
    return ref_a(s, sum);
}

void ref_index_scores(di_stream *s, const di_index_scores_args *args) {
    int64_t heads = args->n_heads, dim = args->index_dim;
    for (int64_t t = 0; t < args->n_rows; t++) {
        const double *q = ref_doubles(s, args->q) + t * heads * dim;
        const double *weights = ref_doubles(s, args->weights) + t * heads;
        double *out = ref_doubles(s, args->out) + t * args->n_keys;
        for (int64_t j = 0; j < args->n_keys; j++) {
            const double *key = ref_doubles(s, args->keys) + j * dim;
            out[j] = j < ref_ints(s, args->visible)[t]
                         ? ref_index_score(s, q, key, weights, args->n_heads, args->index_dim)
                         : -INFINITY;
        }
    }
}

void ref_index_weights_rows(di_stream *s, const di_matrix *proj, int32_t index_dim, const double *u,
                            int64_t n_rows, double *out) {
    double scale = ref_f(s, 1 / sqrt((double)index_dim) * (1 / sqrt((double)proj->n)));
    ref_linear_rows(s, proj, u, n_rows, false, false, out);
    for (int64_t i = 0; i < n_rows * proj->n; i++) out[i] = ref_a(s, out[i] * scale);
}

void ref_index_weights(di_stream *s, const di_index_weights_args *args) {
    ref_begin(s);
    ref_index_weights_rows(s, &args->weights_proj, args->index_dim, ref_doubles(s, args->u),
                           args->n_rows, ref_doubles(s, args->out));
}

void ref_candidate_blocks(di_stream *s, const double *scores, int32_t n_keys, int32_t visible,
                          int32_t top_blocks, int32_t block_size, int32_t *out) {
    uint64_t used = s->work_used;
    int32_t n_blocks = n_keys / block_size + (n_keys % block_size != 0);
    double *best = ref_take(s, n_blocks), *scratch = ref_take(s, top_blocks);
    for (int32_t b = 0; b < n_blocks; b++) best[b] = -INFINITY;
    for (int32_t j = 0; j < n_keys; j++) {
        best[j / block_size] = fmax(best[j / block_size], scores[j]);
    }
    if (visible > 0) best[(visible - 1) / block_size] = INFINITY; /* the newest is always kept */
    int32_t count = ref_best(best, n_blocks, top_blocks, false, scratch, out);
    ref_sort_ascending(out, count);
    for (int32_t i = count; i < top_blocks; i++) out[i] = -1;
    s->work_used = used;
}

void ref_candidates(di_stream *s, const di_candidates_args *args) {
    ref_begin(s);
    for (int64_t t = 0; t < args->n_rows; t++) {
        ref_candidate_blocks(s, ref_doubles(s, args->scores) + t * args->n_keys, args->n_keys,
                             ref_ints(s, args->visible)[t], args->top_blocks, args->block_size,
                             ref_ints(s, args->out) + t * args->top_blocks);
    }
}

void ref_pick_entries(di_stream *s, const double *scores, int32_t n_keys, int32_t top_k,
                      const int32_t *candidates, int32_t top_blocks, int32_t block_size,
                      int32_t *out) {
    uint64_t used = s->work_used;
    double *counted = ref_take(s, n_keys), *scratch = ref_take(s, top_k);
    for (int32_t j = 0; j < n_keys; j++) counted[j] = candidates == NULL ? scores[j] : -INFINITY;
    for (int32_t b = 0; candidates != NULL && b < top_blocks && candidates[b] >= 0; b++) {
        int64_t begin = (int64_t)candidates[b] * block_size;
        for (int64_t j = begin; j < begin + block_size && j < n_keys; j++) counted[j] = scores[j];
    }
    int32_t count = ref_best(counted, n_keys, top_k, false, scratch, out);
    ref_sort_ascending(out, count);
    for (int32_t i = count; i < top_k; i++) out[i] = -1;
    s->work_used = used;
}

void ref_top_k(di_stream *s, const di_top_k_args *args) {
    ref_begin(s);
    for (int64_t t = 0; t < args->n_rows; t++) {
        const int32_t *candidates = NULL;
        if (!ref_none(args->candidates)) {
            candidates = ref_ints(s, args->candidates) + t * args->top_blocks;
        }
        ref_pick_entries(s, ref_doubles(s, args->scores) + t * args->n_keys, args->n_keys,
                         args->top_k, candidates, args->top_blocks, args->block_size,
                         ref_ints(s, args->out) + t * args->top_k);
    }
}

/* iq = Q4i(rope(q)) of every head of one row, dequantised in place. */
static void quantize_queries(const di_stream *s, const di_index_select_args *args, int32_t pos,
                             double *q) {
    int64_t dim = args->pages.di;
    for (int64_t h = 0; h < args->n_heads; h++) {
        double *head = q + h * dim;
        ref_rope_vector(s, &args->rope, pos, false, head, dim);
        for (int64_t b = 0; b < dim; b += 32) {
            uint8_t codes[16], scale;
            ref_quantize_vector(s, DI_Q4I, head + b, 32, codes, &scale);
            ref_dequantize_vector(DI_Q4I, codes, &scale, 32, head + b);
        }
    }
}

static void select_row(di_stream *s, const di_index_select_args *args, int64_t t, const double *q,
                       const double *weights) {
    uint64_t used = s->work_used;
    const di_pages *pages = &args->pages;
    int32_t slot = ((const di_row *)ref_at(s, args->batch.rows))[t].slot;
    int32_t visible = (ref_ints(s, args->batch.pos)[t] + 1) / pages->ratio;
    double *scores = ref_take(s, visible), *key = ref_take(s, pages->di);
    for (int32_t j = 0; j < visible; j++) {
        ref_entry entry = ref_page_entry(s, pages, slot, j);
        ref_dequantize_vector(DI_Q4I, entry.key_codes, entry.key_scales, pages->di, key);
        scores[j] = ref_index_score(s, q, key, weights, args->n_heads, pages->di);
    }
    int32_t *candidates = NULL;
    if (args->candidate_mode != DI_CANDIDATES_NONE) {
        candidates = ref_ints(s, args->candidates) + t * args->top_blocks;
    }
    if (args->candidate_mode == DI_CANDIDATES_SOURCE) {
        ref_candidate_blocks(s, scores, visible, visible, args->top_blocks, args->block_size,
                             candidates);
        candidates = NULL; /* the source itself selects from all */
    }
    ref_pick_entries(s, scores, visible, args->top_k, candidates, args->top_blocks,
                     args->block_size, ref_ints(s, args->picks) + t * args->top_k);
    s->work_used = used;
}

void ref_index_select(di_stream *s, const di_index_select_args *args) {
    ref_begin(s);
    int64_t rows = args->batch.n_rows, heads = args->n_heads, width = heads * args->pages.di;
    double *q = ref_take(s, rows * width), *weights = ref_take(s, rows * heads);
    REF_REQUIRE(args->wq_b.n == width && args->weights_proj.n == heads);
    ref_linear_rows(s, &args->wq_b, ref_doubles(s, args->qr), rows, true, false, q);
    ref_index_weights_rows(s, &args->weights_proj, args->pages.di, ref_doubles(s, args->u), rows,
                           weights);
    for (int64_t t = 0; t < rows; t++) {
        int32_t pos = ref_ints(s, args->batch.pos)[t];
        if (pos < 0) continue;
        quantize_queries(s, args, pos, q + t * width);
        select_row(s, args, t, q + t * width, weights + t * heads);
    }
}
