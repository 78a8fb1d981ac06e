/* Regular expressions: what they take, what is refused, and random ones against PCRE2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/grammar_support.h"

#ifdef DI_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

static di_grammar *compile(const char *regex) {
    di_grammar *g;
    di_error error;
    if (di_grammar_compile_regex(NULL, regex, strlen(regex), &g, &error) != DI_OK) {
        fail_msg("%s: %s", regex, error.message);
    }
    return g;
}

/* Each of `texts` (up to NULL) is taken, or is not. */
static void expect(const char *regex, bool taken, const char *const *texts) {
    di_grammar *g = compile(regex);
    for (; *texts; texts++) {
        if (grammar_accepts(g, *texts, strlen(*texts)) != taken) {
            fail_msg("%s: '%s' is %staken", regex, *texts, taken ? "not " : "");
        }
    }
    di_grammar_release(g);
}

#define TAKES(regex, ...) expect(regex, true, (const char *const[]){__VA_ARGS__, NULL})
#define LEAVES(regex, ...) expect(regex, false, (const char *const[]){__VA_ARGS__, NULL})

static void test_the_whole_text_matches(void **state) {
    (void)state;
    TAKES("abc", "abc");
    LEAVES("abc", "", "ab", "abcd", "xabc");
    TAKES("a|bc|", "a", "bc", "");
    TAKES("(a|b)*c+d?", "c", "abbacccd", "ccc");
    LEAVES("(a|b)*c+d?", "", "abd", "cdd");
    TAKES("x{2,3}y{2}z{1,}", "xxyyz", "xxxyyzzz");
    LEAVES("x{2,3}y{2}z{1,}", "xyyz", "xxxxyyz", "xxyz", "xxyy");
    TAKES("a{,b}", "a{,b}"); /* a brace that is no repetition is text */
    TAKES("(?:a+?)(?<n>b)(?P<m>c)", "aabc");
}

static void test_classes_and_escapes(void **state) {
    (void)state;
    TAKES("[a-c_-]+", "abc-_");
    TAKES("[^a-c]", "d", "\n", "é", "日", "😀");
    LEAVES("[^a-c]", "a", "dd", "");
    TAKES("[\\w-.]+@\\d\\D", "a-b.c_9@7x");
    TAKES("\\s\\S", " a", "\u00a0x", "\u3000y");
    TAKES("\\x41\\u00e9\\u{1F600}\\ud83d\\ude00\\U0001F600", "Aé😀😀😀");
    TAKES("\\.\\*\\[\\]\\(\\)\\/\\-\\\\", ".*[]()/-\\");
    TAKES(".", "x", "日", "\t");
    LEAVES(".", "\n", "\r", "\u2028", "");
}

static void test_an_empty_class_matches_nothing(void **state) {
    (void)state;
    di_grammar *g;
    di_error error;
    assert_int_equal(di_grammar_compile_regex(NULL, "a[]", 3, &g, &error), DI_ERR_INVALID);
    assert_string_equal(error.message, "no text satisfies the grammar");
    assert_null(g);
}

static void test_anchors(void **state) {
    (void)state;
    TAKES("^a$|^b|c$", "a", "b", "c");
    TAKES("(^|x)a($|y)", "a", "xa", "ay", "xay");
    TAKES("^^a$$", "a");
    TAKES("(a|^)b", "ab", "b");
    TAKES("^$", "");
    LEAVES("a^b|a$b|z", "ab", "a", "b");
}

static void refuses(const char *regex, di_status status, const char *message) {
    di_grammar *g;
    di_error error;
    assert_int_equal(di_grammar_compile_regex(NULL, regex, strlen(regex), &g, &error), status);
    assert_string_equal(error.message, message);
    assert_null(g);
}

static void test_refusals_name_the_feature(void **state) {
    (void)state;
    refuses("a(?=b)", DI_ERR_UNSUPPORTED,
            "regex: lookahead and lookbehind are not supported, at byte 4 of the expression");
    refuses("(a)\\1", DI_ERR_UNSUPPORTED,
            "regex: backreferences are not supported, at byte 5 of the expression");
    refuses("\\bword", DI_ERR_UNSUPPORTED,
            "regex: \\b (a word's edge) is not supported, at byte 2 of the expression");
    refuses("(?i)a", DI_ERR_UNSUPPORTED,
            "regex: this kind of group (inline flags, conditions, named references) is not "
            "supported, at byte 2 of the expression");
    refuses(
        "\\p{Greek}", DI_ERR_UNSUPPORTED,
        "regex: of the Unicode properties only \\p{L}, \\p{M} and \\p{N} are supported, at byte "
        "2 of the expression");
    refuses("(a", DI_ERR_INVALID, "regex: a group is not closed, at byte 2 of the expression");
    refuses("a)", DI_ERR_INVALID,
            "regex: a parenthesis was not opened, at byte 1 of the expression");
    refuses("[a", DI_ERR_INVALID, "regex: a class is not closed, at byte 2 of the expression");
    refuses("[z-a]", DI_ERR_INVALID,
            "regex: a range of characters is the wrong way round, at byte 4 of the expression");
    refuses("a{,3}", DI_ERR_UNSUPPORTED,
            "regex: {,n} is not supported: write {0,n}, at byte 1 of the expression");
    refuses("\\u{}", DI_ERR_INVALID,
            "regex: \\u{...} needs a code point, at byte 3 of the expression");
    refuses("\\c", DI_ERR_INVALID, "regex: \\c needs a letter, at byte 2 of the expression");
    refuses("*", DI_ERR_INVALID, "regex: nothing to repeat, at byte 0 of the expression");
    refuses("\\ud800", DI_ERR_INVALID,
            "regex: half a surrogate pair is no character, at byte 6 of the expression");
}

