/* The CUDA backend's memory and transfers: zeroed and aligned, bound by a limit, larger than the
 * rings, in stream order; matrices packed as they are bound. Where there is no device: one line that says why. */
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

/* ---- Matrices for products, packed as kernels/cuda/mma_weights.cuh says ---- */

/* Where the bits of a code stand in a word of a run, the lowest first. */
static const uint8_t fp4_bits[8][4] = {{6, 7, 8, 15},    {3, 4, 5, 12},    {0, 1, 2, 9},
                                       {29, 30, 26, 11}, {22, 23, 24, 31}, {19, 20, 21, 28},
                                       {16, 17, 18, 25}, {13, 14, 10, 27}};
static const uint8_t fp8_bits[4][8] = {{4, 5, 6, 7, 8, 9, 10, 15},
                                       {20, 21, 22, 23, 24, 25, 26, 31},
                                       {0, 1, 2, 3, 12, 13, 14, 11},
                                       {16, 17, 18, 19, 28, 29, 30, 27}};

typedef struct format {
    di_dtype dtype;
    int64_t group, span; /* values; of a chunk */
    int64_t runs, chunk; /* bytes */
} format;
static const format formats[] = {{DI_FP4_PAIR, 128, 128, 1024, 1088},
                                 {DI_F8_E4M3, 64, 128, 2048, 2064},
                                 {DI_BF16, 32, 64, 2048, 2048}};

typedef struct packing {
    const format *f;
    const di_host_matrix *m;
    int64_t chunks, strips; /* of a group of rows */
    uint8_t *bytes;
    uint64_t size;
} packing;

static uint8_t *strip_chunk(const packing *p, int64_t strip, int64_t chunk) {
    return p->bytes + ((strip / 8 * p->chunks + chunk) * 8 + strip % 8) * p->f->chunk;
}

/* One code of a row of a strip. */
static void pack_code(const packing *p, int64_t strip, int64_t row, int64_t k, uint32_t code) {
    int64_t values = p->f->group / 4, each = values / 4; /* of a run, of a word */
    int64_t lane = 4 * (row % 8) + k % p->f->group / values, word = k % values / each,
            at = k % each;
    uint8_t *to = strip_chunk(p, strip, k / p->f->span) + k % p->f->span / p->f->group * 1024 +
                  row / 8 * 512 + lane * 16 + word * 4;
    uint32_t out;
    memcpy(&out, to, 4);
    for (uint32_t bit = 0; bit < 16; bit++) {
        uint32_t place = p->f->dtype == DI_FP4_PAIR  ? (bit < 4 ? fp4_bits[at][bit] : 0u)
                         : p->f->dtype == DI_F8_E4M3 ? (bit < 8 ? fp8_bits[at][bit] : 0u)
                                                     : (uint32_t)at * 16 + bit;
        out |= (code >> bit & 1) << place;
    }
    memcpy(to, &out, 4);
}

static uint32_t code_of(const di_host_matrix *m, int64_t n, int64_t k) {
    const uint8_t *data = m->data;
    int64_t at = n * m->k + k;
    if (m->dtype == DI_FP4_PAIR) return data[at / 2] >> (at % 2 * 4) & 15;
    if (m->dtype == DI_F8_E4M3) return data[at];
    return (uint32_t)data[2 * at] | (uint32_t)data[2 * at + 1] << 8;
}

/* 127 where there is none; `row` in a group of rows. */
static uint8_t scale_of(const packing *p, int64_t group, int64_t row, int64_t block) {
    const di_host_matrix *m = p->m;
    int64_t rows = m->n / m->groups, blocks = (m->k + 31) / 32, n = group * rows + row;
    if (row >= rows || block >= blocks) return 127;
    return ((const uint8_t *)m->scale)[(m->dtype == DI_F8_E4M3 ? n / 32 : n) * blocks + block];
}

static void pack_scales(const packing *p, int64_t group, int64_t strip, int64_t chunk) {
    uint8_t *to = strip_chunk(p, group * p->strips + strip, chunk) + p->f->runs;
    for (int64_t i = 0; i < 64 && p->f->dtype == DI_FP4_PAIR; i++) {
        int64_t row = strip * 16 + i / 32 * 8 + i % 32 / 4;
        to[i] = scale_of(p, group, row, 4 * chunk + i % 4);
    }
    for (int64_t i = 0; i < 8 && p->f->dtype == DI_F8_E4M3; i++)
        to[i] = scale_of(p, group, strip * 16 + i / 4 * 8, 4 * chunk + i % 4);
}

