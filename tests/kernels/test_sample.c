/* Sampling against a second, slower definition written for this test, and against the probabilities
 * that it must have. On the twins and on the CPU. */
/* ctest: gpu */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/philox.h"
#include "kernels/reject.h"
#include "support/device.h"

enum { VOCAB = 37, EXTRA = 4 };

typedef struct request {
    di_sample_params params;
    float logits[VOCAB];
    int32_t counts[VOCAB];
    di_logit_bias biases[4];
    uint32_t mask[2];
    int32_t pos, first_pos;
    int32_t extra[EXTRA], n_extra; /* drafts before the row */
} request;

static request plain_request(void) {
    request r =
        {.params = {.seed = 11, .temperature = 1, .top_p = 1, .repetition_penalty = 1, .mask = -1},
         .pos = 40,
         .first_pos = 38};
    for (int i = 0; i < VOCAB; i++) r.logits[i] = (float)((i * 7) % VOCAB) * 0.15f - 2;
    return r;
}

/* Row 1 of two rows; the parameters stand third, the drafts before the row from place 1 on, every
 * third one. */
static int32_t run(device *d, const request *r, float *logprob) {
    int32_t token = -9, next = 5, after;
    const int32_t which = 1, param_of = 2, extra_at = 1, rows[] = {r->first_pos, r->pos};
    const int32_t first[] = {0, 0};
    int32_t extra[1 + 3 * EXTRA];
    di_sample_params params[3];
    memset(params, 0xEE, sizeof params);
    params[2] = r->params;
    for (int i = 0; i < 1 + 3 * EXTRA; i++) extra[i] = i % 3 == 1 ? r->extra[i / 3] : i % 7;
    di_ptr out = device_take(d, 4), log_out = device_take(d, 4), last = device_put(d, &next, 4);
    di_sample_args args = {.n_out = 1,
                           .vocab = VOCAB,
                           .which = device_put(d, &which, 4),
                           .pos = device_put(d, rows, sizeof rows),
                           .first = device_put(d, first, sizeof first),
                           .logits = device_put_f(d, r->logits, VOCAB),
                           .params = device_put(d, params, sizeof params),
                           .param_of = device_put(d, &param_of, 4),
                           .counts = device_put(d, r->counts, sizeof r->counts),
                           .extra = device_put(d, extra, sizeof extra),
                           .extra_at = device_put(d, &extra_at, 4),
                           .n_extra = device_put(d, &r->n_extra, 4),
                           .extra_stride = 3,
                           .biases = device_put(d, r->biases, sizeof r->biases),
                           .masks = device_put(d, r->mask, sizeof r->mask),
                           .next_token = last,
                           .token = out,
                           .logprob = log_out};
    if (r->n_extra == 0) args.extra = args.extra_at = args.n_extra = DI_NONE;
    if (r->pos % 2) { /* the other way to say it */
        args.param_of = DI_NONE;
        args.params = di_ptr_at(args.params, 2 * sizeof params[0]);
    }
    d->backend->ops->sample(d->backend->stream, &args);
    device_get(d, out, &token, 4);
    device_get(d, log_out, logprob, 4);
    device_get(d, last, &after, 4);
    assert_int_equal(after, token >= 0 ? token : 5);
    assert_int_equal(device_reset(d), 0);
    return token;
}

/* ---- The second definition: ranks by counting, sums over ranks ---- */

static void adjusted(const request *r, double *x) {
    const di_sample_params *p = &r->params;
    for (int i = 0; i < VOCAB; i++) {
        int32_t count = r->counts[i] % DI_COUNT_PROMPT;
        for (int k = 0; k < r->n_extra; k++) count += r->extra[k] == i;
        x[i] = (double)r->logits[i];
        if (r->counts[i] != 0 || count > 0) {
            x[i] = x[i] > 0 ? x[i] / (double)p->repetition_penalty
                            : x[i] * (double)p->repetition_penalty;
        }
        if (count > 0) x[i] -= (double)p->presence_penalty + (double)p->frequency_penalty * count;
        for (int b = 0; b < p->n_bias; b++) {
            if (r->biases[p->bias_begin + b].id == i)
                x[i] += (double)r->biases[p->bias_begin + b].value;
        }
        if (p->mask >= 0 && (r->mask[i / 32] & 1u << i % 32) == 0) x[i] = -INFINITY;
    }
}

