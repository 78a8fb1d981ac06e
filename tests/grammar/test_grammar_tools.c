/* Tool calls: the official form and nothing else, and that both parsers of the chat read it back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/grammar_support.h"
#include "text/chat.h"
#include "text/chat_format.h"

#define M CHAT_DSML
#define CALL(inside) "\n\n<" M " calls>\n" inside "\n</" M " calls>"
#define INVOKE(name, inside) "<" M " invoke name=\"" name "\">\n" inside "\n</" M " invoke>"
#define TEXT(key, value)                                                                           \
    "<" M " parameter name=\"" key "\" string=\"true\">" value "</" M " parameter>"
#define JSON(key, value)                                                                           \
    "<" M " parameter name=\"" key "\" string=\"false\">" value "</" M " parameter>"

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"strict\": true, \"parameters\": "
    "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"unit\": {\"enum\": "
    "[\"C\", \"F\"]}, \"days\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 14}, \"at\": "
    "{\"type\": [\"string\", \"null\"], \"maxLength\": 3}}, \"required\": [\"city\"]}}}, "
    "{\"name\": \"search\", \"namespace\": {\"name\": \"web\"}, \"parameters\": {\"type\": \"object\"}}, "
    "{\"name\": \"now\", \"strict\": true}]";

static di_grammar *compile(const di_grammar_tools *spec, const char *text) {
    di_grammar_tools with = *spec;
    di_arena arena = DI_ARENA_EMPTY;
    di_grammar *g = NULL;
    di_error error;
    if (di_json_parse(text, strlen(text), "tools", &arena, &with.tools, &error) != DI_OK ||
        di_grammar_compile_tools(grammar_vocabulary(), NULL, &with, &g, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    di_arena_free(&arena);
    return g;
}

static void expect(const di_grammar_tools *spec, bool taken, const char *const *texts) {
    di_grammar *g = compile(spec, tools);
    for (; *texts; texts++) {
        if (grammar_accepts(g, *texts, strlen(*texts)) != taken) {
            fail_msg("'%s' is %staken", *texts, taken ? "not " : "");
        }
    }
    di_grammar_release(g);
}

#define TAKES(spec, ...) expect(&(spec), true, (const char *const[]){__VA_ARGS__, NULL})
#define LEAVES(spec, ...) expect(&(spec), false, (const char *const[]){__VA_ARGS__, NULL})

static const di_grammar_tools required = {.choice = DI_GRAMMAR_TOOLS_REQUIRED};

static void test_strict_parameters_follow_the_schema(void **state) {
    (void)state;
    TAKES(required, CALL(INVOKE("weather", TEXT("city", "Zürich \"<b>\" </x>"))),
          CALL(INVOKE("weather", TEXT("city", "") "\n" TEXT("unit", "F") "\n" JSON("days", "14"))),
          CALL(INVOKE("weather", TEXT("city", "a") "\n" JSON("at", "null"))),
          CALL(INVOKE("weather", TEXT("city", "a") "\n" TEXT("at", "日本語"))));
    LEAVES(required, CALL(INVOKE("weather", "")), CALL(INVOKE("weather", JSON("city", "\"a\""))),
           CALL(INVOKE("weather", TEXT("unit", "F") "\n" TEXT("city", "a"))),
           CALL(INVOKE("weather", TEXT("city", "a") "\n" TEXT("unit", "K"))),
           CALL(INVOKE("weather", TEXT("city", "a") "\n" JSON("days", "15"))),
           CALL(INVOKE("weather", TEXT("city", "a") "\n" TEXT("at", "abcd"))),
           CALL(INVOKE("weather", TEXT("city", "a") "\n" TEXT("other", "b"))),
           CALL(INVOKE("weather", TEXT("city", "a") TEXT("unit", "F"))));
}

static void test_other_tools_take_any_parameters(void **state) {
    (void)state;
    TAKES(required, CALL(INVOKE("web::search", "")),
          CALL(INVOKE("web::search", TEXT("q", "a\n<b") "\n" JSON("k", "[1, {\"a\": null}]"))),
          CALL(INVOKE("now", "")));
    LEAVES(required, CALL(INVOKE("search", "")), CALL(INVOKE("now", TEXT("a", "b"))),
           CALL(INVOKE("web::search", JSON("k", "[1,"))),
           CALL(INVOKE("web::search", TEXT("", "a"))));
}

/* Calls that must come follow schemas that nobody called strict, as far as these can be enforced. */
static void test_others_follow_what_can_be_enforced(void **state) {
    (void)state;
    static const char mixed[] =
        "[{\"name\": \"add\", \"parameters\": {\"type\": \"object\", \"properties\": {\"n\": {\"type\": "
        "\"integer\"}}, \"required\": [\"n\"]}}, {\"name\": \"any\", \"parameters\": {\"type\": "
        "\"object\"}}, {\"name\": \"odd\", \"parameters\": {\"type\": \"object\", \"properties\": {\"l\": "
        "{\"type\": \"array\", \"contains\": {\"const\": 1}}}}}, {\"name\": \"none\"}, {\"name\": "
        "\"never\", \"parameters\": {\"type\": \"object\", \"required\": [\"a\"], "
        "\"properties\": {\"a\": false}}}, {\"name\": \"wrong\", \"parameters\": 5}]";
    di_grammar_tools follow = {.choice = DI_GRAMMAR_TOOLS_REQUIRED, .follow = true};
    di_grammar_tools own = {.choice = DI_GRAMMAR_TOOLS_REQUIRED};
    const char *wrong[] = {CALL(INVOKE("add", "")), CALL(INVOKE("add", TEXT("n", "1"))),
                           CALL(INVOKE("add", JSON("n", "1") "\n" JSON("m", "2")))};
    const char *right[] = {CALL(INVOKE("add", JSON("n", "-3"))),
                           CALL(INVOKE("any", JSON("x", "1"))),
                           CALL(INVOKE("any", "")),
                           CALL(INVOKE("odd", TEXT("l", "free"))),
                           CALL(INVOKE("none", TEXT("x", "y"))),
                           CALL(INVOKE("never", JSON("a", "1"))),
                           CALL(INVOKE("wrong", ""))};
    di_grammar *g = compile(&follow, mixed), *free = compile(&own, mixed);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(grammar_accepts(g, wrong[i], strlen(wrong[i])));
        assert_true(grammar_accepts(free, wrong[i], strlen(wrong[i])));
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        assert_true(grammar_accepts(g, right[i], strlen(right[i])));
    }
    di_grammar_release(g);
    di_grammar_release(free);
}

