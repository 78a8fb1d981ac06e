/* Device memory for tests of single operations: any backend, values as float, guarded allocations.
 *
 * Everything taken stands between guard bytes; device_reset() frees it all and checks them. What
 * goes wrong here prints a line and ends the program: it is used by tests and by kernelcheck.
 */
#ifndef DI_TESTS_SUPPORT_DEVICE_H
#define DI_TESTS_SUPPORT_DEVICE_H

#include "kernels/backend.h"

/* Before cmocka runs: only tests whose names match $DI_TEST_FILTER (with * and ?), if it is set. */
void test_filter(void);

enum { DEVICE_MAX_TAKEN = 256 };

typedef struct device {
    di_backend *backend;
    struct {
        di_ptr base;
        uint64_t size, shift; /* the caller's bytes: base + guard + shift */
    } taken[DEVICE_MAX_TAKEN];
    int n_taken;
    bool broken;    /* nothing was opened, though the machine has a GPU or a driver for one */
    uint64_t shift; /* bytes added to the next addresses, to misalign them; 0 at first */
} device;

/* name: "ref", "cpu", "late", "cuda" or "queue", which is "cpu" behind a queue. Returns false
 * (nothing opened) when this machine cannot run it; for "cuda" it prints why, and sets d->broken
 * where that is no missing driver, GPU or CUDA: on stderr then. */
bool device_open(device *d, const char *name, di_numerics numerics, int32_t n_threads);
void device_prepare(device *d, const di_limits *limits);
/* Returns how many allocations had damaged guards. */
int device_reset(device *d);
void device_close(device *d);

di_ptr device_take(device *d, uint64_t size);                   /* bytes 0xA7 */
di_ptr device_put(device *d, const void *host, uint64_t size);  /* size 0: DI_NONE */
di_ptr device_put_a(device *d, const float *values, int64_t n); /* as A; the caller rounds */
di_ptr device_put_f(device *d, const float *values, int64_t n); /* as F */
di_ptr device_take_a(device *d, int64_t n);
di_ptr device_take_f(device *d, int64_t n);

/* A matrix as it is stored, its data and scales like device_put's. groups means nothing. */
di_matrix device_table(device *d, const di_host_matrix *m);
/* A matrix for products: packed where the backend packs it, for as long as the backend lives. */
di_matrix device_matrix(device *d, const di_host_matrix *m);

void device_get(device *d, di_ptr from, void *host, uint64_t size); /* waits */
void device_get_a(device *d, di_ptr from, double *out, int64_t n);
void device_get_f(device *d, di_ptr from, double *out, int64_t n);

#endif
