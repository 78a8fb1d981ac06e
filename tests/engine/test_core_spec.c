/* The engine's decisions about drafts (core_spec.c), one by one: costs and survivals are given, plans
 * follow from them by arithmetic. How they work together: test_core_spec_schedule.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "engine/core_internal.h"

enum { BLOCK = 4, BATCH = 4, ROWS = 24 };

/* A core as far as core_spec.c looks at it. */
typedef struct bench {
    di_core core;
    di_config config;
    core__request request; /* of all of them, without masks */
    core__sequence sequences[BATCH], *order[BATCH];
    double survival[BATCH][BLOCK];
} bench;

/* What is not measured is 1 second, 0.5 more for each row; a draft pass 0.25 for each sequence. */
static void set_floors(core__spec *spec) {
    const di_spec_floor verify = {.row_flops = 0.5, .peak = 1, .overhead = 1, .bandwidth = 1};
    const di_spec_floor draft = {.row_flops = 0.25, .peak = 1, .bandwidth = 1};
    di_spec_cost_init(spec->verify, &verify);
    di_spec_cost_init(spec->draft, &draft);
}

static void open_bench(bench *b, int32_t max_rows) {
    di_error error;
    *b = (bench){.config = {.hidden_size = 32,
                            .num_hidden_layers = 2,
                            .num_nextn_predict_layers = 1,
                            .n_routed_experts = 4,
                            .num_experts_per_tok = 2,
                            .dspark_block_size = BLOCK}};
    b->core.config = &b->config;
    b->core.order = b->order;
    b->core.options =
        (di_core_options){.max_batch = BATCH, .max_rows = max_rows, .spec = DI_SPEC_SCHEDULED};
    if (core__spec_init(&b->core, &error) != DI_OK) fail_msg("%s", error.message);
    set_floors(&b->core.spec);
}

static void close_bench(bench *b) { core__spec_deinit(&b->core.spec); }

/* n sequences that decode, each with these survivals and at most so many drafts. */
static void set_sequences(bench *b, int32_t n, const double *survival, int32_t most) {
    b->core.n_order = n;
    for (int32_t i = 0; i < n; i++) {
        core__sequence *s = b->order[i] = &b->sequences[i];
        *s = (core__sequence){.request = &b->request,
                              .block = true,
                              .most = most,
                              .survival = b->survival[i]};
        memcpy(s->survival, survival, BLOCK * sizeof *survival);
    }
}

/* Steps of `rows` rows take so long. */
static void measure(di_spec_cost *cost, int64_t rows, double seconds) {
    for (int i = 0; i < DI_SPEC_COST_WINDOW; i++)
        assert_true(di_spec_cost_record(cost, rows, 0, seconds));
}

/* All that the floors say is true. */
static void measure_floors(bench *b) {
    for (int64_t rows = 1; rows <= ROWS; rows++)
        measure(b->core.spec.verify, rows, 1 + 0.5 * (double)rows);
    for (int64_t n = 1; n <= BATCH; n++) measure(b->core.spec.draft, n, 0.25 * (double)n);
}

/* ---- What is tried ---- */

/* One sequence: 1.5 s without drafts, 3.5 with all, 0.25 for the pass; half of 2.25 s is worth 0.75
 * tokens at 1 in 1.5 s. */
static void test_promising_drafts_are_tried(void **state) {
    (void)state;
    for (int plain_known = 0; plain_known < 2; plain_known++) {
        bench b;
        open_bench(&b, ROWS);
        if (plain_known) measure(b.core.spec.verify, 1, 1.5);
        static const double more[BLOCK] = {0.5, 0.16, 0.1, 0}, less[BLOCK] = {0.5, 0.14, 0.1, 0};
        set_sequences(&b, 1, more, BLOCK);
        assert_int_equal(core__spec_plan(&b.core, 1, ROWS - 1, 0), BLOCK);
        set_sequences(&b, 1, less, BLOCK);
        assert_int_equal(core__spec_plan(&b.core, 1, ROWS - 1, 0), 0);
        close_bench(&b);
    }
}

