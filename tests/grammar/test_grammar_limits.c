/* Schemas that are large in one way: many alternatives with the same beginning, many conditions on one
 * property, many ranges, bounds with many digits. What is taken is written to its end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "grammar/grammar_internal.h"
#include "support/grammar_support.h"

/* {"KEYWORD": [...]} of n alternatives: `item` with every %d the alternative's number (at most three). */
static char *many(const char *keyword, int n, const char *item) {
    di_buffer text = DI_BUFFER_EMPTY;
    di_buffer_printf(&text, "{\"%s\": [", keyword);
    for (int i = 0; i < n; i++) {
        if (i) di_buffer_puts(&text, ", ");
        for (const char *s = item; *s; s++) {
            if (s[0] == '%' && s[1] == 'd') {
                di_buffer_printf(&text, "%d", i);
                s++;
            } else {
                di_buffer_putc(&text, *s);
            }
        }
    }
    di_buffer_puts(&text, "]}");
    di_buffer_putc(&text, '\0');
    assert_false(text.failed);
    return text.data;
}

static void expect(di_grammar *g, bool taken, const char *text) {
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    di_error error = {0};
    size_t n;
    di_status status = di_grammar_matcher_advance_bytes(m, text, strlen(text), &n, &error);
    bool ok = status == DI_OK && di_grammar_matcher_accepting(m);
    if (status == DI_ERR_LIMIT || ok != taken) {
        fail_msg("%s is %staken: %s", text, taken ? "not " : "", error.message);
    }
    di_grammar_matcher_destroy(m);
}

/* A grammar of `n` alternatives that takes one text and leaves another, and is sampled to its end. */
static void expect_many(const char *keyword, int n, const char *item, const char *taken,
                        const char *left) {
    char *schema = many(keyword, n, item);
    di_grammar *g = grammar_of_schema(schema, NULL);
    expect(g, true, taken);
    expect(g, false, left);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        di_buffer out = DI_BUFFER_EMPTY;
        grammar_sample(g, seed, 2, 300, seed == 1 ? 50 : 0, &out);
        di_buffer_free(&out);
    }
    di_grammar_release(g);
    free(schema);
}

#define OBJECT(properties, required)                                                               \
    "{\"type\": \"object\", \"properties\": {" properties "}, \"required\": [" required            \
    "], \"additionalProperties\": false}"

static void test_alternatives_with_the_same_beginning(void **state) {
    (void)state;
    static const char *const keywords[] = {"anyOf", "oneOf"};
    for (int i = 0; i < 2; i++) {
        expect_many(keywords[i], 300,
                    OBJECT("\"kind\": {\"const\": \"k%d\"}, \"v%d\": {\"type\": \"integer\"}",
                           "\"kind\", \"v%d\""),
                    "{\"kind\": \"k299\", \"v299\": 1}", "{\"kind\": \"k299\", \"v298\": 1}");
        expect_many(
            keywords[i], 300,
            "{\"type\": \"array\", \"prefixItems\": [{\"const\": \"k%d\"}, {\"const\": %d}], "
            "\"minItems\": 2, \"items\": false}",
            "[\"k7\", 7]", "[\"k7\", 8]");
        expect_many(keywords[i], 300,
                    OBJECT("\"a\": " OBJECT("\"b\": {\"const\": %d}", "\"b\""), "\"a\""),
                    "{\"a\": {\"b\": 123}}", "{\"a\": {\"b\": 300}}");
    }
    expect_many("anyOf", 1000,
                OBJECT("\"name\": {\"type\": \"string\", \"maxLength\": 50}, \"tags\": {\"type\": "
                       "\"array\", \"items\": {\"type\": \"string\", \"minLength\": 1}, "
                       "\"maxItems\": 5}, \"x%d\": {\"type\": \"boolean\"}",
                       "\"name\", \"tags\", \"x%d\""),
                "{\"name\": \"n\", \"tags\": [\"a\", \"b\"], \"x999\": true}",
                "{\"name\": \"n\", \"tags\": [\"a\", \"\"], \"x999\": true}");
}

