/* Encoding and decoding. Ids come from independent implementations (tests/data) or from the plain
 * definition of the merges, written out below. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "support/tokenizer_text.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

static di_tokenizer *parse(char *text) {
    di_tokenizer *t;
    di_error error;
    if (di_tokenizer_parse(text, strlen(text), "test.json", &t, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    free(text);
    return t;
}

static di_tokenizer *load(const char *path) {
    di_tokenizer *t;
    di_error error;
    if (di_tokenizer_load(path, &t, &error) != DI_OK) fail_msg("%s", error.message);
    return t;
}

static di_ids encode(const di_tokenizer *t, const char *text, size_t size, bool match_added) {
    di_ids ids = {NULL, 0, 0};
    di_error error;
    assert_int_equal(di_tokenizer_encode(t, text, size, match_added, &ids, &error), DI_OK);
    return ids;
}

static void assert_ids(const di_tokenizer *t, const char *text, bool match_added, size_t n,
                       const int32_t *want) {
    di_ids ids = encode(t, text, strlen(text), match_added);
    assert_int_equal(ids.size, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(ids.data[i], want[i]);
    di_ids_free(&ids);
}
#define ASSERT_IDS(t, text, match, ...)                                                            \
    assert_ids(t, text, match, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t),                 \
               (const int32_t[]){__VA_ARGS__})

static void assert_round_trip(const di_tokenizer *t, const char *text, size_t size) {
    for (int match = 0; match < 2; match++) {
        di_ids ids = encode(t, text, size, match);
        di_buffer back = DI_BUFFER_EMPTY;
        di_error error;
        assert_int_equal(di_tokenizer_decode(t, ids.data, ids.size, false, &back, &error), DI_OK);
        assert_int_equal(back.size, size);
        if (size) assert_memory_equal(back.data, text, size);
        di_ids_free(&ids);
        di_buffer_free(&back);
    }
}

static const di_json *read_json(const char *path, di_arena *arena) {
    char *text = NULL;
    uint64_t size = 0;
    di_error error;
    const di_json *root = NULL;
    if (di_file_read(path, 1 << 26, &text, &size, &error) != DI_OK ||
        di_json_parse(text, size, path, arena, &root, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    free(text);
    return root;
}

static void compare_ids(const di_tokenizer *t, const di_json *text, const di_json *want) {
    assert_int_equal(text->type, DI_JSON_STRING);
    di_ids ids = encode(t, text->text, text->length, true);
    size_t i = 0;
    for (const di_json *item = want->first; item; item = item->next, i++) {
        int64_t id;
        assert_true(di_json_int64(item, &id));
        if (i >= ids.size || ids.data[i] != id) fail_msg("token %zu of \"%s\"", i, text->text);
    }
    assert_int_equal(i, ids.size);
    di_ids_free(&ids);
}

static void test_ids_of_the_golden_models(void **state) {
    (void)state;
    static const char *const models[] = {"tiny-a", "tiny-b"};
    for (int m = 0; m < 2; m++) {
        char path[512];
        snprintf(path, sizeof path, DI_SOURCE_DIR "/tests/data/golden/%s/model/tokenizer.json",
                 models[m]);
        di_tokenizer *t = load(path);
        snprintf(path, sizeof path, DI_SOURCE_DIR "/tests/data/golden/%s/tokens.json", models[m]);
        di_arena arena = DI_ARENA_EMPTY;
        const di_json *list = read_json(path, &arena);
        assert_true(list->length >= 8);
        for (const di_json *item = list->first; item; item = item->next) {
            compare_ids(t, di_json_get(item, "text"), di_json_get(item, "ids"));
        }
        di_arena_free(&arena);
        di_tokenizer_destroy(t);
    }
}

static void test_ids_of_the_demo_model_by_another_implementation(void **state) {
    (void)state;
    di_tokenizer *t = load(DI_SOURCE_DIR "/models/demo/tokenizer.json");
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *texts = read_json(DI_SOURCE_DIR "/tests/data/tokenizer/texts.json", &arena);
    const di_json *lists = read_json(DI_SOURCE_DIR "/tests/data/tokenizer/demo_ids.json", &arena);
    assert_int_equal(texts->length, lists->length);
    assert_true(texts->length > 500);
    const di_json *ids = lists->first;
    for (const di_json *text = texts->first; text; text = text->next, ids = ids->next) {
        compare_ids(t, text, ids);
        assert_round_trip(t, text->text, text->length);
    }
    di_arena_free(&arena);
    di_tokenizer_destroy(t);
}

static uint64_t random_state = 88172645463325252u;

static uint32_t below(uint32_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 16) % n);
}

static void test_every_byte_string_comes_back(void **state) {
    (void)state;
    di_tokenizer *t = load(DI_SOURCE_DIR "/models/demo/tokenizer.json");
    assert_round_trip(t, "", 0);
    for (int pair = 0; pair < 65536; pair += 1 + (int)below(7)) {
        char bytes[2] = {(char)(pair >> 8), (char)pair};
        assert_round_trip(t, bytes, 2);
        assert_round_trip(t, bytes, 1);
    }
    static const char *const units[] = {"<｜User｜>", "<", "｜", "think>",  "<think>",
                                        " ",          "a", "\n", "\xE4\xBD"};
    for (int round = 0; round < 3000; round++) {
        char text[512];
        size_t n = 0;
        while (n < 200 && below(40)) {
            if (below(3)) {
                text[n++] = (char)below(256);
            } else {
                const char *unit = units[below(sizeof units / sizeof *units)];
                memcpy(text + n, unit, strlen(unit));
                n += strlen(unit);
            }
        }
        assert_round_trip(t, text, n);
    }
    di_tokenizer_destroy(t);
}

static void test_added_tokens_longest_first_and_only_on_request(void **state) {
    (void)state;
    static const char *const added[] = {"\"id\": 300, \"content\": \"<a>\", \"special\": true",
                                        "\"id\": 301, \"content\": \"<a>b\"",
                                        "\"id\": 302, \"content\": \"<a>bcd\"",
                                        "\"id\": 303, \"content\": \">b\"", NULL};
    di_tokenizer *t = parse(tokenizer_text(NULL, NULL, added));
    assert_int_equal(di_tokenizer_size(t), 304);
    ASSERT_IDS(t, "<a>", true, 300);
    ASSERT_IDS(t, "<a>b", true, 301);
    ASSERT_IDS(t, "<a>bc", true, 301, 'c');
    ASSERT_IDS(t, "<a>bcd<a", true, 302, '<', 'a');
    ASSERT_IDS(t, "x<<a>>b", true, 'x', '<', 300, 303); /* leftmost before longest */
    ASSERT_IDS(t, "a>bc", true, 'a', 303, 'c');
    ASSERT_IDS(t, "<a>", false, '<', 'a', '>');
    assert_int_equal(di_tokenizer_added_id(t, "<a>b"), 301);
    assert_int_equal(di_tokenizer_added_id(t, "<a>bc"), -1);
    assert_int_equal(di_tokenizer_added_id(t, "a"), -1);
    assert_int_equal(di_tokenizer_added_id(t, ""), -1);
    di_tokenizer_destroy(t);
}

