/* run, on the demo model: text, exit codes, messages. */
#include <poll.h>
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
#include "support/program.h"

/* Greedy, so that nothing but the model decides. */
#define RUN "run models/demo --no-thinking --temperature 0 --context 512 "
#define RAW "run models/demo --raw --temperature 0 --context 512 "

static void answers(const char *command, const char *input, const char *want) {
    const program_result *r = program_run(command, input);
    if (r->code != 0 || strcmp(r->out, want) != 0) {
        fail_msg("deepinfer %s\n  gave %d, '%s', %s", command, r->code, r->out, r->error);
    }
}

static void test_answers(void **state) {
    (void)state;
    answers(RUN "-q 'What is 12 + 13?'", NULL, "12 + 13 = 25\n");
    answers(RUN "-q", "What is 12 + 13?\n", "12 + 13 = 25\n");
    answers(RUN "-q -", "What is 12 + 13?", "12 + 13 = 25\n");
    answers(RUN "-q -- 'What is 12 + 13?'", NULL, "12 + 13 = 25\n");
    assert_string_equal(program_run(RUN "-q 'What is 12 + 13?'", NULL)->error, "");
    answers(RUN "-q --backend ref --numerics float 'What is 12 + 13?'", NULL, "12 + 13 = 25\n");
    /* Where stdout is no terminal, the thought is left out. */
    answers("run models/demo -q --temperature 0 'What is 12 + 13?'", NULL, "12 + 13 = 25\n");
    answers("run models/demo -q --temperature 0 --effort none 'What is 12 + 13?'", NULL,
            "12 + 13 = 25\n");
}

static void test_raw_prompts(void **state) {
    (void)state;
    answers(RAW "-q '<｜User｜>What is 12 + 13?<｜Assistant｜></think>'", NULL, "12 + 13 = 25\n");
    answers(RAW "-q '<｜begin▁of▁sentence｜><｜User｜>What is 12 + 13?<｜Assistant｜></think>'",
            NULL, "12 + 13 = 25\n");
    const program_result *r =
        program_run(RAW "-q --max-tokens 3 --show-prompt --no-match-added '<｜User｜>'", NULL);
    assert_int_equal(r->code, 0);
    assert_string_equal(r->error, "<｜begin▁of▁sentence｜><｜User｜>\n");
}

static void test_limits_of_the_answer(void **state) {
    (void)state;
    answers(RUN "-q --max-tokens 3 'What is 12 + 13?'", NULL, "12 +\n");
    answers(RUN "-q --stop ' = ' 'What is 12 + 13?'", NULL, "12 + 13\n");
    answers(RUN "-q --stop nothing --stop '+ 1' 'What is 12 + 13?'", NULL, "12 \n");
    const program_result *r =
        program_run("run models/demo --no-thinking --temperature 0 --context 20 "
                    "--json -q 'Tell me a story about a fox.'",
                    NULL);
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "\"finish_reason\": \"length\""));
    assert_non_null(strstr(r->out, "\"prompt_tokens\": 12, \"reused_tokens\": 0, "
                                   "\"completion_tokens\": 8}"));
}

/* Which and why, where nobody chose and somebody listens. */
static void test_backend_on_stderr(void **state) {
    (void)state;
    const char *prompt = "--max-tokens 1 'What is 12 + 13?'";
    char command[200];
    snprintf(command, sizeof command, RUN "--seed 5 %s", prompt);
    const program_result *r = program_run(command, NULL);
    assert_int_equal(r->code, 0);
    assert_non_null(r->backend);
    assert_true(strncmp(r->backend, "backend: cpu (", 14) == 0 ||
                strncmp(r->backend, "backend: cuda (GPU 0 (", 22) == 0);
    static const char *const silent[] = {"-q", "--backend cpu"};
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
        snprintf(command, sizeof command, RUN "%s --seed 5 %s", silent[i], prompt);
        r = program_run(command, NULL);
        assert_int_equal(r->code, 0);
        assert_null(r->backend);
    }
    snprintf(command, sizeof command, RUN "--gpu-device 1000 %s", prompt); /* nobody has so many */
    r = program_run(command, NULL);
    assert_int_equal(r->code, 0);
    assert_true(strncmp(r->backend, "backend: cpu (", 14) == 0);
    snprintf(command, sizeof command, RUN "--backend cuda --gpu-device 1000 %s", prompt);
    r = program_run(command, NULL);
    assert_int_equal(r->code, 1);
    assert_string_equal(r->out, "");
    const char *advice = "; the backends auto and cpu do without one\n";
    assert_int_equal(strncmp(r->error, "deepinfer run: cuda backend: ", 29), 0);
    assert_string_equal(r->error + strlen(r->error) - strlen(advice), advice);
}

