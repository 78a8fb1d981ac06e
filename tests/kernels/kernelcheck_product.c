/* kernelcheck: products, experts, router, head. */
#include <stdlib.h>
#include <string.h>

#include "kernelcheck.h"
#include "kernels/formats.h"

static const kc_pair none = {{{0}, {0}}};

/* Bytes of a stored matrix. */
static double matrix_bytes(di_dtype dtype, double n, double k) {
    double bytes = dtype == DI_FP4_PAIR ? 0.5 + 1 / 32.0 : (double)di_dtype_bytes(dtype);
    return n * k * bytes;
}

static di_dtype any_dtype(int round) {
    static const di_dtype all[4] = {DI_F8_E4M3, DI_FP4_PAIR, DI_BF16, DI_F32};
    return all[round % 4];
}

/* Others so many columns that few rows of them go by the higher tiles (mma_linear.cuh), a format each:
 * with a short K a GPU holds more than a thousand blocks. */
enum { TALL = 40000 };
static bool is_tall(const check *c) {
    return !c->bench && c->round % 16 >= 8 && c->round % 16 <= 10;
}

/* long_way: more tiles of many columns than a GPU has processors, so that their blocks go on from tile to
 * tile. */
enum { LONG_WAY = 18000 };
static void check_linear(check *c, bool long_way) {
    di_dtype dtype = any_dtype(c->round);
    bool blocks = dtype == DI_F8_E4M3 || dtype == DI_FP4_PAIR;
    int32_t rows = c->round % 3 || kc_has_many(c) ? kc_some_rows(c, 40) : 1, groups = 1;
    int32_t n = kc_pick(c, 1, kc_has_many(c) ? 400 : 130, 2048);
    int32_t k = kc_pick_step(c, 32, kc_has_many(c) ? 640 : 1600, 32, 5120);
    if (!blocks && !c->bench && c->round % 8 >= 4) k = kc_pick(c, 1, 700, 0);
    if (c->far && c->round % 16 < 4) rows = 40; /* tiles of 64 columns, whose K blocks share */
    if (long_way) {
        rows = kc_pick(c, 33, 128, 1);
        n = kc_pick(c, LONG_WAY, LONG_WAY + 200, 1);
        k = blocks ? kc_pick_step(c, 32, 384, 32, 32) : kc_pick(c, 1, 384, 1);
    } else if (is_tall(c)) {
        rows = kc_pick(c, 1, 8, 1);
        n = kc_pick(c, TALL, TALL + 50, 1);
        k = kc_pick_step(c, 32, 96, 32, 32);
    } else if (!c->bench && !c->far && c->round % 16 == 12) { /* FP8: clusters share K of a tile */
        rows = kc_pick(c, 1, 8, 1);
        n = kc_pick(c, 4300, 5300, 1);
        k = kc_pick_step(c, 512, 1536, 32, 32);
    } else if (!c->bench && c->round % 5 == 4) { /* wo_a: groups of rows */
        groups = kc_pick(c, 2, 4, 1);
        n = groups * kc_pick_step(c, 32, 64, 32, 32);
    }
    bool quantize = blocks && groups == 1 && c->round % 7 != 6, to_f = !quantize && c->round % 2;
    kc_style style = kc_style_of(c);
    if (n < 8 && style == KC_HUGE)
        style = KC_NORMAL; /* the bound is a share of the row's largest */
    kc_pair x = kc_random_a(c, (int64_t)rows * groups * k, style, 1);
    c->one_nan = c->far && blocks && c->round % 16 >= 12; /* both formats, many rows */
    kc_matrix w = kc_grouped_weights(c, dtype, groups, n, k, 0.05);
    int64_t count = (int64_t)rows * n;
    kc_pair out = to_f ? kc_take_f(c, count) : kc_take_a(c, count);
    kc_pair out1 = to_f ? kc_take_f(c, n) : kc_take_a(c, n);
    KC_RUN(c, linear, rows, groups, quantize, to_f, x.p[i], w.m[i], out.p[i]);
    if (to_f) {
        kc_compare_f(c, "out", out, rows, n, DI_BOUND_SUM, NULL);
    } else {
        kc_compare_a(c, "out", out, rows, n, DI_BOUND_SUM, NULL);
    }
    kc_work(c, matrix_bytes(dtype, n, k), 2.0 * rows * n * k);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair one = kc_at_a(c, x, (int64_t)r * groups * k);
    KC_RUN(c, linear, 1, groups, quantize, to_f, one.p[i], w.m[i], out1.p[i]);
    if (to_f) kc_same_f(c, "out", out1, kc_at_f(c, out, (int64_t)r * n), n);
    if (!to_f) kc_same_a(c, "out", out1, kc_at_a(c, out, (int64_t)r * n), n);
}

