/* The memory tier: what is put is got, damage is a miss, the budget holds, and nothing completes
 * before poll. Includes the source to reach stored payloads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv_tier_ram.c"

enum { PAGE = 100 };

static di_error error;

static di_kv_name name_of(int i) {
    di_kv_name name = {{0}};
    memcpy(name.bytes, &i, sizeof i);
    return name;
}

/* A tier for exactly n pages. */
static di_kv_tier *make(int n) {
    di_kv_tier *tier;
    assert_int_equal(di_kv_tier_ram_create(PAGE, bytes_for(128, n), &tier, &error), DI_OK);
    return tier;
}

static di_kv_completion finish(di_kv_tier *tier, uint64_t tag, di_kv_tier_op op) {
    di_kv_completion done[2];
    assert_int_equal(tier->poll(tier, done, 2), 1);
    assert_int_equal(done[0].tag, tag);
    assert_int_equal(done[0].op, op);
    return done[0];
}

static void put(di_kv_tier *tier, int i) {
    uint8_t payload[PAGE];
    memset(payload, i, PAGE);
    di_kv_name name = name_of(i);
    assert_true(tier->put(tier, &name, payload, 7));
    assert_int_equal(finish(tier, 7, DI_KV_PUT).result, DI_KV_DONE);
}

static bool got(di_kv_tier *tier, int i) {
    uint8_t payload[PAGE + 1], want[PAGE];
    memset(payload, 0xaa, sizeof payload);
    memset(want, i, PAGE);
    di_kv_name name = name_of(i);
    assert_true(tier->get(tier, &name, payload, 8));
    di_kv_completion done = finish(tier, 8, DI_KV_GET);
    assert_int_equal(payload[PAGE], 0xaa);
    assert_int_equal(done.n_pages, done.result == DI_KV_DONE ? 1 : 0);
    if (done.result == DI_KV_DONE) assert_memory_equal(payload, want, PAGE);
    if (done.result != DI_KV_DONE) assert_int_equal(done.result, DI_KV_MISS);
    return done.result == DI_KV_DONE;
}

static void expect_stats(di_kv_tier *tier, di_kv_tier_stats want) {
    di_kv_tier_stats is = tier->stats(tier);
    want.bytes = is.bytes, want.max_bytes = is.max_bytes;
    assert_memory_equal(&is, &want, sizeof is);
    assert_true(is.bytes <= is.max_bytes);
}

static void test_put_get(void **state) {
    (void)state;
    di_kv_tier *tier = make(3);
    assert_string_equal(tier->kind, "ram");
    assert_int_equal(tier->page_bytes, PAGE);
    assert_false(got(tier, 1));
    put(tier, 1);
    put(tier, 2);
    put(tier, 2);
    assert_true(got(tier, 1));
    assert_true(got(tier, 2));
    assert_false(got(tier, 3));
    expect_stats(tier, (di_kv_tier_stats){.n_pages = 2, .hits = 2, .misses = 2, .stored = 2});
    tier->destroy(tier);
}

static void test_least_recently_used_goes(void **state) {
    (void)state;
    di_kv_tier *tier = make(3);
    for (int i = 1; i <= 3; i++) put(tier, i);
    assert_true(got(tier, 1)); /* now 2 is the oldest */
    put(tier, 4);
    assert_false(got(tier, 2));
    put(tier, 3); /* there already: used, so 1 is the oldest */
    put(tier, 5);
    assert_false(got(tier, 1));
    for (int i = 3; i <= 5; i++) assert_true(got(tier, i));
    expect_stats(tier, (di_kv_tier_stats){.n_pages = 3,
                                          .hits = 4,
                                          .misses = 2,
                                          .stored = 5,
                                          .evicted = 2});
    tier->destroy(tier);
}

