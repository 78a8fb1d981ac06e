/* kernelcheck: sampling, the choice of drafts and their acceptance. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernelcheck.h"

enum { MAX_OUT = 96, MAX_BIAS = 5, MAX_SLOTS = 12, MAX_EXTRA = 40 };
static const kc_pair none = {{{0}, {0}}};

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
    if (way >> 8 & 1) p.presence_penalty = 0.7f, p.frequency_penalty = way >> 12 & 1 ? 1.5f : -0.2f;
    if (biases && way >> 9 & 1) p.bias_begin = out % 2, p.n_bias = kc_pick(c, 1, MAX_BIAS - 1, 0);
    if (n_masks > 0 && way >> 10 & 1) p.mask = out % n_masks;
    if (way >> 11 & 1) p.noise = DI_NOISE_ROUND;
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
        if (!c->bench && c->round % 4 == 2 && kc_bits(c) % 3 == 0) x[i] = -INFINITY;
    }
    if (!c->bench && c->round % 5 == 4) x[kc_bits(c) % (uint64_t)vocab] = NAN;
    if (!c->bench && c->round % 5 == 3) {
        for (int32_t i = 0; i < vocab; i++) x[i] = -INFINITY;
    }
    for (int i = 0; i < 2; i++) p.p[i] = device_put_f(&c->dev[i], x, (int64_t)n_out * vocab);
    free(x);
    return p;
}

/* What a sample needs but its rows. */
typedef struct sampling {
    int32_t n_out, vocab, n_slots, n_params;
    kc_pair logits, params, counts, biases, masks, last, token, logprob;
    kc_pair param_of, extra, extra_at, n_extra;
    int32_t extra_stride;
} sampling;

static kc_pair random_masks(check *c, int32_t n_masks, int32_t vocab) {
    int32_t words = (vocab + 31) / 32;
    uint32_t *masks = malloc((size_t)(n_masks * words) * 4);
    if (masks == NULL) abort();
    for (int32_t i = 0; i < n_masks * words; i++) {
        masks[i] = i < words      ? (uint32_t)kc_bits(c)
                   : c->round % 2 ? 0
                                  : 1u << 5; /* none, one a word */
    }
    kc_pair p = kc_put(c, masks, (uint64_t)(n_masks * words) * 4);
    free(masks);
    return p;
}

/* n_out, vocab, n_slots and n_params are set. */
static void take_sampling(check *c, sampling *s, const di_sample_params *params) {
    int32_t next[MAX_SLOTS];
    for (int i = 0; i < MAX_SLOTS; i++) next[i] = 3;
    di_logit_bias biases[MAX_BIAS];
    for (int i = 0; i < MAX_BIAS; i++) {
        biases[i] = (di_logit_bias){(int32_t)(kc_bits(c) % (uint64_t)s->vocab), kc_normal(c) * 8};
    }
    s->counts = c->round % 4 == 3 || c->bench ? none : random_counts(c, s->n_slots, s->vocab);
    s->logits = random_logits(c, s->n_out, s->vocab);
    s->params = kc_put(c, params, (uint64_t)s->n_params * sizeof *params);
    s->biases = kc_put(c, biases, sizeof biases);
    s->masks = random_masks(c, 2, s->vocab);
    s->token = kc_take(c, (uint64_t)s->n_out * 4);
    s->logprob = kc_take(c, (uint64_t)s->n_out * 4);
    s->last = kc_ints(c, next, s->n_slots);
}

static di_sample_args args_of(const sampling *s, int i, kc_pair which, kc_pair pos, kc_pair first) {
    return (di_sample_args){.n_out = s->n_out,
                            .vocab = s->vocab,
                            .which = which.p[i],
                            .pos = pos.p[i],
                            .first = first.p[i],
                            .logits = s->logits.p[i],
                            .params = s->params.p[i],
                            .param_of = s->param_of.p[i],
                            .counts = s->counts.p[i],
                            .extra = s->extra.p[i],
                            .extra_at = s->extra_at.p[i],
                            .n_extra = s->n_extra.p[i],
                            .extra_stride = s->extra_stride,
                            .biases = s->biases.p[i],
                            .masks = s->masks.p[i],
                            .next_token = s->last.p[i],
                            .token = s->token.p[i],
                            .logprob = s->logprob.p[i]};
}

