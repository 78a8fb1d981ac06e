/* The matrix instructions of a warpgroup, and what goes with them.
 *
 * group_mma: sums[64 x N] += a b, where a is a warp's 16 x 16 in registers as for mma.sync and b is
 * 16 x N in shared memory: for each octet of columns two core matrices of 8 columns x 16 bytes, K 0
 * to 7 and 8 to 15. Between products_begin and products_commit; registers that go in must not
 * change until products_wait says so. Without wgmma the same by mma.sync, at once.
 */
#ifndef DI_KERNELS_CUDA_MMA_GROUP_CUH
#define DI_KERNELS_CUDA_MMA_GROUP_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/mma_weights.cuh"

/* Set to 0 where bench_mma_bits finds that wgmma and mma.sync differ. */
#ifndef MMA_USE_WGMMA
#define MMA_USE_WGMMA 1
#endif
#if MMA_USE_WGMMA && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MMA_WGMMA 1
#else
#define MMA_WGMMA 0
#endif

#if MMA_WGMMA

template <int N>
static __device__ __forceinline__ void group_mma(float (&d)[N / 2], const uint32_t *a,
                                                 const void *shared) {
    uint64_t b = plain_descriptor(shared);
    static_assert(N == 32 || N == 64 || N == 128, "the widths in use");
    if constexpr (N == 32)
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" WGMMA_R16
                     "}, {%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
                     : WGMMA_D16(d)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else if constexpr (N == 64)
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_R32
                     "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                     : WGMMA_D32(d)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_R64
                     "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
                     : WGMMA_D64(d)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#else

template <int N>
static __device__ __forceinline__ void group_mma(float (&d)[N / 2], const uint32_t *a,
                                                 const void *shared) {
    const uint32_t *b = static_cast<const uint32_t *>(shared) + lane_id();
#pragma unroll
    for (int j = 0; j < N / 8; j++) mma_bf16(d + 4 * j, a, b[j * 64], b[j * 64 + 32]);
}

#endif

/* ---- Clusters ---- */

/* Two floats that stand where `shared` does, in the shared memory of another block. */
static __device__ __forceinline__ float2 cluster_read(const float *shared, int rank) {
    float2 y;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                 : "=f"(y.x), "=f"(y.y)
                 : "r"(cluster_address(shared, static_cast<uint32_t>(rank)))
                 : "memory");
    return y;
}

#endif
