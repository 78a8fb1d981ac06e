/* The schedule: known answers, the optimum by brute force, what it may not look at. Seeds:
 * spec_support.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/spec_schedule.h"
#include "support/spec_support.h"

enum { MAX_N = 8, MAX_BLOCK = 6, MAX_K = MAX_N * MAX_BLOCK };

typedef struct world {
    spec_random random;
    double survival[MAX_N * MAX_BLOCK], step_s[MAX_K + 1];
    int32_t limit[MAX_N], lengths[MAX_N], heap[MAX_N];
    di_spec_batch batch;
    di_spec_costs costs;
    int32_t sum_of_limits;
} world;

/* Survivals of request r from position `from` on, below what stands before it. With `coarse`, of
 * few values, so that there are ties. */
static void random_survivals(world *w, int32_t r, int32_t from, bool coarse) {
    double *row = w->survival + r * w->batch.block;
    for (int32_t j = from; j < w->batch.block; j++) {
        double a = coarse ? spec_below(&w->random, 3) / 2.0 : spec_uniform(&w->random);
        row[j] = (j > 0 ? row[j - 1] : 1) * a;
    }
}

static void random_world(world *w, uint64_t seed, int32_t max_n, int32_t max_block) {
    memset(w, 0, sizeof *w);
    w->random.seed = seed;
    w->batch = (di_spec_batch){.survival = w->survival, .limit = w->limit};
    w->batch.n = 1 + spec_below(&w->random, max_n);
    w->batch.block = 1 + spec_below(&w->random, max_block);
    bool coarse = spec_below(&w->random, 2) == 0;
    for (int32_t r = 0; r < w->batch.n; r++) {
        random_survivals(w, r, 0, coarse);
        w->limit[r] = spec_below(&w->random, w->batch.block + 1);
        w->sum_of_limits += w->limit[r];
    }
    /* A row costs 0 to 1 tokens at the rate without drafts, so that every choice is a close one. */
    double slope = spec_uniform(&w->random) / w->batch.n;
    double jag = spec_below(&w->random, 2) ? 0.3 : 0;
    for (int32_t k = 0; k <= MAX_K; k++)
        w->step_s[k] = 1 + slope * k + jag * spec_uniform(&w->random);
    w->costs = (di_spec_costs){.step_s = w->step_s, .max_drafts = MAX_K};
    if (spec_below(&w->random, 3) == 0) w->costs.max_drafts = spec_below(&w->random, 10);
    w->costs.draft_s = spec_below(&w->random, 2) ? 0.3 * spec_uniform(&w->random) : 0;
    w->costs.tokens = w->batch.n + (spec_below(&w->random, 4) == 0 ? 3.5 : 0);
}

static int32_t sum(const int32_t *values, int32_t n) {
    int32_t total = 0;
    for (int32_t i = 0; i < n; i++) total += values[i];
    return total;
}

static double value_of(const world *w, const int32_t *lengths) {
    double total = 0;
    for (int32_t r = 0; r < w->batch.n; r++) {
        for (int32_t j = 0; j < lengths[r]; j++) total += w->survival[r * w->batch.block + j];
    }
    return total;
}

/* Tokens per second with so many drafts; lengths and heap: scratch. */
static double rate_of(const di_spec_batch *batch, const di_spec_costs *costs, int32_t drafts,
                      int32_t *lengths, int32_t *heap) {
    double tokens = costs->tokens;
    di_allot_choose(batch, drafts, lengths, heap);
    for (int32_t r = 0; r < batch->n; r++) {
        for (int32_t j = 0; j < lengths[r]; j++) tokens += di_allot_survival(batch, r, j);
    }
    return tokens / (costs->step_s[drafts] + (drafts > 0 ? costs->draft_s : 0));
}

/* ---- Known answers ---- */

/* DSpark paper, appendix A: costs 1, 2, 1/0.45 seconds; c_1 = 0.8; c_2 = 0.9 behind A, 0 behind B.
 */
static const double appendix_s[3] = {1, 1 / 0.5, 1 / 0.45};
static const double appendix_survivals[2][2] = {{0.8, 0.8 * 0.9}, {0.8, 0}};

