/* Following an answer: masks, ends, rollback, forks, forced text, waiting for a thought to end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/grammar_support.h"
#include "support/tokenizer_text.h"

enum { END = 1, THINK_CLOSE = 2550 /* of the demo model */ };

static uint32_t *mask_of(di_grammar_matcher *m) {
    uint32_t *words = malloc(di_vocabulary_words(grammar_vocabulary()) * sizeof *words);
    di_error error;
    assert_non_null(words);
    memset(words, 0xa5, di_vocabulary_words(grammar_vocabulary()) * sizeof *words);
    if (di_grammar_matcher_mask(m, words, &error) != DI_OK) fail_msg("%s", error.message);
    return words;
}

static bool allows(di_grammar_matcher *m, int32_t id) {
    uint32_t *words = mask_of(m);
    bool allowed = words[id / 32] >> (id % 32) & 1;
    free(words);
    return allowed;
}

static void take(di_grammar_matcher *m, const char *text) {
    di_error error;
    size_t taken;
    if (di_grammar_matcher_advance_bytes(m, text, strlen(text), &taken, &error) != DI_OK) {
        fail_msg("'%s': %s", text, error.message);
    }
}

static void test_the_end_is_allowed_exactly_where_the_grammar_accepts(void **state) {
    (void)state;
    di_error error;
    di_grammar *g = grammar_of_schema("{\"type\": \"integer\"}", NULL);
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    assert_false(di_grammar_matcher_accepting(m));
    assert_false(allows(m, END));
    assert_int_equal(di_grammar_matcher_advance(m, END, &error), DI_ERR_INVALID);
    take(m, "1");
    assert_true(di_grammar_matcher_accepting(m));
    assert_false(di_grammar_matcher_complete(m));
    assert_true(allows(m, END));
    assert_int_equal(di_grammar_matcher_advance(m, END, &error), DI_OK);
    assert_true(di_grammar_matcher_ended(m));
    assert_int_equal(di_grammar_matcher_advance(m, END, &error), DI_ERR_INVALID);
    uint32_t word[100];
    assert_int_equal(di_grammar_matcher_mask(m, word, &error), DI_ERR_USAGE);
    assert_true(di_grammar_matcher_rollback(m, 1));
    assert_false(di_grammar_matcher_ended(m));
    assert_true(allows(m, END));
    di_grammar_matcher_destroy(m);
    di_grammar_release(g);
}

static void test_markers_and_missing_ids_are_never_allowed(void **state) {
    (void)state;
    di_grammar *g;
    di_error error;
    assert_int_equal(di_grammar_compile_regex(grammar_vocabulary(), "[^x]*", 5, &g, &error), DI_OK);
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    for (int32_t id = 0; id < di_vocabulary_size(grammar_vocabulary()); id++) {
        if (id == END || !di_tokenizer_is_added(grammar_tokenizer(), id)) continue;
        assert_false(allows(m, id));
        assert_int_equal(di_grammar_matcher_advance(m, id, &error), DI_ERR_INVALID);
    }
    assert_int_equal(di_grammar_matcher_advance(m, -1, &error), DI_ERR_INVALID);
    assert_int_equal(di_grammar_matcher_advance(m, 1 << 30, &error), DI_ERR_INVALID);
    take(m, "<think>"); /* as ordinary text it may come */
    di_grammar_matcher_destroy(m);
    di_grammar_release(g);
}

