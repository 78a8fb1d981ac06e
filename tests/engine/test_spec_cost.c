/* The step-cost table: floors, medians against a sort, and the curve through them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/spec_cost.h"
#include "support/spec_support.h"

static di_spec_cost cost; /* large; each test starts it anew */

/* 1 ms of weights, 0.1 ms a row: 1.1, 1.2, 1.3 ms ... in class 0. */
static const di_spec_floor linear_floor = {.dense_bytes = 1e6, .row_bytes = 1e5, .bandwidth = 1e9};

static void expect_near(double got, double want) {
    if (!(fabs(got - want) <= 1e-6 * fabs(want))) fail_msg("got %.9g, want %.9g", got, want);
}

static void record(int64_t rows, int32_t context_class, double seconds, int times) {
    for (int i = 0; i < times; i++)
        assert_true(di_spec_cost_record(&cost, rows, context_class, seconds));
}

/* ---- Floors ---- */

static void test_floor(void **state) {
    (void)state;
    di_spec_floor floor = {.dense_bytes = 100,
                           .expert_bytes = 64,
                           .expert_used = 0.25,
                           .row_bytes = 1,
                           .context_bytes = 0.5,
                           .row_flops = 2,
                           .bandwidth = 10,
                           .peak = 1,
                           .overhead = 3};
    /* 2 rows: 100 + 64 (1 - 0.75^2) + 2 (1 + 0.5 * 4) = 134 bytes: 13.4 s; 4 flops: 4 s. */
    expect_near(di_spec_floor_seconds(&floor, 2, 4), 3 + 13.4);
    floor.peak = 0.1; /* 40 s */
    expect_near(di_spec_floor_seconds(&floor, 2, 4), 43);
    /* Experts of many rows: all of them, once. */
    floor.peak = 1e9;
    expect_near(di_spec_floor_seconds(&floor, 1000, 0), 3 + (164 + 1000) / 10.0);
    di_spec_floor nothing = {.dense_bytes = NAN, .row_bytes = -5};
    expect_near(di_spec_floor_seconds(&nothing, 2, NAN) + 1, 1);
    di_spec_cost_init(&cost, &nothing); /* still something that may be divided by */
    assert_true(di_spec_cost_seconds(&cost, 0, 1) > 0);
}

static void test_seeds(void **state) {
    (void)state;
    di_spec_floor floor = linear_floor;
    di_spec_cost_init(&cost, &floor);
    expect_near(di_spec_cost_seconds(&cost, 0, 1), 1.1e-3);
    expect_near(di_spec_cost_seconds(&cost, 7, 64), 7.4e-3);
    floor.context_bytes = 100; /* middle of class 0: 512 tokens; of class 2: 3072 */
    di_spec_cost_init(&cost, &floor);
    expect_near(di_spec_cost_seconds(&cost, 0, 1), 1.1e-3 + 512 * 1e-7);
    expect_near(di_spec_cost_seconds(&cost, 2, 3), 1.3e-3 + 3 * 3072 * 1e-7);
}

/* ---- Knots and classes ---- */