/* ---- Beside prompts ---- */

/* Steps of up to 8 rows take a second, each row more another tenth; nothing for the draft pass. */
static void measure_stairs(bench *b) {
    for (int64_t rows = 1; rows <= ROWS; rows++)
        measure(b->core.spec.verify, rows, rows <= 8 ? 1 : 1 + 0.1 * (double)(rows - 8));
    measure(b->core.spec.draft, 1, 1e-6);
}

/* Four drafts bring 2.1 tokens more in the same second: 3.1 a second, so that a row that takes a tenth
 * of one must bring 0.31. */
static const double promising[BLOCK] = {0.9, 0.6, 0.4, 0.2};

static void test_beside_prompts(void **state) {
    (void)state;
    bench b;
    open_bench(&b, ROWS);
    measure_stairs(&b);
    set_sequences(&b, 1, promising, BLOCK);
    assert_int_equal(core__spec_plan(&b.core, 1, ROWS - 1, 0), 4);
    assert_int_equal(core__spec_plan(&b.core, 1, ROWS - 1, 3), 4); /* 8 rows in all */
    assert_int_equal(core__spec_plan(&b.core, 1, ROWS - 1, 4), 3); /* the fourth would be a ninth */
    assert_int_equal(core__spec_plan(&b.core, 1, ROWS - 1, 9), 3); /* 0.9, 0.6 and 0.4 pay */
    for (int64_t rows = 1; rows <= ROWS; rows++) /* prompts' rows cost, drafts' do not */
        measure(b.core.spec.verify, rows, rows <= 8 ? 1 : 3);
    assert_int_equal(core__spec_plan(&b.core, 1, ROWS - 1, 9), 4);
    close_bench(&b);
}

/* A step beside prompts that took so long. */
static void time_mixed(bench *b, int32_t rows, double seconds) {
    const core__step step = {.n_blocks = 1, .n_rows = rows - 1, .end = seconds};
    b->core.spec.mixed_row_s = 0;
    core__spec_time(&b->core, &step);
}

/* Where the step is full a draft takes a prompt's row, and costs what such a row does; but only where
 * no rows are left over. */
static void test_full_steps(void **state) {
    (void)state;
    bench b;
    open_bench(&b, ROWS);
    for (int64_t rows = 1; rows <= ROWS; rows++) measure(b.core.spec.verify, rows, 1);
    measure(b.core.spec.draft, 1, 1e-6);
    set_sequences(&b, 1, promising, BLOCK);
    /* 0.25 s a row: worth 0.78 tokens. By itself only the first draft pays, of what is left all do. */
    time_mixed(&b, ROWS, 0.25 * ROWS);
    assert_int_equal(core__spec_plan(&b.core, 1, BLOCK, 1000), 1);
    assert_int_equal(core__spec_plan(&b.core, 1, BLOCK, ROWS - 1), 1);
    assert_int_equal(core__spec_plan(&b.core, 1, BLOCK, ROWS - 1 - 2), 2);
    assert_int_equal(core__spec_plan(&b.core, 1, BLOCK, ROWS - 1 - 3), 3);
    assert_int_equal(core__spec_plan(&b.core, 1, BLOCK, ROWS - 1 - 4), 4);
    /* 0.3 s: 0.93 tokens. 0.05 s: 0.155. */
    time_mixed(&b, ROWS, 0.3 * ROWS);
    assert_int_equal(core__spec_plan(&b.core, 1, BLOCK, 1000), 0);
    assert_int_equal(core__spec_plan(&b.core, 1, BLOCK, ROWS - 1 - 3), 3);
    time_mixed(&b, ROWS, 0.05 * ROWS);
    assert_int_equal(core__spec_plan(&b.core, 1, BLOCK, 1000), 4);
    close_bench(&b);
}

