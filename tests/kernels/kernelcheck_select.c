/* kernelcheck: scores, candidate blocks, top-k. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernelcheck.h"

static const kc_pair none = {{{0}, {0}}};

void kc_check_index_scores(check *c) {
    int32_t rows = kc_pick(c, 1, 10, 1), heads = kc_pick(c, 1, 10, 32),
            dim = kc_pick_step(c, 32, 128, 32, 128);
    int32_t n = kc_pick(c, 1, 200, 4000), visible[10];
    for (int i = 0; i < 10; i++) visible[i] = c->bench ? n : kc_pick(c, 0, n, 0);
    kc_pair q = kc_random_a(c, (int64_t)rows * heads * dim, KC_NORMAL, 1);
    kc_pair keys = kc_random_a(c, (int64_t)n * dim, KC_NORMAL, 1);
    kc_pair weights = kc_random_a(c, (int64_t)rows * heads, KC_NORMAL, 0.1);
    kc_pair seen = kc_ints(c, visible, rows), out = kc_take_a(c, (int64_t)rows * n),
            out1 = kc_take_a(c, n);
    KC_RUN(c, index_scores, rows, heads, dim, n, q.p[i], keys.p[i], weights.p[i], seen.p[i],
           out.p[i]);
    kc_compare_a_tipped(c, "out", out, rows, n, DI_BOUND_SUM, NULL);
    kc_work(c, (double)n * dim * 4, 2.0 * n * heads * dim);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair q1 = kc_at_a(c, q, (int64_t)r * heads * dim), w1 = kc_at_a(c, weights, r * heads);
    kc_pair seen1 = kc_at(seen, (uint64_t)r * 4);
    KC_RUN(c, index_scores, 1, heads, dim, n, q1.p[i], keys.p[i], w1.p[i], seen1.p[i], out1.p[i]);
    kc_same_a(c, "out", out1, kc_at_a(c, out, (int64_t)r * n), n);
}

/* Scores with many ties, -inf from visible[t] on. */
static kc_pair random_scores(check *c, int32_t rows, int32_t n, const int32_t *visible) {
    kc_pair p;
    float *x = kc_values(c, (int64_t)rows * n, KC_NORMAL, 1, true);
    for (int64_t i = 0; i < (int64_t)rows * n; i++) {
        if (c->round % 2) x[i] = (float)(int)(x[i] * 2);
        if (i % n >= visible[i / n]) x[i] = -INFINITY;
    }
    for (int i = 0; i < 2; i++) p.p[i] = device_put_a(&c->dev[i], x, (int64_t)rows * n);
    free(x);
    return p;
}

void kc_check_candidates(check *c) {
    int32_t rows = kc_pick(c, 1, 10, 1), n = kc_pick(c, 1, 200, 8000), visible[10];
    int32_t top = kc_pick(c, 1, 30, 512), size = kc_pick(c, 1, 9, 8);
    for (int i = 0; i < 10; i++) visible[i] = c->bench ? n : kc_pick(c, 0, n, 0);
    kc_pair scores = random_scores(c, rows, n, visible), seen = kc_ints(c, visible, rows);
    kc_pair out = kc_take(c, (uint64_t)(rows * top) * 4);
    KC_RUN(c, candidates, rows, n, top, size, scores.p[i], seen.p[i], out.p[i]);
    kc_compare_bytes(c, "out", out, rows, top * 4, NULL);
    kc_work(c, 4.0 * n, 0);
}

void kc_check_top_k(check *c) {
    int32_t rows = kc_pick(c, 1, 10, 1), n = kc_pick(c, 1, 200, 8000), k = kc_pick(c, 1, 80, 512);
    int32_t top = kc_pick(c, 1, 20, 512), size = kc_pick(c, 1, 9, 8), visible[10], blocks[10 * 20];
    for (int i = 0; i < 10; i++) visible[i] = c->bench ? n : kc_pick(c, 0, n, 0);
    kc_pair scores = random_scores(c, rows, n, visible), candidates = none;
    if (!c->bench && c->round % 3) {
        for (int32_t t = 0; t < rows; t++) {
            int32_t count = 0;
            for (int32_t b = 0; b * size < n && count < top; b++) {
                if (kc_bits(c) % 2) blocks[t * top + count++] = b;
            }
            while (count < top) blocks[t * top + count++] = -1;
        }
        candidates = kc_ints(c, blocks, rows * top);
    }
    kc_pair out = kc_take(c, (uint64_t)(rows * k) * 4);
    KC_RUN(c, top_k, rows, n, k, top, size, scores.p[i], candidates.p[i], out.p[i]);
    kc_compare_bytes(c, "out", out, rows, k * 4, NULL);
    kc_work(c, 4.0 * n, 0);
}