/* The tokenizers library cuts out those that are not "normalized" from the whole text first. */
static void test_added_tokens_called_normalized_come_second(void **state) {
    (void)state;
    static const char *const added[] = {"\"id\": 300, \"content\": \"ab\", \"normalized\": true",
                                        "\"id\": 301, \"content\": \"bc\", \"normalized\": false",
                                        NULL};
    di_tokenizer *t = parse(tokenizer_text(NULL, NULL, added));
    ASSERT_IDS(t, "abc", true, 'a', 301);
    ASSERT_IDS(t, "abab", true, 300, 300);
    ASSERT_IDS(t, "abc", false, 'a', 'b', 'c');
    di_tokenizer_destroy(t);
}

static void test_merges_stop_at_pieces_and_added_tokens(void **state) {
    (void)state;
    static const char *const words[] = {"ab", "b1", NULL};
    static const char *const merges[] = {"b 1", "a b", NULL};
    static const char *const added[] = {"\"id\": 300, \"content\": \"--\"", NULL};
    di_tokenizer *t = parse(tokenizer_text(words, merges, added));
    ASSERT_IDS(t, "ab1", true, 256, '1');
    ASSERT_IDS(t, "a--b", true, 'a', 300, 'b');
    ASSERT_IDS(t, "a--b", false, 'a', '-', '-', 'b');
    di_tokenizer_destroy(t);
}

/* A token that its own bytes do not lead to must not be taken because the piece is equal to it. */
static void test_a_word_of_the_vocabulary_that_merges_do_not_reach(void **state) {
    (void)state;
    static const char *const words[] = {"bc", "ab", "abc", NULL};
    static const char *const merges[] = {"b c", "a b", "ab c", NULL};
    di_tokenizer *t = parse(tokenizer_text(words, merges, NULL));
    ASSERT_IDS(t, "abc", true, 'a', 256);
    ASSERT_IDS(t, "ab", true, 257);
    di_tokenizer_destroy(t);
}

