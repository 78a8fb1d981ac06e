/* score: lines of JSON and .npy files, on the demo model. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
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
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "support/program.h"
#include "support/sanitized.h"
#include "support/temp.h"

typedef struct line {
    int64_t id;
    double logprob; /* NAN: null */
    char token[40];
} line;

/* The lines of the output; returns how many. */
static int read_lines(const char *text, line *out, int most) {
    di_arena arena = DI_ARENA_EMPTY;
    int n = 0;
    while (*text) {
        size_t size = strcspn(text, "\n");
        const di_json *o;
        di_error error;
        int64_t position;
        assert_true(n < most);
        assert_int_equal(di_json_parse(text, size, "line", &arena, &o, &error), DI_OK);
        assert_true(di_json_int64(di_json_get(o, "position"), &position));
        assert_int_equal(position, n);
        assert_true(di_json_int64(di_json_get(o, "id"), &out[n].id));
        const di_json *logprob = di_json_get(o, "logprob"), *token = di_json_get(o, "token");
        out[n].logprob = NAN;
        if (logprob->type == DI_JSON_NUMBER) assert_true(di_json_double(logprob, &out[n].logprob));
        snprintf(out[n].token, sizeof out[n].token, "%s", token && token->text ? token->text : "");
        n++;
        text += size + 1;
    }
    di_arena_free(&arena);
    return n;
}

static void test_text(void **state) {
    (void)state;
    line lines[20];
    const program_result *r = program_run("score models/demo 'Long ago, a fox'", NULL);
    assert_int_equal(r->code, 0);
    int n = read_lines(r->out, lines, 20);
    assert_int_equal(n, 7);
    assert_string_equal(lines[0].token, "<｜begin▁of▁sentence｜>");
    assert_true(isnan(lines[0].logprob));
    assert_string_equal(lines[3].token, " ago");
    double sum = 0, told;
    for (int i = 1; i < n; i++) {
        assert_true(lines[i].logprob < 0);
        sum += lines[i].logprob;
    }
    assert_int_equal(strncmp(r->error, "7 tokens in ", 12), 0);
    assert_int_equal(sscanf(strstr(r->error, "log-probability "), "log-probability %lf", &told), 1);
    assert_true(fabs(sum - told) < 1e-3);
}

static void test_begin_token_only_once(void **state) {
    (void)state;
    line lines[60];
    const program_result *r = program_run("score models/demo -q -", "<｜begin▁of▁sentence｜>a");
    assert_string_equal(r->error, "");
    assert_int_equal(read_lines(r->out, lines, 60), 2);
    r = program_run("score models/demo -q --no-match-added -", "<｜begin▁of▁sentence｜>a");
    assert_true(read_lines(r->out, lines, 60) > 5);
    /* stdin is taken with all its bytes. */
    r = program_run("score models/demo -q", "a\n");
    assert_int_equal(read_lines(r->out, lines, 60), 3);
}

static void test_bytes_of_half_characters(void **state) {
    (void)state;
    const program_result *r = program_run("score models/demo -q '🦊'", NULL);
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "\"token\": null, \"bytes\": [240"));
}

/* Ids are taken as they are: no begin token. */
static void test_ids(void **state) {
    (void)state;
    line by_text[20], by_ids[20];
    int n = read_lines(program_run("score models/demo -q --numerics float 'Long ago'", NULL)->out,
                       by_text, 20);
    char *path = temp_printf("%s/ids.txt", temp_root), *command, list[400] = " ";
    for (int i = 0; i < n; i++) {
        snprintf(list + strlen(list), sizeof list - strlen(list), "%d%s", (int)by_text[i].id,
                 i % 2 ? "\n\t" : " ");
    }
    temp_write(path, list, strlen(list));
    command = temp_printf("score models/demo -q --numerics float --ids %s", path);
    assert_int_equal(read_lines(program_run(command, NULL)->out, by_ids, 20), n);
    for (int i = 1; i < n; i++) assert_true(by_ids[i].logprob == by_text[i].logprob);
    const program_result *r = program_run("score models/demo -q --ids -", "46 481");
    assert_int_equal(read_lines(r->out, by_ids, 20), 2);
    assert_int_equal(by_ids[0].id, 46);
    free(command);
    free(path);
}