/* What may be free takes nothing from the budget that strict tools need. */
static void test_too_much_to_follow_is_free(void **state) {
    (void)state;
    di_buffer text = DI_BUFFER_EMPTY;
    di_buffer_puts(&text, "[");
    for (int i = 0; i < 40; i++) {
        di_buffer_printf(&text,
                         "%s{\"name\": \"f%d\", \"strict\": %s, \"parameters\": {\"type\": "
                         "\"object\", \"properties\": {\"a\": {\"type\": \"string\", "
                         "\"pattern\": \"^%d[a-z]{1,8000}X[a-z]{1,8000}$\"}}}}",
                         i ? ", " : "", i, i == 39 ? "true" : "false", i);
    }
    di_buffer_puts(&text, "]");
    di_grammar_tools follow = {.choice = DI_GRAMMAR_TOOLS_REQUIRED, .follow = true};
    di_grammar *g = compile(&follow, text.data);
    const char *free = CALL(INVOKE("f0", TEXT("b", "c")));
    const char *strict = CALL(INVOKE("f39", TEXT("b", "c")));
    assert_true(grammar_accepts(g, free, strlen(free)));
    assert_false(grammar_accepts(g, strict, strlen(strict)));
    di_grammar_release(g);
    follow.strict = true; /* all of them: too much */
    di_arena arena = DI_ARENA_EMPTY;
    di_error error;
    assert_int_equal(di_json_parse(text.data, text.size, "tools", &arena, &follow.tools, &error),
                     DI_OK);
    assert_int_equal(di_grammar_compile_tools(NULL, NULL, &follow, &g, &error), DI_ERR_LIMIT);
    di_arena_free(&arena);
    di_buffer_free(&text);
}

