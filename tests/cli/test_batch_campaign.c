/* Many short requests through `batch`, on a page pool that is too small for them: what comes out is
 * what a roomy run without drafts gives, memory stays flat, and a run that is killed or interrupted
 * at many moments and started again gives it too. Only "created", the time of an answer, may differ.
 *
 * The default is a short campaign. A long one, as `make accurate` runs it, and another seed:
 *     DI_CAMPAIGN_REQUESTS=10000 DI_CAMPAIGN_SEED=7 test_batch_campaign
 */
/* ctest: slow */
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buffer.h"
#include "base/philox.h"
#include "deepinfer.h"
#include "support/program.h"
#include "support/sanitized.h"
#include "support/small_pool.h"
#include "support/temp.h"

static char *input, *output, *wanted; /* wanted: the sorted lines of an undisturbed run */
static off_t wanted_size;
static int n_requests, n_kills, n_interrupts;
static uint64_t seed, n_rolled;

static int below(int n) {
    uint32_t words[4];
    di_philox(seed, n_rolled++, 5, words);
    return (int)(words[0] % (uint32_t)n);
}

static bool one_in(int n) { return below(n) == 0; }

/* ---- The input ---- */

static void write_values(di_buffer *out) {
    di_buffer_printf(out, ", \"max_tokens\": %d", one_in(6) ? 60 + below(80) : 1 + below(12));
    if (one_in(3)) di_buffer_puts(out, ", \"temperature\": 0");
    if (one_in(4)) di_buffer_printf(out, ", \"seed\": %d", below(1000));
    if (one_in(6)) di_buffer_printf(out, ", \"n\": %d", 1 + below(3));
    if (one_in(6)) di_buffer_puts(out, ", \"presence_penalty\": 0.5, \"top_k\": 30");
    if (one_in(5)) di_buffer_puts(out, ", \"stop\": [\" the\", \"a\", \"=\"]");
}

static void write_request(di_buffer *out, int i) {
    static const char *const texts[] = {"What is %d + %d?",
                                        "Tell me a story about %d foxes and %d.", "Copy: %d %d",
                                        "Sort %d and %d."};
    char text[64];
    bool chat = !one_in(4);
    snprintf(text, sizeof text, texts[below(4)], below(100), below(100));
    di_buffer_printf(out,
                     "{\"custom_id\": \"r\xc3\xa9quest %d\", \"method\": \"POST\", \"url\": \"%s\"",
                     i, chat ? "/v1/chat/completions" : "/v1/completions");
    if (chat) {
        di_buffer_printf(out,
                         ", \"body\": {\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}]",
                         text);
        if (!one_in(5)) di_buffer_puts(out, ", \"thinking\": false");
        if (one_in(4)) di_buffer_puts(out, ", \"logprobs\": true, \"top_logprobs\": 20");
    } else {
        di_buffer_printf(out, ", \"body\": {\"prompt\": \"%s\"", text);
        if (one_in(4)) di_buffer_puts(out, ", \"logprobs\": 20");
    }
    write_values(out);
    if (one_in(50)) di_buffer_puts(out, ", \"top_p\": 7"); /* refused */
    di_buffer_puts(out, one_in(50) ? "}\n" : "}}\n");      /* a brace too few */
}

static void write_input(void) {
    di_buffer lines = DI_BUFFER_EMPTY;
    for (int i = 0; i < n_requests; i++) write_request(&lines, i);
    temp_write(input, lines.data, lines.size);
    di_buffer_free(&lines);
}

/* ---- Runs ---- */

static const char *roomy[] = {"--spec", "off", "--max-batch", "4", NULL};
static char memory[32];
static const char *crowded[] = {"--memory", memory,        "--window-cache",
                                "1M",       "--max-batch", "8",
                                "--chunk",  "64",          NULL};