/* Every mask of random answers under grammars of all kinds is what the matcher takes. */
static void test_masks_are_what_the_matcher_takes(void **state) {
    (void)state;
    static const char *const schemas[] = {
        "true",
        "{\"type\": \"string\"}",
        "{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 9}",
        "{\"type\": \"string\", \"minLength\": 20}",
        "{\"type\": \"string\", \"pattern\": \"^[^<]*$\"}",
        "{\"type\": \"array\", \"items\": {\"type\": \"string\", \"maxLength\": 3}, \"minItems\": 4, "
        "\"maxItems\": 9}",
        "{\"type\": \"object\", \"properties\": {\"a\": true, \"b\": {\"$ref\": \"#\"}}}",
        "{\"type\": \"object\", \"maxProperties\": 3, \"additionalProperties\": {\"type\": "
        "\"boolean\"}}",
    };
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        di_grammar *g = grammar_of_schema(schemas[i], NULL);
        di_buffer text = DI_BUFFER_EMPTY;
        for (uint64_t seed = 0; seed < 3; seed++) grammar_sample(g, seed * 50 + i, 1, 60, 5, &text);
        di_buffer_free(&text);
        di_grammar_release(g);
    }
}

/* A history of masks is the same again after any rollback, and a fork goes its own way. */
static void test_rollback_and_fork(void **state) {
    (void)state;
    static const char *const pieces[] = {"{", "\"a\"", ": [", "1",   ",",   "{\"b\"", ":\"x", "y\"",
                                         "}", "]",     ", ",  "\"c", "\":", "nul",    "l"};
    enum { N = sizeof pieces / sizeof *pieces };
    di_grammar *g = grammar_of_schema("{\"type\": \"object\"}", NULL);
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    size_t n_words = di_vocabulary_words(grammar_vocabulary());
    uint32_t *masks[N + 1];
    for (int i = 0; i < N; i++) {
        masks[i] = mask_of(m);
        take(m, pieces[i]);
    }
    masks[N] = mask_of(m);
    for (int back = 1; back <= N; back++) {
        assert_true(di_grammar_matcher_rollback(m, (size_t)back));
        for (int i = N - back; i <= N; i++) {
            uint32_t *again = mask_of(m);
            assert_memory_equal(again, masks[i], n_words * sizeof *again);
            free(again);
            if (i < N) take(m, pieces[i]);
        }
    }
    assert_false(di_grammar_matcher_rollback(m, N + 1));
    di_grammar_matcher *other = di_grammar_matcher_fork(m);
    assert_false(di_grammar_matcher_rollback(other, 1));
    take(other, ", \"d\": {}}");
    take(m, "}");
    assert_true(di_grammar_matcher_complete(other));
    assert_true(di_grammar_matcher_complete(m));
    assert_true(di_grammar_matcher_rollback(m, 1));
    uint32_t *again = mask_of(m);
    assert_memory_equal(again, masks[N], n_words * sizeof *again);
    free(again);
    di_grammar_matcher_destroy(other);
    di_grammar_matcher_destroy(m);
    for (int i = 0; i <= N; i++) free(masks[i]);
    di_grammar_release(g);
}

/* Frames that are not needed any more go, also while a history holds some. */
static void test_a_long_answer_stays_small(void **state) {
    (void)state;
    di_grammar *g = grammar_of_schema("{\"type\": \"array\"}", NULL);
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    take(m, "[[");
    for (int i = 0; i < 20000; i++) {
        take(m, "[\"a\", [1, {\"b\" : null}]] , ");
        if (i % 7 == 0) {
            take(m, "[");
            assert_true(di_grammar_matcher_rollback(m, 2));
            take(m, "[{\"q\": [ ]}],");
        }
    }
    take(m, "1]]");
    assert_true(di_grammar_matcher_complete(m));
    di_grammar_matcher_destroy(m);
    assert_true(di_grammar_memory(g) < 1 << 20);
    di_grammar_release(g);
}

static void test_deep_nesting_is_no_recursion(void **state) {
    (void)state;
    enum { DEPTH = 200000 };
    di_grammar *g = grammar_of_schema("{\"type\": \"array\"}", NULL);
    char *text = malloc(2 * DEPTH);
    assert_non_null(text);
    memset(text, '[', DEPTH);
    memset(text + DEPTH, ']', DEPTH);
    assert_true(grammar_accepts(g, text, 2 * DEPTH));
    assert_false(grammar_accepts(g, text, 2 * DEPTH - 1));
    free(text);
    di_grammar_release(g);
}

