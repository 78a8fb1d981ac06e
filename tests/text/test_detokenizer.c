/* The streaming detokeniser. Expected texts come from Python's bytes.decode("utf-8", "replace"). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

#define R "\xEF\xBF\xBD"

static const struct {
    const char *bytes, *text;
} cases[] = {
    {"", ""},
    {"abc", "abc"},
    {"\xC3\xA9", "\xC3\xA9"},
    {"\xE4\xBD\xA0\xE5\xA5\xBD", "\xE4\xBD\xA0\xE5\xA5\xBD"},
    {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
    {"\x80", R},
    {"\x80\xBF", R R},
    {"\xFF\xFE", R R},
    {"\xC0\xAF", R R},
    {"\xC1", R},
    {"\xF5\x80", R R},
    /* A sequence that breaks off is one, also at the end. */
    {"\xC3", R},
    {"\xC3"
     "a",
     R "a"},
    {"\xE4\xBD", R},
    {"\xE4\xBD"
     "a",
     R "a"},
    {"\xE4\xBD\xE4\xBD\xA0", R "\xE4\xBD\xA0"},
    {"\xF0\x9F\x98", R},
    {"\xF0\x9F\x98"
     "a",
     R "a"},
    {"\xF0\x9F\xF0\x9F\x98\x80", R "\xF0\x9F\x98\x80"},
    /* Second bytes out of range break off at once: overlong, surrogates, above U+10FFFF. */
    {"\xE0\x80\x80", R R R},
    {"\xE0\x9F\xBF", R R R},
    {"\xED\xA0\x80", R R R},
    {"\xED\xBF\xBF", R R R},
    {"\xF0\x8F\xBF\xBF", R R R R},
    {"\xF4\x90\x80\x80", R R R R},
    {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"},
    {"\xED\x9F\xBF\xEE\x80\x80", "\xED\x9F\xBF\xEE\x80\x80"},
    {"a\xF1\x80\x80\xE1\x80\xC2"
     "b\x80"
     "c\x80\xBF"
     "d",
     "a" R R R "b" R "c" R R "d"},
    {"\xEF\xBF\xBD\xEF\xBB\xBF", "\xEF\xBF\xBD\xEF\xBB\xBF"},
};

static void test_all_cuts_give_the_text_of_python(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t size = strlen(cases[c].bytes);
        /* Bit i of `cuts`: a cut behind byte i. */
        for (unsigned cuts = 0; cuts < 1u << (size ? size - 1 : 0); cuts++) {
            di_detokenizer stream = DI_DETOKENIZER_EMPTY;
            di_buffer out = DI_BUFFER_EMPTY;
            size_t from = 0;
            for (size_t i = 0; i < size; i++) {
                if (i + 1 < size && !(cuts >> i & 1)) continue;
                di_detokenizer_push(&stream, cases[c].bytes + from, i + 1 - from, &out);
                from = i + 1;
                assert_in_range(stream.n_held, 0, 3);
                assert_int_equal(di_utf8_valid_prefix(out.data ? out.data : "", out.size),
                                 out.size);
            }
            di_detokenizer_finish(&stream, &out);
            assert_int_equal(stream.n_held, 0);
            assert_string_equal(out.data ? out.data : "", cases[c].text);
            di_buffer_free(&out);
        }
    }
}

