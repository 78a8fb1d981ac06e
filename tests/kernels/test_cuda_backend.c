/* The CUDA backend's memory and transfers: zeroed and aligned, bound by a limit, larger than the
 * rings, in stream order. Where there is no device: one line that says why. */
/* ctest: gpu */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"

static di_backend *open_cuda(const di_cuda_options *options) {
    di_backend *backend = NULL;
    di_error error;
    di_status status = di_backend_create_cuda(DI_NUMERICS_RELEASE, options, &backend, &error);
    if (status == DI_ERR_UNSUPPORTED) skip();
    if (status != DI_OK) print_error("%s\n", error.message);
    assert_int_equal(status, DI_OK);
    return backend;
}

static uint8_t *some_bytes(uint64_t n, uint8_t seed) {
    uint8_t *bytes = malloc((size_t)n);
    assert_non_null(bytes);
    for (uint64_t i = 0; i < n; i++) bytes[i] = (uint8_t)(i * 7 + (i >> 8) + seed);
    return bytes;
}

static void assert_device(di_backend *b, di_ptr p, const uint8_t *want, uint64_t n) {
    di_error error;
    uint8_t *got = malloc((size_t)n);
    assert_non_null(got);
    b->download(b->stream, got, p, n);
    assert_int_equal(di_backend_sync(b, &error), DI_OK);
    assert_memory_equal(got, want, n);
    free(got);
}

static void test_no_device(void **state) {
    (void)state;
    di_backend *backend = (di_backend *)(uintptr_t)8;
    di_error error;
    const di_cuda_options options = {.device = 10000};
    assert_int_equal(di_backend_create_cuda(DI_NUMERICS_FLOAT, &options, &backend, &error),
                     DI_ERR_UNSUPPORTED);
    assert_null(backend);
    assert_non_null(strstr(error.message, "cuda backend: "));
    assert_null(strchr(error.message, '\n'));
}

static void test_alloc(void **state) {
    (void)state;
    di_backend *b = open_cuda(NULL);
    di_error error;
    di_ptr p[5];
    for (uint64_t i = 0; i < 5; i++) {
        uint64_t size = i < 4 ? 1 + i * 1000 : 3000001;
        uint8_t *zeros = calloc(1, (size_t)size);
        assert_int_equal(b->alloc(b, size, "test", &p[i], &error), DI_OK);
        assert_int_equal(p[i].address % 64, 0);
        assert_device(b, p[i], zeros, size);
        b->fill(b->stream, p[i], 0xEE, size);
        free(zeros);
    }
    b->free(b, p[2]);
    b->free(b, p[0]);
    b->free(b, DI_NONE);
    di_ptr none = {7};
    assert_int_equal(b->alloc(b, UINT64_C(1) << 50, "too much", &none, &error), DI_ERR_MEMORY);
    assert_int_equal(none.address, 0);
    assert_non_null(strstr(error.message, "too much"));
    b->destroy(b);
}

static void test_limit(void **state) {
    (void)state;
    const di_cuda_options options = {.memory = 10 << 20};
    di_backend *b = open_cuda(&options);
    di_error error;
    di_ptr one, two;
    assert_int_equal(b->alloc(b, 6 << 20, "one", &one, &error), DI_OK);
    assert_int_equal(b->alloc(b, 6 << 20, "two", &two, &error), DI_ERR_MEMORY);
    assert_non_null(strstr(error.message, "6291456 bytes of two"));
    b->free(b, one);
    assert_int_equal(b->alloc(b, 6 << 20, "two", &two, &error), DI_OK);
    b->destroy(b);
}

/* Sizes around those of the pieces and the rings. */
static void test_transfers(void **state) {
    (void)state;
    di_backend *b = open_cuda(NULL);
    static const uint64_t sizes[] = {1, 300, 4096, 2097151, 2097152, 2097153, 4194305, 37000001};
    di_error error;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        di_ptr one, two;
        uint8_t *bytes = some_bytes(sizes[i], (uint8_t)i);
        assert_int_equal(b->alloc(b, sizes[i], "one", &one, &error), DI_OK);
        assert_int_equal(b->alloc(b, sizes[i], "two", &two, &error), DI_OK);
        b->upload(b->stream, one, bytes, sizes[i]);
        memset(bytes, 0, sizes[i]); /* it may be reused at once */
        free(bytes);
        bytes = some_bytes(sizes[i], (uint8_t)i);
        b->copy(b->stream, two, one, sizes[i]);
        b->fill(b->stream, one, 0, sizes[i]);
        assert_device(b, two, bytes, sizes[i]);
        b->free(b, one);
        b->free(b, two);
        free(bytes);
    }
    b->destroy(b);
}

