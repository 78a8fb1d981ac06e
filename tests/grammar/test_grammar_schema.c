/* JSON Schema, keyword by keyword where the public suite (test_schema_suite) does not reach, and what
 * is refused, with its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "support/grammar_schemas.h"
#include "support/grammar_support.h"

static void expect(const char *schema, bool taken, const char *const *texts) {
    di_grammar *g = grammar_of_schema(schema, NULL);
    for (; *texts; texts++) {
        if (grammar_accepts(g, *texts, strlen(*texts)) != taken) {
            fail_msg("%s: %s is %staken", schema, *texts, taken ? "not " : "");
        }
    }
    di_grammar_release(g);
}

#define TAKES(schema, ...) expect(schema, true, (const char *const[]){__VA_ARGS__, NULL})
#define LEAVES(schema, ...) expect(schema, false, (const char *const[]){__VA_ARGS__, NULL})

static void test_types(void **state) {
    (void)state;
    TAKES("{\"type\": [\"null\", \"boolean\", \"integer\"]}", "null", "true", "false", "0", "-12");
    LEAVES("{\"type\": [\"null\", \"boolean\", \"integer\"]}", "1.5", "-0", "01", "\"a\"", "[]",
           "");
    TAKES("true", "1e5", "-0.5E-7", "{}", "[ ]", "\"\"", "null");
    TAKES("{\"type\": \"number\", \"minimum\": 2}", "2", "2.0", "30", "2.000001");
    LEAVES("{\"type\": \"number\", \"minimum\": 2}", "1.999", "-3", "1");
    TAKES("{\"type\": \"number\", \"exclusiveMaximum\": -0.25}", "-0.26", "-1", "-0.250001");
    LEAVES("{\"type\": \"number\", \"exclusiveMaximum\": -0.25}", "-0.25", "-0.250", "0", "-0.2");
    TAKES("{\"type\": \"integer\", \"minimum\": -105, \"maximum\": 99}", "-105", "-99", "0", "99");
    LEAVES("{\"type\": \"integer\", \"minimum\": -105, \"maximum\": 99}", "-106", "100", "1000",
           "-0");
    TAKES("{\"multipleOf\": 0.05, \"type\": \"number\"}", "0", "0.1", "-3.15", "1.250");
    LEAVES("{\"multipleOf\": 0.05, \"type\": \"number\"}", "0.01", "1.251", "3.14");
    TAKES("{\"const\": 1.0}", "1");
    TAKES("{\"enum\": [1e3, -2.50]}", "1000", "-2.5");
}

/* Every number near a bound, against arithmetic. */
static void test_bounds_agree_with_arithmetic(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int i = 0; i < 150; i++) {
        char schema[200], text[40];
        int lo = (int)grammar_random(&seed, 4000) - 2000,
            hi = lo + (int)grammar_random(&seed, 3000);
        bool open = grammar_random(&seed, 2), tens = grammar_random(&seed, 2);
        double scale = tens ? 10 : 100;
        snprintf(schema, sizeof schema, "{\"type\": \"number\", \"%s\": %g, \"maximum\": %g}",
                 open ? "exclusiveMinimum" : "minimum", lo / scale, hi / scale);
        if (lo == hi && open) continue;
        di_grammar *g = grammar_of_schema(schema, NULL);
        for (int k = 0; k < 60; k++) {
            int n = (k < 30 ? lo : hi) + (int)grammar_random(&seed, 9) - 4;
            snprintf(text, sizeof text, k % 2 ? "%.2f" : "%g", n / scale);
            bool inside = (open ? n > lo : n >= lo) && n <= hi;
            if (grammar_accepts(g, text, strlen(text)) != inside) fail_msg("%s: %s", schema, text);
        }
        di_grammar_release(g);
    }
}

