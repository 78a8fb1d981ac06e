/* The splitter: pieces by hand for what has gone wrong elsewhere, and a random comparison with the
 * three regular expressions themselves, run one after the other by PCRE2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buffer.h"
#include "base/utf8.h"
#include "text/pretokenize.h"
#include "text/unicode_class.h"

/* The pieces of `text`, a vertical bar between them; the caller frees. */
static char *pieces_of(const char *text, size_t size) {
    di_buffer out = DI_BUFFER_EMPTY;
    di_buffer_puts(&out, "");
    for (size_t at = 0; at < size;) {
        size_t length = di_pretokenize_next(text + at, size - at);
        assert_in_range(length, 1, size - at);
        if (at) di_buffer_putc(&out, '|');
        di_buffer_append(&out, text + at, length);
        at += length;
    }
    assert_false(out.failed);
    return out.data;
}

static void test_pieces(void **state) {
    (void)state;
    static const char *const expected[] = {
        /* Digits in threes from the left, everything else around them untouched. */
        "rfid|501|.go",
        "202|6|-|11|-|29",
        "123|456|7",
        "x|²|+y|²",
        "１２３|４５",
        "½|a",
        "ⅧⅨ",
        /* A word takes one character before it: a blank, a control, but no punctuation. */
        "Hello| world",
        "don|'t",
        "'|été",
        "'t|été",
        "_private",
        "__|init|__",
        "a|_b",
        "\tx",
        "café",
        "cafe\xCC\x81",
        "\xCC\x81x",
        " \xCC\x81",
        "x|\xE2\x80\xA8y",
        "\xC2\xA0x",
        /* Blanks: all but the last before a word, all before the end, through the last newline. */
        "a| | b",
        "a|  | b",
        "a|  ",
        "a|\n\n|b",
        "a| \r\n| b",
        "\n| |\tx",
        "  \n  \n| | x",
        " |1",
        "  |1",
        "a|  |1",
        " |\xE4\xBD\xA0",
        "  |\xE4\xBD\xA0",
        "\xE3\x80\x80x",
        "\xC2\x85x",
        /* Symbols with a blank before and newlines behind. */
        "!?\n\n|x",
        " ...\r\n| y",
        "a| +=|b",
        "\xE2\x80\x94\n|\xE2\x80\x94\n",
        "C|++",
        "f|(x|)",
        /* Runs of step 2 are apart from everything; the middle dot splits inside. */
        "abc|\xE4\xBD\xA0\xE5\xA5\xBD|abc",
        "コーヒー|・|カップ",
        "ﾃｽﾄ",
        "、|の",
        "龥|龦",
        "々|人",
        "の|。\n|の",
        "゛゜|x",
        /* What no alternative takes is a piece together, but for the character before a word. */
        "\x01\x02|\x03z",
        "\x01\x02| a",
        "\x01",
        "\x01|!",
        "\x01|1",
        "\xEE\x80\x80|\xEE\x80\x81x",
        "\xEF\xBB\xBFx",
        "\x1Cx",
        "\x01|\n",
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        char text[256];
        size_t n = 0;
        for (const char *c = expected[i]; *c; c++) {
            if (*c != '|') text[n++] = *c;
        }
        char *pieces = pieces_of(text, n);
        assert_string_equal(pieces, expected[i]);
        free(pieces);
    }
}

static void test_nul_is_an_ordinary_character(void **state) {
    (void)state;
    assert_int_equal(di_pretokenize_next("\0\0a", 3), 1);
    assert_int_equal(di_pretokenize_next("\0a", 2), 2);
}

static void test_patterns_in_both_spellings(void **state) {
    (void)state;
    static const char escaped[] =
        "[!\\\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}"
        "\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    static const char literal[] =
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}"
        "\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
    assert_true(di_pretokenize_is_step(escaped, strlen(escaped), 2));
    assert_true(di_pretokenize_is_step(literal, strlen(literal), 2));
    assert_true(di_pretokenize_is_step("\\p{N}{1,3}", 10, 0));
    assert_true(
        di_pretokenize_is_step("[一-龥぀-ゟ゠-ヿ]+", strlen("[一-龥぀-ゟ゠-ヿ]+"), 1));
    /* Shorter, longer, another: no. */
    assert_false(di_pretokenize_is_step(literal, strlen(literal) - 1, 2));
    assert_false(di_pretokenize_is_step("\\p{N}{1,3}+", 11, 0));
    assert_false(di_pretokenize_is_step("\\p{N}", 5, 0));
    assert_false(di_pretokenize_is_step("\\p{N}{1,3}\0", 11, 0));
    assert_false(di_pretokenize_is_step("", 0, 0));
    assert_false(di_pretokenize_is_step("\\p{N}{1,3}", 10, 1));
    assert_false(di_pretokenize_is_step("\r", 1, 0));
}

