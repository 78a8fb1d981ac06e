/* Acceptance: right and wrong drafts at each place, bad logits, dead rows; and whole rounds of
 * drafting, allot, sample and accept, whose tokens must come as plain decoding draws them. On the
 * twins and on the CPU. */
/* ctest: gpu */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/device.h"
#include "support/spec_support.h"

enum { V = 6, MAX_BLOCKS = 40, BLOCK = 3, MAX_ROWS = MAX_BLOCKS * (BLOCK + 1) };

static device open_backend(const char *name) {
    device d;
    di_limits limits = {.max_rows = MAX_ROWS,
                        .max_out = MAX_ROWS,
                        .width = 32,
                        .hc = 1,
                        .vocab = V,
                        .n_heads = 1,
                        .head_dim = 32,
                        .index_dim = 32,
                        .max_entries = 64,
                        .max_k = 32};
    if (!device_open(&d, name, DI_NUMERICS_FLOAT, 1)) skip();
    device_prepare(&d, &limits);
    return d;
}

static di_ptr put_ints(device *d, const int32_t *x, int32_t n) {
    return device_put(d, x, (uint64_t)n * 4);
}

/* ---- One block, greedy ---- */

typedef struct round_of_one {
    int32_t n;                 /* rows: 1 + drafts */
    int32_t argmax[BLOCK + 1]; /* of the target's rows */
    int32_t rows[BLOCK + 1];   /* what stands in them */
    float logits[(BLOCK + 1) * V];
    int32_t pos, reject;
    int32_t token[BLOCK + 1], n_valid, next_token; /* out */
    float logprob[BLOCK + 1];
} round_of_one;

static round_of_one good_round(void) {
    round_of_one r = {.n = BLOCK + 1, .argmax = {3, 1, 5, 2}, .rows = {0, 3, 1, 5}, .pos = 10};
    for (int i = 0; i <= BLOCK; i++) {
        for (int id = 0; id < V; id++) r.logits[i * V + id] = (float)((id * 5 + i) % 4) * 0.25f;
        r.logits[i * V + r.argmax[i]] = 3;
    }
    return r;
}

static void run_one(device *d, round_of_one *r) {
    int32_t pos[BLOCK + 1], which[BLOCK + 1], zero[BLOCK + 1] = {0}, next[3] = {-7, -7, -7};
    int32_t valid[3] = {INT32_MAX, INT32_MAX, INT32_MAX};
    di_sample_params params = {.top_p = 1, .repetition_penalty = 1, .slot = 1, .mask = -1};
    di_block block = {.slot = 1, .most = r->n - 1, .column = 0, .reject = r->reject};
    for (int i = 0; i <= BLOCK; i++) pos[i] = r->pos < 0 ? -1 : r->pos + i, which[i] = i;
    di_ptr token = device_take(d, (uint64_t)r->n * 4), logprob = device_take(d, (uint64_t)r->n * 4);
    di_accept_args args = {.sample = {.n_out = r->n,
                                      .vocab = V,
                                      .which = put_ints(d, which, r->n),
                                      .pos = put_ints(d, pos, r->n),
                                      .first = put_ints(d, zero, r->n),
                                      .logits = device_put_f(d, r->logits, (int64_t)r->n * V),
                                      .params = device_put(d, &params, sizeof params),
                                      .param_of = put_ints(d, zero, r->n),
                                      .next_token = put_ints(d, next, 3),
                                      .token = token,
                                      .logprob = logprob},
                           .n_blocks = 1,
                           .block = BLOCK,
                           .n_columns = 1,
                           .blocks = device_put(d, &block, sizeof block),
                           .n_rows = put_ints(d, &r->n, 1),
                           .row_token = put_ints(d, r->rows, r->n),
                           .draft_logits = device_put_f(d, r->logits, BLOCK * V),
                           .n_valid = put_ints(d, valid, 3)};
    d->backend->ops->sample(d->backend->stream, &args.sample);
    d->backend->ops->accept(d->backend->stream, &args);
    device_get(d, token, r->token, (uint64_t)r->n * 4);
    device_get(d, logprob, r->logprob, (uint64_t)r->n * 4);
    device_get(d, args.n_valid, valid, 12);
    device_get(d, args.sample.next_token, next, 12);
    assert_true(valid[0] == INT32_MAX && valid[2] == INT32_MAX); /* other slots */
    assert_true(next[0] == -7 && next[2] == -7);
    r->n_valid = valid[1];
    r->next_token = next[1];
    assert_int_equal(device_reset(d), 0);
}