static void test_characters_may_be_split_anywhere(void **state) {
    (void)state;
    di_grammar *g = grammar_of_schema("{\"enum\": [\"日本😀\"]}", NULL);
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    const char *text = "\"日本😀\"";
    di_error error;
    size_t taken;
    for (const char *c = text; *c; c++) {
        grammar_check_mask(m);
        assert_int_equal(di_grammar_matcher_advance_bytes(m, c, 1, &taken, &error), DI_OK);
        assert_int_equal(di_grammar_matcher_advance_bytes(m, "\xff", 1, &taken, &error),
                         DI_ERR_INVALID);
        assert_int_equal(taken, 0);
    }
    assert_true(di_grammar_matcher_complete(m));
    di_grammar_matcher_destroy(m);
    di_grammar_release(g);
}

static void test_invalid_utf8_is_never_allowed(void **state) {
    (void)state;
    static const char *const invalid[] = {"\"\x80",         "\"\xc0\x80",  "\"\xe0\x80\x80",
                                          "\"\xed\xa0\x80", "\"\xff",      "\"\xf4\x90\x80",
                                          "\"\xc3\"",       "\"\\ud800\"", "\"\n"};
    di_grammar *g = grammar_of_schema("{\"type\": \"string\"}", NULL);
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        assert_false(grammar_accepts(g, invalid[i], strlen(invalid[i])));
    }
    const char *escapes = "\"\\ud83d\\ude00\\u00e9\\/\"";
    assert_true(grammar_accepts(g, escapes, strlen(escapes)));
    di_grammar_release(g);
}

static void test_forced_text(void **state) {
    (void)state;
    di_error error;
    di_buffer text = DI_BUFFER_EMPTY;
    di_ids ids = {NULL, 0, 0};
    di_grammar_options options = {.space = DI_GRAMMAR_SPACE_PYTHON};
    di_grammar *g =
        grammar_of_schema("{\"type\": \"object\", \"properties\": {\"temperature\": "
                          "{\"const\": \"very warm\"}, \"b\": {\"type\": \"boolean\"}}, "
                          "\"required\": [\"temperature\", \"b\"], "
                          "\"additionalProperties\": false}",
                          &options);
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    assert_int_equal(di_grammar_matcher_forced(m, 1000, &text, &error), DI_OK);
    assert_string_equal(text.data, "{\"temperature\": \"very warm\", \"b\": ");
    /* As tokens: each allowed by the mask before it. */
    assert_int_equal(di_grammar_matcher_forced_ids(m, 50, &ids, &error), DI_OK);
    assert_true(ids.size > 3);
    for (size_t i = 0; i < ids.size; i++) {
        assert_true(allows(m, ids.data[i]));
        assert_int_equal(di_grammar_matcher_advance(m, ids.data[i], &error), DI_OK);
    }
    di_buffer_clear(&text);
    assert_int_equal(di_grammar_matcher_forced(m, 1000, &text, &error), DI_OK);
    take(m, text.data ? text.data : "");
    di_buffer_clear(&text);
    assert_int_equal(di_grammar_matcher_forced(m, 1000, &text, &error), DI_OK);
    assert_int_equal(text.size, 0); /* true or false */
    take(m, "t");
    assert_int_equal(di_grammar_matcher_forced(m, 3, &text, &error), DI_OK);
    assert_string_equal(text.data, "rue");
    di_buffer_clear(&text);
    assert_int_equal(di_grammar_matcher_forced(m, 1000, &text, &error), DI_OK);
    assert_string_equal(text.data, "rue}");
    take(m, "rue}");
    ids.size = 0;
    assert_int_equal(di_grammar_matcher_forced_ids(m, 50, &ids, &error), DI_OK);
    assert_int_equal(ids.size, 0);
    di_ids_free(&ids);
    di_buffer_free(&text);
    di_grammar_matcher_destroy(m);
    di_grammar_release(g);
}

