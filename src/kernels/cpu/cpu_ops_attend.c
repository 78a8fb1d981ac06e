/* Queries and window keys, the window ring, attention over a list, the output projection. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

typedef struct qkv_job {
    const di_qkv_args *args;
    const float *down, *kv; /* [n_rows][Q], [n_rows][d]: raw projections */
    const float *q_norm, *kv_norm;
    float *angles; /* [n_rows][dims] */
} qkv_job;

/* Norms, and the window row as it is stored. */
static void qkv_rows(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin, int64_t end) {
    const qkv_job *job = user;
    const di_qkv_args *a = job->args;
    const int32_t *pos = cpu_at(a->batch.pos);
    int64_t rank = a->wq_a.n, d = a->head_dim;
    for (int64_t t = begin; t < end; t++) {
        if (pos[t] < 0) continue;
        float *angles = job->angles + t * a->rope.dims, *kv = scratch->o;
        cpu_norm_row(s, job->down + t * rank, job->q_norm, rank, a->eps,
                     (float *)cpu_at(a->qr) + t * rank);
        cpu_norm_row(s, job->kv + t * d, job->kv_norm, d, a->eps, kv);
        cpu_angles(a->rope, pos[t], false, angles);
        cpu_rotate(s, kv, a->head_dim, a->rope.dims, angles);
        s->k->quantize_q8(kv, d, (uint8_t *)cpu_at(a->kv_codes) + t * d,
                          (uint8_t *)cpu_at(a->kv_scales) + t * (d / 32), NULL);
    }
}

static void rotate_queries(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                           int64_t end) {
    const qkv_job *job = user;
    const di_qkv_args *a = job->args;
    const int32_t *pos = cpu_at(a->batch.pos);
    (void)scratch;
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < a->n_heads && pos[t] >= 0; h++)
            cpu_rotate(s, (float *)cpu_at(a->q) + (t * a->n_heads + h) * a->head_dim, a->head_dim,
                       a->rope.dims, job->angles + t * a->rope.dims);
}

void cpu_op_qkv(di_stream *s, const di_qkv_args *args) {
    cpu_begin(s);
    int32_t rows = args->batch.n_rows, rank = args->wq_a.n, d = args->head_dim;
    if (rows == 0) return;
    float *down = cpu_take(s, (uint64_t)rows * (uint64_t)rank * sizeof *down);
    float *kv = cpu_take(s, (uint64_t)rows * (uint64_t)d * sizeof *kv);
    float *angles = cpu_take(s, (uint64_t)rows * (uint64_t)args->rope.dims * sizeof *angles);
    const float *const *u = cpu_inputs(s, cpu_at(args->u), rows, 1, &args->wq_a, true);
    const cpu_product first[2] = {
        {args->wq_a, 0, rank, u, 0, cpu_rows(s, down, rank, rows), rows, s->release},
        {args->wkv, 0, d, u, 0, cpu_rows(s, kv, d, rows), rows, s->release},
    };
    cpu_products(s, first, 2);
    qkv_job job = {args,  down, kv, cpu_vector(s, args->q_norm), cpu_vector(s, args->kv_norm),
                   angles};
    cpu_parallel(s, rows, 1, (int64_t)rows * (rank + 2 * d + 20 * args->rope.dims) / 2, qkv_rows,
                 &job);
    const float *const *qr = cpu_inputs(s, cpu_at(args->qr), rows, 1, &args->wq_b, true);
    cpu_product_rows(s, &args->wq_b, qr, cpu_at(args->q), rows, s->release);
    cpu_parallel(s, rows, 1, (int64_t)rows * args->n_heads * args->rope.dims / 2, rotate_queries,
                 &job);
}

void cpu_op_window_store(di_stream *s, const di_window_store_args *args) {
    (void)s;
    const di_batch *b = &args->batch;
    const di_row *rows = cpu_at(b->rows);
    const int32_t *pos = cpu_at(b->pos);
    int64_t d = args->head_dim, n = args->ring.ring_slots;
    for (int64_t t = 0; t < b->n_rows; t++) {
        if (pos[t] < 0) continue;
        /* A later row of the sequence takes the same place: leave it to that one. */
        bool again = t + n < b->n_rows && rows[t + n].slot == rows[t].slot &&
                     (pos[t + n] - pos[t]) % n == 0 && pos[t + n] >= 0;
        if (again) continue;
        int64_t place = rows[t].slot * n + pos[t] % n;
        memcpy((uint8_t *)cpu_at(args->ring.codes) + place * d,
               (const uint8_t *)cpu_at(args->kv_codes) + t * d, (size_t)d);
        memcpy((uint8_t *)cpu_at(args->ring.scales) + place * (d / 32),
               (const uint8_t *)cpu_at(args->kv_scales) + t * (d / 32), (size_t)d / 32);
    }
}

/* ---- attention ---- */

/* Heads h0 .. h0 + m - 1 of one row, over a list that comes block by block. */
typedef struct heads {
    const float *q;
    int32_t m, d;
    float *o, *top, *sum, *shrink, *keys;
    int64_t ld; /* of keys */
} heads;