/* Calls, or an answer of a form, and not both. */
static void test_a_form_beside_calls(void **state) {
    (void)state;
    static const char schema[] = "{\"type\": \"object\", \"properties\": {\"sum\": {\"type\": "
                                 "\"integer\"}}, \"required\": [\"sum\"]}";
    const di_json regex = {.type = DI_JSON_STRING, .text = "[a-c]+", .length = 6};
    const di_json ebnf = {.type = DI_JSON_STRING,
                          .text = "root ::= \"a\" root | \"\"",
                          .length = 22};
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *json, *choices;
    di_error error;
    assert_int_equal(di_json_parse(schema, strlen(schema), "s", &arena, &json, &error), DI_OK);
    assert_int_equal(di_json_parse("[\"yes\"]", 7, "c", &arena, &choices, &error), DI_OK);
    const struct {
        di_grammar_form form;
        const char *right, *wrong;
    } cases[] = {{{DI_GRAMMAR_SCHEMA, json}, "{\"sum\":1}", "{\"sum\":\"1\"}"},
                 {{DI_GRAMMAR_JSON_OBJECT, NULL}, "{\"a\":[]}", "[]"},
                 {{DI_GRAMMAR_REGEX, &regex}, "abc", "d"},
                 {{DI_GRAMMAR_EBNF, &ebnf}, "aaa", "ab"},
                 {{DI_GRAMMAR_CHOICES, choices}, "yes", "no"}};
    const char *call = CALL(INVOKE("now", "")), *other = CALL(INVOKE("nobody", ""));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_grammar_tools spec = {.choice = DI_GRAMMAR_TOOLS_AUTO, .form = &cases[i].form};
        di_grammar *g = compile(&spec, tools);
        char both[200];
        snprintf(both, sizeof both, "%s%s", cases[i].right, call);
        assert_true(grammar_accepts(g, cases[i].right, strlen(cases[i].right)));
        assert_true(grammar_accepts(g, call, strlen(call)));
        assert_false(grammar_accepts(g, cases[i].wrong, strlen(cases[i].wrong)));
        assert_false(grammar_accepts(g, other, strlen(other)));
        assert_false(grammar_accepts(g, both, strlen(both)));
        di_grammar_release(g);
    }
    di_arena_free(&arena);
}

static void test_choice(void **state) {
    (void)state;
    const char *two = CALL(INVOKE("now", "") "\n" INVOKE("now", ""));
    di_grammar_tools automatic = {.choice = DI_GRAMMAR_TOOLS_AUTO};
    di_grammar_tools none = {.choice = DI_GRAMMAR_TOOLS_NONE};
    di_grammar_tools named = {.choice = DI_GRAMMAR_TOOLS_REQUIRED, .name = "now", .max_calls = 1};
    di_grammar_tools strict = {.choice = DI_GRAMMAR_TOOLS_REQUIRED, .strict = true};
    TAKES(required, two, CALL(INVOKE("now", "")));
    LEAVES(required, "", "text", CALL(""), CALL(INVOKE("now", "")) "more");
    TAKES(automatic, "", "Hello.", "I will look.\n\n\n" CALL(INVOKE("now", "")), two, "a < b </ c");
    LEAVES(automatic, CALL(INVOKE("nobody", "")), CALL(INVOKE("now", "")) "more",
           "<" M " invoke name=\"now\">");
    TAKES(none, "", "Hello <b>");
    LEAVES(none, CALL(INVOKE("now", "")), "a" M);
    TAKES(named, CALL(INVOKE("now", "")));
    LEAVES(named, two, CALL(INVOKE("web::search", "")));
    LEAVES(strict, CALL(INVOKE("web::search", TEXT("a", "b"))));
}

