/* kernelcheck: queries, compressor, indexer, attention, caches. */
#include <stdlib.h>
#include <string.h>

#include "kernelcheck.h"

static const kc_pair none = {{{0}, {0}}};

typedef struct scene { /* a step in the middle of some sequences */
    kc_layout layout;
    kc_batch batch;
    int32_t live[64], rows;
} scene;

static scene random_scene(check *c, int32_t max_length, int32_t bench_length) {
    scene s = {.layout = kc_random_layout(c, max_length, bench_length)};
    const kc_layout *l = &s.layout;
    s.rows = l->total;
    s.batch = kc_rows(c, l->n_slots, l->length, l->n_rows, l->valid, 300);
    for (int32_t t = 0, slot; t < s.rows; t++) s.live[t] = kc_position(l, t, &slot);
    return s;
}

/* Drafts: every slot has `block` rows, all of them live. */
static scene block_scene(check *c, int32_t max_length, int32_t block) {
    scene s = {.layout = kc_random_layout(c, max_length, max_length)};
    kc_layout *l = &s.layout;
    l->total = s.rows = l->n_slots * block;
    for (int32_t slot = 0; slot < l->n_slots; slot++) l->n_rows[slot] = l->valid[slot] = block;
    s.batch = kc_rows(c, l->n_slots, l->length, l->n_rows, l->valid, 300);
    for (int32_t t = 0, slot; t < s.rows; t++) s.live[t] = kc_position(l, t, &slot);
    return s;
}

/* Rounds in which index lists are long, beside one that is short in the first of them: one for each
 * candidate mode, with keys of the release's width that lie as its keys do. */
static bool is_long(const check *c) { return !c->bench && c->round > 0 && c->round % 5 == 0; }

/* Rounds whose pages are as the release's: pieces of 16 bytes lie at such addresses. */
static bool has_whole_pages(const check *c) { return c->bench || is_long(c) || c->round % 2 == 1; }

static scene long_scene(check *c) {
    scene s = {.layout = {.n_slots = c->round % 15 == 5 ? 2 : 1, .length = {33500, 300}}};
    kc_layout *l = &s.layout;
    if (c->round % 15 == 10) l->length[0] = 66500;
    for (int32_t slot = 0; slot < l->n_slots; slot++) l->n_rows[slot] = l->valid[slot] = 2;
    l->total = s.rows = 2 * l->n_slots;
    s.batch = kc_rows(c, l->n_slots, l->length, l->n_rows, l->valid, 300);
    for (int32_t t = 0, slot; t < s.rows; t++) s.live[t] = kc_position(l, t, &slot);
    return s;
}

/* Windows that begin somewhere before the step. */
static void random_floors(check *c, scene *s) {
    int32_t floors[4];
    for (int32_t slot = 0; slot < s->layout.n_slots; slot++) {
        floors[slot] = kc_pick(c, 0, s->layout.length[slot], 0);
    }
    kc_pair p = kc_ints(c, floors, s->layout.n_slots);
    for (int i = 0; i < 2; i++) s->batch.b[i].floor = p.p[i];
}

/* The batch with its first n rows only. */
static kc_batch first_rows(const scene *s, int32_t n) {
    kc_batch b = s->batch;
    for (int i = 0; i < 2; i++) b.b[i].n_rows = n;
    return b;
}

static kc_pair quantized(check *c, di_quantizer kind, int64_t n, kc_pair *scales) {
    int64_t bytes = kind == DI_Q8 ? n : n / 2, count = n / (kind == DI_Q4C ? 16 : 32);
    uint8_t *codes = malloc((size_t)bytes + 1), *scale = malloc((size_t)count + 1);
    if (codes == NULL || scale == NULL) abort();
    kc_quantized(c, kind, n, codes, scale);
    kc_pair p = kc_put(c, codes, (uint64_t)bytes);
    *scales = kc_put(c, scale, (uint64_t)count);
    free(codes);
    free(scale);
    return p;
}

/* ---- Pages ---- */

typedef struct pages {
    di_pages side[2];
    kc_pair pool;
    uint64_t bytes;
} pages;

