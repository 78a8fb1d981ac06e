/* batch: results are those of `run`, errors stay on their line, and a run that is stopped at any
 * moment goes on without loss or duplicates. */
/* ctest: slow */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/philox.h"
#include "support/program.h"
#include "support/temp.h"

static char *root, *input, *output;

static int setup(void **state) {
    (void)state;
    root = temp_dir_create();
    input = temp_printf("%s/in.jsonl", root);
    output = temp_printf("%s/out.jsonl", root);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    free(input);
    free(output);
    temp_dir_destroy(root);
    return 0;
}

#define CHAT "\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {"
#define TEXT "\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {"
#define ASK "\"messages\": [{\"role\": \"user\", \"content\": \"What is 12 + 13?\"}]"
#define FOX "\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story about a fox.\"}]"

/* Runs the lines into a new output file; the result is read by temp_read(output). */
static const program_result *run_lines(const char *lines, const char *options) {
    temp_write(input, lines, strlen(lines));
    (void)remove(output);
    char *command =
        temp_printf("batch models/demo -i %s -o %s --context 512 %s", input, output, options);
    const program_result *r = program_run(command, NULL);
    free(command);
    return r;
}

static di_arena arena;

static const di_json *parse(const char *text, size_t size) {
    const di_json *out;
    di_error error;
    if (di_json_parse(text, size, "a result", &arena, &out, &error) != DI_OK) {
        fail_msg("%s: %.*s", error.message, (int)size, text);
    }
    return out;
}

/* The result of a custom_id, which must be there exactly once; with NULL that of the first null. */
static const di_json *result_of(const char *results, const char *custom_id) {
    const di_json *found = NULL;
    for (const char *at = results; *at;) {
        size_t size = strcspn(at, "\n");
        assert_int_equal(at[size], '\n');
        const di_json *o = parse(at, size), *id = di_json_get(o, "custom_id");
        assert_non_null(id);
        if (custom_id ? di_json_is_string(id, custom_id) : id->type == DI_JSON_NULL && !found) {
            assert_null(found);
            found = o;
        }
        at += size + 1;
    }
    if (!found) fail_msg("%s has no result in:\n%s", custom_id, results);
    return found;
}

static const di_json *choice_of(const char *results, const char *custom_id, int index) {
    const di_json *response = di_json_get(result_of(results, custom_id), "response");
    const di_json *choice = di_json_get(di_json_get(response, "body"), "choices");
    assert_non_null(choice);
    choice = choice->first;
    while (index-- > 0) choice = choice->next;
    assert_non_null(choice);
    return choice;
}

static void expect_text(const di_json *value, const di_json *want) {
    assert_non_null(value);
    assert_non_null(want);
    assert_int_equal(value->type, DI_JSON_STRING);
    assert_string_equal(value->text, want->text);
}

/* Choice 0 of a request against `run --json` with the same values: text, thought, finish, and every
 * digit of the log-probabilities. */
static void equals_run(const char *results, const char *custom_id, const char *run_options) {
    char *command = temp_printf("run models/demo --json -q --context 512 %s", run_options);
    const program_result *r = program_run(command, NULL);
    const di_json *want = parse(r->out, strlen(r->out));
    const di_json *choice = choice_of(results, custom_id, 0);
    const di_json *message = di_json_get(choice, "message"), *logprobs;
    const di_json *thought = di_json_get(message, "reasoning_content");
    expect_text(di_json_get(message, "content"), di_json_get(want, "text"));
    if (thought) expect_text(thought, di_json_get(want, "thinking"));
    expect_text(di_json_get(choice, "finish_reason"), di_json_get(want, "finish_reason"));
    logprobs = di_json_get(di_json_get(choice, "logprobs"), "content");
    const di_json *x = di_json_get(want, "logprobs");
    assert_int_equal(logprobs->length, x->length);
    assert_true(x->length > 0);
    x = x->first;
    for (const di_json *t = logprobs->first; t; t = t->next, x = x->next) {
        assert_string_equal(di_json_get(t, "logprob")->text, x->text);
    }
    free(command);
}

