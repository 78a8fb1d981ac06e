/* The JSON reader and writer. Expected texts of the writer come from Python (tests/data/json). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"

static di_status parse_n(const char *text, size_t size, di_arena *arena, const di_json **root,
                         di_error *error) {
    char *exact = malloc(size ? size : 1); /* no NUL behind it: a sanitizer sees a step too far */
    assert_non_null(exact);
    memcpy(exact, text, size);
    di_status status = di_json_parse(exact, size, "t.json", arena, root, error);
    free(exact); /* the tree must not point into the text */
    return status;
}

static const di_json *parse(const char *text, di_arena *arena) {
    const di_json *root;
    di_error error;
    if (parse_n(text, strlen(text), arena, &root, &error) != DI_OK) fail_msg("%s", error.message);
    return root;
}

/* What the writer makes of a text; free() it. */
static char *rewritten(const char *text) {
    di_arena arena = DI_ARENA_EMPTY;
    di_buffer out = DI_BUFFER_EMPTY;
    di_json_write(&out, parse(text, &arena));
    assert_false(out.failed);
    di_arena_free(&arena);
    return out.data;
}

static void assert_rewritten(const char *text, const char *want) {
    char *got = rewritten(text);
    assert_string_equal(got, want);
    free(got);
}

static void test_values(void **state) {
    (void)state;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *root =
        parse(" {\"a\" : [1, -2.5e3,\ttrue,false , null],\r\n\"b\":{}, \"\": \"x\"} \n", &arena);
    assert_int_equal(root->type, DI_JSON_OBJECT);
    assert_int_equal(root->length, 3);
    assert_null(root->key);
    const di_json *a = di_json_get(root, "a");
    assert_int_equal(a->type, DI_JSON_ARRAY);
    assert_int_equal(a->length, 5);
    assert_string_equal(a->key, "a");
    assert_string_equal(a->first->text, "1");
    assert_string_equal(a->first->next->text, "-2.5e3");
    assert_int_equal(a->first->next->length, 6);
    assert_int_equal(a->first->next->next->type, DI_JSON_TRUE);
    assert_int_equal(a->first->next->next->next->type, DI_JSON_FALSE);
    assert_int_equal(a->first->next->next->next->next->type, DI_JSON_NULL);
    assert_null(a->first->next->next->next->next->next);
    assert_int_equal(di_json_get(root, "b")->length, 0);
    assert_null(di_json_get(root, "b")->first);
    assert_string_equal(di_json_get(root, "")->text, "x");
    assert_null(di_json_get(root, "c"));
    assert_null(di_json_get(a, "a"));
    assert_null(di_json_get(NULL, "a"));
    assert_int_equal(root->line, 1);
    assert_int_equal(a->first->next->line, 1);
    assert_int_equal(di_json_get(root, "b")->line, 2);
    di_arena_free(&arena);
}

