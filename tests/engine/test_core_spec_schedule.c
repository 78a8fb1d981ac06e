/* The scheduler in the engine: it learns what drafts are worth and what steps cost, turns speculation
 * off and on by that, and counts right. The network is a toy and the clock is ours (forge_backend.h),
 * so all of it is exact.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/core_internal.h"
#include "support/core_run.h"
#include "support/forge_backend.h"

#define MODEL "tests/data/golden/tiny-b/model"
enum { BLOCK = 4, PROMPT = 65, BATCH = 8 };

/* Behind every token comes the next one; drafts say that too, or never. */
static forge_toy toy_of(bool right, double confidence) {
    forge_toy t = {.vocab = 4};
    for (int before = 0; before < 4; before++) {
        t.p[before][(before + 1) % 4] = 5;
        t.q[before][(before + (right ? 1 : 2)) % 4] = 5;
        for (int k = 0; k < FORGE_BLOCK; k++) t.confidence[k][before] = confidence;
    }
    return t;
}

static void open_toy(test_model *m, const forge_toy *toy, bool queue) {
    forge_open_model(m, MODEL, DI_NUMERICS_FLOAT, 1, queue);
    assert_int_equal(m->config->dspark_block_size, BLOCK);
    forge.toy = toy;
    forge.sets_clock = true;
}

/* Its last token is 0, so that token i of the answer is (i + 1) % 4. */
static int32_t prompt[PROMPT];

static uint64_t submit(di_core *core, int64_t max_tokens, void *user,
                       void (*on_end)(void *user, const di_core_result *result)) {
    di_error error;
    uint64_t id;
    const di_core_request request = {.ids = prompt,
                                     .n_ids = PROMPT,
                                     .max_tokens = max_tokens,
                                     .sampling = {.top_p = 1, .repetition_penalty = 1},
                                     .n = 1,
                                     .ignore_end_token = true,
                                     .user = user,
                                     .on_end = on_end};
    if (di_core_submit(core, &request, &id, &error) != DI_OK) fail_msg("%s", error.message);
    return id;
}

static void step(di_core *core, bool *busy) {
    di_error error;
    if (di_core_step(core, busy, &error) != DI_OK) fail_msg("%s", error.message);
}

/* ---- Counters ---- */

static void add_cached(void *user, const di_core_result *result) {
    assert_int_equal(result->finish, DI_FINISH_LENGTH);
    *(uint64_t *)user += (uint64_t)result->n_cached;
}

static di_core_stats count_run(bool right) {
    test_model m;
    const forge_toy toy = toy_of(right, 0.5);
    uint64_t cached = 0;
    open_toy(&m, &toy, false);
    di_core_options options = run_options();
    options.max_rows = 80;
    options.spec = DI_SPEC_FIXED;
    di_core *core = run_core(&m, &options);
    submit(core, 16, &cached, add_cached);
    run_to_end(core);
    di_core_stats stats = di_core_get_stats(core);
    assert_int_equal(stats.prompt_tokens, PROMPT);
    assert_int_equal(stats.cached_tokens, 0);
    submit(core, 1, &cached, add_cached);
    run_to_end(core);
    di_core_stats again = di_core_get_stats(core);
    assert_int_equal(again.prompt_tokens, 2 * PROMPT);
    assert_int_equal(again.cached_tokens, 64);
    assert_int_equal(cached, 64);
    assert_int_equal(again.rows, stats.rows + 1);
    run_core_destroy(core);
    test_model_close(&m);
    return stats;
}

static void test_counters(void **state) {
    (void)state;
    /* One token from the prompt's row, then three blocks of five. A step drafts what it verifies. */
    di_core_stats stats = count_run(true);
    assert_int_equal(stats.steps, 4);
    assert_int_equal(stats.draft_blocks, 3);
    assert_int_equal(stats.verified, 12);
    assert_int_equal(stats.accepted, 12);
    assert_int_equal(stats.drafted, 3 * BLOCK);
    assert_int_equal(stats.rows, PROMPT + 3 + 12);
    assert_int_equal(stats.prompt_rows, PROMPT);
    /* Fifteen blocks of one token; the last few may not emit more, so fewer drafts are looked at. */
    stats = count_run(false);
    assert_int_equal(stats.steps, 16);
    assert_int_equal(stats.draft_blocks, 14);
    assert_int_equal(stats.verified, 11 * 4 + 3 + 2 + 1);
    assert_int_equal(stats.accepted, 0);
    assert_int_equal(stats.drafted, 14 * BLOCK);
    assert_int_equal(stats.rows, PROMPT + 15 + 50);
}

/* ---- --profile-steps ---- */

