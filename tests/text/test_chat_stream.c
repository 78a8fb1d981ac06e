/* The streaming parser. Every case is fed whole, byte by byte, and cut in two at every position;
 * all must give the same. The log reads R:thought C:answer B0:name A0:arguments E0 (ended) X0
 * (broken). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/utf8.h"
#include "support/chat_support.h"
#include "support/dsml_text.h"
#include "text/chat.h"

#define EOS "<｜end▁of▁sentence｜>"
#define OPEN "<" DSML " calls>\n"
#define CLOSE "\n</" DSML " calls>"

static void check_once(bool thinking, const char *text, size_t first, size_t step,
                       const char *expected) {
    chat_collected found;
    assert_true(chat_collect(text, strlen(text), thinking, first, step, &found));
    if (strcmp(chat_buffer_text(&found.log), expected) != 0) {
        print_error("first piece %zu, then %zu\n", first, step);
    }
    assert_string_equal(chat_buffer_text(&found.log), expected);
    assert_false(found.bad_event);
    assert_int_equal(found.has_calls, found.calls.size > 0);
    chat_collected_free(&found);
}

static void expect(bool thinking, const char *text, const char *expected) {
    check_once(thinking, text, 0, 0, expected);
    check_once(thinking, text, 0, 1, expected);
    check_once(thinking, text, 0, 3, expected);
    for (size_t i = 1; i < strlen(text); i++) check_once(thinking, text, i, 0, expected);
}

static void plain_text(void **state) {
    (void)state;
    expect(false, "", "");
    expect(false, "Hello\nthere", "C:Hello\nthere");
    expect(false, "Hello" EOS, "C:Hello");
    expect(true, "why</think>because", "R:why C:because");
    expect(true, "why", "R:why");
    expect(true, "why\n\n</think>\n\nbecause\n", "R:why\n\n C:because\n");
    expect(true, "</think>x", "C:x");
    expect(true, "\n a", "R:\n a");
}

/* What looks like a marker for a while and is none. */
static void near_misses(void **state) {
    (void)state;
    expect(false, "a<", "C:a<");
    expect(false, "a < b <b> <<", "C:a < b <b> <<");
    expect(false, "<｜DSM", "C:<｜DSM");
    expect(false, "<<｜DSML<</think", "C:<<｜DSML<</think");
    expect(true, "x</thin</think>y</think", "R:x</thin C:y</think");
    expect(false, "<｜User｜>中<｜en", "C:<｜User｜>中<｜en");
    expect(false, "｜DSML｜ calls", "C:｜DSML｜ calls");
    expect(false, "</" DSML " calls>", "C:</" DSML " calls>");
    /* An end of sentence that is not the end is text. */
    expect(false, "a" EOS "b" EOS, "C:a" EOS "b");
    expect(true, "a" EOS, "R:a");
}

static void newlines(void **state) {
    (void)state;
    expect(false, "\n\n\nHi", "C:Hi");
    expect(false, "\n\n", "");
    expect(false, "a\n\n\n\nb\n", "C:a\n\n\n\nb\n");
    expect(true, "t</think>\n\n\na\n\n", "R:t C:a\n\n");
    expect(false, "a\n\n\n" OPEN INVOKE("f", "") CLOSE "\n\n", "C:a B0:f A0:{} E0");
    expect(false, "\n" OPEN INVOKE("f", "") CLOSE "\n\nb\n\n" OPEN INVOKE("g", "") CLOSE,
           "B0:f A0:{} E0 C:b B1:g A1:{} E1");
    expect(false, "a\n\n" OPEN INVOKE("f", "") CLOSE "\n\nb", "C:a B0:f A0:{} E0 C:\n\nb");
    expect(false, "a" OPEN INVOKE("f", "") CLOSE "\nb\n", "C:a B0:f A0:{} E0 C:\nb\n");
}

