/* What the engine says: tokens and log-probabilities against the model driven by hand, the mask,
 * seeds, alternatives, and a backend that runs everything later. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/core_run.h"

#define TINY_A "tests/data/golden/tiny-a/model"
#define TINY_B "tests/data/golden/tiny-b/model"

enum { N_PROMPT = 90, N_ANSWER = 12 };

static run runs[4];
static int32_t text[RUN_MAX_PROMPT];

static int make_text(void **state) {
    (void)state;
    for (int32_t i = 0; i < RUN_MAX_PROMPT; i++) text[i] = (i * 37 + i / 5) % 300 + 3;
    return 0;
}

static double log_softmax(const float *logits, int32_t n, int32_t id) {
    double sum = 0, max = -INFINITY;
    for (int32_t i = 0; i < n; i++) max = fmax(max, (double)logits[i]);
    for (int32_t i = 0; i < n; i++) sum += exp((double)logits[i] - max);
    return (double)logits[id] - max - log(sum);
}

/* ---- Against the model by hand ---- */

/* Logits of text and then of the ids of an answer, all rows from N_PROMPT - 1 on. */
static float *by_hand(const char *directory, const int32_t *answer, bool cut, float **prompt) {
    test_model m;
    di_error error;
    di_context_options context = {.n_slots = 1,
                                  .max_context = 448,
                                  .max_rows = 128,
                                  .max_out = 128,
                                  .replay = true};
    test_model_open(&m, directory, &(test_model_options){TEST_CPU, DI_NUMERICS_FLOAT, 1, context});
    int64_t from = N_PROMPT - m.config->sliding_window;
    if (cut) assert_int_equal(di_context_cut(m.context, 0, from, &error), DI_OK);
    size_t vocab = (size_t)m.config->vocab_size;
    int32_t last = N_PROMPT - 1;
    float *logits = malloc(N_ANSWER * vocab * sizeof *logits);
    assert_non_null(logits);
    float *first =
        cut ? test_feed(&m, 0, text, N_PROMPT, &last, 1) : test_feed_all(&m, 0, text, N_PROMPT);
    memcpy(logits, cut ? first : first + (size_t)last * vocab, vocab * sizeof *logits);
    float *rest = test_feed_all(&m, 0, answer, N_ANSWER - 1);
    memcpy(logits + vocab, rest, (N_ANSWER - 1) * vocab * sizeof *logits);
    free(rest);
    if (prompt)
        *prompt = first;
    else
        free(first);
    test_model_close(&m);
    return logits;
}

static void check_top(const di_top_logprob *top, int32_t n, const float *logits, int32_t vocab) {
    for (int32_t i = 0; i < n; i++) {
        int32_t better = 0;
        for (int32_t id = 0; id < vocab; id++) {
            float x = logits[id], mine = logits[top[i].id];
            better += x > mine || (x == mine && id < top[i].id);
        }
        assert_int_equal(better, i);
        assert_true(fabs((double)top[i].logprob - log_softmax(logits, vocab, top[i].id)) < 1e-5);
    }
}

static void check_against_model(const char *directory, di_replay mode) {
    test_model m;
    run_open_model(&m, directory, TEST_CPU, DI_NUMERICS_FLOAT, 1);
    di_core_options options = run_options();
    options.replay = mode;
    di_core *core = run_core(&m, &options);
    run *r = &runs[0];
    run_make(r, text, N_PROMPT, N_ANSWER);
    r->request.top_logprobs = RUN_MAX_TOP;
    r->request.prompt_logprobs = mode == DI_REPLAY_EXACT;
    run_submit(r, core);
    run_to_end(core);
    const run_choice *c = &r->choices[0];
    int32_t vocab = m.config->vocab_size;
    float *prompt = NULL;
    bool exact = mode == DI_REPLAY_EXACT;
    float *logits = by_hand(directory, c->ids, !exact, exact ? &prompt : NULL);
    assert_int_equal(c->n, N_ANSWER);
    for (int32_t i = 0; i < N_ANSWER; i++) {
        const float *row = logits + (size_t)i * (size_t)vocab;
        check_top(c->top[i], RUN_MAX_TOP, row, vocab);
        assert_int_equal(c->ids[i], c->top[i][0].id); /* greedy */
        assert_memory_equal(&c->logprobs[i], &c->top[i][0].logprob, sizeof(float));
    }
    for (int32_t i = 0; exact && i < N_PROMPT; i++) {
        if (i == 0)
            assert_true(isnan(c->scores[0]));
        else {
            const float *row = prompt + (size_t)(i - 1) * (size_t)vocab;
            assert_true(fabs((double)c->scores[i] - log_softmax(row, vocab, text[i])) < 1e-5);
        }
    }
    free(prompt);
    free(logits);
    run_core_destroy(core);
    test_model_close(&m);
}

static void test_against_model(void **state) {
    (void)state;
    check_against_model(TINY_A, DI_REPLAY_EXACT);
    check_against_model(TINY_B, DI_REPLAY_EXACT);
    check_against_model(TINY_A, DI_REPLAY_STABLE);
    check_against_model(TINY_B, DI_REPLAY_STABLE);
}

/* ---- Sampling ---- */

