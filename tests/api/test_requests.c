/* The public face of the core: what is refused, what is dropped, and that callbacks come. What
 * answers are is held by tests/engine and tests/cli/test_verb_batch.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "deepinfer.h"

static di_error error;

static di_engine_options small(void) {
    di_engine_options options = di_engine_options_defaults();
    options.backend = "ref";
    options.n_threads = 1;
    options.context = 64;
    options.chunk = 16;
    options.max_batch = 2;
    options.window_cache = 1 << 20;
    return options;
}

static di_engine *open_small(void) {
    di_engine_options options = small();
    di_engine *engine;
    if (di_engine_open(DI_SOURCE_DIR "/models/demo", &options, &engine, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    return engine;
}

static void refuses_options(const di_engine_options *options, di_status status, const char *why) {
    di_engine *engine = NULL;
    assert_int_equal(di_engine_open(DI_SOURCE_DIR "/models/demo", options, &engine, &error),
                     status);
    assert_null(engine);
    if (!strstr(error.message, why)) fail_msg("%s", error.message);
}

static void test_options(void **state) {
    (void)state;
    di_engine_options options = small();
    options.replay = "never";
    refuses_options(&options, DI_ERR_USAGE, "replay 'never' is unknown");
    options.replay = NULL;
    refuses_options(&options, DI_ERR_USAGE, "replay 'NULL'");
    options = small();
    options.max_batch = -1;
    refuses_options(&options, DI_ERR_USAGE, "max_batch: -1 is out of range");
    options = small();
    options.memory = 2 << 20;
    options.window_cache = 4 << 20;
    refuses_options(&options, DI_ERR_MEMORY, "MiB, window cache and buffers 9 MiB, weights ");
    refuses_options(&options, DI_ERR_MEMORY, ", 2 MiB are allowed; allow more, or ask for a ");
    options.window_cache = UINT64_MAX;
    refuses_options(&options, DI_ERR_MEMORY, "not enough memory");
    options.prefix_cache = false; /* then there is none */
    refuses_options(&options, DI_ERR_MEMORY, "MiB, window cache and buffers 5 MiB, weights ");
    options.prefix_cache = true;
    options.window_cache = 0;
    refuses_options(&options, DI_ERR_MEMORY, "smaller context, window cache or chunk");
}

/* An engine serves either. */
static void test_sequences_or_requests(void **state) {
    (void)state;
    di_engine *engine = open_small();
    di_sequence *sequence;
    assert_int_equal(di_sequence_create(engine, &sequence, &error), DI_ERR_LIMIT);
    assert_int_equal(di_engine_get_info(engine).context, 64);
    di_engine_close(engine);
    di_engine_options options = small();
    options.max_batch = 0;
    assert_int_equal(di_engine_open(DI_SOURCE_DIR "/models/demo", &options, &engine, &error),
                     DI_OK);
    bool busy;
    assert_int_equal(di_engine_step(engine, &busy, &error), DI_ERR_USAGE);
    assert_int_equal(di_engine_submit(engine, &(di_request){0}, NULL, &error), DI_ERR_USAGE);
    assert_false(di_engine_cancel(engine, 1));
    di_engine_close(engine);
}

typedef struct heard {
    int n_tokens[2], n_ends[2];
    int64_t stop_after; /* tokens; 0: never */
    di_end end[2];
} heard;

static bool on_token(void *user, const di_request_token *t) {
    heard *h = user;
    assert_int_equal(h->n_ends[t->choice], 0);
    assert_int_equal(t->n_top, 3);
    assert_true(t->top[0].logprob >= t->top[1].logprob);
    assert_true(isfinite(t->token.logprob) != 0);
    return ++h->n_tokens[t->choice] != h->stop_after;
}

static void on_end(void *user, const di_request_end *end) {
    heard *h = user;
    assert_int_equal(end->n_prompt, 3);
    h->n_ends[end->choice]++;
    h->end[end->choice] = end->end;
}