/* A pool with pages for `tokens` tokens of every slot, in random order, full of valid entries. */
static pages random_pages(check *c, int32_t n_slots, int32_t tokens, int32_t ratio, int32_t d,
                          int32_t di) {
    int32_t per_slot = tokens / 64 + 1, n = n_slots * per_slot + 1, entries = 64 / ratio,
            table[4096];
    uint32_t lead = c->bench ? 0 : 32 * (uint32_t)(c->round % 3); /* another source stands before */
    uint32_t codes = lead, scales = codes + (uint32_t)(entries * d / 2);
    uint32_t keys = scales + (uint32_t)(entries * d / 16);
    uint32_t key_scales = keys + (uint32_t)(entries * di / 2);
    /* Of the released width in lines and out of them, where the scene is not long. */
    bool whole = d == 512 && !c->bench && tokens <= 4096 ? c->round % 8 == 1 : has_whole_pages(c);
    uint64_t page = key_scales + (uint64_t)(entries * di / 32) + (whole ? 0 : 7);
    if (n > 4096) abort();
    uint8_t *pool = malloc((size_t)(page * (uint64_t)n));
    if (pool == NULL) abort();
    memset(pool, 0x5B, (size_t)(page * (uint64_t)n));
    for (int32_t p = 0; p < n; p++) {
        uint8_t *at = pool + page * (uint64_t)p;
        kc_quantized(c, DI_Q4C, (int64_t)entries * d, at + codes, at + scales);
        kc_quantized(c, DI_Q4I, (int64_t)entries * di, at + keys, at + key_scales);
        table[p] = p;
    }
    for (int32_t p = n - 1; p > 0; p--) { /* a page's place is no page's number */
        int32_t q = (int32_t)(kc_bits(c) % (uint64_t)(p + 1)), swap = table[p];
        table[p] = table[q];
        table[q] = swap;
    }
    pages out = {.pool = kc_put(c, pool, page * (uint64_t)n), .bytes = page * (uint64_t)n};
    kc_pair numbers = kc_ints(c, table, n_slots * per_slot);
    for (int i = 0; i < 2; i++) {
        out.side[i] = (di_pages){out.pool.p[i], page,   numbers.p[i], per_slot,  ratio, d, di,
                                 codes,         scales, keys,         key_scales};
    }
    free(pool);
    return out;
}

static pages copy_pages(check *c, const pages *p) {
    pages out = *p;
    out.pool = kc_take(c, p->bytes);
    for (int i = 0; i < 2; i++) {
        out.side[i].pool = out.pool.p[i];
        di_backend *b = c->dev[i].backend;
        b->copy(b->stream, out.pool.p[i], p->pool.p[i], p->bytes);
    }
    return out;
}

/* ---- Queries and window keys ---- */

void kc_check_qkv(check *c) {
    scene s = random_scene(c, 300, 3000);
    int32_t width = kc_pick_step(c, 32, 160, 32, 5120), rank = kc_pick_step(c, 32, 96, 32, 320);
    int32_t heads = kc_pick(c, 1, 5, 16), d = kc_pick_step(c, 32, 96, 32, 512), rows = s.rows;
    int32_t dims = c->bench ? 64 : kc_pick_step(c, 2, 32, 2, 0), row = heads * d;
    kc_pair u = kc_random_a(c, (int64_t)rows * width, KC_NORMAL, 1), freq = kc_frequencies(c, dims);
    kc_matrix wq_a = kc_weights(c, DI_F8_E4M3, rank, width, 0.1);
    kc_matrix wq_b = kc_weights(c, DI_F8_E4M3, row, rank, 0.1);
    kc_matrix wkv = kc_weights(c, DI_F8_E4M3, d, width, 0.1);
    kc_vector qn = kc_weight_vector(c, DI_BF16, rank, 1, 0.2),
              kn = kc_weight_vector(c, DI_BF16, d, 1, 0.2);
    kc_pair qr = kc_take_a(c, (int64_t)rows * rank), q = kc_take_a(c, (int64_t)rows * row);
    kc_pair codes = kc_take(c, (uint64_t)rows * (uint64_t)d),
            scales = kc_take(c, (uint64_t)(rows * d / 32));
    KC_RUN(c, qkv, s.batch.b[i], heads, d, 1e-20, {dims, freq.p[i]}, u.p[i], wq_a.m[i], wq_b.m[i],
           wkv.m[i], qn.v[i], kn.v[i], qr.p[i], q.p[i], codes.p[i], scales.p[i]);
    kc_compare_a_tipped(c, "qr", qr, rows, rank, DI_BOUND_SUM, s.live);
    kc_compare_a_tipped(c, "q", q, rows, row, 2 * DI_BOUND_SUM, s.live);
    kc_compare_codes(c, codes, rows, d, s.live);
    kc_compare_codes(c, scales, rows, d / 32, s.live);
    double size = (double)rank * width + (double)row * rank + (double)d * width;
    kc_work(c, size, 2 * size);
    if (c->bench) return;
    kc_batch one = first_rows(&s, 1);
    kc_pair qr1 = kc_take_a(c, rank), q1 = kc_take_a(c, row), codes1 = kc_take(c, (uint64_t)d);
    kc_pair scales1 = kc_take(c, (uint64_t)d / 32);
    if (s.live[0] < 0) return;
    KC_RUN(c, qkv, one.b[i], heads, d, 1e-20, {dims, freq.p[i]}, u.p[i], wq_a.m[i], wq_b.m[i],
           wkv.m[i], qn.v[i], kn.v[i], qr1.p[i], q1.p[i], codes1.p[i], scales1.p[i]);
    kc_same_a(c, "qr", qr1, qr, rank);
    kc_same_a(c, "q", q1, q, row);
    kc_same(c, "kv_codes", codes1, codes, (uint64_t)d);
    kc_same(c, "kv_scales", scales1, scales, (uint64_t)d / 32);
}