static void test_equals_run(void **state) {
    (void)state;
    const program_result *r = run_lines(
        "{\"custom_id\": \"greedy" CHAT ASK ", \"temperature\": 0, \"logprobs\": true}}\n"
        "{\"custom_id\": \"sampled" CHAT FOX
        ", \"seed\": 7, \"n\": 2, \"max_tokens\": 40, \"thinking\": false, \"logprobs\": true, "
        "\"top_logprobs\": 2}}\n"
        "{\"custom_id\": \"many" CHAT FOX
        ", \"seed\": 9, \"temperature\": 1.5, \"top_k\": 20, \"top_p\": 0.9, \"min_p\": 0.01, "
        "\"presence_penalty\": 0.5, \"frequency_penalty\": 0.25, \"logit_bias\": {\"14\": -2}, "
        "\"max_completion_tokens\": 40, \"reasoning_effort\": \"none\", \"logprobs\": true}}\n"
        "{\"custom_id\": \"stop" CHAT ASK
        ", \"temperature\": 0, \"thinking\": {\"type\": \"disabled\"}, \"stop\": \" = \", "
        "\"logprobs\": true}}\n",
        "-q");
    assert_string_equal(r->error, "");
    assert_int_equal(r->code, 0);
    assert_string_equal(r->out, "");
    char *results = temp_read(output, NULL);
    equals_run(results, "greedy", "--temperature 0 'What is 12 + 13?'");
    equals_run(results, "sampled",
               "--no-thinking --seed 7 --max-tokens 40 'Tell me a story about a fox.'");
    equals_run(results, "many",
               "--effort none --seed 9 --temperature 1.5 --top-k 20 --top-p 0.9 --min-p 0.01 "
               "--presence-penalty 0.5 --frequency-penalty 0.25 --logit-bias 14=-2 "
               "--max-tokens 40 'Tell me a story about a fox.'");
    equals_run(results, "stop", "--no-thinking --temperature 0 --stop ' = ' 'What is 12 + 13?'");
    /* The second choice is another one. */
    const di_json *a = di_json_get(choice_of(results, "sampled", 0), "message");
    const di_json *b = di_json_get(choice_of(results, "sampled", 1), "message");
    assert_string_not_equal(di_json_get(a, "content")->text, di_json_get(b, "content")->text);
    free(results);
    di_arena_free(&arena);
}

/* max_tokens ends the answer inside a call, so what was held back becomes text, and the stop string in
 * it ends the answer: fewer tokens than asked for, and so no "length". */
static void test_stop_in_what_was_held_back(void **state) {
    (void)state;
    run_lines("{\"custom_id\": \"held" CHAT
              "\"messages\": [{\"role\": \"system\", \"content\": \"You are a helpful "
              "assistant.\", \"tools\": [{\"name\": \"send_message\", \"description\": \"Send a "
              "message to a person.\", \"parameters\": {\"type\": \"object\", \"properties\": "
              "{\"to\": {\"type\": \"string\"}, \"text\": {\"type\": \"string\"}}, "
              "\"required\": [\"to\", \"text\"]}}, {\"name\": \"find_item\", "
              "\"description\": \"Find out where an item is.\", \"parameters\": {\"type\": "
              "\"object\", \"properties\": {\"item\": {\"type\": \"string\"}}, "
              "\"required\": [\"item\"]}}]}, {\"role\": \"user\", \"content\": \"Where is the "
              "book?\"}], \"thinking\": true, \"max_tokens\": 30, \"temperature\": 0, "
              "\"stop\": \"find_item\"}}\n",
              "-q");
    char *results = temp_read(output, NULL);
    const di_json *choice = choice_of(results, "held", 0);
    assert_string_equal(di_json_get(choice, "finish_reason")->text, "stop");
    const di_json *content = di_json_get(di_json_get(choice, "message"), "content");
    assert_non_null(strstr(content->text, "name="));
    assert_null(strstr(content->text, "find_item"));
    free(results);
    di_arena_free(&arena);
}