/* What is certain is not held back. */
static void test_output_comes_at_once(void **state) {
    (void)state;
    static const struct {
        const char *push, *so_far;
    } steps[] = {{"a\xE4", "a"},
                 {"\xBD", "a"},
                 {"\xA0"
                  "b",
                  "a\xE4\xBD\xA0"
                  "b"},
                 {"\xE0", "a\xE4\xBD\xA0"
                          "b"},
                 {"\x80", "a\xE4\xBD\xA0"
                          "b" R R},
                 {"\xF0\x9F\x98", "a\xE4\xBD\xA0"
                                  "b" R R},
                 {"", "a\xE4\xBD\xA0"
                      "b" R R},
                 {"\x80", "a\xE4\xBD\xA0"
                          "b" R R "\xF0\x9F\x98\x80"},
                 {"\xFF", "a\xE4\xBD\xA0"
                          "b" R R "\xF0\x9F\x98\x80" R}};
    di_detokenizer stream = DI_DETOKENIZER_EMPTY;
    di_buffer out = DI_BUFFER_EMPTY;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        di_detokenizer_push(&stream, steps[i].push, strlen(steps[i].push), &out);
        assert_string_equal(out.data, steps[i].so_far);
    }
    di_buffer_free(&out);
}

/* Random bytes: one push or one byte at a time, the same text; valid text unchanged. */
static void test_random_bytes_do_not_depend_on_cuts(void **state) {
    (void)state;
    static const unsigned char telling[] = {'a',  0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC2, 0xDF,
                                            0xE0, 0xE4, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
    uint64_t random = 42;
    for (int round = 0; round < 20000; round++) {
        char bytes[40];
        di_buffer whole = DI_BUFFER_EMPTY, parts = DI_BUFFER_EMPTY;
        di_detokenizer one = DI_DETOKENIZER_EMPTY, two = DI_DETOKENIZER_EMPTY;
        for (size_t i = 0; i < sizeof bytes; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (char)telling[(random >> 33) % sizeof telling];
        }
        di_detokenizer_push(&one, bytes, sizeof bytes, &whole);
        di_detokenizer_finish(&one, &whole);
        for (size_t i = 0; i < sizeof bytes; i++) di_detokenizer_push(&two, bytes + i, 1, &parts);
        di_detokenizer_finish(&two, &parts);
        assert_string_equal(whole.data, parts.data);
        assert_int_equal(di_utf8_valid_prefix(whole.data, whole.size), whole.size);
        di_buffer_free(&whole);
        di_buffer_free(&parts);
    }
}

/* Characters of two to four tokens, token after token as a model gives them; a lone byte at the
 * end. */
static void test_characters_spread_over_tokens(void **state) {
    (void)state;
    static const char text[] =
        "é你好，世界。Привет 🙂👩\u200d💻 नमस्ते\xE4\xBD";
    di_tokenizer *t;
    di_error error;
    const char *path = DI_SOURCE_DIR "/tests/data/golden/tiny-b/model/tokenizer.json";
    if (di_tokenizer_load(path, &t, &error) != DI_OK) fail_msg("%s", error.message);
    di_ids ids = {NULL, 0, 0};
    di_buffer out = DI_BUFFER_EMPTY;
    di_detokenizer stream = DI_DETOKENIZER_EMPTY;
    size_t n_waiting = 0; /* tokens after which a character was not complete */
    assert_int_equal(di_tokenizer_encode(t, text, strlen(text), true, &ids, &error), DI_OK);
    for (size_t i = 0; i < ids.size; i++) {
        size_t size;
        const char *bytes = di_tokenizer_bytes(t, ids.data[i], &size);
        di_detokenizer_push(&stream, bytes, size, &out);
        assert_int_equal(di_utf8_valid_prefix(out.data ? out.data : "", out.size), out.size);
        n_waiting += stream.n_held > 0;
    }
    assert_true(n_waiting > 20);
    assert_int_equal(stream.n_held, 2);
    assert_memory_equal(out.data, text, strlen(text) - 2);
    assert_int_equal(out.size, strlen(text) - 2);
    di_detokenizer_finish(&stream, &out);
    assert_string_equal(out.data + strlen(text) - 2, R);
    di_buffer_free(&out);
    di_ids_free(&ids);
    di_tokenizer_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_cuts_give_the_text_of_python),
        cmocka_unit_test(test_output_comes_at_once),
        cmocka_unit_test(test_random_bytes_do_not_depend_on_cuts),
        cmocka_unit_test(test_characters_spread_over_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
