/* The life of requests: refused, waiting, running, stopped, cancelled, failed; and who goes first.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core_internal.h"
#include "support/core_run.h"

static test_model model;
static run runs[6];
static int32_t text[RUN_MAX_PROMPT];

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

static void step(di_core *core) {
    bool busy;
    di_error error;
    if (di_core_step(core, &busy, &error) != DI_OK) fail_msg("%s", error.message);
    if (di_core_check(core, &error) != DI_OK) fail_msg("%s", error.message);
}

static di_core *default_core(void) {
    di_core_options options = run_options();
    return run_core(&model, &options);
}

/* ---- Refusals ---- */

static void expect_refused(di_core *core, const run *r, di_status status, const char *message) {
    di_error error;
    uint64_t id;
    di_core_request request = r->request;
    request.ids = r->prompt;
    request.biases = r->biases;
    assert_int_equal(di_core_submit(core, &request, &id, &error), status);
    assert_string_equal(error.message, message);
}

static void test_refusals(void **state) {
    (void)state;
    di_core *core = default_core();
    run *r = &runs[0];
    run_make(r, text, 0, 1);
    expect_refused(core, r, DI_ERR_USAGE, "ids: the prompt is empty");
    run_make(r, text, 448, 1);
    expect_refused(core, r, DI_ERR_LIMIT,
                   "ids: the prompt has 448 tokens; with one token of answer it must fit 448, the "
                   "context; shorten it or allow more");
    run_make(r, text, 3, 1);
    r->prompt[2] = 384;
    expect_refused(core, r, DI_ERR_USAGE, "ids[2]: there is no token 384, ids are 0 to 383");
    run_make(r, text, 3, 0);
    expect_refused(core, r, DI_ERR_USAGE, "max_tokens: 0, at least 1 is needed");
    run_make(r, text, 3, 1);
    r->request.n = 0;
    expect_refused(core, r, DI_ERR_USAGE, "n: 0 is no number from 1 to 128");
    run_make(r, text, 3, 1);
    r->request.top_logprobs = 21;
    expect_refused(core, r, DI_ERR_USAGE, "top_logprobs: 21 is no number from 0 to 20");
    run_make(r, text, 3, 1);
    r->request.sampling.temperature = NAN;
    expect_refused(core, r, DI_ERR_USAGE, "temperature: nan is no number from 0 to 100");
    run_make(r, text, 3, 1);
    r->request.sampling.repetition_penalty = 0;
    expect_refused(core, r, DI_ERR_USAGE, "repetition_penalty: 0 is no number from 0.01 to 100");
    run_make(r, text, 3, 1);
    r->request.n_biases = 1;
    r->biases[0] = (di_logit_bias){-1, 0};
    expect_refused(core, r, DI_ERR_USAGE, "biases[0]: there is no token -1, ids are 0 to 383");
    r->biases[0] = (di_logit_bias){1, INFINITY};
    expect_refused(core, r, DI_ERR_USAGE, "biases: inf is no number from -1000 to 1000");
    assert_int_equal(di_core_get_stats(core).waiting, 0);
    run_core_destroy(core);
}

static void expect_no_core(const di_core_options *options, const char *message) {
    di_core *core;
    di_error error;
    di_kv_name name = {{0}};
    assert_int_equal(di_core_create(model.model, options, &name, "float", "test", &core, &error),
                     DI_ERR_USAGE);
    assert_null(core);
    assert_string_equal(error.message, message);
}

static void test_options(void **state) {
    (void)state;
    di_core_options o = run_options();
    o.max_batch = 0;
    expect_no_core(&o, "max_batch: 0 sequences, 1 to 65536 can run at once");
    o.max_batch = 33;
    expect_no_core(&o, "max_rows: 32 rows a step are fewer than the 33 sequences of max_batch");
    o = run_options();
    o.max_context = 1;
    expect_no_core(&o, "max_context: 1 tokens, the model takes 2 to 1048576");
    o = run_options();
    o.replay = (di_replay)7;
    expect_no_core(&o, "replay: 7 is no mode");
    o = di_core_options_defaults(model.config);
    assert_int_equal(o.max_context, 32768);
    assert_int_equal(o.replay, DI_REPLAY_EXACT);
    o = run_options();
    o.n_pages = 0; /* max_batch full contexts */
    di_core *core = run_core(&model, &o);
    assert_int_equal(di_core_get_stats(core).kv.n_pages, 4 * 7);
    run_core_destroy(core);
}