static void second_think_end(void **state) {
    (void)state;
    expect(true, "t</think></think>a", "R:t C:a");
    expect(true, "t</think>\n</think>\na</think>b", "R:t C:ab");
    expect(false, "</think>\n\nHi", "C:Hi");
}

static void calls(void **state) {
    (void)state;
    expect(false,
           "Let me.\n\n" OPEN
               INVOKE("f", STRING("a", "x") "\n" OTHER("b", "[1, 2.50]")) "\n" INVOKE("ns::g", "")
                   CLOSE EOS,
           "C:Let me. B0:f A0:{\"a\": \"x\", \"b\": [1, 2.50]} E0 B1:ns::g A1:{} E1");
    expect(true, "t</think>\n\n" OPEN INVOKE("f", "") CLOSE, "R:t B0:f A0:{} E0");
    expect(false, OPEN INVOKE("f", STRING("k", "a\n\"b\"\\\t中\x01")) CLOSE,
           "B0:f A0:{\"k\": \"a\\n\\\"b\\\"\\\\\\t中\\u0001\"} E0");
    expect(false, OPEN INVOKE("f", STRING("", "") "\n" STRING("k \"q\" > =", "v")) CLOSE,
           "B0:f A0:{\"\": \"\", \"k \\\"q\\\" > =\": \"v\"} E0");
}

/* A call begun before the thought was closed. */
static void calls_in_the_thought(void **state) {
    (void)state;
    expect(true, "I will\n\n" OPEN INVOKE("f", "") CLOSE EOS, "R:I will B0:f A0:{} E0");
    expect(true, "I will\n\n" OPEN INVOKE("f", "") CLOSE "\n</think>\n\ndone",
           "R:I will B0:f A0:{} E0 C:done");
    /* Only a word about it: still thought. */
    expect(true, "I could use <" DSML " calls> or <" DSML " x</think>no",
           "R:I could use <" DSML " calls> or <" DSML " x C:no");
    expect(true, "a\n\n" OPEN "<</think>b", "R:a\n\n" OPEN "< C:b");
}

static void markup_inside_values(void **state) {
    (void)state;
    expect(false,
           OPEN INVOKE("f",
                       STRING("k",
                              "</" DSML " invoke>\n</" DSML " calls>" EOS
                              "</think>") "\n" STRING("l",
                                                      "<" DSML
                                                      " parameter name=\"z\" string=\"true\">"))
               CLOSE,
           "B0:f A0:{\"k\": \"</" DSML " invoke>\\n</" DSML " calls>" EOS "</think>\", "
           "\"l\": \"<" DSML " parameter name=\\\"z\\\" string=\\\"true\\\">\"} E0");
    expect(false,
           OPEN INVOKE("f", STRING("k", "<</</" DSML "</" DSML " </" DSML " param</" DSML
                                        " parameter</parameter><")) CLOSE,
           "B0:f A0:{\"k\": \"<</</" DSML "</" DSML " </" DSML " param</" DSML
           " parameter</parameter><\"} E0");
}

static void lenient_forms(void **state) {
    (void)state;
    /* V4's tags, and only its end. */
    expect(false,
           "<" DSML "tool_calls>\n<" DSML "invoke name=\"f\">\n<" DSML
           "parameter name=\"a\" string=\"true\">x</" DSML "parameter>\n</" DSML "invoke>\n</" DSML
           "tool_calls>",
           "B0:f A0:{\"a\": \"x\"} E0");
    expect(false, OPEN INVOKE("f", "") "\n</" DSML "tool_calls>x", "B0:f A0:{} E0 C:x");
    /* No newlines; more spaces; no block tags; no end. */
    expect(false,
           "<" DSML " calls><" DSML " invoke name=\"f\">" STRING("a", "1")
               STRING("b", "2") "</" DSML " invoke><" DSML " invoke name=\"g\"></" DSML
                                " invoke></" DSML " calls>",
           "B0:f A0:{\"a\": \"1\", \"b\": \"2\"} E0 B1:g A1:{} E1");
    expect(false,
           "<" DSML "  calls > \n\t <" DSML "   invoke   name=\"f\"  >\r\n <" DSML
           "  parameter  name=\"a\"  string=\"false\" >1</" DSML "  parameter > </" DSML
           " invoke > </" DSML "  calls >",
           "B0:f A0:{\"a\": 1} E0");
    expect(false, "x\n" INVOKE("f", "") "\n" INVOKE("g", "") "\ny",
           "C:x B0:f A0:{} E0 B1:g A1:{} E1 C:\ny");
    expect(false, OPEN INVOKE("f", "") "\n", "B0:f A0:{} E0");
    expect(false, OPEN INVOKE("f", "") "\n" EOS, "B0:f A0:{} E0");
    expect(false, OPEN INVOKE("f", "") "\n</" DSML " ca", "B0:f A0:{} E0");
}

