/* GBNF and choices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/grammar_support.h"

static di_grammar *compile(const char *text) {
    di_grammar *g;
    di_error error;
    if (di_grammar_compile_ebnf(grammar_vocabulary(), text, strlen(text), &g, &error) != DI_OK) {
        fail_msg("%s: %s", text, error.message);
    }
    return g;
}

static void expect(const char *grammar, bool taken, const char *const *texts) {
    di_grammar *g = compile(grammar);
    for (; *texts; texts++) {
        if (grammar_accepts(g, *texts, strlen(*texts)) != taken) {
            fail_msg("%s: '%s' is %staken", grammar, *texts, taken ? "not " : "");
        }
    }
    di_grammar_release(g);
}

#define TAKES(grammar, ...) expect(grammar, true, (const char *const[]){__VA_ARGS__, NULL})
#define LEAVES(grammar, ...) expect(grammar, false, (const char *const[]){__VA_ARGS__, NULL})

static const char arithmetic[] = "# sums\n"
                                 "root  ::= (expr \"=\" ws term \"\\n\")+\n"
                                 "expr  ::= term ([-+*/] term)*\n"
                                 "term  ::= ident\n"
                                 "        | num | \"(\" ws expr \")\" ws\n"
                                 "ident ::= [a-z] [a-z0-9_]* ws\n"
                                 "num   ::= [0-9]+ ws # digits\n"
                                 "ws    ::= [ \\t]*\n";

static void test_rules_and_recursion(void **state) {
    (void)state;
    TAKES(arithmetic, "a=1\n", "x1 +(2 *(y) ) = 7\nb=c\n");
    LEAVES(arithmetic, "", "a=\n", "a=1", "(a=1\n", "a))=1\n");
    TAKES("root ::= \"(\" root \")\" | \"\"", "", "()", "((()))");
    LEAVES("root ::= \"(\" root \")\" | \"\"", "(", "())", "(()");
}

static void test_repetition(void **state) {
    (void)state;
    TAKES("root ::= \"a\"{2} \"b\"{1,} \"c\"{,2} (\"d\" | \"e\" \"f\"){0,2}", "aab", "aabbbcc",
          "aabdef");
    LEAVES("root ::= \"a\"{2} \"b\"{1,} \"c\"{,2} (\"d\" | \"e\" \"f\"){0,2}", "ab", "aabccc",
           "aabddd");
    TAKES("root ::= (\"ab\" | \"c\"){50,60} \"!\"?",
          "abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc"
          "abcabcabcabcabcabcabcabc!");
    LEAVES("root ::= (\"ab\" | \"c\"){50,60} \"!\"?", "ab", "c!");
    TAKES("root ::= (\"a\"?)*", "", "aaaa"); /* a loop over what may be empty */
    TAKES("root ::= (\"a\"? \"b\"?){3} \"c\"", "c", "abc", "ababbc");
    LEAVES("root ::= (\"a\"? \"b\"?){3} \"c\"", "babababc");
}

static void test_literals_and_classes(void **state) {
    (void)state;
    TAKES("root ::= \"\\n\\\"\\x41\\u00e9\\U0001F600\" [^\\n\\]] .", "\n\"Aé😀x\n", "\n\"Aé😀日本");
    LEAVES("root ::= \"\\n\\\"\\x41\\u00e9\\U0001F600\" [^\\n\\]] .", "\n\"Aé😀]x");
}

static void refuses(const char *text, const char *message) {
    di_grammar *g;
    di_error error;
    /* Its bytes and no more, so that the address sanitizer sees a step over the end. */
    size_t size = strlen(text);
    char *exact = malloc(size ? size : 1);
    assert_non_null(exact);
    memcpy(exact, text, size);
    assert_int_not_equal(di_grammar_compile_ebnf(NULL, exact, size, &g, &error), DI_OK);
    assert_string_equal(error.message, message);
    assert_null(g);
    free(exact);
}

static void test_refusals_name_line_and_rule(void **state) {
    (void)state;
    refuses("", "grammar: there is no rule 'root'");
    refuses("root ::= item", "grammar: the rule 'item' is used, but not defined");
    refuses("root ::= \"a\"\nroot ::= \"b\"", "grammar, line 2: a rule is defined twice");
    refuses("root ::= \"a", "grammar, line 1: a literal is not closed");
    refuses("root ::= \"\\c", "grammar: \\c needs a letter, at byte 12 of the expression");
    refuses("root ::= [\\c", "grammar: \\c needs a letter, at byte 12 of the expression");
    refuses("root ::= (\"a\"", "grammar, line 1: a parenthesis is not closed");
    refuses("root ::= \"a\"\n  | /b/",
            "grammar, line 2: only literals, classes, '.', rule names and "
            "parentheses are supported (no /regex/, <token> or negation)");
    refuses("start: \"a\"", "grammar, line 1: expected NAME ::= ... (GBNF; other forms, such as "
                            "Lark's, are not supported)");
    refuses("root ::= root \"a\" | \"b\"",
            "root: left recursion (it calls itself before it takes a character) is not supported; "
            "write it as a repetition");
    refuses("root ::= b \"x\"\nb ::= c? root | \"q\"\nc ::= \"y\"",
            "root: left recursion (it calls itself before it takes a character) is not supported; "
            "write it as a repetition");
    refuses("root ::= \"a\" root", "no text satisfies the grammar");
    refuses("root ::= \"a\"{3,2}",
            "grammar, line 1: a repetition must be {n}, {n,} or {n,m} with n <= m");
}

