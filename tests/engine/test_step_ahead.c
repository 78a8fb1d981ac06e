/* Steps run ahead where that saves more than what runs past ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>

#include "engine/step_ahead.h"

static void test_first_measures(void **state) {
    (void)state;
    di_ahead a;
    di_ahead_init(&a);
    assert_false(di_ahead_pays(&a, 4, 1e-3)); /* the gap is not known */
    di_ahead_gap(&a, NAN, 1e-3);
    di_ahead_gap(&a, -1, 1e-3);
    assert_false(di_ahead_pays(&a, 4, 1e-3));
    di_ahead_gap(&a, 1e-5, 1e-3);
    assert_true(di_ahead_pays(&a, 4, 1e-3)); /* nobody has ended */
}

/* One of 8 blocks ends: with blocks of 1 ms the waste is a whole block a step. */
static void test_ends(void **state) {
    (void)state;
    di_ahead a;
    di_ahead_init(&a);
    di_ahead_gap(&a, 1e-4, 1e-2);
    for (int i = 0; i < 300; i++) di_ahead_ends(&a, 8, 1);
    assert_true(fabs(a.end_share - 0.125) < 1e-3);
    assert_false(di_ahead_pays(&a, 8, 1e-3));
    assert_true(di_ahead_pays(&a, 8, 9e-5)); /* rows that cost next to nothing */
    for (int i = 0; i < 300; i++) di_ahead_ends(&a, 8, 0);
    assert_true(di_ahead_pays(&a, 8, 1e-3));
    di_ahead_ends(&a, 0, 0); /* a step of prompts alone tells nothing */
    assert_true(a.end_share >= 0);
}

static void test_looks_again(void **state) {
    (void)state;
    di_ahead a;
    di_ahead_init(&a);
    di_ahead_gap(&a, 1e-4, 1e-2);
    for (int i = 0; i < DI_AHEAD_LOOK_EVERY; i++) assert_true(di_ahead_pays(&a, 1, 1e-3));
    assert_false(di_ahead_pays(&a, 1, 1e-3));
    assert_true(di_ahead_pays(&a, 1, 1e-3));
}

static void test_disturbed(void **state) {
    (void)state;
    di_ahead a;
    di_ahead_init(&a);
    di_ahead_gap(&a, 5.0, 1e-3); /* the processor was elsewhere */
    assert_true(a.gap_s == 1e-3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_measures),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_looks_again),
        cmocka_unit_test(test_disturbed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
