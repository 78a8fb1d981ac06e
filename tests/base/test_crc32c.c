/* CRC-32C against the vectors of RFC 3720 (B.4), and the fast one against its twin. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/crc32c.h"

static void expect(const void *data, size_t size, uint32_t want) {
    assert_int_equal(di_crc32c(0, data, size), want);
    assert_int_equal(di_crc32c_portable(0, data, size), want);
}

static void test_known_answers(void **state) {
    (void)state;
    uint8_t bytes[32];
    expect("", 0, 0);
    expect("123456789", 9, 0xe3069283);
    memset(bytes, 0, sizeof bytes);
    expect(bytes, sizeof bytes, 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    expect(bytes, sizeof bytes, 0x62a8ab43);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)i;
    expect(bytes, sizeof bytes, 0x46dd794e);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)(31 - i);
    expect(bytes, sizeof bytes, 0x113fdb5c);
}

/* Every length and alignment around the words of the fast one, whole and in two parts. */
static void test_fast_equals_twin(void **state) {
    (void)state;
    uint8_t bytes[80];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 37 + 11);
    for (size_t from = 0; from < 8; from++) {
        for (size_t size = 0; size + from <= sizeof bytes; size++) {
            uint32_t want = di_crc32c_portable(0, bytes + from, size);
            assert_int_equal(di_crc32c(0, bytes + from, size), want);
            uint32_t first = di_crc32c(0, bytes + from, size / 3);
            size_t rest = size - size / 3;
            assert_int_equal(di_crc32c(first, bytes + from + size / 3, rest), want);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_fast_equals_twin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
