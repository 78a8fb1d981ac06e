/* chat, through a pipe and through a terminal, on the demo model. */
#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/program.h"
#include "support/temp.h"

#define CHAT "chat models/demo -q --no-thinking --temperature 0 --context 1024 "

/* ---- Through a pipe ---- */

static void says(const char *input, const char *out, const char *error) {
    const program_result *r = program_run(CHAT, input);
    if (r->code != 0 || strcmp(r->out, out) != 0 || strcmp(r->error, error) != 0) {
        fail_msg("'%s'\n  gave %d, '%s', '%s'", input, r->code, r->out, r->error);
    }
}

/* The same with messages that fail: the reasons, and at the end how many they were. */
static void fails(const char *input, const char *out, const char *error, int count) {
    const program_result *r = program_run(CHAT, input);
    char *want = temp_printf("%sdeepinfer chat: failed messages and commands: %d\n", error, count);
    if (r->code != 1 || strcmp(r->out, out) != 0 || strcmp(r->error, want) != 0) {
        fail_msg("'%s'\n  gave %d, '%s', '%s'", input, r->code, r->out, r->error);
    }
    free(want);
}

static void test_answers(void **state) {
    (void)state;
    says("What is 2 + 3?\nWhat is 12 + 13?\n", "2 + 3 = 5\n12 + 13 = 25\n", "");
    says("What is 2 + 3?", "2 + 3 = 5\n", "");
    says("", "", "");
    says("\n\n", "", "");
    /* A backslash takes the next line along. */
    fails("What is\\\n2 + 3?\n/save /dev/null\n", "2 + 3 = 5\n",
          "/dev/null is there already and no regular file\n", 1);
}

static void test_commands(void **state) {
    (void)state;
    fails("/nonsense\n", "", "there is no command /nonsense; /help lists them\n", 1);
    fails("/again\n", "", "there is nothing to answer yet\n", 1);
    fails("/undo\n", "", "there is nothing to take back\n", 1);
    fails("What is 2 + 3?\n/again\n/undo\n/undo\n/undo\n",
          "2 + 3 = 5\n2 + 3 = 5\nThe last exchange is taken back; 0 messages are left.\n",
          "there is nothing to take back\nthere is nothing to take back\n", 2);
    fails("/think\n/think off\n/think maybe\n", "Thinking is off.\nThinking is off.\n",
          "write /think on or /think off\n", 1);
    says("/effort max\n", "Effort is max.\n", "");
    fails(
        "/effort 1000\n", "",
        "effort: must be none, minimal, low, medium, high, xhigh, max, ultra or a number 1..100, not "
        "'1000'\n",
        1);
    says("/set top-k 3\n", "top-k is 3.\n", "");
    fails("/set top-p 3\n", "", "top-p: '3' is not a number from 0 to 1\n", 1);
    fails("/set threads 3\n", "",
          "write /set NAME VALUE; names: temperature, top-k, top-p, min-p, repetition-penalty, "
          "presence-penalty, frequency-penalty, seed, max-tokens\n",
          1);
    says("/set max-tokens 2\nWhat is 2 + 3?\n", "max-tokens is 2.\n2 +\n",
         "the answer was cut: max-tokens is 2\n");
    says("/system Be kind.\n/system\n/clear\n/quit\nWhat is 2 + 3?\n",
         "The system message is set.\nThere is no system message now.\nThe conversation is empty "
         "again.\n",
         "");
    assert_non_null(strstr(program_run(CHAT, "/help\n")->out, "\n  /set NAME VALUE     change"));
}

