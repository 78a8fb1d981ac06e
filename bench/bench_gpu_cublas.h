/* bench_gpu_cublas.cu, as the rest of bench_gpu sees it: what a library that others multiply
 * matrices with makes of the device's matrix units. Only where the program was built with CUDA
 * (BENCH_CUDA).
 */
#ifndef DI_BENCH_GPU_CUBLAS_H
#define DI_BENCH_GPU_CUBLAS_H

#include <stdint.h>

/* flops [runs]: operations a second of cuBLAS's product of two 8,192 x 8,192 matrices of normally
 * distributed bf16 values with float32 sums, of runs of a tenth of a second each, after one that
 * does not count. cuBLAS is loaded when this is called. Returns NULL, or why there are none: no
 * cuBLAS, or the device failed. Takes 0.5 GB of the current device. */
const char *cublas_product_flops(double *flops, int32_t runs);

#endif