/* What reads the answer looks for the marker's spelling in strings of JSON too. */
static void test_json_does_not_spell_the_marker(void **state) {
    (void)state;
    static const char own[] =
        "[{\"name\": \"f\", \"strict\": true, \"parameters\": {\"type\": \"object\", \"properties\": "
        "{\"free\": {\"type\": \"array\"}, \"few\": {\"type\": \"array\", \"items\": {\"type\": "
        "\"string\", \"maxLength\": 30}}, \"like\": {\"type\": \"array\", \"items\": {\"type\": "
        "\"string\", \"pattern\": \"^.*$\"}}, \"one\": {\"enum\": [1, [\"" M "\"]]}, \"names\": "
        "{\"type\": \"object\"}}}}]";
    static const char *const right[] = {JSON("free",
                                             "[\"｜DSML DSML｜ ｜｜DSM \\uff5cDSML｜ ｜\"]"),
                                        JSON("few", "[\"DSML \\uff5cDSML\\uff5c\"]"),
                                        JSON("like", "[\"｜DSML\"]"), JSON("one", "1"),
                                        JSON("names", "{\"｜DSML\": 1}")};
    static const char *const wrong[] = {JSON("free", "[\"" M "\"]"),
                                        JSON("free", "[\"a</" M " parameter>\"]"),
                                        JSON("free", "[\"｜DS｜DSML｜\"]"),
                                        JSON("few", "[\"" M "\"]"),
                                        JSON("like", "[\"" M "\"]"),
                                        JSON("one", "[\"" M "\"]"),
                                        JSON("names", "{\"" M "\": 1}")};
    di_grammar *g = compile(&required, own);
    char text[512];
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        snprintf(text, sizeof text, CALL(INVOKE("f", "%s")), right[i]);
        if (!grammar_accepts(g, text, strlen(text))) fail_msg("not taken: %s", text);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, CALL(INVOKE("f", "%s")), wrong[i]);
        if (grammar_accepts(g, text, strlen(text))) fail_msg("taken: %s", text);
    }
    di_grammar_release(g);
}

/* The marker is its token; spelled by others it would be read as a marker all the same. */
static void test_the_marker_is_one_token(void **state) {
    (void)state;
    di_grammar *g = compile(&required, tools);
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    int32_t marker = di_tokenizer_added_id(grammar_tokenizer(), CHAT_DSML);
    di_error error;
    size_t taken;
    assert_int_equal(di_grammar_matcher_advance_bytes(m, "\n\n<", 3, &taken, &error), DI_OK);
    grammar_check_mask(m);
    assert_int_equal(di_grammar_matcher_advance_bytes(m, "\xef", 1, &taken, &error),
                     DI_ERR_INVALID);
    assert_int_equal(di_grammar_matcher_advance(m, marker, &error), DI_OK);
    di_ids ids = {NULL, 0, 0};
    assert_int_equal(di_grammar_matcher_forced_ids(m, 20, &ids, &error), DI_OK);
    assert_true(ids.size > 4); /* " calls>", a newline, "<", the marker, " invoke name=" */
    bool found = false;
    for (size_t i = 0; i < ids.size; i++) {
        found |= ids.data[i] == marker;
        if (di_grammar_matcher_advance(m, ids.data[i], &error) != DI_OK)
            fail_msg("%s", error.message);
    }
    assert_true(found);
    di_ids_free(&ids);
    di_grammar_matcher_destroy(m);
    di_grammar_release(g);
}

