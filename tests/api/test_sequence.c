/* Sequences through the public interface alone: what a prompt keeps, and that nothing of it can be
 * told from the answer.
 */
/* ctest: threads */
#include "deepinfer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TINY DI_SOURCE_DIR "/tests/data/golden/tiny-a/model"
enum { N_PROMPT = 70, N_ANSWER = 12 };

static di_error error;
static int32_t prompt[N_PROMPT];

static di_engine *open_engine(const di_engine_options *options) {
    di_engine *engine = NULL;
    di_status status = di_engine_open(TINY, options, &engine, &error);
    if (status == DI_ERR_UNSUPPORTED) {
        di_engine_options ref = *options;
        ref.backend = "ref";
        status = di_engine_open(TINY, &ref, &engine, &error);
    }
    if (status != DI_OK) fail_msg("%s", error.message);
    return engine;
}

static int setup(void **state) {
    uint32_t x = 1;
    for (int i = 0; i < N_PROMPT; i++) {
        x = x * 1664525u + 1013904223u;
        prompt[i] = i == 0 ? 0 : (int32_t)(3 + (x >> 16) % 370);
    }
    di_engine_options options = di_engine_options_defaults();
    options.context = 256;
    options.chunk = 16;
    options.n_sequences = 2;
    *state = open_engine(&options);
    return 0;
}

static int teardown(void **state) {
    di_engine_close(*state);
    return 0;
}

static di_sequence *create(di_engine *engine) {
    di_sequence *sequence;
    assert_int_equal(di_sequence_create(engine, &sequence, &error), DI_OK);
    return sequence;
}

static size_t give_prompt(di_sequence *sequence, const int32_t *ids, size_t n) {
    size_t reused = 12345;
    if (di_sequence_prompt(sequence, ids, n, &reused, &error) != DI_OK)
        fail_msg("%s", error.message);
    return reused;
}

static void answer(di_sequence *sequence, const di_sampling *sampling, di_token *out, int n) {
    for (int i = 0; i < n; i++) {
        di_status status = di_sequence_next(sequence, sampling, &out[i], &error);
        if (status != DI_OK) fail_msg("%s", error.message);
    }
}

static void fresh_answer(di_engine *engine, const int32_t *ids, size_t n,
                         const di_sampling *sampling, di_token *out) {
    di_sequence *sequence = create(engine);
    assert_int_equal(give_prompt(sequence, ids, n), 0);
    answer(sequence, sampling, out, N_ANSWER);
    di_sequence_destroy(sequence);
}

static void same(const di_token *got, const di_token *want, int n) {
    assert_memory_equal(got, want, (size_t)n * sizeof *got);
}

static di_sampling sampled(void) {
    di_sampling sampling = di_sampling_defaults();
    sampling.seed = 7;
    sampling.top_p = 1.0f;
    return sampling;
}

/* ---- Reuse ---- */

static void test_same_prompt_again(void **state) {
    di_sampling sampling = sampled();
    di_token want[N_ANSWER], got[N_ANSWER];
    fresh_answer(*state, prompt, N_PROMPT, &sampling, want);
    di_sequence *sequence = create(*state);
    give_prompt(sequence, prompt, N_PROMPT);
    answer(sequence, &sampling, got, N_ANSWER);
    same(got, want, N_ANSWER);
    /* 11 of the answer are computed: within the margin of 12. */
    assert_int_equal(give_prompt(sequence, prompt, N_PROMPT), N_PROMPT - 1);
    answer(sequence, &sampling, got, N_ANSWER);
    same(got, want, N_ANSWER);
    di_sequence_destroy(sequence);
}

static void test_prompt_goes_on(void **state) {
    di_sampling sampling = sampled();
    di_token want[N_ANSWER], got[N_ANSWER];
    fresh_answer(*state, prompt, N_PROMPT, &sampling, want);
    for (size_t cut = 1; cut < N_PROMPT; cut += 13) {
        di_sequence *sequence = create(*state);
        give_prompt(sequence, prompt, cut);
        assert_int_equal(give_prompt(sequence, prompt, N_PROMPT), cut - 1);
        answer(sequence, &sampling, got, N_ANSWER);
        same(got, want, N_ANSWER);
        di_sequence_destroy(sequence);
    }
}

