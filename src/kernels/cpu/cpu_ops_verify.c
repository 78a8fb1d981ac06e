/* Which drafts are verified, and which of them stand. */
#include <math.h>
#include <string.h>

#include "kernels/allot.h"
#include "kernels/cpu/cpu_logits.h"
#include "kernels/reject.h"

static int32_t draft_of(const di_allot_args *a, const di_block *block, int32_t k) {
    return ((const int32_t *)cpu_at(a->drafts))[(int64_t)k * a->n_columns + block->column];
}

static void survivals(const di_allot_args *a, const di_block *block, double *out) {
    const float *temperature = (const float *)cpu_at(a->temperatures) + block->law * a->block;
    const float *confidence = (const float *)cpu_at(a->confidence) + block->column;
    double survival = 1;
    for (int32_t k = 0; k < a->block && k < block->most; k++) {
        float logit = confidence[(int64_t)k * a->n_columns];
        if (k > 0 && draft_of(a, block, k - 1) < 0) survival = 0; /* it was not computed */
        survival *= di_allot_confidence((double)logit, (double)temperature[k]);
        out[k] = survival;
    }
}

static void choose(di_stream *s, const di_allot_args *a, int32_t *lengths) {
    const di_block *blocks = cpu_at(a->blocks);
    uint64_t n = (uint64_t)a->n_blocks;
    memset(lengths, 0, n * sizeof *lengths);
    if (a->n_drafts == 0) return;
    double *survival = cpu_take(s, n * (uint64_t)a->block * sizeof *survival);
    int32_t *limit = cpu_take(s, n * 4), *heap = cpu_take(s, n * 4);
    for (int32_t b = 0; b < a->n_blocks; b++) {
        limit[b] = blocks[b].most;
        if (limit[b] > 0) survivals(a, &blocks[b], survival + (int64_t)b * a->block);
    }
    di_allot_batch batch = {a->n_blocks, a->block, survival, limit};
    int32_t taken = di_allot_choose(&batch, a->n_drafts, lengths, heap);
    CPU_REQUIRE(taken == a->n_drafts);
}

void cpu_op_allot(di_stream *s, const di_allot_args *a) {
    cpu_begin(s);
    CPU_REQUIRE(a->block <= DI_OPS_MAX_BLOCK);
    const di_block *blocks = cpu_at(a->blocks);
    const int32_t *next_token = cpu_at(a->next_token);
    di_row *rows = cpu_at(a->rows);
    int32_t *which = cpu_at(a->which), *slot = cpu_at(a->slot), *param_of = cpu_at(a->param_of);
    int32_t *extra_at = cpu_at(a->extra_at), *n_extra = cpu_at(a->n_extra);
    int32_t *n_rows = cpu_at(a->n_rows), t = 0;
    int32_t *lengths = cpu_take(s, (uint64_t)a->n_blocks * 4);
    choose(s, a, lengths);
    for (int32_t b = 0; b < a->n_blocks; b++) {
        const di_block *block = &blocks[b];
        int32_t begin = t;
        for (int32_t k = 0; k <= lengths[b]; k++, t++) {
            int32_t token = k == 0 ? next_token[block->slot] : draft_of(a, block, k - 1);
            rows[t] = (di_row){k > 0 && token < 0 ? 0 : token, block->slot, k};
            which[t] = t;
            slot[t] = block->slot;
            param_of[t] = b;
            extra_at[t] = begin + 1;
            n_extra[t] = k;
        }
        n_rows[b] = 1 + lengths[b];
    }
}

/* ---- Acceptance ---- */

typedef struct accept_job {
    const di_accept_args *args;
    const int32_t *begin; /* [n_blocks]: out rows of the blocks */
} accept_job;

static const float *logits_of(const di_sample_args *a, int64_t i) {
    return (const float *)cpu_at(a->logits) + i * a->vocab;
}

/* Draft k of a block, the one in the row behind i, by rejection. The row's token is plain
 * decoding's. */
