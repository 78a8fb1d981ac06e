/* The "cuda" backend of a build without a CUDA compiler. */
#include "kernels/backend.h"
#include "kernels/cuda/peak.h"

#ifndef DI_CUDA_ABSENT /* cmake/cuda.cmake knows better */
#define DI_CUDA_ABSENT "built without CUDA"
#endif

static di_status absent(di_error *error) {
    return di_fail(error, DI_ERR_UNSUPPORTED, "cuda backend: %s", DI_CUDA_ABSENT);
}

di_status di_backend_create_cuda(di_numerics numerics, const di_cuda_options *options,
                                 di_backend **out, di_error *error) {
    (void)numerics, (void)options;
    *out = NULL;
    return absent(error);
}

di_status di_cuda_peak_measure(int32_t device, di_cuda_peak *out, di_error *error) {
    (void)device, (void)out;
    return absent(error);
}