static void test_save_and_load(void **state) {
    (void)state;
    char *root = temp_dir_create(), *path = temp_printf("%s/talk.json", root);
    char *input =
        temp_printf("/system Be \"kind\".\nWhat is\\\n2 + 3?\n//x\n/undo\n/save %s\n", path);
    assert_int_equal(program_run(CHAT, input)->code, 0);
    char *saved = temp_read(path, NULL);
    static const char begin[] = "[{\"role\": \"system\", \"content\": \"Be \\\"kind\\\".\"},\n"
                                " {\"role\": \"user\", \"content\": \"What is\\n2 + 3?\"},\n"
                                " {\"role\": \"assistant\", \"content\": \"";
    assert_int_equal(strncmp(saved, begin, sizeof begin - 1), 0);
    assert_non_null(strstr(saved, "\"}]\n"));
    assert_null(strstr(saved, "/x"));
    free(input);
    input = temp_printf("/load %s\n/save %s2\n", path, path);
    assert_int_equal(strncmp(program_run(CHAT, input)->out, "2 messages loaded.\nSaved to ", 28),
                     0);
    char *second = temp_printf("%s2", path), *copy = temp_read(second, NULL);
    assert_string_equal(copy, saved);
    free(copy);
    free(second);
    free(saved);
    free(input);
    temp_write(path, "{\"role\": 1}", 11);
    input = temp_printf("/load %s\n", path);
    char *want = temp_printf("%s: a list of messages is expected\n", path);
    fails(input, "", want, 1);
    free(want);
    free(input);
    free(path);
    temp_dir_destroy(root);
}

/* What no prompt can be made of does not take the place of the conversation. */
static void test_load_refuses(void **state) {
    (void)state;
    char *root = temp_dir_create(), *path = temp_printf("%s/talk.json", root);
    static const char alien[] = "[{\"role\": \"alien\", \"content\": \"Hi\"}]";
    temp_write(path, alien, sizeof alien - 1);
    char *input = temp_printf("What is 2 + 3?\n/load %s\n/load -\n/undo\n", path);
    fails(input, "2 + 3 = 5\nThe last exchange is taken back; 0 messages are left.\n",
          "messages[0].role: unknown role 'alien' (system, user, assistant, tool, "
          "latest_reminder)\n"
          "stdin is where the messages come from; a file of that name is ./-\n",
          2);
    free(input);
    free(path);
    temp_dir_destroy(root);
}

/* The old answer is still there when a new one cannot be had. */
static void test_again_that_fails(void **state) {
    (void)state;
    char *root = temp_dir_create(), *path = temp_printf("%s/talk.json", root);
    char *input = temp_printf("What is 2 + 3?\n"
                              "/system Please answer at length, and then say why you think so.\n"
                              "/again\n/system\n/save %s\n",
                              path);
    const program_result *r =
        program_run("chat models/demo -q --no-thinking --temperature 0 --context 24", input);
    assert_int_equal(r->code, 1);
    assert_non_null(strstr(r->error, "the context takes 24"));
    assert_non_null(strstr(r->error, "failed messages and commands: 1\n"));
    char *saved = temp_read(path, NULL);
    assert_string_equal(saved, "[{\"role\": \"user\", \"content\": \"What is 2 + 3?\"},\n"
                               " {\"role\": \"assistant\", \"content\": \"2 + 3 = 5\"}]\n");
    free(saved);
    free(input);
    free(path);
    temp_dir_destroy(root);
}

static void test_cut_by_the_context(void **state) {
    (void)state;
    const program_result *r =
        program_run("chat models/demo -q --no-thinking --temperature 0 --context 14",
                    "What is 2 + 3?\n");
    assert_int_equal(r->code, 0);
    assert_string_equal(r->error, "the answer was cut: the context of 14 tokens is full\n");
}

/* The conversation outlives what does not fit. */
static void test_too_long_for_the_context(void **state) {
    (void)state;
    const program_result *r = program_run(
        "chat models/demo -q --no-thinking --temperature 0 --context 24",
        "What is 2 + 3?\nPlease tell me at length what you think of this.\n/undo\nWhat is 2 + 3?\n");
    assert_int_equal(r->code, 1);
    assert_int_equal(strncmp(r->out, "2 + 3 = 5\nThe last exchange", 27), 0);
    assert_non_null(
        strstr(r->error,
               "the context takes 24 with the answer; shorten it or ask for a larger context\n"));
}

/* ---- The cache ---- */

enum { MAX_TURNS = 8 };

typedef struct talk {
    int n;
    unsigned read[MAX_TURNS], cached[MAX_TURNS]; /* of each prompt, as the speeds say */
    char *out;
} talk;

