/* Requests with masks of their own: only what a mask allows is sampled, the mask is asked for when all
 * tokens before are known, and who runs beside them does not notice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core_internal.h"
#include "support/core_run.h"

enum { N_MASKED = 3, N_FREE = 3, N_CHOICES = 2, ANSWER = 40 };

static test_model model;
static run masked[N_MASKED], others[N_FREE], alone[N_FREE];
static int32_t text[RUN_MAX_PROMPT];
static int64_t n_asked;

static int open_model(void **state) {
    (void)state;
    run_open_model(&model, "tests/data/golden/tiny-a/model", TEST_CPU, DI_NUMERICS_FLOAT, 1);
    run_fill_text(text);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    test_model_close(&model);
    return 0;
}

/* The token that must come, a function of what came before. */
static int32_t must_come(const run *r, int32_t choice) {
    const run_choice *c = &r->choices[choice];
    int32_t last = c->n > 0 ? c->ids[c->n - 1] : 11;
    return (last * 7 + 5 * choice + (int32_t)c->n) % 300 + 3;
}

static void force(void *user, int32_t choice, uint32_t *words) {
    const run *r = user;
    int32_t id = must_come(r, choice);
    memset(words, 0, (size_t)((model.config->vocab_size + 31) / 32) * sizeof *words);
    words[id / 32] |= (uint32_t)1 << id % 32;
    n_asked++;
}

static void make_all(void) {
    for (int i = 0; i < N_MASKED; i++) {
        run_make(&masked[i], text + i, 20 + 50 * i, ANSWER);
        masked[i].request.n = N_CHOICES;
        masked[i].request.mask = force;
        masked[i].request.sampling.temperature = 1;
    }
    for (int i = 0; i < N_FREE; i++) run_make(&others[i], text + 7 + i, 33 + 40 * i, ANSWER);
}

static void check_masked(const char *what) {
    for (int i = 0; i < N_MASKED; i++) {
        for (int32_t c = 0; c < N_CHOICES; c++) {
            run_choice *got = &masked[i].choices[c];
            assert_int_equal(got->n, ANSWER);
            assert_int_equal(got->result.finish, DI_FINISH_LENGTH);
            for (got->n = 0; got->n < ANSWER; got->n++) {
                if (got->ids[got->n] == must_come(&masked[i], c)) continue;
                fail_msg("%s: request %d, choice %d: token %d is not the one that must come", what,
                         i, c, (int)got->n);
            }
        }
    }
}

static di_core *open_core(di_spec_mode spec, int32_t ahead) {
    di_core_options options = run_options();
    options.spec = spec;
    options.steps_ahead = ahead;
    di_core *core = run_core(&model, &options);
    if (ahead) di_core_force_ahead(core);
    return core;
}

static void run_together(di_spec_mode spec, int32_t ahead, int preempt_each, const char *what) {
    bool busy = true;
    di_error error;
    di_core *core = open_core(spec, ahead);
    make_all();
    for (int i = 0; i < N_FREE; i++) {
        run_submit(&others[i], core);
        run_submit(&masked[i], core);
    }
    n_asked = 0;
    for (int i = 1; busy; i++) {
        if (preempt_each > 0 && i % preempt_each == 0) di_core_preempt(core);
        if (di_core_step(core, &busy, &error) != DI_OK) fail_msg("%s: %s", what, error.message);
        if (di_core_check(core, &error) != DI_OK) fail_msg("%s: %s", what, error.message);
    }
    check_masked(what);
    /* Once a token; a step may be built again when pages run out, but none is asked for in vain. */
    assert_true(n_asked >= N_MASKED * N_CHOICES * ANSWER);
    for (int i = 0; i < N_FREE; i++) {
        run_expect_same(&others[i].choices[0], &alone[i].choices[0], what);
    }
    run_core_destroy(core);
}

