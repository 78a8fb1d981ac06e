#include "support/core_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void must(di_status status, const di_error *error) {
    if (status != DI_OK) fail_msg("%s", error->message);
}

/* ---- Requests ---- */

static bool on_token(void *user, const di_core_token *t) {
    run *r = user;
    assert_int_equal(t->request, r->id);
    assert_in_range(t->choice, 0, RUN_MAX_CHOICES - 1);
    run_choice *c = &r->choices[t->choice];
    assert_false(c->ended);
    int64_t n_prompt = r->request.n_ids - r->request.n_given;
    if (t->index < 0) { /* the prompt's own, in order */
        assert_int_equal(t->index, c->n_scores - n_prompt);
        assert_int_equal(t->id, r->prompt[c->n_scores]);
        c->scores[c->n_scores++] = t->logprob;
        return true;
    }
    if (t->choice > 0 && c->n == 0) { /* what is given is the first one's to report */
        memcpy(c->ids, r->prompt + n_prompt, (size_t)r->request.n_given * sizeof *c->ids);
        c->n = r->request.n_given;
    }
    assert_int_equal(t->index, c->n);
    assert_true(c->n < RUN_MAX_ANSWER);
    if (c->n < r->request.n_given) assert_int_equal(t->id, r->prompt[n_prompt + c->n]);
    c->ids[c->n] = t->id;
    c->logprobs[c->n] = t->logprob;
    c->n_top = t->n_top;
    if (t->n_top) memcpy(c->top[c->n], t->top, (size_t)t->n_top * sizeof *t->top);
    c->n++;
    if (t->index == r->cancel_at) assert_true(di_core_cancel(r->core, r->id));
    return t->index != r->stop_at;
}

static void on_end(void *user, const di_core_result *result) {
    run *r = user;
    run_choice *c = &r->choices[result->choice];
    assert_int_equal(result->request, r->id);
    assert_false(c->ended);
    c->ended = true;
    c->result = *result;
    c->result.message = NULL;
    if (result->message) snprintf(c->message, sizeof c->message, "%s", result->message);
    /* What is given of an answer counts from the start, whether it was reported or not. */
    int64_t n_given = r->request.n_given;
    assert_int_equal(result->n_answer, c->n > n_given ? c->n : n_given);
    assert_int_equal(result->n_prompt, r->request.n_ids - n_given);
}

void run_make(run *r, const int32_t *ids, int64_t n, int64_t max_tokens) {
    memset(r, 0, sizeof *r);
    assert_in_range(n, 0, RUN_MAX_PROMPT);
    memcpy(r->prompt, ids, (size_t)n * sizeof *ids);
    r->stop_at = r->cancel_at = -1;
    r->request = (di_core_request){.n_ids = n,
                                   .max_tokens = max_tokens,
                                   .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f},
                                   .n = 1,
                                   .ignore_end_token = true,
                                   .on_token = on_token,
                                   .on_end = on_end};
}

int64_t run_text(const run *r, int32_t choice, int32_t *ids) {
    int64_t n_prompt = r->request.n_ids - r->request.n_given;
    const run_choice *c = &r->choices[choice];
    memcpy(ids, r->prompt, (size_t)n_prompt * sizeof *ids);
    memcpy(ids + n_prompt, c->ids, (size_t)c->n * sizeof *ids);
    return n_prompt + c->n;
}

void run_submit(run *r, di_core *core) {
    di_error error;
    r->core = core;
    r->request.ids = r->prompt;
    r->request.biases = r->biases;
    r->request.user = r;
    must(di_core_submit(core, &r->request, &r->id, &error), &error);
}

bool run_ended(const run *r) {
    for (int32_t i = 0; i < r->request.n; i++) {
        if (!r->choices[i].ended) return false;
    }
    return true;
}

void run_to_end(di_core *core) {
    di_error error;
    for (bool busy = true; busy;) {
        must(di_core_step(core, &busy, &error), &error);
        must(di_core_check(core, &error), &error);
    }
}

/* ---- Cores ---- */

void run_open_model(test_model *m, const char *directory, test_backend backend,
                    di_numerics numerics, int32_t n_threads) {
    di_context_options context = {.n_slots = 1, .max_context = 64, .max_rows = 1, .max_out = 1};
    test_model_open(m, directory, &(test_model_options){backend, numerics, n_threads, context});
    di_context_destroy(m->context); /* workspaces are those of the context that was made last */
    m->context = NULL;
}

void run_fill_text(int32_t *text) {
    for (int32_t i = 0; i < RUN_MAX_PROMPT; i++) text[i] = (i * 37 + i / 5) % 300 + 3;
}

di_core_options run_options(void) {
    return (di_core_options){.max_batch = 4,
                             .max_rows = 32,
                             .max_context = 448,
                             .n_pages = 64,
                             .prefix_cache = true,
                             .replay = DI_REPLAY_EXACT,
                             .window_cache_bytes = 4 << 20};
}

di_core *run_core(const test_model *m, const di_core_options *options) {
    di_core *core;
    di_error error;
    const di_kv_name fingerprint = {{1, 2, 3}};
    must(di_core_create(m->model, options, &fingerprint, "float", "test", &core, &error), &error);
    di_core_force_ahead(core); /* where steps_ahead allows it: what a clock decides is not tested */
    return core;
}

void run_core_destroy(di_core *core) {
    di_error error;
    di_core_stats stats = di_core_get_stats(core);
    must(di_core_check(core, &error), &error);
    assert_int_equal(stats.running, 0);
    assert_int_equal(stats.waiting, 0);
    assert_int_equal(stats.kv.n_free + stats.kv.n_cached, stats.kv.n_pages);
    assert_int_equal(stats.kv.n_reserved, 0);
    di_core_destroy(core);
}

/* ---- Comparison ---- */

void run_expect_same(const run_choice *got, const run_choice *want, const char *what) {
    if (!got->ended) fail_msg("%s: it never ended", what);
    if (got->n_scores != want->n_scores ||
        memcmp(got->scores, want->scores, (size_t)want->n_scores * sizeof *want->scores) != 0) {
        fail_msg("%s: log-probabilities of the prompt differ", what);
    }
    for (int64_t i = 0; i < want->n && i < got->n; i++) {
        if (got->ids[i] != want->ids[i] ||
            memcmp(&got->logprobs[i], &want->logprobs[i], sizeof *want->logprobs) != 0) {
            fail_msg("%s: token %d is %d (%.9g), want %d (%.9g)", what, (int)i, got->ids[i],
                     (double)got->logprobs[i], want->ids[i], (double)want->logprobs[i]);
        }
        if (memcmp(got->top[i], want->top[i], sizeof want->top[i]) != 0) {
            fail_msg("%s: alternatives at token %d differ", what, (int)i);
        }
    }
    if (got->n != want->n || got->result.finish != want->result.finish) {
        fail_msg("%s: %d tokens, finish %d (%s); want %d, finish %d", what, (int)got->n,
                 (int)got->result.finish, got->message, (int)want->n, (int)want->result.finish);
    }
}