/* ---- Ends ---- */

static void test_ends(void **state) {
    (void)state;
    di_core *core = default_core();
    run_make(&runs[0], text, 40, 7);
    run_make(&runs[1], text + 1, 445, 50); /* 3 tokens of context are left */
    run_make(&runs[2], text, 40, 20);
    runs[2].stop_at = 4;
    run_make(&runs[3], text, 40, 20); /* the end token by bias, first at once and then ignored */
    runs[3].request.n_biases = 1;
    runs[3].biases[0] = (di_logit_bias){model.config->eos_token_id, 1000};
    runs[3].request.ignore_end_token = false;
    runs[4] = runs[3];
    runs[4].request.ignore_end_token = true;
    runs[4].request.max_tokens = 3;
    for (int i = 0; i < 5; i++) run_submit(&runs[i], core);
    run_to_end(core);
    const int64_t n[] = {7, 3, 5, 1, 3};
    const di_finish finish[] = {DI_FINISH_LENGTH, DI_FINISH_LENGTH, DI_FINISH_STOP, DI_FINISH_STOP,
                                DI_FINISH_LENGTH};
    for (int i = 0; i < 5; i++) {
        assert_true(run_ended(&runs[i]));
        assert_int_equal(runs[i].choices[0].n, n[i]);
        assert_int_equal(runs[i].choices[0].result.finish, finish[i]);
    }
    assert_int_equal(runs[3].choices[0].ids[0], model.config->eos_token_id);
    assert_int_equal(runs[4].choices[0].ids[2], model.config->eos_token_id);
    assert_memory_equal(runs[2].choices[0].ids, runs[0].choices[0].ids, 5 * sizeof(int32_t));
    run_core_destroy(core);
}

/* The pool bounds what a request may hold, and then its answer is as long as the pool allows. */
static void test_small_pool(void **state) {
    (void)state;
    di_core_options o = run_options();
    o.n_pages = 2;
    di_core *core = run_core(&model, &o);
    run_make(&runs[0], text, 128, 1);
    expect_refused(core, &runs[0], DI_ERR_LIMIT,
                   "ids: the prompt has 128 tokens; with one token of answer it must fit 128, what "
                   "the page pool holds; shorten it or allow more");
    run_make(&runs[0], text, 120, 50);
    run_make(&runs[1], text + 9, 120, 50); /* one at a time */
    run_submit(&runs[0], core);
    run_submit(&runs[1], core);
    run_to_end(core);
    assert_int_equal(runs[0].choices[0].n, 8);
    assert_int_equal(runs[1].choices[0].n, 8);
    run_core_destroy(core);
}

static void test_cancel(void **state) {
    (void)state;
    di_core *core = default_core();
    for (int i = 0; i < 6; i++) run_make(&runs[i], text + i, 50, 10);
    runs[3].cancel_at = 2;
    runs[4].request.n = 3; /* waits: all slots are taken */
    for (int i = 0; i < 6; i++) run_submit(&runs[i], core);
    for (int i = 0; i < 8; i++) step(core);
    assert_int_equal(di_core_get_stats(core).running, 4);
    assert_true(runs[0].choices[0].n > 0);
    assert_true(di_core_cancel(core, runs[0].id)); /* running */
    assert_true(runs[0].choices[0].ended);         /* before it returns */
    assert_false(di_core_cancel(core, runs[0].id));
    assert_true(di_core_cancel(core, runs[4].id)); /* waiting and held */
    assert_true(run_ended(&runs[4]));
    assert_false(di_core_cancel(core, 99));
    assert_false(di_core_cancel(core, 0));
    run_to_end(core);
    assert_int_equal(runs[0].choices[0].result.finish, DI_FINISH_CANCELLED);
    for (int i = 0; i < 3; i++)
        assert_int_equal(runs[4].choices[i].result.finish, DI_FINISH_CANCELLED);
    assert_int_equal(runs[3].choices[0].result.finish, DI_FINISH_CANCELLED);
    assert_int_equal(runs[3].choices[0].n, 3); /* the token at which it was cancelled counts */
    assert_int_equal(runs[1].choices[0].n, 10);
    assert_int_equal(runs[5].choices[0].n, 10);
    run_core_destroy(core);
}

