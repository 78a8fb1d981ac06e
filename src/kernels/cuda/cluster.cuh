/* Clusters: blocks that run at the same time, wait for each other and reach each other's shared
 * memory. */
#ifndef DI_KERNELS_CUDA_CLUSTER_CUH
#define DI_KERNELS_CUDA_CLUSTER_CUH

#include "kernels/cuda/barrier.cuh"

/* All threads of all blocks of the cluster; what they wrote before they arrived, to any memory, is
 * seen after the wait. The shared memory of others exists from the first time on. */
static __device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
static __device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
static __device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

/* The same where the threads of every warp come together. */
static __device__ __forceinline__ void cluster_sync_aligned() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Where a variable in shared memory lies in block `rank` of the cluster. A block may not end while
 * others still read there. */
template <typename T> static __device__ __forceinline__ T *cluster_peer(T *mine, int rank) {
    uint64_t at;
    asm("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"(mine), "r"(rank));
    return reinterpret_cast<T *>(at);
}
/* The same as an address of the cluster's shared memory. */
static __device__ __forceinline__ uint32_t cluster_address(const void *mine, uint32_t rank) {
    uint32_t at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(mine)), "r"(rank));
    return at;
}

/* ---- To another block of the cluster; addresses and barriers by cluster_address ---- */

/* 16 and 4 bytes, which count for its barrier when they are there. */
static __device__ __forceinline__ void store_peer(uint32_t to, const uint32_t *x,
                                                  uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], "
                 "{%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(barrier)
                 : "memory");
}
static __device__ __forceinline__ void store_peer(uint32_t to, float x, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                     to),
                 "r"(__float_as_uint(x)), "r"(barrier)
                 : "memory");
}
static __device__ __forceinline__ void warp_arrives_peer(uint32_t barrier) {
    __syncwarp();
    if (WARP_ARRIVALS == WARP || lane_id() == 0)
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* The two halves of a meeting of all threads, whose warps come together; only barriers_made is
 * ordered by it. */
static __device__ __forceinline__ void cluster_come() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
static __device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Begins a block: its barrier for so many bytes that other blocks send once (store_peer), and its half
 * of the first meeting, behind which they may. All threads call. */
static __device__ __forceinline__ void cluster_expect(uint64_t *barrier, uint32_t bytes) {
    if (threadIdx.x == 0) {
        barrier_init(barrier, 1);
        barriers_made();
        barrier_expect(shared_address(barrier), bytes);
    }
    __syncwarp();
    cluster_come();
}

#endif
