/* kernelcheck: queries, compressor, attention, caches. */
#include <stdlib.h>
#include <string.h>

#include "kernelcheck_scene.h"

static const kc_pair none = {{{0}, {0}}};

/* Drafts: every slot has `block` rows, all of them live. */
static kc_scene block_scene(check *c, int32_t max_length, int32_t block) {
    kc_layout l = kc_random_layout(c, max_length, max_length);
    for (int32_t slot = 0; slot < l.n_slots; slot++) l.n_rows[slot] = l.valid[slot] = block;
    return kc_scene_of(c, l);
}

/* Windows that begin somewhere before the step. */
static void random_floors(check *c, kc_scene *s) {
    int32_t floors[4];
    for (int32_t slot = 0; slot < s->layout.n_slots; slot++) {
        floors[slot] = kc_pick(c, 0, s->layout.length[slot], 0);
    }
    kc_pair p = kc_ints(c, floors, s->layout.n_slots);
    for (int i = 0; i < 2; i++) s->batch.b[i].floor = p.p[i];
}

/* The batch with its first n rows only. */
static kc_batch first_rows(const kc_scene *s, int32_t n) {
    kc_batch b = s->batch;
    for (int i = 0; i < 2; i++) b.b[i].n_rows = n;
    return b;
}

static kc_pages copy_pages(check *c, const kc_pages *p) {
    kc_pages out = *p;
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
    kc_scene s = kc_random_scene(c, 300, 3000);
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
    kc_scene s = kc_random_scene(c, 300, 3000);
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
    kc_pair scales, ring_scales, codes = kc_put_quantized(c, DI_Q8, (int64_t)rows * d, &scales);
    kc_pair ring = kc_put_quantized(c, DI_Q8, (int64_t)n_slots * slots * d, &ring_scales);
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
    kc_scene s = kc_random_scene(c, 60, 1000);
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

/* The rows of a step many times over, each time with other queries. */
static void check_crowd(check *c, const kc_scene *s, const di_attend_args *few) {
    const di_batch once[2] = {few[0].batch, few[1].batch};
    di_batch crowd[2];
    const int32_t rows = s->rows, times = kc_crowd_batch(c, once, rows, crowd), n = rows * times;
    const int64_t row = (int64_t)few[0].n_heads * few[0].head_dim;
    const uint64_t ints = (uint64_t)rows * 4;
    kc_pair picks = none;
    if (few[0].top_k > 0)
        picks = kc_repeated(c, kc_pair_of(few[0].picks, few[1].picks),
                            ints * (uint64_t)few[0].top_k, times);
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

/* Rounds whose lists have more keys than the tiles of a block of threads of CUDA's hold at once,
 * with keys of the released width: a window that alone is more than these, of drafts in round 5 and
 * on pages that lie anyhow in round 13; in round 9 more picks than such a block has threads
 * (PAIR_THREADS, 512). */
static bool is_long(const check *c) { return !c->bench && c->round % 4 == 1 && c->round % 16 != 1; }

static kc_scene attend_scene(check *c, int32_t block) {
    if (block > 0 && !is_long(c)) return block_scene(c, 400, block);
    if (!is_long(c)) return kc_random_scene(c, 400, 4000);
    kc_layout l = {.n_slots = 2, .n_rows = {3, 2}, .valid = {3, 1}};
    l.length[0] = kc_pick(c, 1000, 1400, 0), l.length[1] = kc_pick(c, 300, 700, 0);
    for (int32_t slot = 0; slot < 2 && block > 0; slot++) l.n_rows[slot] = l.valid[slot] = block;
    return kc_scene_of(c, l);
}

/* The sizes of a case; its memory is not there yet. */
static di_attend_args attend_shape(check *c) {
    di_attend_args a = {.n_heads = kc_pick(c, 1, 6, 64),
                        .head_dim = kc_pick_step(c, 32, 160, 32, 512),
                        .window = kc_pick(c, 1, 100, 128)};
    a.top_k = c->round % 4 == 3 ? 0 : kc_pick(c, 1, 90, 512);
    a.rope.dims = c->bench ? 64 : 2 * (c->round % 9 + 1);
    a.block = c->bench || c->round % 6 != 5 ? 0 : kc_pick(c, 1, 7, 0);
    if (c->round % 4 == 1) a.head_dim = 512;
    if (c->round % 8 == 7)
        a.n_heads = kc_pick(c, 65, KC_MOST_HEADS, 64); /* CUDA takes 64 at a time */
    if (!is_long(c)) return a;
    a.window = c->round % 16 == 9 ? 100 : kc_pick(c, 300, 400, 0);
    a.top_k = c->round % 16 == 9 ? kc_pick(c, 560, 600, 0) : kc_pick(c, 100, 300, 0);
    return a;
}

/* One call, and what it gives. */
typedef struct attention {
    kc_scene scene;
    di_attend_args args[2];
    kc_pair out;
} attention;

static attention random_attention(check *c) {
    static const int32_t ratios[3] = {1, 2, 4};
    di_attend_args a = attend_shape(c);
    attention x = {.scene = attend_scene(c, a.block)};
    kc_scene *s = &x.scene;
    if (!c->bench && c->round % 2 && c->round % 16 != 5 && c->round % 16 != 9) random_floors(c, s);
    int32_t rows = s->rows, n_slots = s->layout.n_slots, ratio = ratios[c->round % 3];
    int32_t ring_slots = a.window + 12, tokens = c->bench ? 4100 : is_long(c) ? 1420 : 450;
    int64_t row = (int64_t)a.n_heads * a.head_dim, d = a.head_dim;
    kc_pair q = kc_random_a(c, rows * row, KC_NORMAL, c->round % 5 == 4 ? 4 : 1),
            freq = kc_frequencies(c, a.rope.dims);
    kc_pair kv_scales, ring_scales, kv = kc_put_quantized(c, DI_Q8, rows * d, &kv_scales);
    kc_pair ring = kc_put_quantized(c, DI_Q8, (int64_t)n_slots * ring_slots * d, &ring_scales);
    /* Of the released width in lines and out of them. */
    bool whole = d == 512 && !c->bench ? c->round % 16 != 13 : kc_has_whole_pages(c);
    kc_pages p = kc_random_pages(c, n_slots, tokens, ratio, a.head_dim, 32, whole);
    kc_pair picks = a.top_k > 0 ? kc_random_picks(c, s, ratio, a.top_k) : none;
    kc_vector sink = kc_weight_vector(c, DI_F32, a.n_heads, 0, 3);
    x.out = kc_take_a(c, rows * row);
    for (int i = 0; i < 2; i++) {
        di_attend_args *to = &x.args[i];
        *to = a;
        to->batch = s->batch.b[i], to->rope.freq = freq.p[i], to->q = q.p[i];
        to->kv_codes = kv.p[i], to->kv_scales = kv_scales.p[i];
        to->ring = (di_window){ring.p[i], ring_scales.p[i], ring_slots}, to->pages = p.side[i];
        to->picks = picks.p[i], to->sink = sink.v[i], to->out = x.out.p[i];
    }
    kc_work(c, (a.window + a.top_k * 0.6) * (double)d,
            4.0 * a.n_heads * (a.window + a.top_k) * (double)d);
    return x;
}

static void compare_attention(check *c, const attention *x, kc_pair out, int32_t n_rows) {
    int32_t live[64 * KC_MOST_HEADS], heads = x->args[0].n_heads;
    for (int32_t t = 0; t < n_rows * heads && !c->bench; t++) live[t] = x->scene.live[t / heads];
    kc_compare_a(c, "out", out, (int64_t)n_rows * heads, x->args[0].head_dim, DI_BOUND_ATTEND,
                 live);
}

/* A copy that lies so many bytes behind a multiple of 256. */
static kc_pair moved(check *c, kc_pair p, uint64_t bytes, uint32_t shift) {
    for (int i = 0; i < 2; i++) c->dev[i].shift = shift;
    kc_pair out = kc_take(c, bytes);
    for (int i = 0; i < 2; i++) {
        di_backend *b = c->dev[i].backend;
        c->dev[i].shift = 0;
        b->copy(b->stream, out.p[i], p.p[i], bytes);
    }
    return out;
}

/* Windows alone, so that it is their keys that decide how they are loaded: as they are, and with
 * each memory in turn where pieces of 16 bytes of codes, of 4 of scales, do not lie. */
static void check_moved(check *c, const attention *x) {
    const di_attend_args *a = x->args;
    const int64_t rows = x->scene.rows, d = a->head_dim;
    const int64_t ring = (int64_t)x->scene.layout.n_slots * a->ring.ring_slots;
    for (int what = 0; what < 5; what++) {
        di_attend_args args[2] = {a[0], a[1]};
        di_ptr *of[2][4];
        const int64_t bytes[4] = {rows * d, rows * d / 32, ring * d, ring * d / 32};
        kc_pair out = kc_take_a(c, rows * a->n_heads * d);
        for (int i = 0; i < 2; i++) {
            args[i].top_k = 0, args[i].picks = DI_NONE, args[i].out = out.p[i];
            of[i][0] = &args[i].kv_codes, of[i][1] = &args[i].kv_scales;
            of[i][2] = &args[i].ring.codes, of[i][3] = &args[i].ring.scales;
        }
        if (what < 4) {
            kc_pair here = {{*of[0][what], *of[1][what]}};
            here = moved(c, here, (uint64_t)bytes[what], what % 2 ? 2 : 8);
            for (int i = 0; i < 2; i++) *of[i][what] = here.p[i];
        }
        KC_RUN_WITH(c, attend, args[i]);
        compare_attention(c, x, out, (int32_t)rows);
    }
}

/* The first rows by themselves: the same bits. */
static void check_some(check *c, const attention *x) {
    const di_attend_args *a = x->args;
    const int64_t row = (int64_t)a->n_heads * a->head_dim;
    /* A slot's drafts belong together. */
    int32_t some = a->block ? a->block : kc_pick(c, 1, x->scene.rows, 0);
    kc_pair out = kc_take_a(c, some * row);
    di_attend_args args[2] = {a[0], a[1]};
    for (int i = 0; i < 2; i++) args[i].batch.n_rows = some, args[i].out = out.p[i];
    KC_RUN_WITH(c, attend, args[i]);
    for (int32_t t = 0; t < some; t++)
        if (x->scene.live[t] >= 0)
            kc_same_a(c, "out", kc_at_a(c, out, t * row), kc_at_a(c, x->out, t * row), row);
}

void kc_check_attend(check *c) {
    attention x = random_attention(c);
    c->rotated = x.args[0].rope.dims;
    KC_RUN_WITH(c, attend, x.args[i]);
    compare_attention(c, &x, x.out, x.scene.rows);
    if (c->bench) return;
    check_some(c, &x);
    if (c->round % 16 == 9) check_moved(c, &x);
    if (c->round % 5 < 2 && !is_long(c)) check_crowd(c, &x.scene, x.args);
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
                     const kc_pages *p) {
    KC_RUN(c, compress, b->b[i], 1e-20, m->rope[i], u.p[i], m->wkv.m[i], m->wgate.m[i],
           m->norm.v[i], m->wk.m[i], m->k_norm.v[i], ring.p[i], m->ring_slots, p->side[i],
           m->closed.p[i]);
}

/* The same rows in one step each: the same bits must come to lie in pages and ring. */
static void compress_row_by_row(check *c, const kc_scene *s, const compressor *m, kc_pair ring,
                                const kc_pages *p) {
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
    kc_scene s = kc_random_scene(c, 200, 3001);
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
    kc_pages p = kc_random_pages(c, s.layout.n_slots, c->bench ? 3100 : 230, m.ratio, m.d, m.di,
                                 kc_has_whole_pages(c));
    kc_pages other = copy_pages(c, &p);
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
