/* Format 1.0: magic, version, length of the header, a Python dict padded to 64 bytes, the data. */
#include "cli/npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

di_status di_npy_create(di_npy *npy, const char *path, const int64_t *shape, int n_dims,
                        di_error *error) {
    enum { PREFIX = 10, ALIGN = 64, MAX_HEADER = 512 };
    memset(npy, 0, sizeof *npy);
    char header[MAX_HEADER] = "\x93NUMPY\x01";
    int n = PREFIX + snprintf(header + PREFIX, MAX_HEADER - PREFIX,
                              "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    for (int i = 0; i < n_dims; i++) {
        n += snprintf(header + n, (size_t)(MAX_HEADER - n), "%s%" PRId64 "%s", i ? " " : "",
                      shape[i], i + 1 < n_dims || n_dims == 1 ? "," : "");
    }
    n += snprintf(header + n, (size_t)(MAX_HEADER - n), "), }");
    int total = (n + 1 + ALIGN - 1) / ALIGN * ALIGN;
    memset(header + n, ' ', (size_t)(total - n));
    header[total - 1] = '\n';
    header[7] = 0; /* minor version */
    header[8] = (char)((total - PREFIX) & 0xFF);
    header[9] = (char)((total - PREFIX) >> 8);
    npy->header_bytes = (uint64_t)total;
    DI_TRY(di_atomic_create(&npy->file, path, error));
    di_status status = di_atomic_write(&npy->file, 0, header, (uint64_t)total, error);
    if (status != DI_OK) di_npy_abandon(npy);
    return status;
}

di_status di_npy_write(di_npy *npy, uint64_t first, const float *values, uint64_t n,
                       di_error *error) {
    return di_atomic_write(&npy->file, npy->header_bytes + first * sizeof *values, values,
                           n * sizeof *values, error);
}

di_status di_npy_commit(di_npy *npy, di_error *error) {
    return di_atomic_commit(&npy->file, error);
}

void di_npy_abandon(di_npy *npy) { di_atomic_abandon(&npy->file); }
