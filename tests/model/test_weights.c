/* Dequantised weights are exact: every tensor, read by the operations that read it, has the hash
 * that the oracle's dequantisation has (weight_hashes.json: SHA-256 of the float32 values,
 * row-major, -0 taken as 0; the first 32 digits).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "kernels/formats.h"
#include "support/golden.h"
#include "support/sha256.h"

/* Something from the device, as floats. */
static float *read_values(test_model *m, di_ptr from, int64_t n) {
    di_error error;
    uint64_t unit = m->backend->a_bytes;
    char *raw = malloc((size_t)n * unit);
    float *values = malloc((size_t)n * sizeof *values);
    assert_true(raw && values);
    m->backend->download(m->backend->stream, raw, from, (uint64_t)n * unit);
    assert_int_equal(di_backend_sync(m->backend, &error), DI_OK);
    for (int64_t i = 0; i < n; i++) {
        double wide;
        if (unit == 8) {
            memcpy(&wide, raw + 8 * i, 8);
            values[i] = (float)wide;
        } else {
            memcpy(&values[i], raw + 4 * i, 4);
        }
    }
    free(raw);
    return values;
}

static di_ptr device(test_model *m, int64_t n) {
    di_error error;
    di_ptr memory;
    if (m->backend->alloc(m->backend, (uint64_t)n * m->backend->a_bytes, "test", &memory, &error) !=
        DI_OK) {
        fail_msg("%s", error.message);
    }
    return memory;
}

static di_ptr bind(test_model *m, const di_tensor *tensor) {
    di_error error;
    di_ptr at;
    assert_int_equal(m->backend->bind(m->backend, tensor->data, tensor->bytes, tensor->name, &at,
                                      &error),
                     DI_OK);
    return at;
}

static const di_tensor *scale_of(test_model *m, const di_tensor *tensor) {
    char name[128];
    snprintf(name, sizeof name, "%.*sscale", (int)(strlen(tensor->name) - strlen("weight")),
             tensor->name);
    const di_tensor *scale = di_checkpoint_find(di_model_checkpoint(m->model), name);
    assert_non_null(scale);
    return scale;
}

/* W times the unit vectors: column k of W in row k of the result. */
static float *matrix_values(test_model *m, const di_tensor *tensor, int64_t *count) {
    bool packed = tensor->dtype == DI_FP4_PAIR, scaled = packed || tensor->dtype == DI_F8_E4M3;
    int32_t n = (int32_t)tensor->shape[0], k = (int32_t)tensor->shape[1] * (packed ? 2 : 1);
    di_host_matrix host = {tensor->dtype, n, k, 1, tensor->data, NULL};
    if (scaled) host.scale = scale_of(m, tensor)->data;
    di_error error;
    di_matrix w;
    if (m->backend->bind_matrix(m->backend, &host, tensor->name, &w, &error) != DI_OK)
        fail_msg("%s", error.message);
    char *units = calloc((size_t)k * (size_t)k, m->backend->a_bytes);
    assert_non_null(units);
    for (int64_t i = 0; i < k; i++) {
        double one = 1;
        float one_f = 1;
        bool wide = m->backend->a_bytes == 8;
        memcpy(units + (i * k + i) * m->backend->a_bytes, wide ? (void *)&one : (void *)&one_f,
               m->backend->a_bytes);
    }
    di_ptr x = device(m, (int64_t)k * k), out = device(m, (int64_t)k * n);
    m->backend->upload(m->backend->stream, x, units,
                       (uint64_t)k * (uint64_t)k * m->backend->a_bytes);
    m->backend->ops->linear(m->backend->stream, &(di_linear_args){k, 1, false, false, x, w, out});
    float *columns = read_values(m, out, (int64_t)k * n);
    float *values = malloc((size_t)n * (size_t)k * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < k; j++) values[i * k + j] = columns[j * n + i];
    }
    m->backend->free(m->backend, x);
    m->backend->free(m->backend, out);
    free(columns);
    free(units);
    *count = (int64_t)n * k;
    return values;
}

