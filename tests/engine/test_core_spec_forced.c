/* The forced-draft campaign: drafts that are right, wrong at each place, the model's own; answers
 * that end inside a block by on_token, by the end token and by max_tokens; then the same prompts
 * again, and prompts that leave the answer in its middle, both of which find what the answer left in
 * the cache. None of it may leave a trace: all bits are those of plain decoding.
 */
/* ctest: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/core_run.h"

enum {
    N_KINDS = 4,
    PROMPT = 90,    /* and a little more: its first page is whole, */
    ANSWER = 60,    /* the second one is finished by the answer */
    LEAVES_AT = 50, /* where the diverging prompt leaves the answer, behind the second page */
    ALL_RIGHT = -1, /* else the place that is wrong */
    OWN = -2
};

typedef struct scenario {
    int32_t pattern; /* of the drafts */
    int64_t stop_at; /* of all answers, -1: none */
    int64_t max_tokens;
} scenario;

/* What the requests are, and what plain decoding makes of them. */
typedef struct campaign {
    test_model model;
    int32_t block, vocab;
    run plain[N_KINDS], diverging[N_KINDS];
} campaign;

static run runs[N_KINDS];
static const campaign *current;
static int32_t pattern;

static const run *plain_of(uint64_t id) {
    for (int i = 0; i < N_KINDS; i++) {
        if (runs[i].id == id) return &current->plain[i];
    }
    return NULL;
}

/* The tokens that plain decoding gives from n_ids on; what lies behind its end stays. */
static void force(void *user, uint64_t request, int32_t choice, const int32_t *ids, int64_t n_ids,
                  int32_t *drafts) {
    (void)user;
    const run *plain = plain_of(request);
    assert_int_equal(choice, 0);
    if (pattern == OWN || !plain) return;
    int64_t at = n_ids - plain->request.n_ids;
    assert_true(at >= 1);
    assert_int_equal(ids[n_ids - 1], plain->choices[0].ids[at - 1]);
    for (int32_t k = 0; k < current->block && at + k < plain->choices[0].n; k++) {
        drafts[k] = plain->choices[0].ids[at + k];
        if (k == pattern) drafts[k] = (drafts[k] + 1) % current->vocab;
    }
}

static void fill(run *r, int32_t kind, uint64_t seed) {
    static int32_t ids[PROMPT + N_KINDS];
    for (int32_t i = 0; i < PROMPT + kind; i++) ids[i] = (i * i * 7 + i * 3 + 11 * kind) % 300 + 2;
    run_make(r, ids, PROMPT + kind, ANSWER);
    di_sample_params *p = &r->request.sampling;
    p->seed = seed;
    if (kind > 0) p->temperature = 0.9f;
    if (kind == 2) {
        p->repetition_penalty = 1.3f;
        p->frequency_penalty = 0.5f;
        r->request.top_logprobs = 3;
    }
    if (kind == 3) { /* ends by the end token */
        r->biases[0] = (di_logit_bias){1, 4};
        r->request.n_biases = 1;
        r->request.ignore_end_token = false;
    }
}

static di_core_options options_of(bool spec) {
    di_core_options options = run_options();
    options.max_rows = 64;
    options.spec = spec ? DI_SPEC_FIXED : DI_SPEC_OFF;
    options.prefix_cache = spec;
    return options;
}

/* The prompt and the beginning of the answer, its last token another one, and a word of its own. */
static void diverge(const campaign *c, const run *plain, run *r) {
    int32_t ids[RUN_MAX_PROMPT];
    int64_t n = plain->request.n_ids, shown = plain->choices[0].n;
    if (shown > LEAVES_AT) shown = LEAVES_AT;
    memcpy(ids, plain->prompt, (size_t)n * sizeof *ids);
    memcpy(ids + n, plain->choices[0].ids, (size_t)shown * sizeof *ids);
    n += shown;
    ids[n - 1] = (ids[n - 1] + 1) % c->vocab;
    ids[n++] = 5;
    run_make(r, ids, n, 8);
    r->request.sampling = plain->request.sampling;
}

static void record(campaign *c) {
    const di_core_options options = options_of(false);
    di_core *core = run_core(&c->model, &options);
    for (int32_t kind = 0; kind < N_KINDS; kind++) {
        for (uint64_t seed = 1;; seed++) {
            fill(&c->plain[kind], kind, seed);
            run_submit(&c->plain[kind], core);
            run_to_end(core);
            const run_choice *answer = &c->plain[kind].choices[0];
            if (kind < 3 || (answer->n > 40 && answer->n < ANSWER - 1)) break;
            assert_true(seed < 200);
        }
        diverge(c, &c->plain[kind], &c->diverging[kind]);
        run_submit(&c->diverging[kind], core);
        run_to_end(core);
    }
    assert_int_equal(c->plain[3].choices[0].result.finish, DI_FINISH_STOP);
    run_core_destroy(core);
}