static void test_strings(void **state) {
    (void)state;
    static const struct {
        const char *json, *text;
        size_t length;
    } cases[] = {
        {"\"\"", "", 0},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8},
        {"\"\\u0041\\u00e9\\u4F60\\ud83d\\uDE00\"", "A\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80", 10},
        {"\"a\\u0000b\"", "a\0b", 3},
        {"\"\\uD7FF\\uE000\\uFFFF\\uDBFF\\uDFFF\"",
         "\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF\xF4\x8F\xBF\xBF", 13},
        {"\"\x7F\xC2\x80\xE2\x80\xA8\"", "\x7F\xC2\x80\xE2\x80\xA8", 6},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_arena arena = DI_ARENA_EMPTY;
        const di_json *root = parse(cases[i].json, &arena);
        assert_int_equal(root->type, DI_JSON_STRING);
        assert_int_equal(root->length, cases[i].length);
        assert_memory_equal(root->text, cases[i].text, cases[i].length + 1); /* the NUL too */
        di_arena_free(&arena);
    }
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "line 1, column 1: unexpected end, expected a value"},
        {" \n ", "line 2, column 2: unexpected end, expected a value"},
        {"nul", "line 1, column 1: expected a value"},
        {"nulls", "line 1, column 5: text behind the end of the JSON value"},
        {"True", "line 1, column 1: expected a value"},
        {"NaN", "line 1, column 1: expected a value"},
        {"-Infinity", "line 1, column 1: expected a value"},
        {"'a'", "line 1, column 1: expected a value"},
        {"\xEF\xBB\xBF"
         "1",
         "line 1, column 1: expected a value"},
        {"// x\n1", "line 1, column 1: expected a value"},
        {"+1", "line 1, column 1: expected a value"},
        {".5", "line 1, column 1: expected a value"},
        {"-", "line 1, column 1: expected a value"},
        {"-a", "line 1, column 1: expected a value"},
        {"01", "line 1, column 1: number with a leading zero"},
        {"-00", "line 1, column 1: number with a leading zero"},
        {"1.", "line 1, column 1: number without digits after the point"},
        {"1.e5", "line 1, column 1: number without digits after the point"},
        {"1e", "line 1, column 1: number without digits in its exponent"},
        {"1e+", "line 1, column 1: number without digits in its exponent"},
        {"0x10", "line 1, column 2: text behind the end of the JSON value"},
        {"1 2", "line 1, column 3: text behind the end of the JSON value"},
        {"[1,]", "line 1, column 4: expected a value"},
        {"[,1]", "line 1, column 2: expected a value"},
        {"[1 2]", "line 1, column 4: expected ',' or the closing bracket"},
        {"[1}", "line 1, column 3: expected ',' or the closing bracket"},
        {"[", "line 1, column 2: unexpected end, expected a value"},
        {"[1", "line 1, column 1: unterminated array or object"},
        {"[1,", "line 1, column 4: unexpected end, expected a value"},
        {"]", "line 1, column 1: expected a value"},
        {"{", "line 1, column 2: expected a key in quotes"},
        {"{1:2}", "line 1, column 2: expected a key in quotes"},
        {"{\"a\"}", "line 1, column 5: expected ':' after the key"},
        {"{\"a\"", "line 1, column 5: expected ':' after the key"},
        {"{\"a\":}", "line 1, column 6: expected a value"},
        {"{\"a\":1,}", "line 1, column 8: expected a key in quotes"},
        {"{\"a\":1", "line 1, column 1: unterminated array or object"},
        {"{\n\"a\": 1,\n  \"a\": 2}", "line 3, column 3: duplicate key in object"},
        {"{\"a\": 1, \"\\u0061\": 2}", "line 1, column 10: duplicate key in object"},
        {"{\"\": 1, \"\": 2}", "line 1, column 9: duplicate key in object"},
        {"\"", "line 1, column 1: unterminated string"},
        {"\"abc", "line 1, column 1: unterminated string"},
        {"\"a\\", "line 1, column 3: unterminated string"},
        {"\"a\\\"", "line 1, column 1: unterminated string"},
        {"\"a\nb\"", "line 1, column 3: control character in string"},
        {"\"\x1F\"", "line 1, column 2: control character in string"},
        {"\"\\x\"", "line 1, column 2: unknown escape in string"},
        {"\"\\'\"", "line 1, column 2: unknown escape in string"},
        {"\"\\u12\"", "line 1, column 2: incomplete \\u escape"},
        {"\"\\u12g4\"", "line 1, column 2: \\u needs four hexadecimal digits"},
        {"\"\\u 123\"", "line 1, column 2: \\u needs four hexadecimal digits"},
        {"\"\\ud800\"", "line 1, column 2: lone surrogate in \\u escape"},
        {"\"\\ud800\\u0041\"", "line 1, column 2: lone surrogate in \\u escape"},
        {"\"\\ud800\\ud800\"", "line 1, column 2: lone surrogate in \\u escape"},
        {"\"\\udc00\"", "line 1, column 2: lone surrogate in \\u escape"},
        {"\"\\ud83d", "line 1, column 2: lone surrogate in \\u escape"},
        {"\"ab\xFF\"", "line 1, column 4: invalid UTF-8 in string"},
        {"\"\xED\xA0\x80\"", "line 1, column 2: invalid UTF-8 in string"},
        {"\"\xE4\xBD\"", "line 1, column 2: invalid UTF-8 in string"},
        {"\"\xC0\x80\"", "line 1, column 2: invalid UTF-8 in string"},
        {"\xE4", "line 1, column 1: expected a value"},
        {"[1]\x0B", "line 1, column 4: text behind the end of the JSON value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_arena arena = DI_ARENA_EMPTY;
        const di_json *root = (const di_json *)&arena;
        di_error error;
        assert_int_equal(parse_n(cases[i].text, strlen(cases[i].text), &arena, &root, &error),
                         DI_ERR_INVALID);
        assert_null(root);
        assert_memory_equal(error.message, "t.json: ", 8);
        assert_string_equal(error.message + 8, cases[i].message);
        di_arena_free(&arena);
    }
}