void kc_check_linear(check *c) {
    check_linear(c, false);
    if (!c->bench && c->round % 16 >= 4 && c->round % 16 <= 6) check_linear(c, true);
}

void kc_check_attn_out(check *c) {
    int32_t rows = kc_some_rows(c, 20), groups = kc_pick(c, 1, 4, 8),
            k = kc_pick_step(c, 32, 320, 32, 4096);
    int32_t rank = kc_pick_step(c, 32, 64, 32, 1024), width = kc_pick_step(c, 32, 160, 32, 5120);
    if (c->bench) rank = 128, width = 1024; /* an eighth */
    /* Whole blocks of wo_b's K, which wo_a's product makes ready: of groups that are one of its
     * tiles, half of one, or more. */
    if (kc_has_many(c)) groups = 2, rank = kc_pick_step(c, 64, 192, 64, 64);
    kc_pair o = kc_random_a(c, (int64_t)rows * groups * k, KC_NORMAL, 1);
    kc_matrix wo_a = kc_grouped_weights(c, DI_F8_E4M3, groups, groups * rank, k, 0.05);
    kc_matrix wo_b = kc_weights(c, DI_F8_E4M3, width, groups * rank, 0.05);
    kc_pair out = kc_take_a(c, (int64_t)rows * width), out1 = kc_take_a(c, width);
    KC_RUN(c, attn_out, rows, groups, o.p[i], wo_a.m[i], wo_b.m[i], out.p[i]);
    kc_compare_a_tipped(c, "out", out, rows, width, DI_BOUND_SUM, NULL);
    double size = (double)groups * rank * k + (double)width * groups * rank;
    kc_work(c, size, 2 * size * rows);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair one = kc_at_a(c, o, (int64_t)r * groups * k);
    KC_RUN(c, attn_out, 1, groups, one.p[i], wo_a.m[i], wo_b.m[i], out1.p[i]);
    kc_same_a(c, "out", out1, kc_at_a(c, out, (int64_t)r * width), width);
}

/* Some rounds have so many rows that a GPU of 132 processors chooses several in a block. They have few
 * picks: of more some two would be as good as equal to float32. */
enum { CROWDED = 1060 };
void kc_check_route(check *c) {
    int32_t rows = kc_pick(c, 1, 30, 1), n = kc_pick(c, 1, 70, 384),
            width = kc_pick(c, 1, 300, 5120);
    int32_t k = n < 8 ? kc_pick(c, 1, n, 6) : kc_pick(c, 1, 8, 6);
    di_score scoring = (di_score)(c->round % 3);
    if (!c->bench && c->round % 16 >= 9 && scoring != DI_SCORING_SOFTMAX) {
        rows = kc_pick(c, CROWDED, CROWDED + 40, 1), n = kc_pick(c, 33, 70, 1);
        width = kc_pick(c, 1, 40, 1), k = kc_pick(c, 1, 3, 1);
    }
    bool normalize = c->round % 4 != 3;
    double temperature = c->round % 5 == 4 ? 1.7 : 1;
    kc_style style = c->round % 7 == 6 ? KC_ZEROS : KC_NORMAL; /* rows of zeros: all scores tie */
    kc_pair u = kc_random_a(c, (int64_t)rows * width, style, style == KC_ZEROS ? 0 : 1);
    kc_matrix gate = kc_weights(c, DI_BF16, n, width, 0.1);
    kc_vector bias = kc_weight_vector(c, DI_F32, n, 0, style == KC_ZEROS ? 0 : 0.1);
    kc_pair picks = kc_take(c, (uint64_t)(rows * k) * 4), weights = kc_take_f(c, rows * k);
    kc_pair scores = c->round % 6 == 4 ? none : kc_take_f(c, (int64_t)rows * n);
    KC_RUN(c, route, rows, k, scoring, normalize, temperature, 1.5, u.p[i], gate.m[i], bias.v[i],
           picks.p[i], weights.p[i], scores.p[i]);
    kc_compare_bytes(c, "picks", picks, rows, k * 4, NULL);
    kc_compare_f(c, "weights", weights, rows, k, DI_BOUND_SUM, NULL);
    if (scores.p[0].address != 0) kc_compare_f(c, "scores", scores, rows, n, DI_BOUND_SUM, NULL);
    kc_work(c, (double)n * width * 2, 2.0 * n * width);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair one = kc_at_a(c, u, (int64_t)r * width), picks1 = kc_take(c, (uint64_t)k * 4);
    kc_pair weights1 = kc_take_f(c, k);
    KC_RUN(c, route, 1, k, scoring, normalize, temperature, 1.5, one.p[i], gate.m[i], bias.v[i],
           picks1.p[i], weights1.p[i], none.p[i]);
    kc_same(c, "picks", picks1, kc_at(picks, (uint64_t)(r * k) * 4), (uint64_t)k * 4);
    kc_same_f(c, "weights", weights1, kc_at_f(c, weights, r * k), k);
}

