#include "support/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/queue.h"
#include "support/late_backend.h"

static void must(di_status status, const di_error *error) {
    if (status != DI_OK) fail_msg("%s", error->message);
}

static void create_backend(test_model *m, const test_model_options *o) {
    di_error error;
    di_cpu_options cpu = {o->n_threads ? o->n_threads : 1, 0, ~0u};
    switch (o->backend) {
    case TEST_REF: must(di_backend_create_ref(o->numerics, &m->backend, &error), &error); break;
    case TEST_CPU:
    case TEST_QUEUE:
    case TEST_SPLIT_QUEUE:
        must(di_backend_create_cpu(o->numerics, &cpu, &m->backend, &error), &error);
        if (o->backend != TEST_CPU)
            must(di_backend_create_queue(m->backend, &m->backend, &error), &error);
        break;
    case TEST_CUDA:
    case TEST_SPLIT_CUDA:
        must(di_backend_create_cuda(o->numerics, NULL, &m->backend, &error), &error);
        break;
    case TEST_LATE:
    case TEST_SPLIT_LATE:
        must(late_backend_create(o->numerics, &m->backend, &error), &error);
        break;
    }
}

static void create_host(test_model *m, const test_model_options *o) {
    di_error error;
    di_cpu_options cpu = {o->n_threads ? o->n_threads : 1, 0, ~0u};
    m->host = NULL;
    if (o->backend < TEST_SPLIT_LATE) return;
    must(o->backend == TEST_SPLIT_LATE ? di_backend_create_ref(o->numerics, &m->host, &error)
                                       : di_backend_create_cpu(o->numerics, &cpu, &m->host, &error),
         &error);
}

void test_need_cuda(void) {
    di_error error;
    di_backend *backend;
    di_status status = di_backend_create_cuda(DI_NUMERICS_FLOAT, NULL, &backend, &error);
    if (status == DI_ERR_UNSUPPORTED) {
        print_message("%s\n", error.message);
        skip();
    }
    must(status, &error);
    backend->destroy(backend);
}

void test_model_open(test_model *m, const char *directory, const test_model_options *options) {
    char path[1024];
    bool absolute = directory[0] == '/';
    snprintf(path, sizeof path, "%s%s%s", absolute ? "" : DI_SOURCE_DIR, absolute ? "" : "/",
             directory);
    create_backend(m, options);
    create_host(m, options);
    di_model_options load = di_model_options_defaults();
    load.host = m->host;
    load.device_layers = 1;
    di_error error;
    must(di_model_open(path, m->backend, &load, &m->model, &error), &error);
    m->config = di_model_config(m->model);
    di_context_options context = options->context;
    if (context.n_slots == 0) {
        context = di_context_options_defaults(m->config);
        context.max_context = 2048;
        context.max_rows = context.max_out = 1024;
    }
    must(di_context_create(m->model, &context, &m->context, &error), &error);
}

void test_model_close(test_model *m) {
    di_context_destroy(m->context);
    di_model_close(m->model);
    m->backend->destroy(m->backend);
    if (m->host) m->host->destroy(m->host);
}

float *test_feed(test_model *m, int32_t slot, const int32_t *ids, int32_t n,
                 const int32_t *out_rows, int32_t n_out) {
    di_error error;
    di_row *rows = malloc((size_t)n * sizeof *rows);
    assert_non_null(rows);
    for (int32_t i = 0; i < n; i++) rows[i] = (di_row){ids[i], slot, i};
    di_step step = {.rows = rows, .n_rows = n, .out_rows = out_rows, .n_out = n_out};
    must(di_forward(m->context, &step, &error), &error);
    free(rows);
    if (n_out == 0) return NULL;
    float *logits = malloc((size_t)n_out * (size_t)m->config->vocab_size * sizeof *logits);
    assert_non_null(logits);
    must(di_context_read_logits(m->context, logits, &error), &error);
    return logits;
}

float *test_feed_all(test_model *m, int32_t slot, const int32_t *ids, int32_t n) {
    int32_t *all = malloc((size_t)n * sizeof *all);
    assert_non_null(all);
    for (int32_t i = 0; i < n; i++) all[i] = i;
    float *logits = test_feed(m, slot, ids, n, all, n);
    free(all);
    return logits;
}

bool golden_has(const di_safetensors *file, const char *name) {
    return di_safetensors_find(file, name) != NULL;
}

const di_tensor *golden_tensor(const di_safetensors *file, const char *name) {
    const di_tensor *tensor = di_safetensors_find(file, name);
    if (!tensor) fail_msg("golden vector %s is missing", name);
    return tensor;
}

static int64_t count_of(const di_tensor *tensor) {
    int64_t count = 1;
    for (int32_t i = 0; i < tensor->n_dims; i++) count *= tensor->shape[i];
    return count;
}

const float *golden_f32(const di_safetensors *file, const char *name, int64_t *count) {
    const di_tensor *tensor = golden_tensor(file, name);
    if (tensor->dtype != DI_F32) fail_msg("golden vector %s is not F32", name);
    *count = count_of(tensor);
    return (const float *)(const void *)tensor->data;
}

int64_t *golden_int(const di_safetensors *file, const char *name, int64_t *count) {
    const di_tensor *tensor = golden_tensor(file, name);
    *count = count_of(tensor);
    int64_t *values = malloc(((size_t)*count + 1) * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < *count; i++) {
        int32_t small;
        int16_t half;
        switch (tensor->bytes / (uint64_t)(*count ? *count : 1)) {
        case 8: memcpy(&values[i], tensor->data + 8 * i, 8); break;
        case 4:
            memcpy(&small, tensor->data + 4 * i, 4);
            values[i] = small;
            break;
        case 2:
            memcpy(&half, tensor->data + 2 * i, 2);
            values[i] = half;
            break;
        default: values[i] = tensor->data[i];
        }
    }
    return values;
}