/* A value that is no JSON is a string; one that is stays as written. */
static void values_are_json(void **state) {
    (void)state;
    expect(false,
           OPEN INVOKE("f", OTHER("a", " {\"x\":1e9}\n") OTHER("b", "yes, \"this\"") OTHER("c", "")
                                OTHER("d", "[1") OTHER("e", "null")) CLOSE,
           "B0:f A0:{\"a\":  {\"x\":1e9}\n, \"b\": \"yes, \\\"this\\\"\", \"c\": \"\", "
           "\"d\": \"[1\", \"e\": null} E0");
    expect(false, OPEN INVOKE("f", OTHER("a", "1, 2") OTHER("b", "1], [2")) CLOSE,
           "B0:f A0:{\"a\": \"1, 2\", \"b\": \"1], [2\"} E0");
}

/* Beyond the limits of tags: text in front of a call, and inside a value. */
static void long_tags(void **state) {
    (void)state;
    di_buffer text = DI_BUFFER_EMPTY, expected = DI_BUFFER_EMPTY;
    di_buffer_printf(&text, "<" DSML " invoke name=\"%04000d\">", 0);
    di_buffer_printf(&expected, "B0:%04000d A0:{ X0 C:%s", 0, text.data);
    check_once(false, text.data, 0, 0, expected.data);
    di_buffer_clear(&text);
    di_buffer_clear(&expected);
    di_buffer_printf(&text, "<" DSML " invoke name=\"%04100d\">", 0);
    di_buffer_printf(&expected, "C:%s", text.data);
    check_once(false, text.data, 0, 0, expected.data);
    check_once(false, text.data, 0, 1, expected.data);
    di_buffer_clear(&text);
    di_buffer_clear(&expected);
    di_buffer_printf(&text, "%s</" DSML "%70sparameter>%s",
                     "<" DSML " invoke name=\"f\"><" DSML " parameter name=\"k\" string=\"true\">",
                     "", "</" DSML " parameter></" DSML " invoke>");
    di_buffer_printf(&expected, "B0:f A0:{\"k\": \"</" DSML "%70sparameter>\"} E0", "");
    expect(false, text.data, expected.data);
    di_buffer_free(&text);
    di_buffer_free(&expected);
}

/* The deepest value that is still JSON leaves arguments that the reader takes; one level more is a
 * string. The collector checks that arguments can be read. */
static void deep_values(void **state) {
    (void)state;
    for (int depth = DI_JSON_MAX_DEPTH - 2; depth <= DI_JSON_MAX_DEPTH; depth++) {
        di_buffer text = DI_BUFFER_EMPTY;
        di_buffer_puts(&text, "<" DSML " invoke name=\"f\"><" DSML
                              " parameter name=\"k\" string=\"false\">");
        for (int i = 0; i < depth; i++) di_buffer_putc(&text, '[');
        for (int i = 0; i < depth; i++) di_buffer_putc(&text, ']');
        di_buffer_puts(&text, "</" DSML " parameter></" DSML " invoke>");
        chat_collected found;
        assert_true(chat_collect(text.data, text.size, false, 0, 0, &found));
        assert_false(found.bad_event);
        const char *begin = depth < DI_JSON_MAX_DEPTH ? "f {\"k\": [[" : "f {\"k\": \"[[";
        assert_memory_equal(found.calls.data, begin, strlen(begin));
        chat_collected_free(&found);
        di_buffer_free(&text);
    }
}