static void test_a_nul_is_no_end(void **state) {
    (void)state;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *root;
    di_error error;
    assert_int_equal(parse_n("1\0", 2, &arena, &root, &error), DI_ERR_INVALID);
    assert_string_equal(error.message,
                        "t.json: line 1, column 2: text behind the end of the JSON value");
    assert_int_equal(parse_n("\"a\0b\"", 5, &arena, &root, &error), DI_ERR_INVALID);
    assert_string_equal(error.message, "t.json: line 1, column 3: control character in string");
    di_arena_free(&arena);
}

static di_status parse_nested(int depth, char open, char close, di_error *error) {
    di_buffer text = DI_BUFFER_EMPTY;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *root;
    for (int i = 0; i < depth; i++) {
        di_buffer_putc(&text, open);
        if (open == '{' && i + 1 < depth) di_buffer_puts(&text, "\"a\":");
    }
    for (int i = 0; i < depth && close; i++) di_buffer_putc(&text, close);
    di_status status = parse_n(text.data, text.size, &arena, &root, error);
    di_arena_free(&arena);
    di_buffer_free(&text);
    return status;
}

static void test_depth(void **state) {
    (void)state;
    di_error error;
    assert_int_equal(parse_nested(DI_JSON_MAX_DEPTH, '[', ']', &error), DI_OK);
    assert_int_equal(parse_nested(DI_JSON_MAX_DEPTH, '{', '}', &error), DI_OK);
    assert_int_equal(parse_nested(DI_JSON_MAX_DEPTH + 1, '[', ']', &error), DI_ERR_INVALID);
    assert_string_equal(error.message, "t.json: line 1, column 129: nested too deeply");
    assert_int_equal(parse_nested(DI_JSON_MAX_DEPTH + 1, '{', '}', &error), DI_ERR_INVALID);
    assert_int_equal(parse_nested(1000000, '[', '\0', &error), DI_ERR_INVALID);
    assert_string_equal(error.message, "t.json: line 1, column 129: nested too deeply");
}

/* Square time would be 10^10 steps here: the timeout of the test is the check. */
static void test_many_members(void **state) {
    (void)state;
    di_buffer text = DI_BUFFER_EMPTY;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *root;
    di_error error;
    for (int i = 0; i < 200000; i++) di_buffer_printf(&text, "%c\"key%d\":%d", i ? ',' : '{', i, i);
    di_buffer_putc(&text, '}');
    assert_int_equal(parse_n(text.data, text.size, &arena, &root, &error), DI_OK);
    assert_int_equal(root->length, 200000);
    int64_t value;
    assert_true(di_json_int64(di_json_get(root, "key199999"), &value));
    assert_int_equal(value, 199999);
    text.size--;
    di_buffer_puts(&text, ",\"key77\":0}");
    assert_int_equal(parse_n(text.data, text.size, &arena, &root, &error), DI_ERR_INVALID);
    assert_non_null(strstr(error.message, "duplicate key in object"));
    di_arena_free(&arena);
    di_buffer_free(&text);
}

