/* Grammars that are kept for the next request: the same one comes back, the least recently used goes when
 * there are too many or they hold too much, and who has one goes on with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "server/grammars.h"
#include "support/grammar_support.h"

static di_grammars *open_grammars(size_t max_bytes) {
    di_grammars *g;
    di_error error;
    if (di_grammars_create(grammar_tokenizer(), 0, 1, max_bytes, &g, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    return g;
}

/* An expression of its own for every number. */
static di_grammar *get(di_grammars *g, int number) {
    char text[32];
    di_error error;
    di_grammar *out;
    snprintf(text, sizeof text, "[a-z0-9]{%d,60}", number);
    const di_json source = {.type = DI_JSON_STRING, .text = text, .length = strlen(text)};
    const di_form_spec spec = {.form = DI_FORM_REGEX, .source = &source};
    if (di_grammars_get(g, &spec, &out, &error) != DI_OK) fail_msg("%s", error.message);
    return out;
}

static void test_the_same_comes_back(void **state) {
    (void)state;
    di_grammars *g = open_grammars(DI_GRAMMARS_BYTES);
    di_grammar *first = get(g, 1), *other = get(g, 2), *again = get(g, 1);
    assert_ptr_equal(first, again);
    assert_ptr_not_equal(first, other);
    for (int i = 3; i <= 33; i++) di_grammar_release(get(g, i)); /* 2 was used least recently */
    assert_ptr_equal(first, again = (di_grammar_release(again), get(g, 1)));
    di_grammar *new = get(g, 2);
    assert_ptr_not_equal(other, new);
    di_grammar_release(first);
    di_grammar_release(again);
    di_grammar_release(other);
    di_grammar_release(new);
    di_grammars_destroy(g);
}

/* Grammars grow by the masks that answers need: what is too much then goes with the next request. */
static void test_bytes_are_bounded(void **state) {
    (void)state;
    di_grammars *g = open_grammars(SIZE_MAX);
    di_grammar_release(get(g, 1));
    size_t small = di_grammars_memory(g);
    di_grammars_destroy(g);
    g = open_grammars(4 * small);
    di_grammar *first = get(g, 1);
    for (int i = 2; i <= 20; i++) {
        di_grammar_release(get(g, i));
        assert_true(di_grammars_memory(g) <= 4 * small);
    }
    di_buffer answer = DI_BUFFER_EMPTY;
    di_grammar *last = get(g, 20);
    (void)grammar_sample(last, 1, 1, 40, 0, &answer);
    (void)grammar_sample(first, 1, 1, 40, 0, &answer); /* it is dropped, and still works */
    di_buffer_free(&answer);
    assert_true(di_grammar_memory(last) > 4 * small);
    di_grammar *again = get(g, 20);
    assert_ptr_equal(again, last); /* alone it may be larger */
    assert_true(di_grammars_memory(g) == di_grammar_memory(last));
    di_grammar_release(get(g, 1));
    assert_true(di_grammars_memory(g) <= 4 * small);
    di_grammar_release(first);
    di_grammar_release(last);
    di_grammar_release(again);
    di_grammars_destroy(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_comes_back),
        cmocka_unit_test(test_bytes_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, grammar_vocabulary_done);
}