/* A key that comes twice in what a model wrote does not make a string of an object: the last counts. */
static void repeated_keys(void **state) {
    (void)state;
    expect(false,
           "<" DSML " invoke name=\"f\"><" DSML " parameter name=\"k\" string=\"false\">[{\"a\":1,"
           "\"b\":{\"c\":1,\"c\":[]},\"a\":2}]</" DSML " parameter></" DSML " invoke>",
           "B0:f A0:{\"k\": [{\"b\": {\"c\": []}, \"a\": 2}]} E0");
    expect(false,
           "<" DSML " invoke name=\"f\"><" DSML " parameter name=\"k\" string=\"false\">{\"a\":1,"
           "\"a\":}</" DSML " parameter></" DSML " invoke>",
           "B0:f A0:{\"k\": \"{\\\"a\\\":1,\\\"a\\\":}\"} E0");
}

/* What is no call comes back to the last byte. */
static void malformed(void **state) {
    (void)state;
    static const char *const texts[] = {
        "a\n\n" OPEN "hello",
        "a\n\n" OPEN CLOSE "b",
        "a<" DSML " function>b",
        "a<" DSML " invoke>b",
        "a<" DSML " invoke name=f>b",
        "a<" DSML " invoke name=\"\">b",
        "a<" DSML " invoke\nname=\"f\">b",
        "a<" DSML " parameter name=\"k\" string=\"true\">v</" DSML " parameter>",
        "a\n\n" OPEN OPEN,
        "a\n<" DSML "\n" DSML,
        "a<" DSML "callsxcalls>",
        "a<" DSML " calls",
        "a<" DSML " invoke name=\"f\"",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        di_buffer thought = DI_BUFFER_EMPTY, answer = DI_BUFFER_EMPTY;
        di_buffer_printf(&thought, "R:%s", texts[i]);
        di_buffer_printf(&answer, "C:%s", texts[i]);
        expect(true, texts[i], thought.data);
        expect(false, texts[i], answer.data);
        di_buffer_free(&thought);
        di_buffer_free(&answer);
    }
}

/* Broken after its beginning is out: the call is taken back and its markup is text. */
static void broken_calls(void **state) {
    (void)state;
    expect(false, "a\n\n" OPEN "<" DSML " invoke name=\"f\">\nhello",
           "C:a B0:f A0:{ X0 C:\n\n" OPEN "<" DSML " invoke name=\"f\">\nhello");
    expect(true, "t" INVOKE("f", STRING("a", "1") STRING("a", "2")) "u</think>b",
           "R:t B0:f A0:{\"a\": \"1\" X0 R:" INVOKE("f",
                                                    STRING("a", "1") STRING("a", "2")) "u C:b");
    expect(false, "<" DSML " invoke name=\"f\"><" DSML " parameter name=\"a\"string=\"true\">1",
           "B0:f A0:{ X0 C:<" DSML " invoke name=\"f\"><" DSML
           " parameter name=\"a\"string=\"true\">1");
    expect(false,
           OPEN INVOKE("f", "<" DSML " parameter name=\"a\">1</" DSML " parameter>") CLOSE "x",
           "B0:f A0:{ X0 C:" OPEN INVOKE("f", "<" DSML " parameter name=\"a\">1</" DSML
                                              " parameter>") CLOSE "x");
    /* A completed call stands; the next keeps counting; what follows is answer. */
    expect(true,
           "t" OPEN INVOKE("f", "") "\n<" DSML " invoke name=\"g\">?" INVOKE("h", "") CLOSE "z",
           "R:t B0:f A0:{} E0 B1:g A1:{ X1 C:<" DSML " invoke name=\"g\">? B2:h A2:{} E2 C:z");
}