static double logprob_of(const float *logits, int32_t id) {
    double sum = 0;
    for (int i = 0; i < V; i++) sum += exp((double)logits[i]);
    return (double)logits[id] - log(sum);
}

/* m drafts stood, and the argmax of the row behind them came out. */
static void assert_came_out(const round_of_one *r, int32_t m) {
    assert_int_equal(r->n_valid, m + 1);
    assert_int_equal(r->next_token, r->argmax[m]);
    for (int32_t i = 0; i < r->n; i++) {
        assert_int_equal(r->token[i], i <= m ? r->argmax[i] : -1);
        double want = i <= m ? logprob_of(r->logits + i * V, r->argmax[i]) : 0;
        assert_true(fabs((double)r->logprob[i] - want) < 1e-5);
    }
}

/* At temperature 0 rejection is equality. */
static void test_right_and_wrong(void **state) {
    device d = open_backend(*state);
    for (int32_t reject = 0; reject < 2; reject++) {
        for (int32_t n = 1; n <= BLOCK + 1; n++) {
            for (int32_t wrong = 1; wrong <= n; wrong++) { /* n: none is */
                round_of_one r = good_round();
                r.n = n;
                r.reject = reject;
                if (wrong < n) r.rows[wrong] = 4; /* those behind it are right, and fall too */
                run_one(&d, &r);
                assert_came_out(&r, wrong - 1);
            }
        }
    }
    device_close(&d);
}

static void test_bad_logits(void **state) {
    device d = open_backend(*state);
    for (int32_t reject = 0; reject < 2; reject++) {
        for (int32_t bad = 0; bad <= BLOCK; bad++) {
            round_of_one r = good_round();
            r.reject = reject;
            r.logits[bad * V + 2] = NAN;
            run_one(&d, &r);
            assert_int_equal(r.n_valid, bad + 1);
            for (int32_t i = 0; i <= BLOCK; i++)
                assert_int_equal(r.token[i], i < bad ? r.argmax[i] : i == bad ? -2 : -1);
        }
        round_of_one r = good_round();
        r.reject = reject;
        r.logits[V] = NAN;
        r.rows[1] = 4; /* the bad row is behind the end */
        run_one(&d, &r);
        assert_came_out(&r, 0);
        r = good_round();
        r.reject = reject;
        r.pos = -1; /* dead */
        run_one(&d, &r);
        assert_int_equal(r.n_valid, 1);
        assert_int_equal(r.next_token, -7);
        for (int32_t i = 0; i <= BLOCK; i++) assert_int_equal(r.token[i], -1);
    }
    device_close(&d);
}

/* ---- Whole rounds ---- */

/* Target and draft know the token before; penalties and truncation do the rest. */
typedef struct toy {
    float p[V][V], q[V][V];
    di_sample_params params; /* seeds and slots are set by the round */
    int32_t counts[V];
    bool bad_draft; /* q of the second draft is NaN */
} toy;

static toy make_toy(void) {
    toy t = {.params = {.temperature = 0.9f, .top_p = 1, .repetition_penalty = 1, .mask = -1}};
    for (int i = 0; i < V; i++) {
        for (int id = 0; id < V; id++) {
            t.p[i][id] = (float)((i * 7 + id * 11) % 13) * 0.2f - 1;
            t.q[i][id] = t.p[i][id] + (float)((i * 5 + id * 3) % 7) * 0.25f - 0.75f;
        }
    }
    t.counts[1] = 2;
    t.counts[4] = DI_COUNT_PROMPT;
    return t;
}