static void test_masks(void **state) {
    (void)state;
    for (int i = 0; i < N_FREE; i++) {
        di_core *core = open_core(DI_SPEC_OFF, 0);
        run_make(&alone[i], text + 7 + i, 33 + 40 * i, ANSWER);
        run_submit(&alone[i], core);
        run_to_end(core);
        run_core_destroy(core);
    }
    run_together(DI_SPEC_OFF, 0, 0, "one step after the other");
    run_together(DI_SPEC_FIXED, 0, 0, "beside drafts");
    run_together(DI_SPEC_OFF, 1, 0, "steps ahead");
    run_together(DI_SPEC_FIXED, 1, 0, "steps ahead, beside drafts");
    run_together(DI_SPEC_FIXED, 0, 5, "pre-empted");
    run_together(DI_SPEC_OFF, 1, 7, "steps ahead, pre-empted");
}

/* What the mask leaves out of what is never sampled stays out: then nothing is left, and that request
 * fails alone. */
static void test_nothing_left(void **state) {
    (void)state;
    di_core *core = open_core(DI_SPEC_OFF, 0);
    uint32_t *words = calloc((size_t)((model.config->vocab_size + 31) / 32), sizeof *words);
    assert_non_null(words);
    memset(words, 0xFF, (size_t)((model.config->vocab_size + 31) / 32) * sizeof *words);
    run_make(&masked[0], text, 20, ANSWER);
    masked[0].request.mask = force;
    run_make(&others[0], text + 7, 33, ANSWER);
    memset(&masked[0].choices[0], 0, sizeof masked[0].choices[0]);
    int32_t banned = must_come(&masked[0], 0);
    words[banned / 32] &= ~((uint32_t)1 << banned % 32);
    di_core_set_mask(core, words);
    run_submit(&masked[0], core);
    run_submit(&others[0], core);
    run_to_end(core);
    assert_int_equal(masked[0].choices[0].result.finish, DI_FINISH_ERROR);
    assert_int_equal(others[0].choices[0].result.finish, DI_FINISH_LENGTH);
    free(words);
    run_core_destroy(core);
}

/* ---- Drafts under masks ---- */

/* A form whose every mask hangs on the token before and on how many there are: two thirds of the
 * vocabulary may come, and two tokens of each five are known. */
static int32_t known(int32_t last, int64_t n) {
    return n % 5 < 3 ? -1 : (int32_t)((last * 11 + n) % 300) + 3;
}

static bool may_come(int32_t last, int64_t n, int32_t id) {
    int32_t only = known(last, n);
    if (only >= 0) return id == only;
    return (last * 31 + (int32_t)n * 17 + id * 13) % 3 != 0;
}

static void write_mask(int32_t last, int64_t n, uint32_t *words) {
    memset(words, 0, (size_t)((model.config->vocab_size + 31) / 32) * sizeof *words);
    for (int32_t id = 0; id < model.config->vocab_size; id++) {
        if (may_come(last, n, id)) words[id / 32] |= (uint32_t)1 << id % 32;
    }
}

static int32_t last_of(const run *r, int32_t choice) {
    const run_choice *c = &r->choices[choice];
    return c->n > 0 ? c->ids[c->n - 1] : 11;
}

static void form(void *user, int32_t choice, uint32_t *words) {
    const run *r = user;
    write_mask(last_of(r, choice), r->choices[choice].n, words);
}

static int64_t n_drafts, n_cut;

static int32_t form_drafts(void *user, int32_t choice, const int32_t *drafts, int32_t n,
                           uint32_t *words) {
    const run *r = user;
    int32_t last = last_of(r, choice), kept = 0, n_words = (model.config->vocab_size + 31) / 32;
    int64_t at = r->choices[choice].n;
    for (;; kept++) {
        write_mask(last, at + kept, words + kept * n_words);
        if (kept == n || !may_come(last, at + kept, drafts[kept])) break;
        last = drafts[kept];
    }
    n_drafts += kept;
    n_cut += n - kept;
    return kept;
}

static int32_t form_foresee(void *user, int32_t choice, int32_t *ids, int32_t most) {
    const run *r = user;
    int32_t last = last_of(r, choice), n = 0;
    for (; n < most; n++) {
        int32_t id = known(last, r->choices[choice].n + n);
        if (id < 0) break;
        ids[n] = last = id;
    }
    return n;
}

typedef struct plan {
    const char *what;
    di_spec_mode spec;
    int32_t ahead, preempt_each, max_rows;
    bool foresees, reject;
} plan;

static run formed[N_MASKED], plain[N_MASKED];

