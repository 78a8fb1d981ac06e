/* The tokenizer of the release at its real size: rebuilt by tests/text/released_tokenizer.sh, which
 * needs the network, so this test is skipped where it has not run. Its ids are compared with those
 * of an independent implementation, its Engram map with what is known of the release's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

static di_tokenizer *tokenizer;

static const char *path_of(const char *name) {
    static char path[4096];
    const char *folder = getenv("DI_RELEASED_TOKENIZER");
    snprintf(path, sizeof path, "%s/%s",
             folder ? folder : DI_SOURCE_DIR "/build/released-tokenizer", name);
    return path;
}

static int load(void **state) {
    (void)state;
    di_error error;
    if (di_tokenizer_load(path_of("tokenizer.json"), &tokenizer, &error) == DI_OK) return 0;
    fprintf(stderr, "%s\n", error.message);
    return -1;
}

static int unload(void **state) {
    (void)state;
    di_tokenizer_destroy(tokenizer);
    return 0;
}

static void test_ids_have_no_gap(void **state) {
    (void)state;
    assert_int_equal(di_tokenizer_size(tokenizer), 129280);
    for (int32_t id = 0; id < 129280; id++) assert_non_null(di_tokenizer_spelling(tokenizer, id));
}

static void test_added_tokens_are_where_the_release_has_them(void **state) {
    (void)state;
    static const struct {
        int32_t id;
        const char *content;
    } known[] = {
        {0, "<｜begin▁of▁sentence｜>"},
        {1, "<｜end▁of▁sentence｜>"},
        {2, "<｜▁pad▁｜>"},
        {128000, "<｜place▁holder▁no▁0｜>"},
        {128798, "<｜place▁holder▁no▁798｜>"},
        {128799, "<｜System｜>"},
        {128800, "<｜fim▁hole｜>"},
        {128803, "<｜User｜>"},
        {128804, "<｜Assistant｜>"},
        {128805, "<|EOT|>"},
        {128814, "<｜tool▁sep｜>"},
        {128820, "<｜end▁of▁file｜>"},
        {128821, "<think>"},
        {128822, "</think>"},
        {128825, "｜DSML｜"},
        {128827, "<｜end▁sys｜>"},
        {128828, "<｜latest_reminder｜>"},
        {128829, "<｜action｜>"},
        {128836, "<｜title｜>"},
        {128839, "<｜search｜>"},
        {128841, "</dsml:"},
        {128845, "<｜read_url｜>"},
        {128847, "<|place_holder_mm_span_0021|>"},
        {129261, "<|place_holder_mm_span_0435|>"},
        {129264, "<｜deepseek_image｜>"},
        {129265, "<|place_holder_mm_span_0436|>"},
        {129270, "<|place_holder_mm_span_0441|>"},
        {129271, "<｜/polygon｜>"},
        {129278, "<｜ref｜>"},
        {129279, "<|place_holder_mm_span_0442|>"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_string_equal(di_tokenizer_spelling(tokenizer, known[i].id), known[i].content);
        assert_int_equal(di_tokenizer_added_id(tokenizer, known[i].content), known[i].id);
        assert_true(di_tokenizer_is_added(tokenizer, known[i].id));
    }
    assert_false(di_tokenizer_is_added(tokenizer, 127999));
    assert_false(di_tokenizer_is_special(tokenizer, 128825));
    assert_true(di_tokenizer_is_special(tokenizer, 1));
}

static void test_engram_map_has_the_classes_of_the_release(void **state) {
    (void)state;
    di_error error;
    int32_t n_classes, *map = malloc(129280 * sizeof *map);
    assert_non_null(map);
    assert_int_equal(di_tokenizer_engram_map(tokenizer, map, &n_classes, &error), DI_OK);
    assert_int_equal(n_classes, 99092);
    assert_int_equal(map[2], 2);
    free(map);
}

/* A JSON file of the folder; free *text and the arena. */
static const di_json *read_json(const char *name, char **text, di_arena *arena) {
    di_error error;
    uint64_t size;
    const di_json *root = NULL;
    *text = NULL;
    if (di_file_read(path_of(name), 1 << 30, text, &size, &error) != DI_OK ||
        di_json_parse(*text, size, name, arena, &root, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    return root;
}

static bool same_ids(const di_ids *ids, const di_json *list) {
    size_t i = 0;
    for (const di_json *item = list->first; item; item = item->next, i++) {
        int64_t id;
        if (i == ids->size || !di_json_int64(item, &id) || ids->data[i] != id) return false;
    }
    return i == ids->size;
}

static void print_difference(const di_json *text, const di_ids *ids, const di_json *list) {
    di_buffer out = DI_BUFFER_EMPTY;
    di_json_write(&out, text);
    di_buffer_puts(&out, "\n  other: ");
    di_json_write(&out, list);
    di_buffer_puts(&out, "\n  ours:  ");
    for (size_t i = 0; i < ids->size; i++) di_buffer_printf(&out, "%d, ", ids->data[i]);
    fprintf(stderr, "%.3000s\n", out.data);
    di_buffer_free(&out);
}

static void test_ids_are_those_of_another_implementation(void **state) {
    (void)state;
    if (access(path_of("other_ids.json"), R_OK) != 0) skip();
    char *text, *other_text;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *corpus = read_json("corpus.json", &text, &arena);
    const di_json *other = read_json("other_ids.json", &other_text, &arena);
    assert_int_equal(corpus->length, other->length);
    size_t bytes = 0, differences = 0;
    const di_json *list = other->first;
    for (const di_json *item = corpus->first; item; item = item->next, list = list->next) {
        di_ids ids = {NULL, 0, 0};
        di_buffer back = DI_BUFFER_EMPTY;
        di_error error;
        assert_int_equal(di_tokenizer_encode(tokenizer, item->text, item->length, true, &ids,
                                             &error),
                         DI_OK);
        assert_int_equal(di_tokenizer_decode(tokenizer, ids.data, ids.size, false, &back, &error),
                         DI_OK);
        assert_int_equal(back.size, item->length);
        if (item->length) assert_memory_equal(back.data, item->text, item->length);
        if (!same_ids(&ids, list) && differences++ < 5) print_difference(item, &ids, list);
        bytes += item->length;
        di_ids_free(&ids);
        di_buffer_free(&back);
    }
    di_arena_free(&arena);
    free(text);
    free(other_text);
    assert_int_equal(differences, 0);
    assert_true(bytes > 1 << 20);
}

int main(void) {
    if (access(path_of("tokenizer.json"), R_OK) != 0) {
        printf("skipped: %s is not there; tests/text/released_tokenizer.sh makes it\n",
               path_of("tokenizer.json"));
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_have_no_gap),
        cmocka_unit_test(test_added_tokens_are_where_the_release_has_them),
        cmocka_unit_test(test_engram_map_has_the_classes_of_the_release),
        cmocka_unit_test(test_ids_are_those_of_another_implementation),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
