/* The ring of steps: which are kept, how the device's clock is set, what a gap is blamed on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/step_trace.h"

static di_trace trace;

static int set_up(void **state) {
    (void)state;
    di_error error;
    return di_trace_init(&trace, 4, &error) == DI_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    di_trace_deinit(&trace);
    return 0;
}

/* The device's clock is 100 s behind; starts and wake-ups take 1 s each. Steps of 10 s. */
static di_step_trace waited_for(uint64_t n, double at) {
    return (di_step_trace){.step = n,
                           .follows = n > 0,
                           .schedule = at,
                           .build = at + 1,
                           .enqueue = at + 2,
                           .enqueued = at + 4,
                           .begin = at + 3 - 100,
                           .end = at + 13 - 100,
                           .wait = at + 4,
                           .deliver = at + 14,
                           .delivered = at + 16};
}

static void test_ring(void **state) {
    (void)state;
    assert_int_equal(di_trace_count(&trace), 0);
    assert_true(di_trace_shift(&trace) == 0);
    for (uint64_t n = 0; n < 7; n++) {
        di_step_trace s = waited_for(n, 20 * (double)n);
        di_trace_add(&trace, &s);
    }
    assert_int_equal(di_trace_count(&trace), 4);
    for (int32_t i = 0; i < 4; i++) assert_int_equal(di_trace_at(&trace, i)->step, 3 + i);
}

static void test_waited_for(void **state) {
    (void)state;
    for (uint64_t n = 0; n < 2; n++) {
        di_step_trace s = waited_for(n, 20 * (double)n);
        di_trace_add(&trace, &s);
    }
    double shift = di_trace_shift(&trace);
    assert_float_equal(shift, 100, 1e-9);
    assert_true(di_trace_gap(&trace, 0, shift).seconds == 0);
    /* From 13 to 23: told at 14, delivered until 16, the caller's until 20. */
    di_gap gap = di_trace_gap(&trace, 1, shift);
    const double want[DI_GAP_PARTS] =
        {[DI_GAP_WAKE] = 1,     [DI_GAP_DELIVER] = 2, [DI_GAP_CALLER] = 4,
         [DI_GAP_SCHEDULE] = 1, [DI_GAP_BUILD] = 1,   [DI_GAP_ENQUEUE] = 1};
    assert_float_equal(gap.seconds, 10, 1e-9);
    assert_float_equal(gap.enqueue_s, 1, 1e-9);
    for (int i = 0; i < DI_GAP_PARTS; i++) assert_float_equal(gap.parts[i], want[i], 1e-9);
}

static void test_no_gap(void **state) {
    (void)state;
    for (uint64_t n = 0; n < 2; n++) {
        di_step_trace s = waited_for(n, 20 * (double)n);
        s.follows = false; /* there was nothing to do */
        di_trace_add(&trace, &s);
    }
    assert_true(di_trace_gap(&trace, 1, 100).seconds == 0);
}

/* Enqueued long before the one in front of it ended: what is between is the stream's own. */
static void test_ahead(void **state) {
    (void)state;
    di_step_trace first = waited_for(0, 0), second = waited_for(1, 4);
    second.ahead = true;
    second.begin = first.end + 0.5;
    second.end = second.begin + 10;
    di_trace_add(&trace, &first);
    di_trace_add(&trace, &second);
    di_gap gap = di_trace_gap(&trace, 1, 100);
    assert_float_equal(gap.seconds, 0.5, 1e-9);
    assert_float_equal(gap.parts[DI_GAP_STREAM], 0.5, 1e-9);
    assert_true(gap.enqueue_s == 0 && gap.parts[DI_GAP_WAKE] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ring, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_waited_for, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_gap, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ahead, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