static double odd_seconds(int32_t n_rows) { return 0.5 + 0.25 * n_rows + (n_rows > 8 ? 2 : 0); }

static void test_profile(void **state) {
    (void)state;
    test_model m;
    const forge_toy toy = toy_of(true, 0.9);
    open_toy(&m, &toy, true);
    forge.step_seconds = odd_seconds;
    forge.draft_s = 0.125;
    di_core_options options = run_options();
    options.max_batch = BATCH;
    options.max_rows = 64;
    options.spec = DI_SPEC_SCHEDULED;
    options.profile_steps = true;
    di_core *core = run_core(&m, &options);
    for (int32_t n = 1; n <= BATCH; n *= 2) {
        for (int32_t each = 0; each <= BLOCK; each++) {
            int32_t rows = n * (1 + each);
            double seconds = di_spec_cost_seconds(core->spec.verify, 0, rows);
            assert_true(fabs(seconds - odd_seconds(rows)) < 1e-6);
            const di_spec_cost_cell *cell = &core->spec.verify->cells[0][di_spec_cost_knot(rows)];
            assert_true(cell->n >= DI_SPEC_COST_MIN);
        }
        assert_true(fabs(di_spec_cost_seconds(core->spec.draft, 0, n) - 0.125 * n) < 1e-6);
    }
    di_core_stats stats = di_core_get_stats(core);
    assert_int_equal(stats.steps + stats.rows + stats.drafted + stats.verified, 0);
    assert_int_equal(stats.kv.n_free, stats.kv.n_pages);
    submit(core, 20, NULL, NULL); /* and it serves */
    run_to_end(core);
    assert_true(di_core_get_stats(core).accepted > 8);
    run_core_destroy(core);
    test_model_close(&m);
}

/* What measuring leaves in slots and pages changes no answer of a network. */
static void test_profile_leaves_no_trace(void **state) {
    (void)state;
    static run runs[2];
    for (int profiled = 0; profiled < 2; profiled++) {
        test_model m;
        run_open_model(&m, MODEL, TEST_CPU, DI_NUMERICS_FLOAT, 1);
        di_core_options options = run_options();
        options.spec = DI_SPEC_SCHEDULED;
        options.profile_steps = profiled > 0;
        di_core *core = run_core(&m, &options);
        run_make(&runs[profiled], prompt, PROMPT, 30);
        runs[profiled].request.sampling.temperature = 1;
        runs[profiled].request.sampling.frequency_penalty = 1;
        run_submit(&runs[profiled], core);
        run_to_end(core);
        run_core_destroy(core);
        test_model_close(&m);
    }
    run_expect_same(&runs[1].choices[0], &runs[0].choices[0], "profiled");
}

/* ---- Off and on ---- */

typedef struct course {
    double early, late; /* tokens per second of the stream, before and behind the middle */
    di_core_stats stats, middle;
} course;

enum { ANSWER = 380, REQUESTS = 160 };

/* Eight requests at a time, of which none ends for a while. */
static course run_course_of(const forge_toy *toy, const di_core_options *options) {
    test_model m;
    course c = {0};
    open_toy(&m, toy, options->steps_ahead > 0);
    forge.step_s = 1.6;
    forge.row_s = 1;
    forge.draft_s = 0.01;
    di_core *core = run_core(&m, options);
    for (int32_t i = 0; i < REQUESTS; i++) submit(core, ANSWER, NULL, NULL);
    double tokens = (double)ANSWER * REQUESTS;
    for (bool busy = true; busy;) {
        step(core, &busy);
        di_core_stats stats = di_core_get_stats(core);
        if (c.early == 0 && stats.waiting + stats.running <= REQUESTS / 2) {
            c.early = tokens / 2 / stats.step_seconds;
            c.middle = stats;
        }
    }
    c.stats = di_core_get_stats(core);
    c.late = tokens / 2 / (c.stats.step_seconds - c.middle.step_seconds);
    run_core_destroy(core);
    test_model_close(&m);
    return c;
}

static course run_course(const forge_toy *toy, di_spec_mode spec, bool ahead, bool profiled) {
    return run_course_of(toy, &(di_core_options){.max_batch = BATCH,
                                                 .max_rows = 64,
                                                 .max_context = 448,
                                                 .spec = spec,
                                                 .steps_ahead = ahead,
                                                 .profile_steps = profiled});
}

static void say(const char *what, const course *c, const course *off) {
    print_message(
        "  %-30s %.3f of off, then %.3f; %llu drafts verified, then %llu; %.2f accepted\n", what,
        c->early / off->early, c->late / off->late, (unsigned long long)c->middle.verified,
        (unsigned long long)(c->stats.verified - c->middle.verified),
        (double)c->stats.accepted / (double)c->stats.verified);
}