static void test_speeds_on_stderr(void **state) {
    (void)state;
    unsigned n_prompt, n_answer;
    double prompt_s, prompt_speed, answer_s, answer_speed, per_step;
    int end = 0;
    const program_result *r = program_run(RUN "--seed 5 --spec off 'What is 12 + 13?'", NULL);
    assert_int_equal(sscanf(r->error,
                            "prompt: %u tokens in %lf s (%lf tokens/s); answer: %u tokens in %lf s "
                            "(%lf tokens/s); seed 5\n%n",
                            &n_prompt, &prompt_s, &prompt_speed, &n_answer, &answer_s,
                            &answer_speed, &end),
                     6);
    assert_int_equal(end, strlen(r->error));
    assert_int_equal(n_prompt, 14);
    assert_int_equal(n_answer, 10); /* as "usage" says: the end token is no part of the answer */
    assert_true(answer_speed > 0);
    end = 0;
    r = program_run(RUN "--seed 5 --spec fixed 'What is 12 + 13?'", NULL);
    assert_int_equal(sscanf(r->error,
                            "prompt: %u tokens in %lf s (%lf tokens/s); answer: %u tokens in %lf s "
                            "(%lf tokens/s, %lf tokens a step); seed 5\n%n",
                            &n_prompt, &prompt_s, &prompt_speed, &n_answer, &answer_s,
                            &answer_speed, &per_step, &end),
                     7);
    assert_int_equal(end, strlen(r->error));
    assert_true(per_step >= 1.5); /* it knows sums */
}

/* Drafts change how fast an answer comes, not the answer; reject samples another one. */
static void test_speculation(void **state) {
    (void)state;
    static const char *const ways[] = {"--spec fixed", "--spec scheduled",
                                       "--spec scheduled --profile-steps", "--spec fixed --chunk 1",
                                       ""};
    static const char *const samplings[] = {"--temperature 0", "--temperature 1 --seed 5"};
    for (size_t k = 0; k < sizeof samplings / sizeof *samplings; k++) {
        char command[300];
        const char *common = "run models/demo -q --no-thinking --max-tokens 60";
        const char *prompt = "'Tell me a story about a fox.'";
        snprintf(command, sizeof command, "%s %s --spec off %s", common, samplings[k], prompt);
        char *want = strdup(program_run(command, NULL)->out);
        assert_true(strlen(want) > 100);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            snprintf(command, sizeof command, "%s %s %s %s", common, samplings[k], ways[i], prompt);
            answers(command, NULL, want);
        }
        snprintf(command, sizeof command, "%s %s --spec fixed --spec-sampling reject %s", common,
                 samplings[k], prompt);
        const program_result *r = program_run(command, NULL);
        assert_int_equal(r->code, 0);
        assert_int_equal(strcmp(r->out, want) == 0,
                         k == 0); /* greedy: there is nothing to reject */
        free(want);
    }
}

/* The common options of the cache: without a second request they change nothing. */
static void test_options_of_the_cache(void **state) {
    (void)state;
    answers(RUN "-q --replay stable 'What is 12 + 13?'", NULL, "12 + 13 = 25\n");
    answers(RUN "-q --replay bounded --prefix-cache off 'What is 12 + 13?'", NULL,
            "12 + 13 = 25\n");
    answers(RUN "-q --window-cache 4M --memory 60M 'What is 12 + 13?'", NULL, "12 + 13 = 25\n");
    const program_result *r = program_run(RUN "--window-cache 60M --memory 60M Hello", NULL);
    assert_int_equal(r->code, 1);
    const char *part = strstr(r->error, "MiB, window cache and buffers ");
    unsigned mib = 0;
    assert_non_null(part);
    assert_int_equal(sscanf(part, "MiB, window cache and buffers %u MiB, weights ", &mib), 1);
    assert_in_range(mib, 60, 80); /* the cache, and the little that the engine takes besides */
}

