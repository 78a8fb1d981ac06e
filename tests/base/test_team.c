/* The team: every member runs once a call, results are visible after it, sleeping and spinning. */
/* ctest: threads */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "base/team.h"

enum { MAX = 8 };

typedef struct work {
    int64_t calls[MAX]; /* plain memory: a race shows under the thread sanitizer */
    int64_t input;      /* written by the caller between runs */
    int64_t sum[MAX];
    int32_t n_seen[MAX];
} work;

static void add(void *user, int32_t member, int32_t n_members) {
    work *w = user;
    w->calls[member]++;
    w->sum[member] += w->input * (member + 1);
    w->n_seen[member] = n_members;
}

static void run_many(int32_t n, int32_t spin, int64_t runs, useconds_t pause_us) {
    di_team *team = NULL;
    di_error error;
    assert_int_equal(di_team_create(n, spin, &team, &error), DI_OK);
    assert_int_equal(di_team_size(team), n);
    work w;
    memset(&w, 0, sizeof w);
    int64_t total = 0;
    for (int64_t i = 1; i <= runs; i++) {
        w.input = i;
        total += i;
        di_team_run(team, add, &w);
        for (int32_t m = 0; m < n; m++) assert_int_equal(w.calls[m], i);
        if (pause_us) usleep(pause_us);
    }
    for (int32_t m = 0; m < MAX; m++) {
        assert_int_equal(w.calls[m], m < n ? runs : 0);
        assert_int_equal(w.sum[m], m < n ? total * (m + 1) : 0);
        assert_int_equal(w.n_seen[m], m < n ? n : 0);
    }
    di_team_destroy(team);
}

static void test_one_member(void **state) {
    (void)state;
    run_many(1, -1, 1000, 0);
}

static void test_spinning(void **state) {
    (void)state;
    run_many(2, 2000, 20000, 0);
}

/* More threads than cores, none spins: every run passes through the futex. */
static void test_sleeping(void **state) {
    (void)state;
    run_many(7, 0, 2000, 0);
    run_many(3, 0, 50, 300);
}

/* Spins that end just when work arrives: the change from spinning to sleeping. */
static void test_short_spin(void **state) {
    (void)state;
    for (int32_t spin = 0; spin < 20; spin += 3) run_many(3, spin, 1000, 0);
}

/* Pieces taken from a counter: each is done once, by whoever comes. */
typedef struct pieces {
    _Atomic int32_t next;
    int32_t n;
    int32_t done[256]; /* plain memory: see work */
    int64_t input;
    _Atomic int32_t visits[MAX];
} pieces;

static void take_pieces(void *user, int32_t member, int32_t n_members) {
    pieces *p = user;
    (void)n_members;
    p->visits[member]++;
    for (int32_t i; (i = p->next++) < p->n;) p->done[i] += (int32_t)p->input;
}

static void share_many(int32_t n, int32_t spin, int32_t runs) {
    di_team *team = NULL;
    di_error error;
    static pieces p;
    memset(&p, 0, sizeof p);
    assert_int_equal(di_team_create(n, spin, &team, &error), DI_OK);
    int32_t total = 0;
    for (int32_t i = 1; i <= runs; i++) {
        p.next = 0;
        p.n = i % 256;
        p.input = i;
        for (int32_t m = 0; m < MAX; m++) p.visits[m] = 0;
        di_team_share(team, take_pieces, &p);
        assert_int_equal(p.visits[0], 1);
        for (int32_t m = 1; m < MAX; m++) assert_true(p.visits[m] <= (m < n));
        total += p.n > 0 ? i : 0;
        assert_int_equal(p.done[0], total);
        if (i % 7 == 0) { /* both kinds of run on one team */
            work w;
            memset(&w, 0, sizeof w);
            di_team_run(team, add, &w);
            for (int32_t m = 0; m < n; m++) assert_int_equal(w.calls[m], 1);
        }
    }
    di_team_destroy(team);
}

static void test_share(void **state) {
    (void)state;
    share_many(1, 0, 600);
    share_many(2, 2000, 3000);
    share_many(3, 0, 2000);
    share_many(7, 5, 1000);
}

static void test_create_and_destroy(void **state) {
    (void)state;
    di_error error;
    for (int i = 0; i < 50; i++) {
        di_team *team = NULL;
        assert_int_equal(di_team_create(4, i % 2 ? 0 : -1, &team, &error), DI_OK);
        di_team_destroy(team);
    }
    di_team_destroy(NULL);
}

static void test_bad_arguments(void **state) {
    (void)state;
    di_error error;
    di_team *team = NULL;
    assert_int_equal(di_team_create(-1, 0, &team, &error), DI_ERR_USAGE);
    assert_null(team);
    assert_int_equal(di_team_create(1 << 20, 0, &team, &error), DI_ERR_USAGE);
    assert_null(team);
}

static void test_all_cores(void **state) {
    (void)state;
    di_error error;
    di_team *team = NULL;
    assert_true(di_cores_available() >= 1);
    assert_int_equal(di_team_create(0, -1, &team, &error), DI_OK);
    assert_true(di_team_size(team) >= 1 && di_team_size(team) <= di_cores_available());
    di_team_destroy(team);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_member),         cmocka_unit_test(test_spinning),
        cmocka_unit_test(test_sleeping),           cmocka_unit_test(test_short_spin),
        cmocka_unit_test(test_create_and_destroy), cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_all_cores),          cmocka_unit_test(test_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