/* What cannot be told apart by sharing is refused at once, not while it is being written. */
static void test_too_many_readings_are_refused(void **state) {
    (void)state;
    static const char *const items[] = {
        OBJECT(
            "\"name\": {\"type\": \"string\", \"maxLength\": 9%d}, \"x%d\": {\"type\": \"null\"}",
            "\"name\", \"x%d\""),
        OBJECT("\"list\": {\"type\": \"array\", \"items\": {\"const\": 1}, \"maxItems\": 9%d}",
               "\"list\""),
    };
    for (size_t i = 0; i < 2; i++) {
        char *schema = many("anyOf", 300, items[i]);
        assert_string_equal(
            grammar_refusal(schema),
            "more than 256 alternatives begin alike and differ in what they count or refer to: let "
            "their first members differ, or have the same bounds");
        free(schema);
        expect_many("anyOf", 200, items[i],
                    i ? "{\"list\": [1, 1]}" : "{\"name\": \"n\", \"x7\": null}",
                    i ? "{\"list\": [1, 2]}" : "{\"name\": \"n\", \"x200\": null}");
    }
}

/* What differs before it counts is looked at, and taken, in few steps. */
static void test_many_counts_are_taken(void **state) {
    (void)state;
    char *schema = many("anyOf", 300,
                        OBJECT("\"kind\": {\"const\": \"k%d\"}, \"name\": {\"type\": \"string\", "
                               "\"maxLength\": 9%d}, \"x%d\": {\"type\": \"null\"}",
                               "\"kind\", \"name\", \"x%d\""));
    di_grammar *g = grammar_of_schema(schema, NULL);
    assert_true(g->n_steps < 1000000); /* 340,000 */
    assert_true(g->s.n < 30000);       /* 10,106 states are looked at */
    expect(g, true, "{\"kind\": \"k299\", \"name\": \"n\", \"x299\": null}");
    expect(g, false, "{\"kind\": \"k299\", \"name\": \"n\", \"x298\": null}");
    di_grammar_release(g);
    free(schema);
}

/* Conditions on one property: each alternative of one contradicts nearly all of the others'. */
static void test_conditions_on_one_property(void **state) {
    (void)state;
    static const char *const tests[] = {
        "\"properties\": {\"kind\": {\"const\": \"k%d\"}}, \"required\": [\"kind\"]",
        "\"properties\": {\"kind\": {\"const\": \"k%d\"}}",
        "\"properties\": {\"kind\": {\"enum\": [\"k%d\", \"other%d\"]}}",
    };
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        char item[400];
        snprintf(item, sizeof item,
                 "{\"if\": {%s}, \"then\": {\"properties\": {\"v%%d\": {\"type\": \"integer\"}}, "
                 "\"required\": [\"v%%d\"]}}",
                 tests[i]);
        char *conditions = many("allOf", 12, item), schema[6000];
        int n = snprintf(
            schema, sizeof schema,
            "{\"type\": \"object\", \"properties\": {\"kind\": {\"enum\": [\"k0\", \"k1\", "
            "\"k2\", \"k3\", \"k4\", \"k11\", \"free\"]}, \"n\": {\"type\": \"string\"}}, "
            "\"required\": [\"kind\"], %s",
            conditions + 1);
        assert_in_range(n, 1, sizeof schema - 1);
        di_grammar *g = grammar_of_schema(schema, NULL);
        expect(g, true, "{\"kind\": \"k3\", \"n\": \"\", \"v3\": 1}");
        expect(g, true, "{\"kind\": \"free\"}");
        expect(g, true, "{\"kind\": \"k11\", \"v11\": 5, \"v3\": \"x\"}");
        expect(g, false, "{\"kind\": \"k3\", \"v4\": 1}");
        expect(g, false, "{\"kind\": \"k3\", \"v3\": \"x\"}");
        expect(g, false, "{\"kind\": \"k12\"}");
        di_grammar_release(g);
        free(conditions);
    }
}

/* 100 ranges, each beginning `step` behind the one before and `size` long: only what lies in one. */
static void expect_ranges(int step, int size) {
    di_buffer text = DI_BUFFER_EMPTY;
    di_buffer_puts(&text, "{\"oneOf\": [");
    for (int i = 0; i < 100; i++) {
        di_buffer_printf(&text, "%s{\"type\": \"integer\", \"minimum\": %d, \"maximum\": %d}",
                         i ? ", " : "", i * step, i * step + size - 1);
    }
    di_buffer_puts(&text, "]}");
    di_grammar *g = grammar_of_schema(text.data, NULL);
    assert_true(g->n_steps < 4000000); /* 250,000 to 1,300,000 */
    assert_true(di_grammar_memory(g) < 4 << 20);
    for (int x = -3; x < 100 * step + size; x++) {
        int n = 0;
        for (int i = 0; i < 100; i++) n += x >= i * step && x < i * step + size;
        char number[20];
        snprintf(number, sizeof number, "%d", x);
        expect(g, n == 1, number);
    }
    di_grammar_release(g);
    di_buffer_free(&text);
}

