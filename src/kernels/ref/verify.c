/* Twins: which drafts are verified, and which of them stand (dspark.md 6 and 8). */
#include <math.h>

#include "kernels/allot.h"
#include "kernels/ref/ref.h"
#include "kernels/reject.h"

static int32_t draft_of(const di_stream *s, const di_allot_args *args, const di_block *block,
                        int32_t k) {
    return ref_ints(s, args->drafts)[(int64_t)k * args->n_columns + block->column];
}

static void survivals(const di_stream *s, const di_allot_args *args, const di_block *block,
                      double *out) {
    const float *temperatures = ref_at(s, args->temperatures);
    double a = 1;
    REF_REQUIRE(block->law >= 0 && block->law < DI_LAWS);
    for (int32_t k = 0; k < args->block && k < block->most; k++) {
        double logit =
            ref_doubles(s, args->confidence)[(int64_t)k * args->n_columns + block->column];
        if (k > 0 && draft_of(s, args, block, k - 1) < 0) logit = NAN;
        a *= di_allot_confidence(logit, (double)temperatures[block->law * args->block + k]);
        out[k] = a;
    }
}

/* How many drafts of every block. */
static void choose(di_stream *s, const di_allot_args *args, int32_t *lengths) {
    const di_block *blocks = ref_at(s, args->blocks);
    int32_t n = args->n_blocks;
    memset(lengths, 0, (size_t)n * sizeof *lengths);
    if (args->n_drafts == 0) return;
    double *survival = ref_take(s, (int64_t)n * args->block);
    int32_t *limit = ref_take_ints(s, n), *heap = ref_take_ints(s, n);
    for (int32_t b = 0; b < n; b++) {
        limit[b] = blocks[b].most;
        if (limit[b] > 0) survivals(s, args, &blocks[b], survival + (int64_t)b * args->block);
    }
    di_allot_batch batch = {n, args->block, survival, limit};
    int32_t taken = di_allot_choose(&batch, args->n_drafts, lengths, heap);
    REF_REQUIRE(taken == args->n_drafts);
}

void ref_allot(di_stream *s, const di_allot_args *args) {
    ref_begin(s);
    const di_block *blocks = ref_at(s, args->blocks);
    di_row *rows = ref_at(s, args->rows);
    REF_REQUIRE(args->block <= DI_OPS_MAX_BLOCK);
    int32_t *lengths = ref_take_ints(s, args->n_blocks), row = 0;
    choose(s, args, lengths);
    for (int32_t b = 0; b < args->n_blocks; b++) {
        int32_t begin = row, slot = blocks[b].slot;
        for (int32_t k = 0; k <= lengths[b]; k++, row++) {
            int32_t token =
                k == 0 ? ref_ints(s, args->next_token)[slot] : draft_of(s, args, &blocks[b], k - 1);
            if (k > 0 && token < 0) token = 0;
            rows[row] = (di_row){token, slot, k};
            ref_ints(s, args->which)[row] = row;
            ref_ints(s, args->slot)[row] = slot;
            ref_ints(s, args->param_of)[row] = b;
            ref_ints(s, args->extra_at)[row] = begin + 1;
            ref_ints(s, args->n_extra)[row] = k;
        }
        ref_ints(s, args->n_rows)[b] = 1 + lengths[b];
    }
}

/* Draft k of a block, which stands in out row i + 1: its verdict by rejection. token: what plain
 * decoding drew from row i. */
static di_verdict verdict(di_stream *s, const di_accept_args *args, int64_t i, int32_t column,
                          int32_t k, int32_t draft, int32_t token) {
    const di_sample_args *sample = &args->sample;
    int64_t vocab = sample->vocab;
    ref_begin(s);
    double *p = ref_take(s, vocab), *q = ref_take(s, vocab);
    const double *of_row = ref_doubles(s, sample->logits) + i * vocab;
    const double *of_draft =
        ref_doubles(s, args->draft_logits) + ((int64_t)k * args->n_columns + column) * vocab;
    REF_REQUIRE(ref_process(s, sample, i, of_row, p)); /* sample has drawn a token */
    if (!ref_process(s, sample, i, of_draft, q)) return (di_verdict){false, token};
    int64_t position = (int64_t)ref_ints(s, sample->pos)[ref_ints(s, sample->which)[i]] + 1;
    return di_reject_draft(p, q, sample->vocab, draft, ref_params(s, sample, i)->seed, position);
}

static void set_token(di_stream *s, const di_sample_args *sample, int64_t i, int32_t token) {
    float logprob = 0;
    if (token >= 0) {
        const double *logits = ref_doubles(s, sample->logits) + i * sample->vocab;
        logprob = (float)ref_log_softmax(logits, sample->vocab, token);
    }
    ref_ints(s, sample->token)[i] = token;
    memcpy(ref_bytes(s, sample->logprob) + 4 * i, &logprob, 4);
}

/* Rows begin .. begin + n of one block: how many drafts stand. */
static int32_t accepted(di_stream *s, const di_accept_args *args, const di_block *block,
                        int64_t begin, int32_t n) {
    const int32_t *token = ref_ints(s, args->sample.token);
    int32_t m = 0;
    for (; m + 1 < n && token[begin + m] >= 0; m++) {
        int64_t i = begin + m;
        int32_t draft = ref_ints(s, args->row_token)[ref_ints(s, args->sample.which)[i + 1]];
        if (!block->reject) {
            if (draft != token[i]) break;
            continue;
        }
        di_verdict v = verdict(s, args, i, block->column, m, draft, token[i]);
        set_token(s, &args->sample, i, v.token);
        if (!v.stands) break;
    }
    return m;
}

void ref_accept(di_stream *s, const di_accept_args *args) {
    const di_block *blocks = ref_at(s, args->blocks);
    int64_t begin = 0;
    for (int32_t b = 0; b < args->n_blocks; b++) {
        int32_t n = ref_ints(s, args->n_rows)[b], slot = blocks[b].slot;
        REF_REQUIRE(n >= 1 && n - 1 <= args->block && begin + n <= args->sample.n_out);
        int32_t m = accepted(s, args, &blocks[b], begin, n);
        for (int64_t i = begin + m + 1; i < begin + n; i++) set_token(s, &args->sample, i, -1);
        int32_t last = ref_ints(s, args->sample.token)[begin + m];
        if (last >= 0) ref_ints(s, args->sample.next_token)[slot] = last;
        ref_ints(s, args->n_valid)[slot] = m + 1;
        begin += n;
    }
}