static void test_strings(void **state) {
    (void)state;
    TAKES("{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}", "\"ab\"", "\"日本語\"",
          "\"\\ud83d\\ude00\\n\"", "\"😀😀\"");
    LEAVES("{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}", "\"a\"", "\"abcd\"",
           "\"😀\"");
    TAKES("{\"type\": \"string\", \"pattern\": \"b.d\"}", "\"abcde\"", "\"b\\\"d\"",
          "\"b\\u0001d\"");
    LEAVES("{\"type\": \"string\", \"pattern\": \"b.d\"}", "\"abde\"", "\"b\\nd\"");
    TAKES("{\"type\": \"string\", \"not\": {\"pattern\": \"^a\"}, \"maxLength\": 2}", "\"\"",
          "\"ba\"");
    LEAVES("{\"type\": \"string\", \"not\": {\"pattern\": \"^a\"}, \"maxLength\": 2}", "\"ab\"",
           "\"bab\"");
    TAKES("{\"enum\": [\"a\\\"b\", \"\\u0007\"]}", "\"a\\\"b\"", "\"\\u0007\"");
}

static void test_formats(void **state) {
    (void)state;
    TAKES("{\"type\": \"string\", \"format\": \"date\"}", "\"2024-02-29\"", "\"2000-02-29\"",
          "\"1999-12-31\"");
    LEAVES("{\"type\": \"string\", \"format\": \"date\"}", "\"2023-02-29\"", "\"1900-02-29\"",
           "\"2024-04-31\"", "\"2024-13-01\"", "\"24-01-01\"");
    TAKES("{\"type\": \"string\", \"format\": \"date-time\"}", "\"2024-02-29T23:59:59Z\"",
          "\"1990-01-01T00:00:00.25+09:30\"");
    LEAVES("{\"type\": \"string\", \"format\": \"date-time\"}", "\"2024-02-29\"",
           "\"2024-02-29T24:00:00Z\"", "\"2024-02-29T23:59:59\"");
    TAKES("{\"type\": \"string\", \"format\": \"ipv6\"}", "\"::\"", "\"::1\"", "\"fe80::1:2\"",
          "\"1:2:3:4:5:6:7:8\"", "\"1::8\"", "\"1:2:3:4:5:6:7::\"");
    LEAVES("{\"type\": \"string\", \"format\": \"ipv6\"}", "\"1:2:3\"", "\":::\"", "\"1::2::3\"",
           "\"12345::\"", "\"1:2:3:4:5:6:7:8:9\"");
    TAKES("{\"type\": \"string\", \"format\": \"ipv4\"}", "\"0.10.255.199\"");
    LEAVES("{\"type\": \"string\", \"format\": \"ipv4\"}", "\"256.1.1.1\"", "\"01.1.1.1\"",
           "\"1.1.1\"");
    TAKES("{\"type\": \"string\", \"format\": \"uri\"}", "\"https://example.com:80/a/b?c=d#e\"",
          "\"mailto:a@b.c\"", "\"urn:isbn:1\"");
    LEAVES("{\"type\": \"string\", \"format\": \"uri\"}", "\"example.com/a\"", "\"http://a b\"",
           "\":a\"");
    TAKES("{\"type\": \"string\", \"format\": \"uri-reference\"}", "\"\"", "\"../a?b\"",
          "\"//x.y/z\"", "\"a:b\"", "\"#c\"");
    LEAVES("{\"type\": \"string\", \"format\": \"uri-reference\"}", "\"a b\"", "\"1:b\"",
           "\"\\\\\"");
    TAKES("{\"type\": \"string\", \"format\": \"byte\"}", "\"\"", "\"QQ==\"", "\"QUI=\"",
          "\"QUJD\"");
    LEAVES("{\"type\": \"string\", \"format\": \"byte\"}", "\"Q\"", "\"QQ=\"", "\"QUJD=\"");
    TAKES("{\"type\": \"integer\", \"format\": \"int32\"}", "2147483647", "-2147483648", "0");
    LEAVES("{\"type\": \"integer\", \"format\": \"int32\"}", "2147483648", "-2147483649");
    LEAVES("{\"type\": \"integer\", \"format\": \"int32\", \"minimum\": 5}", "4", "3000000000");
    TAKES("{\"type\": \"number\", \"format\": \"int64\"}", "9223372036854775807", "-1");
    LEAVES("{\"type\": \"number\", \"format\": \"int32\"}", "1.5", "0.0");
    LEAVES("{\"format\": \"int64\"}", "1.5", "9223372036854775808");
    TAKES("{\"type\": [\"number\", \"string\"], \"format\": \"int64\"}", "9223372036854775807",
          "\"x\"");
    TAKES("{\"type\": \"string\", \"format\": \"uuid\"}",
          "\"00112233-4455-6677-8899-aAbBcCdDeEfF\"");
    TAKES("{\"type\": \"string\", \"format\": \"duration\"}", "\"P1Y2M3DT4H5M6S\"", "\"PT5M\"",
          "\"P3W\"");
    LEAVES("{\"type\": \"string\", \"format\": \"duration\"}", "\"P\"", "\"P1YT\"", "\"PT\"");
    TAKES("{\"type\": \"string\", \"format\": \"email\"}", "\"joe.b+c@mail.example.org\"");
    LEAVES("{\"type\": \"string\", \"format\": \"email\"}", "\"joe\"", "\".joe@a.b\"",
           "\"joe@a..b\"");
}

