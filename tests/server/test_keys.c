/* API keys: what a file may say, what stays when it is read again, and how much a key may ask. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buffer.h"
#include "server/keys.h"
#include "support/temp.h"

static di_status load(di_keys *keys, const char *text, di_error *error) {
    char *path = temp_printf("%s/keys", temp_root);
    temp_write(path, text, strlen(text));
    di_status status = di_keys_load(keys, path, error);
    free(path);
    return status;
}

static di_key *find(const di_keys *keys, const char *key) {
    return di_keys_find(keys, key, strlen(key));
}

static void test_files(void **state) {
    (void)state;
    di_keys keys = {0};
    di_error error;
    assert_int_equal(load(&keys, "secret-a alice rpm=3\n# no key\n\n secret-b\tbob # his\r\n",
                          &error),
                     DI_OK);
    assert_int_equal(keys.n, 2);
    assert_string_equal(find(&keys, "secret-a")->name, "alice");
    assert_string_equal(find(&keys, "secret-b")->name, "bob");
    assert_null(find(&keys, "secret-c"));
    static const char *const wrong[] = {"",
                                        "# nobody\n",
                                        "short a\n",
                                        "secret-a\n",
                                        "secret-a alice rpm=0\n",
                                        "secret-a alice rpm=-1\n",
                                        "secret-a alice bob\n",
                                        "secret-a alice\nsecret-b bob\nsecret-a carol\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(load(&keys, wrong[i], &error), DI_ERR_INVALID);
        assert_null(strstr(error.message, "secret"));
        assert_int_equal(keys.n, 2);
        assert_non_null(find(&keys, "secret-a"));
    }
    di_keys_free(&keys);
}

/* A request holds its record; the limits and the name are those of the new file. */
static void test_reading_again(void **state) {
    (void)state;
    di_keys keys = {0};
    di_error error;
    int retry_s;
    assert_int_equal(load(&keys, "secret-a alice\nsecret-b bob\n", &error), DI_OK);
    di_key *a = find(&keys, "secret-a"), *b = find(&keys, "secret-b");
    assert_true(di_key_acquire(a, 1, &retry_s) && di_key_acquire(b, 1, &retry_s));
    assert_int_equal(load(&keys, "secret-c carol\nsecret-a anna concurrency=1\n", &error), DI_OK);
    assert_ptr_equal(find(&keys, "secret-a"), a);
    assert_string_equal(a->name, "anna");
    assert_false(di_key_acquire(a, 1, &retry_s));
    assert_null(find(&keys, "secret-b"));
    assert_int_equal(load(&keys, "secret-b bert\nsecret-a anna\n", &error), DI_OK);
    assert_ptr_not_equal(find(&keys, "secret-b"), b); /* it was gone in between */
    di_key_release(&keys, b);
    di_key_release(&keys, a);
    assert_true(di_key_acquire(a, 1, &retry_s));
    assert_string_equal(find(&keys, "secret-b")->name, "bert");
    di_keys_free(&keys);
}

static void test_rates(void **state) {
    (void)state;
    di_keys keys = {0};
    di_error error;
    int retry_s;
    assert_int_equal(load(&keys, "secret-a alice rpm=2\n", &error), DI_OK);
    di_key *a = find(&keys, "secret-a");
    for (int i = 0; i < 2; i++) {
        assert_true(di_key_acquire(a, 100, &retry_s));
        di_key_release(&keys, a);
    }
    assert_false(di_key_acquire(a, 101, &retry_s));
    assert_in_range(retry_s, 29, 31);
    assert_true(di_key_acquire(a, 131, &retry_s));
    di_keys_free(&keys);
}

static void write_keys(int n, di_buffer *out) {
    di_buffer_clear(out);
    for (int i = 0; i < n; i++) di_buffer_printf(out, "secret-%d name-%d\n", i, i);
}

/* There is a most, and a file with more leaves what there was. */
static void test_many(void **state) {
    (void)state;
    di_keys keys = {0};
    di_error error;
    di_buffer text = DI_BUFFER_EMPTY;
    write_keys(10000, &text);
    assert_int_equal(load(&keys, text.data, &error), DI_OK);
    assert_string_equal(find(&keys, "secret-4321")->name, "name-4321");
    di_buffer_puts(&text, "secret-one-more name\n");
    assert_int_equal(load(&keys, text.data, &error), DI_ERR_INVALID);
    assert_int_equal(keys.n, 10000);
    di_buffer_free(&text);
    di_keys_free(&keys);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_reading_again),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, temp_root_create, temp_root_destroy);
}
