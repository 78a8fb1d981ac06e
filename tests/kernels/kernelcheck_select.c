/* kernelcheck: scores, candidate blocks, top-k, sampling, counts. */
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

/* ---- Sampling ---- */

enum { MAX_OUT = 6, MAX_BIAS = 5 };

static di_sample_params random_params(check *c, int32_t out, int32_t n_slots, bool biases,
                                      int32_t n_masks) {
    di_sample_params p = {.seed = kc_bits(c),
                          .temperature = 1,
                          .top_p = 1,
                          .repetition_penalty = 1,
                          .slot = out % n_slots,
                          .mask = -1};
    if (c->bench) return p;
    uint64_t way = kc_bits(c);
    if (way % 4 == 0) p.temperature = 0;
    if (way % 4 == 1) p.temperature = (float)(0.2 + 1.5 * kc_uniform(c));
    if (way >> 4 & 1) p.top_p = (float)(0.1 + 0.9 * kc_uniform(c));
    if (way >> 5 & 1) p.top_k = kc_pick(c, 1, 40, 0);
    if (way >> 6 & 1) p.min_p = (float)(0.3 * kc_uniform(c));
    if (way >> 7 & 1) p.repetition_penalty = 1.3f;
    if (way >> 8 & 1) p.presence_penalty = 0.7f, p.frequency_penalty = -0.2f;
    if (biases && way >> 9 & 1) p.bias_begin = out % 2, p.n_bias = kc_pick(c, 1, MAX_BIAS - 1, 0);
    if (n_masks > 0 && way >> 10 & 1) p.mask = out % n_masks;
    return p;
}

static kc_pair random_counts(check *c, int32_t n_slots, int32_t vocab) {
    int32_t *counts = calloc((size_t)n_slots * (size_t)vocab, 4);
    if (counts == NULL) abort();
    for (int32_t i = 0; i < n_slots * vocab; i++) {
        if (kc_bits(c) % 3 == 0) counts[i] = (int32_t)(kc_bits(c) % 4);
        if (kc_bits(c) % 5 == 0) counts[i] |= DI_COUNT_PROMPT;
    }
    kc_pair p = kc_ints(c, counts, n_slots * vocab);
    free(counts);
    return p;
}

static kc_pair random_logits(check *c, int32_t n_out, int32_t vocab) {
    kc_pair p;
    float *x = kc_values(c, (int64_t)n_out * vocab, KC_NORMAL, 3, false);
    for (int64_t i = 0; i < (int64_t)n_out * vocab; i++) {
        if (c->round % 3 == 1) x[i] = (float)(int)x[i]; /* ties everywhere */
    }
    if (!c->bench && c->round % 5 == 4) x[kc_bits(c) % (uint64_t)vocab] = NAN;
    if (!c->bench && c->round % 5 == 3) {
        for (int32_t i = 0; i < vocab; i++) x[i] = -INFINITY;
    }
    for (int i = 0; i < 2; i++) p.p[i] = device_put_f(&c->dev[i], x, (int64_t)n_out * vocab);
    free(x);
    return p;
}