/* One round of n blocks, all behind token 0, whose position is 20; n_drafts are verified. */
typedef struct whole {
    int32_t n, n_drafts, reject;
    uint64_t seed;
    int32_t tokens[MAX_BLOCKS][BLOCK + 1], n_tokens[MAX_BLOCKS]; /* out */
} whole;

typedef struct buffers {
    di_ptr counts, drafts, draft_logits, next_token, n_rows, rows;
    di_ptr blocks, which, slot, param_of, extra_at, n_extra;
} buffers;

static di_ptr put_params(device *d, const toy *t, const whole *w, di_noise noise) {
    di_sample_params params[MAX_BLOCKS];
    for (int32_t b = 0; b < w->n; b++) {
        params[b] = t->params;
        params[b].seed = w->seed * MAX_BLOCKS + (uint64_t)b;
        params[b].slot = b;
        params[b].noise = noise;
    }
    return device_put(d, params, (uint64_t)w->n * sizeof *params);
}

static buffers take_buffers(device *d, const toy *t, const whole *w) {
    uint64_t n = (uint64_t)w->n, rows = n + (uint64_t)w->n_drafts;
    int32_t counts[MAX_BLOCKS][V], zero[MAX_BLOCKS] = {0};
    di_block blocks[MAX_BLOCKS];
    for (int32_t b = 0; b < w->n; b++) {
        memcpy(counts[b], t->counts, sizeof counts[b]);
        blocks[b] = (di_block){.slot = b, .most = BLOCK, .column = b, .reject = w->reject};
    }
    return (buffers){.counts = device_put(d, counts, n * sizeof counts[0]),
                     .drafts = device_take(d, n * BLOCK * 4),
                     .draft_logits = device_take_f(d, w->n * BLOCK * V),
                     .next_token = put_ints(d, zero, w->n),
                     .n_rows = device_take(d, n * 4),
                     .rows = device_take(d, rows * sizeof(di_row)),
                     .blocks = device_put(d, blocks, n * sizeof blocks[0]),
                     .which = device_take(d, rows * 4),
                     .slot = device_take(d, rows * 4),
                     .param_of = device_take(d, rows * 4),
                     .extra_at = device_take(d, rows * 4),
                     .n_extra = device_take(d, rows * 4)};
}

/* Draft k of every block, behind the tokens `before`, which become the drafts. */
static void draft(device *d, const toy *t, const whole *w, const buffers *at, di_ptr params,
                  int32_t k, int32_t *before) {
    int32_t pos[MAX_ROWS], first[MAX_ROWS], which[MAX_BLOCKS], column[MAX_BLOCKS], ks[MAX_BLOCKS];
    float logits[MAX_BLOCKS][V];
    uint64_t f = d->backend->f_bytes, done = (uint64_t)(k * w->n), n = (uint64_t)w->n;
    for (int32_t b = 0; b < w->n; b++) {
        which[b] = b * BLOCK + k;
        column[b] = b;
        ks[b] = k;
        memcpy(logits[b], t->q[before[b] < 0 ? 0 : before[b]], sizeof logits[b]);
        if (t->bad_draft && k == 1) logits[b][b % V] = NAN;
    }
    for (int32_t i = 0; i < w->n * BLOCK; i++) {
        pos[i] = 20 + i % BLOCK;
        first[i] = i / BLOCK * BLOCK;
    }
    di_ptr of_step = device_put_f(d, logits[0], (int64_t)w->n * V);
    d->backend->copy(d->backend->stream, di_ptr_at(at->draft_logits, done * V * f), of_step,
                     n * V * f);
    di_sample_args args = {.n_out = w->n,
                           .vocab = V,
                           .which = put_ints(d, which, w->n),
                           .pos = put_ints(d, pos, w->n * BLOCK),
                           .first = put_ints(d, first, w->n * BLOCK),
                           .logits = of_step,
                           .params = params,
                           .counts = at->counts,
                           .extra = at->drafts,
                           .extra_at = put_ints(d, column, w->n),
                           .n_extra = put_ints(d, ks, w->n),
                           .extra_stride = w->n,
                           .next_token = device_take(d, n * 4),
                           .token = di_ptr_at(at->drafts, done * 4),
                           .logprob = device_take(d, n * 4)};
    d->backend->ops->sample(d->backend->stream, &args);
    device_get(d, args.token, before, n * 4);
}