static void test_appendix(void **state) {
    (void)state;
    for (int first = 0; first < 2; first++) {
        di_spec_batch batch = {.n = 1, .block = 2, .survival = appendix_survivals[first]};
        di_spec_costs costs = {.step_s = appendix_s, .max_drafts = 2, .tokens = 1};
        int32_t length, heap;
        assert_int_equal(di_spec_early_stop(&batch, &costs, &length, &heap), 0);
        assert_int_equal(length, 0);
        /* Given the same survivals the look-ahead follows the token: 2 behind A, 0 behind B. */
        di_spec_plan plan = di_spec_choose(&batch, &costs, &length, &heap);
        assert_int_equal(plan.drafts, first == 0 ? 2 : 0);
        double rate = rate_of(&batch, &costs, plan.drafts, &length, &heap);
        assert_true(fabs(rate - (first == 0 ? 1.134 : 1.0)) < 1e-12);
    }
    /* The two rates that the early stop compares: 1.0, then 1.8 * 0.5 = 0.9. */
    double one_draft[2] = {1, 1 / (0.5 * (1 / 0.9 + 1e-9))}; /* a hair above 1.0: taken */
    di_spec_batch batch = {.n = 1, .block = 2, .survival = appendix_survivals[0]};
    di_spec_costs costs = {.step_s = one_draft, .max_drafts = 1, .tokens = 1};
    int32_t length, heap;
    assert_int_equal(di_spec_early_stop(&batch, &costs, &length, &heap), 1);
}

/* Costs flat: everything. Costs in proportion to rows: nothing below survival 1. */
static void test_extremes(void **state) {
    (void)state;
    double survival[] = {0.9, 0.5, 0.2, 0.8, 0.7, 0.6}, flat[7], linear[7];
    for (int k = 0; k < 7; k++) flat[k] = 1, linear[k] = 2 + k;
    di_spec_batch batch = {.n = 2, .block = 3, .survival = survival};
    di_spec_costs costs = {.step_s = flat, .max_drafts = 6, .tokens = 2};
    int32_t lengths[2], heap[2];
    assert_int_equal(di_spec_early_stop(&batch, &costs, lengths, heap), 6);
    di_spec_plan plan = di_spec_choose(&batch, &costs, lengths, heap);
    assert_int_equal(plan.mode, DI_SPEC_FIXED);
    assert_int_equal(plan.drafts, 6);
    assert_true(fabs(rate_of(&batch, &costs, 6, lengths, heap) - 5.7) < 1e-12);
    costs.step_s = linear;
    assert_int_equal(di_spec_early_stop(&batch, &costs, lengths, heap), 0);
    plan = di_spec_choose(&batch, &costs, lengths, heap);
    assert_int_equal(plan.mode, DI_SPEC_OFF);
    assert_int_equal(plan.drafts, 0);
    /* A draft pass that costs more than it brings turns speculation off. */
    costs.step_s = flat;
    costs.draft_s = 1.9; /* 5.7 tokens in 2.9 s, against 2 in 1 s */
    assert_int_equal(di_spec_choose(&batch, &costs, lengths, heap).mode, DI_SPEC_OFF);
    costs.draft_s = 1.8;
    assert_int_equal(di_spec_choose(&batch, &costs, lengths, heap).mode, DI_SPEC_FIXED);
}

/* A stair: rows up to 4 cost the same, then a jump that only many drafts repay. */
static void test_stairs(void **state) {
    (void)state;
    double survival[] = {0.9, 0.8, 0.7, 0.6, 0.5, 0.4},
           step_s[] = {1, 1.6, 1.6, 1.6, 2.4, 2.4, 2.4};
    di_spec_batch batch = {.n = 1, .block = 6, .survival = survival};
    di_spec_costs costs = {.step_s = step_s, .max_drafts = 6, .tokens = 1};
    int32_t length, heap;
    /* 1; 1.19, 1.69, 2.13; 1.67, 1.88, 2.04: the third is the best. */
    di_spec_plan plan = di_spec_choose(&batch, &costs, &length, &heap);
    assert_int_equal(plan.mode, DI_SPEC_SCHEDULED);
    assert_int_equal(plan.drafts, 3);
    assert_int_equal(di_spec_early_stop(&batch, &costs, &length, &heap), 3);
    step_s[1] = 2; /* a first step up: 0.95. The early stop stays below it, the plan does not. */
    assert_int_equal(di_spec_early_stop(&batch, &costs, &length, &heap), 0);
    assert_int_equal(di_spec_choose(&batch, &costs, &length, &heap).drafts, 3);
}

