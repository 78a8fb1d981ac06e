/* The index against a plain list: names made so that many share a home, which SHA-256 would not do
 * for us, so that clusters, wrap-around and removals inside a cluster all happen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv_internal.h"

enum { N = 13 }; /* 32 slots */

static di_kv_name names[N];
static kv__table table;

static void set_up(void) {
    for (int i = 0; i < N; i++) {
        uint32_t home = i % 3 == 0 ? 31 : i % 3 == 1 ? 0 : 30; /* around the end of the table */
        memset(&names[i], 0, sizeof names[i]);
        memcpy(names[i].bytes, &home, sizeof home);
        names[i].bytes[31] = (uint8_t)i;
    }
    assert_true(kv__table_init(&table, names, N));
}

static void test_size(void **state) {
    (void)state;
    assert_int_equal(kv__table_bytes(1), 2 * 4);
    assert_int_equal(kv__table_bytes(2), 4 * 4);
    assert_int_equal(kv__table_bytes(13), 32 * 4);
    assert_int_equal(kv__table_bytes(1 << 28), (uint64_t)(1u << 29) * 4);
}

static void test_random_inserts_and_removals(void **state) {
    (void)state;
    set_up();
    bool in[N] = {false};
    uint32_t random = 12345;
    for (int round = 0; round < 20000; round++) {
        random = random * 1664525u + 1013904223u;
        int32_t i = (int32_t)((random >> 16) % N);
        if (in[i]) {
            kv__table_remove(&table, i);
        } else {
            kv__table_insert(&table, i);
        }
        in[i] = !in[i];
        for (int32_t k = 0; k < N; k++) {
            assert_int_equal(kv__table_find(&table, &names[k]), in[k] ? k : -1);
        }
    }
    kv__table_deinit(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_random_inserts_and_removals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