typedef struct window_keys { /* what makes window rows of a width */
    int32_t width, d, dims;
    kc_pair freq;
    kc_matrix wkv;
    kc_vector norm;
} window_keys;

static void window_kv(check *c, const window_keys *w, const kc_batch *b, kc_pair u, kc_pair codes,
                      kc_pair scales) {
    KC_RUN(c, window_kv, b->b[i], w->d, 1e-20, {w->dims, w->freq.p[i]}, u.p[i], w->wkv.m[i],
           w->norm.v[i], codes.p[i], scales.p[i]);
}

/* Rows in some order, and a part of them that ends somewhere: the same bits. */
static void check_window_kv(check *c, const window_keys *w, const kc_batch *b, const int32_t *live,
                            int32_t some) {
    int32_t rows = b->b[0].n_rows, d = w->d;
    kc_pair u = kc_random_a(c, (int64_t)rows * w->width, KC_NORMAL, 1);
    kc_pair codes = kc_take(c, (uint64_t)rows * (uint64_t)d),
            scales = kc_take(c, (uint64_t)(rows * d / 32));
    window_kv(c, w, b, u, codes, scales);
    kc_compare_codes(c, codes, rows, d, live);
    kc_compare_codes(c, scales, rows, d / 32, live);
    kc_work(c, (double)d * w->width, 2.0 * d * w->width);
    if (c->bench) return;
    kc_batch part = *b;
    for (int i = 0; i < 2; i++) part.b[i].n_rows = some;
    kc_pair codes1 = kc_take(c, (uint64_t)some * (uint64_t)d),
            scales1 = kc_take(c, (uint64_t)(some * d / 32));
    window_kv(c, w, &part, u, codes1, scales1);
    for (int32_t t = 0; t < some; t++) {
        uint64_t at = (uint64_t)t * (uint64_t)d;
        if (live[t] < 0) continue;
        kc_same(c, "kv_codes", kc_at(codes1, at), kc_at(codes, at), (uint64_t)d);
        kc_same(c, "kv_scales", kc_at(scales1, at / 32), kc_at(scales, at / 32), (uint64_t)d / 32);
    }
}

void kc_check_window_kv(check *c) {
    scene s = random_scene(c, 300, 3000);
    window_keys w = {.width = kc_pick_step(c, 32, 160, 32, 5120),
                     .d = kc_pick_step(c, 32, 96, 32, 512),
                     .dims = c->bench ? 64 : kc_pick_step(c, 2, 32, 2, 0)};
    w.freq = kc_frequencies(c, w.dims);
    w.wkv = kc_weights(c, DI_F8_E4M3, w.d, w.width, 0.1);
    w.norm = kc_weight_vector(c, DI_BF16, w.d, 1, 0.2);
    check_window_kv(c, &w, &s.batch, s.live, 1);
    if (c->bench) return;
    kc_scatter rows = kc_random_scatter(c, 300, kc_pick(c, 1, 40, 0), 300);
    check_window_kv(c, &w, &rows.batch, rows.live, kc_pick(c, 1, rows.n, 0));
}

static void check_window_store(check *c, const kc_batch *b, int32_t d, int32_t slots) {
    int32_t rows = b->b[0].n_rows, n_slots = b->b[0].n_slots;
    kc_pair scales, ring_scales, codes = quantized(c, DI_Q8, (int64_t)rows * d, &scales);
    kc_pair ring = quantized(c, DI_Q8, (int64_t)n_slots * slots * d, &ring_scales);
    int32_t *same = calloc((size_t)rows, sizeof *same); /* who belongs together, slots say */
    if (same == NULL) abort();
    kc_pair first = kc_ints(c, same, rows);
    kc_batch batch = *b;
    free(same);
    for (int i = 0; i < 2; i++) batch.b[i].first = first.p[i];
    KC_RUN(c, window_store, batch.b[i], d, codes.p[i], scales.p[i],
           {ring.p[i], ring_scales.p[i], slots});
    kc_compare_bytes(c, "codes", ring, n_slots * slots, d, NULL);
    kc_compare_bytes(c, "scales", ring_scales, n_slots * slots, d / 32, NULL);
    kc_work(c, 2.0 * d, 0);
}

void kc_check_window_store(check *c) {
    scene s = random_scene(c, 60, 1000);
    int32_t d = kc_pick_step(c, 32, 96, 32, 512), slots = c->round % 2 ? 5 : 40;
    check_window_store(c, &s.batch, d, slots);
    if (c->bench) return;
    slots = kc_pick(c, 1, 20, 0);
    kc_scatter rows = kc_random_scatter(c, 60, slots, 300);
    check_window_store(c, &rows.batch, d, slots);
}

