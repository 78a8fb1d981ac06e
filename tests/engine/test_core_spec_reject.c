/* --spec-sampling reject in the engine: whatever is drafted, scheduled and verified, by whomever
 * beside it and with a step ahead, the tokens that come out have the distribution of plain decoding.
 *
 * With toys, whose every probability is known, through the whole engine and its sampler: the paper's
 * appendix example (dspark.md 8), where a schedule that looks ahead makes (0.85, 0.15) of (0.7, 0.3),
 * and a chain over four tokens with two requests at once. And with a network, against the exact joint
 * distribution of the first tokens, computed from its logits.
 *
 * The same tests are held against planted faults, which they must find: budgets from the survivals
 * of the very drafts that they admit, acceptance of all, and a residual without subtraction.
 *
 * Not flaky: seeds are fixed, and so is the clock; a sum in standard deviations is below 4 or the
 * test fails. (Behind a queue it is the same: the clock belongs to the stream.)
 */
/* ctest: slow */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/core_internal.h"
#include "support/core_run.h"
#include "support/forge_backend.h"
#include "support/spec_support.h"

enum { MOST_TOKENS = 16 };

typedef struct variant {
    const char *name;
    di_spec_mode spec;
    int32_t steps_ahead;
    forge_plant plant;
    bool looks_ahead; /* planted: what is scheduled sees the drafts that it is about to admit */
} variant;

static const variant laws[] = {
    {"off", DI_SPEC_OFF, 0, FORGE_NOTHING, false},
    {"fixed", DI_SPEC_FIXED, 0, FORGE_NOTHING, false},
    {"scheduled", DI_SPEC_SCHEDULED, 0, FORGE_NOTHING, false},
    {"fixed, ahead", DI_SPEC_FIXED, 1, FORGE_NOTHING, false},
    {"scheduled, ahead", DI_SPEC_SCHEDULED, 1, FORGE_NOTHING, false},
};
static const variant look_ahead = {"look-ahead", DI_SPEC_SCHEDULED, 0, FORGE_NOTHING, true};
static const variant accept_all = {"accept all", DI_SPEC_FIXED, 0, FORGE_ACCEPT_ALL, false};
static const variant no_subtraction = {"no subtraction", DI_SPEC_FIXED, 0, FORGE_NO_SUBTRACTION,
                                       false};

/* ---- Many requests of one prompt ---- */

typedef struct experiment {
    di_core_request request; /* seeds are 1, 2, ... */
    int32_t n_requests, max_batch;
    int32_t n_cells;
    int32_t (*cell)(const int32_t *ids); /* where an answer counts */
} experiment;

typedef struct answer {
    int32_t ids[MOST_TOKENS];
} answer;

static bool keep_token(void *user, const di_core_token *token) {
    answer *a = user;
    assert_in_range(token->index, 0, MOST_TOKENS - 1);
    a->ids[token->index] = token->id;
    return true;
}

/* Drafts are made in the step that verifies them; their noise is that of the anchor's position, so
 * the same ones can be had before. */
static void see_current(di_core *core) {
    di_error error;
    float confidence[DI_OPS_MAX_BLOCK];
    for (int32_t slot = 0; slot < core->options.max_batch; slot++) {
        core__sequence *s = core->slots[slot].sequence;
        if (!s || !s->decoding) continue;
        di_sample_params p = s->request->given.sampling;
        p.seed = s->seed;
        p.slot = slot;
        p.mask = -1;
        p.noise = DI_NOISE_ROUND;
        di_draft_step draft = {.slots = &slot, .n = 1, .params = &p};
        if (di_draft(core->context, &draft, &error) != DI_OK) fail_msg("%s", error.message);
        di_context_fetch_drafts(core->context, NULL, confidence);
        if (di_context_wait(core->context, &error) != DI_OK) fail_msg("%s", error.message);
        di_spec_survivals(core->spec.calibration, s->law, confidence, core->spec.block,
                          s->survival);
    }
}