static void compare_sampled(check *c, const sampling *s) {
    kc_compare_bytes(c, "token", s->token, s->n_out, 4, NULL);
    kc_compare_bytes(c, "next_token", s->last, s->n_slots, 4, NULL);
    if (s->logprob.p[0].address == 0) return;
    float got[2][MAX_OUT];
    for (int i = 0; i < 2; i++)
        device_get(&c->dev[i], s->logprob.p[i], got[i], (uint64_t)s->n_out * 4);
    for (int i = 0; i < s->n_out && !c->bench; i++) { /* 0 where there is no token */
        float off = fabsf(got[0][i] - got[1][i]);
        if (!(off <= 1e-5f * fmaxf(1, fabsf(got[0][i])))) {
            kc_fail(c, "logprob[%d] = %.9g, the twin %.9g", i, (double)got[1][i],
                    (double)got[0][i]);
        }
    }
}

/* Drafts before rows: up to 4, some negative, the same ones often. */
static void take_extra(check *c, sampling *s) {
    int32_t ids[MAX_EXTRA], at[MAX_OUT], n[MAX_OUT];
    s->extra_stride = 1 + c->round % 3;
    for (int i = 0; i < MAX_EXTRA; i++) {
        ids[i] = kc_pick(c, -2, 9, 0);
        if (ids[i] >= s->vocab) ids[i] = s->vocab - 1;
    }
    for (int i = 0; i < s->n_out; i++) at[i] = kc_pick(c, 0, 30, 0), n[i] = kc_pick(c, 0, 4, 0);
    s->extra = kc_ints(c, ids, MAX_EXTRA);
    s->extra_at = kc_ints(c, at, s->n_out);
    s->n_extra = kc_ints(c, n, s->n_out);
}

/* SMALL: a few ids, so that every penalty may decide. MANY rows: more than are sampled at a time.
 * RELEASED: its vocabulary, cut in every way, CUT: by top_p alone. */
enum { SMALL, MEDIUM, MANY, RELEASED, CUT };

static void check_sample(check *c, int size) {
    static const int32_t most_rows[] = {6, 6, MAX_OUT, 4, 2};
    bool small = size == SMALL, cut = size == CUT;
    sampling s = {.n_out = kc_pick(c, size == MANY ? 40 : 1, most_rows[size], 1),
                  .n_slots = kc_pick(c, 1, 3, 1)};
    s.n_params = s.n_out;
    s.vocab = kc_pick(c, 1, small ? 12 : size == MEDIUM && c->round % 2 ? 5000 : 700, 129280);
    if (size >= RELEASED) s.vocab = 129280;
    int32_t pos[10], first[10], which[MAX_OUT], param_of[MAX_OUT];
    di_sample_params params[MAX_OUT];
    for (int i = 0; i < 10; i++) {
        pos[i] = !c->bench && kc_bits(c) % 6 == 0 ? -1 : kc_pick(c, 0, 100000, 5);
        first[i] = kc_pick(c, 0, i, 0);
    }
    for (int i = 0; i < s.n_out; i++) {
        which[i] = kc_pick(c, 0, 9, 0);
        param_of[i] = kc_pick(c, 0, s.n_out - 1, 0);
        params[i] = random_params(c, i, s.n_slots, !small, small ? 0 : 2);
    }
    for (int i = 0; i < s.n_out && cut; i++) {
        pos[which[i]] = 77;
        params[i].temperature = i == 0 ? 1 : 1.5f;
        params[i].top_p = i == 0 ? 0.9f : 0.99999f;
        params[i].top_k = 0;
        params[i].mask = -1;
    }
    take_sampling(c, &s, params);
    if (c->round % 2 && !cut) s.param_of = kc_ints(c, param_of, s.n_out);
    if ((small || c->round % 3) && !c->bench) take_extra(c, &s);
    if (c->round % 5 == 4 && !c->bench) s.logprob = none;
    kc_pair at = kc_ints(c, which, s.n_out), p = kc_ints(c, pos, 10), f = kc_ints(c, first, 10);
    KC_RUN_WITH(c, sample, args_of(&s, i, at, p, f));
    compare_sampled(c, &s);
    kc_work(c, 4.0 * s.vocab, 0);
}

void kc_check_sample(check *c) {
    check_sample(c, MEDIUM);
    if (c->bench) return;
    for (int i = 0; i < 8; i++) check_sample(c, SMALL);
    if (c->round % 4 == 1) check_sample(c, MANY);
    if (c->round % 16 == 7) check_sample(c, CUT);
    if (c->round % 8 == 2 || c->round == 4) check_sample(c, RELEASED); /* -infinity, ties, NaN */
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

/* ---- Verification ---- */

enum { MAX_BLOCKS = 6, MAX_DRAFTS = 5 };

static void shuffled(check *c, int32_t *x, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        int32_t j = kc_pick(c, 0, i, 0);
        x[i] = x[j];
        x[j] = i;
    }
}