static void test_completions_and_tools(void **state) {
    (void)state;
    run_lines("{\"custom_id\": \"text" TEXT
              "\"prompt\": \"Long ago\", \"max_tokens\": 5, \"temperature\": 0, \"logprobs\": 1}}\n"
              "{\"custom_id\": \"ids" TEXT
              "\"prompt\": [0, 67, 2076], \"max_tokens\": 3, \"seed\": 5}}\n"
              "{\"custom_id\": \"call" CHAT
              "\"messages\": [{\"role\": \"user\", \"content\": \"What is the weather in "
              "Paris?\"}], \"thinking\": false, \"temperature\": 0, \"tools\": [{\"type\": "
              "\"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"Weather "
              "of a city\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": "
              "{\"type\": \"string\"}}, \"required\": [\"city\"]}}}]}}\n",
              "-q");
    char *results = temp_read(output, NULL);
    const program_result *r = program_run(
        "run models/demo -q --raw --temperature 0 --max-tokens 5 --context 512 'Long ago'", NULL);
    char *text = temp_printf("%s\n", di_json_get(choice_of(results, "text", 0), "text")->text);
    assert_string_equal(text, r->out);
    free(text);
    const di_json *ids = di_json_get(di_json_get(result_of(results, "ids"), "response"), "body");
    int64_t n;
    assert_true(di_json_int64(di_json_get(di_json_get(ids, "usage"), "prompt_tokens"), &n));
    assert_int_equal(n, 3);
    assert_true(di_json_int64(di_json_get(ids, "seed"), &n));
    assert_int_equal(n, 5);
    const di_json *choice = choice_of(results, "call", 0);
    assert_string_equal(di_json_get(choice, "finish_reason")->text, "tool_calls");
    const di_json *calls = di_json_get(di_json_get(choice, "message"), "tool_calls");
    const di_json *function = di_json_get(calls->first, "function");
    assert_string_equal(di_json_get(function, "name")->text, "get_weather");
    assert_string_equal(di_json_get(function, "arguments")->text, "{\"city\": \"Paris\"}");
    free(results);
    di_arena_free(&arena);
}

/* ---- Errors ---- */

static const struct {
    const char *body, *message; /* message: its beginning */
} refused[] = {
    {CHAT ASK ", \"temperature\": -1}}", "temperature: -1 is no number from 0 to 100"},
    {CHAT ASK ", \"temperature\": \"hot\"}}", "temperature: a number in range is needed"},
    {CHAT ASK ", \"temperature\": 1e300}}", "temperature: a number in range is needed"},
    {CHAT ASK ", \"top_p\": 1.5}}", "top_p: 1.5 is no number from 0 to 1"},
    {CHAT ASK ", \"top_k\": -2}}", "top_k: a whole number from -1"},
    {CHAT ASK ", \"seed\": 1.5}}", "seed: a whole number from 0"},
    {CHAT ASK ", \"n\": 0}}", "n: a whole number from 1 to 128"},
    {CHAT ASK ", \"max_tokens\": 0}}", "max_tokens: a whole number from 1"},
    {CHAT ASK ", \"max_tokens\": 1e30}}", "max_tokens: a whole number from 1"},
    {CHAT ASK ", \"max_tokens\": 2, \"max_completion_tokens\": 3}}", "max_completion_tokens: diff"},
    {CHAT ASK ", \"top_logprobs\": 2}}", "top_logprobs: needs logprobs true"},
    {CHAT ASK ", \"logit_bias\": {\"x\": 1}}}", "logit_bias: 'x' is no token id"},
    {CHAT ASK ", \"logit_bias\": {\"999999\": 1}}}", "logit_bias: '999999' is no token id"},
    {CHAT ASK ", \"stop\": [\"\"]}}", "stop: text of 1 to"},
    {CHAT ASK ", \"stream\": true}}", "stream: a batch cannot stream"},
    {CHAT ASK ", \"temprature\": 1}}", "temprature: this field is not supported"},
    {CHAT "\"messages\": [{\"role\": \"user\", \"contents\": \"Hi\"}]}}",
     "messages[0].contents: this field is not supported"},
    {CHAT "\"messages\": [{\"role\": \"user\"}]}}", "messages[0].content: a user's message needs"},
    {CHAT ASK ", \"reasoning_effort\": \"much\"}}", "reasoning_effort: must be none, "},
    {CHAT ASK ", \"thinking\": 1}}", "thinking: true, false or"},
    {CHAT "\"messages\": []}}", "messages: a list, not empty, is needed"},
    {CHAT "\"model\": 1, " ASK "}}", "model: a string is needed"},
    {TEXT "\"prompt\": \"\"}}", "prompt: a text, not empty, is needed"},
    {TEXT "\"prompt\": [-1]}}", "prompt: token ids are whole numbers"},
    {TEXT "\"prompt\": [\"a\"]}}", "prompt: a list of prompts is not supported"},
    {"\", \"method\": \"GET\", \"url\": \"/v1/completions\", \"body\": {}}", "method: \"POST\""},
    {"\", \"method\": \"POST\", \"url\": \"/v1/embeddings\", \"body\": {}}", "url: "},
    {"\", \"method\": \"POST\", \"url\": \"/v1/completions\"}", "body: an object is needed"},
};
enum { N_REFUSED = sizeof refused / sizeof refused[0] };