static const di_json *parse(const char *text, di_arena *arena) {
    const di_json *out;
    di_error error;
    if (di_json_parse(text, strlen(text), "output", arena, &out, &error) != DI_OK) {
        fail_msg("%s: %s", error.message, text);
    }
    return out;
}

static void test_json(void **state) {
    (void)state;
    const program_result *r =
        program_run("run models/demo --json --seed 12345678901234567890 'What is 12 + 13?'", NULL);
    assert_int_equal(r->code, 0);
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *o = parse(r->out, &arena);
    static const char *const keys[] = {"text",     "thinking", "tool_calls", "finish_reason", "ids",
                                       "logprobs", "usage",    "timings",    "seed"};
    const di_json *member = o->first;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++, member = member->next) {
        assert_non_null(member);
        assert_string_equal(member->key, keys[i]);
    }
    assert_null(member);
    assert_true(di_json_get(o, "thinking")->length > 10);
    assert_true(di_json_is_string(di_json_get(o, "finish_reason"), "stop"));
    assert_string_equal(di_json_get(o, "seed")->text, "12345678901234567890");
    assert_int_equal(di_json_get(o, "ids")->length, di_json_get(o, "logprobs")->length);
    int64_t n;
    assert_true(di_json_int64(di_json_get(di_json_get(o, "usage"), "completion_tokens"), &n));
    assert_int_equal(n, di_json_get(o, "ids")->length);
    const di_json *timings = di_json_get(o, "timings");
    double per_step;
    assert_true(di_json_double(di_json_get(timings, "tokens_per_step"), &per_step));
    assert_true(per_step >= 1);
    di_arena_free(&arena);
}

/* A stop text cuts text, ids, logprobs and usage at one place. */
static void test_json_of_a_stopped_answer(void **state) {
    (void)state;
    di_arena arena = DI_ARENA_EMPTY;
    const program_result *r = program_run(RUN "--json -q --max-tokens 4 'What is 12 + 13?'", NULL);
    const di_json *whole = di_json_get(parse(r->out, &arena), "ids");
    r = program_run(RUN "--json -q --stop '+ 1' 'What is 12 + 13?'", NULL);
    const di_json *o = parse(r->out, &arena), *ids = di_json_get(o, "ids");
    assert_true(di_json_is_string(di_json_get(o, "text"), "12 "));
    assert_true(di_json_is_string(di_json_get(o, "finish_reason"), "stop"));
    /* "1", "2", " +": the last begins before the cut. */
    assert_int_equal(ids->length, 3);
    const di_json *want = whole->first, *got = ids->first;
    for (; got; got = got->next, want = want->next) assert_string_equal(got->text, want->text);
    assert_int_equal(di_json_get(o, "logprobs")->length, 3);
    int64_t n;
    assert_true(di_json_int64(di_json_get(di_json_get(o, "usage"), "completion_tokens"), &n));
    assert_int_equal(n, 3);
    di_arena_free(&arena);
}

/* The same seed, the same text; how it is computed does not matter. */
static void test_seeds(void **state) {
    (void)state;
    static const char *const ways[] = {"--threads 1", "--threads 2 --chunk 1", "--chunk 5",
                                       "--memory 60M", "--context 200"};
    char command[200], *want;
    const char *common =
        "run models/demo -q --no-thinking --max-tokens 40 --temperature 1.5 --seed";
    snprintf(command, sizeof command, "%s 3 'Tell me a story.'", common);
    want = strdup(program_run(command, NULL)->out);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        snprintf(command, sizeof command, "%s 3 %s 'Tell me a story.'", common, ways[i]);
        assert_string_equal(program_run(command, NULL)->out, want);
    }
    snprintf(command, sizeof command, "%s 4 'Tell me a story.'", common);
    assert_string_not_equal(program_run(command, NULL)->out, want);
    free(want);
}