static void allot(device *d, const whole *w, const buffers *at) {
    float confidence[BLOCK * MAX_BLOCKS] = {0}, temperatures[DI_LAWS * BLOCK];
    for (int i = 0; i < DI_LAWS * BLOCK; i++) temperatures[i] = 1;
    di_allot_args args = {.n_blocks = w->n,
                          .n_drafts = w->n_drafts,
                          .block = BLOCK,
                          .n_columns = w->n,
                          .blocks = at->blocks,
                          .next_token = at->next_token,
                          .drafts = at->drafts,
                          .confidence = device_put_f(d, confidence, w->n * BLOCK),
                          .temperatures = device_put(d, temperatures, sizeof temperatures),
                          .n_rows = at->n_rows,
                          .rows = at->rows,
                          .which = at->which,
                          .slot = at->slot,
                          .param_of = at->param_of,
                          .extra_at = at->extra_at,
                          .n_extra = at->n_extra};
    d->backend->ops->allot(d->backend->stream, &args);
}

/* The target's rows, as allot made them: sample and accept. */
static void verify(device *d, const toy *t, whole *w, const buffers *at) {
    int32_t total = w->n + w->n_drafts, pos[MAX_ROWS], first[MAX_ROWS], ids[MAX_ROWS];
    int32_t n_rows[MAX_BLOCKS], n_valid[MAX_BLOCKS];
    float logits[MAX_ROWS][V];
    di_row rows[MAX_ROWS];
    device_get(d, at->rows, rows, (uint64_t)total * sizeof *rows);
    for (int32_t i = 0; i < total; i++) {
        pos[i] = 20 + rows[i].offset;
        first[i] = i - rows[i].offset;
        ids[i] = rows[i].token;
        memcpy(logits[i], t->p[ids[i]], sizeof logits[i]);
    }
    di_ptr row_token = put_ints(d, ids, total);
    di_accept_args args = {.sample = {.n_out = total,
                                      .vocab = V,
                                      .which = at->which,
                                      .pos = put_ints(d, pos, total),
                                      .first = put_ints(d, first, total),
                                      .logits = device_put_f(d, logits[0], (int64_t)total * V),
                                      .params = put_params(d, t, w, DI_NOISE_POSITION),
                                      .param_of = at->param_of,
                                      .counts = at->counts,
                                      .extra = row_token,
                                      .extra_at = at->extra_at,
                                      .n_extra = at->n_extra,
                                      .extra_stride = 1,
                                      .next_token = at->next_token,
                                      .token = device_take(d, (uint64_t)total * 4),
                                      .logprob = device_take(d, (uint64_t)total * 4)},
                           .n_blocks = w->n,
                           .block = BLOCK,
                           .n_columns = w->n,
                           .blocks = at->blocks,
                           .n_rows = at->n_rows,
                           .row_token = row_token,
                           .draft_logits = at->draft_logits,
                           .n_valid = device_take(d, (uint64_t)w->n * 4)};
    d->backend->ops->sample(d->backend->stream, &args.sample);
    d->backend->ops->accept(d->backend->stream, &args);
    device_get(d, args.sample.token, ids, (uint64_t)total * 4);
    device_get(d, at->n_rows, n_rows, (uint64_t)w->n * 4);
    device_get(d, args.n_valid, n_valid, (uint64_t)w->n * 4);
    for (int32_t b = 0, begin = 0; b < w->n; begin += n_rows[b++]) {
        assert_in_range(n_valid[b], 1, n_rows[b]);
        w->n_tokens[b] = n_valid[b];
        memcpy(w->tokens[b], ids + begin, (size_t)n_rows[b] * sizeof *ids);
        for (int32_t i = 0; i < n_rows[b]; i++)
            assert_true(i < n_valid[b] ? ids[begin + i] >= 0 : ids[begin + i] == -1);
    }
}