/* Confidences with ties, NaN and infinities. */
static kc_pair random_confidence(check *c, int32_t n, int way) {
    kc_pair p;
    float x[MAX_DRAFTS * MAX_BLOCKS];
    for (int32_t i = 0; i < n; i++) {
        x[i] = kc_normal(c) * 3;
        if (way % 3 == 1) x[i] = (float)(int)(x[i] / 2);
        if (way % 4 == 2 && kc_bits(c) % 8 == 0) x[i] = NAN;
        if (way % 4 == 3 && kc_bits(c) % 4 == 0) x[i] = x[i] > 0 ? INFINITY : -INFINITY;
    }
    for (int i = 0; i < 2; i++) p.p[i] = device_put_f(&c->dev[i], x, n);
    return p;
}

static void check_allot(check *c, int way) {
    int32_t n = kc_pick(c, 1, MAX_BLOCKS, MAX_BLOCKS), block = kc_pick(c, 1, MAX_DRAFTS, 5);
    int32_t columns[MAX_BLOCKS], slots[MAX_BLOCKS], next[MAX_BLOCKS], drafts[32], most = 0;
    di_block blocks[MAX_BLOCKS];
    float temperatures[DI_LAWS * MAX_DRAFTS];
    shuffled(c, columns, n);
    shuffled(c, slots, n);
    for (int32_t b = 0; b < n; b++) {
        next[b] = kc_pick(c, 0, 500, 7);
        blocks[b] = (di_block){slots[b], kc_pick(c, 0, block, block), columns[b],
                               kc_pick(c, 0, DI_LAWS - 1, 0), 0};
        if (blocks[b].most == 0) blocks[b].column = -1;
        most += blocks[b].most;
    }
    for (int32_t i = 0; i < n * block; i++) drafts[i] = kc_pick(c, way % 2 ? -2 : 0, 30, 7);
    for (int32_t i = 0; i < DI_LAWS * block; i++)
        temperatures[i] = way % 2 ? 1 : (float)exp2(kc_uniform(c) * 6 - 3);
    int32_t n_drafts = way == 5 ? 0 : kc_pick(c, 0, most, most / 2), rows = n + n_drafts;
    kc_pair at = kc_put(c, blocks, (uint64_t)n * sizeof *blocks), anchor = kc_ints(c, next, n);
    kc_pair ids = n_drafts ? kc_ints(c, drafts, n * block) : none;
    kc_pair sure = n_drafts ? random_confidence(c, n * block, way) : none;
    kc_pair t = n_drafts ? kc_put(c, temperatures, (uint64_t)(DI_LAWS * block) * 4) : none;
    kc_pair n_rows = kc_take(c, (uint64_t)n * 4);
    kc_pair row = kc_take(c, (uint64_t)rows * sizeof(di_row)), out[5];
    for (int k = 0; k < 5; k++) out[k] = kc_take(c, (uint64_t)rows * 4);
    KC_RUN(c, allot, n, n_drafts, block, n, at.p[i], anchor.p[i], ids.p[i], sure.p[i], t.p[i],
           n_rows.p[i], row.p[i], out[0].p[i], out[1].p[i], out[2].p[i], out[3].p[i], out[4].p[i]);
    kc_compare_bytes(c, "n_rows", n_rows, n, 4, NULL);
    kc_compare_bytes(c, "rows", row, rows, sizeof(di_row), NULL);
    static const char *const names[] = {"which", "slot", "param_of", "extra_at", "n_extra"};
    for (int k = 0; k < 5; k++) kc_compare_bytes(c, names[k], out[k], rows, 4, NULL);
}

void kc_check_allot(check *c) {
    for (int i = 0; i < (c->bench ? 1 : 8); i++) check_allot(c, 8 * c->round + i); /* small */
}

/* The rows of some blocks, and others behind them. */
typedef struct verification {
    int32_t n_blocks, block, n_rows[MAX_SLOTS], total;
    di_block blocks[MAX_SLOTS];
    int32_t pos[MAX_OUT], first[MAX_OUT], which[MAX_OUT], param_of[MAX_OUT];
    int32_t extra_at[MAX_OUT], n_extra[MAX_OUT], token[MAX_OUT];
} verification;