/* Sixty numbers, so that the first prompt is longer than the shortest that is kept. */
static talk talk_of(const char *options, const char *input) {
    talk t = {0};
    char numbers[300] = "";
    for (int i = 1; i <= 60; i++) sprintf(numbers + strlen(numbers), " %d", i);
    char *command = temp_printf("chat models/demo --temperature 0 --max-tokens 130 %s --system "
                                "'Answer well.%s'",
                                options, numbers);
    const program_result *r = program_run(command, input);
    if (r->code != 0) fail_msg("%s: %s", command, r->error);
    for (const char *line = r->error; (line = strstr(line, "prompt: ")) != NULL; line++) {
        const char *end = strstr(line, "; answer: "), *at = strstr(line, " s (");
        assert_true(t.n < MAX_TURNS);
        int matched = 0;
        (void)sscanf(line, "prompt: %u tokens in%n", &t.read[t.n], &matched);
        if (matched == 0) continue; /* "reading the prompt: 16 of 300 tokens" */
        assert_true(end && at && at < end);
        (void)sscanf(at, " s (%*f tokens/s), %u cached;", &t.cached[t.n++]);
    }
    t.out = strdup(r->out);
    free(command);
    return t;
}

/* A turn reads what is new: the last message, and what ends the answer before. With thoughts, which
 * leave the conversation when it goes on, also the answer before without them. */
static void test_turns_go_on_from_the_cache(void **state) {
    (void)state;
    static const char *const thinking[] = {"--no-thinking", "--thinking"};
    static const char input[] = "Tell me a story about a fox.\nWhat is 12 + 13?\nWhat is 2 + 3?\n"
                                "/again\n/undo\nWhat is 2 + 9?\n";
    for (int i = 0; i < 2; i++) {
        talk warm = talk_of(thinking[i], input);
        assert_int_equal(warm.n, 5);
        assert_int_equal(warm.cached[0], 0);
        for (int k = 1; k < warm.n; k++) {
            unsigned all = warm.read[k] + warm.cached[k];
            if (warm.read[k] > 40) fail_msg("turn %d reads %u of %u", k, warm.read[k], all);
            assert_true(all > 200);
        }
        assert_int_equal(warm.read[3], 1); /* again: the last token for its logits */
        char *options = temp_printf("%s --prefix-cache off", thinking[i]);
        talk cold = talk_of(options, input);
        assert_string_equal(warm.out, cold.out);
        for (int k = 0; k < cold.n; k++) {
            assert_int_equal(cold.cached[k], 0);
            assert_int_equal(cold.read[k], warm.read[k] + warm.cached[k]);
        }
        free(options);
        free(cold.out);
        free(warm.out);
    }
}

/* Few bytes for windows, and what is cached stands for nothing that replay would not make again. */
static void test_options_of_the_cache(void **state) {
    (void)state;
    static const char input[] = "Tell me a story about a fox.\nWhat is 12 + 13?\n";
    talk cold = talk_of("--no-thinking --spec off --prefix-cache off", input);
    static const char *const ways[] = {"--window-cache 0", "--memory 52M", "--replay exact"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char *options = temp_printf("--no-thinking %s", ways[i]);
        talk warm = talk_of(options, input);
        assert_string_equal(warm.out, cold.out);
        assert_int_equal(warm.cached[1] > 0, i > 0);
        free(options);
        free(warm.out);
    }
    talk bounded = talk_of("--no-thinking --window-cache 0 --replay bounded", input);
    assert_true(bounded.cached[1] > 100);
    free(bounded.out);
    free(cold.out);
}

/* ---- Through a terminal ---- */

typedef struct terminal {
    pid_t child;
    int fd;
    char text[1 << 16]; /* everything it has shown, escape sequences taken out */
    size_t size, seen;  /* seen: up to where a wait has looked */
} terminal;

static void open_terminal(terminal *t, const char *backend) {
    memset(t, 0, sizeof *t);
    struct winsize size = {.ws_row = 40, .ws_col = 200};
    t->child = forkpty(&t->fd, NULL, NULL, &size);
    assert_true(t->child >= 0);
    if (t->child > 0) return;
    setenv("TERM", "dumb", 1);
    execl(DI_BUILD_DIR "/deepinfer", "deepinfer", "chat", DI_SOURCE_DIR "/models/demo",
          "--no-thinking", "--temperature", "0", "--context", "2048", "--backend", backend,
          (char *)NULL);
    _exit(99);
}