static di_core_stats collect(const test_model *m, const experiment *e, const variant *law,
                             int64_t *counts) {
    di_error error;
    di_core_options options = {.max_batch = e->max_batch,
                               .max_rows = e->max_batch * 10,
                               .max_context = 64,
                               .spec = law->spec,
                               .reject = true,
                               .steps_ahead = law->steps_ahead,
                               .profile_steps = law->spec != DI_SPEC_OFF};
    answer *answers = calloc((size_t)e->n_requests, sizeof *answers);
    assert_non_null(answers);
    forge.plant = law->plant;
    di_core *core = run_core(m, &options);
    for (int32_t i = 0; i < e->n_requests; i++) {
        di_core_request request = e->request;
        uint64_t id;
        request.sampling.seed = (uint64_t)i + 1;
        request.user = &answers[i];
        request.on_token = keep_token;
        if (di_core_submit(core, &request, &id, &error) != DI_OK) fail_msg("%s", error.message);
    }
    for (bool busy = true; busy;) {
        if (law->looks_ahead) see_current(core);
        if (di_core_step(core, &busy, &error) != DI_OK) fail_msg("%s", error.message);
    }
    memset(counts, 0, (size_t)e->n_cells * sizeof *counts);
    for (int32_t i = 0; i < e->n_requests; i++) counts[e->cell(answers[i].ids)]++;
    di_core_stats stats = di_core_get_stats(core);
    run_core_destroy(core);
    free(answers);
    forge.plant = FORGE_NOTHING;
    return stats;
}

static double surprise(const test_model *m, const experiment *e, const variant *law,
                       const double *probabilities, int64_t *counts) {
    di_core_stats stats = collect(m, e, law, counts);
    double z = spec_chi_square(counts, probabilities, e->n_cells);
    print_message("  %-18s %.2f drafts verified a request, %.2f accepted: %.1f deviations\n",
                  law->name, (double)stats.verified / e->n_requests,
                  (double)stats.accepted / e->n_requests, z);
    if (law->spec != DI_SPEC_OFF) assert_true(stats.verified > (uint64_t)e->n_requests / 2);
    return z;
}

/* All laws hold; all plants are found. Counts are those of the last. */
static void check_laws(const test_model m[2], const experiment *e, const double *probabilities) {
    int64_t *counts = calloc((size_t)e->n_cells, sizeof *counts);
    assert_non_null(counts);
    for (size_t i = 0; i < sizeof laws / sizeof *laws; i++) {
        assert_true(surprise(&m[laws[i].steps_ahead], e, &laws[i], probabilities, counts) < 4);
    }
    assert_true(surprise(&m[0], e, &accept_all, probabilities, counts) > 8);
    assert_true(surprise(&m[0], e, &no_subtraction, probabilities, counts) > 5);
    free(counts);
}

static void open_models(test_model m[2]) {
    for (int ahead = 0; ahead < 2; ahead++) {
        forge_open_model(&m[ahead], "tests/data/golden/tiny-b/model", DI_NUMERICS_FLOAT, 1,
                         ahead > 0);
    }
    forge.sets_clock = true;
    forge.draft_s = 1e-8;
}

static void close_models(test_model m[2]) {
    test_model_close(&m[1]);
    test_model_close(&m[0]);
}

static di_core_request request_of(const int32_t *ids, int64_t n, int64_t max_tokens) {
    return (di_core_request){.ids = ids,
                             .n_ids = n,
                             .max_tokens = max_tokens,
                             .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
                             .n = 1,
                             .ignore_end_token = true};
}

/* ---- The paper's appendix A ---- */

enum { APPENDIX_TOKENS = 6 };
static const int32_t first_token[1] = {0};

static double appendix_seconds(int32_t n_rows) {
    return n_rows == 1 ? 1 : n_rows == 2 ? 2 : 1 / 0.45;
}

