/* The matrix instructions of a warpgroup, and what goes with them.
 *
 * group_mma: sums[64 x N] += a b, where a is a warp's 16 x 16 in registers as for mma.sync and b is
 * 16 x N in shared memory: for each octet of columns two core matrices of 8 columns x 16 bytes, K 0
 * to 7 and 8 to 15. Between group_fence and group_commit; registers that go in must not change
 * until group_wait says so. Without wgmma the same by mma.sync, at once.
 */
#ifndef DI_KERNELS_CUDA_MMA_GROUP_CUH
#define DI_KERNELS_CUDA_MMA_GROUP_CUH

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

static __device__ __forceinline__ void group_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void group_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void group_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* What this thread wrote or copied to shared memory is seen by wgmma after the next barrier. */
static __device__ __forceinline__ void group_shared_written() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define R32 R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define R64                                                                                        \
    R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,"    \
        "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* Descriptor: address, distance of the two core matrices of an octet, distance of octets, by 16. */
template <int N>
static __device__ __forceinline__ void group_mma(float (&d)[N / 2], const uint32_t *a,
                                                 const void *shared) {
    uint64_t b = (static_cast<uint64_t>(__cvta_generic_to_shared(shared)) >> 4 & 0x3FFF) |
                 UINT64_C(8) << 16 | UINT64_C(16) << 32;
    static_assert(N == 32 || N == 64 || N == 128, "the widths in use");
    if constexpr (N == 32)
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" R16
                     "}, {%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
                     : D16(0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else if constexpr (N == 64)
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" R32
                     "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
                     : D16(0), D16(16)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" R64
                     "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
                     : D16(0), D16(16), D16(32), D16(48)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef D4
#undef D16
#undef R16
#undef R32
#undef R64

#else

static __device__ __forceinline__ void group_fence() {}
static __device__ __forceinline__ void group_commit() {}
template <int N> static __device__ __forceinline__ void group_wait() {}
static __device__ __forceinline__ void group_shared_written() {}

template <int N>
static __device__ __forceinline__ void group_mma(float (&d)[N / 2], const uint32_t *a,
                                                 const void *shared) {
    const uint32_t *b = static_cast<const uint32_t *>(shared) + lane_id();
#pragma unroll
    for (int j = 0; j < N / 8; j++) mma_bf16(d + 4 * j, a, b[j * 64], b[j * 64 + 32]);
}

#endif

/* Sums are read only behind the wait above. */
template <int N> static __device__ __forceinline__ void group_hold(float (&sums)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

/* ---- Clusters ---- */

static __device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
/* Two floats that stand where `shared` does, in the shared memory of another block. */
static __device__ __forceinline__ float2 cluster_read(const float *shared, int rank) {
    uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(shared)), there;
    float2 y;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                 : "=f"(y.x), "=f"(y.y)
                 : "r"(there)
                 : "memory");
    return y;
}

#endif
