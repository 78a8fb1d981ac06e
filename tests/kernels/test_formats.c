/* Number formats against their definitions: every code decoded, encoders against a search for the
 * nearest code, exact middles included. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/formats.h"

static void test_bf16_round_trip(void **state) {
    (void)state;
    for (uint32_t word = 0; word < 0x10000; word++) {
        float value = di_bf16_decode((uint16_t)word);
        if (isnan(value)) {
            assert_true(isnan(di_bf16_round(value)));
        } else {
            assert_int_equal(di_bf16_encode(value), word);
        }
    }
}

/* Between neighbours: below, at and above the middle; ties go to the even word. */
static void test_bf16_nearest_even(void **state) {
    (void)state;
    for (uint32_t word = 0; word < 0x7F80; word++) {
        for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
            uint32_t base = (word | sign) << 16, w = word | sign;
            assert_int_equal(di_bf16_encode(di_f32_from_bits(base | 0x7FFF)), w);
            assert_int_equal(di_bf16_encode(di_f32_from_bits(base | 0x8000)), w + (w & 1));
            assert_int_equal(di_bf16_encode(di_f32_from_bits(base | 0x8001)), w + 1);
        }
    }
    /* A NaN whose payload lies in the lower half must not become an infinity or wrap to zero. */
    assert_true(isnan(di_bf16_round(di_f32_from_bits(0x7F800001u))));
    assert_true(isnan(di_bf16_round(di_f32_from_bits(0x7FFFFFFFu))));
    assert_true(isinf(di_bf16_round(3.4e38f)));
}

static double e4m3_by_definition(int code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
    return code & 0x80 ? -value : value;
}

static void test_e4m3_decode(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        float got = di_e4m3_decode((uint8_t)code);
        if ((code & 0x7F) == 0x7F) {
            assert_true(isnan(got));
        } else {
            assert_true((double)got == e4m3_by_definition(code));
            assert_int_equal(signbit(got) != 0, code >> 7);
        }
    }
    assert_true(di_e4m3_decode(0x7E) == 448.0f);
}

/* The code nearest to |value|, ties to the even code, by search. */
static int e4m3_nearest(double value) {
    int best = 0;
    for (int code = 1; code <= 0x7E; code++) {
        double off = fabs(e4m3_by_definition(code) - value);
        double least = fabs(e4m3_by_definition(best) - value);
        if (off < least || (off == least && code % 2 == 0)) best = code;
    }
    return best;
}

static void expect_e4m3(float value) {
    int want = e4m3_nearest(fabs((double)value)) | (signbit(value) ? 0x80 : 0);
    if (di_e4m3_encode(value) != want) {
        fail_msg("%a: code %d, expected %d", (double)value, di_e4m3_encode(value), want);
    }
}

static void test_e4m3_encode(void **state) {
    (void)state;
    for (int code = 0; code < 0x7E; code++) {
        float low = di_e4m3_decode((uint8_t)code), high = di_e4m3_decode((uint8_t)(code + 1));
        float middle = (low + high) / 2; /* exact */
        float around[] = {low, nextafterf(middle, 0), middle, nextafterf(middle, 1e9f), high};
        for (int i = 0; i < 5; i++) {
            expect_e4m3(around[i]);
            expect_e4m3(-around[i]);
        }
    }
    uint32_t seed = 1;
    for (int i = 0; i < 20000; i++) { /* all magnitudes from denormals to 2^10 */
        seed = seed * 1664525u + 1013904223u;
        float value = di_f32_from_bits((seed & 0x807FFFFFu) | (seed >> 8) % 137u << 23);
        expect_e4m3(value);
    }
}

static void test_e4m3_saturates(void **state) {
    (void)state;
    assert_int_equal(di_e4m3_encode(449.0f), 0x7E);
    assert_int_equal(di_e4m3_encode(-1e30f), 0xFE);
    assert_int_equal(di_e4m3_encode(INFINITY), 0x7E);
    assert_int_equal(di_e4m3_encode(nextafterf(448.0f, 0)), 0x7E);
    assert_int_equal(di_e4m3_encode(NAN) & 0x7F, 0x7F);
    assert_int_equal(di_e4m3_encode(-0.0f), 0x80);
}

static void test_e8m0(void **state) {
    (void)state;
    for (int code = 0; code < 255; code++) {
        float value = di_e8m0_decode((uint8_t)code);
        assert_true((double)value == ldexp(1, code - 127));
        if (code == 0) continue; /* 2^-127 is subnormal: counts as 2^-126 */
        assert_int_equal(di_e8m0_ceil(value), code);
        assert_int_equal(di_e8m0_ceil(nextafterf(value, INFINITY)), code + 1);
        if (code > 1) assert_int_equal(di_e8m0_ceil(nextafterf(value, 0)), code);
    }
    assert_true(isnan(di_e8m0_decode(255)));
    assert_int_equal(di_e8m0_ceil(0x1p-130f), 1);
}

static void test_e2m1(void **state) {
    (void)state;
    static const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    for (int code = 0; code < 16; code++) {
        float got = di_e2m1_decode((uint8_t)code);
        assert_true(fabs((double)got) == values[code & 7]);
        assert_int_equal(signbit(got) != 0, code >> 3);
        assert_int_equal(di_e2m1_encode(got), code);
    }
    for (int code = 0; code < 7; code++) {
        float middle = (float)((values[code] + values[code + 1]) / 2);
        int even = code % 2 == 0 ? code : code + 1;
        assert_int_equal(di_e2m1_encode(middle), even);
        assert_int_equal(di_e2m1_encode(-middle), even | 8);
        assert_int_equal(di_e2m1_encode(nextafterf(middle, 0)), code);
        assert_int_equal(di_e2m1_encode(nextafterf(middle, 9)), code + 1);
    }
    assert_int_equal(di_e2m1_encode(1e30f), 7);
    assert_int_equal(di_e2m1_encode(-INFINITY), 15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_round_trip),
        cmocka_unit_test(test_bf16_nearest_even),
        cmocka_unit_test(test_e4m3_decode),
        cmocka_unit_test(test_e4m3_encode),
        cmocka_unit_test(test_e4m3_saturates),
        cmocka_unit_test(test_e8m0),
        cmocka_unit_test(test_e2m1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
