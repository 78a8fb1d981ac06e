/* The indexer: scores of visible entries, candidate blocks, selection. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

/* out = a(a(proj u) * f(di^-0.5 heads^-0.5)) */
static void index_weights(di_stream *s, const di_matrix *proj, int32_t index_dim, const float *u,
                          int32_t rows, float *out) {
    int64_t n = (int64_t)rows * proj->n;
    const float *const *x = cpu_inputs(s, u, rows, 1, proj, false);
    cpu_product_rows(s, proj, x, out, rows, s->release);
    float scale = (float)(1 / sqrt((double)index_dim) * (1 / sqrt((double)proj->n)));
    for (int64_t i = 0; i < n; i++) out[i] *= scale;
    if (s->release) s->k->round_bf16(out, n);
}

void cpu_op_index_weights(di_stream *s, const di_index_weights_args *args) {
    cpu_begin(s);
    if (args->n_rows == 0) return;
    index_weights(s, &args->weights_proj, args->index_dim, cpu_at(args->u), args->n_rows,
                  cpu_at(args->out));
}

typedef struct index_job {
    const di_index_select_args *args;
    float *q, *w; /* [n_rows][heads][di], [n_rows][heads] */
    /* of one row whose entries are spread over the team: */
    int64_t row;
    const int32_t *list; /* NULL: all visible */
    int32_t n;
    float *scores;
} index_job;

static void quantize_queries(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                             int64_t end) {
    const index_job *job = user;
    const di_index_select_args *a = job->args;
    const int32_t *pos = cpu_at(a->batch.pos);
    int64_t di = a->pages.di;
    float *angles = scratch->angles;
    for (int64_t t = begin; t < end; t++) {
        if (pos[t] < 0) continue;
        cpu_angles(a->rope, pos[t], false, angles);
        for (int64_t h = 0; h < a->n_heads; h++) {
            float *q = job->q + (t * a->n_heads + h) * di;
            cpu_rotate(s, q, a->pages.di, a->rope.dims, angles);
            s->k->quantize_q4i(q, di, NULL, NULL, q);
        }
    }
}

/* Scores of entries list[begin .. end), or begin .. end, of row t. */
static void score_entries(const di_stream *s, cpu_scratch *scratch, const index_job *job, int64_t t,
                          const int32_t *list, int32_t begin, int32_t end, float *out) {
    const di_index_select_args *a = job->args;
    int32_t slot = ((const di_row *)cpu_at(a->batch.rows))[t].slot, di = a->pages.di;
    int64_t ld = di + CPU_KEY_PAD;
    for (int32_t from = begin; from < end; from += CPU_BLOCK) {
        int32_t n = end - from < CPU_BLOCK ? end - from : CPU_BLOCK;
        for (int32_t i = 0; i < n; i++) {
            cpu_entry entry = cpu_page_entry(&a->pages, slot, list ? list[from + i] : from + i);
            scratch->coded[i] = (cpu_coded){entry.key_codes, entry.key_scales};
        }
        s->k->decode_rows_q4i(scratch->coded, n, di, scratch->keys, ld);
        s->k->dots(job->q + t * a->n_heads * di, di, a->n_heads, scratch->keys, ld, n, di,
                   scratch->probs, CPU_BLOCK);
        s->k->score(scratch->probs, CPU_BLOCK, job->w + t * a->n_heads, a->n_heads, n, s->release,
                    out + from);
    }
}

/* Entries of the published blocks of row t that are visible, ascending. */
static int32_t candidate_entries(const di_index_select_args *a, int64_t t, int32_t visible,
                                 int32_t *list) {
    const int32_t *blocks = (const int32_t *)cpu_at(a->candidates) + t * a->top_blocks;
    int32_t n = 0;
    for (int32_t b = 0; b < a->top_blocks && blocks[b] >= 0; b++) {
        int64_t first = (int64_t)blocks[b] * a->block_size;
        for (int64_t j = first; j < first + a->block_size && j < visible; j++)
            list[n++] = (int32_t)j;
    }
    return n;
}

static int32_t visible_of(const di_index_select_args *a, int64_t t) {
    return (((const int32_t *)cpu_at(a->batch.pos))[t] + 1) / a->pages.ratio;
}

/* From the scores of n entries (list NULL: entry = index) to candidates and picks. */
static void select_row(const di_stream *s, cpu_scratch *scratch, const di_index_select_args *a,
                       int64_t t, const int32_t *list, int32_t n, const float *scores) {
    int32_t *picks = (int32_t *)cpu_at(a->picks) + t * a->top_k;
    if (a->candidate_mode == DI_CANDIDATES_SOURCE)
        cpu_candidate_blocks(s, scratch, scores, n, n, a->top_blocks, a->block_size,
                             (int32_t *)cpu_at(a->candidates) + t * a->top_blocks);
    int32_t count = cpu_best(s, scores, n, a->top_k, scratch->sort_keys, picks);
    if (list)
        for (int32_t i = 0; i < count; i++) picks[i] = list[picks[i]];
    for (int32_t i = count; i < a->top_k; i++) picks[i] = -1;
}

/* Whole rows, for steps of many. */
static void select_rows(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                        int64_t end) {
    const index_job *job = user;
    const di_index_select_args *a = job->args;
    const int32_t *pos = cpu_at(a->batch.pos);
    for (int64_t t = begin; t < end; t++) {
        if (pos[t] < 0) continue;
        int32_t n = visible_of(a, t), *list = NULL;
        CPU_REQUIRE(n <= s->limits.max_entries);
        if (a->candidate_mode == DI_CANDIDATES_USE) {
            list = scratch->list;
            n = candidate_entries(a, t, n, list);
        }
        score_entries(s, scratch, job, t, list, 0, n, scratch->scores);
        select_row(s, scratch, a, t, list, n, scratch->scores);
    }
}

