/* From tokens to the parts of an answer, with the demo tokenizer. */
#include "deepinfer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static di_tokenizer *tokenizer;
static di_error error;

typedef struct parts {
    char
        text[2000]; /* "T:thought|A:answer|C0:name|P0:arguments|E0|": neighbours of a kind joined */
    int last;
} parts;

static void on_part(void *user, di_part part, int index, const char *text, size_t size) {
    static const char letters[] = "TACPEX";
    parts *p = user;
    size_t n = strlen(p->text);
    if (p->last != (int)part) {
        n += (size_t)snprintf(p->text + n, sizeof p->text - n, "%s%c%d:", n ? "|" : "",
                              letters[part], index);
    }
    p->last = (int)part;
    assert_true(n + size < sizeof p->text);
    if (size > 0) memcpy(p->text + n, text, size);
    p->text[n + size] = '\0';
}

/* Reads `text`, markers in it as added tokens. Returns whether a stop text ended it. */
static bool read_text(const char *text, di_reader_options options, parts *out) {
    *out = (parts){"", -1};
    options.on_part = on_part;
    options.user = out;
    di_ids ids = {0};
    di_reader *reader;
    bool stopped = false;
    assert_int_equal(di_tokenizer_encode(tokenizer, text, strlen(text), true, &ids, &error), DI_OK);
    if (di_reader_create(tokenizer, &options, &reader, &error) != DI_OK)
        fail_msg("%s", error.message);
    for (size_t i = 0; i < ids.size && !stopped; i++) {
        assert_int_equal(di_reader_push(reader, ids.data[i], &stopped, &error), DI_OK);
    }
    assert_int_equal(di_reader_finish(reader, &error), DI_OK);
    assert_int_equal(di_reader_has_calls(reader), strstr(out->text, "E0:") != NULL);
    di_reader_destroy(reader);
    di_ids_free(&ids);
    return stopped;
}

static di_reader_options with(bool thinking, bool raw, const char *const *stops, int n_stops) {
    di_reader_options options = di_reader_options_defaults();
    options.thinking = thinking;
    options.raw = raw;
    options.stops = stops;
    options.n_stops = n_stops;
    return options;
}

static void test_parts(void **state) {
    (void)state;
    parts got;
    read_text("Add.\n2 + 3</think>5", with(true, false, NULL, 0), &got);
    assert_string_equal(got.text, "T0:Add.\n2 + 3|A0:5");
    read_text("plain", with(false, false, NULL, 0), &got);
    assert_string_equal(got.text, "A0:plain");
    read_text("a</think>b", with(true, true, NULL, 0), &got);
    assert_string_equal(got.text, "A0:a</think>b");
}

static void test_calls(void **state) {
    (void)state;
    parts got;
    read_text("Look.</think>Yes\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get\">\n"
              "<｜DSML｜ parameter name=\"n\" string=\"false\">3</｜DSML｜ parameter>\n"
              "</｜DSML｜ invoke>\n</｜DSML｜ calls>",
              with(true, false, NULL, 0), &got);
    assert_string_equal(got.text, "T0:Look.|A0:Yes|C0:get|P0:{\"n\": 3}|E0:");
}

/* Bytes of one character come as several tokens in this vocabulary. */
static void test_whole_characters(void **state) {
    (void)state;
    parts got;
    read_text("é 汉字 🦊", with(false, true, NULL, 0), &got);
    assert_string_equal(got.text, "A0:é 汉字 🦊");
    di_ids ids = {0};
    assert_int_equal(di_tokenizer_encode(tokenizer, "🦊", 4, false, &ids, &error), DI_OK);
    assert_true(ids.size > 1);
    got = (parts){"", -1};
    di_reader_options options = with(false, true, NULL, 0);
    options.on_part = on_part;
    options.user = &got;
    di_reader *reader;
    bool stopped;
    assert_int_equal(di_reader_create(tokenizer, &options, &reader, &error), DI_OK);
    for (size_t i = 0; i + 1 < ids.size; i++) {
        assert_int_equal(di_reader_push(reader, ids.data[i], &stopped, &error), DI_OK);
        assert_string_equal(got.text, "");
    }
    assert_int_equal(di_reader_finish(reader, &error), DI_OK);
    assert_string_equal(got.text, "A0:\xEF\xBF\xBD"); /* it was cut off */
    di_reader_destroy(reader);
    di_ids_free(&ids);
}

static void test_stops(void **state) {
    (void)state;
    static const char *const stops[] = {"wise crow", "</think>"};
    parts got;
    assert_true(read_text("A wise crow came.", with(false, false, stops, 2), &got));
    assert_string_equal(got.text, "A0:A ");
    assert_false(read_text("A wise cow came.", with(false, false, stops, 2), &got));
    assert_string_equal(got.text, "A0:A wise cow came.");
    /* Thoughts are not searched. */
    assert_true(
        read_text("A wise crow?</think>Yes, a wise crow.", with(true, false, stops, 2), &got));
    assert_string_equal(got.text, "T0:A wise crow?|A0:Yes, a ");
    assert_true(read_text("a</think>b", with(true, true, stops, 2), &got));
    assert_string_equal(got.text, "A0:a");
}