/* c_1 = 0.8; c_2 = 0.9 behind A and 0 behind B; further drafts are worth nothing. */
static forge_toy appendix_toy(void) {
    forge_toy t = {.vocab = 2};
    for (int before = 0; before < 2; before++) {
        t.p[before][0] = log(0.7);
        t.p[before][1] = log(0.3);
        t.q[before][0] = t.q[before][1] = log(0.5);
        for (int k = 0; k < FORGE_BLOCK; k++) t.confidence[k][before] = 1e-6;
        t.confidence[0][before] = 0.8;
    }
    t.confidence[1][0] = 0.9;
    return t;
}

/* The token of the prompt's row is plain; those behind it are drafted. */
static int32_t appendix_cell(const int32_t *ids) {
    int32_t cell = 0;
    for (int32_t i = 1; i <= APPENDIX_TOKENS; i++) cell = 2 * cell + ids[i];
    return cell;
}

static int32_t second_token(const int32_t *ids) { return ids[1]; }

static void test_appendix(void **state) {
    (void)state;
    test_model m[2];
    const forge_toy toy = appendix_toy();
    double joint[1 << APPENDIX_TOKENS];
    const double p[] = {0.7, 0.3}, biased[] = {0.85, 0.15};
    open_models(m);
    forge.toy = &toy;
    forge.step_seconds = appendix_seconds;
    experiment e = {.request = request_of(first_token, 1, APPENDIX_TOKENS + 4),
                    .n_requests = 2500,
                    .max_batch = 1,
                    .n_cells = 1 << APPENDIX_TOKENS,
                    .cell = appendix_cell};
    for (int32_t cell = 0; cell < e.n_cells; cell++) {
        joint[cell] = 1;
        for (int32_t i = 0; i < APPENDIX_TOKENS; i++) joint[cell] *= p[cell >> i & 1];
    }
    check_laws(m, &e, joint);
    int64_t counts[1 << APPENDIX_TOKENS];
    assert_true(surprise(&m[0], &e, &look_ahead, joint, counts) > 8);
    e.n_requests = 4000;
    e.n_cells = 2;
    e.cell = second_token;
    double z = surprise(&m[0], &e, &look_ahead, p, counts);
    print_message("  look-ahead: A %.4f, B %.4f\n", (double)counts[0] / e.n_requests,
                  (double)counts[1] / e.n_requests);
    assert_true(z > 12);
    assert_true(spec_chi_square(counts, biased, 2) < 4);
    close_models(m);
}

/* ---- A chain of four tokens, two requests at once, the true confidences ---- */

enum { CHAIN_TOKENS = 4, CHAIN_CELLS = 256 };

static double chain_seconds(int32_t n_rows) {
    return n_rows <= 2 ? 1 : 1 + (0.9 + 0.4 * (n_rows - 3)) / 2;
}

static double overlap(const double *p, const double *q, int32_t n) {
    double p_sum = 0, q_sum = 0, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        p_sum += exp(p[i]);
        q_sum += exp(q[i]);
    }
    for (int32_t i = 0; i < n; i++) sum += fmin(exp(p[i]) / p_sum, exp(q[i]) / q_sum);
    return sum;
}

/* q is p behind token 0, and less and less like it behind the others. */
static forge_toy chain_toy(void) {
    forge_toy t = {.vocab = 4};
    for (int before = 0; before < 4; before++) {
        for (int id = 0; id < 4; id++) {
            t.p[before][id] = 1.5 * sin(3 * before + 2 * id + 1);
            t.q[before][id] = t.p[before][id] - before * cos(5 * id + before);
        }
        double c = overlap(t.p[before], t.q[before], 4);
        for (int k = 0; k < FORGE_BLOCK; k++) t.confidence[k][before] = fmin(c, 0.999);
    }
    return t;
}

static int32_t chain_cell(const int32_t *ids) {
    return ids[0] + 4 * ids[1] + 16 * ids[2] + 64 * ids[3];
}

