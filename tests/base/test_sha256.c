/* SHA-256 against the vectors of FIPS 180-4 and Python's hashlib. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/sha256.h"

static void expect(const void *data, size_t size, const char *want) {
    uint8_t digest[DI_SHA256_BYTES];
    char hex[2 * DI_SHA256_BYTES + 1];
    di_sha256(data, size, digest);
    for (int i = 0; i < DI_SHA256_BYTES; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    assert_string_equal(hex, want);
}

static void test_known_answers(void **state) {
    (void)state;
    expect("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    char text[1000];
    memset(text, 'a', sizeof text);
    expect(text, sizeof text, "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_known_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
