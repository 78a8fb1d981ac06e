/* bench_gpu_peer.cu, as the rest of bench_gpu sees it: what a library that others multiply matrices with makes
 * of the device's matrix units. Only where the program was built with CUDA (BENCH_CUDA).
 */
#ifndef DI_BENCH_GPU_PEER_H
#define DI_BENCH_GPU_PEER_H

/* Operations a second of cuBLAS's product of two 8,192 x 8,192 matrices of normally distributed bf16
 * values with float32 sums: its best of several runs of a tenth of a second and more. cuBLAS is
 * loaded when this is called. 0 and *why: there is none, or the device failed. Takes some two seconds
 * and 0.5 GB of the current device. */
double peer_product_flops(const char **why);

#endif