static void test_many_ranges(void **state) {
    (void)state;
    expect_ranges(10, 12);
    expect_ranges(7, 50);
    expect_ranges(1, 1000);
}

static void test_whole_numbers_between_bounds(void **state) {
    (void)state;
    static const struct {
        const char *schema;
        bool empty;
    } cases[] = {
        {"\"minimum\": 0.5, \"maximum\": 0.9", true},
        {"\"minimum\": -0.5, \"maximum\": 0.5", false},
        {"\"exclusiveMinimum\": 0, \"exclusiveMaximum\": 1", true},
        {"\"exclusiveMinimum\": -1, \"exclusiveMaximum\": 0", true},
        {"\"exclusiveMinimum\": -1, \"exclusiveMaximum\": 1", false},
        {"\"exclusiveMinimum\": 99, \"maximum\": 100", false},
        {"\"exclusiveMinimum\": 99, \"exclusiveMaximum\": 100", true},
        {"\"exclusiveMinimum\": -100, \"exclusiveMaximum\": -99", true},
        {"\"minimum\": -100.5, \"exclusiveMaximum\": -99.5", false},
        {"\"minimum\": -100.5, \"exclusiveMaximum\": -100", true},
        {"\"minimum\": 1e20, \"exclusiveMaximum\": 100000000000000000000.5", true}, /* as doubles */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char schema[200];
        snprintf(schema, sizeof schema,
                 "{\"anyOf\": [{\"type\": \"null\"}, {\"type\": \"integer\", %s}]}",
                 cases[i].schema);
        di_grammar *g = grammar_of_schema(schema, NULL);
        di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
        di_buffer forced = DI_BUFFER_EMPTY;
        di_error error;
        /* Where no integer is left, only null is. */
        assert_int_equal(di_grammar_matcher_forced(m, 4, &forced, &error), DI_OK);
        if ((forced.size == 4) != cases[i].empty) fail_msg("%s", cases[i].schema);
        di_buffer_free(&forced);
        di_grammar_matcher_destroy(m);
        di_grammar_release(g);
    }
}

/* A program that reads doubles must not find a number at its excluded bound. */
static void test_open_bounds_of_many_digits(void **state) {
    (void)state;
    static const struct {
        const char *schema, *taken, *left;
    } cases[] = {
        {"{\"exclusiveMinimum\": 9007199254740992, \"type\": \"integer\"}", "9007199254740994",
         "9007199254740993"},
        {"{\"exclusiveMaximum\": -9007199254740992, \"type\": \"integer\"}", "-9007199254740994",
         "-9007199254740993"},
        {"{\"exclusiveMinimum\": 1e20, \"type\": \"integer\"}", "100000000000000020000",
         "100000000000000000001"},
        {"{\"exclusiveMaximum\": 0.30000000000000001, \"type\": \"number\"}", "0.29999999999999",
         "0.3"},
        {"{\"exclusiveMinimum\": -0.29999999999999999, \"type\": \"number\"}", "-0.29999999999999",
         "-0.3"},
        {"{\"exclusiveMinimum\": -1e-400, \"type\": \"number\"}", "0.1", "0"},
        {"{\"not\": {\"maximum\": 9007199254740992}, \"type\": \"integer\"}", "9007199254740994",
         "9007199254740993"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_grammar *g = grammar_of_schema(cases[i].schema, NULL);
        expect(g, true, cases[i].taken);
        expect(g, false, cases[i].left);
        di_grammar_release(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alternatives_with_the_same_beginning),
        cmocka_unit_test(test_too_many_readings_are_refused),
        cmocka_unit_test(test_many_counts_are_taken),
        cmocka_unit_test(test_conditions_on_one_property),
        cmocka_unit_test(test_many_ranges),
        cmocka_unit_test(test_whole_numbers_between_bounds),
        cmocka_unit_test(test_open_bounds_of_many_digits),
    };
    return cmocka_run_group_tests(tests, NULL, grammar_vocabulary_done);
}