static void test_arrays(void **state) {
    (void)state;
    const char *tuple =
        "{\"type\": \"array\", \"prefixItems\": [{\"type\": \"integer\"}, {\"type\": "
        "\"string\"}], \"items\": {\"type\": \"boolean\"}, \"minItems\": 1, "
        "\"maxItems\": 4}";
    TAKES(tuple, "[1]", "[1,\"a\"]", "[ 1 , \"a\" , true,false ]");
    LEAVES(tuple, "[]", "[\"a\"]", "[1,\"a\",1]", "[1,\"a\",true,true,true]", "[1,]", "[,1]");
    TAKES("{\"type\": \"array\", \"items\": {\"type\": \"null\"}, \"minItems\": 3}",
          "[null,null,null]", "[null, null, null, null, null]");
    LEAVES("{\"type\": \"array\", \"items\": {\"type\": \"null\"}, \"minItems\": 3}",
           "[null,null]");
    TAKES("{\"type\": \"array\", \"prefixItems\": [true], \"items\": false}", "[]", "[1]");
    LEAVES("{\"type\": \"array\", \"prefixItems\": [true], \"items\": false}", "[1,2]");
    TAKES("{\"type\": \"array\", \"maxItems\": 1, \"uniqueItems\": true}", "[]", "[1]");
    const char *set = "{\"type\": \"array\", \"items\": {\"enum\": [\"a\", \"b\", 1, 1.0, null]}, "
                      "\"uniqueItems\": true, \"minItems\": 2, \"maxItems\": 3}";
    TAKES(set, "[\"a\",\"b\"]", "[ null , 1, \"b\" ]");
    LEAVES(set, "[]", "[1]", "[1,1]", "[\"a\",\"b\",\"a\"]", "[\"a\",\"b\",1,null]");
}