static heads heads_start(cpu_scratch *scratch, const float *q, int32_t m, int32_t d) {
    heads h = {q,
               m,
               d,
               scratch->o,
               scratch->state,
               scratch->state + m,
               scratch->state + 2 * m,
               scratch->keys,
               d + CPU_KEY_PAD};
    memset(h.o, 0, (size_t)m * (size_t)d * sizeof *h.o);
    for (int32_t i = 0; i < m; i++) h.top[i] = -1e30f, h.sum[i] = 0;
    return h;
}

/* One block of n slots whose keys are decoded; bit i of live: slot i is not empty. */
static void heads_block(const di_stream *s, cpu_scratch *scratch, heads *h, int32_t n,
                        uint64_t live) {
    float scale = (float)(1 / sqrt((double)h->d));
    s->k->dots(h->q, h->d, h->m, h->keys, h->ld, n, h->d, scratch->probs, CPU_BLOCK);
    s->k->softmax_block(scratch->probs, h->m, live, scale, s->release, h->top, h->sum, h->shrink);
    s->k->values_block(scratch->probs, h->m, h->keys, h->ld, n, h->d, h->shrink, h->o);
}

static uint64_t low_bits(int32_t n) { return n >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1; }

typedef struct attend_job {
    const di_attend_args *args;
    const float *sink;
    int32_t parts, part_heads;
} attend_job;

/* The window positions begin .. end - 1 of a row's list. */
typedef struct span {
    int32_t begin, end;
} span;

static span window_of(const di_attend_args *a, int64_t t) {
    const di_batch *b = &a->batch;
    int32_t slot = ((const di_row *)cpu_at(b->rows))[t].slot;
    int32_t floor = b->floor.address ? ((const int32_t *)cpu_at(b->floor))[slot] : 0;
    int32_t length = ((const int32_t *)cpu_at(b->length))[slot];
    int32_t now = ((const int32_t *)cpu_at(b->pos))[t] + 1;
    int32_t begin = (a->block ? length : now) - a->window;
    return (span){begin > floor ? begin : floor, a->block ? length + a->block : now};
}

/* Where `n` window keys of row t from position `at` on lie. */
static void find_window(const di_attend_args *a, int64_t t, int32_t at, int32_t n, cpu_coded *out) {
    int32_t slot = ((const di_row *)cpu_at(a->batch.rows))[t].slot, slots = a->ring.ring_slots;
    int32_t length = ((const int32_t *)cpu_at(a->batch.length))[slot], place = at % slots;
    int64_t first = ((const int32_t *)cpu_at(a->batch.first))[t], d = a->head_dim;
    for (int32_t i = 0; i < n; i++, at++) {
        bool now = at >= length; /* a row of the step */
        int64_t row = now ? first + (at - length) : (int64_t)slot * slots + place;
        const uint8_t *codes = cpu_at(now ? a->kv_codes : a->ring.codes);
        const uint8_t *scales = cpu_at(now ? a->kv_scales : a->ring.scales);
        out[i] = (cpu_coded){codes + row * d, scales + row * (d / 32)};
        if (++place == slots) place = 0;
    }
}

/* Keys begin .. begin + n - 1 of row t's list: window positions, then picks. */
static void decode_keys(const di_stream *s, cpu_coded *coded, const di_attend_args *a, int64_t t,
                        span window, int32_t begin, int32_t n, float *keys, int64_t ld) {
    int32_t slot = ((const di_row *)cpu_at(a->batch.rows))[t].slot;
    int32_t in_window = window.end - window.begin - begin;
    if (in_window > n) in_window = n;
    if (in_window > 0) {
        find_window(a, t, window.begin + begin, in_window, coded);
        s->k->decode_rows_q8(coded, in_window, a->head_dim, keys, ld);
    } else {
        in_window = 0;
    }
    const int32_t *picks = cpu_at(a->picks);
    int64_t first = t * a->top_k + begin + in_window - (window.end - window.begin);
    for (int32_t i = 0; i < n - in_window; i++) {
        cpu_entry entry = cpu_page_entry(&a->pages, slot, picks[first + i]);
        coded[i] = (cpu_coded){entry.codes, entry.scales};
    }
    s->k->decode_rows_q4c(coded, n - in_window, a->head_dim, keys + in_window * ld, ld);
}

/* How many picks row t has. They lie scattered, so they are fetched before they are needed. */
static int32_t fetch_picks(const di_attend_args *a, int64_t t) {
    int32_t slot = ((const di_row *)cpu_at(a->batch.rows))[t].slot, n = 0;
    const int32_t *picks = cpu_at(a->picks);
    for (; n < a->top_k && picks[t * a->top_k + n] >= 0; n++) {
        cpu_entry entry = cpu_page_entry(&a->pages, slot, picks[t * a->top_k + n]);
        __builtin_prefetch(entry.codes);
        __builtin_prefetch(entry.scales);
    }
    return n;
}

