/* The strict parser: what it builds, and that it refuses what the official one refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/chat_support.h"
#include "support/dsml_text.h"
#include "text/chat.h"

#define EOS "<｜end▁of▁sentence｜>"
#define BEGIN "\n\n<" DSML " calls>\n"
#define END "\n</" DSML " calls>"

/* `calls` has a line [NAMESPACE|]NAME ARGUMENTS for each. */
static void expect(bool thinking, const char *text, const char *reasoning, const char *content,
                   const char *calls) {
    di_arena arena = DI_ARENA_EMPTY;
    di_chat_message message;
    di_error error = {0};
    di_status status = di_chat_parse(text, strlen(text), thinking, &arena, &message, &error);
    if (status != DI_OK) fail_msg("%s", error.message);
    assert_string_equal(message.reasoning, reasoning);
    assert_int_equal(message.reasoning_size, strlen(reasoning));
    assert_string_equal(message.content, content);
    assert_int_equal(message.content_size, strlen(content));
    di_buffer found = DI_BUFFER_EMPTY;
    for (size_t i = 0; i < message.n_calls; i++) {
        const di_chat_call *call = &message.calls[i];
        if (call->name_space) di_buffer_printf(&found, "%s|", call->name_space);
        di_buffer_printf(&found, "%s %s\n", call->name, call->arguments);
    }
    assert_string_equal(chat_buffer_text(&found), calls);
    di_buffer_free(&found);
    di_arena_free(&arena);
}

static void refuse(bool thinking, const char *text, const char *reason) {
    di_arena arena = DI_ARENA_EMPTY;
    di_chat_message message;
    di_error error = {0};
    assert_int_equal(di_chat_parse(text, strlen(text), thinking, &arena, &message, &error),
                     DI_ERR_INVALID);
    const char *colon = strstr(error.message, ": ");
    assert_memory_equal(error.message, "model output, byte ", 19);
    assert_non_null(colon);
    assert_string_equal(colon + 2, reason);
    di_arena_free(&arena);
}

static void texts(void **state) {
    (void)state;
    expect(false, "Hello" EOS, "", "Hello", "");
    expect(false, EOS, "", "", "");
    expect(true, "why</think>because" EOS, "why", "because", "");
    expect(true, "\nwhy\n</think>\n\nbecause\n" EOS, "\nwhy\n", "\n\nbecause\n", "");
    expect(false, "a < b <b> <｜User｜> 中" EOS, "", "a < b <b> <｜User｜> 中", "");
}

static void calls(void **state) {
    (void)state;
    expect(true, "t</think>c" BEGIN INVOKE("f", STRING("a", "x")) END EOS, "t", "c",
           "f {\"a\": \"x\"}\n");
    /* EOS may be missing here. */
    expect(false,
           BEGIN INVOKE("f", STRING("a", "x") "\n" OTHER("b", "[1, 2.50]")) "\n" INVOKE("ns::g", "")
               END,
           "", "", "f {\"a\": \"x\", \"b\": [1, 2.50]}\nns|g {}\n");
    /* Without the empty line too, and a block of no calls. */
    expect(false, BEGIN "<" DSML " invoke name=\"f\">\n</" DSML " invoke>" END EOS, "", "",
           "f {}\n");
    expect(false, "c" BEGIN "</" DSML " calls>" EOS, "", "c", "");
}

static void values(void **state) {
    (void)state;
    expect(false, BEGIN INVOKE("f", STRING("k \"q\"", "a\n\"b\"\\\t中<")) END EOS, "", "",
           "f {\"k \\\"q\\\"\": \"a\\n\\\"b\\\"\\\\\\t中<\"}\n");
    /* Other closing tags inside a value are the value's. */
    expect(false,
           BEGIN INVOKE("f", STRING("k", "</" DSML " invoke>\n</" DSML " calls>" EOS "</think>"))
               END EOS,
           "", "", "f {\"k\": \"</" DSML " invoke>\\n</" DSML " calls>" EOS "</think>\"}\n");
    expect(false, BEGIN INVOKE("f", STRING("", "") "\n" OTHER("z", "not json")) END EOS, "", "",
           "f {\"\": \"\", \"z\": not json}\n");
}