static void test_refusals(void **state) {
    (void)state;
    program_refuses("run models/demo ''", NULL, 2, "run: the prompt is empty");
    program_refuses("run models/demo", "\n", 2, "run: the prompt is empty");
    program_refuses("run models/demo --raw ''", NULL, 2, "run: the prompt is empty");
    program_refuses("run models/demo \"$(printf 'a\\377')\"", NULL, 2,
                    "run: the prompt is not valid UTF-8 (byte 1)");
    program_refuses(
        "run models/demo --context 5 Hello", NULL, 1,
        "run: the prompt has 34 tokens, the context takes 5 with the answer; shorten it "
        "or ask for a larger context");
    program_refuses("run models/demo --context 40000 Hello", NULL, 2,
                    "run: a context of 40000 tokens was asked for, the model takes at most 32768");
    program_refuses(
        "run models/absent Hello", NULL, 1,
        "run: cannot open the model directory models/absent: No such file or directory");
    program_refuses("run models/demo/config.json Hello", NULL, 2,
                    "run: models/demo/config.json is no directory; a model is the directory that "
                    "holds config.json");
    program_refuses("run models/demo --top-k many Hello", NULL, 2,
                    "run: --top-k: 'many' is not a whole number from 0 to 2147483647");
    program_refuses(
        "run models/demo --effort much Hello", NULL, 2,
        "run: effort: must be none, minimal, low, medium, high, xhigh, max, ultra or a number "
        "1..100, not 'much'");
    program_refuses("run models/demo --logit-bias 5 Hello", NULL, 2,
                    "run: --logit-bias: '5' is not ID=X, a token id and a number");
    program_refuses("run models/demo --logit-bias 5=inf Hello", NULL, 2,
                    "run: --logit-bias: 'inf' is not a number from -1000 to 1000");
    program_refuses("run models/demo --logit-bias 2560=1 Hello", NULL, 2,
                    "run: logit bias: there is no token 2560, ids are 0 to 2559");
    program_refuses("run models/demo --stop '' Hello", NULL, 2,
                    "run: stop: an empty text ends no answer");
    program_refuses(RUN "-q Hello > /dev/full", NULL, 1, "run: cannot write to stdout");
}

static void test_closed_streams(void **state) {
    (void)state;
    answers(RUN "-q 'What is 12 + 13?' <&-", NULL, "12 + 13 = 25\n");
    answers(RUN "'What is 12 + 13?' 2>&-", NULL, "12 + 13 = 25\n");
    program_refuses(RUN "-q Hello >&-", NULL, 1, "run: cannot write to stdout");
    program_refuses(RUN "-q Hello <&- >&-", NULL, 1, "run: cannot write to stdout");
    program_refuses(RUN "-q - <&-", NULL, 1, "run: cannot read stdin: Bad file descriptor");
    program_refuses("chat models/demo -q <&-", NULL, 1, "chat: cannot read from stdin");
}

static void test_memory(void **state) {
    (void)state;
    const program_result *r = program_run("run models/demo --memory 5M Hello", NULL);
    assert_int_equal(r->code, 1);
    assert_int_equal(strncmp(r->error, "deepinfer run: not enough memory: ", 34), 0);
    assert_non_null(strstr(r->error, " MiB are needed "));
    assert_non_null(strstr(r->error, ", 5 MiB are allowed; "));
    assert_ptr_equal(strchr(r->error, '\n'), r->error + strlen(r->error) - 1);
}

/* A signal in the middle of a long answer: the text so far, and the signal's exit code. */
static void check_signal(int signal_number, int code) {
    FILE *out = tmpfile(), *error = tmpfile();
    assert_true(out && error);
    pid_t child = fork();
    if (child == 0) {
        dup2(fileno(out), 1);
        dup2(fileno(error), 2);
        execl(DI_BUILD_DIR "/deepinfer", "deepinfer", "run", DI_SOURCE_DIR "/models/demo",
              "--logit-bias", "1=-1000", "--no-thinking", "Tell me a story.", (char *)NULL);
        _exit(99);
    }
    struct timespec pause = {0, 20000000};
    for (int i = 0; i < 1500 && lseek(fileno(out), 0, SEEK_END) < 40; i++) nanosleep(&pause, NULL);
    assert_true(lseek(fileno(out), 0, SEEK_END) >= 40);
    kill(child, signal_number);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
    char text[600] = "";
    rewind(error);
    assert_true(fread(text, 1, sizeof text - 1, error) > 0);
    assert_int_equal(strncmp(text, "backend: ", 9), 0);
    assert_non_null(strstr(text, ")\nprompt: "));
    assert_non_null(strstr(text, "\ndeepinfer run: interrupted\n"));
    assert_int_equal(lseek(fileno(out), -1, SEEK_END) > 0, 1);
    char last;
    assert_int_equal(read(fileno(out), &last, 1), 1);
    assert_int_equal(last, '\n');
    fclose(out);
    fclose(error);
}