static void test_equal_ranks_go_from_the_left(void **state) {
    (void)state;
    static const char *const words[] = {"aa", "aaaa", NULL};
    static const char *const merges[] = {"a a", "aa aa", NULL};
    di_tokenizer *t = parse(tokenizer_text(words, merges, NULL));
    ASSERT_IDS(t, "aaa", true, 256, 'a');
    ASSERT_IDS(t, "aaaaaaa", true, 257, 256, 'a');
    di_tokenizer_destroy(t);
}

/* A random set of merges over the letters a to d; words get ids from 256 on, merge i gives word i.
 */
typedef struct random_merges {
    char words[64][24];
    int left[64], right[64]; /* ids */
    int n;
} random_merges;

static const char *word_of(const random_merges *m, int id, char letter[2]) {
    letter[0] = (char)id;
    letter[1] = '\0';
    return id >= 256 ? m->words[id - 256] : letter;
}

static void make_merges(random_merges *m) {
    m->n = 0;
    while (m->n < 40) {
        char a[2], b[2], word[64];
        int left = below(3) && m->n ? 256 + (int)below((uint32_t)m->n) : 'a' + (int)below(4);
        int right = below(3) && m->n ? 256 + (int)below((uint32_t)m->n) : 'a' + (int)below(4);
        snprintf(word, sizeof word, "%s%s", word_of(m, left, a), word_of(m, right, b));
        bool known = strlen(word) > 12;
        for (int i = 0; i < m->n; i++) known = known || strcmp(m->words[i], word) == 0;
        if (known) continue;
        m->left[m->n] = left;
        m->right[m->n] = right;
        strcpy(m->words[m->n++], word);
    }
    /* The order of the merges is not the order in which the words came about. */
    for (int i = m->n - 1; i > 0; i--) {
        int j = (int)below((uint32_t)i + 1), left = m->left[i], right = m->right[i];
        m->left[i] = m->left[j], m->right[i] = m->right[j];
        m->left[j] = left, m->right[j] = right;
    }
}

static di_tokenizer *random_tokenizer(const random_merges *m) {
    const char *words[65] = {NULL}, *merges[65] = {NULL};
    static char texts[64][64];
    for (int i = 0; i < m->n; i++) {
        char a[2], b[2];
        words[i] = m->words[i];
        snprintf(texts[i], sizeof texts[i], "%s %s", word_of(m, m->left[i], a),
                 word_of(m, m->right[i], b));
        merges[i] = texts[i];
    }
    return parse(tokenizer_text(words, merges, NULL));
}

/* The definition: of all neighbours the merge of lowest rank, of equal ones the leftmost. */
static size_t merge_by_definition(const random_merges *m, const char *text, size_t size,
                                  int32_t *ids) {
    size_t n = size;
    for (size_t i = 0; i < n; i++) ids[i] = text[i];
    for (;;) {
        int best = m->n;
        size_t where = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            for (int rank = 0; rank < best; rank++) {
                if (m->left[rank] == ids[i] && m->right[rank] == ids[i + 1]) best = rank, where = i;
            }
        }
        if (best == m->n) return n;
        char a[2], b[2], word[64];
        snprintf(word, sizeof word, "%s%s", word_of(m, ids[where], a),
                 word_of(m, ids[where + 1], b));
        int id = 0;
        while (strcmp(m->words[id], word) != 0) id++;
        ids[where] = 256 + id;
        memmove(ids + where + 1, ids + where + 2, (n - where - 2) * sizeof *ids);
        n--;
    }
}

static void test_merges_against_their_definition(void **state) {
    (void)state;
    for (int set = 0; set < 40; set++) {
        random_merges m;
        make_merges(&m);
        di_tokenizer *t = random_tokenizer(&m);
        for (int round = 0; round < 60; round++) {
            char text[151];
            int32_t want[151];
            /* Lengths on both sides of where the short way ends. */
            size_t n = 1 + below(round % 8 == 0 ? 150 : 60);
            for (size_t i = 0; i < n; i++) text[i] = (char)('a' + below(round % 3 ? 2 : 4));
            size_t n_want = merge_by_definition(&m, text, n, want);
            di_ids ids = encode(t, text, n, true);
            assert_int_equal(ids.size, n_want);
            assert_memory_equal(ids.data, want, n_want * sizeof *want);
            di_ids_free(&ids);
        }
        di_tokenizer_destroy(t);
    }
}