static void test_ties(void **state) {
    (void)state;
    double survival[] = {1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.5, 0.5, 0.5};
    di_spec_batch batch = {.n = 3, .block = 3, .survival = survival};
    int32_t lengths[3], heap[3];
    static const int32_t want[][3] = {/* smaller position first, then the lower request */
                                      {0, 0, 0}, {1, 0, 0}, {1, 1, 0}, {1, 1, 1}, {2, 1, 1},
                                      {2, 2, 1}, {2, 2, 2}, {3, 2, 2}, {3, 2, 3}, {3, 3, 3}};
    for (int32_t budget = 0; budget < 10; budget++) {
        assert_int_equal(di_allot_choose(&batch, budget, lengths, heap), budget);
        assert_memory_equal(lengths, want[budget], sizeof lengths);
    }
    assert_int_equal(di_allot_choose(&batch, 100, lengths, heap), 9);
    assert_int_equal(di_allot_choose(&batch, -1, lengths, heap), 0);
}

/* Beside prompts a draft pays when it brings tokens faster than `rate` in the seconds that it adds; what
 * the step takes anyway does not count, nor what it yields. */
static void test_rate(void **state) {
    (void)state;
    double survival[] = {0.9, 0.6, 0.3}, dear[] = {10, 10.5, 11, 11.5}, cheap[] = {1, 1.5, 2, 2.5};
    di_spec_batch batch = {.n = 1, .block = 3, .survival = survival};
    di_spec_costs costs = {.step_s = dear, .max_drafts = 3, .tokens = 1};
    int32_t length, heap;
    /* By its own rate, 0.1 tokens a second without drafts, the long step takes them all. */
    assert_int_equal(di_spec_choose(&batch, &costs, &length, &heap).drafts, 3);
    /* Half a second each: at 1 token a second worth 0.9, 0.6 but not 0.3. */
    costs.rate = 1;
    di_spec_plan plan = di_spec_choose(&batch, &costs, &length, &heap);
    assert_int_equal(plan.drafts, 2);
    assert_int_equal(plan.mode, DI_SPEC_SCHEDULED);
    assert_true(fabs(plan.rate - 2.5 / 11) < 1e-12);
    costs.step_s = cheap; /* the same differences */
    plan = di_spec_choose(&batch, &costs, &length, &heap);
    assert_int_equal(plan.drafts, 2);
    assert_true(fabs(plan.rate - 2.5 / 2) < 1e-12);
    /* The pass itself must be earned, too: 1.5 tokens less a second for rows. */
    costs.draft_s = 0.49;
    assert_int_equal(di_spec_choose(&batch, &costs, &length, &heap).drafts, 2);
    costs.draft_s = 0.5;
    plan = di_spec_choose(&batch, &costs, &length, &heap);
    assert_int_equal(plan.mode, DI_SPEC_OFF);
    assert_int_equal(plan.drafts, 0);
    assert_true(fabs(plan.rate - 1) < 1e-12);
    costs.rate = 0.5; /* where tokens are slow, even the third */
    plan = di_spec_choose(&batch, &costs, &length, &heap);
    assert_int_equal(plan.mode, DI_SPEC_FIXED);
}

/* What brings nothing is left: equal rates mean fewer drafts. */
static void test_equal_rates(void **state) {
    (void)state;
    double survival[] = {1, 1, 1}, step_s[] = {1, 2, 3, 4};
    di_spec_batch batch = {.n = 1, .block = 3, .survival = survival};
    di_spec_costs costs = {.step_s = step_s, .max_drafts = 3, .tokens = 1};
    int32_t length, heap;
    assert_int_equal(di_spec_early_stop(&batch, &costs, &length, &heap), 0);
    assert_int_equal(di_spec_choose(&batch, &costs, &length, &heap).mode, DI_SPEC_OFF);
    step_s[1] = 1.5;
    step_s[2] = 2.25; /* 4/3 twice, then 1 */
    assert_int_equal(di_spec_early_stop(&batch, &costs, &length, &heap), 1);
    assert_int_equal(di_spec_choose(&batch, &costs, &length, &heap).drafts, 1);
}