static void test_masks_of_drafts(void **state) {
    (void)state;
    di_error error;
    di_grammar *g = grammar_of_schema("{\"enum\": [12, 13, 45]}", NULL);
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    size_t stride = di_vocabulary_words(grammar_vocabulary()) + 3, n_rows;
    uint32_t *words = calloc(5 * stride, sizeof *words);
    di_ids ids = {NULL, 0, 0};
    assert_non_null(words);
    assert_int_equal(di_tokenizer_encode(grammar_tokenizer(), "1", 1, false, &ids, &error), DI_OK);
    assert_int_equal(di_tokenizer_encode(grammar_tokenizer(), "3", 1, false, &ids, &error), DI_OK);
    assert_int_equal(ids.size, 2);
    int32_t drafts[4] = {ids.data[0], ids.data[1], END, END}, wrong[2] = {ids.data[0], ids.data[0]};
    /* 1, 3, the end: three rows of masks; nothing comes behind an end. */
    assert_int_equal(di_grammar_matcher_masks(m, drafts, 4, words, stride, &n_rows, &error), DI_OK);
    assert_int_equal(n_rows, 3);
    for (size_t row = 0; row < n_rows; row++) {
        uint32_t *alone = mask_of(m);
        assert_memory_equal(words + row * stride, alone, (stride - 3) * sizeof *words);
        free(alone);
        assert_int_equal(words[row * stride + stride - 1], 0);
        assert_int_equal(di_grammar_matcher_advance(m, drafts[row], &error), DI_OK);
    }
    assert_true(di_grammar_matcher_rollback(m, 3));
    /* 1, then 1, which is not allowed: a mask before each. */
    assert_int_equal(di_grammar_matcher_masks(m, wrong, 2, words, stride, &n_rows, &error), DI_OK);
    assert_int_equal(n_rows, 2);
    assert_int_equal(di_grammar_matcher_masks(m, wrong, 0, words, stride, &n_rows, &error), DI_OK);
    assert_int_equal(n_rows, 1);
    assert_int_equal(di_grammar_matcher_masks(m, wrong, 65, words, stride, &n_rows, &error),
                     DI_ERR_USAGE);
    take(m, "12"); /* it stayed where it was */
    assert_true(di_grammar_matcher_complete(m));
    di_ids_free(&ids);
    free(words);
    di_grammar_matcher_destroy(m);
    di_grammar_release(g);
}

static void test_a_thought_comes_first(void **state) {
    (void)state;
    di_error error;
    di_grammar *g = grammar_of_schema("{\"type\": \"object\"}", NULL);
    di_grammar_matcher *m = di_grammar_matcher_create(g, THINK_CLOSE);
    int32_t letter = 300;
    assert_true(di_grammar_matcher_waiting(m));
    assert_true(allows(m, letter));
    assert_true(allows(m, THINK_CLOSE));
    assert_false(allows(m, END));
    assert_false(allows(m, THINK_CLOSE + 1)); /* the DSML marker: a call in a thought */
    grammar_check_mask(m);
    assert_false(di_grammar_matcher_accepting(m));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(di_grammar_matcher_advance(m, letter + i, &error), DI_OK);
    }
    assert_int_equal(di_grammar_matcher_advance(m, END, &error), DI_ERR_INVALID);
    assert_true(di_grammar_matcher_waiting(m));
    assert_int_equal(di_grammar_matcher_advance(m, THINK_CLOSE, &error), DI_OK);
    assert_false(di_grammar_matcher_waiting(m));
    assert_false(allows(m, THINK_CLOSE));
    take(m, "{}");
    assert_true(di_grammar_matcher_rollback(m, 2)); /* a draft over the border is taken back */
    assert_true(di_grammar_matcher_waiting(m));
    assert_true(allows(m, letter));
    di_grammar_matcher_destroy(m);
    di_grammar_release(g);
}

