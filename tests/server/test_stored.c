/* Responses that are kept: chains, owners, the bound, and what goes first. */
/* ctest: threads */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/recent.h"

static atomic_int n_steps; /* searches and moves in the store */

static di_recent_entry *count_find(const di_recent *set, const char *key, size_t size) {
    n_steps++;
    return di_recent_find(set, key, size);
}

static void count_use(di_recent *set, di_recent_entry *entry) {
    n_steps++;
    di_recent_use(set, entry);
}

#define di_recent_find count_find
#define di_recent_use count_use
#include "server/stored.c"

static void put(di_stored *stored, const char *id, const char *owner, const char *previous,
                const char *given, const char *answer) {
    di_buffer texts[3] = {DI_BUFFER_EMPTY, DI_BUFFER_EMPTY, DI_BUFFER_EMPTY};
    di_buffer_puts(&texts[0], given);
    di_buffer_puts(&texts[1], answer);
    di_buffer_printf(&texts[2], "{\"id\":\"%s\"}", id);
    di_stored_put(stored, &(di_stored_response){.id = id,
                                                .owner = owner,
                                                .previous = previous,
                                                .given = &texts[0],
                                                .answer = &texts[1],
                                                .body = &texts[2]});
    for (int i = 0; i < 3; i++) di_buffer_free(&texts[i]);
}

/* want NULL: it is not there. */
static void expect_items(di_stored *stored, const char *id, const char *owner, const char *want) {
    di_buffer out = DI_BUFFER_EMPTY;
    di_error error;
    di_status status = di_stored_items(stored, id, owner, 1000000, &out, &error);
    assert_int_equal(status, want ? DI_OK : DI_ERR_INVALID);
    if (want) assert_string_equal(out.data, want);
    di_buffer_free(&out);
}

static bool there(di_stored *stored, const char *id) {
    di_buffer out = DI_BUFFER_EMPTY;
    bool found = di_stored_body(stored, id, "", &out);
    di_buffer_free(&out);
    return found;
}

static void chains(void **state) {
    (void)state;
    di_stored *stored = di_stored_create(1 << 20);
    di_buffer out = DI_BUFFER_EMPTY;
    di_error error;
    put(stored, "a", "", "", "1", "2,3");
    put(stored, "b", "", "a", "4", "5");
    put(stored, "c", "", "a", "6", "");
    put(stored, "d", "", "b", "", "7");
    expect_items(stored, "a", "", "1,2,3");
    expect_items(stored, "d", "", "1,2,3,4,5,7");
    expect_items(stored, "c", "", "1,2,3,6");
    expect_items(stored, "e", "", NULL);
    expect_items(stored, "", "", NULL);
    expect_items(NULL, "a", "", NULL);
    assert_int_equal(di_stored_items(stored, "d", "", 11, &out, &error), DI_ERR_UNSUPPORTED);
    assert_int_equal(di_stored_items(stored, "d", "", 12, &out, &error), DI_OK);
    di_buffer_clear(&out);
    assert_true(di_stored_body(stored, "c", "", &out));
    assert_string_equal(out.data, "{\"id\":\"c\"}");
    /* Without its beginning it is none. */
    assert_true(di_stored_remove(stored, "a", ""));
    assert_false(di_stored_remove(stored, "a", ""));
    expect_items(stored, "d", "", NULL);
    di_buffer_free(&out);
    di_stored_destroy(stored);
}

static void owners(void **state) {
    (void)state;
    di_stored *stored = di_stored_create(1 << 20);
    di_buffer out = DI_BUFFER_EMPTY;
    put(stored, "a", "alice", "", "1", "2");
    put(stored, "b", "bob", "a", "3", "4");
    expect_items(stored, "a", "alice", "1,2");
    expect_items(stored, "a", "bob", NULL);
    expect_items(stored, "a", "", NULL);
    expect_items(stored, "b", "bob", NULL); /* it went on from what is not his */
    assert_false(di_stored_body(stored, "a", "bob", &out));
    assert_false(di_stored_remove(stored, "a", "bob"));
    assert_true(di_stored_body(stored, "a", "alice", &out));
    di_buffer_free(&out);
    di_stored_destroy(stored);
}

/* Items are found by their ids, in answers alone: what a client wrote is nobody's to refer to. */
static void items(void **state) {
    (void)state;
    static const char answer[] =
        "{\"id\":\"rs_0123456789abcdef0123_0\",\"a\":\"}\\\"{\",\"b\":[{}]},"
        "{\"id\":\"fc_0123456789abcdef0123_0\",\"a\":1}";
    di_stored *stored = di_stored_create(1 << 20);
    di_buffer out = DI_BUFFER_EMPTY;
    put(stored, "resp_0123456789abcdef0123456789abcdef", "alice", "",
        "{\"id\":\"x_0123456789abcdef0123_0\"}", answer);
    assert_true(di_stored_find(stored, "fc_0123456789abcdef0123_0", "alice", &out));
    assert_string_equal(out.data, "{\"id\":\"fc_0123456789abcdef0123_0\",\"a\":1}");
    di_buffer_clear(&out);
    assert_true(di_stored_find(stored, "rs_0123456789abcdef0123_0", "alice", &out));
    assert_string_equal(out.data,
                        "{\"id\":\"rs_0123456789abcdef0123_0\",\"a\":\"}\\\"{\",\"b\":[{}]}");
    static const char *const none[] = {"x_0123456789abcdef0123_0",
                                       "rs_0123456789abcdef0123_1",
                                       "rs_0123456789abcdef0123",
                                       "rs_1_0",
                                       "",
                                       "_",
                                       "rs"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_false(di_stored_find(stored, none[i], "alice", &out));
    }
    assert_false(di_stored_find(stored, "rs_0123456789abcdef0123_0", "bob", &out));
    assert_false(di_stored_find(NULL, "rs_0123456789abcdef0123_0", "alice", &out));
    di_buffer_free(&out);
    di_stored_destroy(stored);
}

