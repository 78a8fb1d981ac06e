/* What a batch does with bad input: one clear error under the line's name, whatever is wrong with
 * it, and the lines around it are answered. Also how files may begin and end. */
/* ctest: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buffer.h"
#include "base/json.h"
#include "support/program.h"
#include "support/temp.h"

static char *input, *output, *command;

static int setup(void **state) {
    temp_root_create(state);
    input = temp_printf("%s/in.jsonl", temp_root);
    output = temp_printf("%s/out.jsonl", temp_root);
    command = temp_printf("batch models/demo -q --seed 1 --context 512 -i %s -o %s", input, output);
    return 0;
}

static int teardown(void **state) {
    free(input);
    free(output);
    free(command);
    return temp_root_destroy(state);
}

/* Runs these lines; the results, which the caller frees. */
static char *run_batch(const char *lines, size_t size) {
    temp_write(input, lines, size);
    (void)remove(output);
    const program_result *r = program_run(command, NULL);
    assert_string_equal(r->error, "");
    assert_int_equal(r->code, 0);
    return temp_read(output, NULL);
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what)) n++;
    return n;
}

/* The results have exactly one error under this id (NULL: null), and it begins so. */
static void expect_error(const char *results, const char *id, const char *message) {
    di_buffer want = DI_BUFFER_EMPTY;
    const char *code = strstr(message, "do not fit the context") ? "context_length_exceeded"
                       : strstr(message, "not supported")        ? "unsupported"
                       : strstr(message, "is supported")         ? "unsupported"
                                                                 : "invalid_request";
    di_buffer_puts(&want, "\"custom_id\": ");
    id ? di_json_write_string(&want, id, strlen(id)) : di_buffer_puts(&want, "null");
    di_buffer_printf(&want,
                     ", \"response\": null, \"error\": {\"code\": \"%s\", \"message\": ", code);
    di_json_write_string(&want, message, strlen(message));
    want.data[want.size - 1] = '\0'; /* more may follow */
    if (count(results, want.data) != 1) fail_msg("not once: %s\nin:\n%s", want.data, results);
    di_buffer_free(&want);
}

#define CHAT "\"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {"
#define TEXT "\"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {"
#define ASK CHAT "\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], "
#define SAY TEXT "\"prompt\": \"Hi\", "
#define GOOD SAY "\"max_tokens\": 1}}"

/* ---- Values of fields ---- */