static pid_t begin(const char *const *options) {
    const char *args[40] = {"deepinfer", "batch",     "models/demo", "-i", input,    "-o",
                            output,      "--context", "256",         "-q", "--seed", "3"};
    int n = 12;
    while (*options) args[n++] = *options++;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    if (chdir(DI_SOURCE_DIR) != 0 || !freopen("/dev/null", "w", stderr)) _exit(125);
    execv(DI_BUILD_DIR "/deepinfer", (char *const *)(uintptr_t)args);
    _exit(125);
}

static off_t output_size(void) {
    struct stat info;
    return stat(output, &info) == 0 ? info.st_size : 0;
}

static void sleep_us(long us) {
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static bool has_ended(pid_t child, int *status) {
    pid_t ended = waitpid(child, status, WNOHANG);
    assert_true(ended >= 0);
    return ended == child;
}

/* ---- Results ---- */

static int compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The lines of the output in order, without the times of their making. */
static char *sorted_output(void) {
    char *text = temp_read(output, NULL), *at = text;
    char **lines = calloc((size_t)n_requests, sizeof *lines);
    int n = 0;
    assert_non_null(lines);
    for (char *end; *at; at = end + 1) {
        end = strchr(at, '\n');
        if (!end || n == n_requests) fail_msg("a torn line, or more than %d", n_requests);
        *end = '\0';
        char *created = strstr(at, "\"created\": ");
        if (created) memset(created + 11, '0', strspn(created + 11, "0123456789"));
        lines[n++] = at;
    }
    assert_int_equal(n, n_requests);
    qsort(lines, (size_t)n, sizeof *lines, compare);
    di_buffer out = DI_BUFFER_EMPTY;
    for (int i = 0; i < n; i++) di_buffer_printf(&out, "%s\n", lines[i]);
    free(lines);
    free(text);
    return out.data;
}

static void expect_wanted(const char *what) {
    char *got = sorted_output();
    size_t at = 0;
    while (got[at] && got[at] == wanted[at]) at++;
    if (got[at] || wanted[at]) {
        while (at > 0 && got[at - 1] != '\n') at--;
        fail_msg("DI_CAMPAIGN_SEED=%" PRIu64 ", %s: got\n%.*s\nnot\n%.*s", seed, what,
                 (int)strcspn(got + at, "\n"), got + at, (int)strcspn(wanted + at, "\n"),
                 wanted + at);
    }
    free(got);
}

/* ---- Tests ---- */

/* Resident memory without mapped files; 0 when the process has gone. */
static long anonymous_kib(pid_t child) {
    char path[40];
    long size, resident = 0, shared = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)child);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    if (fscanf(file, "%ld %ld %ld", &size, &resident, &shared) != 3) resident = shared = 0;
    fclose(file);
    return (resident - shared) * (sysconf(_SC_PAGESIZE) / 1024);
}

static void test_small_pool_and_flat_memory(void **state) {
    (void)state;
    int status;
    long after_a_fifth = 0, last = 0;
    (void)remove(output);
    pid_t child = begin(crowded);
    while (!has_ended(child, &status)) {
        long now = anonymous_kib(child);
        off_t size = output_size();
        if (now > 0 && size >= wanted_size / 5 && !after_a_fifth) after_a_fifth = now;
        if (now > 0 && size < wanted_size) last = now;
        sleep_us(2000);
    }
    assert_int_equal(status, 0);
    expect_wanted("a small pool");
    print_message("  after a fifth %ld KiB, at the end %ld KiB more\n", after_a_fifth,
                  last - after_a_fifth);
    assert_true(after_a_fifth > 0);
    if (!is_sanitized() && last - after_a_fifth > 2048) {
        fail_msg("memory has grown by %ld KiB", last - after_a_fifth);
    }
}

/* Waits until the output has so many bytes and, sometimes, a little longer; with a size of 0 for a
 * moment of the start. Then the signal. False: the run has ended before. */