/* Another ending: taken back within the margin, read from the start beyond it. */
static void test_prompt_changes(void **state) {
    di_sampling sampling = sampled();
    di_token want[N_ANSWER], got[N_ANSWER];
    for (size_t common = 40; common < N_PROMPT; common += 7) {
        int32_t other[N_PROMPT];
        memcpy(other, prompt, sizeof prompt);
        for (size_t i = common; i < N_PROMPT; i++) other[i] = 3 + (prompt[i] + 5) % 370;
        fresh_answer(*state, other, N_PROMPT, &sampling, want);
        di_sequence *sequence = create(*state);
        give_prompt(sequence, prompt, N_PROMPT);
        bool near = N_PROMPT - 1 - common <= 12;
        assert_int_equal(give_prompt(sequence, other, N_PROMPT), near ? common : 0);
        answer(sequence, &sampling, got, N_ANSWER);
        same(got, want, N_ANSWER);
        di_sequence_destroy(sequence);
    }
}

static void test_shorter_prompt(void **state) {
    di_sampling sampling = sampled();
    di_token want[N_ANSWER], got[N_ANSWER];
    fresh_answer(*state, prompt, N_PROMPT - 5, &sampling, want);
    di_sequence *sequence = create(*state);
    give_prompt(sequence, prompt, N_PROMPT);
    assert_int_equal(give_prompt(sequence, prompt, N_PROMPT - 5), N_PROMPT - 6);
    answer(sequence, &sampling, got, N_ANSWER);
    same(got, want, N_ANSWER);
    di_sequence_destroy(sequence);
}

/* A second turn: the first answer is part of the prompt, so only the second may be penalised for
 * presence. */
static void test_penalties_over_two_turns(void **state) {
    di_sampling sampling = sampled();
    sampling.presence_penalty = 3.0f;
    sampling.frequency_penalty = 1.0f;
    sampling.repetition_penalty = 1.3f;
    di_token first[N_ANSWER], want[N_ANSWER], got[N_ANSWER];
    di_sequence *sequence = create(*state);
    give_prompt(sequence, prompt, 30);
    answer(sequence, &sampling, first, N_ANSWER);
    int32_t second[30 + N_ANSWER + 3];
    memcpy(second, prompt, 30 * sizeof *prompt);
    for (int i = 0; i < N_ANSWER; i++) second[30 + i] = first[i].id;
    memcpy(second + 30 + N_ANSWER, prompt + 60, 3 * sizeof *prompt);
    fresh_answer(*state, second, 30 + N_ANSWER + 3, &sampling, want);
    give_prompt(sequence, second, 30 + N_ANSWER + 3);
    answer(sequence, &sampling, got, N_ANSWER);
    same(got, want, N_ANSWER);
    di_sequence_destroy(sequence);
}

/* Turned on in the middle of an answer, they know what was said before. */
static void test_penalties_turned_on_late(void **state) {
    di_sampling plain = sampled(), strong = sampled();
    strong.presence_penalty = 50.0f;
    di_token early[N_ANSWER], late[N_ANSWER];
    di_sequence *sequence = create(*state);
    give_prompt(sequence, prompt, N_PROMPT);
    answer(sequence, &plain, early, N_ANSWER);
    answer(sequence, &strong, late, N_ANSWER);
    for (int i = 0; i < N_ANSWER; i++) {
        for (int j = 0; j < N_ANSWER; j++) assert_int_not_equal(late[i].id, early[j].id);
    }
    di_sequence_destroy(sequence);
}

static di_status keep_last(void *user, int64_t first, int64_t n, const float *logits, di_error *e) {
    (void)first;
    (void)e;
    memcpy(user, logits + (n - 1) * 384, 384 * sizeof *logits);
    return DI_OK;
}