/* Distinct random picks, best first means nothing here. */
static void random_picks(check *c, int32_t n_experts, int32_t k, int32_t *out) {
    for (int32_t i = 0; i < k; i++) {
        bool again;
        do {
            again = false;
            out[i] = (int32_t)(kc_bits(c) % (uint64_t)n_experts);
            for (int32_t j = 0; j < i; j++) again |= out[j] == out[i];
        } while (again);
    }
}

/* With 300 picks of two experts: 192 tiles, the same as LONG_WAY. No row is dead in that round. */
enum { LONG_INNER = 2048 };
void kc_check_experts(check *c) {
    int32_t rows = kc_some_rows(c, 24), n = kc_pick(c, 1, kc_has_many(c) ? 2 : 12, 8);
    int32_t k = kc_pick(c, 1, 4, 6), live[KC_MANY_ROWS], picks[KC_MANY_ROWS * 6];
    int32_t width = kc_pick_step(c, 32, 160, 32, 2560), inner = kc_pick_step(c, 32, 96, 32, 1152);
    di_expert at[2][12];
    if (!c->bench && c->round % 16 == 14) rows = KC_MANY_ROWS, n = 2, k = 2, inner = LONG_INNER;
    if (k > n) k = n;
    for (int32_t t = 0; t < rows; t++) {
        random_picks(c, n, k, picks + t * k);
        live[t] = !c->bench && c->round % 2 && kc_bits(c) % 4 == 0 ? -1 : 3;
        if (live[t] < 0) picks[t * k] = -12345; /* may hold anything */
    }
    for (int32_t e = 0; e < n; e++) {
        kc_matrix w1 = kc_weights(c, DI_FP4_PAIR, inner, width, 0.1);
        kc_matrix w3 = kc_weights(c, DI_FP4_PAIR, inner, width, 0.1);
        kc_matrix w2 = kc_weights(c, DI_FP4_PAIR, width, inner, 0.1);
        for (int i = 0; i < 2; i++) {
            at[i][e] = (di_expert){w1.m[i].data,  w1.m[i].scale, w3.m[i].data,
                                   w3.m[i].scale, w2.m[i].data,  w2.m[i].scale};
        }
    }
    kc_pair u = kc_random_a(c, (int64_t)rows * width, KC_NORMAL, 1), table;
    for (int i = 0; i < 2; i++)
        table.p[i] = device_put(&c->dev[i], at[i], (uint64_t)n * sizeof at[0][0]);
    kc_pair pick = kc_ints(c, picks, rows * k), weights = kc_uniform_f(c, rows * k, 0, 1.5);
    kc_pair pos = c->round % 2 || c->bench ? kc_ints(c, live, rows) : none;
    int64_t row = (int64_t)k * width;
    kc_pair out = kc_take_a(c, rows * row), out1 = kc_take_a(c, row);
    double limit = c->round % 3 ? 2.5 : 0;
    KC_RUN(c, experts, rows, k, n, limit, pos.p[i], u.p[i], pick.p[i], weights.p[i], DI_FP4_PAIR,
           width, inner, table.p[i], out.p[i]);
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    for (int32_t t = 0; t < rows; t++) {
        if (live[t] < 0) continue;
        kc_compare_a_tipped(c, "rows", kc_at_a(c, out, t * row), k, width, DI_BOUND_SUM, NULL);
    }
    kc_work(c, 3 * k * matrix_bytes(DI_FP4_PAIR, inner, width), 6.0 * k * inner * width);
    if (c->bench || live[r] < 0) return;
    kc_pair u1 = kc_at_a(c, u, (int64_t)r * width), pick1 = kc_at(pick, (uint64_t)(r * k) * 4);
    kc_pair weight1 = kc_at_f(c, weights, r * k);
    KC_RUN(c, experts, 1, k, n, limit, none.p[i], u1.p[i], pick1.p[i], weight1.p[i], DI_FP4_PAIR,
           width, inner, table.p[i], out1.p[i]);
    kc_same_a(c, "rows", out1, kc_at_a(c, out, r * row), row);
}

