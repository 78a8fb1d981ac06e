/* A stream calls the host (backend.h, call) over memory that both see: each sees what the other wrote
 * before, and what is enqueued behind a call waits for it. */
/* ctest: threads gpu */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "support/device.h"

enum { N = 5000, ROUNDS = 40 };

typedef struct shared {
    uint32_t *host; /* [2 N]: in, out */
    int32_t calls;
} shared;

/* Slowly, so that a stream that did not wait would be ahead. */
static void double_and_add(void *user) {
    shared *s = user;
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    for (int32_t i = 0; i < N; i++) s->host[N + i] = 2 * s->host[i] + (uint32_t)i;
    s->calls++;
}

static void check(const char *name) {
    device d;
    di_error error;
    void *host;
    di_ptr both, own;
    static uint32_t got[N];
    if (!device_open(&d, name, DI_NUMERICS_FLOAT, 1)) skip();
    di_backend *b = d.backend;
    di_status status = b->alloc_shared(b, sizeof got * 2, "test", &host, &both, &error);
    if (status != DI_OK) fail_msg("%s", error.message);
    shared s = {.host = host};
    for (int32_t i = 0; i < 2 * N; i++) assert_int_equal(s.host[i], 0);
    assert_int_equal(b->alloc(b, sizeof got, "test", &own, &error), DI_OK);
    for (int32_t round = 0; round < ROUNDS; round++) {
        b->copy(b->stream, both, own, sizeof got);
        b->call(b->stream, double_and_add, &s);
        b->copy(b->stream, own, di_ptr_at(both, sizeof got), sizeof got);
    }
    b->download(b->stream, got, own, sizeof got);
    assert_int_equal(di_backend_sync(b, &error), DI_OK);
    assert_int_equal(s.calls, ROUNDS);
    for (int32_t i = 0; i < N; i++) { /* x = 2 x + i, modulo 2^32 */
        uint32_t want = 0;
        for (int32_t round = 0; round < ROUNDS; round++) want = 2 * want + (uint32_t)i;
        assert_int_equal(got[i], want);
    }
    b->free(b, own);
    b->free(b, both);
    device_close(&d);
}

static void test_ref(void **state) {
    (void)state;
    check("ref");
}

static void test_cpu(void **state) {
    (void)state;
    check("cpu");
}

static void test_queue(void **state) {
    (void)state;
    check("queue");
}

static void test_late(void **state) {
    (void)state;
    check("late");
}

static void test_cuda(void **state) {
    (void)state;
    check("cuda");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref),  cmocka_unit_test(test_cpu),  cmocka_unit_test(test_queue),
        cmocka_unit_test(test_late), cmocka_unit_test(test_cuda),
    };
    test_filter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