/* All that fits is not `fixed` when more would be worth it: survivals decide which. */
static void test_row_budget(void **state) {
    (void)state;
    double survival[] = {0.2, 0.1, 0.9, 0.8}, flat[] = {1, 1, 1, 1, 1};
    di_spec_batch batch = {.n = 2, .block = 2, .survival = survival};
    di_spec_costs costs = {.step_s = flat, .max_drafts = 2, .tokens = 2};
    int32_t lengths[2], heap[2];
    di_spec_plan plan = di_spec_choose(&batch, &costs, lengths, heap);
    assert_int_equal(plan.mode, DI_SPEC_SCHEDULED);
    assert_int_equal(plan.drafts, 2);
    costs.max_drafts = 4;
    assert_int_equal(di_spec_choose(&batch, &costs, lengths, heap).mode, DI_SPEC_FIXED);
}

static void test_limits(void **state) {
    (void)state;
    assert_int_equal(di_spec_limit(5, 0), 0);
    assert_int_equal(di_spec_limit(5, -7), 0);
    assert_int_equal(di_spec_limit(5, 1), 0); /* the target's own token is the last */
    assert_int_equal(di_spec_limit(5, 2), 1);
    assert_int_equal(di_spec_limit(5, 5), 4);
    assert_int_equal(di_spec_limit(5, 6), 5);
    assert_int_equal(di_spec_limit(5, INT64_MAX), 5);
    assert_int_equal(di_spec_limit(0, 9), 0);

    double survival[] = {1, 1, 1, 1, 1, 1};
    int32_t limit[] = {1, 7}, lengths[2], heap[2];
    di_spec_batch batch = {.n = 2, .block = 3, .survival = survival, .limit = limit};
    assert_int_equal(di_allot_choose(&batch, 6, lengths, heap), 4);
    assert_int_equal(lengths[0], 1);
    assert_int_equal(lengths[1], 3);
    limit[0] = limit[1] = -1;
    assert_int_equal(di_allot_choose(&batch, 6, lengths, heap), 0);
    batch.n = 0;
    assert_int_equal(di_allot_choose(&batch, 6, lengths, heap), 0);
}

/* Survivals that are none do no harm. */
static void test_bad_survivals(void **state) {
    (void)state;
    double survival[] = {NAN, 0.9, INFINITY, 7, -3, NAN},
           step_s[] = {1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6};
    di_spec_batch batch = {.n = 2, .block = 3, .survival = survival};
    di_spec_costs costs = {.step_s = step_s, .max_drafts = 6, .tokens = 2};
    int32_t lengths[2], heap[2];
    assert_int_equal(di_allot_choose(&batch, 1, lengths, heap), 1);
    assert_int_equal(lengths[1], 1);
    di_spec_plan plan = di_spec_choose(&batch, &costs, lengths, heap);
    assert_in_range(plan.drafts, 0, 6);
    assert_true(isfinite(rate_of(&batch, &costs, plan.drafts, lengths, heap)));
    assert_in_range(di_spec_early_stop(&batch, &costs, lengths, heap), 0, 6);
}

/* ---- Properties ---- */

static void check_sums(uint64_t seed) {
    static world w;
    random_world(&w, seed, MAX_N, MAX_BLOCK);
    int32_t budget = spec_below(&w.random, MAX_K + 1);
    int32_t want = budget < w.sum_of_limits ? budget : w.sum_of_limits;
    SPEC_REQUIRE(di_allot_choose(&w.batch, budget, w.lengths, w.heap) == want);
    SPEC_REQUIRE(sum(w.lengths, w.batch.n) == want);
    for (int32_t r = 0; r < w.batch.n; r++)
        SPEC_REQUIRE(w.lengths[r] >= 0 && w.lengths[r] <= w.limit[r]);

    di_spec_plan plan = di_spec_choose(&w.batch, &w.costs, w.lengths, w.heap);
    SPEC_REQUIRE(plan.drafts <= w.costs.max_drafts && plan.drafts <= w.sum_of_limits);
    SPEC_REQUIRE((plan.mode == DI_SPEC_OFF) == (plan.drafts == 0));
    SPEC_REQUIRE((plan.mode == DI_SPEC_FIXED) ==
                 (plan.drafts > 0 && plan.drafts == w.sum_of_limits));

    int32_t stopped = di_spec_early_stop(&w.batch, &w.costs, w.lengths, w.heap);
    SPEC_REQUIRE(stopped == sum(w.lengths, w.batch.n) && stopped <= w.costs.max_drafts);
}

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

