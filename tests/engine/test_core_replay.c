/* The stored decoder-side replay through the engine: a cold request in `stable` gives its tokens and
 * log-probabilities, however its prompt is chunked; `exact` does not, and nor would a cut elsewhere.
 */
/* ctest: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/core_run.h"
#include "support/deviation.h"

enum { PROMPT = 300, ANSWER = 8, TOP = RUN_MAX_TOP };

typedef struct vectors {
    di_safetensors *file;
    int32_t ids[PROMPT];
    int64_t greedy[ANSWER];
    const float *last; /* [V]: logits of the prompt's last position */
} vectors;

static void open_vectors(vectors *v, const char *name) {
    char path[1024];
    di_error error;
    int64_t n, n_greedy;
    snprintf(path, sizeof path, "%s/tests/data/golden/%s/golden.safetensors", DI_SOURCE_DIR, name);
    assert_int_equal(di_safetensors_open(path, &v->file, &error), DI_OK);
    int64_t *ids = golden_int(v->file, "replay_decoder/ids", &n);
    int64_t *greedy = golden_int(v->file, "replay_decoder/greedy_ids", &n_greedy);
    assert_int_equal(n, PROMPT);
    assert_int_equal(n_greedy, ANSWER);
    for (int64_t i = 0; i < n; i++) v->ids[i] = (int32_t)ids[i];
    memcpy(v->greedy, greedy, sizeof v->greedy);
    free(ids);
    free(greedy);
    const di_tensor *t = golden_tensor(v->file, "replay_decoder/logits");
    const float *logits = golden_f32(v->file, "replay_decoder/logits", &n);
    v->last = logits + (t->shape[0] - 1) * t->shape[1];
}

/* log softmax at `id` */
static float logprob_of(const float *logits, int64_t vocab, int64_t id) {
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < vocab; i++) top = fmax(top, (double)logits[i]);
    for (int64_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - top);
    return (float)((double)logits[id] - top - log(sum));
}

/* Log-probabilities of the first answer token and its alternatives, beside those of the stored
 * logits at the same ids; an alternative that is not among the best gives an infinite difference. */
static deviation first_row(const run_choice *c, const float *logits, int64_t vocab) {
    float got[TOP + 1], want[TOP + 1], least = INFINITY;
    got[TOP] = c->logprobs[0];
    want[TOP] = logprob_of(logits, vocab, c->ids[0]);
    for (int i = 0; i < TOP; i++) {
        got[i] = c->top[0][i].logprob;
        want[i] = logprob_of(logits, vocab, c->top[0][i].id);
        least = fminf(least, want[i]);
    }
    int better = 0;
    for (int64_t id = 0; id < vocab; id++) better += logprob_of(logits, vocab, id) > least;
    if (better >= TOP) got[0] = INFINITY;
    return deviation_of(got, want, TOP + 1, 1);
}

static void submit(run *r, di_core *core, const vectors *v) {
    run_make(r, v->ids, PROMPT, ANSWER);
    r->request.top_logprobs = TOP;
    run_submit(r, core);
    run_to_end(core);
}

static bool has_tokens(const run_choice *c, const vectors *v) {
    assert_int_equal(c->n, ANSWER);
    for (int i = 0; i < ANSWER; i++) {
        if (c->ids[i] != v->greedy[i]) return false;
    }
    return true;
}

static void check(const char *name, test_backend backend, int32_t max_rows) {
    static run cold, warm;
    test_model m;
    vectors v;
    char path[256];
    snprintf(path, sizeof path, "tests/data/golden/%s/model", name);
    run_open_model(&m, path, backend, DI_NUMERICS_FLOAT, 2);
    open_vectors(&v, name);
    di_core_options options = run_options();
    options.max_rows = max_rows;
    options.replay = DI_REPLAY_STABLE;
    di_core *core = run_core(&m, &options);
    submit(&cold, core, &v);
    const run_choice *c = &cold.choices[0];
    assert_int_equal(c->result.n_cached, 0);
    assert_int_equal(di_core_get_stats(core).replayed_rows, 0);
    assert_true(has_tokens(c, &v));
    deviation d = first_row(c, v.last, m.config->vocab_size);
    deviation bounds = deviation_bounds(backend == TEST_REF ? PROMPT : 1, backend == TEST_REF);
    print_message("  %s, steps of %d rows: log-probabilities within %.2g\n", name, (int)max_rows,
                  d.largest);
    assert_true(deviation_within(&d, &bounds));
    submit(&warm, core, &v);
    assert_true(warm.choices[0].result.n_cached > 0);
    run_expect_same(&warm.choices[0], c, "warm");
    run_core_destroy(core);
    di_safetensors_close(v.file);
    test_model_close(&m);
}

static void test_twins(void **state) {
    (void)state;
    check("tiny-a", TEST_REF, 512);
    check("tiny-b", TEST_REF, 32);
}

static void test_fast(void **state) {
    (void)state;
    static const int32_t rows[] = {4, 7, 32, 299, 512};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check("tiny-a", TEST_CPU, rows[i]);
        check("tiny-b", TEST_CPU, rows[i]);
    }
}

/* The vectors are the cut's: without one the log-probabilities are others, by far more than any
 * bound here. */
static void test_exact_differs(void **state) {
    (void)state;
    static const char *const names[2] = {"tiny-a", "tiny-b"};
    for (int i = 0; i < 2; i++) {
        static run r;
        test_model m;
        vectors v;
        char path[256];
        snprintf(path, sizeof path, "tests/data/golden/%s/model", names[i]);
        run_open_model(&m, path, TEST_CPU, DI_NUMERICS_FLOAT, 1);
        open_vectors(&v, names[i]);
        di_core_options options = run_options();
        options.replay = DI_REPLAY_EXACT;
        di_core *core = run_core(&m, &options);
        submit(&r, core, &v);
        deviation d = first_row(&r.choices[0], v.last, m.config->vocab_size);
        print_message("  %s, exact: log-probabilities %.2g off\n", names[i], d.largest);
        assert_true(d.largest > 0.01);
        run_core_destroy(core);
        di_safetensors_close(v.file);
        test_model_close(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twins),
        cmocka_unit_test(test_fast),
        cmocka_unit_test(test_exact_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