/* ---- Attention ---- */

void kc_check_attend_list(check *c) {
    int32_t rows = kc_pick(c, 1, 8, 1), heads = kc_pick(c, 1, 6, 64),
            d = kc_pick_step(c, 32, 160, 32, 512);
    int32_t n_keys = kc_pick(c, 1, 300, 640), n_slots = kc_pick(c, 1, 200, 640);
    int32_t *slots = calloc((size_t)rows * (size_t)n_slots, 4);
    if (slots == NULL) abort();
    for (int32_t i = 0; i < rows * n_slots; i++) {
        bool empty = !c->bench && (c->round % 3 == 1 ? kc_bits(c) % 2 : i / n_slots % 4 == 3);
        slots[i] = empty ? -1 : (int32_t)(kc_bits(c) % (uint64_t)n_keys);
    }
    kc_pair q = kc_random_a(c, (int64_t)rows * heads * d, KC_NORMAL, c->round % 4 == 3 ? 4 : 1);
    kc_pair keys = kc_random_a(c, (int64_t)n_keys * d, KC_NORMAL, 1),
            list = kc_ints(c, slots, rows * n_slots);
    kc_vector sink = kc_weight_vector(c, DI_F32, heads, 0, 3);
    int64_t row = (int64_t)heads * d;
    kc_pair out = kc_take_a(c, rows * row), out1 = kc_take_a(c, row);
    KC_RUN(c, attend_list, rows, heads, d, n_keys, n_slots, q.p[i], keys.p[i], list.p[i], sink.v[i],
           out.p[i]);
    kc_compare_a(c, "out", out, (int64_t)rows * heads, d, DI_BOUND_ATTEND, NULL);
    kc_work(c, (double)n_slots * d * 4, 4.0 * heads * n_slots * d);
    free(slots);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair q1 = kc_at_a(c, q, r * row), list1 = kc_at(list, (uint64_t)(r * n_slots) * 4);
    KC_RUN(c, attend_list, 1, heads, d, n_keys, n_slots, q1.p[i], keys.p[i], list1.p[i], sink.v[i],
           out1.p[i]);
    kc_same_a(c, "out", out1, kc_at_a(c, out, r * row), row);
}

/* Ascending entries that each row may see, some rows with few or none. */
static kc_pair random_picks(check *c, const scene *s, int32_t ratio, int32_t top_k) {
    int32_t *picks = calloc((size_t)(s->rows * top_k) + 1, 4);
    if (picks == NULL) abort();
    for (int32_t t = 0; t < s->rows; t++) {
        int32_t visible = s->live[t] < 0 ? 0 : (s->live[t] + 1) / ratio, n = 0;
        int32_t wanted = c->bench ? top_k : kc_pick(c, 0, top_k, 0);
        for (int32_t j = 0; j < visible && n < wanted; j++) {
            if (kc_bits(c) % (uint64_t)visible < (uint64_t)wanted) picks[t * top_k + n++] = j;
        }
        while (n < top_k) picks[t * top_k + n++] = -1;
        if (s->live[t] < 0) picks[t * top_k] = 1 << 30; /* a dead row's may hold anything */
    }
    kc_pair p = kc_ints(c, picks, s->rows * top_k);
    free(picks);
    return p;
}

/* Bytes of the twin's memory several times over, for both sides. */
static kc_pair repeated(check *c, kc_pair once, uint64_t bytes, int32_t times) {
    uint8_t *all = calloc((size_t)times, (size_t)bytes + 1);
    if (all == NULL) abort();
    for (int32_t i = 0; i < times; i++)
        memcpy(all + bytes * (uint64_t)i, (const void *)(uintptr_t)once.p[0].address,
               (size_t)bytes);
    kc_pair out = kc_put(c, all, bytes * (uint64_t)times);
    free(all);
    return out;
}
static kc_pair pair_of(di_ptr a, di_ptr b) { return (kc_pair){{a, b}}; }

/* A step's rows many times over, so many that a backend may take them in another way; returns how
 * many times. */
static int32_t crowd_batch(check *c, const di_batch few[2], int32_t rows, di_batch out[2]) {
    const int32_t times = 300 / rows + 1;
    const uint64_t ints = (uint64_t)rows * 4;
    kc_pair each =
        repeated(c, pair_of(few[0].rows, few[1].rows), sizeof(di_row) * (uint64_t)rows, times);
    kc_pair pos = repeated(c, pair_of(few[0].pos, few[1].pos), ints, times);
    kc_pair first = repeated(c, pair_of(few[0].first, few[1].first), ints, times);
    for (int i = 0; i < 2; i++) {
        out[i] = few[i];
        out[i].n_rows = rows * times, out[i].rows = each.p[i];
        out[i].pos = pos.p[i], out[i].first = first.p[i];
    }
    return times;
}