static const struct {
    const char *rest, *message; /* of the line, behind its custom_id */
} refused[] = {
    {ASK "\"temperature\": 1e999}}", "temperature: a number in range is needed"},
    {ASK "\"temperature\": -1e999}}", "temperature: a number in range is needed"},
    {ASK "\"temperature\": -0.001}}", "temperature: -0.001 is no number from 0 to 100"},
    {ASK "\"temperature\": true}}", "temperature: a number in range is needed"},
    {ASK "\"temperature\": []}}", "temperature: a number in range is needed"},
    {ASK "\"temperature\": \"NaN\"}}", "temperature: a number in range is needed"},
    {ASK "\"top_p\": -1}}", "top_p: -1 is no number from 0 to 1"},
    {ASK "\"min_p\": 1.5}}", "min_p: 1.5 is no number from 0 to 1"},
    {ASK "\"presence_penalty\": -1e10}}", "presence_penalty: -1e+10 is no number from -100 to 100"},
    {ASK "\"frequency_penalty\": 1e38}}", "frequency_penalty: 1e+38 is no number from -100 to 100"},
    {ASK "\"repetition_penalty\": 0}}", "repetition_penalty: 0 is no number from 0.01 to 100"},
    {ASK "\"top_k\": 1e10}}", "top_k: a whole number from -1 to 2147483647 is needed"},
    {ASK "\"top_k\": \"5\"}}", "top_k: a whole number from -1 to 2147483647 is needed"},
    {ASK "\"seed\": -1}}", "seed: a whole number from 0 to"},
    {ASK "\"seed\": 18446744073709551616}}", "seed: a whole number from 0 to"},
    {ASK "\"n\": -1}}", "n: a whole number from 1 to 128 is needed"},
    {ASK "\"n\": 129}}", "n: a whole number from 1 to 128 is needed"},
    {ASK "\"n\": 1e999}}", "n: a whole number from 1 to 128 is needed"},
    {ASK "\"n\": true}}", "n: a whole number from 1 to 128 is needed"},
    {ASK "\"max_tokens\": -5}}", "max_tokens: a whole number from 1 to 1073741824 is needed"},
    {ASK "\"max_tokens\": 9223372036854775808}}", "max_tokens: a whole number from 1 to"},
    {ASK "\"max_completion_tokens\": 0}}", "max_completion_tokens: a whole number from 1 to"},
    {ASK "\"logprobs\": 1}}", "logprobs: true or false is needed"},
    {ASK "\"logprobs\": true, \"top_logprobs\": 21}}", "top_logprobs: a whole number from 0 to 20"},
    {ASK "\"stop\": 5}}", "stop: a string or a list of at most 64 of them is needed"},
    {ASK "\"stop\": [1]}}", "stop: text of 1 to 1024 bytes without NUL is needed"},
    {ASK "\"stop\": \"\\u0000\"}}", "stop: text of 1 to 1024 bytes without NUL is needed"},
    {ASK "\"logit_bias\": 5}}", "logit_bias: an object is needed"},
    {ASK "\"logit_bias\": {\"14\": 1e999}}}", "logit_bias: a number from -1000 to 1000 for each"},
    {ASK "\"logit_bias\": {\"-1\": 1}}}", "logit_bias: '-1' is no token id"},
    {ASK "\"tools\": {}}}", "tools: a list is needed"},
    {ASK "\"tools\": [1]}}", "tools[0]: must be a function object"},
    {ASK "\"reasoning_effort\": 5}}", "reasoning_effort: a string is needed"},
    {ASK "\"response_format\": {\"type\": \"json_object\"}}}",
     "response_format: only text is supported"},
    {ASK "\"tool_choice\": \"none\"}}", "tool_choice: only \"auto\" is supported"},
    {ASK "\"stream\": \"x\"}}", "stream: true or false is needed"},
    {CHAT "\"messages\": \"text\"}}", "messages: a list, not empty, is needed"},
    {CHAT "\"messages\": [1]}}", "messages[0]: must be an object"},
    {CHAT "\"messages\": [{\"role\": \"king\"}]}}", "messages[0].role: unknown role 'king'"},
    {CHAT "\"messages\": [{\"role\": \"user\", \"content\": 5}]}}", "messages[0].content: must be"},
    {TEXT "\"prompt\": 5}}", "prompt: a text or token ids is needed"},
    {TEXT "\"prompt\": []}}", "prompt: a text, not empty, is needed"},
    {TEXT "\"prompt\": [1.5]}}", "prompt: token ids are whole numbers below 2560"},
    {TEXT "\"prompt\": [1e9]}}", "prompt: token ids are whole numbers below 2560"},
    {TEXT "\"prompt\": [2147483648]}}", "prompt: token ids are whole numbers below 2560"},
    {TEXT "\"prompt\": [null]}}", "prompt: token ids are whole numbers below 2560"},
    {SAY "\"logprobs\": true}}", "logprobs: a whole number from 0 to 20 is needed"},
    {SAY "\"echo\": true}}", "echo: this field is not supported in a completion"},
    {SAY "\"messages\": []}}", "messages: this field is not supported in a completion"},
    {"\"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": []}", "body: an object"},
    {"\"method\": \"POST\", \"body\": {}}", "url: \"/v1/chat/completions\" or"},
    {"\"method\": \"POST\", \"url\": 5, \"body\": {}}", "url: \"/v1/chat/completions\" or"},
    {"\"url\": \"/v1/completions\", \"body\": {}}", "method: \"POST\" is needed"},
    {"\"method\": \"post\", \"url\": \"/v1/completions\", \"body\": {}}", "method: \"POST\""},
};
enum { N_REFUSED = sizeof refused / sizeof refused[0] };

