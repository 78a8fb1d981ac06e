/* The step's rows, token history, embedding, and Engram. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

void cpu_op_step_begin(di_stream *s, const di_step_begin_args *args) {
    (void)s;
    const di_batch *b = &args->batch;
    const di_row *rows = cpu_at(b->rows);
    const int32_t *length = cpu_at(b->length), *n_valid = cpu_at(b->n_valid);
    const int32_t *next_token = cpu_at(b->next_token);
    int32_t *pos = cpu_at(b->pos), *first = cpu_at(b->first), *token = cpu_at(b->token);
    for (int32_t t = 0; t < b->n_rows; t++) {
        int32_t slot = rows[t].slot, offset = rows[t].offset;
        pos[t] = offset < n_valid[slot] ? length[slot] + offset : -1;
        first[t] = t - offset;
        token[t] = rows[t].token == DI_TOKEN_NEXT ? next_token[slot] : rows[t].token;
    }
}

void cpu_op_step_end(di_stream *s, const di_step_end_args *args) {
    (void)s;
    const di_batch *b = &args->batch;
    const di_row *rows = cpu_at(b->rows);
    const int32_t *pos = cpu_at(b->pos), *token = cpu_at(b->token);
    int32_t *length = cpu_at(b->length), *history = cpu_at(args->history);
    int32_t *n_valid = cpu_at(b->n_valid);
    for (int32_t t = 0; t < b->n_rows; t++) {
        if (pos[t] < 0 || rows[t].offset >= n_valid[rows[t].slot]) continue;
        history[(int64_t)rows[t].slot * args->history_slots + pos[t] % args->history_slots] =
            token[t];
        length[rows[t].slot]++;
    }
    for (int32_t t = 0; t < b->n_rows; t++) n_valid[rows[t].slot] = INT32_MAX;
}

void cpu_op_rewind(di_stream *s, const di_rewind_args *args) {
    (void)s;
    int32_t *length = cpu_at(args->length);
    const int32_t *count = cpu_at(args->count);
    for (int32_t i = 0; i < args->n_slots; i++) length[i] -= count[i];
}

static void embed_rows(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin, int64_t end) {
    const di_embed_args *a = user;
    const di_matrix *w = &a->embed;
    const int32_t *pos = cpu_at(a->batch.pos), *token = cpu_at(a->batch.token);
    (void)scratch;
    for (int64_t t = begin; t < end; t++) {
        if (pos[t] < 0) continue;
        float *out = (float *)cpu_at(a->streams) + t * a->hc * w->k, *pre = cpu_at(a->pre);
        const uint8_t *row = cpu_at(w->data);
        if (w->dtype == DI_BF16)
            s->k->bf16_to_f32(row + (int64_t)token[t] * w->k * 2, out, w->k);
        else
            memcpy(out, row + (int64_t)token[t] * w->k * 4, (size_t)w->k * 4);
        for (int64_t j = 0; j < a->hc; j++) {
            if (j > 0) memcpy(out + j * w->k, out, (size_t)w->k * sizeof *out);
            pre[t * a->hc + j] = j == 0 ? 1.0f : 0.0f;
        }
    }
}

void cpu_op_embed(di_stream *s, const di_embed_args *args) {
    di_embed_args a = *args;
    int64_t rows = a.batch.n_rows;
    CPU_REQUIRE(a.embed.dtype == DI_BF16 || a.embed.dtype == DI_F32);
    cpu_parallel(s, rows, 1, rows * a.hc * a.embed.k / 8, embed_rows, &a);
}

/* ---- Engram ---- */

/* y_k of row t (see di_engram_hash_args). */
static int64_t token_class(const di_engram_hash_args *a, int32_t t, int64_t position) {
    const di_batch *b = &a->batch;
    int32_t slot = ((const di_row *)cpu_at(b->rows))[t].slot;
    int32_t length = ((const int32_t *)cpu_at(b->length))[slot], token;
    if (position < 0) return a->pad_class;
    if (position >= length)
        token = ((const int32_t *)cpu_at(
            b->token))[((const int32_t *)cpu_at(b->first))[t] + (position - length)];
    else
        token = ((const int32_t *)cpu_at(
            a->history))[(int64_t)slot * a->history_slots + position % a->history_slots];
    return ((const int32_t *)cpu_at(a->token_map))[token];
}

