/* The "cuda" backend of a build without a CUDA compiler. */
#include "kernels/backend.h"

#ifndef DI_CUDA_ABSENT /* cmake/cuda.cmake knows better */
#define DI_CUDA_ABSENT "built without CUDA"
#endif

di_status di_backend_create_cuda(di_numerics numerics, const di_cuda_options *options,
                                 di_backend **out, di_error *error) {
    (void)numerics, (void)options;
    *out = NULL;
    return di_fail(error, DI_ERR_UNSUPPORTED, "cuda backend: %s", DI_CUDA_ABSENT);
}