static void attend_part(di_stream *s, cpu_scratch *scratch, const attend_job *job, int64_t t,
                        int32_t h0) {
    const di_attend_args *a = job->args;
    int32_t pos = ((const int32_t *)cpu_at(a->batch.pos))[t], d = a->head_dim;
    int32_t m = a->n_heads - h0 < job->part_heads ? a->n_heads - h0 : job->part_heads;
    if (pos < 0 || m <= 0) return;
    int64_t at = (t * a->n_heads + h0) * d;
    span window = window_of(a, t);
    int32_t n = window.end - window.begin + fetch_picks(a, t);
    heads h = heads_start(scratch, (const float *)cpu_at(a->q) + at, m, d);
    for (int32_t begin = 0; begin < n; begin += CPU_BLOCK) {
        int32_t here = n - begin < CPU_BLOCK ? n - begin : CPU_BLOCK;
        decode_keys(s, scratch->coded, a, t, window, begin, here, h.keys, h.ld);
        heads_block(s, scratch, &h, here, low_bits(here));
    }
    float *out = (float *)cpu_at(a->out) + at, *angles = scratch->angles;
    s->k->attend_end(h.o, m, d, h.top, h.sum, job->sink + h0, s->release, out);
    cpu_angles(a->rope, pos, true, angles);
    for (int32_t i = 0; i < m; i++) cpu_rotate(s, out + (int64_t)i * d, d, a->rope.dims, angles);
}

static void attend_parts(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                         int64_t end) {
    const attend_job *job = user;
    for (int64_t i = begin; i < end; i++)
        attend_part(s, scratch, job, i / job->parts, (int32_t)(i % job->parts) * job->part_heads);
}

/* Heads are split only when there are too few rows: every part decodes the keys anew. */
void cpu_op_attend(di_stream *s, const di_attend_args *args) {
    cpu_begin(s);
    int32_t rows = args->batch.n_rows, parts = rows < 2 * s->n_members ? s->n_members : 1;
    int32_t part_heads = (args->n_heads + parts - 1) / parts;
    part_heads = (part_heads + 3) / 4 * 4; /* value tiles take four */
    attend_job job = {args, cpu_vector(s, args->sink), parts, part_heads};
    int64_t list = args->window + args->top_k;
    cpu_parallel(s, (int64_t)rows * parts, 1,
                 (int64_t)rows * list * args->head_dim * args->n_heads / 16, attend_parts, &job);
}

typedef struct attend_list_job {
    const di_attend_list_args *args;
    const float *sink;
} attend_list_job;

static void attend_list_rows(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                             int64_t end) {
    const attend_list_job *job = user;
    const di_attend_list_args *a = job->args;
    int32_t d = a->head_dim, m = a->n_heads;
    for (int64_t t = begin; t < end; t++) {
        const int32_t *slots = (const int32_t *)cpu_at(a->slots) + t * a->n_slots;
        int64_t at = t * m * d;
        heads h = heads_start(scratch, (const float *)cpu_at(a->q) + at, m, d);
        for (int32_t first = 0; first < a->n_slots; first += CPU_BLOCK) {
            int32_t here = a->n_slots - first < CPU_BLOCK ? a->n_slots - first : CPU_BLOCK;
            uint64_t live = 0;
            for (int32_t i = 0; i < here; i++) {
                float *key = h.keys + i * h.ld;
                int64_t from = slots[first + i];
                if (from < 0) {
                    memset(key, 0, (size_t)d * sizeof *key); /* 0 * key must be 0 */
                    continue;
                }
                live |= UINT64_C(1) << i;
                memcpy(key, (const float *)cpu_at(a->keys) + from * d, (size_t)d * sizeof *key);
            }
            heads_block(s, scratch, &h, here, live);
        }
        s->k->attend_end(h.o, m, d, h.top, h.sum, job->sink, s->release,
                         (float *)cpu_at(a->out) + at);
    }
}

void cpu_op_attend_list(di_stream *s, const di_attend_list_args *args) {
    cpu_begin(s);
    attend_list_job job = {args, cpu_vector(s, args->sink)};
    cpu_parallel(s, args->n_rows, 1,
                 (int64_t)args->n_rows * args->n_slots * args->head_dim * args->n_heads / 16,
                 attend_list_rows, &job);
}

void cpu_op_attn_out(di_stream *s, const di_attn_out_args *args) {
    cpu_begin(s);
    int32_t rows = args->n_rows, groups = args->groups, n = args->wo_a.n;
    if (rows == 0) return;
    int64_t stride = cpu_input_width(args->wo_a.dtype, args->wo_a.k);
    float *low = cpu_take(s, (uint64_t)rows * (uint64_t)n * sizeof *low);
    const float *const *o = cpu_inputs(s, cpu_at(args->o), rows, groups, &args->wo_a, false);
    cpu_product *products = cpu_take(s, (uint64_t)groups * sizeof *products);
    for (int32_t g = 0; g < groups; g++) {
        int32_t first = n / groups * g;
        products[g] = (cpu_product){args->wo_a, first,      first + n / groups,
                                    o,          g * stride, cpu_rows(s, low + first, n, rows),
                                    rows,       s->release};
    }
    cpu_products(s, products, groups);
    const float *const *x = cpu_inputs(s, low, rows, 1, &args->wo_b, true);
    cpu_product_rows(s, &args->wo_b, x, cpu_at(args->out), rows, s->release);
}
