/* Kernels whose last block goes on with what all of them have written: one launch less. */
#ifndef DI_KERNELS_CUDA_LAST_BLOCK_CUH
#define DI_KERNELS_CUDA_LAST_BLOCK_CUH

#include "kernels/cuda/device.cuh"

/* Whether this is the last of n_blocks blocks to come here; it sees what the others wrote to global
 * memory before. All threads call, once in a kernel. The counter (cuda_counters) is 0 before and
 * after. */
static __device__ __forceinline__ bool last_block(uint32_t *counter, uint32_t n_blocks) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(counter, n_blocks - 1) == n_blocks - 1;
    __syncthreads();
    if (last) __threadfence();
    return last;
}

/* The same of blocks that take pieces of several things: whether this one, with `mine`, brings
 * those of a thing to `all` that are dealt with. Any number of times. done: 0 at first. What both
 * do is written twice: shared, it gave other kernels other registers. */
static __device__ __forceinline__ bool last_pieces(int32_t *done, int32_t mine, int32_t all) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(done, mine) + mine == all;
    __syncthreads();
    if (last) __threadfence();
    return last;
}

#endif
