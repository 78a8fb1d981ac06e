/* ctest: slow */
/* Masks over the released vocabulary of 129,280 entries are what the matcher takes, token by token: at the
 * beginning of the states that answers spend their time in. grammar_released.sh makes the tokenizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "grammar/grammar.h"
#include "text/chat_format.h"

static di_tokenizer *tokenizer;
static di_vocabulary *vocabulary;

static int load(void **state) {
    (void)state;
    static const int32_t end = 1;
    const char *folder = getenv("DI_RELEASED_TOKENIZER");
    char path[4096];
    di_error error;
    snprintf(path, sizeof path, "%s/tokenizer.json",
             folder ? folder : DI_SOURCE_DIR "/build/released-tokenizer");
    if (di_tokenizer_load(path, &tokenizer, &error) == DI_OK &&
        di_vocabulary_create(tokenizer, 0, &end, 1, &vocabulary, &error) == DI_OK) {
        return 0;
    }
    fprintf(stderr, "%s\n", error.message);
    return -1;
}

static int unload(void **state) {
    (void)state;
    di_vocabulary_destroy(vocabulary);
    di_tokenizer_destroy(tokenizer);
    return 0;
}

/* Returns how many tokens may come. */
static int check(di_grammar_matcher *m, const char *text) {
    uint32_t *words = malloc(di_vocabulary_words(vocabulary) * sizeof *words);
    di_error error;
    int n = 0;
    assert_non_null(words);
    if (di_grammar_matcher_mask(m, words, &error) != DI_OK) fail_msg("%s", error.message);
    for (int32_t id = 0; id < di_vocabulary_size(vocabulary); id++) {
        bool allowed = words[id / 32] >> (id % 32) & 1;
        bool taken = di_grammar_matcher_advance(m, id, &error) == DI_OK;
        if (taken) di_grammar_matcher_rollback(m, 1);
        if (allowed != taken) {
            fail_msg("behind '%s', token %d (%s): the mask says %d, the matcher %d", text, id,
                     di_tokenizer_spelling(tokenizer, id), allowed, taken);
        }
        n += allowed;
    }
    free(words);
    return n;
}

/* Takes the texts one after another, with a look at the mask behind each. */
static void follow(di_grammar *g, const char *const *texts, int least) {
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    di_error error;
    int n = 0;
    for (; *texts; texts++) {
        size_t taken;
        if (di_grammar_matcher_advance_bytes(m, *texts, strlen(*texts), &taken, &error) != DI_OK) {
            fail_msg("'%s': %s", *texts, error.message);
        }
        n += check(m, *texts);
    }
    assert_true(n >= least);
    di_grammar_matcher_destroy(m);
    di_grammar_release(g);
}

#define FOLLOW(g, least, ...) follow(g, (const char *const[]){__VA_ARGS__, NULL}, least)

static di_grammar *of_schema(const char *text) {
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *json;
    di_grammar *g = NULL;
    di_error error;
    if (di_json_parse(text, strlen(text), "schema", &arena, &json, &error) != DI_OK ||
        di_grammar_compile_schema(vocabulary, NULL, json, &g, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    di_arena_free(&arena);
    return g;
}

static void test_json(void **state) {
    (void)state;
    FOLLOW(of_schema("{\"type\": \"object\"}"), 120000, "{", "\"", "é", "\\u00", "e9\":", " [1.5",
           "e", "3, {", "}], \"", "\xe6\x97");
    FOLLOW(of_schema(
               "{\"type\": \"object\", \"properties\": {\"title\": {\"type\": \"string\", "
               "\"minLength\": 4, \"maxLength\": 60}, \"kind\": {\"enum\": [\"red\", \"green\"]}}, "
               "\"required\": [\"title\", \"kind\"]}"),
           120000, "", "{\"title\": \"", "a", "bcd\xf0\x9f", "\x98\x80",
           "0123456789 0123456789 0123456789 ", "0123456789 012345", "6", "78", "\",\n \"ki",
           "nd\": \"g", "reen\"", ", \"other");
}

static void test_expressions_and_calls(void **state) {
    (void)state;
    di_grammar *g;
    di_error error;
    const char *regex = "([a-z]+ ){2,5}[^<>\"]*(<b>.*</b>)?";
    assert_int_equal(di_grammar_compile_regex(vocabulary, regex, strlen(regex), &g, &error), DI_OK);
    FOLLOW(g, 100000, "", "ab", "c de ", "日本", "<", "b>");
    /* Words behind blanks: subtrees of the vocabulary that are allowed as a whole. */
    const char *words =
        "root ::= ws (word \";\" ws)+\nws ::= [ \\t]{0,9}\nword ::= [a-z] [a-z0-9_]* | "
        "\"“\" [^“”\\x00-\\x1f\"\\\\]+ \"”\" | \"É\" [A-Za-z0-9]*\n";
    if (di_grammar_compile_ebnf(vocabulary, words, strlen(words), &g, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    FOLLOW(g, 200000, "", " ", "  ", "ab", "c;", " “", "é", "\xe6\x97", "\xa5”; É", "A", ";\t");
    di_arena arena = DI_ARENA_EMPTY;
    di_grammar_tools tools = {.choice = DI_GRAMMAR_TOOLS_AUTO};
    const char *text =
        "[{\"name\": \"get\", \"strict\": true, \"parameters\": {\"type\": \"object\", "
        "\"properties\": {\"q\": {\"type\": \"string\"}, \"n\": {\"type\": "
        "\"integer\"}}, \"required\": [\"q\"]}}]";
    assert_int_equal(di_json_parse(text, strlen(text), "tools", &arena, &tools.tools, &error),
                     DI_OK);
    assert_int_equal(di_grammar_compile_tools(vocabulary, NULL, &tools, &g, &error), DI_OK);
    di_arena_free(&arena);
    FOLLOW(g, 300000, "", "I look", ".\n\n<", CHAT_DSML " calls>\n<",
           CHAT_DSML " invoke name=\"get\">\n<" CHAT_DSML " parameter name=\"q\" string=\"true\">",
           "a </", "b", "</" CHAT_DSML, " parameter>\n", "</" CHAT_DSML " invoke>\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_expressions_and_calls),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