/* The float32 data behind a header that says `want`. */
static const float *npy_data(const char *bytes, size_t size, const char *want, size_t count) {
    assert_memory_equal(bytes, "\x93NUMPY\x01\x00", 8);
    size_t header = (size_t)(unsigned char)bytes[8] + 256 * (size_t)(unsigned char)bytes[9];
    assert_int_equal((10 + header) % 64, 0);
    assert_int_equal(bytes[10 + header - 1], '\n');
    assert_int_equal(strncmp(bytes + 10, want, strlen(want)), 0);
    assert_int_equal(size, 10 + header + 4 * count);
    return (const float *)(const void *)(bytes + 10 + header);
}

static void test_logits_agree_with_logprobs(void **state) {
    (void)state;
    enum { VOCAB = 2560 };
    line lines[20];
    char *path = temp_printf("%s/logits.npy", temp_root), *data;
    char *command =
        temp_printf("score models/demo -q --chunk 3 --logits %s 'Long ago, a fox'", path);
    int n = read_lines(program_run(command, NULL)->out, lines, 20);
    size_t size;
    data = temp_read(path, &size);
    const float *logits =
        npy_data(data, size, "{'descr': '<f4', 'fortran_order': False, 'shape': (7, 2560), }",
                 7 * VOCAB);
    for (int i = 1; i < n; i++) {
        const float *row = logits + (i - 1) * VOCAB;
        double max = -INFINITY, sum = 0;
        for (int j = 0; j < VOCAB; j++) max = fmax(max, (double)row[j]);
        for (int j = 0; j < VOCAB; j++) sum += exp((double)row[j] - max);
        double want = (double)row[lines[i].id] - max - log(sum);
        assert_true(fabs(lines[i].logprob - want) < 1e-5);
    }
    free(data);
    free(command);
    free(path);
}

static void test_streams(void **state) {
    (void)state;
    char *path = temp_printf("%s/streams.npy", temp_root), *first, *second;
    char *command = temp_printf("score models/demo -q --streams %s 'Long ago, a fox'", path);
    size_t size, n = (size_t)10 * 7 * 4 * 256;
    assert_int_equal(program_run(command, NULL)->code, 0);
    first = temp_read(path, &size);
    const float *values =
        npy_data(first, size,
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (10, 7, 4, 256), }", n);
    for (size_t layer = 0; layer < 10; layer++) {
        double sum = 0;
        for (size_t i = 0; i < n / 10; i++) sum += fabs((double)values[layer * (n / 10) + i]);
        assert_true(isfinite(sum) && sum > 100);
    }
    free(command);
    /* Written in pieces, in another order, the file is the same. */
    command = temp_printf("score models/demo -q --chunk 2 --streams %s 'Long ago, a fox'", path);
    assert_int_equal(program_run(command, NULL)->code, 0);
    second = temp_read(path, &size);
    assert_memory_equal(first, second, size);
    free(first);
    free(second);
    free(command);
    free(path);
}

static void test_refusals(void **state) {
    (void)state;
    program_refuses("score models/demo ''", NULL, 2, "score: the text is empty");
    program_refuses("score models/demo --ids /dev/null", NULL, 2,
                    "score: /dev/null holds no token ids");
    program_refuses("score models/demo --ids - text", NULL, 2,
                    "score: give either a text or --ids, not both");
    program_refuses("score models/demo --ids - --no-match-added", NULL, 2,
                    "score: --match-added means nothing with --ids; leave out one");
    program_refuses("score models/demo --ids -", "1 2\n3 x4", 1,
                    "score: stdin: line 2: 'x4' is no token id");
    program_refuses("score models/demo --ids -", "1 -2", 1,
                    "score: stdin: line 1: '-2' is no token id");
    program_refuses("score models/demo --ids -", "1 4294967296", 1,
                    "score: stdin: line 1: '4294967296' is no token id");
    program_refuses("score models/demo --ids -", "1 2560", 1,
                    "score: token 1 has the id 2560, the vocabulary has 0 to 2559");
    program_refuses("score models/demo --ids absent.txt", NULL, 1,
                    "score: cannot open absent.txt: No such file or directory");
    program_refuses("score models/demo --logits /dev/null a", NULL, 2,
                    "score: /dev/null is there already and no regular file");
    program_refuses("score models/demo --logits x.npy --streams ./x.npy a", NULL, 2,
                    "score: --logits and --streams name the same file, ./x.npy; give each its own");
    program_refuses("score models/demo --ids README.md --logits ./README.md", NULL, 2,
                    "score: --ids and --logits name the same file, ./README.md; give each its own");
    program_refuses("score models/demo --context 2 abcdefgh", NULL, 1,
                    "score: the prompt has 7 tokens, the context takes 2; shorten it or ask for a "
                    "larger context");
}

