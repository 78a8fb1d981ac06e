/* What requests do to each other in a step: biases beside scored prompts, drafts beside prompts,
 * prompts above the cut beside each other, drafts of requests that share a seed.
 */
/* ctest: slow */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "support/core_run.h"
#include "support/forge_backend.h"

static const char model_path[] = "tests/data/golden/tiny-b/model";
static const int32_t prompt[400]; /* zeros will do */
static di_error error;

static di_core_request request_of(int64_t n_ids, int64_t max_tokens) {
    return (di_core_request){.ids = prompt,
                             .n_ids = n_ids,
                             .max_tokens = max_tokens,
                             .sampling = {.top_p = 1, .repetition_penalty = 1},
                             .n = 1,
                             .ignore_end_token = true};
}

static void submit(di_core *core, const di_core_request *request) {
    uint64_t id;
    if (di_core_submit(core, request, &id, &error) != DI_OK) fail_msg("%s", error.message);
}

/* ---- Biases ---- */

static void count_whole(void *user, const di_core_result *result) {
    *(int *)user += result->finish == DI_FINISH_LENGTH;
}

/* A step takes the biases of one of the two only: the other gets no rows, and no results either. */
static void test_biases_beside_scores(void **state) {
    (void)state;
    enum { BIASES = 10000 };
    test_model m;
    int n_whole = 0;
    run_open_model(&m, model_path, TEST_CPU, DI_NUMERICS_FLOAT, 1);
    di_core_options options = run_options();
    options.max_batch = 2;
    options.max_rows = 64;
    di_core *core = run_core(&m, &options);
    di_logit_bias *biases = calloc(BIASES, sizeof *biases);
    assert_non_null(biases);
    for (int32_t i = 0; i < BIASES; i++) biases[i] = (di_logit_bias){i % 50, 1e-4f};
    for (int i = 0; i < 2; i++) {
        di_core_request request = request_of(300, 2);
        request.biases = biases;
        request.n_biases = BIASES;
        request.prompt_logprobs = true;
        request.user = &n_whole;
        request.on_end = count_whole;
        submit(core, &request);
    }
    run_to_end(core);
    assert_int_equal(n_whole, 2);
    run_core_destroy(core);
    free(biases);
    test_model_close(&m);
}

/* ---- Prompts in every step ---- */

/* Seconds of the device for 360 steps of six long answers, with new prompts all the time; drafts
 * are always wrong and sure of themselves. */
static double load_seconds(di_spec_mode spec, di_core_stats *stats) {
    test_model m;
    forge_toy toy = {.vocab = 4};
    for (int before = 0; before < 4; before++) {
        toy.p[before][(before + 1) % 4] = 5;
        toy.q[before][(before + 2) % 4] = 5;
        for (int k = 0; k < FORGE_BLOCK; k++) toy.confidence[k][before] = 0.9;
    }
    forge_open_model(&m, model_path, DI_NUMERICS_FLOAT, 1, false);
    forge.toy = &toy;
    forge.sets_clock = true;
    forge.step_s = 1.6;
    forge.row_s = 1;
    forge.draft_s = 0.01;
    di_core_options options = {.max_batch = 8, .max_rows = 64, .max_context = 448, .spec = spec};
    di_core *core = run_core(&m, &options);
    const di_core_request answer = request_of(65, 380);
    for (int i = 0; i < 6; i++) submit(core, &answer);
    for (int i = 0; i < 360; i++) {
        bool busy;
        di_core_stats now = di_core_get_stats(core);
        const di_core_request more = request_of(200, 1);
        for (int64_t n = now.running + now.waiting; n < 8; n++) submit(core, &more);
        if (di_core_step(core, &busy, &error) != DI_OK) fail_msg("%s", error.message);
    }
    *stats = di_core_get_stats(core);
    di_core_destroy(core);
    test_model_close(&m);
    return stats->step_seconds;
}

static void test_drafts_beside_prompts(void **state) {
    (void)state;
    di_core_stats off, wrong;
    double off_s = load_seconds(DI_SPEC_OFF, &off);
    double wrong_s = load_seconds(DI_SPEC_SCHEDULED, &wrong);
    print_message("  off %.0f s; scheduled %.0f s, %llu drafts verified\n", off_s, wrong_s,
                  (unsigned long long)wrong.verified);
    assert_true(wrong.verified > 0 && wrong.verified < 400); /* fixed: 8,500 */
    assert_true(wrong_s < 1.05 * off_s);
}

/* ---- Prompts beside each other, above the cut ---- */

