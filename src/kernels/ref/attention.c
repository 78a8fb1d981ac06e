/* Twins: queries and window keys, RoPE, attention over a list, the output projection. */
#include <math.h>

#include "kernels/ref/ref.h"

void ref_rope_vector(const di_stream *s, const di_rope *rope, int32_t position, bool inverse,
                     double *x, int64_t width) {
    const uint8_t *freq = ref_bytes(s, rope->freq);
    double *tail = x + width - rope->dims;
    REF_REQUIRE(rope->dims % 2 == 0 && rope->dims <= width);
    for (int32_t i = 0; i < rope->dims / 2; i++) {
        float f;
        memcpy(&f, freq + 4 * i, 4);
        float angle = (float)position * f;
        double c = ref_f(s, cos((double)angle)), n = ref_f(s, sin((double)angle));
        if (inverse) n = -n;
        double even = tail[2 * i], odd = tail[2 * i + 1];
        tail[2 * i] = ref_a(s, even * c - odd * n);
        tail[2 * i + 1] = ref_a(s, even * n + odd * c);
    }
}

void ref_rope(di_stream *s, const di_rope_args *args) {
    for (int64_t v = 0; v < (int64_t)args->n_rows * args->n_heads; v++) {
        ref_rope_vector(s, &args->rope, ref_ints(s, args->positions)[v / args->n_heads],
                        args->inverse, ref_doubles(s, args->x) + v * args->width, args->width);
    }
}

/* Row t of the window from its projection kv, which is changed. */
static void window_row(const di_stream *s, const di_window_kv_args *args, int64_t t, int32_t pos,
                       double *kv) {
    int64_t d = args->head_dim;
    ref_norm_row(s, kv, d, args->eps, &args->kv_norm, kv);
    ref_rope_vector(s, &args->rope, pos, false, kv, d);
    ref_quantize_vector(s, DI_Q8, kv, d, ref_bytes(s, args->kv_codes) + t * d,
                        ref_bytes(s, args->kv_scales) + t * (d / 32));
}

void ref_qkv(di_stream *s, const di_qkv_args *args) {
    ref_begin(s);
    int64_t rows = args->batch.n_rows, rank = args->wq_a.n, d = args->head_dim;
    const double *u = ref_doubles(s, args->u);
    double *qr = ref_doubles(s, args->qr), *q = ref_doubles(s, args->q);
    double *kv = ref_take(s, rows * d);
    const di_window_kv_args window = {.head_dim = args->head_dim,
                                      .eps = args->eps,
                                      .rope = args->rope,
                                      .kv_norm = args->kv_norm,
                                      .kv_codes = args->kv_codes,
                                      .kv_scales = args->kv_scales};
    ref_linear_rows(s, &args->wq_a, u, rows, true, false, qr);
    for (int64_t t = 0; t < rows; t++) {
        ref_norm_row(s, qr + t * rank, rank, args->eps, &args->q_norm, qr + t * rank);
    }
    ref_linear_rows(s, &args->wq_b, qr, rows, true, false, q);
    ref_linear_rows(s, &args->wkv, u, rows, true, false, kv);
    for (int64_t t = 0; t < rows; t++) {
        int32_t pos = ref_ints(s, args->batch.pos)[t];
        if (pos < 0) continue;
        for (int64_t h = 0; h < args->n_heads; h++) {
            ref_rope_vector(s, &args->rope, pos, false, q + (t * args->n_heads + h) * d, d);
        }
        window_row(s, &window, t, pos, kv + t * d);
    }
}

void ref_window_kv(di_stream *s, const di_window_kv_args *args) {
    ref_begin(s);
    int64_t rows = args->batch.n_rows, d = args->head_dim;
    double *kv = ref_take(s, rows * d);
    ref_linear_rows(s, &args->wkv, ref_doubles(s, args->u), rows, true, false, kv);
    for (int64_t t = 0; t < rows; t++) {
        int32_t pos = ref_ints(s, args->batch.pos)[t];
        if (pos >= 0) window_row(s, args, t, pos, kv + t * d);
    }
}

/* ---- The softmax over a list, 64 slots at a time ---- */

ref_attention ref_attention_take(di_stream *s, int32_t n_heads, int32_t dim) {
    return (ref_attention){n_heads, dim, ref_take(s, n_heads), ref_take(s, n_heads),
                           ref_take(s, (int64_t)n_heads * dim)};
}

void ref_attention_start(ref_attention *at) {
    for (int32_t h = 0; h < at->n_heads; h++) at->top[h] = -1e30, at->total[h] = 0;
    memset(at->values, 0, (size_t)at->n_heads * (size_t)at->dim * sizeof(double));
}