/* How many ids stand before id: (x down, id up). */
static int rank_of(const double *x, int id) {
    int rank = 0;
    for (int i = 0; i < VOCAB; i++) rank += x[i] > x[id] || (x[i] == x[id] && i < id);
    return rank;
}

/* Which ids may be drawn. */
static void kept_ids(const di_sample_params *p, const double *x, bool *kept) {
    int by_rank[VOCAB], n = VOCAB;
    for (int i = 0; i < VOCAB; i++) by_rank[rank_of(x, i)] = i, kept[i] = false;
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    double top = x[by_rank[0]], total = 0, sum = 0;
    for (int i = 0; i < n; i++) total += exp(x[by_rank[i]] - top);
    for (int i = 0; i < n; i++) {
        double q = exp(x[by_rank[i]] - top) / total;
        bool inside = p->top_p >= 1 || sum < (double)p->top_p;
        sum += q;
        kept[by_rank[i]] = inside && q > 0 && exp(x[by_rank[i]] - top) >= (double)p->min_p;
    }
}

static int32_t expected(const request *r) {
    const di_sample_params *p = &r->params;
    double x[VOCAB], best = -INFINITY;
    bool kept[VOCAB];
    uint64_t seed = p->seed;
    int32_t token = -2;
    if (r->pos < 0) return -1;
    if (p->noise == DI_NOISE_ROUND) seed = di_noise_seed(p->seed, DI_NOISE_DRAFT, r->first_pos);
    adjusted(r, x);
    if (p->temperature == 0) {
        for (int i = 0; i < VOCAB; i++) {
            if (x[i] > best) best = x[i], token = i;
        }
        return token;
    }
    for (int i = 0; i < VOCAB; i++) x[i] /= (double)p->temperature;
    kept_ids(p, x, kept);
    for (int i = 0; i < VOCAB; i++) {
        double y = x[i] + di_gumbel(seed, (int64_t)r->pos + 1, i);
        if (kept[i] && y > best) best = y, token = i;
    }
    return token;
}

/* ---- Tests; *state is the backend's name ---- */

static device open_backend(void **state, di_numerics numerics) {
    device d;
    di_limits limits = {.max_rows = 4,
                        .max_out = 4,
                        .width = 32,
                        .hc = 1,
                        .vocab = VOCAB,
                        .n_heads = 1,
                        .head_dim = 32,
                        .q_rank = 32,
                        .o_low = 32,
                        .n_experts = 4,
                        .top_k = 1,
                        .inner = 32,
                        .index_heads = 1,
                        .index_dim = 32,
                        .index_top_k = 8,
                        .top_blocks = 4,
                        .block_size = 4,
                        .max_entries = 64,
                        .engram_columns = 1,
                        .engram_width = 32,
                        .max_k = 64};
    if (!device_open(&d, *state, numerics, 1)) skip();
    device_prepare(&d, &limits);
    return d;
}