void kc_check_sample(check *c) {
    bool released = !c->bench && c->round == 7; /* its vocabulary, cut by top_p alone */
    int32_t n_out = kc_pick(c, 1, released ? 2 : MAX_OUT, 1), n_slots = kc_pick(c, 1, 3, 1);
    int32_t vocab = kc_pick(c, 1, c->round % 2 ? 5000 : 700, 129280);
    if (released) vocab = 129280;
    int32_t pos[10], which[MAX_OUT], next[3] = {3, 3, 3}, words = (vocab + 31) / 32, n_masks = 2;
    di_sample_params params[MAX_OUT];
    di_logit_bias biases[MAX_BIAS];
    for (int i = 0; i < 10; i++)
        pos[i] = !c->bench && kc_bits(c) % 6 == 0 ? -1 : kc_pick(c, 0, 100000, 5);
    for (int i = 0; i < MAX_OUT; i++) which[i] = kc_pick(c, 0, 9, 0);
    for (int i = 0; i < MAX_BIAS; i++) {
        biases[i] = (di_logit_bias){(int32_t)(kc_bits(c) % (uint64_t)vocab), kc_normal(c) * 8};
    }
    for (int i = 0; i < n_out; i++) params[i] = random_params(c, i, n_slots, true, n_masks);
    for (int i = 0; i < n_out && released; i++) {
        pos[which[i]] = 77;
        params[i].temperature = i == 0 ? 1 : 1.5f;
        params[i].top_p = i == 0 ? 0.9f : 0.99999f;
        params[i].top_k = 0;
        params[i].mask = -1;
    }
    uint32_t *masks = malloc((size_t)(n_masks * words) * 4);
    if (masks == NULL) abort();
    for (int32_t i = 0; i < n_masks * words; i++) {
        masks[i] = i < words      ? (uint32_t)kc_bits(c)
                   : c->round % 2 ? 0
                                  : 1u << 5; /* none, one a word */
    }
    kc_pair counts = c->round % 4 == 3 || c->bench ? none : random_counts(c, n_slots, vocab);
    kc_pair logits = random_logits(c, n_out, vocab), at = kc_ints(c, which, n_out),
            p = kc_ints(c, pos, 10);
    kc_pair param = kc_put(c, params, (uint64_t)n_out * sizeof params[0]);
    kc_pair bias = kc_put(c, biases, sizeof biases),
            mask = kc_put(c, masks, (uint64_t)(n_masks * words) * 4);
    kc_pair token = kc_take(c, (uint64_t)n_out * 4), logprob = kc_take(c, (uint64_t)n_out * 4);
    kc_pair last = kc_ints(c, next, n_slots);
    KC_RUN(c, sample, n_out, vocab, at.p[i], p.p[i], logits.p[i], param.p[i], counts.p[i],
           bias.p[i], mask.p[i], last.p[i], token.p[i], logprob.p[i]);
    kc_compare_bytes(c, "token", token, n_out, 4, NULL);
    kc_compare_bytes(c, "next_token", last, n_slots, 4, NULL);
    float got[2][MAX_OUT];
    int32_t tokens[MAX_OUT];
    for (int i = 0; i < 2; i++) device_get(&c->dev[i], logprob.p[i], got[i], (uint64_t)n_out * 4);
    device_get(&c->dev[0], token.p[0], tokens, (uint64_t)n_out * 4);
    for (int i = 0; i < n_out && !c->bench; i++) {
        float off = fabsf(got[0][i] - got[1][i]);
        if (tokens[i] >= 0 && !(off <= 1e-5f * fmaxf(1, fabsf(got[0][i])))) {
            kc_fail(c, "logprob[%d] = %.9g, the twin %.9g", i, (double)got[1][i],
                    (double)got[0][i]);
        }
    }
    kc_work(c, 4.0 * vocab, 0);
    free(masks);
}

void kc_check_tally(check *c) {
    int32_t n = kc_pick(c, 1, 40, 40), vocab = kc_pick(c, 1, 60, 1000), n_slots = 3, ids[40],
            slots[40];
    for (int i = 0; i < 40; i++) {
        ids[i] = (int32_t)(kc_bits(c) % (uint64_t)(vocab + 1)) - 1; /* the same id more than once */
        slots[i] = (int32_t)(kc_bits(c) % 3);
    }
    kc_pair counts = random_counts(c, n_slots, vocab), at = kc_ints(c, ids, n),
            s = kc_ints(c, slots, n);
    int32_t delta = c->round % 4 == 3 ? -1 : 1;
    KC_RUN(c, tally, n, vocab, delta, c->round % 2 == 0, at.p[i], s.p[i], counts.p[i]);
    kc_compare_bytes(c, "counts", counts, n_slots, vocab * 4, NULL);
}