/* The place that FNV-1a, a hash without a secret, gives a key in a table of 2^18. */
static uint64_t fnv_place(const char *text) {
    uint64_t hash = 1469598103934665603u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return (hash ^ hash >> 32) & ((1 << 18) - 1);
}

/* Processor seconds to read an object of n members: all keys, or those of one place in 32 alone. */
static double seconds_to_read(int n, bool hostile) {
    di_buffer text = DI_BUFFER_EMPTY;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *root;
    di_error error;
    struct timespec from, to;
    for (int i = 0, taken = 0; taken < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "k%d", i);
        if (hostile && fnv_place(name) >= 1 << 13) continue;
        di_buffer_printf(&text, "%c\"%s\":0", taken++ ? ',' : '{', name);
    }
    di_buffer_putc(&text, '}');
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    assert_int_equal(parse_n(text.data, text.size, &arena, &root, &error), DI_OK);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    assert_int_equal(root->length, n);
    di_arena_free(&arena);
    di_buffer_free(&text);
    return (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}

/* Keys that a known hash crowds into one place of its table cost what others do. */
static void test_hostile_members(void **state) {
    (void)state;
    enum { MEMBERS = 100000 };
    double harmless = seconds_to_read(MEMBERS, false), hostile = seconds_to_read(MEMBERS, true);
    if (hostile > 10 * harmless + 0.05) fail_msg("%g s, others %g s", hostile, harmless);
}

/* Where several keys stand twice, the first place that repeats one is told. */
static void test_first_duplicate(void **state) {
    (void)state;
    static const char text[] = "{\"z\":1,\"b\":{\"z\":1},\"a\":1,\"z\":1,\"a\":1,\"z\":1}";
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *root;
    di_error error;
    assert_int_equal(parse_n(text, sizeof text - 1, &arena, &root, &error), DI_ERR_INVALID);
    assert_string_equal(error.message, "t.json: line 1, column 26: duplicate key in object");
    di_arena_free(&arena);
}

static void test_last_duplicate_counts(void **state) {
    (void)state;
    static const char text[] =
        "{\"z\":1,\"b\":{\"z\":1,\"z\":{}},\"a\":1,\"z\":2,\"\\u0061\":3,\"z\":[{\"y\":1,\"y\":2}]}";
    di_arena arena = DI_ARENA_EMPTY;
    di_buffer out = DI_BUFFER_EMPTY;
    const di_json *root;
    di_error error;
    assert_int_equal(di_json_parse_last(text, sizeof text - 1, "t", &arena, &root, &error), DI_OK);
    assert_int_equal(root->length, 3);
    di_json_write(&out, root);
    di_buffer_putc(&out, '\0');
    assert_string_equal(out.data, "{\"b\": {\"z\": {}}, \"a\": 3, \"z\": [{\"y\": 2}]}");
    di_buffer_free(&out);
    di_arena_free(&arena);
}

static void test_int64(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool good;
        int64_t value;
    } cases[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"-0.0", true, 0},
        {"1.0", true, 1},
        {"1e3", true, 1000},
        {"1.5e1", true, 15},
        {"-12", true, -12},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"99999999999999999999999", false, 0},
        {"9007199254740992.0", true, 9007199254740992},
        {"1.5", false, 0},
        {"1e-1", false, 0},
        {"1e19", false, 0},
        {"1e400", false, 0},
        {"\"1\"", false, 0},
        {"true", false, 0},
        {"null", false, 0},
        {"[1]", false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_arena arena = DI_ARENA_EMPTY;
        int64_t value = 77; /* stays on failure */
        assert_int_equal(di_json_int64(parse(cases[i].text, &arena), &value), cases[i].good);
        assert_true(value == (cases[i].good ? cases[i].value : 77));
        di_arena_free(&arena);
    }
    int64_t value;
    assert_false(di_json_int64(NULL, &value));
}