static void test_interrupt(void **state) {
    (void)state;
    check_signal(SIGINT, 130);
    check_signal(SIGTERM, 143);
}

/* A prompt that takes seconds: how far it is, and Ctrl-C between two steps. */
static void test_interrupt_in_the_prompt(void **state) {
    (void)state;
    FILE *in = tmpfile(), *out = tmpfile(), *error = tmpfile();
    assert_true(in && out && error);
    for (int i = 1000; i < 6000; i++) fprintf(in, "%d ", i);
    rewind(in);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(fileno(in), 0);
        dup2(fileno(out), 1);
        dup2(fileno(error), 2);
        execl(DI_BUILD_DIR "/deepinfer", "deepinfer", "run", DI_SOURCE_DIR "/models/demo",
              "--chunk", "16", "--no-thinking", "-", (char *)NULL);
        _exit(99);
    }
    char text[400] = "", end[100] = "";
    int status, done, total;
    struct timespec pause = {0, 20000000};
    const char *at = NULL;
    for (int i = 0; i < 1500 && !at; i++, nanosleep(&pause, NULL)) {
        ssize_t n = pread(fileno(error), text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        at = strstr(text, "reading the prompt: ");
    }
    kill(child, SIGINT);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_non_null(at);
    assert_int_equal(sscanf(at, "reading the prompt: %d of %d tokens%99[^~]", &done, &total, end),
                     3);
    assert_true(done > 0 && done % 16 == 0 && done < total && total > 10000);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 130);
    assert_int_equal(lseek(fileno(out), 0, SEEK_END), 0);
    ssize_t n = pread(fileno(error), text, sizeof text - 1, 0);
    text[n] = '\0';
    assert_non_null(strstr(text, "\ndeepinfer run: interrupted\n"));
    assert_null(strstr(text, "answer: ")); /* there is none to tell the speed of */
    fclose(in);
    fclose(out);
    fclose(error);
}

/* `run M -` waits for the rest of its prompt: the first Ctrl-C ends it. */
static void test_interrupt_while_reading(void **state) {
    (void)state;
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    FILE *error = tmpfile();
    assert_non_null(error);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[0], 0);
        dup2(fileno(error), 2);
        close(ends[1]);
        execl(DI_BUILD_DIR "/deepinfer", "deepinfer", "run", DI_SOURCE_DIR "/models/demo", "-",
              (char *)NULL);
        _exit(99);
    }
    struct timespec pause = {0, 20000000};
    assert_int_equal(write(ends[1], "a line\n", 7), 7);
    struct pollfd unread = {.fd = ends[0], .events = POLLIN};
    while (poll(&unread, 1, 0) == 1) nanosleep(&pause, NULL); /* until it has taken the line */
    kill(child, SIGINT);
    for (int i = 0; waitpid(child, &status, WNOHANG) == 0; i++) {
        if (i == 500) fail_msg("the first Ctrl-C did not end it");
        nanosleep(&pause, NULL);
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 130);
    char text[100] = "";
    rewind(error);
    assert_non_null(fgets(text, sizeof text, error));
    assert_string_equal(text, "deepinfer run: interrupted\n");
    fclose(error);
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    if (!program_can_compute()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_raw_prompts),
        cmocka_unit_test(test_limits_of_the_answer),
        cmocka_unit_test(test_backend_on_stderr),
        cmocka_unit_test(test_speeds_on_stderr),
        cmocka_unit_test(test_speculation),
        cmocka_unit_test(test_options_of_the_cache),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_of_a_stopped_answer),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_closed_streams),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_interrupt_in_the_prompt),
        cmocka_unit_test(test_interrupt_while_reading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