static void test_objects(void **state) {
    (void)state;
    const char *three = "{\"type\": \"object\", \"properties\": {\"a\": {\"const\": 1}, \"b\": "
                        "{\"const\": 2}, \"c\": {\"const\": 3}}, \"required\": [\"b\"], "
                        "\"additionalProperties\": {\"const\": 4}}";
    TAKES(three, "{\"b\":2}", "{\"a\":1,\"b\":2,\"c\":3}", "{ \"b\" : 2 , \"d\" : 4, \"e\":4 }");
    LEAVES(three, "{}", "{\"a\":1}", "{\"b\":2,\"a\":1}", "{\"b\":2,\"d\":5}", "{\"b\":2,\"b\":2}",
           "{\"b\":2,}", "{\"d\":4,\"b\":2}", "{\"b\":2,\"a\":4}");
    /* Named as a declared one in another spelling, it would come twice. */
    LEAVES(three, "{\"b\":2,\"\\u0062\":4}");
    const char *some =
        "{\"type\": \"object\", \"properties\": {\"a\": true, \"b\": true, \"c\": true}, "
        "\"minProperties\": 2, \"maxProperties\": 2, \"additionalProperties\": false}";
    TAKES(some, "{\"a\":1,\"b\":2}", "{\"a\":1,\"c\":2}", "{\"b\":1,\"c\":2}");
    LEAVES(some, "{}", "{\"a\":1}", "{\"a\":1,\"b\":2,\"c\":3}");
    const char *kinds =
        "{\"type\": \"object\", \"properties\": {\"s_id\": {\"maxLength\": 3}}, "
        "\"patternProperties\": {\"^s_\": {\"type\": \"string\"}, \"_n$\": {\"type\": "
        "[\"integer\", \"string\"]}}, \"additionalProperties\": false}";
    TAKES(kinds, "{\"s_id\":\"abc\",\"s_x\":\"y\",\"k_n\":1,\"s_n\":\"\"}");
    LEAVES(kinds, "{\"s_id\":\"abcd\"}", "{\"s_id\":1}", "{\"s_x\":1}", "{\"s_n\":1}", "{\"k\":1}");
    TAKES("{\"type\": \"object\", \"required\": [\"x\"]}", "{\"x\":1}", "{\"x\":1,\"y\":2}");
    TAKES("{\"type\": \"object\", \"propertyNames\": {\"pattern\": \"^[a-c]$\"}}",
          "{\"a\":1,\"c\":2}");
    LEAVES("{\"type\": \"object\", \"propertyNames\": {\"pattern\": \"^[a-c]$\"}}", "{\"d\":1}");
}

static void test_combinations(void **state) {
    (void)state;
    const char *both =
        "{\"allOf\": [{\"type\": \"object\", \"properties\": {\"a\": {\"type\": "
        "\"integer\"}}, \"required\": [\"a\"]}, {\"properties\": {\"a\": {\"minimum\": 3}, "
        "\"b\": {\"type\": \"null\"}}, \"additionalProperties\": false}]}";
    TAKES(both, "{\"a\":3}", "{\"a\":12,\"b\":null}");
    LEAVES(both, "{\"a\":2}", "{\"b\":null}", "{\"a\":3,\"c\":1}", "{\"a\":3.5}", "[]");
    /* oneOf whose parts overlap: what both take is in neither. */
    const char *either =
        "{\"oneOf\": [{\"type\": \"integer\", \"minimum\": 0}, {\"type\": \"integer\", "
        "\"maximum\": 10}]}";
    TAKES(either, "-1", "11");
    LEAVES(either, "0", "5", "10", "1.5");
    const char *conditional =
        "{\"type\": \"object\", \"properties\": {\"k\": {\"enum\": [\"a\", \"b\"]}, "
        "\"v\": true}, \"required\": [\"k\"], \"additionalProperties\": false, "
        "\"if\": {\"properties\": {\"k\": {\"const\": \"a\"}}}, \"then\": "
        "{\"required\": [\"v\"]}, \"else\": {\"properties\": {\"v\": false}}}";
    TAKES(conditional, "{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\"}");
    LEAVES(conditional, "{\"k\":\"a\"}", "{\"k\":\"b\",\"v\":1}");
    TAKES("{\"dependentSchemas\": {\"a\": {\"required\": [\"b\"]}}, \"type\": \"object\"}", "{}",
          "{\"a\":1,\"b\":2}", "{\"c\":1}");
    LEAVES("{\"dependentSchemas\": {\"a\": {\"required\": [\"b\"]}}, \"type\": \"object\"}",
           "{\"a\":1}");
}