/* Destroyed with open requests: nobody is told, nothing leaks (asan). */
static void test_destroy_open(void **state) {
    (void)state;
    di_core *core = default_core();
    for (int i = 0; i < 6; i++) {
        run_make(&runs[i], text, 70, 10);
        run_submit(&runs[i], core);
    }
    for (int i = 0; i < 11; i++) step(core);
    assert_true(runs[0].choices[0].n > 0);
    di_core_destroy(core);
    for (int i = 0; i < 6; i++) assert_false(runs[i].choices[0].ended);
}

/* ---- Who goes first ---- */

static void test_rank(void **state) {
    (void)state;
    di_core_options o = run_options();
    o.max_batch = 1;
    di_core *core = run_core(&model, &o);
    const int32_t priority[] = {0, 0, 5, -1, 5};
    for (int i = 0; i < 5; i++) {
        run_make(&runs[i], text + i, 20, 2);
        runs[i].request.priority = priority[i];
        run_submit(&runs[i], core);
    }
    int order[5], n = 0;
    for (bool seen[5] = {false}; n < 5;) {
        step(core);
        for (int i = 0; i < 5; i++) {
            if (runs[i].choices[0].ended && !seen[i]) seen[i] = true, order[n++] = i;
        }
    }
    const int want[] = {2, 4, 0, 1, 3};
    for (int i = 0; i < 5; i++) assert_int_equal(order[i], want[i]);
    run_core_destroy(core);
}

/* A short prompt answers while a long one is still being read; the long one is not kept waiting
 * either: it reads in every step. */
static void test_shares(void **state) {
    (void)state;
    di_core *core = default_core();
    run_make(&runs[0], text, 400, 4);
    run_make(&runs[1], text + 7, 10, 30);
    run_submit(&runs[0], core);
    run_submit(&runs[1], core);
    int64_t before = 0;
    while (runs[0].choices[0].n == 0) {
        step(core);
        int64_t done = core->slots[0].sequence->n_done;
        assert_true(done > before);
        before = done;
    }
    assert_true(runs[1].choices[0].n > 5);
    assert_true(di_core_get_stats(core).steps <= 400 / 31 + 3); /* the budget was used */
    run_to_end(core);
    run_core_destroy(core);
}

/* Growing answers meet the end of the pool: the last by rank gives way, and ends all the same. */
static void test_preemption(void **state) {
    (void)state;
    di_core_options o = run_options();
    o.n_pages = 8;
    di_core *core = run_core(&model, &o);
    for (int i = 0; i < 4; i++) {
        run_make(&runs[i], text + i, 60, 90);
        run_submit(&runs[i], core);
    }
    runs[0].request.priority = 0;
    run_to_end(core);
    for (int i = 0; i < 4; i++) assert_int_equal(runs[i].choices[0].n, 90);
    assert_true(di_core_get_stats(core).preemptions > 0);
    run_core_destroy(core);
}

/* ---- Failures ---- */

/* Overwrites the last layer's output of the step's first row. */
static void poison(void *user, const char *name, int32_t layer, di_ptr data, di_tap_type type,
                   int64_t n_rows, int64_t row_width) {
    (void)type;
    (void)n_rows;
    (void)row_width;
    const di_core *core = user;
    if (strcmp(name, "streams") != 0 || layer != model.config->num_hidden_layers - 1) return;
    if (core->stats.steps < 8) return;
    static const float nan_rows[4] = {NAN, NAN, NAN, NAN};
    model.backend->upload(model.backend->stream, data, nan_rows, sizeof nan_rows);
}

static void test_not_finite(void **state) {
    (void)state;
    di_core *core = default_core();
    run_make(&runs[0], text, 20, 20);
    run_make(&runs[1], text + 5, 20, 20);
    run_make(&runs[2], text + 5, 20, 20);
    runs[0].request.priority = 1; /* the first rows are its */
    di_context_set_tap(core->context, poison, core);
    run_submit(&runs[0], core);
    run_submit(&runs[1], core);
    while (!runs[0].choices[0].ended) step(core);
    di_context_set_tap(core->context, NULL, NULL);
    run_to_end(core);
    assert_int_equal(runs[0].choices[0].result.finish, DI_FINISH_ERROR);
    assert_non_null(strstr(runs[0].choices[0].message, "the logits are not finite numbers"));
    assert_int_equal(runs[1].choices[0].result.finish, DI_FINISH_LENGTH);
    run_submit(&runs[2], core); /* the neighbour noticed nothing */
    run_to_end(core);
    run_expect_same(&runs[2].choices[0], &runs[1].choices[0], "neighbour");
    run_core_destroy(core);
}