static uint32_t random_bits(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static request random_request(uint32_t *seed) {
    request r = plain_request();
    uint32_t way = random_bits(seed);
    r.params.seed = random_bits(seed);
    r.pos = (int32_t)(random_bits(seed) % 1000) - 10;
    for (int i = 0; i < VOCAB; i++) {
        r.logits[i] = (float)(random_bits(seed) % 1000) * 0.006f - 3;
        if (way & 1) r.logits[i] = roundf(r.logits[i]); /* ties */
        r.counts[i] = random_bits(seed) % 3 == 0 ? (int32_t)(random_bits(seed) % 3) : 0;
        if (random_bits(seed) % 5 == 0) r.counts[i] += DI_COUNT_PROMPT;
    }
    for (int i = 0; i < 4; i++)
        r.biases[i] = (di_logit_bias){(int32_t)(random_bits(seed) % VOCAB), (float)i - 1};
    r.mask[0] = random_bits(seed) | random_bits(seed) << 20;
    r.mask[1] = random_bits(seed);
    if (way & 2) r.params.repetition_penalty = 1.5f;
    if (way & 4) r.params.presence_penalty = 0.5f, r.params.frequency_penalty = 0.25f;
    if (way & 8) r.params.n_bias = 3, r.params.bias_begin = 1;
    if (way & 16) r.params.mask = 0;
    if ((way & 96) == 96) r.params.temperature = 0;
    if ((way & 96) == 64) r.params.temperature = 0.6f;
    if (way & 128) r.params.top_k = 1 + (int32_t)(random_bits(seed) % 40);
    if (way & 256) r.params.top_p = 0.05f + (float)(random_bits(seed) % 90) * 0.01f;
    if (way & 1024) r.params.noise = DI_NOISE_ROUND;
    r.first_pos = r.pos - (int32_t)(random_bits(seed) % 5);
    if (way & 2048) { /* negative ids are none; the same one may come again */
        r.n_extra = 1 + (int32_t)(random_bits(seed) % EXTRA);
        for (int i = 0; i < EXTRA; i++) r.extra[i] = (int32_t)(random_bits(seed) % (VOCAB + 2)) - 2;
        if (random_bits(seed) % 2) r.extra[1] = r.extra[0];
    }
    if (way & 512) r.params.min_p = (float)(random_bits(seed) % 50) * 0.01f;
    return r;
}

static void test_against_second_definition(void **state) {
    device d = open_backend(state, DI_NUMERICS_FLOAT);
    uint32_t seed = 4;
    for (int i = 0; i < 3000; i++) {
        float logprob;
        request r = random_request(&seed);
        int32_t got = run(&d, &r, &logprob), want = expected(&r);
        if (got != want) fail_msg("request %d: token %d, expected %d", i, got, want);
        if (got < 0) continue;
        double sum = 0;
        for (int t = 0; t < VOCAB; t++) sum += exp((double)r.logits[t]);
        assert_true(fabs((double)logprob - ((double)r.logits[got] - log(sum))) < 1e-5);
    }
    device_close(&d);
}

/* 20,000 draws: how often each token comes, against its probability (4.5 standard deviations). */
static void test_frequencies(void **state) {
    enum { DRAWS = 20000 };
    device d = open_backend(state, DI_NUMERICS_RELEASE);
    request r = plain_request();
    int seen[VOCAB] = {0};
    double total = 0;
    float logprob;
    for (int i = 0; i < DRAWS; i++) {
        r.pos = i;
        seen[run(&d, &r, &logprob)]++;
    }
    for (int t = 0; t < VOCAB; t++) total += exp((double)r.logits[t]);
    for (int t = 0; t < VOCAB; t++) {
        double p = exp((double)r.logits[t]) / total, deviation = sqrt(DRAWS * p * (1 - p));
        assert_true(fabs(seen[t] - DRAWS * p) < 4.5 * deviation);
    }
    device_close(&d);
}

static void test_broken_logits(void **state) {
    device d = open_backend(state, DI_NUMERICS_FLOAT);
    float logprob;
    for (int greedy = 0; greedy < 2; greedy++) {
        request r = plain_request();
        r.params.temperature = greedy ? 0 : 1;
        r.logits[VOCAB - 1] = NAN;
        assert_int_equal(run(&d, &r, &logprob), -2);
        r.logits[VOCAB - 1] = INFINITY;
        assert_int_equal(run(&d, &r, &logprob), -2);
        r.logits[VOCAB - 1] = -INFINITY;
        assert_true(run(&d, &r, &logprob) >= 0);
        r.params.mask = 0; /* nothing is allowed */
        assert_int_equal(run(&d, &r, &logprob), -2);
        r.mask[0] = 1u << 9;
        assert_int_equal(run(&d, &r, &logprob), 9);
        r.logits[9] = NAN;
        assert_int_equal(run(&d, &r, &logprob), -2);
        r.pos = -1;
        assert_int_equal(run(&d, &r, &logprob), -1);
    }
    device_close(&d);
}

int main(void) {
    static char ref[] = "ref", cpu[] = "cpu", cuda[] = "cuda";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_against_second_definition, ref),
        cmocka_unit_test_prestate(test_frequencies, ref),
        cmocka_unit_test_prestate(test_broken_logits, ref),
        cmocka_unit_test_prestate(test_against_second_definition, cpu),
        cmocka_unit_test_prestate(test_frequencies, cpu),
        cmocka_unit_test_prestate(test_broken_logits, cpu),
        {"test_against_second_definition_cuda", test_against_second_definition, NULL, NULL, cuda},
        {"test_frequencies_cuda", test_frequencies, NULL, NULL, cuda},
        {"test_broken_logits_cuda", test_broken_logits, NULL, NULL, cuda},
    };
    test_filter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