/* The output ends inside a call (a length stop): as broken. */
static void cut_off(void **state) {
    (void)state;
    static const char text[] =
        "a\n\n" OPEN INVOKE("f", STRING("k", "v<") "\n" OTHER("n", "12")) CLOSE;
    size_t begun = strlen("a\n\n" OPEN "<" DSML " invoke name=\"f\">");
    size_t ended = strlen(text) - strlen(CLOSE);
    for (size_t n = 1; n <= strlen(text); n++) {
        for (size_t step = 0; step < 2; step++) {
            chat_collected found;
            assert_true(chat_collect(text, n, false, 0, step, &found));
            assert_int_equal(found.has_calls, n >= ended);
            if (n >= ended) {
                /* A lone "<" could be anything, so it is text; "</" is the block's end. */
                const char *content = text[n - 1] == '<' ? "a\n<" : "a";
                assert_string_equal(found.content.data, content);
                assert_string_equal(found.calls.data, "f {\"k\": \"v<\", \"n\": 12}\n");
            } else {
                assert_int_equal(found.content.size, n);
                assert_memory_equal(found.content.data, text, n);
                assert_int_equal(strstr(found.log.data, " X0 ") != NULL, n >= begun);
            }
            chat_collected_free(&found);
        }
    }
    expect(false,
           OPEN "<" DSML " invoke name=\"f\">"
                "<" DSML " parameter name=\"k\" string=\"true\">中</" DSML " par",
           "B0:f A0:{\"k\": \"中 X0 C:" OPEN "<" DSML " invoke name=\"f\"><" DSML
           " parameter name=\"k\" string=\"true\">中</" DSML " par");
}

/* ---- What comes out when ---- */

typedef struct sent {
    char text[256];
    size_t size;
    bool whole_characters;
} sent;

static void note(void *user, const di_chat_event *event) {
    sent *s = user;
    memcpy(s->text + s->size, event->text, event->size);
    s->size += event->size;
    s->text[s->size] = '\0';
    if (di_utf8_valid_prefix(event->text, event->size) != event->size) s->whole_characters = false;
}

/* After each piece, everything that cannot be a marker any more is out. */
static void held_back_no_longer_than_needed(void **state) {
    (void)state;
    static const struct {
        const char *piece, *sent_so_far;
    } steps[] = {
        {"ab", "ab"},
        {"c\n", "abc"},
        {"\n", "abc"},
        {"d<", "abc\n\nd"},
        {"x", "abc\n\nd<x"},
        {"<｜DSML｜ ca", "abc\n\nd<x"},
        {"t", "abc\n\nd<x<｜DSML｜ cat"},
        {"<｜DSML｜ invoke name=\"f\">", "abc\n\nd<x<｜DSML｜ catf{"},
        {"<｜DSML｜ parameter name=\"k\" string=\"true\">v1",
         "abc\n\nd<x<｜DSML｜ catf{\"k\": \"v1"},
        {"v2<", "abc\n\nd<x<｜DSML｜ catf{\"k\": \"v1v2"},
        {"/", "abc\n\nd<x<｜DSML｜ catf{\"k\": \"v1v2"},
        {"b", "abc\n\nd<x<｜DSML｜ catf{\"k\": \"v1v2</b"},
    };
    sent s = {.whole_characters = true};
    di_error error;
    di_chat_parser *parser = di_chat_parser_create(false, note, &s);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_int_equal(di_chat_parser_push(parser, steps[i].piece, strlen(steps[i].piece),
                                             &error),
                         DI_OK);
        assert_string_equal(s.text, steps[i].sent_so_far);
    }
    di_chat_parser_destroy(parser);
}

