/* UTF-8 against its definition: the set of encodings of all scalar values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"

/* The definition, by arithmetic rather than by table: the one code point whose encoding the first
 * `length` bytes are, or -1. */
static int64_t scalar(const unsigned char *b, size_t length) {
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    static const unsigned char mark[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    if (length == 1) return b[0] < 0x80 ? b[0] : -1;
    uint32_t code = b[0] - mark[length];
    if (b[0] < mark[length] || code >= 1u << (7 - length)) return -1;
    for (size_t i = 1; i < length; i++) {
        if (b[i] >> 6 != 2) return -1;
        code = code << 6 | (b[i] & 0x3F);
    }
    bool good = code >= smallest[length] && code < 0x110000 && (code < 0xD800 || code > 0xDFFF);
    return good ? (int64_t)code : -1;
}

static size_t decode_by_definition(const unsigned char *b, size_t n, uint32_t *code) {
    for (size_t length = 1; length <= 4 && length <= n; length++) {
        int64_t value = scalar(b, length);
        if (value < 0) continue;
        *code = (uint32_t)value;
        return length;
    }
    return 0;
}

/* Whether some bytes behind b[0..n) would make it one valid sequence; all of them are tried. */
static bool can_grow(const unsigned char *b, size_t n) {
    static const unsigned char next[] = {0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF};
    unsigned char more[4];
    if (n >= 4) return false;
    memcpy(more, b, n);
    for (size_t i = 0; i < sizeof next; i++) {
        more[n] = next[i];
        uint32_t code;
        if (decode_by_definition(more, n + 1, &code) == n + 1 || can_grow(more, n + 1)) return true;
    }
    return false;
}

static void check(const unsigned char *b, size_t n) {
    uint32_t code = 1, want = 1; /* stays 1 on failure */
    size_t length = di_utf8_decode((const char *)b, n, &code);
    assert_int_equal(length, decode_by_definition(b, n, &want));
    assert_int_equal(code, want);
    size_t prefix = 0, step;
    while (prefix < n && (step = decode_by_definition(b + prefix, n - prefix, &want)) > 0)
        prefix += step;
    assert_int_equal(di_utf8_valid_prefix((const char *)b, n), prefix);
    size_t tail = 0;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        if (can_grow(b + n - back, back)) tail = back;
    }
    assert_int_equal(di_utf8_incomplete_tail((const char *)b, n), tail);
}

static void test_all_code_points_come_back(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x110000; code++) {
        if (code >= 0xD800 && code < 0xE000) continue;
        char bytes[4];
        uint32_t back = 0;
        size_t length = di_utf8_encode(code, bytes);
        assert_int_equal(length, code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4);
        assert_int_equal(scalar((const unsigned char *)bytes, length), code);
        assert_int_equal(di_utf8_decode(bytes, length, &back), length);
        assert_int_equal(back, code);
        for (size_t n = 1; n < length; n++) {
            assert_int_equal(di_utf8_decode(bytes, n, &back), 0);
            assert_int_equal(di_utf8_incomplete_tail(bytes, n), n);
        }
    }
}

static void test_all_strings_of_two_bytes(void **state) {
    (void)state;
    for (unsigned i = 0; i < 65536; i++) {
        unsigned char b[2] = {(unsigned char)(i >> 8), (unsigned char)i};
        check(b, 2);
        check(b, 1);
    }
}

/* Bytes at every edge of the ranges of Unicode's table 3-7, in every combination. */
static void test_strings_of_telling_bytes(void **state) {
    (void)state;
    static const unsigned char telling[] = {0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2,
                                            0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5};
    const size_t n = sizeof telling;
    for (size_t i = 0; i < n * n * n * n; i++) {
        unsigned char b[4] = {telling[i % n], telling[i / n % n], telling[i / n / n % n],
                              telling[i / n / n / n]};
        check(b, 4);
        if (i < n * n * n) check(b, 3);
    }
}

/* The prefix is counted by eight bytes at a time: an error at every offset. */
static void test_valid_prefix_finds_the_first_error(void **state) {
    (void)state;
    char text[64];
    for (size_t n = 0; n <= sizeof text; n++) {
        for (size_t at = 0; at <= n; at++) {
            memset(text, 'x', sizeof text);
            if (at < n) text[at] = (char)0xFF;
            assert_int_equal(di_utf8_valid_prefix(text, n), at);
        }
    }
    memcpy(text,
           "1234567\xE4\xBD\xA0"
           "89",
           12);
    assert_int_equal(di_utf8_valid_prefix(text, 12), 12);
    assert_int_equal(di_utf8_valid_prefix(text, 9), 7);
}

static void test_nothing(void **state) {
    (void)state;
    assert_int_equal(di_utf8_valid_prefix("", 0), 0);
    assert_int_equal(di_utf8_incomplete_tail("", 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_code_points_come_back),
        cmocka_unit_test(test_all_strings_of_two_bytes),
        cmocka_unit_test(test_strings_of_telling_bytes),
        cmocka_unit_test(test_valid_prefix_finds_the_first_error),
        cmocka_unit_test(test_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