/* Against the formula, on logits of a score. */
static void test_repetition_penalty_knows_the_prompt(void **state) {
    float logits[384];
    di_score_sink sink = {logits, NULL, keep_last, NULL};
    di_sampling sampling = di_sampling_defaults();
    sampling.temperature = 0;
    sampling.repetition_penalty = 50.0f;
    di_sequence *sequence = create(*state);
    int changed = 0;
    for (size_t n = 10; n <= N_PROMPT; n += 10) {
        assert_int_equal(di_sequence_score(sequence, prompt, n, &sink, &error), DI_OK);
        int32_t plain = 0, best = -1;
        float high = 0;
        for (int32_t id = 0; id < 384; id++) {
            float x = logits[id];
            if (x > logits[plain]) plain = id;
            for (size_t i = 0; i < n; i++) {
                if (prompt[i] != id) continue;
                x = x > 0 ? x / 50 : x * 50;
                break;
            }
            if (best < 0 || x > high) {
                best = id;
                high = x;
            }
        }
        changed += best != plain;
        give_prompt(sequence, prompt, n);
        di_token token;
        answer(sequence, &sampling, &token, 1);
        assert_int_equal(token.id, best);
    }
    assert_true(changed > 0);
    di_sequence_destroy(sequence);
}

/* ---- How it was computed ---- */

static void test_answer_does_not_depend_on_the_machine(void **state) {
    static const struct {
        int32_t chunk, threads;
        uint64_t memory;
    } cases[] = {{1, 1, 0}, {5, 2, 0}, {256, 1, 0}, {64, 2, 64 << 20}};
    di_sampling sampling = sampled();
    di_token want[N_ANSWER], got[N_ANSWER];
    fresh_answer(*state, prompt, N_PROMPT, &sampling, want);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_engine_options options = di_engine_options_defaults();
        options.context = 200;
        options.chunk = cases[i].chunk;
        options.n_threads = cases[i].threads;
        options.memory = cases[i].memory;
        di_engine *engine = open_engine(&options);
        fresh_answer(engine, prompt, N_PROMPT, &sampling, got);
        same(got, want, N_ANSWER);
        di_engine_close(engine);
    }
}

static void test_in_company(void **state) {
    di_sampling sampling = sampled();
    di_token want[N_ANSWER], got[N_ANSWER], other[1];
    fresh_answer(*state, prompt, N_PROMPT, &sampling, want);
    di_sequence *a = create(*state), *b = create(*state), *none;
    assert_int_equal(di_sequence_create(*state, &none, &error), DI_ERR_LIMIT);
    assert_string_equal(error.message, "all 2 sequences of the engine are in use");
    give_prompt(b, prompt + 20, 33);
    give_prompt(a, prompt, N_PROMPT);
    for (int i = 0; i < N_ANSWER; i++) {
        answer(a, &sampling, &got[i], 1);
        answer(b, &sampling, other, 1);
    }
    same(got, want, N_ANSWER);
    di_sequence_destroy(b);
    di_sequence_destroy(a);
}

/* ---- Limits and refusals ---- */

static void refused(di_status got, di_status want, const char *message) {
    assert_string_equal(error.message, message);
    assert_int_equal(got, want);
}

static void test_context_limits(void **state) {
    int32_t *ids = malloc(257 * sizeof *ids);
    assert_non_null(ids);
    for (int i = 0; i < 257; i++) ids[i] = 3 + i;
    di_sampling sampling = sampled();
    di_token token;
    di_sequence *sequence = create(*state);
    refused(di_sequence_prompt(sequence, ids, 257, NULL, &error), DI_ERR_LIMIT,
            "the prompt has 257 tokens, the context takes 256; shorten it or ask for a larger "
            "context");
    give_prompt(sequence, ids, 256);
    answer(sequence, &sampling, &token, 1);
    refused(di_sequence_next(sequence, &sampling, &token, &error), DI_ERR_LIMIT,
            "the context of 256 tokens is full");
    di_sequence_destroy(sequence);
    free(ids);
}

static void test_bad_prompts(void **state) {
    static const int32_t high[] = {0, 384}, negative[] = {-1};
    di_sampling sampling = sampled();
    di_token token;
    di_sequence *sequence = create(*state);
    refused(di_sequence_next(sequence, &sampling, &token, &error), DI_ERR_USAGE,
            "the sequence has no prompt yet");
    refused(di_sequence_prompt(sequence, high, 0, NULL, &error), DI_ERR_USAGE,
            "the prompt is empty");
    refused(di_sequence_prompt(sequence, high, 2, NULL, &error), DI_ERR_INVALID,
            "token 1 has the id 384, the vocabulary has 0 to 383");
    refused(di_sequence_prompt(sequence, negative, 1, NULL, &error), DI_ERR_INVALID,
            "token 0 has the id -1, the vocabulary has 0 to 383");
    di_sequence_destroy(sequence);
}

