/* Lists of token ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "deepinfer.h"

static void test_append(void **state) {
    (void)state;
    di_ids ids = {0};
    di_error error;
    assert_int_equal(di_ids_append(&ids, NULL, 0, &error), DI_OK);
    assert_int_equal(ids.size, 0);
    int32_t pair[2];
    for (int32_t i = 0; i < 5000; i++) {
        pair[0] = 2 * i;
        pair[1] = 2 * i + 1;
        assert_int_equal(di_ids_append(&ids, pair, 2, &error), DI_OK);
        assert_true(ids.size <= ids.capacity);
    }
    assert_int_equal(ids.size, 10000);
    for (int32_t i = 0; i < 10000; i++) assert_int_equal(ids.data[i], i);
    di_ids_free(&ids);
    assert_null(ids.data);
    assert_int_equal(ids.size + ids.capacity, 0);
}

/* Sizes that no memory holds are refused before anything is read, and the list stays. */
static void test_too_many(void **state) {
    (void)state;
    di_ids ids = {0};
    di_error error;
    const int32_t one = 7;
    assert_int_equal(di_ids_append(&ids, &one, 1, &error), DI_OK);
    assert_int_equal(di_ids_append(&ids, &one, SIZE_MAX, &error), DI_ERR_MEMORY);
    assert_string_equal(error.message, "no memory for 18446744073709551615 more token ids");
    assert_int_equal(di_ids_append(&ids, &one, SIZE_MAX / 8, &error), DI_ERR_MEMORY);
    assert_int_equal(ids.size, 1);
    assert_int_equal(ids.data[0], 7);
    di_ids_free(&ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