static void test_impossible_values(void **state) {
    (void)state;
    di_buffer lines = DI_BUFFER_EMPTY;
    for (int i = 0; i < N_REFUSED; i++) {
        di_buffer_printf(&lines, "{\"custom_id\": \"%d\", %s\n", i, refused[i].rest);
        di_buffer_printf(&lines, "{\"custom_id\": \"good %d\", " GOOD "\n", i);
    }
    di_buffer_puts(&lines, "{\"custom_id\": \"stops\", " ASK "\"stop\": [\"s\"");
    for (int i = 1; i < 1000; i++) di_buffer_puts(&lines, ", \"s\"");
    di_buffer_puts(&lines, "]}}\n{\"custom_id\": \"long\", " CHAT
                           "\"messages\": [{\"role\": \"user\", \"content\": \"");
    for (int i = 0; i < 600; i++) di_buffer_puts(&lines, "a fox ");
    di_buffer_puts(&lines, "\"}]}}\n");
    char *results = run_batch(lines.data, lines.size);
    for (int i = 0; i < N_REFUSED; i++) {
        char id[12];
        snprintf(id, sizeof id, "%d", i);
        expect_error(results, id, refused[i].message);
    }
    expect_error(results, "stops", "stop: a string or a list of at most 64 of them is needed");
    expect_error(results, "long",
                 "messages: 1232 tokens and one of answer do not fit the context of 512");
    assert_int_equal(count(results, "\n"), 2 * N_REFUSED + 2);
    assert_int_equal(count(results, "\"error\": null}\n"), N_REFUSED);
    free(results);
    di_buffer_free(&lines);
}

/* ---- Lines that are no requests ---- */

#define LINE(text, message)                                                                        \
    { text, sizeof text - 1, message }

static const struct {
    const char *text;
    size_t size;
    const char *message; /* behind "line N of the input" */
} lines_refused[] = {
    LINE("{\"custom_id\": \"x\", \"temperature\": NaN}", ", column 35: expected a value"),
    LINE("{\"custom_id\": \"x\", \"a\": Infinity}", ", column 25: expected a value"),
    LINE("{\"custom_id\": \"x\", \"a\": -Infinity}", ", column 25: expected a value"),
    LINE("{'custom_id': 'x'}", ", column 2: expected a key in quotes"),
    LINE("{\"custom_id\": \"x\", " SAY "\"n\": 1}", ", column 1: unterminated array or object"),
    LINE("{\"custom_id\": \"x\",}", ", column 19: expected a key in quotes"),
    LINE("\xEF\xBB\xBF{\"custom_id\": \"x\"}", ", column 1: expected a value"),
    LINE("{\"custom_id\": \"x\0\"}", ", column 17: control character in string"),
    LINE("\0", ", column 1: expected a value"),
    LINE("{\"custom_id\": \"\xFF\"}", ", column 16: invalid UTF-8 in string"),
    LINE("\xC3\x28", ", column 1: expected a value"),
    LINE("{\"custom_id\": \"\\ud800\"}", ", column 16: lone surrogate in \\u escape"),
    LINE("{\"custom_id\": \"x\", \"custom_id\": \"y\"}", ", column 20: duplicate key in object"),
    LINE("{\"custom_id\": 5}", ": custom_id: a string, not empty, is needed"),
    LINE("{\"custom_id\": null, " GOOD, ": custom_id: a string, not empty, is needed"),
    LINE("{\"custom_id\": \"\", " GOOD, ": custom_id: a string, not empty, is needed"),
    LINE("{}", ": custom_id: a string, not empty, is needed"),
    LINE("null", ": no JSON object"),
    LINE("\"text\"", ": no JSON object"),
    LINE("// comment", ", column 1: expected a value"),
    LINE("{\"custom_id\": \"a\"} {\"custom_id\": \"b\"}", ", column 20: text behind the end"),
    LINE("\x0B{}", ", column 1: expected a value"),
};
enum { N_LINES = sizeof lines_refused / sizeof lines_refused[0] };