/* ---- Probes ---- */

static const double poor[BLOCK] = {0.1, 0.01, 0, 0};

/* Steps of n sequences that had drafts, out of so many. */
static int32_t count_probes(bench *b, int32_t n, int32_t most, int32_t room, int32_t steps) {
    int32_t probes = 0;
    set_sequences(b, n, poor, most);
    b->core.spec.probe = (di_spec_probe){0};
    for (int32_t i = 0; i < steps; i++) {
        int32_t verified = core__spec_plan(&b->core, n, room, 0);
        assert_true(verified == 0 || verified == (n * most < room ? n * most : room));
        probes += verified > 0;
    }
    return probes;
}

static void test_probes(void **state) {
    (void)state;
    enum { SHARE = DI_SPEC_PROBE_DIVISOR, STEPS = 50 * SHARE };
    bench b;
    open_bench(&b, ROWS);
    measure_floors(&b);
    /* Two sequences: 2 s a step, 4.5 more for a probe. */
    assert_int_equal(count_probes(&b, 2, BLOCK, ROWS - 2, STEPS), STEPS / (9 * SHARE / 4));
    /* Half of the drafts is as few as may be: 2.5 s. */
    assert_int_equal(count_probes(&b, 2, BLOCK / 2, ROWS - 2, STEPS), STEPS / (5 * SHARE / 4));
    assert_int_equal(count_probes(&b, 2, BLOCK / 2 - 1, ROWS - 2, STEPS), 0);
    /* It is the answers' ends that forbid it, not that rows are short: 1 s. */
    assert_int_equal(count_probes(&b, 2, BLOCK, 1, STEPS), STEPS / (SHARE / 2));
    assert_int_equal(count_probes(&b, 2, BLOCK / 2 - 1, 1, STEPS), 0);
    close_bench(&b);
}

/* ---- What results teach ---- */

static void learn(bench *b, core__sequence *s, const float *confidence, double *now) {
    di_spec_survivals(b->core.spec.calibration, s->law, confidence, BLOCK, now);
    core__spec_learn(&b->core, s, &(core__lesson){confidence, 1, 0, 0, BLOCK});
}

static void expect_moved(const core__sequence *s, double *want, const double *now, double kept) {
    for (int32_t k = 0; k < BLOCK; k++) {
        want[k] = kept * want[k] + (1 - kept) * now[k];
        assert_true(fabs(s->survival[k] - want[k]) < 1e-12);
    }
}

/* The first block counts as much as what was assumed, a later one a third; behind steps without
 * drafts it counts as so many blocks more. */
static void test_survivals_move(void **state) {
    (void)state;
    static const float good[BLOCK] = {3, 2, 2, 1}, bad[BLOCK] = {-1, -2, 0, 1};
    bench b;
    double want[BLOCK] = {1, 1, 1, 1}, now[BLOCK];
    open_bench(&b, ROWS);
    set_sequences(&b, 1, want, BLOCK);
    core__sequence *s = &b.sequences[0];
    core__spec_pass(s); /* nothing was learned that could grow old */
    core__spec_pass(s);
    learn(&b, s, bad, now);
    assert_true(now[0] < 0.5);
    expect_moved(s, want, now, 0.5);
    learn(&b, s, good, now);
    assert_true(now[0] > 0.8);
    expect_moved(s, want, now, 2.0 / 3);
    learn(&b, s, bad, now);
    expect_moved(s, want, now, 2.0 / 3);
    for (int i = 0; i < 3; i++) core__spec_pass(s);
    learn(&b, s, good, now);
    expect_moved(s, want, now, pow(2.0 / 3, 4));
    learn(&b, s, good, now);
    expect_moved(s, want, now, 2.0 / 3);
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_promising_drafts_are_tried),
        cmocka_unit_test(test_beside_prompts),
        cmocka_unit_test(test_full_steps),
        cmocka_unit_test(test_probes),
        cmocka_unit_test(test_survivals_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