/* What n drafts are worth that are taken position by position over all requests. */
static double sum_of_fixed(world *w, int32_t n) {
    for (int32_t r = 0; r < w->batch.n; r++) w->lengths[r] = 0;
    for (int32_t j = 0; j < w->batch.block; j++) {
        for (int32_t r = 0; r < w->batch.n && n > 0; r++) {
            if (w->limit[r] > j) w->lengths[r]++, n--;
        }
    }
    return value_of(w, w->lengths);
}

/* The plan is at least as good as off, fixed, and every early stop, for any curve. */
static void check_never_loses(uint64_t seed) {
    static world w;
    random_world(&w, seed, MAX_N, MAX_BLOCK);
    di_spec_plan plan = di_spec_choose(&w.batch, &w.costs, w.lengths, w.heap);
    double rate = rate_of(&w.batch, &w.costs, plan.drafts, w.lengths, w.heap), slack = 1e-12;
    SPEC_REQUIRE(rate >= w.costs.tokens / w.step_s[0] - slack);
    int32_t fixed = smaller(w.costs.max_drafts, w.sum_of_limits);
    SPEC_REQUIRE(rate >=
                 (w.costs.tokens + sum_of_fixed(&w, fixed)) / (w.costs.draft_s + w.step_s[fixed]) -
                     slack);
    int32_t k = di_spec_early_stop(&w.batch, &w.costs, w.lengths, w.heap);
    SPEC_REQUIRE(rate >=
                 (w.costs.tokens + value_of(&w, w.lengths)) / (w.costs.draft_s + w.step_s[k]) -
                     slack);
}

/* Every choice of lengths, by counting through them. */
static void check_optimum(uint64_t seed) {
    static world w;
    random_world(&w, seed, 3, 4);
    di_spec_plan plan = di_spec_choose(&w.batch, &w.costs, w.lengths, w.heap);
    double best = w.costs.tokens / w.step_s[0];
    int32_t tried[MAX_N] = {0};
    for (int32_t r = 0; r < w.batch.n;) {
        int32_t k = sum(tried, w.batch.n);
        if (k <= w.costs.max_drafts) {
            double rate = (w.costs.tokens + value_of(&w, tried)) / (w.costs.draft_s + w.step_s[k]);
            best = fmax(best, rate);
        }
        for (r = 0; r < w.batch.n && tried[r] == w.limit[r]; r++) tried[r] = 0;
        if (r < w.batch.n) tried[r]++;
    }
    double rate = rate_of(&w.batch, &w.costs, plan.drafts, w.lengths, w.heap);
    SPEC_REQUIRE(fabs(rate - best) < 1e-12);
}

/* The same for drafts that must beat a rate by themselves, against the definition. */
static void check_optimum_beside(uint64_t seed) {
    static world w;
    random_world(&w, seed, 3, 4);
    w.costs.rate = 2 * spec_uniform(&w.random) * w.costs.tokens / w.step_s[0];
    di_spec_plan plan = di_spec_choose(&w.batch, &w.costs, w.lengths, w.heap);
    double best = 0, base = w.step_s[0] - w.costs.draft_s;
    int32_t tried[MAX_N] = {0};
    for (int32_t r = 0; r < w.batch.n;) {
        int32_t k = sum(tried, w.batch.n);
        if (k > 0 && k <= w.costs.max_drafts) {
            best = fmax(best, value_of(&w, tried) - w.costs.rate * (w.step_s[k] - base));
        }
        for (r = 0; r < w.batch.n && tried[r] == w.limit[r]; r++) tried[r] = 0;
        if (r < w.batch.n) tried[r]++;
    }
    double value = 0, seconds = w.step_s[plan.drafts] + (plan.drafts > 0 ? w.costs.draft_s : 0);
    di_allot_choose(&w.batch, plan.drafts, w.lengths, w.heap);
    double more = value_of(&w, w.lengths);
    if (plan.drafts > 0) value = more - w.costs.rate * (w.step_s[plan.drafts] - base);
    SPEC_REQUIRE(fabs(value - best) < 1e-12);
    SPEC_REQUIRE((plan.mode == DI_SPEC_OFF) == (plan.drafts == 0));
    SPEC_REQUIRE(fabs(plan.rate - (w.costs.tokens + more) / seconds) < 1e-12 * plan.rate + 1e-12);
}