static const char open_tools[] =
    "[{\"name\": \"free\"}, {\"name\": \"ab\", \"strict\": true, \"parameters\": {\"properties\": {\"aa\": "
    "{\"const\": 1}}, \"patternProperties\": {\"^[ab]+$\": {\"const\": 1}, \"^(c|d[0-9]*)$\": {\"const\": 2}}, "
    "\"additionalProperties\": false}}, {\"name\": \"listed\", \"strict\": true, \"parameters\": "
    "{\"propertyNames\": {\"enum\": [\"x\", \"yy\"]}, \"additionalProperties\": {\"type\": \"boolean\"}}}]";

/* Names that may be any are not taken twice in a call, but again in the next. */
static void test_no_parameter_comes_twice(void **state) {
    (void)state;
    di_grammar *g = compile(&required, open_tools);
    static const char *const right[] = {
        CALL(INVOKE("free", TEXT("q", "1") "\n" TEXT("qq", "1") "\n" JSON("qqq", "1"))),
        CALL(INVOKE("free", TEXT("q", "1")) "\n" INVOKE("free", TEXT("q", "1"))),
        CALL(INVOKE("ab", JSON("aa", "1") "\n" JSON("a", "1") "\n" JSON("d", "2"))),
        CALL(INVOKE("ab", JSON("b", "1") "\n" JSON("a", "1"))),
        CALL(INVOKE("listed", JSON("x", "true") "\n" JSON("yy", "false"))),
    };
    static const char *const wrong[] = {
        CALL(INVOKE("free", TEXT("q", "1") "\n" TEXT("q", "1"))),
        CALL(INVOKE("free", TEXT("q", "1") "\n" TEXT("r", "1") "\n" JSON("q", "1"))),
        CALL(INVOKE("ab", JSON("a", "1") "\n" JSON("aa", "1"))),
        CALL(INVOKE("ab", JSON("b", "1") "\n" JSON("b", "1"))),
        CALL(INVOKE("ab", JSON("c", "2"))), /* with it taken, nothing could follow its beginning */
        CALL(INVOKE("listed", JSON("x", "true") "\n" JSON("x", "false"))),
    };
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        if (!grammar_accepts(g, right[i], strlen(right[i]))) fail_msg("%s", right[i]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (grammar_accepts(g, wrong[i], strlen(wrong[i]))) fail_msg("%s", wrong[i]);
    }
    di_grammar_release(g);
}

/* The same in masks, in a fork, and after taking back; token by token and byte by byte. */
static void test_masks_know_the_names(void **state) {
    (void)state;
    di_grammar *g = compile(&required, open_tools);
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    di_error error;
    size_t n;
    static const char begun[] =
        "\n\n<" M " calls>\n<" M
        " invoke name=\"free\">\n" TEXT("q", "") "\n" TEXT("qu", "") "\n<" M;
    static const char *const steps[] = {"", " parameter", " name", "=\"", "q", "u"};
    assert_int_equal(di_grammar_matcher_advance_bytes(m, begun, strlen(begun), &n, &error), DI_OK);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_int_equal(di_grammar_matcher_advance_bytes(m, steps[i], strlen(steps[i]), &n,
                                                          &error),
                         DI_OK);
        grammar_check_mask(m);
    }
    di_grammar_matcher *fork = di_grammar_matcher_fork(m);
    assert_int_equal(di_grammar_matcher_advance_bytes(fork, "\"", 1, &n, &error), DI_ERR_INVALID);
    assert_int_equal(di_grammar_matcher_advance_bytes(fork, "x\"", 2, &n, &error), DI_OK);
    di_grammar_matcher_destroy(fork);
    assert_int_equal(di_grammar_matcher_advance_bytes(m, "\"", 1, &n, &error), DI_ERR_INVALID);
    assert_true(di_grammar_matcher_rollback(m, 2));
    assert_int_equal(di_grammar_matcher_advance_bytes(m, "r\"", 2, &n, &error), DI_OK);
    di_grammar_matcher_destroy(m);
    di_grammar_release(g);
}

