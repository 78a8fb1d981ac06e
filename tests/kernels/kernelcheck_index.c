/* kernelcheck: the selection of entries, whole. */
#include <stdlib.h>
#include <string.h>

#include "kernelcheck_scene.h"

static const kc_pair none = {{{0}, {0}}};

/* Rounds in which index lists are long, beside one that is short in the first of them: one for each
 * candidate mode, with keys of the release's width that lie as its keys do. */
static bool is_long(const check *c) { return !c->bench && c->round > 0 && c->round % 5 == 0; }

static kc_scene long_scene(check *c) {
    kc_layout l = {.n_slots = c->round % 15 == 5 ? 2 : 1, .length = {33500, 300}};
    if (c->round % 15 == 10) l.length[0] = 66500;
    for (int32_t slot = 0; slot < l.n_slots; slot++) l.n_rows[slot] = l.valid[slot] = 2;
    return kc_scene_of(c, l);
}

/* ---- Selection ---- */

static void compare_lists(check *c, const char *what, kc_pair p, const kc_scene *s, int32_t width) {
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
static void check_select_crowd(check *c, const kc_scene *s, const di_index_select_args *few) {
    const di_batch once[2] = {few[0].batch, few[1].batch};
    di_batch crowd[2];
    const int32_t rows = s->rows, times = kc_crowd_batch(c, once, rows, crowd), n = rows * times;
    const int64_t rank = few[0].wq_b.k, width = few[0].weights_proj.k, last = n - rows;
    const di_candidate_mode mode = few[0].candidate_mode;
    const uint64_t each = (uint64_t)few[0].top_k * 4, each_blocks = (uint64_t)few[0].top_blocks * 4;
    kc_pair qr = kc_random_a(c, n * rank, KC_NORMAL, 1),
            u = kc_random_a(c, n * width, KC_NORMAL, 1);
    kc_pair qr1 = kc_at_a(c, qr, last * rank), u1 = kc_at_a(c, u, last * width);
    kc_pair picks = kc_take(c, (uint64_t)n * each), picks1 = kc_take(c, (uint64_t)rows * each);
    kc_pair blocks = none, blocks1 = kc_pair_of(few[0].candidates, few[1].candidates);
    if (mode == DI_CANDIDATES_SOURCE) {
        blocks = kc_take(c, (uint64_t)n * each_blocks);
        blocks1 = kc_take(c, (uint64_t)rows * each_blocks);
    } else if (mode == DI_CANDIDATES_USE) {
        blocks = kc_repeated(c, blocks1, (uint64_t)rows * each_blocks, times);
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
static kc_pair random_u(check *c, const kc_scene *s, int32_t width) {
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
    bool is_far = is_long(c), whole = is_far || kc_has_whole_pages(c);
    kc_scene s = is_far ? long_scene(c) : kc_random_scene(c, 400, 8000);
    int32_t ratio = is_far ? 1 : ratios[c->round % 3], heads = kc_pick(c, 1, 8, 32),
            di = whole ? 128 : kc_pick_step(c, 32, 96, 32, 128);
    int32_t rank = kc_pick_step(c, 32, 96, 32, 320), width = kc_pick(c, 32, 160, 5120),
            rows = s.rows;
    int32_t top_k = kc_pick(c, 1, 60, 512), dims = c->bench ? 64 : kc_pick_step(c, 2, 32, 2, 0);
    int32_t blocks = kc_pick(c, 1, c->round % 4 == 3 ? 60 : 12, 256),
            size = whole ? 8 : kc_pick(c, 1, 8, 8);
    di_candidate_mode mode = c->bench ? DI_CANDIDATES_NONE : (di_candidate_mode)(c->round / 3 % 3);
    int32_t tokens = c->bench ? 8100 : is_far ? s.layout.length[0] + 2 : 450;
    kc_pages p = kc_random_pages(c, s.layout.n_slots, tokens, ratio, 32, di, whole);
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
        candidates = candidates1 = kc_random_picks(c, &s, ratio * size, blocks);
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
