/* The pool by itself: states, references, and which page goes first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv_internal.h"

static di_error error;

static di_kv *make(int32_t n, bool prefix_cache) {
    di_kv *kv;
    assert_int_equal(di_kv_create(n, prefix_cache, &kv, &error), DI_OK);
    return kv;
}

static void expect_counts(const di_kv *kv, int32_t n_free, int32_t n_private, int32_t n_named,
                          int32_t n_cached) {
    di_kv_stats s = di_kv_get_stats(kv);
    assert_int_equal(s.n_free, n_free);
    assert_int_equal(s.n_private, n_private);
    assert_int_equal(s.n_named, n_named);
    assert_int_equal(s.n_cached, n_cached);
    assert_int_equal(s.n_pages, n_free + n_private + n_named + n_cached);
}

static di_kv_name name_of(int i) {
    di_kv_name name = {{0}};
    memcpy(name.bytes, &i, sizeof i);
    return name;
}

/* Takes a page and names it i. */
static int32_t take_named(di_kv *kv, int i) {
    int32_t page = kv__page_take(kv);
    di_kv_name name = name_of(i);
    kv__page_name(kv, page, -1, &name);
    return page;
}

static int32_t find(const di_kv *kv, int i) {
    di_kv_name name = name_of(i);
    return kv__table_find(&kv->index, &name);
}

static void test_sizes(void **state) {
    (void)state;
    di_kv *kv = (di_kv *)&error;
    assert_int_equal(di_kv_create(0, true, &kv, &error), DI_ERR_USAGE);
    assert_null(kv);
    assert_int_equal(di_kv_create(-5, true, &kv, &error), DI_ERR_USAGE);
    assert_int_equal(di_kv_create((1 << 28) + 1, true, &kv, &error), DI_ERR_USAGE);
    assert_non_null(strstr(error.message, "268435457 pages"));
    di_kv_destroy(NULL);
    kv = make(1, true);
    expect_counts(kv, 1, 0, 0, 0);
    di_kv_destroy(kv);
}

static void test_states(void **state) {
    (void)state;
    di_kv *kv = make(3, true);
    assert_int_equal(kv__page_take(kv), 0);
    assert_int_equal(kv__page_take(kv), 1);
    expect_counts(kv, 1, 2, 0, 0);
    di_kv_name name = name_of(5);
    kv__page_name(kv, 1, -1, &name);
    expect_counts(kv, 1, 1, 1, 0);
    assert_int_equal(find(kv, 5), 1);
    kv__page_acquire(kv, 1);
    kv__page_release(kv, 1);
    expect_counts(kv, 1, 1, 1, 0);
    kv__page_release(kv, 1);
    expect_counts(kv, 1, 1, 0, 1);
    assert_int_equal(find(kv, 5), 1);
    kv__page_acquire(kv, 1);
    expect_counts(kv, 1, 1, 1, 0);
    kv__page_release(kv, 1);
    kv__page_release(kv, 0); /* private: free, and the next to be taken */
    expect_counts(kv, 2, 0, 0, 1);
    assert_int_equal(kv__page_take(kv), 0);
    assert_int_equal(kv__page_take(kv), 2);
    assert_int_equal(kv__page_take(kv), 1); /* the cached one, at last */
    assert_int_equal(find(kv, 5), -1);
    expect_counts(kv, 0, 3, 0, 0);
    assert_int_equal(di_kv_get_stats(kv).evicted, 1);
    di_kv_destroy(kv);
}

static void test_least_recently_used_goes(void **state) {
    (void)state;
    di_kv *kv = make(4, true);
    int32_t pages[4];
    for (int i = 0; i < 4; i++) pages[i] = take_named(kv, i);
    for (int i = 3; i >= 0; i--) kv__page_release(kv, pages[i]);
    kv__page_acquire(kv, pages[3]); /* used again: now the newest */
    kv__page_release(kv, pages[3]);
    const int order[4] = {2, 1, 0, 3};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(find(kv, order[i]), pages[order[i]]);
        assert_int_equal(kv__page_take(kv), pages[order[i]]);
        assert_int_equal(find(kv, order[i]), -1);
    }
    di_kv_destroy(kv);
}

static void test_forget(void **state) {
    (void)state;
    di_kv *kv = make(4, true);
    int32_t kept = take_named(kv, 1), cached = take_named(kv, 2);
    kv__page_release(kv, cached);
    di_kv_forget(kv);
    expect_counts(kv, 3, 0, 1, 0);
    assert_int_equal(find(kv, 1), kept);
    assert_int_equal(find(kv, 2), -1);
    assert_int_equal(di_kv_get_stats(kv).evicted, 0);
    di_kv_destroy(kv);
}

static void test_without_prefix_cache(void **state) {
    (void)state;
    di_kv *kv = make(2, false);
    int32_t page = take_named(kv, 1);
    assert_int_equal(find(kv, 1), -1);
    kv__page_acquire(kv, page); /* a fork may still share it */
    kv__page_release(kv, page);
    expect_counts(kv, 1, 0, 1, 0);
    kv__page_release(kv, page);
    expect_counts(kv, 2, 0, 0, 0);
    di_kv_destroy(kv);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_least_recently_used_goes),
        cmocka_unit_test(test_forget),
        cmocka_unit_test(test_without_prefix_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
