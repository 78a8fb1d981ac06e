/* What /metrics tells of the process: right, and at once however many files are open. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/process_stats.h"

enum { MOST = 8000 };

static int files[MOST];

static void open_files(int n) {
    for (int i = 0; i < n; i++) {
        files[i] = dup(STDOUT_FILENO);
        assert_true(files[i] >= 0);
    }
}

static void close_files(int n) {
    for (int i = 0; i < n; i++) close(files[i]);
}

/* The least of several, for a machine that is shared. */
static double seconds_to_read(di_process_stats *stats, int64_t n) {
    double least = 1e9;
    for (int i = 0; i < 50; i++) {
        struct timespec a, b;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        assert_true(di_process_stats_read(stats, n));
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        double took = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
        if (took < least) least = took;
    }
    return least;
}

static void test_open_files(void **state) {
    (void)state;
    di_process_stats stats;
    memset(&stats, 0, sizeof stats);
    assert_true(di_process_stats_read(&stats, 0));
    int64_t before = stats.open_files;
    assert_true(before >= 3);
    for (int n = 1; n <= 100; n += 33) {
        open_files(n);
        assert_true(di_process_stats_read(&stats, n));
        assert_int_equal(stats.open_files, before + n);
        close_files(n);
    }
    assert_true(di_process_stats_read(&stats, 0));
    assert_int_equal(stats.open_files, before);
}

static void test_many_cost_little(void **state) {
    (void)state;
    struct rlimit limit;
    di_process_stats stats;
    memset(&stats, 0, sizeof stats);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < MOST + 64) skip();
    limit.rlim_cur = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    double few = seconds_to_read(&stats, 0);
    open_files(MOST);
    double many = seconds_to_read(&stats, MOST);
    close_files(MOST);
    if (many > 10 * few) fail_msg("%g s with few files, %g s with %d more", few, many, MOST);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_files),
        cmocka_unit_test(test_many_cost_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