static void test_knots(void **state) {
    (void)state;
    for (int64_t rows = 1; rows <= DI_SPEC_COST_MAX_ROWS; rows++) {
        int32_t knot = di_spec_cost_knot(rows);
        assert_in_range(knot, 0, DI_SPEC_COST_KNOTS - 1);
        assert_true(di_spec_cost_knot_rows(knot) >= rows);
        assert_true(knot == 0 || di_spec_cost_knot_rows(knot - 1) < rows);
        assert_true(rows > 64 || di_spec_cost_knot_rows(knot) == rows);
        assert_true((double)di_spec_cost_knot_rows(knot) < (double)rows * (1 + 1.0 / 16));
    }
    assert_int_equal(di_spec_cost_knot_rows(DI_SPEC_COST_KNOTS - 1), DI_SPEC_COST_MAX_ROWS);
    static const struct {
        double context;
        int32_t want;
    } cases[] = {{0, 0},  {1023.5, 0}, {1024, 1},  {2047, 1},    {2048, 2},
                 {-1, 0}, {65535, 6},  {65536, 7}, {1048576, 7}, {NAN, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(di_spec_cost_class(cases[i].context), cases[i].want);
}

/* ---- Medians ---- */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the last 15 of what was recorded, by qsort. */
static void check_medians(uint64_t seed) {
    spec_random random = {.seed = seed};
    double all[60];
    int32_t n = 1 + spec_below(&random, 60);
    int64_t rows = 1 + spec_below(&random, 200);
    di_spec_cost_init(&cost, &linear_floor);
    for (int32_t i = 0; i < n; i++) {
        all[i] = (double)(float)(1e-3 * (1 + spec_below(&random, 20))); /* ties too */
        SPEC_REQUIRE(di_spec_cost_record(&cost, rows, 3, all[i]));
        double last[DI_SPEC_COST_WINDOW];
        int32_t held = i + 1 < DI_SPEC_COST_WINDOW ? i + 1 : DI_SPEC_COST_WINDOW;
        memcpy(last, all + i + 1 - held, (size_t)held * sizeof *last);
        qsort(last, (size_t)held, sizeof *last, compare_doubles);
        double want = 0.5 * (last[(held - 1) / 2] + last[held / 2]);
        SPEC_REQUIRE(cost.cells[3][di_spec_cost_knot(rows)].median == want);
        double got = di_spec_cost_seconds(&cost, 3, rows);
        if (held >= DI_SPEC_COST_MIN) SPEC_REQUIRE(fabs(got - want) < 1e-12);
        if (held < DI_SPEC_COST_MIN) {
            double seed_s = 1e-3 + 1e-4 * (double)di_spec_cost_knot_rows(di_spec_cost_knot(rows));
            SPEC_REQUIRE(fabs(got - seed_s) < 1e-12);
        }
    }
}

static void test_medians(void **state) {
    (void)state;
    spec_each_seed(60, check_medians);
}

static void test_refuses(void **state) {
    (void)state;
    di_spec_cost_init(&cost, &linear_floor);
    static di_spec_cost before;
    before = cost;
    const double bad[] = {NAN, INFINITY, -INFINITY, 0, -1, 1e-12, 4000};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(di_spec_cost_record(&cost, 1, 0, bad[i]));
    assert_false(di_spec_cost_record(&cost, 0, 0, 1));
    assert_false(di_spec_cost_record(&cost, -5, 0, 1));
    assert_false(di_spec_cost_record(&cost, DI_SPEC_COST_MAX_ROWS + 1, 0, 1));
    assert_false(di_spec_cost_record(&cost, 1, -1, 1));
    assert_false(di_spec_cost_record(&cost, 1, DI_SPEC_COST_CLASSES, 1));
    assert_memory_equal(&cost, &before, sizeof cost);
}

/* ---- The curve ---- */

static void test_interpolation(void **state) {
    (void)state;
    di_spec_cost_init(&cost, &linear_floor);
    record(4, 0, 2.8e-3, 3);                                /* twice the floor of 1.4 ms */
    expect_near(di_spec_cost_seconds(&cost, 0, 2), 2.4e-3); /* before the first: the same ratio */
    expect_near(di_spec_cost_seconds(&cost, 0, 4), 2.8e-3);
    expect_near(di_spec_cost_seconds(&cost, 0, 14), 4.8e-3); /* after the last */
    record(8, 0, 4.0e-3, 3);
    expect_near(di_spec_cost_seconds(&cost, 0, 5), 3.1e-3); /* between: as the floor goes */
    expect_near(di_spec_cost_seconds(&cost, 0, 7), 3.7e-3);
    record(6, 0, 3.9e-3, 2); /* twice is not enough to count */
    expect_near(di_spec_cost_seconds(&cost, 0, 6), 3.4e-3);
    record(6, 0, 3.9e-3, 1); /* a stair stays a stair */
    expect_near(di_spec_cost_seconds(&cost, 0, 6), 3.9e-3);
    expect_near(di_spec_cost_seconds(&cost, 0, 7), 3.95e-3);
    /* Beyond the table: in proportion to rows. */
    double last = di_spec_cost_seconds(&cost, 0, DI_SPEC_COST_MAX_ROWS);
    expect_near(di_spec_cost_seconds(&cost, 0, 2 * DI_SPEC_COST_MAX_ROWS), 2 * last);
    /* Where the floor is flat, evenly in rows. */
    di_spec_floor flat = {.overhead = 1e-3};
    di_spec_cost_init(&cost, &flat);
    record(2, 0, 1e-3, 3);
    record(6, 0, 2e-3, 3);
    expect_near(di_spec_cost_seconds(&cost, 0, 3), 1.25e-3);
}

/* Two medians out of order become their mean, by weight. */
static void test_order(void **state) {
    (void)state;
    di_spec_cost_init(&cost, &linear_floor);
    record(4, 0, 5e-3, 3);
    record(8, 0, 3e-3, 9);
    for (int64_t rows = 4; rows <= 8; rows++)
        expect_near(di_spec_cost_seconds(&cost, 0, rows), 3.5e-3);
    record(12, 0, 9e-3, 3);
    expect_near(di_spec_cost_seconds(&cost, 0, 12), 9e-3);
}

static void test_classes(void **state) {
    (void)state;
    di_spec_floor floor = linear_floor;
    floor.context_bytes = 10;
    di_spec_cost_init(&cost, &floor);
    double seed2 = di_spec_cost_seconds(&cost, 2, 5), seed4 = di_spec_cost_seconds(&cost, 4, 5);
    record(5, 2, 3 * seed2, 3);
    expect_near(di_spec_cost_seconds(&cost, 4, 5), 3 * seed4); /* borrowed, by the floors' ratio */
    record(5, 6, 1e-1, 3); /* as near as class 2: the lower serves */
    expect_near(di_spec_cost_seconds(&cost, 4, 5), 3 * seed4);
    record(5, 4, 7e-3, 3); /* its own */
    expect_near(di_spec_cost_seconds(&cost, 4, 5), 7e-3);
    expect_near(di_spec_cost_seconds(&cost, 2, 5), 3 * seed2);
    assert_true(di_spec_cost_seconds(&cost, -1, 5) == di_spec_cost_seconds(&cost, 0, 5));
    assert_true(di_spec_cost_seconds(&cost, 99, 5) == di_spec_cost_seconds(&cost, 7, 5));
}

/* Whatever was measured, more rows never cost less, and a fill is its single estimates. */
static void check_monotonic(uint64_t seed) {
    spec_random random = {.seed = seed};
    di_spec_floor floor = {.dense_bytes = 1e6 * spec_uniform(&random),
                           .expert_bytes = 1e7 * spec_uniform(&random),
                           .expert_used = spec_uniform(&random),
                           .row_bytes = 1e5 * spec_below(&random, 2),
                           .context_bytes = 10 * spec_uniform(&random),
                           .row_flops = 1e6,
                           .bandwidth = 1e9,
                           .peak = 1e10};
    static double curve[700];
    enum { N = sizeof curve / sizeof *curve };
    di_spec_cost_init(&cost, &floor);
    for (int32_t i = spec_below(&random, 40); i > 0; i--) {
        int64_t rows = 1 + spec_below(&random, spec_below(&random, 2) ? 64 : 600);
        int32_t context_class = spec_below(&random, DI_SPEC_COST_CLASSES);
        record(rows, context_class, 1e-3 * exp(2 * spec_normal(&random)),
               1 + spec_below(&random, 6));
    }
    for (int32_t c = 0; c < DI_SPEC_COST_CLASSES; c++) {
        di_spec_cost_fill(&cost, c, 1, N, curve);
        for (int32_t i = 0; i < N; i++) {
            SPEC_REQUIRE(isfinite(curve[i]) && curve[i] > 0);
            SPEC_REQUIRE(i == 0 || curve[i] >= curve[i - 1]);
        }
        int32_t first = 1 + spec_below(&random, N);
        double one = di_spec_cost_seconds(&cost, c, first);
        SPEC_REQUIRE(fabs(one - curve[first - 1]) <= 1e-12 * one);
    }
}

static void test_monotonic(void **state) {
    (void)state;
    spec_each_seed(100, check_monotonic);
}

/* A quarter more or less, in any class, once a median counts. */
static void test_known(void **state) {
    (void)state;
    di_spec_cost_init(&cost, &linear_floor);
    assert_false(di_spec_cost_known(&cost, 1));
    for (int32_t i = 0; i < DI_SPEC_COST_MIN; i++) {
        assert_false(di_spec_cost_known(&cost, 40));
        assert_true(di_spec_cost_record(&cost, 40, 3, 0.01));
    }
    const int32_t near_ones[] = {32, 33, 40, 49, 50}, far_ones[] = {1, 31, 51, 200, 16384};
    for (int32_t i = 0; i < 5; i++) {
        assert_true(di_spec_cost_known(&cost, near_ones[i]));
        assert_false(di_spec_cost_known(&cost, far_ones[i]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floor),   cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_knots),   cmocka_unit_test(test_medians),
        cmocka_unit_test(test_refuses), cmocka_unit_test(test_interpolation),
        cmocka_unit_test(test_order),   cmocka_unit_test(test_classes),
        cmocka_unit_test(test_known),   cmocka_unit_test(test_monotonic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
