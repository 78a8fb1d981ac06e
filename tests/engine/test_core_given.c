/* Answers whose beginning is given: its tokens have the log-probabilities that they have when they
 * are sampled, and when they stand in a prompt; what is sampled behind them is what would have come.
 * With and without speculation, a step ahead, and from the cache.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "support/core_run.h"

#define MODEL "tests/data/golden/tiny-a/model"
enum { PROMPT = 70, ANSWER = 24, GIVEN = 15 };

static run sampled, scored, given;

static void sampling(run *r) {
    di_sample_params *p = &r->request.sampling;
    p->temperature = 0.9f;
    p->seed = 5;
    p->repetition_penalty = 1.2f; /* given tokens count as the answer's */
    p->presence_penalty = 0.5f;
    r->request.top_logprobs = 2;
}

static void make_given(int64_t n_given, int64_t max_tokens) {
    int32_t ids[RUN_MAX_PROMPT + RUN_MAX_ANSWER];
    run_text(&sampled, 0, ids);
    run_make(&given, ids, PROMPT + n_given, max_tokens);
    sampling(&given);
    given.request.n_given = n_given;
}

static void finish(run *r, di_core *core) {
    run_submit(r, core);
    run_to_end(core);
}

static void expect_scores(int64_t n) {
    const run_choice *c = &given.choices[0], *want = &sampled.choices[0];
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(c->ids[i], want->ids[i]);
        /* The device says it of sampled tokens, the host of known ones. */
        assert_true(fabsf(c->logprobs[i] - want->logprobs[i]) < 1e-5f);
        assert_memory_equal(&c->logprobs[i], &scored.choices[0].scores[PROMPT + i], sizeof(float));
        assert_int_equal(c->top[i][0].id, want->top[i][0].id);
    }
}

static void check(const di_core_options *options, test_backend backend) {
    test_model m;
    int32_t ids[RUN_MAX_PROMPT + RUN_MAX_ANSWER];
    run_open_model(&m, MODEL, backend, DI_NUMERICS_FLOAT, 1);
    di_core *core = run_core(&m, options);
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = (i * i * 7 + i + 3) % 300 + 2;
    run_make(&sampled, ids, PROMPT, ANSWER);
    sampling(&sampled);
    finish(&sampled, core);
    run_make(&scored, ids, run_text(&sampled, 0, ids), 1);
    scored.request.prompt_logprobs = true;
    finish(&scored, core);

    /* Some are given, the others come as they came: their bits. */
    make_given(GIVEN, ANSWER - GIVEN);
    finish(&given, core);
    assert_int_equal(given.choices[0].n, ANSWER);
    assert_int_equal(given.choices[0].result.n_prompt, PROMPT);
    assert_true(given.choices[0].result.n_cached > 0 || !options->prefix_cache);
    expect_scores(GIVEN);
    assert_memory_equal(given.choices[0].ids, sampled.choices[0].ids, ANSWER * sizeof(int32_t));
    assert_memory_equal(given.choices[0].logprobs + GIVEN, sampled.choices[0].logprobs + GIVEN,
                        (ANSWER - GIVEN) * sizeof(float));

    /* All are, and nothing is sampled. */
    make_given(ANSWER, 0);
    finish(&given, core);
    assert_int_equal(given.choices[0].n, ANSWER);
    assert_int_equal(given.choices[0].result.finish, DI_FINISH_LENGTH);
    expect_scores(ANSWER);

    /* Stopped among them; cancelled among them. */
    make_given(GIVEN, 4);
    given.stop_at = 6;
    finish(&given, core);
    assert_int_equal(given.choices[0].n, 7);
    assert_int_equal(given.choices[0].result.finish, DI_FINISH_STOP);
    expect_scores(7);
    make_given(GIVEN, 4);
    given.cancel_at = 9;
    finish(&given, core);
    assert_int_equal(given.choices[0].result.finish, DI_FINISH_CANCELLED);
    expect_scores(given.choices[0].n);

    /* Several choices of which the first one stops among them: the others go on without it. */
    make_given(GIVEN, 4);
    given.request.n = 3;
    given.stop_at = 3;
    finish(&given, core);
    assert_int_equal(given.choices[0].n, 4);
    for (int32_t i = 1; i < 3; i++) {
        assert_int_equal(given.choices[i].n, GIVEN + 4);
        assert_int_equal(given.choices[i].result.finish, DI_FINISH_LENGTH);
    }
    run_core_destroy(core);
    test_model_close(&m);
}

static void test_given(void **state) {
    (void)state;
    di_core_options options = run_options();
    options.prefix_cache = false;
    check(&options, TEST_CPU);
    options.prefix_cache = true;
    options.spec = DI_SPEC_FIXED;
    check(&options, TEST_CPU);
    options.steps_ahead = 1;
    options.max_rows = 20;
    check(&options, TEST_QUEUE);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_given)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