/* The rows of a step many times over, each time with other queries. */
static void check_crowd(check *c, const scene *s, const di_attend_args *few) {
    const di_batch once[2] = {few[0].batch, few[1].batch};
    di_batch crowd[2];
    const int32_t rows = s->rows, times = crowd_batch(c, once, rows, crowd), n = rows * times;
    const int64_t row = (int64_t)few[0].n_heads * few[0].head_dim;
    const uint64_t ints = (uint64_t)rows * 4;
    kc_pair picks = none;
    if (few[0].top_k > 0)
        picks =
            repeated(c, pair_of(few[0].picks, few[1].picks), ints * (uint64_t)few[0].top_k, times);
    kc_pair q = kc_random_a(c, n * row, KC_NORMAL, 1), out = kc_take_a(c, n * row);
    kc_pair out1 = kc_take_a(c, rows * row);
    di_attend_args many[2], again[2];
    for (int i = 0; i < 2; i++) {
        many[i] = few[i];
        many[i].batch = crowd[i], many[i].picks = picks.p[i], many[i].q = q.p[i];
        many[i].out = out.p[i];
        again[i] = many[i];
        again[i].batch.n_rows = rows, again[i].out = out1.p[i];
    }
    KC_RUN_WITH(c, attend, many[i]);
    KC_RUN_WITH(c, attend, again[i]);
    int32_t *live = malloc((size_t)(n * few[0].n_heads) * sizeof *live);
    if (live == NULL) abort();
    for (int32_t t = 0; t < n * few[0].n_heads; t++) live[t] = s->live[t / few[0].n_heads % rows];
    kc_compare_a(c, "out of many rows", out, (int64_t)n * few[0].n_heads, few[0].head_dim,
                 DI_BOUND_ATTEND, live);
    free(live);
    for (int32_t t = 0; t < rows; t++)
        if (s->live[t] >= 0)
            kc_same_a(c, "out of many rows", kc_at_a(c, out1, t * row), kc_at_a(c, out, t * row),
                      row);
}

void kc_check_attend(check *c) {
    static const int32_t ratios[3] = {1, 2, 4};
    int32_t block = c->bench || c->round % 6 != 5 ? 0 : kc_pick(c, 1, 7, 0);
    scene s = block ? block_scene(c, 400, block) : random_scene(c, 400, 4000);
    if (!c->bench && c->round % 2) random_floors(c, &s);
    int32_t heads = kc_pick(c, 1, 6, 64), d = kc_pick_step(c, 32, 160, 32, 512), rows = s.rows;
    int32_t ratio = ratios[c->round % 3], window = kc_pick(c, 1, 100, 128),
            ring_slots = window + 12;
    if (c->round % 4 == 1) d = 512;
    int32_t top_k = c->round % 4 == 3 ? 0 : kc_pick(c, 1, 90, 512),
            dims = c->bench ? 64 : 2 * (c->round % 9 + 1);
    int64_t row = (int64_t)heads * d;
    kc_pair q = kc_random_a(c, rows * row, KC_NORMAL, c->round % 5 == 4 ? 4 : 1),
            freq = kc_frequencies(c, dims);
    kc_pair kv_scales, ring_scales, kv = quantized(c, DI_Q8, (int64_t)rows * d, &kv_scales);
    kc_pair ring = quantized(c, DI_Q8, (int64_t)s.layout.n_slots * ring_slots * d, &ring_scales);
    pages p = random_pages(c, s.layout.n_slots, c->bench ? 4100 : 450, ratio, d, 32);
    kc_pair picks = top_k > 0 ? random_picks(c, &s, ratio, top_k) : none;
    kc_vector sink = kc_weight_vector(c, DI_F32, heads, 0, 3);
    kc_pair out = kc_take_a(c, rows * row), out1 = kc_take_a(c, rows * row);
    di_attend_args args[2];
    for (int i = 0; i < 2; i++)
        args[i] = (di_attend_args){s.batch.b[i],
                                   heads,
                                   d,
                                   window,
                                   {dims, freq.p[i]},
                                   q.p[i],
                                   kv.p[i],
                                   kv_scales.p[i],
                                   {ring.p[i], ring_scales.p[i], ring_slots},
                                   p.side[i],
                                   top_k,
                                   picks.p[i],
                                   sink.v[i],
                                   out.p[i],
                                   block};
    KC_RUN_WITH(c, attend, args[i]);
    int32_t live[64 * 6];
    for (int32_t t = 0; t < rows * heads && !c->bench; t++) live[t] = s.live[t / heads];
    kc_compare_a(c, "out", out, (int64_t)rows * heads, d, DI_BOUND_ATTEND, live);
    kc_work(c, (window + top_k * 0.6) * d, 4.0 * heads * (window + top_k) * d);
    if (c->bench) return;
    int32_t some = block ? block : kc_pick(c, 1, rows, 0); /* a slot's drafts belong together */
    for (int i = 0; i < 2; i++) args[i].batch.n_rows = some, args[i].out = out1.p[i];
    KC_RUN_WITH(c, attend, args[i]);
    for (int32_t t = 0; t < some; t++) {
        if (s.live[t] < 0) continue;
        kc_same_a(c, "out", kc_at_a(c, out1, t * row), kc_at_a(c, out, t * row), row);
    }
    if (c->round % 5 < 2) check_crowd(c, &s, args);
}

