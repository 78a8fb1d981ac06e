/* The three quantisers against their definitions taken in double, and at the edges that their
 * floors, saturation and ties make. (Their bytes on real activations: test_release_ops.c.) */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/quantize.h"

static uint64_t random_state = 88172645463325252u;

static double uniform(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (double)(random_state >> 11) * 0x1p-53;
}

/* Values of one block: mixed magnitudes around 2^magnitude. */
static void random_block(float *x, int n, int magnitude) {
    for (int i = 0; i < n; i++) {
        x[i] = (float)(ldexp(uniform() - 0.5, magnitude) * exp(2 * uniform()));
    }
}

static double largest_of(const float *x, int n) {
    double largest = 0;
    for (int i = 0; i < n; i++) largest = fmax(largest, fabs((double)x[i]));
    return largest;
}

/* The scale is the least power of two under which nothing saturates (up to float32's last bit), and
 * each code is the nearest value: off by at most half a step of its place. */
static void test_q8(void **state) {
    (void)state;
    for (int round = 0; round < 400; round++) {
        float x[32];
        uint8_t codes[32];
        random_block(x, 32, round % 60 - 30);
        uint8_t scale = di_quantize_q8(x, codes);
        double s = ldexp(1, scale - 127), least = fmax(largest_of(x, 32), 1e-4) / 448;
        assert_true(s >= least * (1 - 1e-6) && s / 2 < least * (1 + 1e-6));
        for (int i = 0; i < 32; i++) {
            double ratio = (double)x[i] / s, got = (double)di_e4m3_decode(codes[i]);
            double step = fmax(ldexp(1, ilogb(fmax(fabs(ratio), 1e-30)) - 3), 0x1p-9);
            assert_true(fabs(got - ratio) <= step / 2 * (1 + 1e-6));
            assert_int_equal(signbit(got) != 0, signbit(x[i]) != 0);
        }
    }
}

static void test_q4i(void **state) {
    (void)state;
    for (int round = 0; round < 400; round++) {
        float x[32];
        uint8_t pairs[16];
        random_block(x, 32, round % 200 - 100);
        uint8_t scale = di_quantize_q4i(x, pairs);
        double s = ldexp(1, scale - 127), least = fmax(largest_of(x, 32), 6 * 0x1p-126) / 6;
        assert_true(s >= least * (1 - 1e-6) && s / 2 < least * (1 + 1e-6));
        for (int i = 0; i < 32; i++) {
            uint8_t code = i % 2 ? pairs[i / 2] >> 4 : pairs[i / 2] & 15;
            double off = fabs((double)di_e2m1_decode(code) - (double)x[i] / s);
            double m = fabs((double)x[i] / s);
            assert_true(off <= (m < 2 ? 0.25 : m < 4 ? 0.5 : 1) * (1 + 1e-6));
        }
    }
}

static void test_q4c(void **state) {
    (void)state;
    for (int round = 0; round < 400; round++) {
        float x[16];
        uint8_t pairs[8];
        random_block(x, 16, round % 14 - 7);
        uint8_t scale = di_quantize_q4c(x, pairs);
        double s = (double)di_e4m3_decode(scale), want = fmax(largest_of(x, 16), 6 * 0x1p-9) / 6;
        assert_true(fabs(s - want) <= fmax(ldexp(1, ilogb(want) - 4), 0x1p-10) * (1 + 1e-6));
        for (int i = 0; i < 16; i++) {
            uint8_t code = i % 2 ? pairs[i / 2] >> 4 : pairs[i / 2] & 15;
            double m = fabs((double)x[i] / s), off = fabs((double)di_e2m1_decode(code & 7) - m);
            if (m < 6) assert_true(off <= (m < 2 ? 0.25 : m < 4 ? 0.5 : 1) * (1 + 1e-6));
            if (m >= 6) assert_int_equal(code & 7, 7);
        }
    }
}

static void test_zeros_keep_sign(void **state) {
    (void)state;
    float x[32] = {0};
    uint8_t codes[32];
    x[3] = -0.0f;
    /* 1e-4 / 448 = 2.23e-7 -> 2^-22, 6 * 2^-126 / 6 -> 2^-126, 2^-9 -> the first subnormal */
    assert_int_equal(di_quantize_q8(x, codes), 127 - 22);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[3], 0x80);
    assert_int_equal(di_quantize_q4i(x, codes), 1);
    assert_int_equal(codes[1], 0x80);
    assert_int_equal(di_quantize_q4c(x, codes), 1);
    assert_int_equal(codes[1], 0x80);
}

static void test_edges(void **state) {
    (void)state;
    float x[32] = {448.0f, 20.0f, -20.0f, 19.0f, 21.0f};
    uint8_t codes[32];
    assert_int_equal(di_quantize_q8(x, codes), 127);
    assert_int_equal(codes[0], 0x7E);
    assert_true(di_e4m3_decode(codes[1]) == 20.0f);
    assert_true(di_e4m3_decode(codes[3]) == 20.0f); /* 19 lies between 18 and 20: even wins */
    assert_true(di_e4m3_decode(codes[4]) == 20.0f);
    x[0] = 449.0f; /* one more: the scale doubles */
    assert_int_equal(di_quantize_q8(x, codes), 128);

    float y[16] = {1e9f, -1e9f}; /* the E4M3 scale saturates at 448, the codes at 6 */
    assert_int_equal(di_quantize_q4c(y, codes), 0x7E);
    assert_int_equal(codes[0], 0xF7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_q8),    cmocka_unit_test(test_q4i),
        cmocka_unit_test(test_q4c),   cmocka_unit_test(test_zeros_keep_sign),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