static packing pack(const format *f, const di_host_matrix *m) {
    int64_t rows = m->n / m->groups, strips = (rows + 127) / 128 * 8;
    int64_t chunks = (m->k + 127) / 128 * (128 / f->span);
    packing p = {f, m, chunks, strips, NULL, (uint64_t)(m->groups * strips * chunks * f->chunk)};
    p.bytes = calloc(1, (size_t)p.size);
    assert_non_null(p.bytes);
    for (int64_t n = 0; n < m->n; n++) {
        int64_t strip = n / rows * strips + n % rows / 16;
        for (int64_t k = 0; k < m->k; k++) pack_code(&p, strip, n % rows % 16, k, code_of(m, n, k));
    }
    for (int64_t group = 0; group < m->groups; group++)
        for (int64_t strip = 0; strip < strips; strip++)
            for (int64_t chunk = 0; chunk < chunks; chunk++) pack_scales(&p, group, strip, chunk);
    return p;
}

static void check_packed(di_backend *b, const format *f, int32_t n, int32_t k, int32_t groups) {
    di_host_matrix m = {f->dtype, n, k, groups, NULL, NULL};
    uint64_t scales = di_host_matrix_scale_bytes(&m);
    uint8_t *data = some_bytes(di_host_matrix_bytes(&m), (uint8_t)(n + k));
    uint8_t *scale = some_bytes(scales + 1, (uint8_t)(n - k));
    di_matrix out;
    di_error error;
    m.data = data, m.scale = scales > 0 ? scale : NULL;
    packing want = pack(f, &m);
    assert_int_equal(di_packed_bytes(b, &m), want.size);
    assert_int_equal(b->bind_matrix(b, &m, "packed", &out, &error), DI_OK);
    memset(data, 0, di_host_matrix_bytes(&m)); /* it is not needed any more */
    memset(scale, 0, scales + 1);
    assert_true(out.dtype == f->dtype && out.n == n && out.k == k && out.scale.address == 0);
    assert_device(b, out.data, want.bytes, want.size);
    free(want.bytes);
    free(data);
    free(scale);
}

/* Rows and K that are no whole blocks and chunks, rows of odd lengths, groups that begin inside 32
 * rows of a scale, and more than the staging holds. */
static void test_packed(void **state) {
    (void)state;
    static const int32_t rows[] = {1, 24, 40}, lengths[] = {32, 96, 160, 5120};
    di_backend *b = open_cuda(NULL);
    for (size_t f = 0; f < 3; f++) {
        for (size_t i = 0; i < 3; i++)
            for (size_t j = 0; j < 4; j++) check_packed(b, &formats[f], rows[i], lengths[j], 1);
        check_packed(b, &formats[f], 16, 96, 2);
        check_packed(b, &formats[f], 80, 160, 2);
        check_packed(b, &formats[f], 3 * 56, 256, 3);
        if (formats[f].dtype != DI_FP4_PAIR) check_packed(b, &formats[f], 37, 77, 1);
    }
    check_packed(b, &formats[0], 3400, 5120, 1); /* in bands */
    check_packed(b, &formats[1], 2 * 1720, 5120, 2);
    check_packed(b, &formats[2], 2 * 840, 5120, 2);
    b->destroy(b);
}

static void test_not_packed(void **state) {
    (void)state;
    di_error error;
    di_matrix out;
    di_backend *b = open_cuda(NULL);
    uint8_t *bytes = some_bytes(24 * 64 * 4, 3), scale[2] = {1, 2};
    di_host_matrix m = {DI_F8_E4M3, 24, 64, 2, bytes, scale};
    assert_int_equal(b->bind_matrix(b, &m, "groups of 12", &out, &error), DI_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "groups of 12 has 24 rows"));
    m = (di_host_matrix){DI_F32, 24, 64, 1, bytes, NULL};
    assert_int_equal(di_packed_bytes(b, &m), 0);
    assert_int_equal(b->bind_matrix(b, &m, "floats", &out, &error), DI_OK);
    assert_device(b, out.data, bytes, 24 * 64 * 4);
    b->destroy(b);
    assert_int_equal(di_backend_create_cuda(DI_NUMERICS_FLOAT, NULL, &b, &error), DI_OK);
    m = (di_host_matrix){DI_F8_E4M3, 24, 64, 2, bytes, scale};
    assert_int_equal(di_packed_bytes(b, &m), 0);
    assert_int_equal(b->bind_matrix(b, &m, "codes", &out, &error), DI_OK);
    assert_device(b, out.data, bytes, 24 * 64);
    assert_device(b, out.scale, scale, 2);
    b->destroy(b);
    free(bytes);
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
        cmocka_unit_test(test_no_device),  cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_limit),      cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_order),      cmocka_unit_test(test_stamps),
        cmocka_unit_test(test_bind),       cmocka_unit_test(test_packed),
        cmocka_unit_test(test_not_packed), cmocka_unit_test(test_prepare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
