#include "support/recorder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t element_bytes(const di_backend *backend, di_tap_type type) {
    switch (type) {
    case DI_TAP_A: return backend->a_bytes;
    case DI_TAP_F: return backend->f_bytes;
    case DI_TAP_I32: return 4;
    case DI_TAP_I64: break;
    }
    return 8;
}

static void keep(void *user, const char *name, int32_t layer, di_ptr data, di_tap_type type,
                 int64_t n_rows, int64_t width) {
    recorder *r = user;
    di_backend *backend = r->model->backend;
    uint64_t bytes = (uint64_t)(n_rows * width) * element_bytes(backend, type);
    r->items = realloc(r->items, (r->n + 1) * sizeof *r->items);
    assert_non_null(r->items);
    recording *item = &r->items[r->n++];
    *item = (recording){"", layer, type, n_rows, width, malloc(bytes)};
    assert_non_null(item->data);
    snprintf(item->name, sizeof item->name, "%s", name);
    backend->download(backend->stream, item->data, data, bytes);
}

void recorder_begin(recorder *r, test_model *m) {
    *r = (recorder){m, NULL, 0};
    di_context_set_tap(m->context, keep, r);
}

void recorder_end(recorder *r) {
    di_context_set_tap(r->model->context, NULL, NULL);
    for (size_t i = 0; i < r->n; i++) free(r->items[i].data);
    free(r->items);
    r->items = NULL;
    r->n = 0;
}

const recording *recorder_find(const recorder *r, const char *name, int32_t layer) {
    for (size_t i = 0; i < r->n; i++) {
        if (r->items[i].layer == layer && strcmp(r->items[i].name, name) == 0) return &r->items[i];
    }
    fail_msg("no recording of %s, layer %d", name, layer);
    return NULL;
}

double recording_value(const recorder *r, const recording *item, int64_t i) {
    if (element_bytes(r->model->backend, item->type) == 4) {
        float value;
        memcpy(&value, (const char *)item->data + 4 * i, 4);
        return value;
    }
    double value;
    memcpy(&value, (const char *)item->data + 8 * i, 8);
    return value;
}

int64_t recording_int(const recording *item, int64_t i) {
    if (item->type == DI_TAP_I32) {
        int32_t value;
        memcpy(&value, (const char *)item->data + 4 * i, 4);
        return value;
    }
    int64_t value;
    memcpy(&value, (const char *)item->data + 8 * i, 8);
    return value;
}