/* The answer as plain decoding begins it, where this scenario ends it. */
static void expect(const campaign *c, const scenario *s, int32_t kind, const char *what) {
    static run_choice want;
    char whole[128];
    want = c->plain[kind].choices[0];
    if (s->stop_at >= 0 && s->stop_at < want.n) {
        want.n = s->stop_at + 1;
        want.result.finish = DI_FINISH_STOP;
    } else if (s->max_tokens < want.n) {
        want.n = s->max_tokens;
        want.result.finish = DI_FINISH_LENGTH;
    }
    memset(want.top[want.n], 0, sizeof want.top[0] * (size_t)(RUN_MAX_ANSWER - want.n));
    snprintf(whole, sizeof whole, "drafts %d, stop at %d, of %d, kind %d, %s", s->pattern,
             (int)s->stop_at, (int)s->max_tokens, kind, what);
    run_expect_same(&runs[kind].choices[0], &want, whole);
}

static void submit_all(const campaign *c, const scenario *s, di_core *core) {
    for (int32_t kind = 0; kind < N_KINDS; kind++) {
        fill(&runs[kind], kind, c->plain[kind].request.sampling.seed);
        runs[kind].stop_at = s->stop_at;
        runs[kind].request.max_tokens = s->max_tokens;
        run_submit(&runs[kind], core);
    }
    run_to_end(core);
}

/* A wrong place ends every block there, but for those that the answers' ends cut short. */
static void check_accepted(const campaign *c, const scenario *s, const di_core_stats *before,
                           const di_core_stats *after) {
    int64_t blocks = (int64_t)(after->draft_blocks - before->draft_blocks);
    int64_t accepted = (int64_t)(after->accepted - before->accepted);
    int64_t told = 0;
    for (int32_t kind = 0; kind < N_KINDS; kind++) told += runs[kind].choices[0].result.n_accepted;
    assert_true(blocks > 0);
    assert_true(told <= accepted && told >= accepted - N_KINDS * c->block); /* behind an end */
    if (s->pattern == OWN) return;
    int64_t each = s->pattern == ALL_RIGHT ? c->block : s->pattern;
    assert_true(accepted <= each * blocks);
    assert_true(accepted >= each * (blocks - 2 * N_KINDS));
    if (each > 0 && s->max_tokens == ANSWER && s->stop_at < 0) assert_true(accepted > 60);
}

static void play(const campaign *c, const scenario *s, di_core *core) {
    pattern = s->pattern;
    di_core_forget(core);
    di_core_stats before = di_core_get_stats(core);
    submit_all(c, s, core);
    di_core_stats after = di_core_get_stats(core);
    for (int32_t kind = 0; kind < N_KINDS; kind++) expect(c, s, kind, "cold");
    check_accepted(c, s, &before, &after);
    submit_all(c, s, core);
    for (int32_t kind = 0; kind < N_KINDS; kind++) {
        assert_true(runs[kind].choices[0].result.n_cached >= 64);
        expect(c, s, kind, "again");
    }
    pattern = OWN; /* and nobody is who he was */
    for (int32_t kind = 0; kind < N_KINDS; kind++) {
        diverge(c, &c->plain[kind], &runs[kind]);
        run_submit(&runs[kind], core);
    }
    run_to_end(core);
    for (int32_t kind = 0; kind < N_KINDS; kind++) {
        bool longer = s->stop_at < 0 && s->max_tokens == ANSWER; /* the answer filled a page */
        assert_true(runs[kind].choices[0].result.n_cached >= (longer ? 128 : 64));
        run_expect_same(&runs[kind].choices[0], &c->diverging[kind].choices[0], "diverging");
    }
}

static void check_model(const char *directory) {
    campaign *c = calloc(1, sizeof *c);
    assert_non_null(c);
    run_open_model(&c->model, directory, TEST_CPU, DI_NUMERICS_FLOAT, 1);
    c->block = c->model.config->dspark_block_size;
    c->vocab = c->model.config->vocab_size;
    current = c;
    record(c);
    const di_core_options options = options_of(true);
    di_core *core = run_core(&c->model, &options);
    di_core_force_drafts(core, force, NULL);
    for (int32_t p = OWN; p < c->block; p++) play(c, &(scenario){p, -1, ANSWER}, core);
    /* Every place of a block, the second and the last one of a page too. */
    for (int32_t i = 0; i <= c->block; i++) {
        play(c, &(scenario){ALL_RIGHT, 31 + i, ANSWER}, core);
        play(c, &(scenario){ALL_RIGHT, -1, 32 + i}, core);
        play(c, &(scenario){i, 1 + i, ANSWER}, core);
    }
    run_core_destroy(core);
    test_model_close(&c->model);
    free(c);
}

static void test_tiny_a(void **state) {
    (void)state;
    check_model("tests/data/golden/tiny-a/model");
}

static void test_tiny_b(void **state) {
    (void)state;
    check_model("tests/data/golden/tiny-b/model");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny_a),
        cmocka_unit_test(test_tiny_b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