/* Above the cut rows begin in the middle of their sequence. Two prompts whose lengths differ by a
 * window, whole in one step, must not be taken for one. */
static void test_cut_prompts_together(void **state) {
    (void)state;
    enum { LONGEST = 120, ALL = 6 };
    test_model m;
    run runs[ALL], alone[ALL];
    int32_t ids[LONGEST];
    run_open_model(&m, model_path, TEST_CPU, DI_NUMERICS_FLOAT, 1);
    di_core_options options = run_options();
    options.max_batch = ALL;
    options.max_rows = 448;
    options.replay = DI_REPLAY_STABLE;
    options.prefix_cache = false;
    for (int64_t differ = -1; differ <= 1; differ++) {
        int64_t window = di_model_config(m.model)->sliding_window + differ;
        di_core *core = run_core(&m, &options);
        for (int i = 0; i < ALL; i++) {
            int64_t n = 20 + 3 * (i / 2) + i % 2 * window;
            assert_true(n <= LONGEST);
            for (int64_t k = 0; k < n; k++) ids[k] = (int32_t)(k * (7 + i) % 300);
            run_make(&runs[i], ids, n, 12);
            alone[i] = runs[i];
            run_submit(&alone[i], core);
            run_to_end(core);
        }
        for (int i = 0; i < ALL; i++) run_submit(&runs[i], core);
        run_to_end(core);
        for (int i = 0; i < ALL; i++) {
            run_expect_same(&runs[i].choices[0], &alone[i].choices[0], "beside another prompt");
        }
        run_core_destroy(core);
    }
    test_model_close(&m);
}

/* ---- Shared seeds ---- */

enum { PAIRS = 6000, ANSWER = 8 };

typedef struct pair_answers {
    int32_t ids[2][16];
} pair_answers;

static bool keep(void *user, const di_core_token *token) {
    ((int32_t *)user)[token->index] = token->id;
    return true;
}

/* Two requests with one seed compete for drafts in steps of few rows: a token must still have its
 * probability, 0.6. */
static void test_shared_seeds(void **state) {
    (void)state;
    static const int32_t prompts[2][3] = {{2, 3, 2}, {2, 3, 3}};
    test_model m;
    forge_toy toy = {.vocab = 4};
    for (int before = 0; before < 4; before++) {
        for (int id = 0; id < 4; id++) toy.p[before][id] = toy.q[before][id] = -30;
        if (before < 2) {
            toy.p[before][0] = log(0.6), toy.p[before][1] = log(0.4);
        } else {
            toy.p[before][before - 2] = 0;
        }
        toy.q[before][0] = log(0.3), toy.q[before][1] = log(0.7);
        for (int k = 0; k < FORGE_BLOCK; k++) toy.confidence[k][before] = 0.99;
    }
    toy.confidence[0][0] = 0.9;
    toy.confidence[0][1] = 0.6;
    toy.confidence[3][1] = 0.05;
    forge_open_model(&m, model_path, DI_NUMERICS_FLOAT, 1, false);
    forge.toy = &toy;
    forge.sets_clock = true;
    forge.step_s = 1;
    forge.row_s = 0.1;
    di_core_options options = {.max_batch = 2,
                               .max_rows = 8,
                               .max_context = 64,
                               .spec = DI_SPEC_FIXED,
                               .reject = true};
    di_core *core = run_core(&m, &options);
    pair_answers *answers = calloc(PAIRS, sizeof *answers);
    assert_non_null(answers);
    for (int i = 0; i < PAIRS; i++) {
        for (int who = 0; who < 2; who++) {
            di_core_request request = request_of(3, ANSWER);
            request.ids = prompts[who];
            request.sampling.temperature = 1;
            request.sampling.seed = (uint64_t)i + 1;
            request.user = answers[i].ids[who];
            request.on_token = keep;
            submit(core, &request);
        }
        run_to_end(core);
    }
    for (int who = 0; who < 2; who++) {
        for (int at = 1; at < 6; at++) {
            int n = 0;
            for (int i = 0; i < PAIRS; i++) n += answers[i].ids[who][at] == 0;
            double z = (n - 0.6 * PAIRS) / sqrt(PAIRS * 0.24);
            if (fabs(z) > 4) fail_msg("request %d, token %d: %.1f deviations", who, at, z);
        }
    }
    free(answers);
    run_core_destroy(core);
    test_model_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_biases_beside_scores),
        cmocka_unit_test(test_drafts_beside_prompts),
        cmocka_unit_test(test_cut_prompts_together),
        cmocka_unit_test(test_shared_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
