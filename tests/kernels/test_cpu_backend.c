/* The CPU backend's memory: zeroed and aligned, found by destroy, mapped weights used in place and
 * given back to the system; workspaces that follow from limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/backend.h"

static di_backend *open_cpu(di_numerics numerics) {
    di_backend *backend = NULL;
    di_error error;
    di_status status = di_backend_create_cpu(numerics, NULL, &backend, &error);
    if (status == DI_ERR_UNSUPPORTED) skip();
    assert_int_equal(status, DI_OK);
    return backend;
}

static void test_alloc(void **state) {
    (void)state;
    di_backend *b = open_cpu(DI_NUMERICS_FLOAT);
    di_error error;
    di_ptr p[5];
    for (uint64_t i = 0; i < 5; i++) {
        uint64_t size = i < 4 ? 1 + i * 1000 : 3000001; /* the last one is mapped */
        assert_int_equal(b->alloc(b, size, "test", &p[i], &error), DI_OK);
        assert_int_equal(p[i].address % 64, 0);
        const uint8_t *bytes = (const uint8_t *)(uintptr_t)p[i].address;
        for (uint64_t j = 0; j < size; j++) assert_int_equal(bytes[j], 0);
        b->fill(b->stream, p[i], 0xEE, size); /* all of it is ours: the sanitizer sees */
    }
    b->free(b, p[2]);
    b->free(b, p[0]);
    b->free(b, DI_NONE);
    di_ptr none = {7};
    assert_int_equal(b->alloc(b, UINT64_MAX, "too much", &none, &error), DI_ERR_MEMORY);
    assert_int_equal(none.address, 0);
    assert_non_null(strstr(error.message, "too much"));
    b->destroy(b); /* frees the other three: the leak checker sees */
}

static void test_transfers(void **state) {
    (void)state;
    di_backend *b = open_cpu(DI_NUMERICS_RELEASE);
    di_error error;
    di_ptr one, two;
    uint8_t in[300], out[300];
    for (int i = 0; i < 300; i++) in[i] = (uint8_t)(i * 7);
    assert_int_equal(b->alloc(b, 300, "one", &one, &error), DI_OK);
    assert_int_equal(b->alloc(b, 300, "two", &two, &error), DI_OK);
    b->upload(b->stream, one, in, 300);
    b->copy(b->stream, two, one, 300);
    b->fill(b->stream, di_ptr_at(two, 10), 5, 20);
    b->download(b->stream, out, two, 300);
    assert_int_equal(di_backend_sync(b, &error), DI_OK);
    for (int i = 0; i < 300; i++) assert_int_equal(out[i], i >= 10 && i < 30 ? 5 : in[i]);
    assert_int_equal(b->numerics, DI_NUMERICS_RELEASE);
    b->destroy(b);
}

static void test_stamp(void **state) {
    (void)state;
    di_backend *b = open_cpu(DI_NUMERICS_FLOAT);
    double stamps[2] = {-1, -1};
    struct timespec pause = {0, 2000000};
    b->stamp(b->stream, &stamps[0]);
    nanosleep(&pause, NULL);
    b->stamp(b->stream, &stamps[1]);
    assert_true(stamps[1] - stamps[0] >= 0.002 && stamps[1] - stamps[0] < 100);
    b->destroy(b);
}

/* discard gives whole pages back; what is read afterwards comes from the file again. */
static void test_mapped_weights(void **state) {
    (void)state;
    di_backend *b = open_cpu(DI_NUMERICS_FLOAT);
    di_error error;
    long page = sysconf(_SC_PAGESIZE);
    size_t size = (size_t)page * 4;
    FILE *file = tmpfile();
    assert_non_null(file);
    for (size_t i = 0; i < size; i++) fputc((int)(i % 251), file);
    assert_int_equal(fflush(file), 0);
    uint8_t *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fileno(file), 0);
    assert_true(map != MAP_FAILED);
    di_ptr bound;
    assert_int_equal(b->bind(b, map, size, "weights", &bound, &error), DI_OK);
    assert_int_equal(bound.address, (uint64_t)(uintptr_t)map); /* in place */
    uint8_t got[64];
    b->download(b->stream, got, di_ptr_at(bound, (uint64_t)page), 64);
    b->discard(b->stream, map + 100, size - 200); /* the middle pages alone are whole */
    b->discard(b->stream, map + 1, 10);           /* none */
    unsigned char resident[4];
    assert_int_equal(mincore(map, size, resident), 0);
    for (size_t i = 0; i < size; i++) assert_int_equal(map[i], i % 251);
    b->destroy(b); /* the map is not the backend's */
    assert_int_equal(map[5], 5);
    munmap(map, size);
    fclose(file);
}