void kc_check_shared_expert(check *c) {
    int32_t rows = kc_some_rows(c, 24);
    int32_t width = kc_pick_step(c, 32, 160, 32, 2560), inner = kc_pick_step(c, 32, 96, 32, 1152);
    kc_pair u = kc_random_a(c, (int64_t)rows * width, KC_NORMAL, 1);
    kc_matrix w1 = kc_weights(c, DI_F8_E4M3, inner, width, 0.1);
    kc_matrix w3 = kc_weights(c, DI_F8_E4M3, inner, width, 0.1);
    kc_matrix w2 = kc_weights(c, DI_F8_E4M3, width, inner, 0.1);
    kc_pair out = kc_take_a(c, (int64_t)rows * width), out1 = kc_take_a(c, width);
    double limit = c->round % 3 ? 2.5 : 0;
    KC_RUN(c, shared_expert, rows, limit, u.p[i], w1.m[i], w3.m[i], w2.m[i], out.p[i]);
    kc_compare_a_tipped(c, "out", out, rows, width, DI_BOUND_SUM, NULL);
    kc_work(c, 3.0 * inner * width, 6.0 * inner * width);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair one = kc_at_a(c, u, (int64_t)r * width);
    KC_RUN(c, shared_expert, 1, limit, one.p[i], w1.m[i], w3.m[i], w2.m[i], out1.p[i]);
    kc_same_a(c, "out", out1, kc_at_a(c, out, (int64_t)r * width), width);
}

void kc_check_head(check *c) {
    int32_t rows = kc_pick(c, 1, 12, 1), n_out = kc_pick(c, 1, 6, 1), hc = kc_pick(c, 1, 8, 4);
    int32_t width = kc_pick(c, 1, 300, 2560), vocab = kc_pick(c, 1, 200, 4096), which[6];
    for (int32_t i = 0; i < n_out; i++) which[i] = kc_pick(c, 0, rows - 1, 0);
    kc_pair streams =
        kc_random_a(c, (int64_t)rows * hc * width, c->bench ? KC_NORMAL : KC_OUTLIERS, 1);
    kc_pair pre = kc_uniform_f(c, rows * hc, 0, 1), at = kc_ints(c, which, n_out);
    kc_vector norm = kc_weight_vector(c, DI_BF16, width, 1, 0.2);
    kc_matrix head = kc_weights(c, DI_BF16, vocab, width, 0.05);
    kc_pair normed = c->round % 2 ? none : kc_take_a(c, (int64_t)n_out * width);
    kc_pair logits = kc_take_f(c, (int64_t)n_out * vocab), logits1 = kc_take_f(c, vocab);
    KC_RUN(c, head, n_out, hc, width, 1e-20, at.p[i], streams.p[i], pre.p[i], norm.v[i], head.m[i],
           normed.p[i], logits.p[i]);
    if (normed.p[0].address != 0)
        kc_compare_a(c, "normed", normed, n_out, width, DI_BOUND_SUM, NULL);
    if (!c->release) kc_compare_f(c, "logits", logits, n_out, vocab, DI_BOUND_SUM, NULL);
    kc_work(c, (double)vocab * width * 2, 2.0 * vocab * width);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, n_out - 1, 0);
    kc_pair at1 = kc_at(at, (uint64_t)r * 4);
    KC_RUN(c, head, 1, hc, width, 1e-20, at1.p[i], streams.p[i], pre.p[i], norm.v[i], head.m[i],
           none.p[i], logits1.p[i]);
    kc_same_f(c, "logits", logits1, kc_at_f(c, logits, (int64_t)r * vocab), vocab);
    /* Under `release` a tipped norm value moves all logits: check them from the stored norm. */
    if (!c->release || normed.p[0].address == 0) return;
    kc_pair exact = kc_random_a(c, (int64_t)n_out * width, KC_NORMAL, 1);
    KC_RUN(c, linear, n_out, 1, false, true, exact.p[i], head.m[i], logits.p[i]);
    kc_compare_f(c, "logits of equal norms", logits, n_out, vocab, DI_BOUND_SUM, NULL);
}

