/* SipHash-2-4 against the vectors of its authors' reference code. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/siphash.h"

static void test_vectors(void **state) {
    (void)state;
    static const struct {
        size_t size;
        uint64_t want;
    } vectors[] = {{0, 0x726fdb47dd0e0e31u},
                   {1, 0x74f839c593dc67fdu},
                   {7, 0xab0200f58b01d137u},
                   {8, 0x93f5f5799a932462u},
                   {15, 0xa129ca6149be45e5u}};
    const uint64_t key[2] = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
    unsigned char data[16];
    for (int i = 0; i < 16; i++) data[i] = (unsigned char)i;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        assert_int_equal(di_siphash(key, data, vectors[i].size), vectors[i].want);
    }
}

static void test_secrets_differ(void **state) {
    (void)state;
    uint64_t a[2] = {0, 0}, b[2] = {0, 0};
    assert_int_equal(di_siphash_seed(a), 0);
    assert_int_equal(di_siphash_seed(b), 0);
    assert_int_not_equal(di_siphash(a, "key", 3), di_siphash(b, "key", 3));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_secrets_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