static void test_a_grammar_without_a_vocabulary_follows_bytes(void **state) {
    (void)state;
    di_error error;
    di_grammar *g;
    uint32_t word;
    assert_int_equal(di_grammar_compile_json_object(NULL, NULL, &g, &error), DI_OK);
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    assert_int_equal(di_grammar_matcher_mask(m, &word, &error), DI_ERR_USAGE);
    assert_int_equal(di_grammar_matcher_advance(m, 300, &error), DI_ERR_USAGE);
    take(m, "{\"a\": [1, 2.5e-3, \"\\n\", true, null, {}]}");
    assert_true(di_grammar_matcher_complete(m));
    di_grammar_matcher_destroy(m);
    di_grammar_release(g);
}

/* More ids than the tokenizer has, and several ends. */
static void test_a_vocabulary_of_its_own(void **state) {
    (void)state;
    static const char *const words[] = {"ab", "abc", NULL};
    static const char *const merges[] = {"a b", "ab c", NULL};
    static const char *const added[] = {"\"id\": 258, \"content\": \"<end>\"",
                                        "\"id\": 259, \"content\": \"<b>\"", NULL};
    char *text = tokenizer_text(words, merges, added);
    di_tokenizer *t;
    di_vocabulary *v;
    di_grammar *g;
    di_error error;
    const int32_t ends[] = {258, 261}, wrong = 262;
    if (di_tokenizer_parse(text, strlen(text), "test", &t, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(di_vocabulary_create(t, 100, NULL, 0, &v, &error), DI_ERR_INVALID);
    assert_int_equal(di_vocabulary_create(t, 262, &wrong, 1, &v, &error), DI_ERR_INVALID);
    assert_int_equal(di_vocabulary_create(t, 262, ends, 2, &v, &error), DI_OK);
    assert_int_equal(di_vocabulary_words(v), 9);
    assert_int_equal(di_grammar_compile_regex(v, "(ab)?c?", 7, &g, &error), DI_OK);
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    uint32_t mask[9], expected[9] = {0};
    expected['a' / 32] |= 1u << ('a' % 32);
    expected['c' / 32] |= 1u << ('c' % 32);
    expected[8] = 1u << 0 | 1u << 1 | 1u << 2 | 1u << 5; /* ab, abc, and both ends */
    assert_int_equal(di_grammar_matcher_mask(m, mask, &error), DI_OK);
    assert_memory_equal(mask, expected, sizeof mask);
    assert_int_equal(di_grammar_matcher_advance(m, 259, &error), DI_ERR_INVALID);
    assert_int_equal(di_grammar_matcher_advance(m, 260, &error), DI_ERR_INVALID);
    assert_int_equal(di_grammar_matcher_advance(m, 257, &error), DI_OK);
    assert_int_equal(di_grammar_matcher_advance(m, 261, &error), DI_OK);
    di_grammar_matcher_destroy(m);
    di_grammar_release(g);
    di_vocabulary_destroy(v);
    di_tokenizer_destroy(t);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_end_is_allowed_exactly_where_the_grammar_accepts),
        cmocka_unit_test(test_markers_and_missing_ids_are_never_allowed),
        cmocka_unit_test(test_masks_are_what_the_matcher_takes),
        cmocka_unit_test(test_rollback_and_fork),
        cmocka_unit_test(test_a_long_answer_stays_small),
        cmocka_unit_test(test_deep_nesting_is_no_recursion),
        cmocka_unit_test(test_characters_may_be_split_anywhere),
        cmocka_unit_test(test_invalid_utf8_is_never_allowed),
        cmocka_unit_test(test_forced_text),
        cmocka_unit_test(test_masks_of_drafts),
        cmocka_unit_test(test_a_thought_comes_first),
        cmocka_unit_test(test_a_grammar_without_a_vocabulary_follows_bytes),
        cmocka_unit_test(test_a_vocabulary_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, grammar_vocabulary_done);
}