/* `count` ids as text. */
static void write_ids(const char *path, int count) {
    char *text = malloc((size_t)count * 4 + 1);
    assert_non_null(text);
    for (int i = 0; i < count; i++) snprintf(text + 4 * i, 5, "%3d ", 100 + i % 800);
    temp_write(path, text, (size_t)count * 4);
    free(text);
}

/* A score that fails in its middle, or whose reader goes away, stops there; it leaves no file, and
 * an old one as it was. */
static void test_files_appear_whole(void **state) {
    (void)state;
    static const char *const ends[] = {">/dev/full", "| head -1 >/dev/null"};
    char *old = temp_printf("%s/old.npy", temp_root),
         *fresh = temp_printf("%s/fresh.npy", temp_root);
    char *ids = temp_printf("%s/ids", temp_root);
    temp_write(old, "old", 3);
    write_ids(ids, 400);
    for (size_t i = 0; i < 2; i++) {
        char *command = temp_printf("score models/demo -q --logits %s --streams %s --ids %s %s",
                                    old, fresh, ids, ends[i]);
        const program_result *r = program_run(command, NULL);
        if (i == 0) {
            assert_int_equal(r->code, 1);
            assert_string_equal(
                r->error, "deepinfer score: cannot write to stdout: No space left on device\n");
        }
        size_t size;
        char *text = temp_read(old, &size);
        assert_string_equal(text, "old");
        free(text);
        assert_int_not_equal(access(fresh, F_OK), 0);
        char *left = temp_printf("ls -A %s | grep -q tmp", temp_root);
        assert_int_not_equal(system(left), 0);
        free(left);
        free(command);
    }
    free(ids);
    free(fresh);
    free(old);
}

/* The most memory in KiB that a command had resident. */
static long resident_kib(const char *command) {
    char *shell = temp_printf("exec '%s/deepinfer' %s >/dev/null", DI_BUILD_DIR, command);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (chdir(DI_SOURCE_DIR) == 0) execl("/bin/sh", "sh", "-c", shell, (char *)NULL);
        _exit(99);
    }
    struct rusage usage;
    int status;
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    if (status != 0) fail_msg("deepinfer %s: %d", command, status);
    free(shell);
    return usage.ru_maxrss;
}

/* With the least --memory that is accepted, no more than that is used. */
static void test_memory_is_a_bound(void **state) {
    (void)state;
    if (is_sanitized()) skip();
    char *ids = temp_printf("%s/ids", temp_root),
         *streams = temp_printf("%s/streams.npy", temp_root);
    write_ids(ids, 400);
    char *commands[] =
        {temp_printf("score models/demo -q --context 512 --ids %s --streams %s", ids, streams),
         temp_printf("run models/demo -q --context 512 --max-tokens 100 'Tell me a story.'")};
    for (size_t i = 0; i < 2; i++) {
        char *command = temp_printf("%s --memory 1M", commands[i]);
        unsigned mib;
        assert_int_equal(sscanf(program_run(command, NULL)->error,
                                "deepinfer %*[a-z]: not enough memory: %u MiB are needed", &mib),
                         1);
        free(command);
        command = temp_printf("%s --memory %uM", commands[i], mib);
        long kib = resident_kib(command);
        if (kib > (long)mib * 1024) fail_msg("deepinfer %s: %ld KiB", command, kib);
        free(command);
        free(commands[i]);
    }
    free(streams);
    free(ids);
}

/* Whether no thread of it wants a processor: one that computes does, whether it has got one or not. */
static bool all_sleep(pid_t child) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)child);
    DIR *threads = opendir(path);
    assert_non_null(threads);
    bool sleep = true;
    for (struct dirent *e; (e = readdir(threads));) {
        char name[400], state = 'S';
        if (e->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s/stat", path, e->d_name);
        FILE *stat = fopen(name, "r");
        if (!stat) continue; /* it has just ended */
        if (fscanf(stat, "%*d (%*[^)]) %c", &state) == 1 && state != 'S') sleep = false;
        fclose(stat);
    }
    closedir(threads);
    return sleep;
}