void cpu_op_engram_hash(di_stream *s, const di_engram_hash_args *args) {
    (void)s;
    const di_batch *b = &args->batch;
    const int64_t *multipliers = cpu_at(args->multipliers);
    const int64_t *primes = cpu_at(args->primes), *offsets = cpu_at(args->offsets);
    int64_t n_heads = args->n_heads, columns = (args->max_ngram - 1) * n_heads;
    CPU_REQUIRE(args->max_ngram <= DI_OPS_MAX_NGRAM);
    for (int32_t t = 0; t < b->n_rows; t++) {
        int32_t pos = ((const int32_t *)cpu_at(b->pos))[t];
        int64_t y[DI_OPS_MAX_NGRAM];
        if (pos < 0) continue;
        for (int32_t k = 0; k < args->max_ngram; k++) y[k] = token_class(args, t, (int64_t)pos - k);
        for (int64_t layer = 0; layer < args->n_layers; layer++) {
            const int64_t *m = multipliers + layer * args->max_ngram;
            int64_t *out = (int64_t *)cpu_at(args->table_rows) + (layer * b->n_rows + t) * columns;
            int64_t hash = y[0] * m[0];
            for (int32_t n = 1; n < args->max_ngram; n++) {
                hash ^= y[n] * m[n];
                for (int64_t c = (n - 1) * n_heads; c < n * n_heads; c++)
                    out[c] = hash % primes[layer * columns + c] + offsets[layer * columns + c];
            }
        }
    }
}

static void table_rows(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin, int64_t end) {
    const di_engram_rows_args *a = user;
    const int32_t *pos = cpu_at(a->pos);
    const int64_t *rows = cpu_at(a->table_rows);
    int64_t width = a->width;
    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        if (pos && pos[i / a->n_columns] < 0) continue;
        s->k->decode_q8((const uint8_t *)cpu_at(a->codes) + rows[i] * width,
                        (const uint8_t *)cpu_at(a->scales) + rows[i] * (width / 32), width,
                        (float *)cpu_at(a->out) + i * width);
    }
}

void cpu_op_engram_rows(di_stream *s, const di_engram_rows_args *args) {
    di_engram_rows_args a = *args;
    int64_t n = (int64_t)a.n_rows * a.n_columns;
    /* Each row of a large table is a page fault or at least a cache miss of its own. */
    cpu_parallel(s, n, 4, n * (a.width / 4 + 200), table_rows, &a);
}

typedef struct gate_job {
    const di_engram_gate_args *args;
    const float *q, *k;
} gate_job;

static void gate_streams(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                         int64_t end) {
    const gate_job *job = user;
    const di_engram_gate_args *a = job->args;
    int64_t d = a->width, hc = a->hc;
    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i / hc, j = i % hc;
        const float *kv = (const float *)cpu_at(a->kv) + t * (hc + 1) * d, *key = kv + j * d;
        float *h = (float *)cpu_at(a->streams) + i * d, *gates = cpu_at(a->gate);
        double dot = (double)s->k->gate_dot(h, job->q + j * d, job->k + j * d, key, d);
        double norm_h = (double)s->k->sum_squares(h, d) / (double)d + a->eps;
        double norm_k = (double)s->k->sum_squares(key, d) / (double)d + a->eps;
        dot /= sqrt(norm_h) * sqrt(norm_k) * sqrt((double)d);
        double z = copysign(sqrt(fmax(fabs(dot), 1e-6)), dot);
        float gate = (float)(1 / (1 + exp(-z)));
        s->k->add_scaled(h, gate, kv + hc * d, d, s->release);
        if (gates) gates[i] = gate;
    }
}

void cpu_op_engram_gate(di_stream *s, const di_engram_gate_args *args) {
    cpu_begin(s);
    const di_matrix *q = &args->q_weight, *k = &args->k_weight;
    int32_t n = args->hc * args->width;
    gate_job job = {args, cpu_vector(s, (di_vector){q->dtype, n, q->data}),
                    cpu_vector(s, (di_vector){k->dtype, n, k->data})};
    int64_t items = (int64_t)args->n_rows * args->hc;
    cpu_parallel(s, items, 1, items * args->width, gate_streams, &job);
}