/* Each would take years or gigabytes if it were expanded. */
static void test_hostile_expressions_are_bounded(void **state) {
    (void)state;
    static const char *const hostile[] = {
        "((((((((((a{100}){100}){100}){100}){100}){100}){100}){100}){100}){100})",
        "((((()){10000}){10000}){10000}){10000}",
        "(a{10000}){10000}",
    };
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        di_grammar *g;
        di_error error;
        di_status status =
            di_grammar_compile_regex(NULL, hostile[i], strlen(hostile[i]), &g, &error);
        assert_int_equal(status, DI_ERR_LIMIT);
    }
    /* Its deterministic automaton has 2^40 states; only those that a text meets are made. */
    di_grammar *g = compile("(a|b)*a(a|b){40}");
    char text[200];
    memset(text, 'a', sizeof text);
    assert_true(grammar_accepts(g, text, sizeof text));
    assert_true(di_grammar_memory(g) < 4 << 20);
    di_grammar_release(g);
}

static void test_properties(void **state) {
    (void)state;
    TAKES("\\p{L}+", "aéЖ日");
    LEAVES("\\p{L}+", "1", "!", "a ");
    TAKES("\\P{L}", "1");
    TAKES("[\\p{L}\\p{N}]+", "a1²");
}

/* ---- Against PCRE2 ---- */

#ifdef DI_HAVE_PCRE2
static void random_regex(di_buffer *out, uint64_t *state, int depth) {
    static const char *const atoms[] = {"a",     "b", "c",   "[ab]", "[^a]",
                                        "[b-d]", ".", "\\d", "é",    "\\w"};
    static const char *const counts[] = {"*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"};
    uint32_t n = 1 + grammar_random(state, 3);
    for (uint32_t i = 0; i < n; i++) {
        if (depth > 0 && grammar_random(state, 4) == 0) {
            di_buffer_puts(out, "(?:");
            random_regex(out, state, depth - 1);
            if (grammar_random(state, 2)) {
                di_buffer_putc(out, '|');
                random_regex(out, state, depth - 1);
            }
            di_buffer_putc(out, ')');
        } else if (grammar_random(state, 12) == 0) {
            di_buffer_puts(out, grammar_random(state, 2) ? "^" : "$");
            continue;
        } else {
            di_buffer_puts(out, atoms[grammar_random(state, 10)]);
        }
        if (grammar_random(state, 3) == 0) di_buffer_puts(out, counts[grammar_random(state, 7)]);
    }
}

static bool pcre2_says(pcre2_code *code, const char *text, size_t size) {
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(code, NULL);
    int result = pcre2_match(code, (PCRE2_SPTR)text, size, 0, PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                             data, NULL);
    pcre2_match_data_free(data);
    return result >= 0;
}

static void test_random_expressions_agree_with_pcre2(void **state) {
    (void)state;
    static const char *const alphabet[] = {"a", "b", "c", "d", "7", "é", "_"};
    uint64_t seed = 11;
    int n_taken = 0;
    for (int i = 0; i < 400; i++) {
        di_buffer regex = DI_BUFFER_EMPTY;
        di_grammar *g;
        di_error error;
        int code_error;
        PCRE2_SIZE where;
        random_regex(&regex, &seed, 2);
        pcre2_code *code =
            pcre2_compile((PCRE2_SPTR)regex.data, regex.size, PCRE2_UTF | PCRE2_DOLLAR_ENDONLY,
                          &code_error, &where, NULL);
        assert_non_null(code);
        di_status status = di_grammar_compile_regex(NULL, regex.data, regex.size, &g, &error);
        if (status != DI_OK) assert_string_equal(error.message, "no text satisfies the grammar");
        for (int k = 0; k < 60; k++) {
            di_buffer text = DI_BUFFER_EMPTY;
            for (uint32_t n = grammar_random(&seed, 7); n > 0; n--) {
                di_buffer_puts(&text, alphabet[grammar_random(&seed, 7)]);
            }
            const char *bytes = text.data ? text.data : "";
            bool wanted = pcre2_says(code, bytes, text.size);
            bool taken = status == DI_OK && grammar_accepts(g, bytes, text.size);
            if (taken != wanted) {
                fail_msg("%s on '%s': PCRE2 says %d", regex.data, bytes, wanted);
            }
            n_taken += taken;
            di_buffer_free(&text);
        }
        if (status == DI_OK) di_grammar_release(g);
        pcre2_code_free(code);
        di_buffer_free(&regex);
    }
    assert_true(n_taken > 500);
}
#else
static void test_random_expressions_agree_with_pcre2(void **state) {
    (void)state;
    skip();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_whole_text_matches),
        cmocka_unit_test(test_classes_and_escapes),
        cmocka_unit_test(test_an_empty_class_matches_nothing),
        cmocka_unit_test(test_anchors),
        cmocka_unit_test(test_refusals_name_the_feature),
        cmocka_unit_test(test_hostile_expressions_are_bounded),
        cmocka_unit_test(test_properties),
        cmocka_unit_test(test_random_expressions_agree_with_pcre2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