/* ---- Compressor ---- */

typedef struct compressor {
    int32_t width, d, di, ratio, ring_slots;
    kc_matrix wkv, wgate, wk;
    kc_vector norm, k_norm;
    di_rope rope[2];
    kc_pair u, closed;
} compressor;

static void compress(check *c, const compressor *m, const kc_batch *b, kc_pair u, kc_pair ring,
                     const pages *p) {
    KC_RUN(c, compress, b->b[i], 1e-20, m->rope[i], u.p[i], m->wkv.m[i], m->wgate.m[i],
           m->norm.v[i], m->wk.m[i], m->k_norm.v[i], ring.p[i], m->ring_slots, p->side[i],
           m->closed.p[i]);
}

/* The same rows in one step each: the same bits must come to lie in pages and ring. */
static void compress_row_by_row(check *c, const scene *s, const compressor *m, kc_pair ring,
                                const pages *p) {
    const kc_layout *l = &s->layout;
    for (int32_t t = 0, slot; t < s->rows; t++) {
        int32_t pos = kc_position(l, t, &slot), length[4], n_rows[4] = {0}, valid[4] = {0};
        if (pos < 0) continue;
        memcpy(length, l->length, sizeof length);
        length[slot] = pos;
        n_rows[slot] = valid[slot] = 1;
        kc_batch one = kc_rows(c, l->n_slots, length, n_rows, valid, 300);
        compress(c, m, &one, kc_at_a(c, m->u, (int64_t)t * m->width), ring, p);
    }
}

void kc_check_compress(check *c) {
    static const int32_t ratios[4] = {2, 1, 4, 2};
    scene s = random_scene(c, 200, 3001);
    compressor m = {.width = kc_pick_step(c, 32, 160, 32, 5120),
                    .d = kc_pick_step(c, 32, 96, 32, 512),
                    .di = kc_pick_step(c, 32, 64, 32, 128),
                    .ratio = ratios[c->round % 4],
                    .ring_slots = 16};
    int32_t dims = c->bench ? 64 : kc_pick_step(c, 2, 32, 2, 0);
    bool keys = c->bench || c->round % 5 != 4;
    kc_pair freq = kc_frequencies(c, dims);
    for (int i = 0; i < 2; i++) m.rope[i] = (di_rope){dims, freq.p[i]};
    m.u = kc_random_a(c, (int64_t)s.rows * m.width, KC_NORMAL, 1);
    m.wkv = kc_weights(c, DI_BF16, m.d, m.width, 0.1);
    if (m.ratio > 1) m.wgate = kc_weights(c, DI_BF16, m.d, m.width, 0.1);
    if (keys) m.wk = kc_weights(c, DI_BF16, m.di, m.d, 0.1);
    if (m.ratio == 1) memset(&m.wgate, 0, sizeof m.wgate);
    if (!keys) memset(&m.wk, 0, sizeof m.wk);
    m.norm = kc_weight_vector(c, DI_BF16, m.d, 1, 0.2);
    m.k_norm = kc_weight_vector(c, DI_BF16, m.di, 1, 0.2);
    int32_t closed[4];
    for (int32_t i = 0; i < s.layout.n_slots; i++) {
        closed[i] = (s.layout.length[i] + kc_pick(c, 0, 12, 0)) / m.ratio * m.ratio;
    }
    if (!c->bench && c->round % 3 == 2) m.closed = kc_ints(c, closed, s.layout.n_slots);
    int64_t ring_values = (int64_t)s.layout.n_slots * m.ring_slots * 2 * m.d;
    float *x = kc_values(c, ring_values, KC_NORMAL, 1, false);
    kc_pair ring = none, ring1 = none;
    for (int i = 0; i < 2 && m.ratio > 1; i++) {
        ring.p[i] = device_put_f(&c->dev[i], x, ring_values);
        ring1.p[i] = device_put_f(&c->dev[i], x, ring_values);
    }
    free(x);
    pages p = random_pages(c, s.layout.n_slots, c->bench ? 3100 : 230, m.ratio, m.d, m.di);
    pages other = copy_pages(c, &p);
    compress(c, &m, &s.batch, m.u, ring, &p);
    kc_compare_written(c, p.pool, other.pool, (int64_t)p.bytes);
    if (m.ratio > 1) {
        kc_compare_f(c, "ring", ring, s.layout.n_slots * m.ring_slots, 2 * m.d, DI_BOUND_SUM, NULL);
    }
    double size = (m.ratio > 1 ? 2.0 : 1.0) * m.d * m.width * 2;
    kc_work(c, size, size);
    if (c->bench) return;
    compress_row_by_row(c, &s, &m, ring1, &other);
    kc_same(c, "pages", other.pool, p.pool, p.bytes);
    if (m.ratio > 1) kc_same_f(c, "ring", ring1, ring, ring_values);
}