static const char *error_of(const di_json *result) {
    assert_int_equal(di_json_get(result, "response")->type, DI_JSON_NULL);
    return di_json_get(di_json_get(result, "error"), "message")->text;
}

static void test_errors_stay_on_their_line(void **state) {
    (void)state;
    di_buffer lines = DI_BUFFER_EMPTY;
    for (int i = 0; i < N_REFUSED; i++) {
        di_buffer_printf(&lines, "{\"custom_id\": \"%d%s\n", i, refused[i].body);
    }
    di_buffer_puts(&lines, "{\"custom_id\": \"long" TEXT "\"prompt\": \"");
    for (int i = 0; i < 600; i++) di_buffer_puts(&lines, "a fox ");
    di_buffer_puts(&lines, "\"}}\n\n");
    di_buffer_puts(&lines, "{\"custom_id\": \"good" CHAT ASK ", \"max_tokens\": 2}}\n");
    di_buffer_puts(&lines, "{\"custom_id\": \"good" CHAT ASK ", \"max_tokens\": 3}}");
    const program_result *r = run_lines(lines.data, "");
    assert_int_equal(r->code, 0);
    char *summary =
        temp_printf("%d requests, %d of them refused, in ", N_REFUSED + 3, N_REFUSED + 2);
    if (strncmp(r->error, summary, strlen(summary)) != 0) fail_msg("%s", r->error);
    free(summary);
    char *results = temp_read(output, NULL);
    for (int i = 0; i < N_REFUSED; i++) {
        char id[12];
        snprintf(id, sizeof id, "%d", i);
        const char *message = error_of(result_of(results, id));
        if (strncmp(message, refused[i].message, strlen(refused[i].message)) != 0) {
            fail_msg("%s gave: %s", refused[i].body, message);
        }
    }
    assert_non_null(strstr(error_of(result_of(results, "long")), "do not fit the context of 512"));
    assert_non_null(choice_of(results, "good", 0));
    assert_non_null(
        strstr(error_of(result_of(results, NULL)), "custom_id: 'good' stands in a line before"));
    free(results);
    di_buffer_free(&lines);
    di_arena_free(&arena);
}

static void test_usage(void **state) {
    (void)state;
    char *command = temp_printf("batch models/demo -i %s -o %s", input, output), *want;
    temp_write(input, " \n\n", 3);
    (void)remove(output);
    want = temp_printf("batch: %s holds no requests: it is empty", input);
    program_refuses(command, NULL, 1, want);
    assert_int_not_equal(access(output, F_OK), 0);
    free(want);
    /* A file that is no output of a batch stays as it is. */
    static const char *const texts[] = {"notes\n", "notes", "{\"id\": \"batch_req_1\"}\n"};
    for (int i = 0; i < 3; i++) {
        temp_write(input, "{}\n", 3);
        temp_write(output, texts[i], strlen(texts[i]));
        want = temp_printf("batch: %s: line 1 is no result of a batch; give another file", output);
        program_refuses(command, NULL, 2, want);
        char *kept = temp_read(output, NULL);
        assert_string_equal(kept, texts[i]);
        free(kept);
        free(want);
    }
    free(command);
    command = temp_printf("batch models/demo -i %s -o %s", input, input);
    want = temp_printf("batch: %s is the input and cannot be the output", input);
    program_refuses(command, NULL, 2, want);
    free(command);
    free(want);
    program_refuses("batch models/demo -o x", NULL, 2,
                    "batch: --input is needed; 'deepinfer help batch' has an example");
}

/* ---- Going on ---- */

enum { N_STORIES = 24 };

static char *stories(void) {
    di_buffer lines = DI_BUFFER_EMPTY;
    for (int i = 0; i < N_STORIES; i++) {
        di_buffer_printf(&lines,
                         "{\"custom_id\": \"story %d" CHAT FOX
                         ", \"max_tokens\": %d, \"thinking\": false, \"logprobs\": true}}\n%s",
                         i, 10 + i * 7 % 50, i % 9 == 0 ? "no request\n" : "");
    }
    return lines.data;
}