static void append_many(di_buffer *out, char c, size_t n) {
    if (!di_buffer_reserve(out, n)) return;
    memset(out->data + out->size, c, n);
    out->size += n;
}

/* The last ones: nested far too deeply, longer than any request, and a name that was taken. */
static void test_lines_that_are_no_requests(void **state) {
    (void)state;
    char where[160];
    di_buffer lines = DI_BUFFER_EMPTY;
    for (int i = 0; i < N_LINES; i++) {
        di_buffer_append(&lines, lines_refused[i].text, lines_refused[i].size);
        di_buffer_putc(&lines, '\n');
    }
    append_many(&lines, '[', 1000000);
    di_buffer_puts(&lines, "\n{\"custom_id\": \"");
    append_many(&lines, 'x', 100000000);
    di_buffer_puts(&lines, "\", " GOOD "\n{\"custom_id\": \"good\", " GOOD);
    di_buffer_puts(&lines, "\n{\"custom_id\": \"good\", " GOOD);
    assert_false(lines.failed);
    char *results = run_batch(lines.data, lines.size);
    for (int i = 0; i < N_LINES; i++) {
        snprintf(where, sizeof where, "line %d of the input%s", i + 1, lines_refused[i].message);
        expect_error(results, NULL, where);
    }
    snprintf(where, sizeof where, "line %d of the input, column 129: nested", N_LINES + 1);
    expect_error(results, NULL, where);
    snprintf(where, sizeof where, "line %d of the input: %zu bytes, a request has at most 32 MiB",
             N_LINES + 2, sizeof "{\"custom_id\": \"\", " GOOD - 1 + 100000000);
    expect_error(results, NULL, where);
    snprintf(where, sizeof where, "line %d of the input: custom_id: 'good' stands in a line before",
             N_LINES + 4);
    expect_error(results, NULL, where);
    assert_int_equal(count(results, "\n"), N_LINES + 4);
    assert_int_equal(count(results, "\"error\": null}\n"), 1);
    assert_int_equal(count(results, "\"custom_id\": \"good\", \"response\": {"), 1);
    free(results);
    di_buffer_free(&lines);
}

/* ---- Files ---- */

/* A byte order mark, ends of lines as Windows has them, blank lines, no last newline. */
static void test_beginnings_and_ends(void **state) {
    (void)state;
    static const char lines[] = "\xEF\xBB\xBF{\"custom_id\": \"first\", " GOOD "\r\n\r\n \t\n"
                                "{\"custom_id\": \"second\", " GOOD "\r\n\n"
                                "{\"custom_id\": \"third\", " GOOD;
    char *results = run_batch(lines, sizeof lines - 1);
    assert_int_equal(count(results, "\n"), 3);
    assert_int_equal(count(results, "\"error\": null}\n"), 3);
    free(results);
}

static void test_empty_files(void **state) {
    (void)state;
    static const char *const texts[] = {"",         "\n",           "\r\n\r\n",
                                        "  \n\t\n", "\xEF\xBB\xBF", "\xEF\xBB\xBF\r\n"};
    char *want = temp_printf("batch: %s holds no requests: it is empty", input);
    (void)remove(output);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        temp_write(input, texts[i], strlen(texts[i]));
        program_refuses(command, NULL, 1, want);
    }
    free(want);
    (void)remove(input);
    want = temp_printf("batch: cannot open %s: No such file or directory", input);
    program_refuses(command, NULL, 1, want);
    free(want);
    /* Nothing was made of nothing. */
    FILE *file = fopen(output, "r");
    assert_null(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_impossible_values),
        cmocka_unit_test(test_lines_that_are_no_requests),
        cmocka_unit_test(test_beginnings_and_ends),
        cmocka_unit_test(test_empty_files),
    };
    if (!program_can_compute()) return 77;
    return cmocka_run_group_tests(tests, setup, teardown);
}