static void score_pieces(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                         int64_t end) {
    const index_job *job = user;
    int64_t last = end * CPU_BLOCK < job->n ? end * CPU_BLOCK : job->n;
    score_entries(s, scratch, job, job->row, job->list, (int32_t)begin * CPU_BLOCK, (int32_t)last,
                  job->scores);
}

/* One row after the other, entries over the team. */
static void select_split(di_stream *s, index_job *job) {
    const di_index_select_args *a = job->args;
    cpu_scratch *own = &s->scratch[0];
    for (int64_t t = 0; t < a->batch.n_rows; t++) {
        if (((const int32_t *)cpu_at(a->batch.pos))[t] < 0) continue;
        job->row = t;
        job->n = visible_of(a, t);
        CPU_REQUIRE(job->n <= s->limits.max_entries);
        job->list = NULL;
        job->scores = own->scores;
        if (a->candidate_mode == DI_CANDIDATES_USE) {
            job->n = candidate_entries(a, t, job->n, own->list);
            job->list = own->list;
        }
        int64_t pieces = ((int64_t)job->n + CPU_BLOCK - 1) / CPU_BLOCK;
        cpu_parallel(s, pieces, (pieces + 8 * s->n_members - 1) / (8 * s->n_members),
                     (int64_t)job->n * a->n_heads * a->pages.di / 16, score_pieces, job);
        select_row(s, own, a, t, job->list, job->n, job->scores);
    }
}

void cpu_op_index_select(di_stream *s, const di_index_select_args *args) {
    cpu_begin(s);
    int32_t rows = args->batch.n_rows, heads = args->n_heads, di = args->pages.di;
    if (rows == 0) return;
    index_job job = {.args = args};
    job.q = cpu_take(s, (uint64_t)rows * (uint64_t)(heads * di) * sizeof *job.q);
    job.w = cpu_take(s, (uint64_t)rows * (uint64_t)heads * sizeof *job.w);
    const float *const *qr = cpu_inputs(s, cpu_at(args->qr), rows, 1, &args->wq_b, true);
    cpu_product_rows(s, &args->wq_b, qr, job.q, rows, s->release);
    index_weights(s, &args->weights_proj, di, cpu_at(args->u), rows, job.w);
    cpu_parallel(s, rows, 1, (int64_t)rows * heads * di, quantize_queries, &job);
    if (rows < 2 * s->n_members)
        select_split(s, &job);
    else
        cpu_parallel(s, rows, 1, (int64_t)rows * 100000, select_rows, &job);
}

/* ---- the parts by themselves ---- */

void cpu_op_index_scores(di_stream *s, const di_index_scores_args *args) {
    cpu_scratch *own = &s->scratch[0];
    int64_t heads = args->n_heads, di = args->index_dim, ld = di + CPU_KEY_PAD;
    for (int64_t t = 0; t < args->n_rows; t++) {
        float *out = (float *)cpu_at(args->out) + t * args->n_keys;
        int32_t visible = ((const int32_t *)cpu_at(args->visible))[t];
        if (visible > args->n_keys) visible = args->n_keys;
        for (int32_t from = 0; from < visible; from += CPU_BLOCK) {
            int32_t n = visible - from < CPU_BLOCK ? visible - from : CPU_BLOCK;
            for (int64_t i = 0; i < n; i++)
                memcpy(own->keys + i * ld, (const float *)cpu_at(args->keys) + (from + i) * di,
                       (size_t)di * sizeof(float));
            s->k->dots((const float *)cpu_at(args->q) + t * heads * di, di, args->n_heads,
                       own->keys, ld, n, args->index_dim, own->probs, CPU_BLOCK);
            s->k->score(own->probs, CPU_BLOCK, (const float *)cpu_at(args->weights) + t * heads,
                        args->n_heads, n, s->release, out + from);
        }
        for (int32_t i = visible > 0 ? visible : 0; i < args->n_keys; i++) out[i] = -INFINITY;
    }
}

void cpu_op_candidates(di_stream *s, const di_candidates_args *args) {
    for (int64_t t = 0; t < args->n_rows; t++)
        cpu_candidate_blocks(s, &s->scratch[0],
                             (const float *)cpu_at(args->scores) + t * args->n_keys, args->n_keys,
                             ((const int32_t *)cpu_at(args->visible))[t], args->top_blocks,
                             args->block_size, (int32_t *)cpu_at(args->out) + t * args->top_blocks);
}

void cpu_op_top_k(di_stream *s, const di_top_k_args *args) {
    cpu_scratch *own = &s->scratch[0];
    for (int64_t t = 0; t < args->n_rows; t++) {
        const float *scores = (const float *)cpu_at(args->scores) + t * args->n_keys;
        int32_t *out = (int32_t *)cpu_at(args->out) + t * args->top_k, n = args->n_keys;
        const int32_t *blocks = cpu_at(args->candidates);
        if (blocks) { /* the scores that count, side by side */
            const int32_t *own_blocks = blocks + t * args->top_blocks;
            n = 0;
            for (int32_t b = 0; b < args->top_blocks && own_blocks[b] >= 0; b++) {
                int64_t first = (int64_t)own_blocks[b] * args->block_size;
                for (int64_t j = first; j < first + args->block_size && j < args->n_keys; j++) {
                    own->list[n] = (int32_t)j;
                    own->scores[n++] = scores[j];
                }
            }
        }
        int32_t count =
            cpu_best(s, blocks ? own->scores : scores, n, args->top_k, own->sort_keys, out);
        for (int32_t i = 0; i < count && blocks; i++) out[i] = own->list[out[i]];
        for (int32_t i = count; i < args->top_k; i++) out[i] = -1;
    }
}
