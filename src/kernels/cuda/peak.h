/* What a GPU can do at most, measured: the yardstick of the benches, as kernels/cpu/peak.h is for
 * processors.
 */
#ifndef DI_KERNELS_CUDA_PEAK_H
#define DI_KERNELS_CUDA_PEAK_H

#include <stdint.h>

#include "base/error.h"

typedef struct di_cuda_peak {
    char device[160]; /* "GPU 0 (NVIDIA H200)" */
    double
        copy_bytes_per_s; /* a copy within device memory, bytes read and bytes written together */
    double flop_per_s;    /* bf16 matrix products with float32 sums, operands in shared memory; a
                          multiplication and an addition count as 2 */
} di_cuda_peak;

/* Takes about a second and 1 GiB of device memory: nothing else may run on it then. The best of
 * several runs, each long enough that clocks have settled. Fails as di_backend_create_cuda does. */
di_status di_cuda_peak_measure(int32_t device, di_cuda_peak *out, di_error *error);

#endif