/* More small downloads than fit the list, and what each of them saw. */
static void test_order(void **state) {
    (void)state;
    enum { N = 3000 };
    di_backend *b = open_cuda(NULL);
    di_error error;
    di_ptr p;
    static int32_t got[N];
    assert_int_equal(b->alloc(b, sizeof(int32_t), "number", &p, &error), DI_OK);
    uint64_t mark = 0;
    for (int32_t i = 0; i < N; i++) {
        b->upload(b->stream, p, &i, sizeof i);
        b->download(b->stream, &got[i], p, sizeof got[i]);
        if (i == N / 2) mark = b->mark(b->stream);
    }
    assert_int_equal(b->wait(b->stream, mark, &error), DI_OK);
    for (int32_t i = 0; i <= N / 2; i++) assert_int_equal(got[i], i);
    assert_int_equal(di_backend_sync(b, &error), DI_OK);
    for (int32_t i = 0; i < N; i++) assert_int_equal(got[i], i);
    b->destroy(b);
}

static void test_stamps(void **state) {
    (void)state;
    di_backend *b = open_cuda(NULL);
    di_error error;
    di_ptr p;
    static double at[600]; /* more than are kept open */
    const uint64_t size = UINT64_C(64) << 20;
    assert_int_equal(b->alloc(b, size, "bytes", &p, &error), DI_OK);
    for (int i = 0; i < 600; i++) {
        b->stamp(b->stream, &at[i]);
        if (i % 100 == 0) b->fill(b->stream, p, i, size);
    }
    assert_int_equal(di_backend_sync(b, &error), DI_OK);
    for (int i = 1; i < 600; i++) assert_true(at[i] >= at[i - 1]);
    assert_true(at[1] - at[0] > 5e-6); /* 64 MiB at no more than 12 TB/s */
    assert_true(at[599] - at[0] < 10);
    b->destroy(b);
}

/* Copies, in slabs and alone; and host memory in place. */
static void test_bind(void **state) {
    (void)state;
    static const uint64_t sizes[] = {1, 255, 257, 40 << 20, 3 << 20};
    for (uint64_t from = 0; from < 2; from++) {
        const di_cuda_options options = {.host_from = from * (1 << 20)};
        di_backend *b = open_cuda(&options);
        uint8_t *bytes[5];
        di_ptr p[5];
        di_error error;
        for (size_t i = 0; i < 5; i++) {
            bytes[i] = some_bytes(sizes[i], (uint8_t)i);
            assert_int_equal(b->bind(b, bytes[i], sizes[i], "bound", &p[i], &error), DI_OK);
        }
        for (size_t i = 0; i < 5; i++) {
            assert_device(b, p[i], bytes[i], sizes[i]);
            b->discard(b->stream, bytes[i], sizes[i]);
        }
        b->destroy(b);
        for (size_t i = 0; i < 5; i++) free(bytes[i]);
    }
}

/* Workspaces only grow; one that cannot be had leaves the old one. */
static void test_prepare(void **state) {
    (void)state;
    const di_limits small = {.max_rows = 4, .width = 64, .max_k = 256, .vocab = 100};
    di_limits large = small, absurd = small;
    large.max_rows = 64;
    absurd.max_rows = absurd.max_k = INT32_MAX;
    di_backend *b = open_cuda(NULL);
    di_error error;
    assert_int_equal(b->prepare(b, &small, &error), DI_OK);
    assert_int_equal(b->prepare(b, &absurd, &error), DI_ERR_MEMORY);
    assert_non_null(strstr(error.message, "workspace"));
    assert_int_equal(b->prepare(b, &large, &error), DI_OK);
    assert_int_equal(b->prepare(b, &small, &error), DI_OK);
    assert_true(b->workspace_bytes(b, &large) > b->workspace_bytes(b, &small));
    b->destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_device), cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_limit),     cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_order),     cmocka_unit_test(test_stamps),
        cmocka_unit_test(test_bind),      cmocka_unit_test(test_prepare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