/* Sure of themselves and always wrong: nothing but a look now and then is left of them. */
static void test_turns_off(void **state) {
    (void)state;
    const forge_toy toy = toy_of(false, 0.9);
    course off = run_course(&toy, DI_SPEC_OFF, false, false);
    course fixed = run_course(&toy, DI_SPEC_FIXED, false, false);
    say("wrong, fixed", &fixed, &off);
    assert_true(fixed.late < 0.5 * off.late);
    for (int i = 0; i < 4; i++) {
        course c = run_course(&toy, DI_SPEC_SCHEDULED, i % 2, i / 2);
        say(i % 2 ? "wrong, scheduled, ahead" : "wrong, scheduled", &c, &off);
        assert_true(c.early > 0.9 * off.early && c.late > 0.95 * off.late);
        assert_true(c.stats.verified > c.middle.verified); /* it keeps looking */
        assert_int_equal(c.stats.accepted, 0);
    }
}

/* Diffident and always right: off as they tell it, on once that is seen through. */
static void test_turns_on(void **state) {
    (void)state;
    const forge_toy toy = toy_of(true, 0.6);
    course off = run_course(&toy, DI_SPEC_OFF, false, false);
    course fixed = run_course(&toy, DI_SPEC_FIXED, false, false);
    say("right, fixed", &fixed, &off);
    assert_true(fixed.late > 1.1 * off.late);
    for (int i = 0; i < 4; i++) {
        course c = run_course(&toy, DI_SPEC_SCHEDULED, i % 2, i / 2);
        say(i % 2 ? "right, scheduled, ahead" : "right, scheduled", &c, &off);
        assert_true(c.early > 0.95 * off.early);
        /* Profiled, nothing but probes looks at drafts until they have told the truth. */
        assert_true(c.late > (i / 2 ? 0.92 : 0.95) * fixed.late);
    }
}

static bool all_decode(const di_core *core) {
    int32_t n = 0;
    for (int32_t i = 0; i < core->n_order; i++) n += core->order[i]->decoding;
    return n == BATCH;
}

enum { LOOKED_AT = 200 };

/* Drafts that are verified in so many steps of a full batch, once it is used to their being wrong and
 * known to be. Steps of eight rows take 24 seconds. */
static uint64_t verified_late(const di_core_options *options) {
    test_model m;
    const forge_toy toy = toy_of(false, 0.1);
    open_toy(&m, &toy, false);
    forge.step_s = 16;
    forge.row_s = 1;
    forge.draft_s = 0.01;
    di_core *core = run_core(&m, options);
    bool busy = true;
    for (int32_t i = 0; i < BATCH; i++) submit(core, ANSWER, NULL, NULL);
    while (!all_decode(core)) step(core, &busy);
    for (int i = 0; i < 100; i++) step(core, &busy);
    uint64_t before = di_core_get_stats(core).verified;
    for (int i = 0; i < LOOKED_AT; i++) step(core, &busy);
    uint64_t verified = di_core_get_stats(core).verified - before;
    assert_true(all_decode(core));
    run_to_end(core);
    run_core_destroy(core);
    test_model_close(&m);
    return verified;
}

/* The same where a step has rows for few drafts: it keeps looking, and finds out. */
static void test_few_rows(void **state) {
    (void)state;
    di_core_options options = {.max_batch = BATCH, .max_rows = BATCH + 5, .max_context = 448};
    for (int right = 0; right < 2; right++) {
        const forge_toy toy = toy_of(right, right ? 0.6 : 0.9);
        options.spec = DI_SPEC_OFF;
        course off = run_course_of(&toy, &options);
        options.spec = DI_SPEC_FIXED;
        course fixed = run_course_of(&toy, &options);
        options.spec = DI_SPEC_SCHEDULED;
        course c = run_course_of(&toy, &options);
        say(right ? "right, few rows, fixed" : "wrong, few rows, fixed", &fixed, &off);
        say(right ? "right, few rows, scheduled" : "wrong, few rows, scheduled", &c, &off);
        assert_true(c.early > 0.9 * off.early && c.late > 0.95 * off.late);
        assert_true(c.stats.verified > c.middle.verified);
        if (right) assert_true(c.late > 0.95 * fixed.late);
    }
    /* Five drafts, for so many sequences as have some, take 5 / (16 + BATCH) of a step. */
    uint64_t looks = LOOKED_AT * (16 + BATCH) / (5 * DI_SPEC_PROBE_DIVISOR);
    assert_in_range(verified_late(&options), 5 * looks, 5 * (looks + 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_profile_leaves_no_trace),
        cmocka_unit_test(test_turns_off),
        cmocka_unit_test(test_turns_on),
        cmocka_unit_test(test_few_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