static void test_prepare(void **state) {
    (void)state;
    di_backend *b = open_cpu(DI_NUMERICS_FLOAT);
    di_error error;
    di_limits limits = {.max_rows = 8,
                        .max_out = 2,
                        .width = 64,
                        .hc = 4,
                        .vocab = 100,
                        .n_heads = 4,
                        .head_dim = 32,
                        .max_k = 256,
                        .max_entries = 100};
    uint64_t small = b->workspace_bytes(b, &limits);
    assert_true(small > 0);
    assert_int_equal(b->prepare(b, &limits, &error), DI_OK);
    limits.max_rows = 256;
    assert_true(b->workspace_bytes(b, &limits) > small);
    assert_int_equal(b->prepare(b, &limits, &error), DI_OK); /* grows */
    limits.max_entries = INT64_MAX / 64;
    assert_int_equal(b->prepare(b, &limits, &error), DI_ERR_MEMORY);
    b->destroy(b);
}

/* Sums of `rows` rows of ones by a matrix of ones: uses all of the workspace that they need. */
static void run_rows(di_backend *b, int32_t rows) {
    enum { K = 100, N = 64 };
    di_error error;
    di_ptr x, w, out;
    float ones[K], got[N];
    uint16_t halves[K];
    for (int i = 0; i < K; i++) ones[i] = 1, halves[i] = 0x3F80;
    assert_int_equal(b->alloc(b, (uint64_t)rows * K * b->a_bytes, "x", &x, &error), DI_OK);
    assert_int_equal(b->alloc(b, N * K * 2, "w", &w, &error), DI_OK);
    assert_int_equal(b->alloc(b, (uint64_t)rows * N * b->a_bytes, "out", &out, &error), DI_OK);
    for (uint64_t n = 0; n < N; n++) b->upload(b->stream, di_ptr_at(w, n * K * 2), halves, K * 2);
    for (uint64_t t = 0; t < (uint64_t)rows; t++) {
        b->upload(b->stream, di_ptr_at(x, t * K * 4), ones, sizeof ones);
    }
    b->ops->linear(b->stream,
                   &(di_linear_args){rows, 1, false, false, x, {DI_BF16, N, K, w, DI_NONE}, out});
    b->download(b->stream, got, di_ptr_at(out, (uint64_t)(rows - 1) * N * 4), sizeof got);
    assert_int_equal(di_backend_sync(b, &error), DI_OK);
    for (int n = 0; n < N; n++) assert_true(got[n] == K);
    b->free(b, x);
    b->free(b, w);
    b->free(b, out);
}

/* A second context with other limits leaves the first one's operations what they need, also when it
 * gets nothing. */
static void test_prepare_grows(void **state) {
    (void)state;
    di_backend *b = open_cpu(DI_NUMERICS_FLOAT);
    di_error error;
    di_limits wide = {.max_rows = 500,
                      .max_out = 2,
                      .width = 64,
                      .hc = 1,
                      .vocab = 10,
                      .n_heads = 1,
                      .head_dim = 32,
                      .max_k = 128,
                      .max_entries = 10};
    di_limits deep = wide;
    deep.max_rows = 1;
    deep.max_entries = 1000000;
    assert_int_equal(b->prepare(b, &wide, &error), DI_OK);
    assert_int_equal(b->prepare(b, &deep, &error), DI_OK);
    run_rows(b, 500);
    deep.max_entries = INT64_MAX / 64;
    assert_int_equal(b->prepare(b, &deep, &error), DI_ERR_MEMORY);
    run_rows(b, 500);
    b->destroy(b);
}

/* Every member by itself, so that none is left out of the join. */
static void test_join(void **state) {
    (void)state;
    enum {
        MEMBERS = sizeof(di_limits) / sizeof(int32_t), /* as words */
        GAP = offsetof(di_limits, block_size) / sizeof(int32_t) + 1,
        END = offsetof(di_limits, max_k) / sizeof(int32_t) + 1
    };
    for (int i = 0; i < END; i++) {
        int32_t words[MEMBERS] = {0}, got[MEMBERS];
        di_limits none = {0}, one;
        size_t at = (size_t)i * sizeof(int32_t);
        if (i == GAP && at < offsetof(di_limits, max_entries)) continue;
        words[i] = 7;
        memcpy(&one, words, sizeof one);
        for (int swap = 0; swap < 2; swap++) {
            di_limits both = swap ? di_limits_join(&one, &none) : di_limits_join(&none, &one);
            memcpy(got, &both, sizeof both);
            if (got[i] != 7) fail_msg("word %d of di_limits is lost", i);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc),   cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_stamp),   cmocka_unit_test(test_mapped_weights),
        cmocka_unit_test(test_prepare), cmocka_unit_test(test_prepare_grows),
        cmocka_unit_test(test_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