static void test_double_bool_and_string(void **state) {
    (void)state;
    di_arena arena = DI_ARENA_EMPTY;
    double number;
    bool flag;
    assert_true(di_json_double(parse("0.1", &arena), &number) && number == 0.1);
    assert_true(di_json_double(parse("-25e-1", &arena), &number) && number == -2.5);
    assert_true(di_json_double(parse("9007199254740993", &arena), &number) &&
                number == 9007199254740992.0);
    assert_true(di_json_double(parse("1e-400", &arena), &number) && number == 0);
    assert_true(di_json_double(parse("5e-324", &arena), &number) && number > 0);
    assert_false(di_json_double(parse("1e400", &arena), &number));
    assert_false(di_json_double(parse("\"1\"", &arena), &number));
    assert_false(di_json_double(NULL, &number));
    assert_true(di_json_bool(parse("true", &arena), &flag) && flag);
    assert_true(di_json_bool(parse("false", &arena), &flag) && !flag);
    assert_false(di_json_bool(parse("0", &arena), &flag));
    assert_false(di_json_bool(NULL, &flag));
    assert_true(di_json_is_string(parse("\"abc\"", &arena), "abc"));
    assert_false(di_json_is_string(parse("\"abc\"", &arena), "ab"));
    assert_false(di_json_is_string(parse("\"ab\\u0000\"", &arena), "ab"));
    assert_false(di_json_is_string(parse("1", &arena), "1"));
    assert_false(di_json_is_string(NULL, ""));
    di_arena_free(&arena);
}

static void test_writing(void **state) {
    (void)state;
    assert_rewritten(
        "{\"b\":[1,2.50,{}],\"a\":{\"x\":null,\"y\":[]},\"c\":[true,false]}",
        "{\"b\": [1, 2.5, {}], \"a\": {\"x\": null, \"y\": []}, \"c\": [true, false]}");
    assert_rewritten("[]", "[]");
    assert_rewritten(
        "\"\\u0000\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f\\\"\\\\\\/\\u007f\\u00e9\\u2028\\ud83d\\ude00\"",
        "\"\\u0000\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f\\\"\\\\/\x7F\xC3\xA9\xE2\x80\xA8\xF0\x9F\x98\x80\"");
    assert_rewritten("{\"\\n\\\"\": 123456789012345678901234567890123456789012345678901234567890}",
                     "{\"\\n\\\"\": 123456789012345678901234567890123456789012345678901234567890}");
}

/* Each line of numbers.txt: a number, a tab, what Python makes of it. */
static void test_numbers_as_python_prints_them(void **state) {
    (void)state;
    char *text;
    uint64_t size;
    di_error error;
    if (di_file_read(DI_SOURCE_DIR "/tests/data/json/numbers.txt", 1 << 24, &text, &size, &error) !=
        DI_OK) {
        fail_msg("%s", error.message);
    }
    size_t lines = 0, wrong = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *want = strchr(line, '\t');
        assert_non_null(want);
        *want++ = '\0';
        char *got = rewritten(line);
        if (strcmp(got, want) != 0 && wrong++ < 10) {
            fprintf(stderr, "%s: got %s, Python prints %s\n", line, got, want);
        }
        free(got);
        lines++;
    }
    free(text);
    assert_true(lines > 4000);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_a_nul_is_no_end),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_many_members),
        cmocka_unit_test(test_hostile_members),
        cmocka_unit_test(test_first_duplicate),
        cmocka_unit_test(test_last_duplicate_counts),
        cmocka_unit_test(test_int64),
        cmocka_unit_test(test_double_bool_and_string),
        cmocka_unit_test(test_writing),
        cmocka_unit_test(test_numbers_as_python_prints_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