static void whole_characters(void **state) {
    (void)state;
    static const char text[] = "中<｜é😀</think>\n" INVOKE("ü", STRING("ñ", "中😀<｜"));
    sent s = {.whole_characters = true};
    di_error error;
    di_chat_parser *parser = di_chat_parser_create(true, note, &s);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        assert_int_equal(di_chat_parser_push(parser, text + i, 1, &error), DI_OK);
    }
    assert_int_equal(di_chat_parser_finish(parser, &error), DI_OK);
    assert_true(s.whole_characters);
    assert_string_equal(s.text, "中<｜é😀ü{\"ñ\": \"中😀<｜\"}");
    di_chat_parser_destroy(parser);
    /* Bytes that are no character pass through. */
    expect(false,
           "a\xE4\xB8"
           "b\xFF",
           "C:a\xE4\xB8"
           "b\xFF");
}

static void finished_once(void **state) {
    (void)state;
    sent s = {0};
    di_error error;
    di_chat_parser *parser = di_chat_parser_create(false, note, &s);
    assert_int_equal(di_chat_parser_push(parser, NULL, 0, &error), DI_OK);
    assert_int_equal(di_chat_parser_finish(parser, &error), DI_OK);
    assert_int_equal(di_chat_parser_finish(parser, &error), DI_ERR_USAGE);
    assert_int_equal(di_chat_parser_push(parser, "x", 1, &error), DI_ERR_USAGE);
    assert_int_equal(s.size, 0);
    di_chat_parser_destroy(parser);
    di_chat_parser_destroy(NULL);
}

/* ---- Linear time ---- */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Each pattern, repeated to 300 KB, once whole and once in small pieces. Something quadratic would
 * take many seconds; the limit leaves room for sanitizers. */
static void long_outputs(void **state) {
    (void)state;
    static const struct {
        const char *head, *pattern;
    } cases[] = {
        {"", "\n"},
        {"a", "\n"},
        {"", "<"},
        {"", "<｜DSML｜"},
        {"", "<｜DSML｜ calls>"},
        {"", "<｜DSML｜ invoke name=\"f\">"},
        {"", "<｜DSML｜ invoke name=\">\" "},
        {"", "</think>"},
        {"", "<｜end▁of▁sentence｜>"},
        {"", "\n\n" OPEN INVOKE("f", "") CLOSE},
        {"", OPEN "<" DSML " invoke name=\"f\"><" DSML " parameter name=\"k\" string=\"true\">"},
        {"<" DSML " invoke name=\"f\"><" DSML " parameter name=\"k\" string=\"true\">",
         "</" DSML " "},
        {"<" DSML " invoke name=\"f\"><" DSML " parameter name=\"k\" string=\"false\">", "[1, "},
        {"<" DSML " invoke name=\"f\">", STRING("k", "")},
        {OPEN, " "},
        {OPEN INVOKE("f", ""), "\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_buffer text = DI_BUFFER_EMPTY;
        di_buffer_puts(&text, cases[i].head);
        while (text.size < 300000) di_buffer_puts(&text, cases[i].pattern);
        for (int small = 0; small < 2; small++) {
            chat_collected found;
            double begin = seconds();
            assert_true(chat_collect(text.data, text.size, true, 0, small ? 16 : 0, &found));
            double took = seconds() - begin;
            if (took > 2) fail_msg("case %zu took %.1f s", i, took);
            chat_collected_free(&found);
        }
        di_buffer_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_text),
        cmocka_unit_test(near_misses),
        cmocka_unit_test(newlines),
        cmocka_unit_test(second_think_end),
        cmocka_unit_test(calls),
        cmocka_unit_test(calls_in_the_thought),
        cmocka_unit_test(markup_inside_values),
        cmocka_unit_test(lenient_forms),
        cmocka_unit_test(values_are_json),
        cmocka_unit_test(long_tags),
        cmocka_unit_test(deep_values),
        cmocka_unit_test(repeated_keys),
        cmocka_unit_test(malformed),
        cmocka_unit_test(broken_calls),
        cmocka_unit_test(cut_off),
        cmocka_unit_test(held_back_no_longer_than_needed),
        cmocka_unit_test(whole_characters),
        cmocka_unit_test(finished_once),
        cmocka_unit_test(long_outputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