static di_verdict verdict(const di_stream *s, const cpu_scratch *scratch,
                          const di_accept_args *args, const di_block *block, int64_t i, int32_t k,
                          int32_t draft) {
    const di_sample_args *a = &args->sample;
    const float *of_draft = (const float *)cpu_at(args->draft_logits) +
                            ((int64_t)k * args->n_columns + block->column) * a->vocab;
    int32_t token = ((const int32_t *)cpu_at(a->token))[i];
    int32_t pos = ((const int32_t *)cpu_at(a->pos))[((const int32_t *)cpu_at(a->which))[i]];
    cpu_logits p = cpu_logits_of(s->k, a, i, logits_of(a, i), scratch->x, scratch->ids);
    cpu_logits q = cpu_logits_of(s->k, a, i, of_draft, scratch->q, scratch->ids);
    if (!cpu_logits_process(&q)) return (di_verdict){false, token};
    bool good = cpu_logits_process(&p);
    CPU_REQUIRE(good); /* sample has drawn a token */
    return di_reject_draft(p.x, q.x, a->vocab, draft, p.p->seed, (int64_t)pos + 1);
}

static void set_token(const di_stream *s, const di_sample_args *a, int64_t i, int32_t token) {
    int32_t *at = (int32_t *)cpu_at(a->token) + i;
    float *logprob = (float *)cpu_at(a->logprob) + i;
    if (*at == token) return;
    *at = token;
    *logprob = 0;
    if (token < 0) return;
    bool bad;
    float top = s->k->max(logits_of(a, i), a->vocab, &bad);
    *logprob = cpu_logprob(s->k, logits_of(a, i), a->vocab, top, token);
}

/* How many drafts of a block stand; its n rows are out rows begin, begin + 1, ... */
static int32_t accepted(const di_stream *s, const cpu_scratch *scratch, const di_accept_args *args,
                        const di_block *block, int64_t begin, int32_t n) {
    const int32_t *token = (const int32_t *)cpu_at(args->sample.token) + begin;
    const int32_t *which = (const int32_t *)cpu_at(args->sample.which) + begin;
    const int32_t *row_token = cpu_at(args->row_token);
    int32_t m = 0;
    for (; m + 1 < n && token[m] >= 0; m++) {
        int32_t draft = row_token[which[m + 1]];
        if (!block->reject) {
            if (draft != token[m]) break;
            continue;
        }
        di_verdict v = verdict(s, scratch, args, block, begin + m, m, draft);
        set_token(s, &args->sample, begin + m, v.token);
        if (!v.stands) break;
    }
    return m;
}

static void accept_blocks(di_stream *s, cpu_scratch *scratch, void *user, int64_t first,
                          int64_t end) {
    const accept_job *job = user;
    const di_accept_args *args = job->args;
    for (int64_t b = first; b < end; b++) {
        const di_block *block = (const di_block *)cpu_at(args->blocks) + b;
        int32_t n = ((const int32_t *)cpu_at(args->n_rows))[b], begin = job->begin[b];
        int32_t m = accepted(s, scratch, args, block, begin, n);
        for (int32_t i = m + 1; i < n; i++) set_token(s, &args->sample, begin + i, -1);
        int32_t last = ((const int32_t *)cpu_at(args->sample.token))[begin + m];
        if (last >= 0) ((int32_t *)cpu_at(args->sample.next_token))[block->slot] = last;
        ((int32_t *)cpu_at(args->n_valid))[block->slot] = m + 1;
    }
}

void cpu_op_accept(di_stream *s, const di_accept_args *args) {
    cpu_begin(s);
    const di_block *blocks = cpu_at(args->blocks);
    const int32_t *n_rows = cpu_at(args->n_rows);
    int32_t *begin = cpu_take(s, (uint64_t)args->n_blocks * 4), total = 0;
    int64_t work = 0;
    for (int32_t b = 0; b < args->n_blocks; b++) {
        begin[b] = total;
        total += n_rows[b];
        if (blocks[b].reject) work += (int64_t)(n_rows[b] - 1) * args->sample.vocab * 40;
    }
    CPU_REQUIRE(total <= args->sample.n_out && args->sample.vocab <= s->limits.vocab);
    accept_job job = {args, begin};
    cpu_parallel(s, args->n_blocks, 1, work, accept_blocks, &job);
}
