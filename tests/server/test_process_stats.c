/* What /metrics tells of the process: right, and without a pass over the open files each time. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int n_passes;

static DIR *count_pass(const char *path) {
    n_passes++;
    return opendir(path);
}

#define opendir count_pass
#include "server/process_stats.c"

enum { MOST = 100 };

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

static void test_passes(void **state) {
    (void)state;
    di_process_stats stats;
    memset(&stats, 0, sizeof stats);
    n_passes = 0;
    for (int i = 0; i < 10; i++) assert_true(di_process_stats_read(&stats, 0));
    assert_in_range(n_passes, 0, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_files),
        cmocka_unit_test(test_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