static uint64_t random_state = 0x9E3779B97F4A7C15u;

static uint32_t below(uint32_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 16) % n);
}

/* The pieces must be as if every byte that is no valid UTF-8 were an unassigned character. */
static void test_bad_bytes_count_as_characters_without_class(void **state) {
    (void)state;
    static const char *const units[] = {"a",           " ",        "\n",
                                        "1",           "!",        "\xE4\xBD\xA0",
                                        "\xC3\xA9",    "\xFF",     "\x80",
                                        "\xC3",        "\xE4\xBD", "\xF0\x9F",
                                        "\xED\xA0\x80"};
    for (int round = 0; round < 20000; round++) {
        char text[64], twin[256];
        uint8_t starts[64] = {0}; /* text[i] begins a piece */
        size_t n = 0, m = 0, at = 0;
        for (uint32_t i = 1 + below(10); i > 0; i--) {
            const char *unit = units[below(sizeof units / sizeof *units)];
            memcpy(text + n, unit, strlen(unit));
            n += strlen(unit);
        }
        for (at = 0; at < n; at += di_pretokenize_next(text + at, n - at)) starts[at] = 1;
        size_t origin[256];
        for (size_t i = 0, length; i < n; i += length) {
            uint32_t code;
            length = di_utf8_decode(text + i, n - i, &code);
            origin[m] = i;
            if (length == 0) {
                length = 1;
                m += di_utf8_encode(0xEFFFE, twin + m); /* U+EFFFE, never assigned */
            } else {
                memcpy(twin + m, text + i, length);
                m += length;
            }
        }
        for (at = 0; at < m; at += di_pretokenize_next(twin + at, m - at)) {
            assert_int_equal(starts[origin[at]], 1);
            starts[origin[at]] = 0;
        }
        for (size_t i = 0; i < n; i++) assert_int_equal(starts[i], 0);
    }
}

#ifdef DI_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

static pcre2_code *compile(const char *pattern) {
    int code;
    PCRE2_SIZE offset;
    pcre2_code *regex = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                      PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
    assert_non_null(regex);
    pcre2_jit_compile(regex, PCRE2_JIT_COMPLETE);
    return regex;
}

/* Marks where pieces begin: starts[i] for text[from..to), which is a text of its own. */
static void split_isolated(pcre2_code *regex, pcre2_match_data *match, const char *text,
                           size_t from, size_t to, uint8_t *starts) {
    for (size_t at = 0; from + at < to;) {
        int rc = pcre2_match(regex, (PCRE2_SPTR)text + from, to - from, at, PCRE2_NO_UTF_CHECK,
                             match, NULL);
        if (rc < 1) return;
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);
        starts[from + range[0]] = 1;
        if (from + range[1] < to) starts[from + range[1]] = 1;
        at = range[1];
    }
}

/* All three steps, each inside the pieces of the one before. */
static void split_by_regex(pcre2_code *const steps[3], pcre2_match_data *match, const char *text,
                           size_t size, uint8_t *starts) {
    memset(starts, 0, size);
    starts[0] = 1;
    for (int step = 0; step < 3; step++) {
        uint8_t before[4096];
        memcpy(before, starts, size);
        for (size_t from = 0, to; from < size; from = to) {
            for (to = from + 1; to < size && !before[to];) to++;
            split_isolated(steps[step], match, text, from, to, starts);
        }
    }
}

/* Class bits that PCRE2 gives to each code point, 0xFF where its Unicode knows none. */
static uint8_t *pcre2_classes(void) {
    static const struct {
        const char *pattern;
        uint8_t bits;
    } classes[] = {{"\\p{L}+", DI_UNICODE_LETTER}, {"\\p{M}+", DI_UNICODE_MARK},
                   {"\\p{N}+", DI_UNICODE_NUMBER}, {"[\\p{P}\\p{S}]+", DI_UNICODE_SYMBOL},
                   {"\\s+", DI_UNICODE_SPACE},     {"\\p{Cn}+", 0xFF}};
    size_t size = 0;
    char *all = malloc(4 * 0x110000); /* every character once, in order */
    uint8_t *bits = calloc(0x110000, 1);
    assert_non_null(all);
    assert_non_null(bits);
    for (uint32_t code = 0; code < 0x110000; code++) {
        if (code < 0xD800 || code >= 0xE000) size += di_utf8_encode(code, all + size);
    }
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        pcre2_code *regex = compile(classes[i].pattern);
        size_t at = 0;
        while (pcre2_match(regex, (PCRE2_SPTR)all, size, at, at ? PCRE2_NO_UTF_CHECK : 0, match,
                           NULL) > 0) {
            const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);
            uint32_t code;
            for (at = range[0]; at < range[1]; at += di_utf8_decode(all + at, size - at, &code)) {
                di_utf8_decode(all + at, size - at, &code);
                bits[code] |= classes[i].bits;
            }
        }
        pcre2_code_free(regex);
    }
    pcre2_match_data_free(match);
    free(all);
    return bits;
}