/* Until nothing has moved for a while: the child waits for a reader. */
static void wait_until_full(int fd, pid_t child) {
    int last = -1, now = 0, still = 0;
    for (int i = 0; i < 3000 && still < 50; i++) {
        assert_int_equal(ioctl(fd, FIONREAD, &now), 0);
        still = now == last && now > 0 && all_sleep(child) ? still + 1 : 0;
        last = now;
        usleep(20000);
    }
    assert_int_equal(still, 50);
}

/* Ctrl-C while a slow reader makes the writing wait loses no byte of what was written. */
static void test_interrupt_of_a_blocked_write(void **state) {
    (void)state;
    char *ids = temp_printf("%s/ids", temp_root), *text = calloc(1, 1 << 16);
    write_ids(ids, 400);
    int ends[2], status;
    assert_non_null(text);
    assert_int_equal(pipe(ends), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 4096);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 1);
        close(ends[0]);
        execl(DI_BUILD_DIR "/deepinfer", "deepinfer", "score", DI_SOURCE_DIR "/models/demo", "-q",
              "--ids", ids, (char *)NULL);
        _exit(99);
    }
    close(ends[1]);
    wait_until_full(ends[0], child);
    kill(child, SIGINT);
    usleep(100000);
    size_t size = 0;
    for (ssize_t n; (n = read(ends[0], text + size, 4096)) > 0;) {
        size += (size_t)n;
        assert_true(size < (1 << 16) - 4096);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 130);
    line *lines = calloc(400, sizeof *lines);
    assert_non_null(lines);
    int n = read_lines(text, lines, 400); /* every line whole, and none left out */
    assert_true(n > 64 && n < 400);
    free(lines);
    close(ends[0]);
    free(text);
    free(ids);
}

/* On a terminal the lines show how far it is; a bar would share lines with them. */
static void test_no_bar_between_lines(void **state) {
    (void)state;
    char *ids = temp_printf("%s/ids", temp_root), *text = calloc(1, 1 << 16);
    int fd, status;
    size_t size = 0;
    assert_non_null(text);
    write_ids(ids, 150);
    pid_t child = forkpty(&fd, NULL, NULL, NULL);
    assert_true(child >= 0);
    if (child == 0) {
        setenv("TERM", "xterm", 1);
        execl(DI_BUILD_DIR "/deepinfer", "deepinfer", "score", DI_SOURCE_DIR "/models/demo",
              "--backend", "ref", "--chunk", "4", "--ids", ids, (char *)NULL);
        _exit(99);
    }
    for (ssize_t n; (n = read(fd, text + size, 4096)) > 0 && size < (1 << 16) - 8192;) {
        size += (size_t)n;
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_non_null(strstr(text, "{\"position\": 149, "));
    assert_null(strstr(text, "scoring"));
    close(fd);
    free(text);
    free(ids);
}

/* A third signal ends it at once, also while a terminal that nobody reads holds it up. */
static void test_third_signal(void **state) {
    (void)state;
    char *ids = temp_printf("%s/ids", temp_root);
    int fd, status = 0;
    write_ids(ids, 400);
    pid_t child = forkpty(&fd, NULL, NULL, NULL);
    assert_true(child >= 0);
    if (child == 0) {
        setenv("TERM", "xterm", 1);
        unsetenv("NO_COLOR");
        execl(DI_BUILD_DIR "/deepinfer", "deepinfer", "score", DI_SOURCE_DIR "/models/demo", "-q",
              "--ids", ids, (char *)NULL);
        _exit(99);
    }
    struct pollfd shown = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&shown, 1, 20000), 1);
    wait_until_full(fd, child);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(waitpid(child, &status, WNOHANG), 0);
        kill(child, SIGTERM);
        usleep(100000);
    }
    for (int i = 0; waitpid(child, &status, WNOHANG) == 0; i++) {
        if (i == 100) {
            kill(child, SIGKILL);
            fail_msg("the third signal did not end it");
        }
        kill(child, SIGTERM); /* two of the three may have come as one, on a busy machine */
        usleep(20000);
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 143);
    close(fd);
    free(ids);
}

int main(void) {
    if (!program_can_compute()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_begin_token_only_once),
        cmocka_unit_test(test_bytes_of_half_characters),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_logits_agree_with_logprobs),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_files_appear_whole),
        cmocka_unit_test(test_memory_is_a_bound),
        cmocka_unit_test(test_no_bar_between_lines),
        cmocka_unit_test(test_third_signal),
        cmocka_unit_test(test_interrupt_of_a_blocked_write),
    };
    return cmocka_run_group_tests(tests, temp_root_create, temp_root_destroy);
}