static void make_formed(run *r, int i, bool foresees) {
    run_make(r, text + 3 * i, 20 + 50 * i, ANSWER);
    r->request.n = N_CHOICES;
    r->request.mask = form;
    r->request.mask_drafts = form_drafts;
    r->request.foresee = foresees ? form_foresee : NULL;
    r->request.sampling.temperature = i == 0 ? 0 : 1;
    r->request.sampling.seed = 5;
    if (i == 2) r->request.sampling.frequency_penalty = 0.5F;
    if (i == 1) r->request.top_logprobs = 3;
}

static void run_formed(const plan *p, run *runs) {
    bool busy = true;
    di_error error;
    di_core_options options = run_options();
    options.spec = p->spec;
    options.steps_ahead = p->ahead;
    options.reject = p->reject;
    if (p->max_rows > 0) options.max_rows = p->max_rows;
    di_core *core = run_core(&model, &options);
    if (p->ahead) di_core_force_ahead(core);
    for (int i = 0; i < N_MASKED; i++) {
        make_formed(&runs[i], i, p->foresees);
        run_submit(&runs[i], core);
        run_make(&others[i], text + 7 + i, 33 + 40 * i, ANSWER);
        run_submit(&others[i], core);
    }
    n_drafts = n_cut = 0;
    for (int i = 1; busy; i++) {
        if (p->preempt_each > 0 && i % p->preempt_each == 0) di_core_preempt(core);
        if (di_core_step(core, &busy, &error) != DI_OK) fail_msg("%s: %s", p->what, error.message);
        if (di_core_check(core, &error) != DI_OK) fail_msg("%s: %s", p->what, error.message);
    }
    run_core_destroy(core);
}

/* Answers under a form are the same with drafts and without, whatever else is so. */
static void test_drafts(void **state) {
    (void)state;
    static const plan plans[] = {
        {"drafts", DI_SPEC_FIXED, 0, 0, 0, false, false},
        {"drafts and what is known", DI_SPEC_FIXED, 0, 0, 0, true, false},
        {"as the cost says", DI_SPEC_SCHEDULED, 0, 0, 0, true, false},
        {"steps ahead", DI_SPEC_FIXED, 1, 0, 0, false, false},
        {"steps ahead and what is known", DI_SPEC_FIXED, 1, 0, 0, true, false},
        {"steps ahead, as the cost says", DI_SPEC_SCHEDULED, 1, 0, 0, true, false},
        {"few rows", DI_SPEC_FIXED, 0, 0, 7, true, false},
        {"fewest rows", DI_SPEC_SCHEDULED, 0, 0, 4, true, false},
        {"pre-empted", DI_SPEC_FIXED, 0, 5, 0, true, false},
        {"steps ahead, pre-empted", DI_SPEC_FIXED, 1, 7, 0, true, false},
        {"others reject", DI_SPEC_FIXED, 1, 0, 0, true, true},
    };
    run_formed(&(plan){"no drafts", DI_SPEC_OFF, 0, 0, 0, true, false}, plain);
    assert_int_equal(n_drafts, 0);
    for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
        run_formed(&plans[k], formed);
        if (plans[k].spec == DI_SPEC_FIXED) assert_true(n_drafts > 0);
        if (!plans[k].foresees) assert_true(n_cut > 0);
        for (int i = 0; i < N_MASKED; i++) {
            for (int c = 0; c < N_CHOICES; c++)
                run_expect_same(&formed[i].choices[c], &plain[i].choices[c], plans[k].what);
        }
    }
}

/* What is known is verified without a draft pass, all of it stands, and it saves as many steps. */
static void test_foreseen(void **state) {
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        di_core *core = open_core(DI_SPEC_FIXED, ahead);
        run_make(&formed[0], text, 20, ANSWER);
        formed[0].request.mask = form;
        formed[0].request.mask_drafts = form_drafts;
        formed[0].request.foresee = form_foresee;
        run_submit(&formed[0], core);
        run_to_end(core);
        di_core_stats stats = di_core_get_stats(core);
        assert_true(stats.accepted >= 2 * ANSWER / 5 - 2);
        assert_true(stats.steps <= 3 * ANSWER / 5 + 4);
        run_core_destroy(core);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_foreseen),
        cmocka_unit_test(test_nothing_left),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