static void test_prefetch_counts_and_keeps(void **state) {
    (void)state;
    di_kv_tier *tier = make(4);
    for (int i = 0; i < 4; i++) put(tier, i);
    di_kv_name names[4] = {name_of(0), name_of(1), name_of(9), name_of(3)};
    assert_true(tier->prefetch(tier, names, 4, 5));
    di_kv_completion done = finish(tier, 5, DI_KV_PREFETCH);
    assert_int_equal(done.result, DI_KV_DONE);
    assert_int_equal(done.n_pages, 2);
    put(tier, 5); /* over 2 */
    put(tier, 6); /* over 3 */
    put(tier, 7); /* over 1, the end of the chain that was asked for */
    assert_true(got(tier, 0));
    assert_false(got(tier, 1));
    assert_true(tier->prefetch(tier, names + 1, 3, 6));
    assert_int_equal(finish(tier, 6, DI_KV_PREFETCH).n_pages, 0);
    tier->destroy(tier);
}

static void test_damage_is_a_miss(void **state) {
    (void)state;
    for (int at = 0; at < PAGE; at += 33) {
        di_kv_tier *tier = make(2);
        put(tier, 1);
        put(tier, 2);
        ((ram_tier *)tier)->payloads[at] ^= 0x10; /* the first slot, page 1 */
        assert_false(got(tier, 1));
        assert_true(got(tier, 2));
        expect_stats(tier, (di_kv_tier_stats){.n_pages = 1,
                                              .hits = 1,
                                              .misses = 1,
                                              .damaged = 1,
                                              .stored = 2});
        put(tier, 1); /* its slot is used again: nothing is evicted */
        assert_true(got(tier, 1));
        assert_true(got(tier, 2));
        assert_int_equal(tier->stats(tier).evicted, 0);
        tier->destroy(tier);
    }
}

static void count_call(void *user) { ++*(int *)user; }

/* Completions wait for poll, in a queue that is bounded, and wake whoever sleeps. */
static void test_queue(void **state) {
    (void)state;
    di_kv_tier *tier = make(1);
    int calls = 0;
    tier->notify = count_call;
    tier->notify_user = &calls;
    uint8_t payload[PAGE] = {0};
    di_kv_name name = name_of(1);
    for (uint64_t i = 0; i < MAX_UNDER_WAY; i++) {
        assert_true(tier->put(tier, &name, payload, i));
    }
    assert_int_equal(calls, MAX_UNDER_WAY);
    assert_false(tier->put(tier, &name, payload, 0));
    assert_false(tier->get(tier, &name, payload, 0));
    assert_false(tier->prefetch(tier, &name, 1, 0));
    di_kv_completion done[100];
    uint64_t next = 0;
    assert_int_equal(tier->poll(tier, done, 1), 1);
    assert_int_equal(done[0].tag, next++);
    assert_true(tier->get(tier, &name, payload, MAX_UNDER_WAY)); /* wraps */
    for (int32_t n; (n = tier->poll(tier, done, 100)) > 0;) {
        for (int32_t i = 0; i < n; i++) assert_int_equal(done[i].tag, next++);
    }
    assert_int_equal(next, MAX_UNDER_WAY + 1);
    tier->destroy(tier);
}

static void test_budget(void **state) {
    (void)state;
    di_kv_tier *tier;
    uint64_t one = bytes_for(128, 1);
    assert_int_equal(di_kv_tier_ram_create(PAGE, one - 1, &tier, &error), DI_ERR_USAGE);
    assert_non_null(strstr(error.message, "do not hold one page"));
    assert_null(tier);
    assert_int_equal(di_kv_tier_ram_create(0, 1 << 20, &tier, &error), DI_ERR_USAGE);
    assert_int_equal(di_kv_tier_ram_create(UINT64_MAX, UINT64_MAX, &tier, &error), DI_ERR_USAGE);
    for (int n = 1; n < 40; n++) {
        assert_int_equal(entries_for(128, bytes_for(128, n)), n);
        assert_int_equal(entries_for(128, bytes_for(128, n) - 1), n - 1);
    }
    assert_int_equal(entries_for(64, UINT64_MAX), MAX_ENTRIES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_get),
        cmocka_unit_test(test_least_recently_used_goes),
        cmocka_unit_test(test_prefetch_counts_and_keeps),
        cmocka_unit_test(test_damage_is_a_miss),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