/* Two readings of every character, told apart at the end only: 2^n would be too many to keep. */
static void test_ambiguity_is_followed(void **state) {
    (void)state;
    TAKES("root ::= (a | b)* \"!\"\na ::= \"x\"\nb ::= \"x\"", "!",
          "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx!");
    TAKES("root ::= a | b\na ::= \"(\" a \")\" | \"x\"\nb ::= \"(\" b \"]\" | \"x\"", "((((x))))",
          "((((x]]]]");
    LEAVES("root ::= a | b\na ::= \"(\" a \")\" | \"x\"\nb ::= \"(\" b \"]\" | \"x\"", "((x)]",
           "((x])");
}

static void test_too_many_readings_are_refused_at_run_time(void **state) {
    (void)state;
    di_grammar *g = compile("root ::= a | b\n"
                            "a ::= \"x\" a \"1\" | \"x\" b \"2\" | \"y\"\n"
                            "b ::= \"x\" a \"3\" | \"x\" b \"4\" | \"y\"\n");
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    di_error error;
    size_t taken;
    assert_int_equal(di_grammar_matcher_advance_bytes(m, "xxxxxx", 6, &taken, &error), DI_OK);
    assert_int_equal(di_grammar_matcher_advance_bytes(m, "xxxxxx", 6, &taken, &error),
                     DI_ERR_LIMIT);
    assert_non_null(strstr(error.message, "more than 256 readings"));
    /* Nothing has changed, and the answer can go on otherwise. */
    assert_int_equal(di_grammar_matcher_advance_bytes(m, "y123412", 7, &taken, &error),
                     DI_ERR_INVALID);
    assert_int_equal(di_grammar_matcher_advance_bytes(m, "y111111", 7, &taken, &error), DI_OK);
    assert_true(di_grammar_matcher_complete(m));
    di_grammar_matcher_destroy(m);
    di_grammar_release(g);
}

static void test_masks_are_what_the_matcher_takes(void **state) {
    (void)state;
    di_grammar *g = compile(arithmetic);
    di_buffer text = DI_BUFFER_EMPTY;
    for (uint64_t seed = 1; seed < 4; seed++) grammar_sample(g, seed, 2, 60, 6, &text);
    di_buffer_free(&text);
    di_grammar_release(g);
}

static void test_choices(void **state) {
    (void)state;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *json;
    di_error error;
    di_grammar *g;
    const char *text = "[\"yes\", \"yes, but\", \"不\", \"\"]";
    assert_int_equal(di_json_parse(text, strlen(text), "choices", &arena, &json, &error), DI_OK);
    assert_int_equal(di_grammar_compile_choices(grammar_vocabulary(), json, &g, &error), DI_OK);
    assert_true(grammar_accepts(g, "yes", 3));
    assert_true(grammar_accepts(g, "yes, but", 8));
    assert_true(grammar_accepts(g, "不", 3));
    assert_true(grammar_accepts(g, "", 0));
    assert_false(grammar_accepts(g, "yes,", 4));
    assert_false(grammar_accepts(g, "no", 2));
    di_grammar_release(g);
    assert_int_equal(di_json_parse("[\"a\", 1]", 8, "choices", &arena, &json, &error), DI_OK);
    assert_int_equal(di_grammar_compile_choices(NULL, json, &g, &error), DI_ERR_INVALID);
    assert_string_equal(error.message, "/1: a choice must be a string");
    assert_int_equal(di_grammar_compile_choices(NULL, NULL, &g, &error), DI_ERR_INVALID);
    di_arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules_and_recursion),
        cmocka_unit_test(test_repetition),
        cmocka_unit_test(test_literals_and_classes),
        cmocka_unit_test(test_refusals_name_line_and_rule),
        cmocka_unit_test(test_ambiguity_is_followed),
        cmocka_unit_test(test_too_many_readings_are_refused_at_run_time),
        cmocka_unit_test(test_masks_are_what_the_matcher_takes),
        cmocka_unit_test(test_choices),
    };
    return cmocka_run_group_tests(tests, NULL, grammar_vocabulary_done);
}