static bool stop_at(off_t size, int signal_number, int *status) {
    pid_t child = begin(crowded);
    off_t before = output_size();
    if (size == 0) sleep_us(below(150) * 1000L);
    while (size > 0 && (output_size() < size || output_size() == before)) {
        if (has_ended(child, status)) return false;
        sleep_us(200); /* soon after a line has begun to be there, often before it is whole */
    }
    if (size > 0 && one_in(2)) sleep_us(below(30) * 1000L);
    kill(child, signal_number);
    assert_int_equal(waitpid(child, status, 0), child);
    return true;
}

/* What a kill in the middle of a write leaves, which the system makes rare: a line cut anywhere. */
static void tear_last_line(void) {
    size_t size;
    char *text = temp_read(output, &size);
    size_t line = size > 0 ? size - 1 : 0;
    while (line > 0 && text[line - 1] != '\n') line--;
    if (size > line) assert_int_equal(truncate(output, (off_t)line + below((int)(size - line))), 0);
    free(text);
}

static void test_killed_and_interrupted(void **state) {
    (void)state;
    int n = n_kills + n_interrupts, killed = 0, interrupted = 0, status;
    (void)remove(output);
    for (int i = 0; i < n; i++) {
        /* Moments in equal parts of the whole, the first of them before there is anything. */
        off_t part = wanted_size / n, size = i == 0 ? 0 : part * i + below((int)part);
        bool hard = (int64_t)(i + 1) * n_kills / n > (int64_t)i * n_kills / n;
        if (!stop_at(size, hard ? SIGKILL : SIGINT, &status)) {
            assert_int_equal(status, 0); /* it was faster than the signal */
            continue;
        }
        killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        interrupted += WIFEXITED(status) && WEXITSTATUS(status) == 130;
        if (!hard && WIFSIGNALED(status))
            assert_int_equal(WTERMSIG(status), SIGINT); /* too early */
        if (WIFEXITED(status)) assert_true(WEXITSTATUS(status) == 130 || WEXITSTATUS(status) == 0);
        if (hard && one_in(3)) tear_last_line();
    }
    assert_true(waitpid(begin(crowded), &status, 0) > 0);
    assert_int_equal(status, 0);
    print_message("  killed %d times of %d, interrupted %d of %d\n", killed, n_kills, interrupted,
                  n_interrupts);
    assert_true(killed >= n_kills - 2 && interrupted >= n_interrupts - 2);
    expect_wanted("killed and interrupted");
}

/* ---- Set-up ---- */

static void find_memory(void) {
    di_engine_options options = di_engine_options_defaults();
    options.context = 256;
    options.max_batch = 8;
    options.chunk = 64;
    options.window_cache = 1 << 20;
    uint64_t bytes = small_pool_memory(DI_SOURCE_DIR "/models/demo", &options, 4);
    snprintf(memory, sizeof memory, "%" PRIu64, bytes);
}

static int setup(void **state) {
    int status;
    const char *number = getenv("DI_CAMPAIGN_REQUESTS"), *given = getenv("DI_CAMPAIGN_SEED");
    n_requests = number ? (int)strtol(number, NULL, 10) : is_sanitized() ? 12 : 60;
    n_kills = n_requests >= 400 ? 20 : 4;
    n_interrupts = n_requests >= 400 ? 10 : 3;
    seed = given ? strtoull(given, NULL, 10) : 1;
    temp_root_create(state);
    input = temp_printf("%s/in.jsonl", temp_root);
    output = temp_printf("%s/out.jsonl", temp_root);
    write_input();
    find_memory();
    assert_true(waitpid(begin(roomy), &status, 0) > 0);
    assert_int_equal(status, 0);
    wanted_size = output_size();
    wanted = sorted_output();
    return 0;
}

static int teardown(void **state) {
    free(input);
    free(output);
    free(wanted);
    return temp_root_destroy(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_pool_and_flat_memory),
        cmocka_unit_test(test_killed_and_interrupted),
    };
    if (!program_can_compute()) return 77;
    return cmocka_run_group_tests(tests, setup, teardown);
}