void kc_check_markov(check *c) {
    int32_t n = kc_pick(c, 1, 6, 1), stride = kc_pick(c, 1, 5, 5),
            prev_stride = kc_pick(c, 1, 3, 1);
    int32_t width = kc_pick(c, 1, 300, 2560), vocab = kc_pick(c, 1, 200, 4096);
    int32_t rank = kc_pick(c, 1, 70, 256), prev[6 * 3];
    for (int32_t i = 0; i < n * prev_stride; i++) prev[i] = kc_pick(c, 0, vocab - 1, 0);
    kc_pair before = kc_ints(c, prev, n * prev_stride);
    kc_pair base = kc_random_f(c, (int64_t)n * vocab, 3);
    kc_pair hidden = kc_random_a(c, (int64_t)n * stride * width, KC_NORMAL, 1);
    kc_matrix embed = kc_table(c, DI_BF16, vocab, rank, 1);
    kc_matrix head = kc_weights(c, DI_BF16, vocab, rank, 0.1);
    kc_matrix proj = kc_weights(c, DI_BF16, 1, width + rank, 0.05);
    kc_pair logits = kc_take_f(c, (int64_t)n * vocab), confidence = kc_take_f(c, n);
    kc_pair logits1 = kc_take_f(c, vocab), confidence1 = kc_take_f(c, 1);
    KC_RUN(c, markov, n, vocab, width, prev_stride, stride, before.p[i], embed.m[i], head.m[i],
           proj.m[i], base.p[i], hidden.p[i], logits.p[i], confidence.p[i]);
    kc_compare_f(c, "logits", logits, n, vocab, DI_BOUND_SUM, NULL);
    kc_compare_f(c, "confidence", confidence, n, 1, DI_BOUND_SUM, NULL);
    kc_work(c, (double)vocab * rank * 2, 2.0 * vocab * rank);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, n - 1, 0);
    kc_pair before1 = kc_at(before, (uint64_t)(r * prev_stride) * 4);
    kc_pair base1 = kc_at_f(c, base, (int64_t)r * vocab);
    kc_pair hidden1 = kc_at_a(c, hidden, (int64_t)r * stride * width);
    KC_RUN(c, markov, 1, vocab, width, prev_stride, stride, before1.p[i], embed.m[i], head.m[i],
           proj.m[i], base1.p[i], hidden1.p[i], logits1.p[i], confidence1.p[i]);
    kc_same_f(c, "logits", logits1, kc_at_f(c, logits, (int64_t)r * vocab), vocab);
    kc_same_f(c, "confidence", confidence1, kc_at_f(c, confidence, r), 1);
}

void kc_check_index_weights(check *c) {
    int32_t rows = kc_pick(c, 1, 20, 1), heads = kc_pick(c, 1, 40, 32),
            width = kc_pick(c, 1, 300, 5120);
    kc_pair u = kc_random_a(c, (int64_t)rows * width,
                            kc_style_of(c) == KC_HUGE ? KC_NORMAL : kc_style_of(c), 1);
    kc_matrix proj = kc_weights(c, DI_BF16, heads, width, 0.1);
    kc_pair out = kc_take_a(c, (int64_t)rows * heads), out1 = kc_take_a(c, heads);
    int32_t dim = 32 * kc_pick(c, 1, 4, 4);
    KC_RUN(c, index_weights, rows, dim, u.p[i], proj.m[i], out.p[i]);
    kc_compare_a(c, "out", out, rows, heads, DI_BOUND_SUM, NULL);
    kc_work(c, 2.0 * heads * width, 2.0 * heads * width);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair one = kc_at_a(c, u, (int64_t)r * width);
    KC_RUN(c, index_weights, 1, dim, one.p[i], proj.m[i], out1.p[i]);
    kc_same_a(c, "out", out1, kc_at_a(c, out, (int64_t)r * heads), heads);
}