static const int32_t ids[] = {0, 67, 2076};

static di_request request_for(heard *h, int64_t max_tokens) {
    return (di_request){.ids = ids,
                        .n_ids = 3,
                        .max_tokens = max_tokens,
                        .sampling = di_sampling_defaults(),
                        .n_choices = 2,
                        .top_logprobs = 3,
                        .user = h,
                        .on_token = on_token,
                        .on_end = on_end};
}

static void run_all(di_engine *engine) {
    for (bool busy = true; busy;) assert_int_equal(di_engine_step(engine, &busy, &error), DI_OK);
}

static void test_ends(void **state) {
    (void)state;
    di_engine *engine = open_small();
    heard full = {.stop_after = 0}, stopped = {.stop_after = 2}, cancelled = {.stop_after = 0};
    di_request request = request_for(&full, 4);
    uint64_t id;
    assert_int_equal(di_engine_submit(engine, &request, NULL, &error), DI_OK);
    request = request_for(&stopped, 4);
    assert_int_equal(di_engine_submit(engine, &request, NULL, &error), DI_OK);
    request = request_for(&cancelled, 0);
    assert_int_equal(di_engine_submit(engine, &request, &id, &error), DI_OK);
    assert_true(di_engine_cancel(engine, id));
    assert_false(di_engine_cancel(engine, id));
    run_all(engine);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(full.n_ends[i], 1);
        assert_int_equal(full.n_tokens[i], 4);
        assert_int_equal(full.end[i], DI_END_LENGTH);
        assert_int_equal(stopped.n_ends[i], 1);
        assert_int_equal(stopped.n_tokens[i], 2);
        assert_int_equal(stopped.end[i], DI_END_STOP);
        assert_int_equal(cancelled.n_ends[i], 1);
        assert_int_equal(cancelled.n_tokens[i], 0);
        assert_int_equal(cancelled.end[i], DI_END_CANCELLED);
    }
    di_engine_close(engine);
}

static void refuses_request(di_engine *engine, const di_request *request, di_status status,
                            const char *why) {
    assert_int_equal(di_engine_submit(engine, request, NULL, &error), status);
    if (!strstr(error.message, why)) fail_msg("%s", error.message);
}

static void test_requests_refused(void **state) {
    (void)state;
    di_engine *engine = open_small();
    heard h = {.stop_after = 0};
    di_request request = request_for(&h, -1);
    refuses_request(engine, &request, DI_ERR_USAGE, "max_tokens: -1 is negative");
    request = request_for(&h, 1);
    request.sampling.temperature = NAN;
    refuses_request(engine, &request, DI_ERR_USAGE, "temperature: nan is no number");
    request = request_for(&h, 1);
    request.n_choices = 0;
    refuses_request(engine, &request, DI_ERR_USAGE, "n: 0");
    int32_t many[64] = {0};
    request = request_for(&h, 1);
    request.ids = many;
    request.n_ids = 64;
    refuses_request(engine, &request, DI_ERR_LIMIT, "64 tokens");
    /* Closed with one open: nothing is told, nothing is lost (under the address sanitizer). */
    request = request_for(&h, 1);
    assert_int_equal(di_engine_submit(engine, &request, NULL, &error), DI_OK);
    di_engine_close(engine);
    assert_int_equal(h.n_ends[0], 0);
}

/* ---- The prompt's progress ---- */

enum { LONG = 50 };

typedef struct reading {
    heard tokens;
    int64_t done[LONG], total;
    int n, stop_after; /* reports; stop_after 0: never */
} reading;

static bool on_prompt(void *user, int64_t done, int64_t total) {
    reading *r = user;
    assert_int_equal(r->tokens.n_tokens[0], 0);
    assert_true(r->n < LONG);
    r->done[r->n++] = done;
    r->total = total;
    return r->n != r->stop_after;
}

