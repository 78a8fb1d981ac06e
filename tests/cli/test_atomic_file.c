/* Files that appear whole or not at all, with and without a file system that knows nameless ones.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/temp.h"

static bool refuse_nameless;

static int open_or_refuse(const char *path, int flags, mode_t mode) {
    if (refuse_nameless && (flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return open(path, flags, mode);
}

#define open open_or_refuse
#include "cli/atomic_file.c"
#undef open

static char *path;
static di_error error;

static int setup(void **state) {
    (void)temp_root_create(state);
    path = temp_printf("%s/file", temp_root);
    return 0;
}

static int teardown(void **state) {
    free(path);
    return temp_root_destroy(state);
}

static int count_files(void) {
    char *command = temp_printf("exit $(ls -A %s | wc -l)", temp_root);
    int status = system(command);
    free(command);
    return WEXITSTATUS(status);
}

static void holds(const char *name, const char *want) {
    char *text = temp_read(name, NULL);
    assert_string_equal(text, want);
    free(text);
}

static di_atomic_file begin(const char *name, const char *text) {
    di_atomic_file file;
    if (di_atomic_create(&file, name, &error) != DI_OK) fail_msg("%s", error.message);
    assert_int_equal(di_atomic_write(&file, 0, text, strlen(text), &error), DI_OK);
    return file;
}

static void commit(di_atomic_file *file) {
    if (di_atomic_commit(file, &error) != DI_OK) fail_msg("%s", error.message);
    assert_null(file->temporary);
}

static void whole_or_not_at_all(void) {
    di_atomic_file file = begin(path, "first");
    assert_int_not_equal(access(path, F_OK), 0);
    di_atomic_abandon(&file);
    assert_int_equal(count_files(), 0);
    file = begin(path, "first");
    commit(&file);
    holds(path, "first");
    assert_int_equal(count_files(), 1);
    /* An old one stays until the new one is whole, and keeps its permissions. */
    assert_int_equal(chmod(path, 0600), 0);
    file = begin(path, "second");
    holds(path, "first");
    di_atomic_abandon(&file);
    holds(path, "first");
    file = begin(path, "second");
    commit(&file);
    holds(path, "second");
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(count_files(), 1);
    assert_int_equal(unlink(path), 0);
}

static void test_whole_or_not_at_all(void **state) {
    (void)state;
    refuse_nameless = true;
    whole_or_not_at_all();
    di_atomic_file file = begin(path, "x");
    assert_int_equal(count_files(), 1); /* or the removal above proves nothing */
    di_atomic_abandon(&file);
    refuse_nameless = false;
    whole_or_not_at_all();
}

/* A name that cannot be taken is told, and nothing is left. */
static void test_place_is_taken(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        refuse_nameless = i == 0;
        di_atomic_file file = begin(path, "x");
        assert_int_equal(mkdir(path, 0700), 0);
        assert_int_equal(di_atomic_commit(&file, &error), DI_ERR_IO);
        char *want = temp_printf("cannot put %s into its place: Is a directory", path);
        assert_string_equal(error.message, want);
        free(want);
        assert_int_equal(rmdir(path), 0);
        assert_int_equal(count_files(), 0);
    }
}

static void test_links_are_followed(void **state) {
    (void)state;
    char *link = temp_printf("%s/link", temp_root);
    temp_write(path, "old", 3);
    assert_int_equal(symlink("file", link), 0);
    di_atomic_file file = begin(link, "new");
    commit(&file);
    holds(path, "new");
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(count_files(), 2);
    assert_int_equal(unlink(link) | unlink(path), 0);
    free(link);
}

static void test_names_without_a_folder(void **state) {
    (void)state;
    assert_int_equal(chdir(temp_root), 0);
    di_atomic_file file = begin("file", "here");
    commit(&file);
    holds(path, "here");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(di_atomic_create(&file, "/absent-folder/file", &error), DI_ERR_IO);
    assert_string_equal(error.message,
                        "cannot create /absent-folder/file: No such file or directory");
    di_atomic_abandon(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_or_not_at_all),
        cmocka_unit_test(test_place_is_taken),
        cmocka_unit_test(test_links_are_followed),
        cmocka_unit_test(test_names_without_a_folder),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
