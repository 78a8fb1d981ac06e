/* The late backend of tests/support: gives the twins' bits, and its handles cannot be read. */
/* ctest: threads */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/late_backend.h"

enum { ROWS = 5, WIDTH = 64, VOCAB = 40, HC = 2, SLOTS = 1 };

static void must(di_status status, const di_error *error) {
    if (status != DI_OK) fail_msg("%s", error->message);
}

static di_ptr take(di_backend *b, uint64_t size) {
    di_ptr p;
    di_error error;
    must(b->alloc(b, size, "test", &p, &error), &error);
    return p;
}

static di_ptr put(di_backend *b, const void *host, uint64_t size) {
    di_ptr p = take(b, size);
    b->upload(b->stream, p, host, size);
    return p;
}

static void prepare(di_backend *b) {
    di_error error;
    di_limits limits = {.max_rows = ROWS,
                        .max_out = ROWS,
                        .width = WIDTH,
                        .hc = HC,
                        .vocab = VOCAB,
                        .n_heads = 2,
                        .head_dim = 32,
                        .max_k = HC * WIDTH};
    must(b->prepare(b, &limits, &error), &error);
}

static di_batch make_batch(di_backend *b, int32_t n_rows) {
    di_row rows[ROWS];
    int32_t zero[ROWS] = {0}, valid = n_rows;
    for (int32_t t = 0; t < n_rows; t++) rows[t] = (di_row){7 * t % VOCAB, 0, t};
    di_batch batch = {n_rows,
                      SLOTS,
                      put(b, rows, sizeof rows),
                      put(b, zero, 4),
                      put(b, &valid, 4),
                      put(b, zero, 4),
                      put(b, zero, sizeof zero),
                      put(b, zero, sizeof zero),
                      put(b, zero, sizeof zero),
                      DI_NONE};
    memset(rows, 0xEE, sizeof rows); /* uploads are copies */
    return batch;
}

/* Rows -> embedding -> norm -> product, `rounds` times over; out [ROWS][WIDTH]. */
static void run_chain(di_backend *b, int rounds, double *out) {
    di_error error;
    uint16_t weights[VOCAB * WIDTH], norm[WIDTH], square[WIDTH * WIDTH];
    for (int i = 0; i < VOCAB * WIDTH; i++) weights[i] = (uint16_t)(0x3F00 + i * 37 % 200);
    for (int i = 0; i < WIDTH; i++) norm[i] = 0x3F80;
    for (int i = 0; i < WIDTH * WIDTH; i++) square[i] = (uint16_t)(0x3C00 + i * 91 % 300);
    di_ptr bound;
    must(b->bind(b, weights, sizeof weights, "embed", &bound, &error), &error);
    di_ptr streams = take(b, 8 * ROWS * HC * WIDTH), pre = take(b, 8 * ROWS * HC);
    di_ptr u = take(b, 8 * ROWS * WIDTH), y = take(b, 8 * ROWS * WIDTH);
    di_matrix w = {DI_BF16, WIDTH, WIDTH, put(b, square, sizeof square), DI_NONE};
    di_vector n = {DI_BF16, WIDTH, put(b, norm, sizeof norm)};
    di_batch batch = make_batch(b, ROWS);
    b->ops->step_begin(b->stream, &(di_step_begin_args){batch});
    di_embed_args embed = {batch, {DI_BF16, VOCAB, WIDTH, bound, DI_NONE}, HC, streams, pre};
    b->ops->embed(b->stream, &embed);
    di_sublayer_in_args in = {ROWS, HC, WIDTH, 1e-6, streams, pre, n, DI_NONE, u};
    b->ops->sublayer_in(b->stream, &in);
    for (int i = 0; i < rounds; i++) {
        di_linear_args linear = {ROWS, 1, false, false, u, w, y};
        b->ops->linear(b->stream, &linear);
        memset(&linear, 0xEE, sizeof linear); /* argument structs are copies */
        di_rms_norm_args back = {ROWS, WIDTH, 1e-6, y, n, u};
        b->ops->rms_norm(b->stream, &back);
    }
    b->download(b->stream, out, u, 8 * ROWS * WIDTH);
    must(di_backend_sync(b, &error), &error);
}

static void test_same_bits_as_ref(void **state) {
    (void)state;
    for (int numerics = DI_NUMERICS_FLOAT; numerics <= DI_NUMERICS_RELEASE; numerics++) {
        for (int rounds = 1; rounds <= 101; rounds += 50) { /* beyond the queue's length */
            static double want[ROWS * WIDTH], got[ROWS * WIDTH];
            di_backend *ref, *late;
            di_error error;
            must(di_backend_create_ref((di_numerics)numerics, &ref, &error), &error);
            must(late_backend_create((di_numerics)numerics, &late, &error), &error);
            prepare(ref);
            prepare(late);
            run_chain(ref, rounds, want);
            run_chain(late, rounds, got);
            assert_true(want[1] != 0 && want[1] == want[1]);
            assert_memory_equal(want, got, sizeof want);
            ref->destroy(ref);
            late->destroy(late);
        }
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Stamps come in the order of the stream, and no sooner than it. */
static void test_stamps(void **state) {
    (void)state;
    static double out[ROWS * WIDTH];
    di_backend *late;
    di_error error;
    double begin = now(), first, second;
    must(late_backend_create(DI_NUMERICS_FLOAT, &late, &error), &error);
    prepare(late);
    late->stamp(late->stream, &first);
    run_chain(late, 50, out); /* waits */
    double middle = now();
    late->stamp(late->stream, &second);
    must(di_backend_sync(late, &error), &error);
    assert_true(begin <= first && first <= middle && middle <= second && second <= now());
    late->destroy(late);
}

static void test_reading_a_handle_faults(void **state) {
    (void)state;
    di_backend *late;
    di_error error;
    must(late_backend_create(DI_NUMERICS_FLOAT, &late, &error), &error);
    di_ptr p = put(late, "secret", 6);
    must(di_backend_sync(late, &error), &error);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        volatile const char *address = (const char *)(uintptr_t)p.address;
        _exit(address[0] == 's' ? 1 : 2);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    late->destroy(late);
}

static void test_transfers_and_memory(void **state) {
    (void)state;
    di_backend *late;
    di_error error;
    char host[8] = "before!";
    must(late_backend_create(DI_NUMERICS_FLOAT, &late, &error), &error);
    di_ptr a = put(late, "12345678", 8), b = take(late, 8);
    late->copy(late->stream, b, a, 8);
    late->fill(late->stream, di_ptr_at(b, 4), 'x', 2);
    late->download(late->stream, host, b, 8);
    must(di_backend_sync(late, &error), &error);
    assert_memory_equal(host, "1234xx78", 8);
    late->free(late, a);
    late->free(late, DI_NONE);
    assert_int_equal(late->alloc(late, UINT64_MAX, "too much", &a, &error), DI_ERR_MEMORY);
    late->destroy(late);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_as_ref),
        cmocka_unit_test(test_stamps),
        cmocka_unit_test(test_reading_a_handle_faults),
        cmocka_unit_test(test_transfers_and_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