static void test_recursion(void **state) {
    (void)state;
    /* oneOf looks whether its schemas overlap, and meets itself below: that tells nothing. */
#define EXPRESSION                                                                                      \
    "{\"$defs\": {\"e\": {\"oneOf\": [{\"type\": \"integer\"}, "                                        \
    "{\"type\": \"object\", \"properties\": {\"left\": {\"$ref\": \"#/$defs/e\"}, \"op\": {\"const\": " \
    "\"+\"}}, \"required\": [\"left\", \"op\"]}, "                                                      \
    "{\"type\": \"object\", \"properties\": {\"left\": {\"$ref\": \"#/$defs/e\"}, \"op\": {\"const\": " \
    "\"-\"}}, \"required\": [\"left\", \"op\"]}]}}, \"$ref\": \"#/$defs/e\"}"
    TAKES(EXPRESSION, "1", "{\"left\": {\"left\": 1, \"op\": \"+\"}, \"op\": \"-\"}");
    LEAVES(EXPRESSION, "{\"left\": \"1\", \"op\": \"-\"}", "{\"left\": 1, \"op\": \"*\"}");
    const char *tree =
        "{\"$ref\": \"#/$defs/node\", \"$defs\": {\"node\": {\"type\": \"object\", "
        "\"properties\": {\"v\": {\"type\": \"integer\"}, \"next\": {\"anyOf\": [{\"type\": "
        "\"null\"}, {\"$ref\": \"#/$defs/node\"}]}}, \"required\": [\"v\", \"next\"], "
        "\"additionalProperties\": false}}}";
    TAKES(tree, "{\"v\":1,\"next\":null}",
          "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}");
    LEAVES(tree, "{\"v\":1}", "{\"v\":1,\"next\":{\"v\":2}}", "null");
    TAKES("{\"$ref\": \"#here\", \"$defs\": {\"x\": {\"$anchor\": \"here\", \"type\": \"null\"}}}",
          "null");
    TAKES("{\"properties\": {\"a/b\": {\"$ref\": \"#/$defs/x%20y~1z\"}}, \"$defs\": {\"x y/z\": "
          "{\"type\": \"null\"}}, \"type\": \"object\"}",
          "{\"a/b\":null}");
    /* In one document dynamic references are references. */
    const char *lists =
        "{\"type\": \"array\", \"items\": {\"$dynamicRef\": \"#i\"}, \"$defs\": {\"x\": "
        "{\"$dynamicAnchor\": \"i\", \"type\": \"null\"}}}";
    TAKES(lists, "[]", "[null,null]");
    LEAVES(lists, "[1]");
    const char *nested = "{\"$recursiveAnchor\": true, \"type\": \"array\", \"items\": "
                         "{\"$recursiveRef\": \"#\"}}";
    TAKES(nested, "[]", "[[],[[]]]");
    LEAVES(nested, "[1]");
    /* Constants are no schemas, though they look like one; members are none of the schema that has them. */
    const char *alike =
        "{\"$ref\": \"#i\", \"$defs\": {\"a\": {\"enum\": [{\"$anchor\": \"i\", \"type\": \"null\"}]}, "
        "\"$anchor\": {\"type\": \"null\"}, \"enum\": {\"$anchor\": \"i\", \"type\": \"boolean\"}}}";
    TAKES(alike, "true");
    LEAVES(alike, "null");
}

static void test_the_closed_reading(void **state) {
    (void)state;
    di_grammar_options options = di_grammar_options_defaults();
    options.closed = true;
    const char *schema = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"array\", "
                         "\"prefixItems\": [true]}, \"b\": {\"type\": \"object\"}}}";
    di_grammar *g = grammar_of_schema(schema, &options);
    assert_true(grammar_accepts(g, "{\"a\":[1],\"b\":{\"z\":1}}", 21));
    assert_false(grammar_accepts(g, "{\"c\":1}", 7));
    assert_false(grammar_accepts(g, "{\"a\":[1,2]}", 11));
    di_grammar_release(g);
    g = grammar_of_schema(schema, NULL);
    assert_true(grammar_accepts(g, "{\"c\":1}", 7));
    assert_true(grammar_accepts(g, "{\"a\":[1,2]}", 11));
    di_grammar_release(g);
}

