/* Files: what is read whole, what is refused, and that nothing is waited for. */
#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "support/temp.h"

static char *root;
static di_error error;

static int make_root(void **state) {
    (void)state;
    root = temp_dir_create();
    return root ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    temp_dir_destroy(root);
    return 0;
}

static void refused(const char *path, di_status status, const char *message) {
    char *data = root;
    uint64_t size;
    di_map map;
    assert_int_equal(di_file_read(path, 10, &data, &size, &error), status);
    assert_string_equal(error.message, message);
    assert_null(data);
    assert_int_equal(di_map_open(&map, path, &error), status);
    assert_string_equal(error.message, message);
    assert_null(map.data);
}

/* Opening a FIFO for reading waits for a writer; here there never is one. */
static void test_refusals(void **state) {
    (void)state;
    char *path = temp_printf("%s/fifo", root), *message;
    assert_int_equal(mkfifo(path, 0600), 0);
    message = temp_printf("%s is not a regular file", path);
    refused(path, DI_ERR_IO, message);
    free(message);
    free(path);
    message = temp_printf("%s is not a regular file", root);
    refused(root, DI_ERR_IO, message);
    free(message);
    path = temp_printf("%s/absent", root);
    message = temp_printf("cannot open %s: No such file or directory", path);
    refused(path, DI_ERR_IO, message);
    free(message);
    free(path);
}

static void test_contents(void **state) {
    (void)state;
    char *path = temp_printf("%s/file", root), *data, *message;
    uint64_t size;
    di_map map;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite("0123456789", 1, 10, file), 10);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(di_file_read(path, 10, &data, &size, &error), DI_OK);
    assert_int_equal(size, 10);
    assert_string_equal(data, "0123456789"); /* with a NUL behind it */
    free(data);
    assert_int_equal(di_file_read(path, 9, &data, &size, &error), DI_ERR_INVALID);
    message = temp_printf("%s has 10 bytes; at most 9 are accepted", path);
    assert_string_equal(error.message, message);
    assert_null(data);
    assert_int_equal(di_map_open(&map, path, &error), DI_OK);
    assert_int_equal(map.size, 10);
    assert_memory_equal(map.data, "0123456789", 10);
    di_map_close(&map);
    assert_null(map.data);
    free(message);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_contents),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
