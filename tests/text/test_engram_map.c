/* Engram's token map: three whole maps by the numpy reference, and each rule by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "support/tokenizer_text.h"
#include "text/tokenizer.h"

static void compare_map(const char *tokenizer_path, const char *map_path, int32_t n_classes) {
    di_tokenizer *t;
    di_error error;
    char *text = NULL;
    uint64_t size;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *root;
    if (di_tokenizer_load(tokenizer_path, &t, &error) != DI_OK ||
        di_file_read(map_path, 1 << 24, &text, &size, &error) != DI_OK ||
        di_json_parse(text, size, map_path, &arena, &root, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    free(text);
    const di_json *want = di_json_get(root, "map");
    int32_t n = di_tokenizer_size(t), classes;
    assert_int_equal(want->length, n);
    int32_t *map = malloc((size_t)n * sizeof *map);
    assert_non_null(map);
    assert_int_equal(di_tokenizer_engram_map(t, map, &classes, &error), DI_OK);
    assert_int_equal(classes, n_classes);
    const di_json *item = want->first;
    for (int32_t id = 0; id < n; id++, item = item->next) {
        int64_t class;
        assert_true(di_json_int64(item, &class));
        assert_int_equal(map[id], class);
    }
    free(map);
    di_arena_free(&arena);
    di_tokenizer_destroy(t);
}

static void test_maps_of_the_reference(void **state) {
    (void)state;
    compare_map(DI_SOURCE_DIR "/models/demo/tokenizer.json",
                DI_SOURCE_DIR "/tests/data/tokenizer/engram_demo.json", 2152);
    compare_map(DI_SOURCE_DIR "/tests/data/golden/tiny-a/model/tokenizer.json",
                DI_SOURCE_DIR "/tests/data/tokenizer/engram_tiny-a.json", 339);
    compare_map(DI_SOURCE_DIR "/tests/data/golden/tiny-b/model/tokenizer.json",
                DI_SOURCE_DIR "/tests/data/tokenizer/engram_tiny-b.json", 276);
}

/* A tokenizer whose token 256 + i stands for the bytes of texts[i], at most 60 of them. */
static di_tokenizer *tokenizer_of(const char *const *texts, size_t n, const char *const *added) {
    static char spellings[16][256];
    const char *words[17] = {NULL}, *no_merges[] = {NULL};
    assert_in_range(n, 0, 16);
    for (size_t i = 0; i < n; i++) {
        char *at = spellings[i];
        for (const char *c = texts[i]; *c; c++, at += strlen(at)) {
            char spelling[4];
            tokenizer_text_spell((unsigned char)*c, spelling);
            strcpy(at, spelling);
        }
        words[i] = spellings[i];
    }
    di_tokenizer *t;
    di_error error;
    char *text = tokenizer_text(words, no_merges, added);
    if (di_tokenizer_parse(text, strlen(text), "test.json", &t, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    free(text);
    return t;
}

/* Whether two tokens with these bytes share a class. */
static bool share(const char *a, const char *b) {
    const char *texts[] = {a, b};
    di_tokenizer *t = tokenizer_of(texts, 2, NULL);
    int32_t map[258], n_classes;
    di_error error;
    assert_int_equal(di_tokenizer_size(t), 258);
    assert_int_equal(di_tokenizer_engram_map(t, map, &n_classes, &error), DI_OK);
    di_tokenizer_destroy(t);
    return map[256] == map[257];
}

static void test_what_shares_a_class(void **state) {
    (void)state;
    assert_true(share("Word", "word"));
    assert_true(share(" word", "word"));
    assert_true(share("a  b", "a\t\r\nb"));
    assert_true(share("caf\xC3\xA9", "CAFE"));
    assert_true(share("cafe\xCC\x81", "caf\xC3\xA9"));
    assert_true(share("\xEF\xBC\xA1\xEF\xBC\x92", "a2"));           /* full width */
    assert_true(share("\xEF\xAC\x81ne", "fine"));                   /* ligature */
    assert_true(share("\xC4\xB0x", "ix"));                          /* dotted capital I */
    assert_true(share("\xCE\xA3\xCE\xA3", "\xCF\x83\xCF\x83"));     /* sigma stays medial */
    assert_true(share("\xE0\xA4\x95\xE0\xA4\xBE", "\xE0\xA4\x95")); /* Mc goes too */
    assert_true(share("xy\xE2\x83\x9D", "xy"));                     /* Me */
    assert_true(share("\xE3\x80\x80word", "word\xC2\xA0"));         /* blanks by NFKC */
    assert_true(share("\xE2\x80\xA8word", "word"));                 /* white space at an end */
    assert_true(share("   ", "\xE2\x80\x83\xE2\x80\x83"));          /* one blank is kept */
    assert_true(share("a\xEE\x80\x80"
                      "b",
                      "a b")); /* U+E000 reads as a blank */
}

static void test_what_does_not(void **state) {
    (void)state;
    assert_false(share("word", "words"));
    assert_false(share("\x1Cword", "word")); /* no white space */
    assert_false(share("  ", "word"));
    assert_false(share("\xCE\xA3\xCE\xA3", "\xCF\x83\xCF\x82")); /* final sigma is another */
    assert_false(share("\xC3\x9F-", "ss-"));                     /* lower case, no folding */
    assert_false(share("\xCC\x81\xCC\x81", "\xCC\x81"));         /* nothing left: as it was */
    assert_false(share("\xE2\x80\xA8\xE2\x80\xA8", "\xE2\x80\xA9\xE2\x80\xA9"));
    assert_false(share("\xE4\xBD", "\xE4\xBE")); /* no UTF-8: the spelling */
    assert_false(share("A\xFF", "a\xFF"));
    assert_false(share("A\xEF\xBF\xBD", "a\xEF\xBF\xBD")); /* U+FFFD itself: too */
    assert_false(share("a\xC2\xA0"
                       "b",
                       "ab"));
}

static void test_classes_are_numbered_by_first_appearance(void **state) {
    (void)state;
    const char *texts[] = {"zz", "yy", "ZZ", "xx"};
    di_tokenizer *t = tokenizer_of(texts, 4, NULL);
    int32_t map[260], n_classes, next = 0;
    di_error error;
    assert_int_equal(di_tokenizer_engram_map(t, map, &n_classes, &error), DI_OK);
    for (int i = 0; i < 260; i++) {
        assert_in_range(map[i], 0, next);
        if (map[i] == next) next++;
    }
    assert_int_equal(next, n_classes);
    assert_int_equal(map[258], map[256]);
    assert_int_equal(map['Z'], map['z']);
    assert_int_equal(map[259], n_classes - 1);
    di_tokenizer_destroy(t);
}

static void test_added_tokens_take_part(void **state) {
    (void)state;
    const char *const added[] = {"\"id\": 256, \"content\": \"<A\xEF\xBD\x9C>\"",
                                 "\"id\": 257, \"content\": \"<a|>\", \"special\": true", NULL};
    di_tokenizer *t = tokenizer_of(NULL, 0, added);
    int32_t map[258], n_classes;
    di_error error;
    assert_int_equal(di_tokenizer_engram_map(t, map, &n_classes, &error), DI_OK);
    assert_int_equal(map[256], map[257]);
    di_tokenizer_destroy(t);
}

static void test_a_gap_is_refused(void **state) {
    (void)state;
    const char *const added[] = {"\"id\": 258, \"content\": \"<a>\"", NULL};
    di_tokenizer *t = tokenizer_of(NULL, 0, added);
    int32_t map[259], n_classes;
    di_error error;
    assert_int_equal(di_tokenizer_engram_map(t, map, &n_classes, &error), DI_ERR_INVALID);
    assert_string_equal(
        error.message,
        "Engram's token map: the tokenizer has no token with id 256 of 0 to 258, so "
        "classes cannot be numbered; use the tokenizer.json that belongs to the model");
    di_tokenizer_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maps_of_the_reference),
        cmocka_unit_test(test_what_shares_a_class),
        cmocka_unit_test(test_what_does_not),
        cmocka_unit_test(test_classes_are_numbered_by_first_appearance),
        cmocka_unit_test(test_added_tokens_take_part),
        cmocka_unit_test(test_a_gap_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