static void test_random_names_are_parsed(void **state) {
    (void)state;
    di_grammar_tools named = {.choice = DI_GRAMMAR_TOOLS_REQUIRED, .name = "ab", .max_calls = 2};
    di_grammar *g = compile(&named, open_tools);
    for (uint64_t seed = 1; seed <= 100; seed++) {
        di_buffer text = DI_BUFFER_EMPTY;
        di_arena arena = DI_ARENA_EMPTY;
        di_chat_message message;
        di_error error;
        if (grammar_sample(g, seed, 2, 300, seed % 10 == 0 ? 9 : 0, &text) &&
            di_chat_parse(text.data, text.size, false, &arena, &message, &error) != DI_OK) {
            fail_msg("%s: %s", error.message, text.data);
        }
        di_buffer_free(&text);
        di_arena_free(&arena);
    }
    di_grammar_release(g);
}

/* Whatever the grammar lets through, the strict parser of the format reads. */
static void test_random_calls_are_parsed(void **state) {
    (void)state;
    di_grammar *g = compile(&required, tools);
    int n_ended = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        di_buffer text = DI_BUFFER_EMPTY;
        di_arena arena = DI_ARENA_EMPTY;
        di_chat_message message;
        di_error error;
        if (grammar_sample(g, seed, 2, 250, seed % 50 == 0 ? 30 : 0, &text)) {
            n_ended++;
            if (di_chat_parse(text.data, text.size, false, &arena, &message, &error) != DI_OK) {
                fail_msg("%s: %s", error.message, text.data);
            }
        }
        di_buffer_free(&text);
        di_arena_free(&arena);
    }
    assert_true(n_ended > 50);
    di_grammar_release(g);
}

static void refuses(const char *text, const di_grammar_tools *spec, const char *message) {
    di_grammar_tools with = *spec;
    di_arena arena = DI_ARENA_EMPTY;
    di_grammar *g;
    di_error error;
    assert_int_equal(di_json_parse(text, strlen(text), "tools", &arena, &with.tools, &error),
                     DI_OK);
    assert_int_not_equal(di_grammar_compile_tools(NULL, NULL, &with, &g, &error), DI_OK);
    assert_string_equal(error.message, message);
    di_arena_free(&arena);
}

static void test_refusals_name_the_tool(void **state) {
    (void)state;
    di_grammar_tools named = {.choice = DI_GRAMMAR_TOOLS_REQUIRED, .name = "absent"};
    refuses("[]", &required, "there is no tool to call");
    refuses(tools, &named, "there is no tool absent");
    refuses("[{\"name\": \"a\"}, {\"type\": \"function\"}]", &required,
            "tools[1]: a function needs a name, without quotes");
    refuses(
        "[{\"name\": \"a\", \"strict\": true, \"parameters\": {\"properties\": {\"x\": {\"contains\": "
        "1}}}}]",
        &required, "tools[0]: a: /properties/x/contains: this keyword is not supported");
    refuses("[{\"name\": \"a\", \"strict\": true, \"parameters\": {\"type\": \"string\"}}]",
            &required, "tools[0]: a: /: parameters must be an object");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strict_parameters_follow_the_schema),
        cmocka_unit_test(test_other_tools_take_any_parameters),
        cmocka_unit_test(test_others_follow_what_can_be_enforced),
        cmocka_unit_test(test_too_much_to_follow_is_free),
        cmocka_unit_test(test_a_form_beside_calls),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_json_does_not_spell_the_marker),
        cmocka_unit_test(test_the_marker_is_one_token),
        cmocka_unit_test(test_no_parameter_comes_twice),
        cmocka_unit_test(test_masks_know_the_names),
        cmocka_unit_test(test_random_names_are_parsed),
        cmocka_unit_test(test_random_calls_are_parsed),
        cmocka_unit_test(test_refusals_name_the_tool),
    };
    return cmocka_run_group_tests(tests, NULL, grammar_vocabulary_done);
}