static float *table_values(test_model *m, const di_tensor *tensor, int64_t *count) {
    int64_t n = tensor->shape[0], width = tensor->shape[1];
    int64_t *all = malloc((size_t)n * sizeof *all);
    assert_non_null(all);
    for (int64_t i = 0; i < n; i++) all[i] = i;
    di_error error;
    di_ptr rows, out = device(m, n * width);
    assert_int_equal(m->backend->alloc(m->backend, (uint64_t)n * 8, "rows", &rows, &error), DI_OK);
    m->backend->upload(m->backend->stream, rows, all, (uint64_t)n * 8);
    di_engram_rows_args args = {(int32_t)n,
                                1,
                                (int32_t)width,
                                DI_NONE,
                                rows,
                                bind(m, tensor),
                                bind(m, scale_of(m, tensor)),
                                out};
    m->backend->ops->engram_rows(m->backend->stream, &args);
    float *values = read_values(m, out, n * width);
    m->backend->free(m->backend, rows);
    m->backend->free(m->backend, out);
    free(all);
    *count = n * width;
    return values;
}

/* Vectors are read by many operations; here their stored form itself. */
static float *vector_values(const di_tensor *tensor, int64_t *count) {
    *count = (int64_t)(tensor->bytes / di_dtype_bytes(tensor->dtype));
    float *values = malloc((size_t)*count * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < *count; i++) {
        uint16_t word;
        if (tensor->dtype == DI_F32) {
            memcpy(&values[i], tensor->data + 4 * i, 4);
        } else {
            assert_int_equal(tensor->dtype, DI_BF16);
            memcpy(&word, tensor->data + 2 * i, 2);
            values[i] = di_bf16_decode(word);
        }
    }
    return values;
}

static void check_tensor(test_model *m, const di_json *item) {
    const di_tensor *tensor = di_checkpoint_find(di_model_checkpoint(m->model), item->key);
    if (!tensor) fail_msg("%s is not in the checkpoint", item->key);
    int64_t count;
    float *values = tensor->n_dims != 2 ? vector_values(tensor, &count)
                    : strstr(tensor->name, "engram.embed.weight")
                        ? table_values(m, tensor, &count)
                        : matrix_values(m, tensor, &count);
    for (int64_t i = 0; i < count; i++) values[i] += 0.0F;
    char hex[65];
    test_sha256(values, (size_t)count * sizeof *values, hex);
    hex[32] = '\0';
    if (!di_json_is_string(item, hex)) fail_msg("%s: %s, want %s", item->key, hex, item->text);
    free(values);
}

static void check(const char *name, test_backend backend, int64_t n_tensors) {
    test_model m;
    di_error error;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *root;
    char path[1024], *text;
    uint64_t size;
    snprintf(path, sizeof path, "tests/data/golden/%s/model", name);
    test_model_open(&m, path, &(test_model_options){backend, DI_NUMERICS_FLOAT, 1, {0}});
    snprintf(path, sizeof path, "%s/tests/data/golden/%s/weight_hashes.json", DI_SOURCE_DIR, name);
    assert_int_equal(di_file_read(path, 1 << 20, &text, &size, &error), DI_OK);
    assert_int_equal(di_json_parse(text, size, path, &arena, &root, &error), DI_OK);
    assert_int_equal(root->length, n_tensors);
    for (const di_json *item = root->first; item; item = item->next) check_tensor(&m, item);
    di_arena_free(&arena);
    free(text);
    test_model_close(&m);
}

static void test_twins(void **state) {
    (void)state;
    check("tiny-a", TEST_REF, 735);
    check("tiny-b", TEST_REF, 486);
}

static void test_fast(void **state) {
    (void)state;
    check("tiny-a", TEST_CPU, 735);
    check("tiny-b", TEST_CPU, 486);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_twins), cmocka_unit_test(test_fast)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
