/* Barriers in shared memory that threads arrive at, or bytes: a phase is over when all are there.
 * And copies that count their bytes at one. By shared addresses; attention has pointers.
 */
#ifndef DI_KERNELS_CUDA_BARRIER_CUH
#define DI_KERNELS_CUDA_BARRIER_CUH

#include "kernels/cuda/instructions.cuh"

static __device__ __forceinline__ void barrier_init(uint32_t b, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(arrivals) : "memory");
}
static __device__ __forceinline__ void barrier_arrive(uint32_t b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
/* One arrival, and so many bytes that are on their way. */
static __device__ __forceinline__ void barrier_expect(uint32_t b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes)
                 : "memory");
}
/* Until the phase of this parity is over. Of the block's scope: a wider one would empty the first
 * cache, and what others send lies in this block's memory before it counts. */
static __device__ __forceinline__ void barrier_wait(uint32_t b, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(b), "r"(parity)
                     : "memory");
    } while (done == 0);
}

static __device__ __forceinline__ void barrier_init(uint64_t *b, uint32_t arrivals) {
    barrier_init(shared_address(b), arrivals);
}
static __device__ __forceinline__ void barrier_arrive(uint64_t *b) {
    barrier_arrive(shared_address(b));
}
static __device__ __forceinline__ void barrier_expect(uint64_t *b, uint32_t bytes) {
    barrier_expect(shared_address(b), bytes);
}
static __device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity) {
    barrier_wait(shared_address(b), parity);
}

/* Arrivals of warps, whose lanes have all done what they arrive for: one each, of one lane. racecheck does
 * not know that __syncwarp orders lanes, so where it is to look (DI_CUDA_CHECKED, tools/gpu sanitize) each
 * lane arrives. */
#ifdef DI_CUDA_CHECKED
static constexpr uint32_t WARP_ARRIVALS = WARP;
#else
static constexpr uint32_t WARP_ARRIVALS = 1;
#endif
static __device__ __forceinline__ void warp_arrives(uint64_t *b) {
    __syncwarp();
    if (WARP_ARRIVALS == WARP || lane_id() == 0) barrier_arrive(b);
}

/* The barriers that this thread initialised are there for copies and for the cluster, after threads
 * have met. */
static __device__ __forceinline__ void barriers_made() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Begins to copy a multiple of 16 bytes, both sides aligned to 16. */
static __device__ __forceinline__ void copy_bulk(uint32_t shared, const void *from, uint32_t bytes,
                                                 uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(shared),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

/* How the second cache treats what is read once: it goes before all else. */
static __device__ __forceinline__ uint64_t read_once(void) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
static __device__ __forceinline__ void copy_bulk(uint32_t shared, const void *from, uint32_t bytes,
                                                 uint32_t barrier, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1], %2, [%3], %4;" ::"r"(shared),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

#endif