/* Until `what` has been shown after all that was waited for before. */
static void wait_for(terminal *t, const char *what) {
    for (;;) {
        char *at = strstr(t->text + t->seen, what);
        if (at) {
            t->seen = (size_t)(at - t->text) + strlen(what);
            return;
        }
        struct pollfd one = {.fd = t->fd, .events = POLLIN};
        ssize_t n = -1;
        if (poll(&one, 1, 60000) == 1) {
            n = read(t->fd, t->text + t->size, sizeof t->text - 1 - t->size);
        }
        if (n <= 0) fail_msg("'%s' did not come after:\n%s", what, t->text + t->seen);
        t->size += (size_t)n;
        t->text[t->size] = '\0';
    }
}

static void type(const terminal *t, const char *keys) {
    assert_int_equal(write(t->fd, keys, strlen(keys)), strlen(keys));
}

/* False once the program has closed its side. */
static bool drain(const terminal *t) {
    char rest[256];
    struct pollfd one = {.fd = t->fd, .events = POLLIN};
    while (poll(&one, 1, 200) == 1) {
        if (read(t->fd, rest, sizeof rest) <= 0) return false;
    }
    return true;
}

/* Ctrl-D until the program has gone: one that comes while the terminal changes its mode is lost. */
static void close_terminal(terminal *t) {
    int status, tries = 0;
    do {
        type(t, "\x04");
    } while (drain(t) && ++tries < 100);
    if (tries == 100) kill(t->child, SIGKILL);
    assert_int_equal(waitpid(t->child, &status, 0), t->child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    close(t->fd);
}

static void test_terminal(void **state) {
    (void)state;
    terminal *t = malloc(sizeof *t);
    assert_non_null(t);
    open_terminal(t, "cpu");
    wait_for(t, "/help lists the commands, Ctrl-D leaves.");
    wait_for(t, "> ");
    type(t, "What is 2 + 3?\r");
    wait_for(t, "2 + 3 = 5\r\n");
    wait_for(t, "prompt: 12 tokens");
    wait_for(t, "> ");
    /* Ctrl-C throws away what was typed. */
    type(t, "nonsense");
    wait_for(t, "nonsense");
    type(t, "\x03");
    wait_for(t, "> ");
    type(t, "What is 12 + 13?\r");
    wait_for(t, "12 + 13 = 25\r\n");
    wait_for(t, "> ");
    close_terminal(t);
    free(t);
}

/* A terminal whose conversation is looked at in the end. */
typedef struct session {
    char *root, *path;
    terminal t;
} session;

static session *open_session(const char *backend) {
    session *s = malloc(sizeof *s);
    assert_non_null(s);
    s->root = temp_dir_create();
    s->path = temp_printf("%s/talk.json", s->root);
    open_terminal(&s->t, backend);
    wait_for(&s->t, "> ");
    return s;
}

static void save(session *s) {
    char *command = temp_printf("/save %s\r", s->path);
    type(&s->t, command);
    wait_for(&s->t, "Saved to");
    wait_for(&s->t, "> ");
    free(command);
}

/* What was saved; free() it. */
static char *close_session(session *s) {
    close_terminal(&s->t);
    char *saved = temp_read(s->path, NULL);
    free(s->path);
    temp_dir_destroy(s->root);
    free(s);
    return saved;
}

/* Ctrl-C stops the answer, and the partial answer stays in the conversation, and what was computed in
 * the cache. */
static void test_interrupted_answer(void **state) {
    (void)state;
    session *s = open_session("ref"); /* slow enough to be stopped */
    type(&s->t,
         "/system Answer well. 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 "
         "25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40\r");
    wait_for(&s->t, "The system message is set.");
    wait_for(&s->t, "> ");
    type(&s->t, "Tell me a story about a fox.\r");
    wait_for(&s->t, "One sunny");
    type(&s->t, "\x03");
    wait_for(&s->t, "stopped\r\n");
    wait_for(&s->t, "> ");
    save(s);
    type(&s->t, "What is 2 + 3?\r");
    wait_for(&s->t, "prompt: ");
    unsigned read = 0, cached = 0;
    wait_for(&s->t, "; answer:");
    const char *speeds = strstr(strstr(s->t.text, "Saved to"), "prompt: ");
    assert_int_equal(sscanf(speeds, "prompt: %u tokens in %*f s (%*f tokens/s), %u cached", &read,
                            &cached),
                     2);
    assert_true(read < 30 && cached > 100);
    wait_for(&s->t, "> ");
    char *saved = close_session(s);
    assert_non_null(strstr(saved, "about a fox.\"},\n {\"role\": \"assistant\", \"content\": \""));
    assert_non_null(strstr(saved, "One sunny"));
    assert_null(strstr(saved, "good friends"));
    free(saved);
}

static void test_paste_stays_together(void **state) {
    (void)state;
    session *s = open_session("cpu");
    type(&s->t, "/set max-tokens 1\r");
    wait_for(&s->t, "max-tokens is 1.");
    wait_for(&s->t, "> ");
    type(&s->t, "one\ntwo\nthree");
    wait_for(&s->t, "three");
    type(&s->t, "\r");
    wait_for(&s->t, "prompt:");
    wait_for(&s->t, "> ");
    save(s);
    char *saved = close_session(s);
    assert_non_null(strstr(saved, "\"content\": \"one\\ntwo\\nthree\"}"));
    free(saved);
}

/* ---- Signals ---- */

/* chat with stdin from a pipe that stays open, or from a terminal (t); returns the exit code after
 * `signal_number` came while it waited for a message. */
static int code_after(int signal_number, terminal *t) {
    int ends[2] = {-1, -1}, status;
    pid_t child;
    if (t) {
        open_terminal(t, "cpu");
        wait_for(t, "> ");
        child = t->child;
    } else {
        int out[2];
        assert_int_equal(pipe(ends), 0);
        assert_int_equal(pipe(out), 0);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            dup2(ends[0], 0);
            dup2(out[1], 1);
            freopen("/dev/null", "w", stderr);
            close(ends[1]);
            execl(DI_BUILD_DIR "/deepinfer", "deepinfer", "chat", DI_SOURCE_DIR "/models/demo",
                  "-q", "--context", "64", (char *)NULL);
            _exit(99);
        }
        char byte; /* of the answer to a command: it waits for the next now */
        assert_int_equal(write(ends[1], "/think\n", 7), 7);
        assert_int_equal(read(out[0], &byte, 1), 1);
        close(out[0]);
        close(out[1]);
    }
    kill(child, signal_number);
    for (int i = 0; i < 500 && waitpid(child, &status, WNOHANG) == 0; i++) {
        if (i == 499) fail_msg("signal %d did not end the chat", signal_number);
        if (t) (void)drain(t);
        usleep(20000);
    }
    if (t) close(t->fd);
    if (ends[1] >= 0) close(ends[0]), close(ends[1]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* One signal is enough, also while nothing is being done; Ctrl-C ends a chat that has no terminal.
 */
static void test_signals_end_an_idle_chat(void **state) {
    (void)state;
    terminal *t = malloc(sizeof *t);
    assert_non_null(t);
    assert_int_equal(code_after(SIGTERM, NULL), 143);
    assert_int_equal(code_after(SIGINT, NULL), 130);
    assert_int_equal(code_after(SIGTERM, t), 143);
    assert_int_equal(code_after(SIGHUP, t), 129);
    free(t);
}

int main(void) {
    if (!program_can_compute()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_save_and_load),
        cmocka_unit_test(test_load_refuses),
        cmocka_unit_test(test_again_that_fails),
        cmocka_unit_test(test_cut_by_the_context),
        cmocka_unit_test(test_too_long_for_the_context),
        cmocka_unit_test(test_turns_go_on_from_the_cache),
        cmocka_unit_test(test_options_of_the_cache),
        cmocka_unit_test(test_terminal),
        cmocka_unit_test(test_interrupted_answer),
        cmocka_unit_test(test_paste_stays_together),
        cmocka_unit_test(test_signals_end_an_idle_chat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