/* Characters on which PCRE2 and the table agree: all but those of versions between the two. PCRE2
 * takes U+180E for white space, which it has not been since Unicode 6.3. */
static size_t known_characters(uint32_t *known) {
    uint8_t *bits = pcre2_classes();
    const uint8_t mask = (uint8_t) ~(DI_UNICODE_NEWLINE | DI_UNICODE_CJK | DI_UNICODE_ASCII_PUNCT);
    size_t n = 0, unknown = 0;
    for (uint32_t code = 0; code < 0x110000; code++) {
        if ((code >= 0xD800 && code < 0xE000) || code == 0x180E) continue;
        uint8_t ours = di_unicode_class(code) & mask;
        if (ours == bits[code]) {
            known[n++] = code;
        } else if (bits[code] == 0xFF || ours == 0) {
            unknown += ours != 0 || bits[code] != 0xFF;
        } else {
            fail_msg("U+%04X has bits %d, PCRE2 says %d", code, ours, bits[code]);
        }
    }
    free(bits);
    assert_in_range(unknown, 0, 16000);
    return n;
}

/* A character: mostly of the few that the rules tell apart, sometimes any. */
static uint32_t random_character(const uint32_t *known, size_t n_known) {
    static const uint32_t telling[] = {'a',    'Z',    's',     '0',     '9',     '\'',   '_',
                                       '!',    '.',    '<',     '$',     ' ',     ' ',    ' ',
                                       '\n',   '\r',   '\t',    0x0B,    0,       1,      0x7F,
                                       0x1C,   0x85,   0xA0,    0xAD,    0xB2,    0xE9,   0x301,
                                       0x903,  0x20DD, 0x660,   0xBD,    0x2028,  0x2003, 0x3000,
                                       0x200B, 0xFEFF, 0x3042,  0x30AB,  0x30FB,  0x309B, 0x3099,
                                       0x3040, 0x30A0, 0x3001,  0x4E00,  0x9FA5,  0x9FA6, 0x3005,
                                       0xFF11, 0xFF5C, 0x2581,  0x1F600, 0x1F3FD, 0x200D, 0xFE0F,
                                       0xE000, 0xFFFF, 0x20000, 0x1D7CE};
    if (below(8)) return telling[below(sizeof telling / sizeof *telling)];
    return known[below((uint32_t)n_known)];
}

static void test_pieces_are_those_of_the_regular_expressions(void **state) {
    (void)state;
    uint32_t *known = malloc(0x110000 * sizeof *known);
    assert_non_null(known);
    size_t n_known = known_characters(known);
    assert_true(n_known > 200000);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    pcre2_code *steps[3];
    for (int i = 0; i < 3; i++) steps[i] = compile(di_pretokenize_patterns[i]);
    for (int round = 0; round < 100000; round++) {
        char text[4096];
        uint8_t starts[4096];
        size_t size = 0;
        for (uint32_t i = 1 + below(round % 100 ? 12 : 200); i > 0; i--) {
            uint32_t code = random_character(known, n_known);
            for (uint32_t k = below(6) ? 1 : 1 + below(5); k > 0; k--)
                size += di_utf8_encode(code, text + size);
        }
        split_by_regex(steps, match, text, size, starts);
        for (size_t at = 0; at < size;) {
            size_t length = di_pretokenize_next(text + at, size - at), want = 1;
            while (at + want < size && !starts[at + want]) want++;
            if (length != want) {
                fail_msg("round %d, byte %zu: piece of %zu bytes, the regular expressions say %zu",
                         round, at, length, want);
            }
            at += length;
        }
    }
    for (int i = 0; i < 3; i++) pcre2_code_free(steps[i]);
    pcre2_match_data_free(match);
    free(known);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_nul_is_an_ordinary_character),
        cmocka_unit_test(test_patterns_in_both_spellings),
        cmocka_unit_test(test_bad_bytes_count_as_characters_without_class),
#ifdef DI_HAVE_PCRE2
        cmocka_unit_test(test_pieces_are_those_of_the_regular_expressions),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