static int look_aheads; /* of di_spec_choose, which does look: the property can fail */

/* Whether draft k of request r is verified does not depend on what its later drafts look like. */
static void check_no_look_ahead(uint64_t seed) {
    static world w;
    random_world(&w, seed, MAX_N, MAX_BLOCK);
    int32_t budget = spec_below(&w.random, MAX_K), before[3][MAX_N];
    int32_t r = spec_below(&w.random, w.batch.n), from = spec_below(&w.random, w.batch.block);
    di_allot_choose(&w.batch, budget, before[0], w.heap);
    di_spec_early_stop(&w.batch, &w.costs, before[1], w.heap);
    di_spec_plan plan = di_spec_choose(&w.batch, &w.costs, before[2], w.heap);
    di_allot_choose(&w.batch, plan.drafts, before[2], w.heap);
    for (int trial = 0; trial < 8; trial++) {
        random_survivals(&w, r, from, trial % 2 == 0); /* drafts 1 .. from stay */
        di_allot_choose(&w.batch, budget, w.lengths, w.heap);
        for (int32_t k = 1; k <= from; k++)
            SPEC_REQUIRE((w.lengths[r] >= k) == (before[0][r] >= k));
        di_spec_early_stop(&w.batch, &w.costs, w.lengths, w.heap);
        for (int32_t k = 1; k <= from; k++)
            SPEC_REQUIRE((w.lengths[r] >= k) == (before[1][r] >= k));
        plan = di_spec_choose(&w.batch, &w.costs, w.lengths, w.heap);
        di_allot_choose(&w.batch, plan.drafts, w.lengths, w.heap);
        for (int32_t k = 1; k <= from; k++)
            look_aheads += (w.lengths[r] >= k) != (before[2][r] >= k);
    }
}

static void test_sums(void **state) {
    (void)state;
    spec_each_seed(2000, check_sums);
}
static void test_never_loses(void **state) {
    (void)state;
    spec_each_seed(5000, check_never_loses);
}
static void test_optimum(void **state) {
    (void)state;
    spec_each_seed(2000, check_optimum);
}
static void test_optimum_beside(void **state) {
    (void)state;
    spec_each_seed(2000, check_optimum_beside);
}
static void test_no_look_ahead(void **state) {
    (void)state;
    spec_each_seed(2000, check_no_look_ahead);
    print_message("look-aheads of the planted scheduler: %d\n", look_aheads);
    if (getenv("DI_SEED") == NULL) assert_true(look_aheads > 20);
}

/* ---- Probes ---- */

static void test_probe(void **state) {
    (void)state;
    di_spec_probe probe = {0};
    double time = 0, extra = 0;
    int n = 0;
    for (int step = 0; step < 6400; step++) {
        time += 0.01;
        if (!di_spec_probe_due(&probe, 0.01, 0.02)) continue;
        extra += 0.02;
        n++;
        assert_true(extra <= time / DI_SPEC_PROBE_DIVISOR + 0.02);
    }
    int want = 6400 / (2 * DI_SPEC_PROBE_DIVISOR); /* a probe takes two steps' time more */
    assert_in_range(n, want - 1, want + 1);
    /* However long nothing was due, one probe at a time. */
    assert_false(di_spec_probe_due(&probe, 1e6, 1e9));
    assert_true(di_spec_probe_due(&probe, 0.01, 0.02));
    assert_false(di_spec_probe_due(&probe, 0.01, 0.02));
    assert_false(di_spec_probe_due(&probe, NAN, 0.02));
    assert_false(di_spec_probe_due(&probe, 1, NAN));
    assert_true(di_spec_probe_due(&probe, 0.02 * DI_SPEC_PROBE_DIVISOR,
                                  0.02)); /* NaN left nothing behind */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_appendix),    cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_rate),        cmocka_unit_test(test_optimum_beside),
        cmocka_unit_test(test_stairs),      cmocka_unit_test(test_ties),
        cmocka_unit_test(test_equal_rates), cmocka_unit_test(test_row_budget),
        cmocka_unit_test(test_limits),      cmocka_unit_test(test_bad_survivals),
        cmocka_unit_test(test_sums),        cmocka_unit_test(test_never_loses),
        cmocka_unit_test(test_optimum),     cmocka_unit_test(test_no_look_ahead),
        cmocka_unit_test(test_probe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
