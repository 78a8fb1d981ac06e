/* What this machine can do at most, measured: the yardstick of kernelcheck --bench and the benches.
 */
#ifndef DI_KERNELS_CPU_PEAK_H
#define DI_KERNELS_CPU_PEAK_H

#include <stdint.h>

#include "base/error.h"

typedef struct di_cpu_peak {
    double read_bytes_per_s; /* memory read by all threads, from a buffer larger than caches */
    double flop_per_s;       /* float FMA in registers by all threads; an FMA counts as 2 */
} di_cpu_peak;

/* Takes about a second and 512 MiB. n_threads as in di_cpu_options. The best of several runs. */
di_status di_cpu_peak_measure(int32_t n_threads, di_cpu_peak *out, di_error *error);

#endif
