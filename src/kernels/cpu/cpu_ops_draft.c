/* What only the draft layers do: window rows without queries, and the step of the token loop. */
#include <string.h>

#include "kernels/cpu/cpu.h"

typedef struct window_job {
    const di_window_kv_args *args;
    const float *kv, *norm; /* [n_rows][d]: raw projections */
} window_job;

static void window_rows(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                        int64_t end) {
    const window_job *job = user;
    const di_window_kv_args *a = job->args;
    const int32_t *pos = cpu_at(a->batch.pos);
    int64_t d = a->head_dim;
    for (int64_t t = begin; t < end; t++) {
        if (pos[t] < 0) continue;
        float *kv = scratch->o, *angles = scratch->angles;
        cpu_norm_row(s, job->kv + t * d, job->norm, d, a->eps, kv);
        cpu_angles(a->rope, pos[t], false, angles);
        cpu_rotate(s, kv, a->head_dim, a->rope.dims, angles);
        s->k->quantize_q8(kv, d, (uint8_t *)cpu_at(a->kv_codes) + t * d,
                          (uint8_t *)cpu_at(a->kv_scales) + t * (d / 32), NULL);
    }
}

void cpu_op_window_kv(di_stream *s, const di_window_kv_args *args) {
    cpu_begin(s);
    int32_t rows = args->batch.n_rows, d = args->head_dim;
    if (rows == 0) return;
    float *kv = cpu_take(s, (uint64_t)rows * (uint64_t)d * sizeof *kv);
    const float *const *u = cpu_inputs(s, cpu_at(args->u), rows, 1, &args->wkv, true);
    cpu_product_rows(s, &args->wkv, u, kv, rows, s->release);
    window_job job = {args, kv, cpu_vector(s, args->kv_norm)};
    cpu_parallel(s, rows, 1, (int64_t)rows * (d + 20 * args->rope.dims), window_rows, &job);
}

/* Adds the base row to the bias that stands in a sequence's logits. */
static void add_base(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin, int64_t end) {
    const di_markov_args *a = user;
    (void)s;
    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        const float *base = (const float *)cpu_at(a->base) + i * a->vocab;
        float *logits = (float *)cpu_at(a->logits) + i * a->vocab;
        for (int64_t v = 0; v < a->vocab; v++) logits[v] += base[v];
    }
}

void cpu_op_markov(di_stream *s, const di_markov_args *args) {
    cpu_begin(s);
    di_markov_args a = *args;
    int32_t rank = a.embed.k;
    const int32_t *prev = cpu_at(a.prev);
    uint64_t e_width = (uint64_t)cpu_input_width(a.head.dtype, rank);
    uint64_t joined_width = (uint64_t)cpu_input_width(a.proj.dtype, (int64_t)a.width + rank);
    uint64_t n = (uint64_t)a.n;
    if (a.n == 0) return;
    /* Product inputs with their filling, made here so that no copies are needed. */
    float *joined = cpu_take(s, n * joined_width * sizeof *joined);
    float *embedded = cpu_take(s, n * e_width * sizeof *embedded);
    const float **joined_rows = cpu_take(s, n * sizeof *joined_rows);
    const float **rows = cpu_take(s, n * sizeof *rows);
    memset(joined, 0, n * joined_width * sizeof *joined);
    memset(embedded, 0, n * e_width * sizeof *embedded);
    for (uint64_t i = 0; i < n; i++) {
        int32_t token = prev[i * (uint64_t)a.prev_stride];
        float *e = embedded + i * e_width, *row = joined + i * joined_width;
        rows[i] = e;
        joined_rows[i] = row;
        if (token >= 0) {
            s->k->bf16_to_f32((const uint8_t *)cpu_at(a.embed.data) + (int64_t)token * rank * 2, e,
                              rank);
        }
        memcpy(row, (const float *)cpu_at(a.hidden) + (int64_t)i * a.hidden_stride * a.width,
               (size_t)a.width * sizeof *row);
        memcpy(row + a.width, e, (size_t)rank * sizeof *row);
    }
    cpu_product_rows(s, &a.head, rows, cpu_at(a.logits), a.n, false);
    cpu_product_rows(s, &a.proj, joined_rows, cpu_at(a.confidence), a.n, false);
    cpu_parallel(s, a.n, 1, (int64_t)a.n * a.vocab / 4, add_base, &a);
}