static bool on_any_token(void *user, const di_request_token *t) {
    reading *r = user;
    r->tokens.n_tokens[t->choice]++;
    return true;
}

static void on_any_end(void *user, const di_request_end *end) {
    reading *r = user;
    r->tokens.n_ends[end->choice]++;
    r->tokens.end[end->choice] = end->end;
}

static void submit_long(di_engine *engine, int first, reading *r) {
    int32_t prompt[LONG];
    for (int i = 0; i < LONG; i++) prompt[i] = first + i;
    di_request request = {.ids = prompt,
                          .n_ids = LONG,
                          .max_tokens = 3,
                          .sampling = di_sampling_defaults(),
                          .n_choices = 1,
                          .user = r,
                          .on_prompt = on_prompt,
                          .on_token = on_any_token,
                          .on_end = on_any_end};
    assert_int_equal(di_engine_submit(engine, &request, NULL, &error), DI_OK);
}

static void read_long(di_engine *engine, int first, reading *r) {
    submit_long(engine, first, r);
    run_all(engine);
    assert_int_equal(r->tokens.n_ends[0], 1);
}

/* In chunks of 16: what was read, whether the next step is under way or not. */
static void test_prompt_progress(void **state) {
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        di_engine_options options = small();
        options.steps_ahead = ahead;
        di_engine *engine;
        assert_int_equal(di_engine_open(DI_SOURCE_DIR "/models/demo", &options, &engine, &error),
                         DI_OK);
        reading whole = {0}, stopped = {.stop_after = 3}, after = {0};
        read_long(engine, 100, &whole);
        /* A step in flight is not read; whether there is one is the engine's choice. */
        assert_true(whole.n == 3 || (ahead && whole.n == 4));
        for (int i = 0; i < whole.n; i++) {
            int64_t behind = 16 * (i + 1) - whole.done[i];
            assert_true(behind == 0 || (ahead && behind == 16));
        }
        assert_int_equal(whole.total, LONG);
        assert_int_equal(whole.tokens.n_tokens[0], 3);
        read_long(engine, 200, &stopped); /* false: it ends, and the engine goes on */
        assert_int_equal(stopped.n, 3);
        assert_int_equal(stopped.tokens.n_tokens[0], 0);
        assert_int_equal(stopped.tokens.end[0], DI_END_CANCELLED);
        read_long(engine, 200, &after);
        assert_int_equal(after.tokens.n_tokens[0], 3);
        di_engine_close(engine);
    }
}

/* Who waits is told nothing; who says stop ends alone, two of them after the same step too. */
static void test_prompts_together(void **state) {
    (void)state;
    di_engine *engine = open_small(); /* two run at a time */
    reading r[4] = {{.stop_after = 1}, {.stop_after = 1}, {.n = 0}, {.stop_after = 2}};
    for (int i = 0; i < 4; i++) submit_long(engine, 100 * (i + 1), &r[i]);
    bool busy;
    assert_int_equal(di_engine_step(engine, &busy, &error), DI_OK);
    assert_true(r[0].n == 1 && r[1].n == 1 && r[2].n == 0 && r[3].n == 0);
    assert_true(r[0].tokens.n_ends[0] == 1 && r[1].tokens.n_ends[0] == 1);
    assert_int_equal(di_engine_get_stats(engine).waiting, 2);
    run_all(engine);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r[i].tokens.n_ends[0], 1);
        assert_int_equal(r[i].tokens.end[0], i == 2 ? DI_END_LENGTH : DI_END_CANCELLED);
        assert_int_equal(r[i].tokens.n_tokens[0], i == 2 ? 3 : 0);
    }
    assert_true(r[2].n >= 3);
    assert_int_equal(r[3].n, 2);
    di_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_sequences_or_requests),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_requests_refused),
        cmocka_unit_test(test_prompt_progress),
        cmocka_unit_test(test_prompts_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
