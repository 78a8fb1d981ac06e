/* Out of memory: every allocation of every function fails once, in turn; each time the call says
 * so, leaves nothing behind, and works when there is memory again. Includes the sources so that
 * their malloc can be replaced. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static int until_failure; /* allocations that still succeed; -1: all do */
static int n_alive;

static void *counted(void *memory) {
    n_alive += memory != NULL;
    return memory;
}

static bool fails(void) { return until_failure >= 0 && until_failure-- == 0; }

static void *test_malloc_or_not(size_t size) { return fails() ? NULL : counted(malloc(size)); }

static void *test_calloc_or_not(size_t n, size_t size) {
    return fails() ? NULL : counted(calloc(n, size));
}

static void *test_aligned_or_not(size_t align, size_t size) {
    return fails() ? NULL : counted(aligned_alloc(align, size));
}

static void counted_free(void *memory) {
    n_alive -= memory != NULL;
    free(memory);
}

#define malloc test_malloc_or_not
#define calloc test_calloc_or_not
#define aligned_alloc test_aligned_or_not
#define free counted_free
#include "kv/kv_check.c"
#include "kv/kv_pool.c"
#include "kv/kv_sequence.c"
#include "kv/kv_table.c"
#include "kv/kv_tier_ram.c"
#undef malloc
#undef calloc
#undef aligned_alloc
#undef free

static di_error error;

/* Runs `call` with the first, second, ... allocation failing until none does; how many failed. */
static int fail_each(di_status (*call)(void)) {
    for (int n = 0;; n++) {
        until_failure = n;
        di_status status = call();
        bool failed = until_failure < 0;
        until_failure = -1;
        if (!failed) {
            assert_int_equal(status, DI_OK);
            return n;
        }
        assert_int_equal(status, DI_ERR_MEMORY);
        assert_int_equal(n_alive, 0);
        assert_int_equal(error.status, DI_ERR_MEMORY);
    }
}

static di_kv *kv;
static di_kv_sequence sequence;
static di_kv_tier *tier;

static di_status create_pool(void) { return di_kv_create(100, true, &kv, &error); }
static di_status init_sequence(void) { return di_kv_sequence_init(&sequence, 100, &error); }
static di_status create_tier(void) { return di_kv_tier_ram_create(1000, 1 << 20, &tier, &error); }

static void test_every_allocation_fails_once(void **state) {
    (void)state;
    assert_int_equal(fail_each(create_pool), 6);
    di_kv_destroy(kv);
    assert_int_equal(n_alive, 0);
    assert_int_equal(fail_each(init_sequence), 1);
    di_kv_sequence_deinit(&sequence);
    assert_int_equal(n_alive, 0);
    assert_int_equal(fail_each(create_tier), 7);
    tier->destroy(tier);
    assert_int_equal(n_alive, 0);
}

static void test_check_without_memory(void **state) {
    (void)state;
    assert_int_equal(create_pool(), DI_OK);
    int alive = n_alive;
    for (int n = 0; n < 2; n++) {
        until_failure = n;
        assert_int_equal(di_kv_check(kv, NULL, 0, &error), DI_ERR_MEMORY);
        assert_int_equal(n_alive, alive);
    }
    until_failure = -1;
    assert_int_equal(di_kv_check(kv, NULL, 0, &error), DI_OK);
    di_kv_destroy(kv);
}

/* A sequence's whole life takes nothing: what the header promises of a step. */
static void test_nothing_is_allocated_later(void **state) {
    (void)state;
    assert_int_equal(create_pool(), DI_OK);
    assert_int_equal(init_sequence(), DI_OK);
    assert_int_equal(create_tier(), DI_OK);
    until_failure = 0; /* the next one would fail */
    int32_t ids[200] = {0};
    di_kv_name names[3];
    di_kv_prompt prompt = {.names = names, .n_pages = 3};
    di_kv_name_chain(&prompt.root, ids, NULL, 3, names);
    assert_true(di_kv_admit(kv, &sequence, &prompt, 3, 4));
    assert_true(di_kv_extend(kv, &sequence, 200));
    while (di_kv_settle(kv, &sequence, ids, NULL, 200)) {
    }
    uint8_t page[1000] = {0};
    di_kv_completion done;
    assert_true(tier->put(tier, &sequence.tail, page, 1));
    assert_true(tier->get(tier, &sequence.tail, page, 2));
    assert_int_equal(tier->poll(tier, &done, 1), 1);
    di_kv_release(kv, &sequence);
    assert_true(di_kv_admit(kv, &sequence, &prompt, 3, 4));
    assert_int_equal(sequence.n_pages, 3);
    di_kv_release(kv, &sequence);
    assert_int_equal(until_failure, 0);
    until_failure = -1;
    tier->destroy(tier);
    di_kv_sequence_deinit(&sequence);
    di_kv_destroy(kv);
    assert_int_equal(n_alive, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation_fails_once),
        cmocka_unit_test(test_check_without_memory),
        cmocka_unit_test(test_nothing_is_allocated_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