/* ---- Cancelling ---- */

typedef struct watch {
    int calls, stop_at;
    int64_t last_done, last_total;
} watch;

static bool on_progress(void *user, di_phase phase, int64_t done, int64_t total) {
    watch *w = user;
    if (phase == DI_PHASE_LOAD) return true;
    w->last_done = done;
    w->last_total = total;
    return ++w->calls != w->stop_at;
}

static void test_cancel_keeps_what_was_computed(void **state) {
    watch w = {.stop_at = 3};
    di_engine_options options = di_engine_options_defaults();
    options.context = 256;
    options.chunk = 16;
    options.progress = on_progress;
    options.user = &w;
    di_engine *engine = open_engine(&options);
    di_sequence *sequence = create(engine);
    refused(di_sequence_prompt(sequence, prompt, N_PROMPT, NULL, &error), DI_ERR_CANCELLED,
            "stopped after 32 of 69 tokens");
    size_t n;
    (void)di_sequence_ids(sequence, &n);
    assert_int_equal(n, 32);
    assert_int_equal(give_prompt(sequence, prompt, N_PROMPT), 32);
    assert_int_equal(w.last_done, 37);
    assert_int_equal(w.last_total, 37);
    di_sampling sampling = sampled();
    di_token want[N_ANSWER], got[N_ANSWER];
    answer(sequence, &sampling, got, N_ANSWER);
    fresh_answer(*state, prompt, N_PROMPT, &sampling, want);
    same(got, want, N_ANSWER);
    di_sequence_destroy(sequence);
    di_engine_close(engine);
}

/* Straight after a cancelled prompt, penalties are those of the ids that were computed, and those
 * of the whole prompt once it is given again. */
static void test_penalties_after_a_cancel(void **state) {
    watch w = {0};
    di_engine_options options = di_engine_options_defaults();
    options.context = 256;
    options.chunk = 16;
    options.progress = on_progress;
    options.user = &w;
    di_engine *engine = open_engine(&options);
    for (int kind = 0; kind < 4; kind++) {
        di_sampling sampling = sampled();
        if (kind == 0 || kind == 3) sampling.repetition_penalty = 1.7f;
        if (kind == 1 || kind == 3) sampling.presence_penalty = 6.0f;
        if (kind == 2 || kind == 3) sampling.frequency_penalty = 4.0f;
        di_token want[N_ANSWER], got[N_ANSWER];
        di_sequence *sequence = create(engine);
        w = (watch){.stop_at = 3};
        assert_int_equal(di_sequence_prompt(sequence, prompt, N_PROMPT, NULL, &error),
                         DI_ERR_CANCELLED);
        answer(sequence, &sampling, got, N_ANSWER);
        fresh_answer(*state, prompt, 32, &sampling, want);
        same(got, want, N_ANSWER);
        /* 11 tokens are taken back, which the counts still hold. */
        assert_int_equal(give_prompt(sequence, prompt, N_PROMPT), 32);
        answer(sequence, &sampling, got, N_ANSWER);
        fresh_answer(*state, prompt, N_PROMPT, &sampling, want);
        same(got, want, N_ANSWER);
        di_sequence_destroy(sequence);
    }
    di_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_prompt_again),
        cmocka_unit_test(test_prompt_goes_on),
        cmocka_unit_test(test_prompt_changes),
        cmocka_unit_test(test_shorter_prompt),
        cmocka_unit_test(test_penalties_over_two_turns),
        cmocka_unit_test(test_penalties_turned_on_late),
        cmocka_unit_test(test_repetition_penalty_knows_the_prompt),
        cmocka_unit_test(test_answer_does_not_depend_on_the_machine),
        cmocka_unit_test(test_in_company),
        cmocka_unit_test(test_context_limits),
        cmocka_unit_test(test_bad_prompts),
        cmocka_unit_test(test_cancel_keeps_what_was_computed),
        cmocka_unit_test(test_penalties_after_a_cancel),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