static void round_trip_of_run(const di_tokenizer *t, const char *unit, size_t size) {
    char *text = malloc(size);
    assert_non_null(text);
    size_t length = strlen(unit), n = 0;
    for (; n + length <= size; n += length) memcpy(text + n, unit, length);
    assert_round_trip(t, text, n);
    free(text);
}

/* With square time the first two would take an hour, so the timeout of the test is the check. */
static void test_long_pieces_take_no_square_of_time(void **state) {
    (void)state;
    di_tokenizer *t = load(DI_SOURCE_DIR "/models/demo/tokenizer.json");
    round_trip_of_run(t, "a", 1 << 21);
    round_trip_of_run(t, " ", 1 << 21);
    static const char *const units[] = {"=", "ab", "\n", "\xE3\x81\x82", "\x01", "<", "<｜"};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        round_trip_of_run(t, units[u], 1 << 15);
    }
    di_tokenizer_destroy(t);
}

static void test_tokens_by_id(void **state) {
    (void)state;
    static const char *const words[] = {"\xC4\xA0the", NULL};
    static const char *const merges[] = {NULL};
    static const char *const added[] = {"\"id\": 300, \"content\": \"<s>\", \"special\": true",
                                        "\"id\": 301, \"content\": \"<\xEF\xBD\x9C>\"", NULL};
    di_tokenizer *t = parse(tokenizer_text(words, merges, added));
    size_t size;
    assert_memory_equal(di_tokenizer_bytes(t, 256, &size), " the", 4);
    assert_int_equal(size, 4);
    assert_string_equal(di_tokenizer_spelling(t, 256), "\xC4\xA0the");
    assert_memory_equal(di_tokenizer_bytes(t, 0, &size), "\0", 1);
    assert_int_equal(size, 1);
    assert_string_equal(di_tokenizer_bytes(t, 301, &size), "<\xEF\xBD\x9C>");
    assert_null(di_tokenizer_bytes(t, 299, &size));
    assert_int_equal(size, 0);
    assert_null(di_tokenizer_spelling(t, -1));
    assert_null(di_tokenizer_spelling(t, 302));
    assert_true(di_tokenizer_is_special(t, 300) && di_tokenizer_is_added(t, 300));
    assert_true(!di_tokenizer_is_special(t, 301) && di_tokenizer_is_added(t, 301));
    assert_false(di_tokenizer_is_added(t, 256) || di_tokenizer_is_added(t, 299));
    di_tokenizer_destroy(t);
}

static void test_decoding(void **state) {
    (void)state;
    static const char *const added[] = {"\"id\": 300, \"content\": \"<s>\", \"special\": true",
                                        "\"id\": 301, \"content\": \"<t>\"", NULL};
    di_tokenizer *t = parse(tokenizer_text(NULL, NULL, added));
    di_buffer out = DI_BUFFER_EMPTY;
    di_error error;
    const int32_t ids[] = {300, 'a', 301, 0xFF};
    assert_int_equal(di_tokenizer_decode(t, ids, 4, false, &out, &error), DI_OK);
    assert_string_equal(out.data, "<s>a<t>\xFF");
    assert_int_equal(di_tokenizer_decode(t, ids, 4, true, &out, &error), DI_OK);
    assert_string_equal(out.data, "<s>a<t>\xFF"
                                  "a<t>\xFF");
    const int32_t wrong[] = {'a', 299};
    assert_int_equal(di_tokenizer_decode(t, wrong, 2, false, &out, &error), DI_ERR_INVALID);
    assert_string_equal(error.message, "token id 299 at index 1: the tokenizer has no such token "
                                       "(its ids are 0 to 301)");
    di_buffer_free(&out);
    di_tokenizer_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_of_the_golden_models),
        cmocka_unit_test(test_ids_of_the_demo_model_by_another_implementation),
        cmocka_unit_test(test_every_byte_string_comes_back),
        cmocka_unit_test(test_added_tokens_longest_first_and_only_on_request),
        cmocka_unit_test(test_added_tokens_called_normalized_come_second),
        cmocka_unit_test(test_merges_stop_at_pieces_and_added_tokens),
        cmocka_unit_test(test_a_word_of_the_vocabulary_that_merges_do_not_reach),
        cmocka_unit_test(test_equal_ranks_go_from_the_left),
        cmocka_unit_test(test_merges_against_their_definition),
        cmocka_unit_test(test_long_pieces_take_no_square_of_time),
        cmocka_unit_test(test_tokens_by_id),
        cmocka_unit_test(test_decoding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