/* One head: p_n = exp(s_n - m) against the running maximum m; what came before is rescaled. */
static void head_block(const di_stream *s, ref_attention *at, int32_t h, const double *q,
                       const double *keys, const bool *live, int32_t n) {
    int32_t dim = at->dim;
    double score[REF_BLOCK], scale = ref_f(s, 1 / sqrt((double)dim)), top = at->top[h];
    double *values = at->values + (int64_t)h * dim;
    for (int32_t i = 0; i < n; i++) {
        double dot = 0;
        if (!live[i]) continue;
        for (int32_t d = 0; d < dim; d++) dot += q[d] * keys[(int64_t)i * dim + d];
        score[i] = ref_f(s, dot * scale);
        top = fmax(top, score[i]);
    }
    double shrink = exp(at->top[h] - top);
    at->top[h] = top;
    at->total[h] *= shrink;
    for (int32_t d = 0; d < dim; d++) values[d] *= shrink;
    for (int32_t i = 0; i < n; i++) {
        if (!live[i]) continue;
        double p = exp(score[i] - top), rounded = ref_a(s, p);
        at->total[h] += p; /* the denominator takes p as it is */
        for (int32_t d = 0; d < dim; d++) values[d] += rounded * keys[(int64_t)i * dim + d];
    }
}

void ref_attention_block(const di_stream *s, ref_attention *at, const double *q, const double *keys,
                         const bool *live, int32_t n) {
    REF_REQUIRE(n <= REF_BLOCK);
    for (int32_t h = 0; h < at->n_heads; h++) {
        head_block(s, at, h, q + (int64_t)h * at->dim, keys, live, n);
    }
}

void ref_attention_end(const di_stream *s, ref_attention *at, const di_vector *sink, double *out) {
    for (int32_t h = 0; h < at->n_heads; h++) {
        /* An empty list: exp overflows to infinity, and 0 / infinity is the 0 that is wanted. */
        double total = at->total[h] + exp(ref_value(s, sink, h) - at->top[h]);
        for (int32_t d = 0; d < at->dim; d++) {
            int64_t i = (int64_t)h * at->dim + d;
            out[i] = ref_a(s, at->values[i] / total);
        }
    }
}

void ref_attend_list(di_stream *s, const di_attend_list_args *args) {
    ref_begin(s);
    int64_t dim = args->head_dim, row = args->n_heads * dim;
    const double *all = ref_doubles(s, args->keys);
    ref_attention at = ref_attention_take(s, args->n_heads, args->head_dim);
    double *keys = ref_take(s, REF_BLOCK * dim);
    for (int64_t t = 0; t < args->n_rows; t++) {
        const int32_t *slots = ref_ints(s, args->slots) + t * args->n_slots;
        ref_attention_start(&at);
        for (int32_t begin = 0; begin < args->n_slots; begin += REF_BLOCK) {
            int32_t n = args->n_slots - begin < REF_BLOCK ? args->n_slots - begin : REF_BLOCK;
            bool live[REF_BLOCK];
            for (int32_t i = 0; i < n; i++) {
                int32_t key = slots[begin + i];
                REF_REQUIRE(key < args->n_keys);
                live[i] = key >= 0;
                if (live[i]) memcpy(keys + i * dim, all + key * dim, (size_t)dim * sizeof *keys);
            }
            ref_attention_block(s, &at, ref_doubles(s, args->q) + t * row, keys, live, n);
        }
        ref_attention_end(s, &at, &args->sink, ref_doubles(s, args->out) + t * row);
    }
}

/* The key of window position q of row t's sequence: in the step's rows, or in the ring. */
static void window_key(const di_stream *s, const di_attend_args *args, int64_t t, int32_t q,
                       double *out) {
    const di_batch *b = &args->batch;
    int64_t d = args->head_dim;
    int32_t slot = ((const di_row *)ref_at(s, b->rows))[t].slot;
    int32_t length = ref_ints(s, b->length)[slot];
    if (q >= length) {
        int64_t row = ref_ints(s, b->first)[t] + (q - length);
        ref_dequantize_vector(DI_Q8, ref_bytes(s, args->kv_codes) + row * d,
                              ref_bytes(s, args->kv_scales) + row * (d / 32), d, out);
    } else {
        const di_window *ring = &args->ring;
        int64_t place = (int64_t)slot * ring->ring_slots + q % ring->ring_slots;
        ref_dequantize_vector(DI_Q8, ref_bytes(s, ring->codes) + place * d,
                              ref_bytes(s, ring->scales) + place * (d / 32), d, out);
    }
}