/* ---- Selection ---- */

static void compare_lists(check *c, const char *what, kc_pair p, const scene *s, int32_t width) {
    int32_t *x[2], differ = 0, live = 0;
    if (c->bench || width == 0) return;
    for (int i = 0; i < 2; i++) {
        x[i] = malloc((size_t)(s->rows * width) * 4);
        if (x[i] == NULL) abort();
        device_get(&c->dev[i], p.p[i], x[i], (uint64_t)(s->rows * width) * 4);
    }
    for (int32_t t = 0; t < s->rows; t++) {
        if (s->live[t] < 0) continue;
        live++;
        differ += memcmp(x[0] + t * width, x[1] + t * width, (size_t)width * 4) != 0;
        for (int32_t i = 0; i < width; i++) { /* whatever was picked: ascending, -1 at the end */
            int32_t at = x[1][t * width + i], before = i == 0 ? -1 : x[1][t * width + i - 1];
            bool fine = at == -1 || (at > before && (i == 0 || before >= 0));
            if (!fine) kc_fail(c, "%s[%d][%d] = %d after %d", what, t, i, at, before);
        }
    }
    c->rows += live;
    c->tipped += differ;
    free(x[0]);
    free(x[1]);
}

/* Many rows, the last of which by themselves again; the first ones are compared with the twin's. */
static void check_select_crowd(check *c, const scene *s, const di_index_select_args *few) {
    const di_batch once[2] = {few[0].batch, few[1].batch};
    di_batch crowd[2];
    const int32_t rows = s->rows, times = crowd_batch(c, once, rows, crowd), n = rows * times;
    const int64_t rank = few[0].wq_b.k, width = few[0].weights_proj.k, last = n - rows;
    const di_candidate_mode mode = few[0].candidate_mode;
    const uint64_t each = (uint64_t)few[0].top_k * 4, each_blocks = (uint64_t)few[0].top_blocks * 4;
    kc_pair qr = kc_random_a(c, n * rank, KC_NORMAL, 1),
            u = kc_random_a(c, n * width, KC_NORMAL, 1);
    kc_pair qr1 = kc_at_a(c, qr, last * rank), u1 = kc_at_a(c, u, last * width);
    kc_pair picks = kc_take(c, (uint64_t)n * each), picks1 = kc_take(c, (uint64_t)rows * each);
    kc_pair blocks = none, blocks1 = pair_of(few[0].candidates, few[1].candidates);
    if (mode == DI_CANDIDATES_SOURCE) {
        blocks = kc_take(c, (uint64_t)n * each_blocks);
        blocks1 = kc_take(c, (uint64_t)rows * each_blocks);
    } else if (mode == DI_CANDIDATES_USE) {
        blocks = repeated(c, blocks1, (uint64_t)rows * each_blocks, times);
    }
    di_index_select_args many[2], again[2];
    for (int i = 0; i < 2; i++) {
        many[i] = again[i] = few[i];
        many[i].batch = crowd[i], many[i].qr = qr.p[i], many[i].u = u.p[i];
        many[i].candidates = blocks.p[i], many[i].picks = picks.p[i];
        again[i].qr = qr1.p[i], again[i].u = u1.p[i];
        again[i].candidates = blocks1.p[i], again[i].picks = picks1.p[i];
    }
    KC_RUN_WITH(c, index_select, many[i]);
    KC_RUN_WITH(c, index_select, again[i]);
    compare_lists(c, "picks of many rows", picks, s, few[0].top_k);
    if (mode == DI_CANDIDATES_SOURCE)
        compare_lists(c, "candidates of many rows", blocks, s, few[0].top_blocks);
    for (int32_t t = 0; t < rows; t++) {
        uint64_t one = (uint64_t)t, far = (uint64_t)(last + t);
        if (s->live[t] < 0) continue;
        kc_same(c, "picks of many rows", kc_at(picks1, one * each), kc_at(picks, far * each), each);
        if (mode == DI_CANDIDATES_SOURCE)
            kc_same(c, "candidates of many rows", kc_at(blocks1, one * each_blocks),
                    kc_at(blocks, far * each_blocks), each_blocks);
    }
}

