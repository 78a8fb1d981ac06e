/* Stop texts at every split of the stream. */
#include "api/stop_match.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct example {
    const char *stops[3];
    const char *text, *want;
    bool stopped;
} example;

static const example examples[] = {
    {{"END"}, "abc END def", "abc ", true},
    {{"END"}, "abc EN", "abc EN", false},
    {{"END"}, "EEND", "E", true},
    {{"aab"}, "aaab", "a", true},
    {{"aab"}, "aaaaaa", "aaaaaa", false},
    {{"b", "abc"}, "xabc", "xa", true}, /* complete first counts: b is there before abc is */
    {{"abc", "bcd"}, "xabcd", "x", true},
    {{"\n\n", "###"}, "a\nb\n#\n\nc", "a\nb\n#", true},
    {{"é"}, "caf\xC3\xA8 caf\xC3\xA9!", "caf\xC3\xA8 caf", true},
    {{NULL}, "anything", "anything", false},
};

static void check(const example *e, size_t first, size_t step) {
    int n = 0;
    while (n < 3 && e->stops[n]) n++;
    di_stop_match match;
    di_error error;
    assert_int_equal(di_stop_match_init(&match, e->stops, n, &error), DI_OK);
    di_buffer out = DI_BUFFER_EMPTY;
    size_t size = strlen(e->text), at = 0;
    for (size_t take = first; at < size; take = step) {
        if (take > size - at) take = size - at;
        di_stop_match_push(&match, e->text + at, take, &out);
        at += take;
    }
    di_stop_match_flush(&match, &out);
    assert_int_equal(match.stopped, e->stopped);
    assert_string_equal(out.data ? out.data : "", e->want);
    di_buffer_free(&out);
    di_stop_match_deinit(&match);
}

static void test_every_split(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        size_t size = strlen(examples[i].text);
        for (size_t first = 1; first <= size; first++) check(&examples[i], first, size);
        check(&examples[i], 1, 1);
    }
}

/* What is certain is not held back. */
static void test_holds_no_more_than_needed(void **state) {
    (void)state;
    static const char *const stops[] = {"STOP"};
    di_stop_match match;
    di_error error;
    assert_int_equal(di_stop_match_init(&match, stops, 1, &error), DI_OK);
    di_buffer out = DI_BUFFER_EMPTY;
    di_stop_match_push(&match, "go ST", 5, &out);
    assert_string_equal(out.data, "go ");
    di_stop_match_push(&match, "AY", 2, &out);
    assert_string_equal(out.data, "go STAY");
    di_buffer_free(&out);
    di_stop_match_deinit(&match);
}

static void test_refused_texts(void **state) {
    (void)state;
    static const char *const empty[] = {"a", ""}, *const broken[] = {"\xC3"};
    di_stop_match match;
    di_error error;
    assert_int_equal(di_stop_match_init(&match, empty, 2, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "stop: an empty text ends no answer");
    di_stop_match_deinit(&match);
    assert_int_equal(di_stop_match_init(&match, broken, 1, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "stop: text 1 is not valid UTF-8");
    di_stop_match_deinit(&match);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_split),
        cmocka_unit_test(test_holds_no_more_than_needed),
        cmocka_unit_test(test_refused_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
