/* Guards, conversions and transfers of device.h. */
#include "support/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formats.h"
#include "kernels/queue.h"
#include "support/late_backend.h"

enum { GUARD = 128, GUARD_BYTE = 0xC5, FRESH_BYTE = 0xA7 };

void test_filter(void) {
    const char *pattern = getenv("DI_TEST_FILTER");
    if (pattern != NULL) cmocka_set_test_filter(pattern);
}

static void must(di_status status, const di_error *error) {
    if (status == DI_OK) return;
    fprintf(stderr, "%s\n", error->message);
    exit(1);
}

static void *host_memory(uint64_t size) {
    void *memory = malloc(size > 0 ? size : 1);
    if (memory == NULL) abort();
    return memory;
}

/* Whether there is nothing to compute with, by the message: the status is the same where a driver
 * fails or a GPU is too old. driver_messages.sh holds the messages. */
static bool is_absent(const char *message) {
    static const char *const reasons[] = {"cuda backend: no NVIDIA driver is installed",
                                          "cuda backend: this machine has no NVIDIA GPU",
                                          "cuda backend: built without CUDA"};
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        if (strncmp(message, reasons[i], strlen(reasons[i])) == 0) return true;
    }
    return false;
}

bool device_open(device *d, const char *name, di_numerics numerics, int32_t n_threads) {
    di_error error;
    di_status status = DI_ERR_USAGE;
    *d = (device){0};
    error.message[0] = '\0';
    if (strcmp(name, "ref") == 0) {
        status = di_backend_create_ref(numerics, &d->backend, &error);
    } else if (strcmp(name, "late") == 0) {
        status = late_backend_create(numerics, &d->backend, &error);
    } else if (strcmp(name, "cpu") == 0 || strcmp(name, "queue") == 0) {
        di_cpu_options options = {n_threads, 0, ~0u};
        status = di_backend_create_cpu(numerics, &options, &d->backend, &error);
        if (status == DI_ERR_UNSUPPORTED) return false;
        must(status, &error);
        if (name[0] == 'q') status = di_backend_create_queue(d->backend, &d->backend, &error);
    } else if (strcmp(name, "cuda") == 0) {
        status = di_backend_create_cuda(numerics, NULL, &d->backend, &error);
        if (status == DI_ERR_UNSUPPORTED) {
            d->broken = !is_absent(error.message);
            fprintf(d->broken ? stderr : stdout, "%s\n", error.message);
            return false;
        }
    }
    must(status, &error);
    return true;
}

void device_prepare(device *d, const di_limits *limits) {
    di_error error;
    must(d->backend->prepare(d->backend, limits, &error), &error);
}

static int damaged(const uint8_t *bytes, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (bytes[i] != GUARD_BYTE) return 1;
    }
    return 0;
}

int device_reset(device *d) {
    int bad = 0;
    for (int i = 0; i < d->n_taken; i++) {
        uint8_t before[2 * GUARD], after[GUARD];
        uint64_t lead = GUARD + d->taken[i].shift;
        device_get(d, d->taken[i].base, before, lead);
        device_get(d, di_ptr_at(d->taken[i].base, lead + d->taken[i].size), after, GUARD);
        bad += damaged(before, lead) || damaged(after, GUARD);
        d->backend->free(d->backend, d->taken[i].base);
    }
    d->n_taken = 0;
    return bad;
}

void device_close(device *d) {
    if (d->backend != NULL) d->backend->destroy(d->backend);
    *d = (device){0};
}

di_ptr device_take(device *d, uint64_t size) {
    di_ptr base;
    di_error error;
    if (d->n_taken == DEVICE_MAX_TAKEN || d->shift >= GUARD) abort();
    uint64_t whole = size + d->shift + 2 * GUARD;
    must(d->backend->alloc(d->backend, whole, "test data", &base, &error), &error);
    di_ptr at = di_ptr_at(base, GUARD + d->shift);
    d->backend->fill(d->backend->stream, base, GUARD_BYTE, whole);
    d->backend->fill(d->backend->stream, at, FRESH_BYTE, size);
    d->taken[d->n_taken].base = base;
    d->taken[d->n_taken].size = size;
    d->taken[d->n_taken++].shift = d->shift;
    return at;
}