/* What weights of heads are made of. The second row of a long list has zeros: so have its scores, and
 * what is picked are the first of thousands of ties. */
static kc_pair random_u(check *c, const scene *s, int32_t width) {
    kc_pair u;
    const int64_t n = (int64_t)s->rows * width;
    float *x = kc_values(c, n, KC_NORMAL, 1, true);
    for (int32_t t = 0, slot, met = 0; t < s->rows && is_long(c); t++) {
        (void)kc_position(&s->layout, t, &slot);
        if (slot == 0 && met++ == 1) memset(x + (int64_t)t * width, 0, (size_t)width * 4);
    }
    for (int i = 0; i < 2; i++) u.p[i] = device_put_a(&c->dev[i], x, n);
    free(x);
    return u;
}

void kc_check_index_select(check *c) {
    static const int32_t ratios[3] = {1, 2, 4};
    bool is_far = is_long(c);
    scene s = is_far ? long_scene(c) : random_scene(c, 400, 8000);
    int32_t ratio = is_far ? 1 : ratios[c->round % 3], heads = kc_pick(c, 1, 8, 32),
            di = has_whole_pages(c) ? 128 : kc_pick_step(c, 32, 96, 32, 128);
    int32_t rank = kc_pick_step(c, 32, 96, 32, 320), width = kc_pick(c, 32, 160, 5120),
            rows = s.rows;
    int32_t top_k = kc_pick(c, 1, 60, 512), dims = c->bench ? 64 : kc_pick_step(c, 2, 32, 2, 0);
    int32_t blocks = kc_pick(c, 1, c->round % 4 == 3 ? 60 : 12, 256),
            size = has_whole_pages(c) ? 8 : kc_pick(c, 1, 8, 8);
    di_candidate_mode mode = c->bench ? DI_CANDIDATES_NONE : (di_candidate_mode)(c->round / 3 % 3);
    int32_t tokens = c->bench ? 8100 : is_far ? s.layout.length[0] + 2 : 450;
    pages p = random_pages(c, s.layout.n_slots, tokens, ratio, 32, di);
    kc_pair qr = kc_random_a(c, (int64_t)rows * rank, KC_NORMAL, 1), freq = kc_frequencies(c, dims);
    kc_pair u = random_u(c, &s, width);
    kc_matrix wq_b = kc_weights(c, DI_F8_E4M3, heads * di, rank, 0.1);
    kc_matrix proj = kc_weights(c, DI_BF16, heads, width, 0.1);
    kc_pair picks = kc_take(c, (uint64_t)(rows * top_k) * 4),
            picks1 = kc_take(c, (uint64_t)(rows * top_k) * 4);
    kc_pair candidates = none, candidates1 = none;
    if (mode == DI_CANDIDATES_SOURCE) {
        candidates = kc_take(c, (uint64_t)(rows * blocks) * 4);
        candidates1 = kc_take(c, (uint64_t)(rows * blocks) * 4);
    } else if (mode == DI_CANDIDATES_USE) {
        candidates = candidates1 = random_picks(c, &s, ratio * size, blocks);
    }
    di_index_select_args args[2];
    for (int i = 0; i < 2; i++)
        args[i] = (di_index_select_args){s.batch.b[i],
                                         heads,
                                         top_k,
                                         mode,
                                         blocks,
                                         size,
                                         {dims, freq.p[i]},
                                         qr.p[i],
                                         u.p[i],
                                         wq_b.m[i],
                                         proj.m[i],
                                         p.side[i],
                                         candidates.p[i],
                                         picks.p[i]};
    KC_RUN_WITH(c, index_select, args[i]);
    compare_lists(c, "picks", picks, &s, top_k);
    if (mode == DI_CANDIDATES_SOURCE) compare_lists(c, "candidates", candidates, &s, blocks);
    kc_work(c, 8000.0 / ratio * di * 0.53 + (double)heads * di * rank,
            2.0 * 8000 / ratio * heads * di);
    if (c->bench) return;
    if (c->round % 4 == 3 && !is_far) check_select_crowd(c, &s, args);
    int32_t some = kc_pick(c, 1, rows, 0);
    for (int i = 0; i < 2; i++) {
        args[i].batch.n_rows = some;
        args[i].candidates = candidates1.p[i], args[i].picks = picks1.p[i];
    }
    KC_RUN_WITH(c, index_select, args[i]);
    for (int32_t t = 0; t < some; t++) {
        uint64_t row = (uint64_t)top_k * 4, at = (uint64_t)t * row;
        if (s.live[t] < 0) continue;
        kc_same(c, "picks", kc_at(picks1, at), kc_at(picks, at), row);
        row = (uint64_t)blocks * 4, at = (uint64_t)t * row;
        if (mode == DI_CANDIDATES_SOURCE)
            kc_same(c, "candidates", kc_at(candidates1, at), kc_at(candidates, at), row);
    }
}