static void run_round(device *d, const toy *t, whole *w) {
    int32_t before[MAX_BLOCKS] = {0};
    buffers at = take_buffers(d, t, w);
    di_ptr params = put_params(d, t, w, w->reject ? DI_NOISE_ROUND : DI_NOISE_POSITION);
    for (int32_t k = 0; k < BLOCK; k++) draft(d, t, w, &at, params, k, before);
    allot(d, w, &at);
    verify(d, t, w, &at);
    assert_int_equal(device_reset(d), 0);
}

/* ---- Distributions ---- */

/* Share of the probability that stands before an id. */
static double share_before(const double *x, const double *p, int id) {
    double total = 0, before = 0;
    for (int i = 0; i < V; i++) {
        total += p[i];
        if (x[i] > x[id]) before += p[i];
    }
    return before / total;
}

/* The probabilities of the token behind tokens[0 .. n), from the definition of sampling. */
static void plain(const toy *t, const int32_t *tokens, int32_t n, double *p) {
    const di_sample_params *s = &t->params;
    const float *logits = t->p[n == 0 ? 0 : tokens[n - 1]];
    double kept = 0, x[V], raw[V], r = (double)s->repetition_penalty;
    for (int id = 0; id < V; id++) {
        int32_t output = t->counts[id] & ~DI_COUNT_PROMPT;
        for (int32_t i = 0; i < n; i++) output += tokens[i] == id;
        x[id] = (double)logits[id];
        if (output > 0 || t->counts[id] != 0) x[id] = x[id] > 0 ? x[id] / r : x[id] * r;
        if (output > 0)
            x[id] -= (double)s->presence_penalty + (double)s->frequency_penalty * output;
        raw[id] = exp(x[id] / (double)s->temperature);
    }
    for (int id = 0; id < V; id++) {
        p[id] = share_before(x, raw, id) < (double)s->top_p ? raw[id] : 0;
        kept += p[id];
    }
    for (int id = 0; id < V; id++) p[id] /= kept;
}

enum { BARE, PENALTIES, TOP_P, BOTH, PARTLY, BAD_DRAFT, N_CASES };

static toy toy_of(int which, whole *w) {
    toy t = make_toy();
    *w = (whole){.n = MAX_BLOCKS, .n_drafts = MAX_BLOCKS * BLOCK, .reject = 1};
    if (which == PENALTIES || which == BOTH) {
        t.params.repetition_penalty = 1.4f;
        t.params.presence_penalty = 0.8f;
        t.params.frequency_penalty = 0.5f;
    }
    if (which == TOP_P || which == BOTH) t.params.top_p = 0.8f;
    if (which == PARTLY) w->n_drafts = MAX_BLOCKS * 3 / 2;
    t.bad_draft = which == BAD_DRAFT;
    return t;
}

enum { CELLS = V * V * V };
typedef struct tally {
    int64_t counts[CELLS]; /* by the tokens up to this one */
    double expected[CELLS];
    int64_t n;
} tally;

/* Token j of those that came out, given those before it. */
static void count(tally *in, const toy *t, const int32_t *tokens, int32_t j) {
    double p[V];
    int32_t prefix = 0;
    for (int32_t i = 0; i < j; i++) prefix = prefix * V + tokens[i];
    plain(t, tokens, j, p);
    for (int id = 0; id < V; id++) in->expected[prefix * V + id] += p[id];
    in->counts[prefix * V + tokens[j]]++;
    in->n++;
}