static verification random_blocks(check *c) {
    verification v = {.n_blocks = kc_pick(c, 1, c->round % 4 == 3 ? MAX_SLOTS : 4, 1),
                      .block = kc_pick(c, 1, 5, 5)};
    int32_t columns[MAX_SLOTS], slots[MAX_SLOTS], others = kc_pick(c, 0, 2, 0);
    shuffled(c, columns, v.n_blocks);
    shuffled(c, slots, v.n_blocks);
    for (int32_t b = 0; b < v.n_blocks + others; b++) {
        bool decodes = b < v.n_blocks, dead = !c->bench && kc_bits(c) % 8 == 0;
        int32_t n = decodes ? 1 + kc_pick(c, 0, v.block, v.block) : 1, begin = v.total;
        int32_t pos = kc_pick(c, 0, 5000, 5), of = decodes ? b : 0;
        if (decodes) {
            v.blocks[b] = (di_block){slots[b], n - 1, columns[b], 0, (int32_t)(kc_bits(c) % 2)};
            v.n_rows[b] = n;
        }
        for (int32_t k = 0; k < n; k++, v.total++) {
            v.pos[v.total] = dead ? -1 : pos + k;
            v.first[v.total] = begin;
            v.which[v.total] = v.total;
            v.param_of[v.total] = of;
            v.extra_at[v.total] = begin + 1;
            v.n_extra[v.total] = decodes ? k : 0;
        }
    }
    return v;
}

/* Rows of drafts, made so that many stand: one after the other, as the token drawn before it or
 * another. `rows` is what stands on the devices. */
static void set_drafts(check *c, verification *v, const sampling *s, kc_pair rows, kc_pair which,
                       kc_pair pos, kc_pair first) {
    int32_t token[MAX_OUT];
    for (int32_t k = 0; k <= v->block; k++) {
        for (int i = 0; i < 2; i++) {
            di_backend *backend = c->dev[i].backend;
            backend->upload(backend->stream, rows.p[i], v->token, (uint64_t)v->total * 4);
        }
        KC_RUN_WITH(c, sample, args_of(s, i, which, pos, first));
        device_get(&c->dev[0], s->token.p[0], token, (uint64_t)v->total * 4);
        for (int32_t i = 1; i < v->total; i++) {
            if (v->n_extra[i] != k + 1) continue;
            int32_t other = (int32_t)(kc_bits(c) % (uint64_t)s->vocab);
            v->token[i] = token[i - 1] >= 0 && kc_bits(c) % 4 ? token[i - 1] : other;
        }
    }
}

static void check_accept(check *c) {
    verification v = random_blocks(c);
    sampling s = {.n_out = v.total, .n_slots = v.n_blocks, .n_params = v.n_blocks};
    s.vocab = kc_pick(c, 1, c->round % 2 ? 3000 : 12, 129280);
    di_sample_params params[MAX_SLOTS];
    int32_t valid[MAX_SLOTS];
    for (int32_t b = 0; b < MAX_SLOTS; b++) valid[b] = INT32_MAX;
    for (int32_t b = 0; b < v.n_blocks; b++) {
        params[b] = random_params(c, b, v.n_blocks, true, 2);
        params[b].slot = v.blocks[b].slot;
        if (v.blocks[b].reject) params[b].noise = DI_NOISE_POSITION; /* drafts had the others */
    }
    take_sampling(c, &s, params);
    kc_pair rows = kc_take(c, (uint64_t)v.total * 4), which = kc_ints(c, v.which, v.total);
    kc_pair pos = kc_ints(c, v.pos, v.total), first = kc_ints(c, v.first, v.total);
    s.param_of = kc_ints(c, v.param_of, v.total);
    s.extra = rows;
    s.extra_at = kc_ints(c, v.extra_at, v.total);
    s.n_extra = kc_ints(c, v.n_extra, v.total);
    s.extra_stride = 1;
    set_drafts(c, &v, &s, rows, which, pos, first);
    kc_pair blocks = kc_put(c, v.blocks, (uint64_t)v.n_blocks * sizeof v.blocks[0]);
    kc_pair n_rows = kc_ints(c, v.n_rows, v.n_blocks), n_valid = kc_ints(c, valid, v.n_blocks);
    kc_pair q = random_logits(c, v.block * v.n_blocks, s.vocab);
    KC_RUN(c, accept, args_of(&s, i, which, pos, first), v.n_blocks, v.block, v.n_blocks,
           blocks.p[i], n_rows.p[i], rows.p[i], q.p[i], n_valid.p[i]);
    compare_sampled(c, &s);
    kc_compare_bytes(c, "n_valid", n_valid, v.n_blocks, 4, NULL);
}

void kc_check_accept(check *c) {
    for (int i = 0; i < (c->bench ? 1 : 4); i++) check_accept(c);
}