static di_status lost(di_stream *stream, uint64_t mark, di_error *error) {
    (void)stream;
    (void)mark;
    return di_fail(error, DI_ERR_IO, "the device is lost");
}

static void test_device_lost(void **state) {
    (void)state;
    di_core *core = default_core();
    di_error error;
    bool busy = true;
    for (int i = 0; i < 6; i++) {
        run_make(&runs[i], text, 90, 20);
        run_submit(&runs[i], core);
    }
    for (int i = 0; i < 14; i++) step(core);
    di_status (*wait)(di_stream *, uint64_t, di_error *) = model.backend->wait;
    model.backend->wait = lost;
    di_status status = DI_OK;
    while (status == DI_OK) status = di_core_step(core, &busy, &error);
    model.backend->wait = wait;
    assert_int_equal(status, DI_ERR_IO);
    assert_false(busy);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(runs[i].choices[0].result.finish, DI_FINISH_ERROR);
        assert_string_equal(runs[i].choices[0].message, "the device is lost");
    }
    uint64_t id;
    runs[0].request.ids = text;
    assert_int_equal(di_core_submit(core, &runs[0].request, &id, &error), DI_ERR_IO);
    assert_int_equal(di_core_step(core, &busy, &error), DI_ERR_IO);
    assert_int_equal(di_core_get_stats(core).kv.n_cached, 0); /* nothing there can be trusted */
    run_core_destroy(core);
}

/* A client of on_end alone, that asks again until it has asked often enough. */
typedef struct asker {
    di_core *core;
    di_core_request request;
    int asked, ended;
    uint64_t other; /* cancelled at the first end */
} asker;

static void ask_again(void *user, const di_core_result *result) {
    asker *a = user;
    uint64_t id;
    di_error error;
    a->ended++;
    assert_int_equal(result->n_answer, 3);
    if (a->ended == 1) assert_true(di_core_cancel(a->core, a->other));
    if (a->asked++ == 5) return;
    assert_int_equal(di_core_submit(a->core, &a->request, &id, &error), DI_OK);
}

static void test_callbacks(void **state) {
    (void)state;
    di_core *core = default_core();
    run_make(&runs[0], text, 30, 3);
    run_make(&runs[1], text + 3, 60, 90);
    run_submit(&runs[1], core);
    asker a = {core, runs[0].request, 0, 0, runs[1].id};
    a.request.ids = runs[0].prompt;
    a.request.on_token = NULL;
    a.request.on_end = ask_again;
    a.request.user = &a;
    uint64_t id;
    di_error error;
    assert_int_equal(di_core_submit(core, &a.request, &id, &error), DI_OK);
    run_to_end(core);
    assert_int_equal(a.ended, 6);
    assert_int_equal(runs[1].choices[0].result.finish, DI_FINISH_CANCELLED);
    a.request.on_end = NULL; /* nobody listens */
    assert_int_equal(di_core_submit(core, &a.request, &id, &error), DI_OK);
    run_to_end(core);
    run_core_destroy(core);
}

static void test_run(void **state) {
    (void)state;
    di_core *core = default_core();
    di_error error;
    volatile bool stop = true;
    run_make(&runs[0], text, 20, 3);
    run_submit(&runs[0], core);
    assert_int_equal(di_core_run(core, &stop, &error), DI_OK);
    assert_int_equal(runs[0].choices[0].n, 0);
    assert_int_equal(di_core_run(core, NULL, &error), DI_OK);
    assert_int_equal(runs[0].choices[0].n, 3);
    run_core_destroy(core);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_options),
        cmocka_unit_test(test_ends),        cmocka_unit_test(test_small_pool),
        cmocka_unit_test(test_cancel),      cmocka_unit_test(test_destroy_open),
        cmocka_unit_test(test_rank),        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_preemption),  cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_device_lost), cmocka_unit_test(test_run),
        cmocka_unit_test(test_callbacks),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