di_ptr device_put(device *d, const void *host, uint64_t size) {
    if (size == 0) return DI_NONE;
    di_ptr at = device_take(d, size);
    d->backend->upload(d->backend->stream, at, host, size);
    return at;
}

/* Values in memory as the backend holds them. */
static di_ptr put_values(device *d, const float *values, int64_t n, uint32_t bytes) {
    uint64_t size = (uint64_t)n * bytes;
    uint8_t *host = host_memory(size);
    for (int64_t i = 0; i < n; i++) {
        double wide = (double)values[i];
        uint16_t half = di_bf16_encode(values[i]);
        const void *value = bytes == 8   ? (const void *)&wide
                            : bytes == 4 ? (const void *)&values[i]
                                         : &half;
        memcpy(host + (uint64_t)i * bytes, value, bytes);
    }
    uint64_t shift = d->shift;
    d->shift = 0; /* activations are always aligned */
    di_ptr at = device_put(d, host, size);
    d->shift = shift;
    free(host);
    return at;
}

di_ptr device_put_a(device *d, const float *values, int64_t n) {
    return put_values(d, values, n, d->backend->a_bytes);
}

di_ptr device_put_f(device *d, const float *values, int64_t n) {
    return put_values(d, values, n, d->backend->f_bytes);
}

static di_ptr take_aligned(device *d, uint64_t size) {
    uint64_t shift = d->shift;
    d->shift = 0;
    di_ptr at = device_take(d, size);
    d->shift = shift;
    return at;
}

di_ptr device_take_a(device *d, int64_t n) {
    return take_aligned(d, (uint64_t)n * d->backend->a_bytes);
}

di_ptr device_take_f(device *d, int64_t n) {
    return take_aligned(d, (uint64_t)n * d->backend->f_bytes);
}

di_matrix device_table(device *d, const di_host_matrix *m) {
    di_matrix out = {m->dtype, m->n, m->k, DI_NONE, DI_NONE};
    out.data = device_put(d, m->data, di_host_matrix_bytes(m));
    out.scale = device_put(d, m->scale, di_host_matrix_scale_bytes(m));
    return out;
}

di_matrix device_matrix(device *d, const di_host_matrix *m) {
    di_error error;
    di_matrix out;
    if (di_packed_bytes(d->backend, m) == 0) return device_table(d, m);
    must(d->backend->bind_matrix(d->backend, m, "test matrix", &out, &error), &error);
    return out;
}

void device_get(device *d, di_ptr from, void *host, uint64_t size) {
    di_error error;
    d->backend->download(d->backend->stream, host, from, size);
    must(di_backend_sync(d->backend, &error), &error);
}

static void get_values(device *d, di_ptr from, double *out, int64_t n, uint32_t bytes) {
    uint8_t *host = host_memory((uint64_t)n * bytes);
    device_get(d, from, host, (uint64_t)n * bytes);
    for (int64_t i = 0; i < n; i++) {
        float single;
        uint16_t half;
        const uint8_t *at = host + (uint64_t)i * bytes;
        if (bytes == 8) memcpy(&out[i], at, 8);
        if (bytes == 4) memcpy(&single, at, 4), out[i] = (double)single;
        if (bytes == 2) memcpy(&half, at, 2), out[i] = (double)di_bf16_decode(half);
    }
    free(host);
}

void device_get_a(device *d, di_ptr from, double *out, int64_t n) {
    get_values(d, from, out, n, d->backend->a_bytes);
}

void device_get_f(device *d, di_ptr from, double *out, int64_t n) {
    get_values(d, from, out, n, d->backend->f_bytes);
}
