/* Matrices as they are stored, and bound so; memory that is the host's anyway. */
#include "kernels/backend.h"

static uint64_t ceil_div(int32_t a, int32_t b) {
    return ((uint64_t)a + (uint64_t)b - 1) / (uint64_t)b;
}

uint64_t di_host_matrix_bytes(const di_host_matrix *m) {
    uint64_t values = (uint64_t)m->n * (uint64_t)m->k;
    return m->dtype == DI_FP4_PAIR ? values / 2 : values * di_dtype_bytes(m->dtype);
}

uint64_t di_host_matrix_scale_bytes(const di_host_matrix *m) {
    if (m->dtype == DI_F8_E4M3) return ceil_div(m->n, 32) * ceil_div(m->k, 32);
    return m->dtype == DI_FP4_PAIR ? (uint64_t)m->n * (uint64_t)(m->k / 32) : 0;
}

di_status di_bind_as_stored(di_backend *backend, const di_host_matrix *m, const char *what,
                            di_matrix *out, di_error *error) {
    uint64_t scales = di_host_matrix_scale_bytes(m);
    *out = (di_matrix){m->dtype, m->n, m->k, DI_NONE, DI_NONE};
    DI_TRY(backend->bind(backend, m->data, di_host_matrix_bytes(m), what, &out->data, error));
    if (scales == 0) return DI_OK;
    return backend->bind(backend, m->scale, scales, what, &out->scale, error);
}

di_status di_alloc_same(di_backend *backend, uint64_t size, const char *what, void **host,
                        di_ptr *out, di_error *error) {
    DI_TRY(backend->alloc(backend, size, what, out, error));
    *host = (void *)(uintptr_t)out->address;
    return DI_OK;
}