static void malformed(void **state) {
    (void)state;
    refuse(true, "no end" EOS, "the thought is not closed");
    refuse(true, "t" BEGIN INVOKE("f", "") END EOS, "the thought is not closed");
    refuse(false, "no eos", "the answer does not end with " EOS);
    refuse(false, "a" EOS "b", "text behind " EOS);
    refuse(false, "a" BEGIN INVOKE("f", "") END "b" EOS, "text behind the calls block");
    refuse(false, "a" BEGIN INVOKE("f", "") END EOS "b", "text behind " EOS);
    refuse(false, "a</think>" EOS, "a marker inside the thought or the answer");
    refuse(true, "a<think></think>" EOS, "a marker inside the thought or the answer");
    refuse(true, "a</think>b</think>" EOS, "a marker inside the thought or the answer");
    refuse(false, "a" DSML EOS, "a marker inside the thought or the answer");
    refuse(false, "<｜begin▁of▁sentence｜>" EOS, "a marker inside the thought or the answer");
    refuse(false, BEGIN INVOKE("f", ""), "the calls block is not closed");
    refuse(false, BEGIN "<" DSML " invoke name=\"f\">\n", "a call is not closed");
    refuse(false, BEGIN INVOKE("f", "") INVOKE("g", "") END EOS, "unexpected text between calls");
    refuse(false, "\n\n<" DSML " calls>" INVOKE("f", "") END EOS, "unexpected text between calls");
    refuse(false, BEGIN "<" DSML " invoke  name=\"f\">\n\n</" DSML " invoke>" END EOS,
           "malformed tag of a call");
    refuse(false, BEGIN "<" DSML " invoke name=\"f\"></" DSML " invoke>" END EOS,
           "malformed tag of a call");
    refuse(false, BEGIN INVOKE("f", "x" STRING("a", "1")) END EOS, "malformed tag of a call");
    refuse(false, BEGIN INVOKE("f", STRING("a", "1") STRING("b", "1")) END EOS,
           "unexpected text behind a parameter");
    refuse(false, BEGIN INVOKE("f", STRING("a", "1") "\n" STRING("a", "2")) END EOS,
           "a call gives the same parameter twice");
    refuse(false,
           BEGIN "<" DSML " invoke name=\"f\">\n<" DSML " parameter name=\"a\" string=\"true\">1",
           "a parameter is not closed");
    refuse(false,
           BEGIN INVOKE("f", "<" DSML " parameter name=\"a\">1</" DSML " parameter>") END EOS,
           "a parameter's tag has no string=\"true|false\"");
    refuse(false,
           BEGIN INVOKE("f", "<" DSML " parameter name=\"a\" string=\"yes\">1</" DSML " parameter>")
               END EOS,
           "a parameter's tag has no string=\"true|false\"");
    refuse(false,
           BEGIN INVOKE("f", "<" DSML " parameter key=\"a\" string=\"true\">1</" DSML " parameter>")
               END EOS,
           "malformed parameter");
    refuse(false,
           BEGIN INVOKE("f", "<" DSML " parameter name=\"a\" string=\"true\">1/" DSML " parameter>")
               END EOS,
           "malformed parameter");
    refuse(false, BEGIN INVOKE("", "") END EOS,
           "a function's name must be NAME or NAMESPACE::NAME");
    refuse(false, BEGIN INVOKE("a::b::c", "") END EOS,
           "a function's name must be NAME or NAMESPACE::NAME");
    refuse(false, BEGIN INVOKE("::b", "") END EOS,
           "a function's name must be NAME or NAMESPACE::NAME");
}

static void names(void **state) {
    (void)state;
    static const struct {
        const char *whole, *space, *name;
        bool valid;
    } cases[] = {{"f", NULL, "f", true},      {"a::f", "a", "f", true},
                 {"a:f", NULL, "a:f", true},  {"a:::f", "a", ":f", true},
                 {"", NULL, "", false},       {"::", NULL, "::", false},
                 {"a::", NULL, "a::", false}, {"a::b::c", NULL, "a::b::c", false}};
    di_arena arena = DI_ARENA_EMPTY;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *name, *space;
        assert_int_equal(di_chat_split_name(cases[i].whole, strlen(cases[i].whole), &arena, &name,
                                            &space),
                         cases[i].valid);
        assert_string_equal(name, cases[i].name);
        assert_string_equal(space ? space : "-", cases[i].space ? cases[i].space : "-");
    }
    di_arena_free(&arena);
}

/* Text with NUL bytes, and parameters by the thousand. */
static void sizes(void **state) {
    (void)state;
    di_arena arena = DI_ARENA_EMPTY;
    di_chat_message message;
    di_error error;
    static const char nul[] = "a\0b" EOS;
    assert_int_equal(di_chat_parse(nul, sizeof nul - 1, false, &arena, &message, &error), DI_OK);
    assert_int_equal(message.content_size, 3);
    di_buffer text = DI_BUFFER_EMPTY, expected = DI_BUFFER_EMPTY;
    di_buffer_puts(&text, BEGIN "<" DSML " invoke name=\"f\">");
    for (int i = 0; i < 5000; i++) {
        di_buffer_printf(&text,
                         "\n<" DSML " parameter name=\"k%d\" string=\"false\">%d</" DSML
                         " parameter>",
                         i, i);
        di_buffer_printf(&expected, "%s\"k%d\": %d", i ? ", " : "{", i, i);
    }
    di_buffer_puts(&text, "\n</" DSML " invoke>" END);
    di_buffer_putc(&expected, '}');
    assert_int_equal(di_chat_parse(text.data, text.size, false, &arena, &message, &error), DI_OK);
    assert_int_equal(message.n_calls, 1);
    assert_string_equal(message.calls[0].arguments, expected.data);
    di_buffer_free(&text);
    di_buffer_free(&expected);
    di_arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),     cmocka_unit_test(calls), cmocka_unit_test(values),
        cmocka_unit_test(malformed), cmocka_unit_test(names), cmocka_unit_test(sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