static int compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The lines in order, without the time of their making, which is all that may differ. */
static char *sorted(const char *results) {
    enum { MOST = 2 * N_STORIES };
    char *lines[MOST];
    int n = 0;
    for (const char *at = results; *at; n++) {
        size_t size = strcspn(at, "\n");
        assert_true(n < MOST);
        assert_int_equal(at[size], '\n');
        lines[n] = strndup(at, size);
        at += size + 1;
        char *created = strstr(lines[n], "\"created\": ");
        if (created) memset(created + 11, '0', strspn(created + 11, "0123456789"));
    }
    qsort(lines, (size_t)n, sizeof lines[0], compare);
    di_buffer out = DI_BUFFER_EMPTY;
    for (int i = 0; i < n; i++) {
        di_buffer_printf(&out, "%s\n", lines[i]);
        free(lines[i]);
    }
    return out.data;
}

static void expect_sorted(const char *want, const char *what) {
    char *results = temp_read(output, NULL), *got = sorted(results);
    if (strcmp(got, want) != 0) fail_msg("%s: results differ:\n%s\nnot\n%s", what, got, want);
    free(results);
    free(got);
}

#define GO_ON "-q --seed 3 --max-batch 4 --chunk 32 "

static void test_goes_on_after_a_cut(void **state) {
    (void)state;
    char *lines = stories();
    assert_int_equal(run_lines(lines, GO_ON)->code, 0);
    size_t size;
    char *whole = temp_read(output, &size), *want = sorted(whole);
    char *command =
        temp_printf("batch models/demo -i %s -o %s --context 512 " GO_ON, input, output);
    /* Nothing left; one byte less; inside of lines; only the first byte. */
    const size_t cuts[] = {size, size - 1, size / 2, size / 5, 1};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        temp_write(output, whole, cuts[i]);
        assert_int_equal(program_run(command, NULL)->code, 0);
        expect_sorted(want, "cut");
        /* What was complete is untouched. */
        char *now = temp_read(output, NULL);
        size_t kept = cuts[i];
        while (kept > 0 && whole[kept - 1] != '\n') kept--;
        assert_memory_equal(now, whole, kept);
        free(now);
    }
    /* Company, chunks and caches change nothing. */
    assert_int_equal(run_lines(lines, "-q --seed 3 --max-batch 1 --prefix-cache off "
                                      "--window-cache 0 --threads 1")
                         ->code,
                     0);
    expect_sorted(want, "alone");
    free(command);
    free(whole);
    free(want);
    free(lines);
}

static pid_t begin(void) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    if (chdir(DI_SOURCE_DIR) != 0 || !freopen("/dev/null", "w", stderr)) _exit(125);
    execl(DI_BUILD_DIR "/deepinfer", "deepinfer", "batch", "models/demo", "-i", input, "-o", output,
          "--context", "512", "-q", "--seed", "3", "--max-batch", "4", "--chunk", "32",
          (char *)NULL);
    _exit(125);
}

/* One run, stopped after some milliseconds unless it ends before. */
static int run_for(long ms, int signal_number) {
    pid_t child = begin();
    int status;
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
    kill(child, signal_number);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void test_goes_on_after_being_killed(void **state) {
    (void)state;
    char *lines = stories();
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    assert_int_equal(run_lines(lines, GO_ON)->code, 0);
    clock_gettime(CLOCK_MONOTONIC, &to);
    long whole_ms = (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000;
    char *results = temp_read(output, NULL), *want = sorted(results);
    int n_killed = 0;
    for (uint64_t round = 0; round < 3; round++) {
        (void)remove(output);
        for (uint64_t i = 0; i < 4; i++) {
            uint32_t words[4];
            di_philox(11, round, i, words);
            bool hard = i % 4 != 3;
            int status =
                run_for((long)(words[0] % (uint32_t)(whole_ms + 1)), hard ? SIGKILL : SIGINT);
            n_killed += WIFSIGNALED(status) || WEXITSTATUS(status) == 130;
            assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 130 ||
                        WEXITSTATUS(status) == 0);
        }
        int status;
        assert_true(waitpid(begin(), &status, 0) > 0);
        assert_int_equal(status, 0);
        expect_sorted(want, "killed");
    }
    assert_true(n_killed > 0);
    free(results);
    free(want);
    free(lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_run),
        cmocka_unit_test(test_completions_and_tools),
        cmocka_unit_test(test_stop_in_what_was_held_back),
        cmocka_unit_test(test_errors_stay_on_their_line),
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_goes_on_after_a_cut),
        cmocka_unit_test(test_goes_on_after_being_killed),
    };
    if (!program_can_compute()) return 77;
    return cmocka_run_group_tests(tests, setup, teardown);
}
