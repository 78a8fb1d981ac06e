/* Philox4x32-10 against the known answers of its authors' library, and the numbers drawn from it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/philox.h"

static void expect_words(uint64_t key, uint64_t low, uint64_t high, const uint32_t *want) {
    uint32_t got[4];
    di_philox(key, low, high, got);
    for (int i = 0; i < 4; i++) assert_int_equal(got[i], want[i]);
}

static void test_known_answers(void **state) {
    (void)state;
    expect_words(0, 0, 0, (const uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    expect_words(UINT64_MAX, UINT64_MAX, UINT64_MAX,
                 (const uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    expect_words(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e,
                 (const uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

static void test_uniform_is_inside(void **state) {
    (void)state;
    assert_true(di_uniform53(0, 0) > 0);
    assert_true(di_uniform53(UINT32_MAX, UINT32_MAX) < 1);
    assert_true(di_uniform53(0x80000000u, 0) > 0.5);
    assert_true(di_uniform53(0x7fffffffu, UINT32_MAX) < 0.5);
}

/* Mean and variance of standard Gumbel noise: 0.5772, pi^2 / 6. 40,000 draws of 2 seeds. */
static void test_gumbel_moments(void **state) {
    (void)state;
    enum { N = 20000 };
    for (uint64_t seed = 1; seed <= 2; seed++) {
        double sum = 0, squares = 0;
        for (int32_t i = 0; i < N; i++) {
            double g = di_gumbel(seed, 100 + i / 200, i % 200);
            assert_true(isfinite(g));
            sum += g;
            squares += g * g;
        }
        double mean = sum / N, variance = squares / N - mean * mean;
        assert_true(fabs(mean - 0.5772156649) < 0.04);
        assert_true(fabs(variance - 1.6449340668) < 0.1);
    }
}

/* Two ids share a block of four words: both halves, and every argument, must count. */
static void test_gumbel_depends_on_all(void **state) {
    (void)state;
    double g = di_gumbel(7, 12, 4);
    assert_true(g == di_gumbel(7, 12, 4));
    assert_true(g != di_gumbel(7, 12, 5));
    assert_true(g != di_gumbel(7, 12, 6));
    assert_true(g != di_gumbel(7, 13, 4));
    assert_true(g != di_gumbel(8, 12, 4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_uniform_is_inside),
        cmocka_unit_test(test_gumbel_moments),
        cmocka_unit_test(test_gumbel_depends_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