static void test_chain(void **state) {
    (void)state;
    test_model m[2];
    const forge_toy toy = chain_toy();
    double joint[CHAIN_CELLS];
    for (int32_t cell = 0; cell < CHAIN_CELLS; cell++) {
        int32_t before = 0;
        joint[cell] = 1;
        for (int32_t i = 0, rest = cell; i < CHAIN_TOKENS; i++, rest /= 4) {
            double total = 0;
            for (int id = 0; id < 4; id++) total += exp(toy.p[before][id]);
            joint[cell] *= exp(toy.p[before][rest % 4]) / total;
            before = rest % 4;
        }
    }
    open_models(m);
    forge.toy = &toy;
    forge.step_seconds = chain_seconds;
    experiment e = {.request = request_of(first_token, 1, CHAIN_TOKENS + 4),
                    .n_requests = 4000,
                    .max_batch = 2,
                    .n_cells = CHAIN_CELLS,
                    .cell = chain_cell};
    check_laws(m, &e, joint);
    e.n_requests = 14000; /* it is a small one */
    int64_t counts[CHAIN_CELLS];
    assert_true(surprise(&m[0], &e, &look_ahead, joint, counts) > 4);
    close_models(m);
}

/* ---- A network, over three tokens that biases single out ---- */

enum { NET_PROMPT = 6, NET_CHOICES = 3, NET_TOKENS = 4, NET_CELLS = 81 };
static const int32_t net_ids[NET_CHOICES] = {7, 50, 121};
static const di_logit_bias net_biases[NET_CHOICES] = {{7, 200}, {50, 200}, {121, 200}};
static const float net_temperature = 1.5f;

static int32_t net_cell(const int32_t *ids) {
    int32_t cell = 0;
    for (int32_t i = 0; i < NET_TOKENS; i++) {
        int32_t which = 0;
        while (which < NET_CHOICES && net_ids[which] != ids[i]) which++;
        assert_in_range(which, 0, NET_CHOICES - 1);
        cell = NET_CHOICES * cell + which;
    }
    return cell;
}

/* Fills the cells of what begins with the n - NET_PROMPT tokens behind the prompt. */
static void net_probabilities(test_model *m, int32_t *ids, int32_t n, double probability,
                              double *out) {
    if (n == NET_PROMPT + NET_TOKENS) {
        out[net_cell(ids + NET_PROMPT)] = probability;
        return;
    }
    const int32_t last = n - 1;
    di_context_reset(m->context, 0);
    float *logits = test_feed(m, 0, ids, n, &last, 1);
    double share[NET_CHOICES], total = 0;
    for (int32_t i = 0; i < NET_CHOICES; i++) {
        share[i] = exp((double)(logits[net_ids[i]] / net_temperature));
        total += share[i];
    }
    free(logits);
    for (int32_t i = 0; i < NET_CHOICES; i++) {
        ids[n] = net_ids[i];
        net_probabilities(m, ids, n + 1, probability * share[i] / total, out);
    }
}

static void test_network(void **state) {
    (void)state;
    test_model m[2];
    di_error error;
    int32_t ids[NET_PROMPT + NET_TOKENS];
    double joint[NET_CELLS];
    for (int32_t i = 0; i < NET_PROMPT; i++) ids[i] = (i * 37 + 11) % 300 + 2;
    open_models(m);
    forge.step_s = 1;
    forge.row_s = 0.05;
    di_context_options context = {.n_slots = 1, .max_context = 64, .max_rows = 32, .max_out = 1};
    assert_int_equal(di_context_create(m[0].model, &context, &m[0].context, &error), DI_OK);
    net_probabilities(&m[0], ids, NET_PROMPT, 1, joint);
    di_context_destroy(m[0].context);
    m[0].context = NULL;
    experiment e = {.request = request_of(ids, NET_PROMPT, NET_TOKENS + 3),
                    .n_requests = 1600,
                    .max_batch = 16,
                    .n_cells = NET_CELLS,
                    .cell = net_cell};
    e.request.biases = net_biases;
    e.request.n_biases = NET_CHOICES;
    e.request.sampling.top_k = NET_CHOICES;
    e.request.sampling.temperature = net_temperature;
    check_laws(m, &e, joint);
    close_models(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_appendix),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_network),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