/* Whatever is drafted, verified and rejected: tokens come as plain decoding draws them. */
static void test_distributions(void **state) {
    device d = open_backend(*state);
    for (int which = 0; which < N_CASES; which++) {
        static tally tallies[3];
        whole w;
        toy t = toy_of(which, &w);
        int64_t lengths[BLOCK + 1] = {0};
        memset(tallies, 0, sizeof tallies);
        for (int round = 0; round < 250; round++) {
            w.seed = (uint64_t)(which * 1000 + round);
            run_round(&d, &t, &w);
            for (int32_t b = 0; b < w.n; b++) {
                lengths[w.n_tokens[b] - 1]++;
                for (int32_t j = 0; j < 3 && j < w.n_tokens[b]; j++)
                    count(&tallies[j], &t, w.tokens[b], j);
            }
        }
        assert_true(lengths[0] > 500 && lengths[1] > 500);
        assert_true(lengths[BLOCK] > 500 || which == PARTLY || which == BAD_DRAFT);
        for (int j = 0; j < 3; j++) {
            if (tallies[j].n == 0) continue;
            for (int i = 0; i < CELLS; i++) tallies[j].expected[i] /= (double)tallies[j].n;
            double off = spec_chi_square(tallies[j].counts, tallies[j].expected, CELLS);
            if (!(off < 4)) fail_msg("case %d: token %d is off by %.1f deviations", which, j, off);
        }
    }
    device_close(&d);
}

/* Coupled drafts, and rejection without drafts: the very tokens of plain decoding. */
static void test_plain_bits(void **state) {
    device d = open_backend(*state);
    int64_t accepted = 0;
    for (int which = 0; which < 2 * N_CASES; which++) {
        whole w;
        toy t = toy_of(which / 2, &w);
        w.reject = which % 2;
        w.seed = (uint64_t)which;
        if (w.reject) w.n_drafts = 0;
        run_round(&d, &t, &w);
        for (int32_t b = 0; b < w.n; b++) {
            accepted += w.n_tokens[b] - 1;
            for (int32_t j = 0; j < w.n_tokens[b]; j++) {
                double p[V], best = -INFINITY;
                int32_t want = -1;
                plain(&t, w.tokens[b], j, p);
                for (int id = 0; id < V; id++) {
                    uint64_t seed = w.seed * MAX_BLOCKS + (uint64_t)b;
                    double y = log(p[id]) + di_gumbel(seed, 21 + j, id);
                    if (y > best) best = y, want = id;
                }
                assert_int_equal(w.tokens[b][j], want);
            }
        }
    }
    assert_true(accepted > 100);
    device_close(&d);
}

static void test_same_as_twin(void **state) {
    (void)state;
    device cpu = open_backend("cpu"), ref = open_backend("ref");
    for (int which = 0; which < 10 * N_CASES; which++) {
        whole want, got;
        toy t = toy_of(which % N_CASES, &want);
        want.seed = (uint64_t)which + 77;
        got = want;
        run_round(&ref, &t, &want);
        run_round(&cpu, &t, &got);
        assert_memory_equal(want.n_tokens, got.n_tokens, sizeof want.n_tokens);
        assert_memory_equal(want.tokens, got.tokens, sizeof want.tokens);
    }
    device_close(&cpu);
    device_close(&ref);
}

int main(void) {
    static char ref[] = "ref", cpu[] = "cpu", cuda[] = "cuda";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_right_and_wrong, ref),
        cmocka_unit_test_prestate(test_bad_logits, ref),
        cmocka_unit_test_prestate(test_distributions, ref),
        cmocka_unit_test_prestate(test_plain_bits, ref),
        cmocka_unit_test_prestate(test_right_and_wrong, cpu),
        cmocka_unit_test_prestate(test_bad_logits, cpu),
        cmocka_unit_test_prestate(test_distributions, cpu),
        cmocka_unit_test_prestate(test_plain_bits, cpu),
        cmocka_unit_test(test_same_as_twin),
        {"test_right_and_wrong_cuda", test_right_and_wrong, NULL, NULL, cuda},
        {"test_bad_logits_cuda", test_bad_logits, NULL, NULL, cuda},
        {"test_distributions_cuda", test_distributions, NULL, NULL, cuda},
        {"test_plain_bits_cuda", test_plain_bits, NULL, NULL, cuda},
    };
    test_filter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