static void test_blanks(void **state) {
    (void)state;
    static const struct {
        di_grammar_space space;
        const char *text;
        bool taken;
    } cases[] = {
        {DI_GRAMMAR_SPACE_FREE, "{\n\t\"a\" : [ 1,2 ]\r\n}", true},
        {DI_GRAMMAR_SPACE_FREE, " {}", false},
        {DI_GRAMMAR_SPACE_FREE, "{}\n", false},
        {DI_GRAMMAR_SPACE_FREE, "{                                }", true},
        {DI_GRAMMAR_SPACE_FREE, "{                                 }", false},
        {DI_GRAMMAR_SPACE_PYTHON, "{\"a\": [1, 2]}", true},
        {DI_GRAMMAR_SPACE_PYTHON, "{\"a\":[1,2]}", false},
        {DI_GRAMMAR_SPACE_PYTHON, "{\"a\":  [1, 2]}", false},
        {DI_GRAMMAR_SPACE_NONE, "{\"a\":[1,2]}", true},
        {DI_GRAMMAR_SPACE_NONE, "{\"a\": [1,2]}", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_grammar_options options = {.space = cases[i].space};
        di_grammar *g = grammar_of_schema("{\"type\": \"object\"}", &options);
        if (grammar_accepts(g, cases[i].text, strlen(cases[i].text)) != cases[i].taken) {
            fail_msg("'%s' with blanks %d", cases[i].text, (int)cases[i].space);
        }
        di_grammar_release(g);
    }
}

static void test_refusals_name_keyword_and_place(void **state) {
    (void)state;
    static const struct {
        const char *schema, *message;
    } cases[] = {
        {"{\"properties\": {\"a/b\": {\"contains\": {}}}}",
         "/properties/a~1b/contains: this keyword is not supported"},
        {"{\"properties\": {\"a\": {\"uniqueItems\": true}}}",
         "/properties/a/uniqueItems: is supported for one item, and for items that are at most 8 constants"},
        {"{\"nullable\": true}", "/nullable: this keyword is not supported"},
        {"{\"$dynamicRef\": \"#a\"}", "/$dynamicRef: leads nowhere"},
        {"{\"$ref\": \"http://a/b\"}",
         "/$ref: only references inside the document (\"#...\") are supported"},
        {"{\"$ref\": \"#/nowhere\"}", "/$ref: leads nowhere"},
        {"{\"$ref\": \"#\"}", "/: a $ref leads back to itself"},
        {"{\"properties\": {\"a\": {\"$id\": \"x\"}}}",
         "/properties/a/$id: $id below the root is not supported"},
        {"{\"format\": \"regex\"}",
         "/format: this format is not supported; those that are: date, time, date-time, duration, "
         "email, hostname, ipv4, ipv6, uri, uri-reference, uuid, json-pointer, byte, int32, int64, "
         "double"},
        {"{\"pattern\": \"(?=a)\"}",
         "/pattern: lookahead and lookbehind are not supported, at byte 3 of the expression"},
        {"{\"items\": {\"type\": \"text\"}}",
         "/items/type: must be null, boolean, integer, number, string, array or object, or a list of "
         "these"},
        {"{\"minLength\": -1}", "/minLength: must be an integer, 0 or more"},
        {"{\"maximum\": \"3\"}", "/maximum: must be a number"},
        {"{\"minimum\": 3, \"exclusiveMinimum\": true}", "/exclusiveMinimum: must be a number"},
        {"{\"properties\": 3}", "/properties: must be an object"},
        {"{\"required\": \"a\"}", "/required: must be an array of names"},
        {"{\"anyOf\": []}", "/anyOf: must be a non-empty array of schemas"},
        {"{\"not\": {\"items\": {\"type\": \"null\"}}}",
         "/not: 'not' of a schema with 'items' is not supported (also needed for 'if', and for 'oneOf' "
         "where its schemas overlap)"},
        {"{\"multipleOf\": 12345.5}",
         "/multipleOf: of multiples only those of a positive number up to 5000 (without its point) are "
         "supported"},
        {"{\"type\": \"object\", \"minProperties\": 3}",
         "/minProperties: above the number of required properties plus one it is not supported where "
         "other names may come, since these may repeat"},
        {"{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}",
         "no text satisfies the grammar"},
        {"{\"required\": [\"a\"], \"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}}",
         "no text satisfies the grammar"},
        {"3", "/: a schema must be an object or a boolean"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(grammar_refusal(cases[i].schema), cases[i].message);
    }
}

/* ---- Hostile schemas: each is refused, or compiled, within seconds ---- */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void bounded(const char *what, const di_buffer *text, di_status wanted) {
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *json;
    di_grammar *g = NULL;
    di_error error;
    if (di_json_parse(text->data, text->size, what, &arena, &json, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    double start = seconds();
    di_status status = di_grammar_compile_schema(NULL, NULL, json, &g, &error);
    double took = seconds() - start;
    if (status != wanted) fail_msg("%s: status %d (%s)", what, status, status ? error.message : "");
    if (took > 10) fail_msg("%s: took %.1f s", what, took);
    di_grammar_release(g);
    di_arena_free(&arena);
}

static void test_hostile_schemas_are_bounded(void **state) {
    (void)state;
    di_buffer text = DI_BUFFER_EMPTY;
    /* Each level has two ways to the next, twice: 4^24 paths, few rules. */
    di_buffer_puts(&text, "{\"$defs\": {\"d24\": {\"type\": \"null\"}");
    for (int i = 0; i < 24; i++) {
        di_buffer_printf(
            &text,
            ", \"d%d\": {\"allOf\": [{\"anyOf\": [{\"$ref\": \"#/$defs/d%d\"}, {\"$ref\": "
            "\"#/$defs/d%d\"}]}, {\"anyOf\": [{\"$ref\": \"#/$defs/d%d\"}, true]}]}",
            i, i + 1, i + 1, i + 1);
    }
    di_buffer_puts(&text, "}, \"$ref\": \"#/$defs/d0\"}");
    bounded("ladder", &text, DI_OK);
    di_buffer_clear(&text);
    di_buffer_puts(&text, "{\"$defs\": {\"d9000\": true");
    for (int i = 0; i < 9000; i++) {
        di_buffer_printf(&text, ", \"d%d\": {\"$ref\": \"#/$defs/d%d\"}", i, i + 1);
    }
    di_buffer_puts(&text, "}, \"$ref\": \"#/$defs/d0\"}");
    bounded("chain", &text, DI_ERR_LIMIT);
    di_buffer_clear(&text);
    /* Alternatives multiplied: 2^20. */
    di_buffer_puts(&text, "{\"allOf\": [");
    for (int i = 0; i < 20; i++) {
        di_buffer_printf(&text,
                         "%s{\"anyOf\": [{\"properties\": {\"a%d\": {\"type\": \"null\"}}}, "
                         "{\"properties\": {\"b%d\": {\"type\": \"null\"}}}]}",
                         i ? ", " : "", i, i);
    }
    di_buffer_puts(&text, "]}");
    bounded("product", &text, DI_ERR_LIMIT);
    di_buffer_clear(&text);
    /* Patterns multiplied by one another. */
    di_buffer_puts(&text, "{\"type\": \"string\", \"allOf\": [");
    for (int i = 0; i < 12; i++) {
        di_buffer_printf(&text, "%s{\"pattern\": \"(a|b)*%c(a|b){%d}\"}", i ? ", " : "",
                         'a' + i % 2, i + 6);
    }
    di_buffer_puts(&text, "]}");
    bounded("patterns", &text, DI_ERR_LIMIT);
    di_buffer_clear(&text);
    /* Names by patterns, in many objects: a place in the schema is looked up for a pattern, not for a name. */
    di_buffer_puts(&text, "{\"allOf\": [");
    for (int i = 0; i < 12; i++) {
        di_buffer_printf(&text, "%s{\"type\": \"object\", \"patternProperties\": {", i ? ", " : "");
        for (int k = 0; k < 8; k++) {
            di_buffer_printf(&text, "%s\"^k%d\": {\"type\": \"integer\"}", k ? ", " : "", k);
        }
        di_buffer_puts(&text, "}, \"properties\": {");
        for (int k = 0; k < 500; k++) {
            di_buffer_printf(&text, "%s\"p%d_%d\": {\"type\": \"null\"}", k ? ", " : "", i, k);
        }
        di_buffer_puts(&text, "}}");
    }
    di_buffer_puts(&text, "]}");
    bounded("names by patterns", &text, DI_ERR_LIMIT);
    di_buffer_clear(&text);
    /* Large counts are counted, not copied. */
    di_buffer_puts(
        &text, "{\"type\": \"array\", \"minItems\": 1000000, \"maxItems\": 100000000, \"items\": "
               "{\"type\": \"string\", \"maxLength\": 1000000000000}}");
    bounded("counts", &text, DI_OK);
    di_buffer_clear(&text);
    di_buffer_puts(&text, "{\"type\": \"object\", \"properties\": {");
    for (int i = 0; i < 3000; i++) {
        di_buffer_printf(&text, "%s\"property number %d\": {\"type\": \"string\"}", i ? ", " : "",
                         i);
    }
    di_buffer_puts(&text, "}, \"minProperties\": 2000, \"additionalProperties\": false}");
    bounded("counted properties", &text, DI_ERR_LIMIT);
    di_buffer_clear(&text);
    /* Any set of definitions meets at some place: the program is full long before they all have rules. */
    di_buffer_puts(
        &text,
        "{\"allOf\": [{\"$ref\": \"#/$defs/s0\"}, {\"$ref\": \"#/$defs/s3\"}], \"$defs\": {");
    for (int i = 0; i < 12; i++) {
        di_buffer_printf(&text,
                         "%s\"s%d\": {\"properties\": {\"m\": {\"$ref\": \"#/$defs/s%d\"}, "
                         "\"n\": {\"allOf\": [",
                         i ? ", " : "", i, (i + 1) % 12);
        for (int k = 0; k <= i % 3; k++) {
            di_buffer_printf(&text, "%s{\"$ref\": \"#/$defs/s%d\"}", k ? ", " : "",
                             (i * 5 + k * 7 + 1) % 12);
        }
        di_buffer_puts(&text, "]}}}");
    }
    di_buffer_puts(&text, "}}");
    assert_string_equal(grammar_refusal(text.data),
                        "the grammar is too large: more than 600000 nodes or 50000 rules");
    di_buffer_free(&text);
}

static void test_random_schemas_have_right_masks(void **state) {
    (void)state;
    int n_compiled = 0;
    for (uint64_t seed = 500; seed < 530; seed++) {
        di_buffer text = DI_BUFFER_EMPTY, answer = DI_BUFFER_EMPTY;
        di_arena arena = DI_ARENA_EMPTY;
        const di_json *json;
        di_grammar *g;
        di_error error;
        grammar_random_schema(seed, &text);
        assert_int_equal(di_json_parse(text.data, text.size, "s", &arena, &json, &error), DI_OK);
        if (di_grammar_compile_schema(grammar_vocabulary(), NULL, json, &g, &error) == DI_OK) {
            grammar_sample(g, seed, 2, 60, 20, &answer);
            di_grammar_release(g);
            n_compiled++;
        }
        di_buffer_free(&text);
        di_buffer_free(&answer);
        di_arena_free(&arena);
    }
    assert_true(n_compiled > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_bounds_agree_with_arithmetic),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_combinations),
        cmocka_unit_test(test_recursion),
        cmocka_unit_test(test_the_closed_reading),
        cmocka_unit_test(test_blanks),
        cmocka_unit_test(test_refusals_name_keyword_and_place),
        cmocka_unit_test(test_hostile_schemas_are_bounded),
        cmocka_unit_test(test_random_schemas_have_right_masks),
    };
    return cmocka_run_group_tests(tests, NULL, grammar_vocabulary_done);
}
