/* NumPy's .npy files of float32, row-major, written in any order and put into place at the end. */
#ifndef DI_CLI_NPY_H
#define DI_CLI_NPY_H

#include "cli/atomic_file.h"

typedef struct di_npy {
    di_atomic_file file;
    uint64_t header_bytes;
} di_npy;

/* shape [n_dims], n_dims 1 to 8, every size >= 0. */
di_status di_npy_create(di_npy *npy, const char *path, const int64_t *shape, int n_dims,
                        di_error *error);
/* n elements from index `first` on. */
di_status di_npy_write(di_npy *npy, uint64_t first, const float *values, uint64_t n,
                       di_error *error);
di_status di_npy_commit(di_npy *npy, di_error *error);
void di_npy_abandon(di_npy *npy); /* fine on a zeroed or committed one */

#endif
