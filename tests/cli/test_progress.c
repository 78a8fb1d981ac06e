/* Progress with a clock and a terminal of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/progress.c"

static double now;
static bool terminal, interrupted;

double di_seconds(void) { return now; }

bool di_terminal_is(FILE *stream) {
    assert_ptr_equal(stream, stderr);
    return terminal;
}

bool di_interrupt_seen(void) { return interrupted; }

/* What 100 steps of `seconds` in all write to stderr. */
static const char *written(di_progress *progress, double seconds) {
    static char text[1 << 14];
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int saved = dup(2);
    dup2(fileno(file), 2);
    for (int i = 0; i <= 100; i++) {
        assert_true(di_progress_report(progress, DI_PHASE_PROMPT, i, 100));
        now += seconds / 100;
    }
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(file);
    size_t n = fread(text, 1, sizeof text - 1, file);
    text[n] = '\0';
    fclose(file);
    return text;
}

static void test_short_work_is_silent(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        terminal = i == 1;
        di_progress progress = {.quiet = false};
        assert_string_equal(written(&progress, 0.9), "");
    }
}

static void test_lines_elsewhere(void **state) {
    (void)state;
    terminal = false;
    di_progress progress = {.quiet = false};
    assert_string_equal(written(&progress, 30), "reading the prompt: 4 of 100 tokens\n"
                                                "reading the prompt: 38 of 100 tokens\n"
                                                "reading the prompt: 72 of 100 tokens\n");
}

static void test_bar_on_a_terminal(void **state) {
    (void)state;
    terminal = true;
    di_progress progress = {.quiet = false};
    const char *text = written(&progress, 2.1);
    static const char first[] = "\rreading the prompt [##############................]  48 %\033[K";
    assert_int_equal(strncmp(text, first, sizeof first - 1), 0);
    assert_string_equal(text + strlen(text) - 4, "\r\033[K"); /* taken away at the end */
    assert_null(strchr(text, '\n'));
}

static void test_quiet(void **state) {
    (void)state;
    terminal = true;
    di_progress progress = {.quiet = true};
    assert_string_equal(written(&progress, 30), "");
}

static void test_interrupt_stops(void **state) {
    (void)state;
    di_progress progress = {.quiet = true};
    interrupted = true;
    assert_false(di_progress_report(&progress, DI_PHASE_LOAD, 1, 2));
    interrupted = false;
    assert_true(di_progress_report(&progress, DI_PHASE_LOAD, 1, 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_work_is_silent), cmocka_unit_test(test_lines_elsewhere),
        cmocka_unit_test(test_bar_on_a_terminal),    cmocka_unit_test(test_quiet),
        cmocka_unit_test(test_interrupt_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
