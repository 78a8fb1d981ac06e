/* The generated table against utf8proc, which has its own copy of the Unicode data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

#include <cmocka.h>

#include "text/unicode_class.h"

static uint8_t general_bits(uint32_t code) {
    switch (*utf8proc_category_string((utf8proc_int32_t)code)) {
    case 'L': return DI_UNICODE_LETTER;
    case 'M': return DI_UNICODE_MARK;
    case 'N': return DI_UNICODE_NUMBER;
    case 'P':
    case 'S': return DI_UNICODE_SYMBOL;
    default: return 0;
    }
}

static void test_general_categories_of_all_code_points(void **state) {
    (void)state;
    const uint8_t mask =
        DI_UNICODE_LETTER | DI_UNICODE_MARK | DI_UNICODE_NUMBER | DI_UNICODE_SYMBOL;
    bool same_version = strcmp(utf8proc_unicode_version(), "15.0.0") == 0;
    for (uint32_t code = 0; code < 0x110000; code++) {
        if (code >= 0xD800 && code < 0xE000) continue;
        uint8_t ours = di_unicode_class(code) & mask, theirs = general_bits(code);
        /* A newer utf8proc knows characters that 15.0 did not; none may have changed. */
        if (ours == theirs || (!same_version && ours == 0)) continue;
        fail_msg("U+%04X has bits %d, utf8proc says %d", code, ours, theirs);
    }
}

static void test_white_space_is_the_property_of_that_name(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x110000; code++) {
        bool space = (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 ||
                     code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
                     code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
                     code == 0x3000;
        uint8_t bits = di_unicode_class(code);
        assert_int_equal((bits & DI_UNICODE_SPACE) != 0, space);
        assert_int_equal((bits & DI_UNICODE_NEWLINE) != 0, code == '\r' || code == '\n');
    }
}

static void test_ranges_of_step_two_and_ascii_punctuation(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x110000; code++) {
        bool cjk = (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF);
        bool punctuation =
            code > 0 && code < 0x80 && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", (int)code);
        assert_int_equal((di_unicode_class(code) & DI_UNICODE_CJK) != 0, cjk);
        assert_int_equal((di_unicode_class(code) & DI_UNICODE_ASCII_PUNCT) != 0, punctuation);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_general_categories_of_all_code_points),
        cmocka_unit_test(test_white_space_is_the_property_of_that_name),
        cmocka_unit_test(test_ranges_of_step_two_and_ascii_punctuation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