/* The window positions [*begin, *end) of row t's list. */
static void window_range(const di_stream *s, const di_attend_args *args, int64_t t, int32_t *begin,
                         int32_t *end) {
    const di_batch *b = &args->batch;
    int32_t slot = ((const di_row *)ref_at(s, b->rows))[t].slot;
    int32_t floor = ref_none(b->floor) ? 0 : ref_ints(s, b->floor)[slot];
    int32_t length = ref_ints(s, b->length)[slot], now = ref_ints(s, b->pos)[t] + 1;
    int32_t before = (args->block ? length : now) - args->window;
    *begin = before > floor ? before : floor;
    *end = args->block ? length + args->block : now;
}

/* Entry i of row t's list: window positions ascending, then picks ascending. */
static void list_key(const di_stream *s, const di_attend_args *args, int64_t t, int32_t i,
                     double *out) {
    int32_t begin, end;
    window_range(s, args, t, &begin, &end);
    if (i < end - begin) {
        window_key(s, args, t, begin + i, out);
        return;
    }
    int32_t slot = ((const di_row *)ref_at(s, args->batch.rows))[t].slot;
    int32_t pick = ref_ints(s, args->picks)[t * args->top_k + (i - (end - begin))];
    ref_entry entry = ref_page_entry(s, &args->pages, slot, pick);
    ref_dequantize_vector(DI_Q4C, entry.codes, entry.scales, args->head_dim, out);
}

static int32_t list_length(const di_stream *s, const di_attend_args *args, int64_t t) {
    int32_t begin, end;
    window_range(s, args, t, &begin, &end);
    int32_t n = end - begin;
    for (int32_t i = 0; i < args->top_k; i++) {
        if (ref_ints(s, args->picks)[t * args->top_k + i] < 0) break;
        n++;
    }
    return n;
}

void ref_attend(di_stream *s, const di_attend_args *args) {
    ref_begin(s);
    int64_t dim = args->head_dim, row = args->n_heads * dim;
    ref_attention at = ref_attention_take(s, args->n_heads, args->head_dim);
    double *keys = ref_take(s, REF_BLOCK * dim);
    bool live[REF_BLOCK];
    for (int32_t i = 0; i < REF_BLOCK; i++) live[i] = true;
    for (int64_t t = 0; t < args->batch.n_rows; t++) {
        int32_t pos = ref_ints(s, args->batch.pos)[t];
        double *out = ref_doubles(s, args->out) + t * row;
        if (pos < 0) continue;
        int32_t length = list_length(s, args, t);
        ref_attention_start(&at);
        for (int32_t begin = 0; begin < length; begin += REF_BLOCK) {
            int32_t n = length - begin < REF_BLOCK ? length - begin : REF_BLOCK;
            for (int32_t i = 0; i < n; i++) list_key(s, args, t, begin + i, keys + i * dim);
            ref_attention_block(s, &at, ref_doubles(s, args->q) + t * row, keys, live, n);
        }
        ref_attention_end(s, &at, &args->sink, out);
        for (int64_t h = 0; h < args->n_heads; h++) {
            ref_rope_vector(s, &args->rope, pos, true, out + h * dim, dim);
        }
    }
}

void ref_window_store(di_stream *s, const di_window_store_args *args) {
    int64_t d = args->head_dim;
    const di_window *ring = &args->ring;
    const di_row *rows = ref_at(s, args->batch.rows);
    for (int64_t t = 0; t < args->batch.n_rows; t++) { /* ascending, so the last rows stay */
        int32_t pos = ref_ints(s, args->batch.pos)[t];
        if (pos < 0) continue;
        int64_t place = (int64_t)rows[t].slot * ring->ring_slots + pos % ring->ring_slots;
        memcpy(ref_bytes(s, ring->codes) + place * d, ref_bytes(s, args->kv_codes) + t * d,
               (size_t)d);
        memcpy(ref_bytes(s, ring->scales) + place * (d / 32),
               ref_bytes(s, args->kv_scales) + t * (d / 32), (size_t)(d / 32));
    }
}

void ref_attn_out(di_stream *s, const di_attn_out_args *args) {
    ref_begin(s);
    int32_t groups = args->groups > 1 ? args->groups : 1;
    double *low = ref_take(s, (int64_t)args->n_rows * args->wo_a.n);
    ref_linear_groups(s, &args->wo_a, groups, ref_doubles(s, args->o), args->n_rows, false, false,
                      low);
    ref_linear_rows(s, &args->wo_b, low, args->n_rows, true, false, ref_doubles(s, args->out));
}