static void test_mask_and_seeds(void **state) {
    (void)state;
    test_model m;
    run_open_model(&m, TINY_A, TEST_CPU, DI_NUMERICS_FLOAT, 1);
    di_core_options options = run_options();
    di_core *core = run_core(&m, &options);
    uint32_t words[12] = {0};
    for (int32_t id = 40; id < 80; id++) words[id / 32] |= UINT32_C(1) << (id % 32);
    di_core_set_mask(core, words);
    for (int i = 0; i < 4; i++) {
        run_make(&runs[i], text, 30, 40);
        runs[i].request.sampling.temperature = 3;
        runs[i].request.sampling.seed = i == 2 ? di_core_seed(1, 1) : 1;
    }
    runs[1].request.n = 2;
    runs[3].request.sampling.top_p = 0; /* only the likeliest */
    for (int i = 0; i < 4; i++) run_submit(&runs[i], core);
    run_to_end(core);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(runs[i].choices[0].n, 40);
        for (int k = 0; k < 40; k++) assert_in_range(runs[i].choices[0].ids[k], 40, 79);
    }
    run_expect_same(&runs[1].choices[0], &runs[0].choices[0], "choice 0 has the seed itself");
    run_expect_same(&runs[1].choices[1], &runs[2].choices[0], "choice 1 has a seed of its own");
    assert_memory_not_equal(runs[2].choices[0].ids, runs[0].choices[0].ids, 40 * 4);
    run *greedy = &runs[0];
    run_make(greedy, text, 30, 40);
    run_submit(greedy, core);
    run_to_end(core);
    run_expect_same(&runs[3].choices[0], &greedy->choices[0], "top_p 0");
    memset(words, 0, sizeof words); /* nothing may be sampled: an error, not a crash */
    di_core_set_mask(core, words);
    run_make(greedy, text, 30, 40);
    run_submit(greedy, core);
    run_to_end(core);
    assert_int_equal(greedy->choices[0].result.finish, DI_FINISH_ERROR);
    run_core_destroy(core);
    test_model_close(&m);
}

/* Many biases: more in all than a step takes. Some sit a step out; nobody is refused or changed. */
static void test_many_biases(void **state) {
    (void)state;
    test_model m;
    run_open_model(&m, TINY_A, TEST_CPU, DI_NUMERICS_FLOAT, 1);
    di_core_options options = run_options();
    di_core *core = run_core(&m, &options);
    enum { MANY = 9000 };
    di_logit_bias *biases = malloc(MANY * sizeof *biases);
    assert_non_null(biases);
    for (int32_t i = 0; i < MANY; i++) biases[i] = (di_logit_bias){i % 384, (float)(i % 7) / 64};
    for (int i = 0; i < 3; i++) {
        run_make(&runs[i], text, 30, 10);
        runs[i].request.ids = runs[i].prompt;
        runs[i].request.user = &runs[i];
        runs[i].request.biases = biases;
        runs[i].request.n_biases = MANY;
        di_error error;
        if (di_core_submit(core, &runs[i].request, &runs[i].id, &error) != DI_OK) {
            fail_msg("%s", error.message);
        }
    }
    free(biases);
    run_to_end(core);
    assert_int_equal(runs[0].choices[0].n, 10);
    run_expect_same(&runs[1].choices[0], &runs[0].choices[0], "second");
    run_expect_same(&runs[2].choices[0], &runs[0].choices[0], "third");
    run_core_destroy(core);
    test_model_close(&m);
}

/* ---- A backend that runs everything later, on another thread ---- */

static void run_some(test_model *m, run_choice out[4]) {
    di_core_options options = run_options();
    options.n_pages = 4; /* the answers meet the end of the pool */
    di_core *core = run_core(m, &options);
    for (int i = 0; i < 3; i++) {
        run_make(&runs[i], text, i == 2 ? 70 : 66 + i, 4);
        runs[i].request.sampling.temperature = 1;
        runs[i].request.sampling.repetition_penalty = 1.2f;
    }
    runs[0].request.n = 2;
    runs[1].request.top_logprobs = 3;
    for (int i = 0; i < 3; i++) run_submit(&runs[i], core);
    di_error error;
    for (bool busy = true; busy;) {
        if (di_core_step(core, &busy, &error) != DI_OK) fail_msg("%s", error.message);
        if (runs[0].choices[0].n == 2) di_core_preempt(core);
    }
    assert_true(di_core_get_stats(core).preemptions > 0);
    assert_true(di_core_get_stats(core).snapshot_hits > 0);
    for (int i = 0; i < 3; i++) out[i] = runs[i].choices[0];
    out[3] = runs[0].choices[1];
    run_core_destroy(core);
}

static void check_later(test_backend at_once, test_backend later, const char *how) {
    static run_choice choices[2][4];
    for (int late = 0; late < 2; late++) {
        test_model m;
        run_open_model(&m, TINY_A, late ? later : at_once, DI_NUMERICS_FLOAT, 1);
        run_some(&m, choices[late]);
        test_model_close(&m);
    }
    for (int i = 0; i < 4; i++) run_expect_same(&choices[1][i], &choices[0][i], how);
}

static void test_late(void **state) {
    (void)state;
    check_later(TEST_REF, TEST_LATE, "late");
    check_later(TEST_CPU, TEST_QUEUE, "queue");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_model),
        cmocka_unit_test(test_mask_and_seeds),
        cmocka_unit_test(test_many_biases),
        cmocka_unit_test(test_late),
    };
    return cmocka_run_group_tests(tests, make_text, NULL);
}