enum { ROOM = 20 };

/* A store for some ROOM responses of a kilobyte. */
static void the_bound(void **state) {
    (void)state;
    char text[1001], id[16];
    di_stored *stored = di_stored_create((size_t)ROOM * 1400);
    memset(text, 'x', 1000);
    text[1000] = '\0';
    put(stored, "first", "", "", text, "");
    put(stored, "second", "", "first", text, "");
    put(stored, "idle", "", "", text, "");
    int n_there = 0;
    for (int i = 0; i < 100; i++) {
        snprintf(id, sizeof id, "n%d", i);
        put(stored, id, "", "", text, "");
        /* Who is asked for stays, and what it goes on from. */
        di_buffer out = DI_BUFFER_EMPTY;
        di_error error;
        assert_int_equal(di_stored_items(stored, "second", "", 1000000, &out, &error), DI_OK);
        di_buffer_free(&out);
    }
    assert_false(there(stored, "idle"));
    assert_true(there(stored, "n99"));
    for (int i = 0; i < 100; i++) {
        snprintf(id, sizeof id, "n%d", i);
        n_there += there(stored, id);
    }
    assert_in_range(n_there, ROOM / 3, ROOM * 1400 / 1000 - 2);
    /* Of a conversation that nobody asks for the end goes first. */
    for (int i = 0; i < 100; i++) {
        snprintf(id, sizeof id, "m%d", i);
        put(stored, id, "", "", text, "");
        assert_false(there(stored, "second") && !there(stored, "first"));
    }
    di_stored_destroy(stored);
}

/* What the loop does takes as many steps in a long conversation as in a short one. */
static void long_conversations(void **state) {
    (void)state;
    enum { LONG = 20000, MOST = 4 };
    char id[32], previous[32] = "";
    di_stored *stored = di_stored_create((size_t)64 << 20);
    for (int i = 0; i < LONG; i++) {
        n_steps = 0;
        snprintf(id, sizeof id, "resp_%d", i);
        put(stored, id, "", previous, "1", "2");
        assert_true(there(stored, id));
        memcpy(previous, id, sizeof id);
        assert_in_range(n_steps, 1, MOST);
    }
    di_buffer out = DI_BUFFER_EMPTY;
    di_error error;
    assert_int_equal(di_stored_items(stored, id, "", 1000000, &out, &error), DI_OK);
    assert_int_equal(out.size, 4 * LONG - 1);
    di_buffer_free(&out);
    di_stored_destroy(stored);
}

static void *read_on(void *user) {
    di_error error;
    for (int i = 0; i < 400; i++) {
        di_buffer out = DI_BUFFER_EMPTY;
        di_status status = di_stored_items(user, "a299", "", 1000000, &out, &error);
        if (status == DI_OK && (out.size != 1199 || strncmp(out.data, "1,2,1,2", 7) != 0)) abort();
        di_buffer_free(&out);
    }
    return NULL;
}

/* What is read meanwhile may be forgotten, or go for others. */
static void readers_meanwhile(void **state) {
    (void)state;
    char id[32], previous[32];
    di_stored *stored = di_stored_create(300 * 500);
    pthread_t threads[2];
    for (int t = 0; t < 2; t++) {
        assert_int_equal(pthread_create(&threads[t], NULL, read_on, stored), 0);
    }
    for (int round = 0; round < 30; round++) {
        previous[0] = '\0';
        for (int i = 0; i < 300; i++) {
            snprintf(id, sizeof id, "a%d", i);
            put(stored, id, "", previous, "1", "2");
            memcpy(previous, id, sizeof id);
        }
        for (int i = 0; i < 300; i++) {
            snprintf(id, sizeof id, "b%d-%d", round, i);
            if (i % 2) put(stored, id, "", "", "1", "2");
            snprintf(id, sizeof id, "a%d", i);
            while (di_stored_remove(stored, id, "")) continue;
        }
    }
    for (int t = 0; t < 2; t++) pthread_join(threads[t], NULL);
    di_stored_destroy(stored);
}

static void what_does_not_fit(void **state) {
    (void)state;
    char text[2001];
    di_stored *stored = di_stored_create(1500), *none = di_stored_create(0);
    memset(text, 'x', 2000);
    text[2000] = '\0';
    put(stored, "small", "", "", "1", "2");
    put(stored, "large", "", "", text, "");
    assert_true(there(stored, "small"));
    assert_false(there(stored, "large"));
    put(none, "small", "", "", "1", "2");
    assert_false(there(none, "small"));
    di_stored_destroy(stored);
    di_stored_destroy(none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains),
        cmocka_unit_test(owners),
        cmocka_unit_test(items),
        cmocka_unit_test(the_bound),
        cmocka_unit_test(long_conversations),
        cmocka_unit_test(readers_meanwhile),
        cmocka_unit_test(what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
