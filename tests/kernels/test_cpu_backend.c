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
    assert_int_equal(b->prepare(b, &limits, &error), DI_OK); /* replaces the first */
    limits.max_entries = INT64_MAX / 64;
    assert_int_equal(b->prepare(b, &limits, &error), DI_ERR_MEMORY);
    b->destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_mapped_weights),
        cmocka_unit_test(test_prepare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