/* The answer in *out, at most `size` - 1 bytes. */
typedef struct answer_text {
    char text[200];
    size_t size;
} answer_text;

static void on_answer(void *user, di_part part, int index, const char *text, size_t size) {
    answer_text *a = user;
    (void)index;
    if (part != DI_PART_ANSWER) return;
    assert_true(a->size + size < sizeof a->text);
    memcpy(a->text + a->size, text, size);
    a->size += size;
}

/* The text of n ids, cut where a character is not whole. */
static size_t text_of(const int32_t *ids, size_t n, char *out, size_t most) {
    char *text;
    size_t size;
    assert_int_equal(di_tokenizer_text(tokenizer, ids, n, false, &text, &size, &error), DI_OK);
    assert_true(size < most);
    memcpy(out, text, size + 1);
    di_free(text);
    return size;
}

/* Every piece of a text as the stop text: the tokens that are kept spell the whole answer, and one
 * fewer does not. */
static void check_kept(const char *text, bool raw, const char *before) {
    di_ids ids = {0};
    assert_int_equal(di_tokenizer_encode(tokenizer, text, strlen(text), true, &ids, &error), DI_OK);
    size_t size = strlen(text), n_checked = 0, n_before = strlen(before);
    for (size_t begin = n_before; begin < size; begin++) {
        for (size_t length = 1; length <= 12 && begin + length <= size; length++) {
            if ((text[begin] & 0xC0) == 0x80 || (text[begin + length] & 0xC0) == 0x80) continue;
            char stop[16] = "", spelled[200];
            memcpy(stop, text + begin, length);
            const char *stops[] = {"\n\n\nnever", stop};
            answer_text answer = {"", 0};
            di_reader_options options = with(n_before > 0, raw, stops, 2);
            options.on_part = on_answer;
            options.user = &answer;
            di_reader *reader;
            assert_int_equal(di_reader_create(tokenizer, &options, &reader, &error), DI_OK);
            bool stopped = false;
            size_t certain = 0;
            for (size_t i = 0; i < ids.size && !stopped; i++) {
                assert_int_equal(di_reader_kept(reader), i);
                assert_int_equal(di_reader_push(reader, ids.data[i], &stopped, &error), DI_OK);
                assert_true(di_reader_certain(reader) >= certain);
                certain = di_reader_certain(reader);
                assert_true(i < 40 || certain > 0);
            }
            assert_int_equal(di_reader_finish(reader, &error), DI_OK);
            size_t kept = di_reader_kept(reader), want = n_before + answer.size;
            assert_true(certain <= kept);
            assert_int_equal(di_reader_stop(reader), 1);
            assert_memory_equal(text + n_before, answer.text, answer.size);
            size_t got = text_of(ids.data, kept, spelled, sizeof spelled);
            size_t less = kept ? text_of(ids.data, kept - 1, spelled, sizeof spelled) : 0;
            if (got < want || (kept > 0 && less >= want)) {
                fail_msg("'%s' in '%s': %zu tokens, %zu bytes for %zu", stop, text, kept, got,
                         want);
            }
            n_checked++;
            di_reader_destroy(reader);
        }
    }
    assert_true(n_checked > 100);
    di_ids_free(&ids);
}

static void test_stops_cut_tokens_where_they_cut_text(void **state) {
    (void)state;
    check_kept("A wise crow, é 汉字 🦊🦊 came < there.\n\n<b> <<| end", true, "");
    check_kept("A wise crow, é 汉字 🦊🦊 came < there.\n\n<b> <<| end", false, "");
    check_kept("I see.</think>A wise crow 🦊 came < there.\n\n<b> <<| end", false,
               "I see.</think>");
}

static void test_no_such_token(void **state) {
    (void)state;
    di_reader_options options = di_reader_options_defaults();
    di_reader *reader;
    bool stopped;
    assert_int_equal(di_reader_create(tokenizer, &options, &reader, &error), DI_OK);
    assert_int_equal(di_reader_push(reader, 1 << 20, &stopped, &error), DI_ERR_INVALID);
    assert_string_equal(error.message, "there is no token with the id 1048576");
    di_reader_destroy(reader);
    di_reader_destroy(NULL);
}

static int setup(void **state) {
    (void)state;
    return di_tokenizer_open(DI_SOURCE_DIR "/models/demo", &tokenizer, &error) == DI_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    di_tokenizer_destroy(tokenizer);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_whole_characters),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_stops_cut_tokens_where_they_cut_text),
        cmocka_unit_test(test_no_such_token),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
