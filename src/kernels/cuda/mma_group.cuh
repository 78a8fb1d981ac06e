/* The matrix instructions of a warpgroup, and what goes with them.
 *
 * group_mma: sums[64 x N] += a b, where a is a warp's 16 x 16 in registers as for mma.sync and b is
 * 16 x N in shared memory: for each octet of columns two core matrices of 8 columns x 16 bytes one
 * behind the other, K 0 to 7 and 8 to 15; octets are OCTET bytes apart. Between products_begin and
 * products_commit; registers that go in must not change until products_wait says so. Without wgmma
 * the same by mma.sync, at once.
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

/* The right operand that begins at a shared address: what group_mma takes. Bytes further on are added as
 * such, by 16. */
static __device__ __forceinline__ uint32_t group_operand(uint32_t shared) {
    return (shared >> 4 & 0x3FFFu) | 8u << 16;
}

#if MMA_WGMMA

/* Operands behind the sums: four registers of a, b's descriptor. */
#define GROUP_MMA(n, sums, names, a0, a1, a2, a3, b)                                               \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" names "}, {%" a0      \
                 ",%" a1 ",%" a2 ",%" a3 "}, %" b ", 1, 1, 1, 0;"                                  \
                 : sums                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor))

template <int N, int OCTET>
static __device__ __forceinline__ void group_mma(float (&d)[N / 2], const uint32_t *a,
                                                 uint32_t operand) {
    uint64_t descriptor = operand | static_cast<uint64_t>(OCTET / 16) << 32;
    static_assert(N == 8 || N == 16 || (N % 32 == 0 && N <= 128), "the widths in use");
    if constexpr (N == 8)
        GROUP_MMA("8", WGMMA_D4(d, 0), WGMMA_R4, "4", "5", "6", "7", "8");
    else if constexpr (N == 16)
        GROUP_MMA("16", WGMMA_D8(d), WGMMA_R8, "8", "9", "10", "11", "12");
    else if constexpr (N == 32)
        GROUP_MMA("32", WGMMA_D16(d), WGMMA_R16, "16", "17", "18", "19", "20");
    else if constexpr (N == 64)
        GROUP_MMA("64", WGMMA_D32(d), WGMMA_R32, "32", "33", "34", "35", "36");
    else if constexpr (N == 96)
        GROUP_MMA("96", WGMMA_D48(d), WGMMA_R48, "48", "49", "50", "51", "52");
    else
        GROUP_MMA("128", WGMMA_D64(d), WGMMA_R64, "64", "65", "66", "67", "68");
}

#else

template <int N, int OCTET>
static __device__ __forceinline__ void group_mma(float (&d)[N / 2], const uint32_t *a,
                                                 uint32_t operand) {
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        uint32_t b =
            (operand & 0x3FFFu) * 16 + static_cast<uint32_t>(j * OCTET) + threadIdx.x % WARP * 4;
        mma_bf16(d + 4 * j, a, load_shared_32(b), load_shared_32(b + 128));
    }
}

#endif

/* ---- Clusters ---- */

/* Four floats that stand where `shared` does, in the shared memory of another block. */
static __device__ __forceinline__ float4 cluster_read4(const float *shared, int rank) {
    float4 y;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(y.x), "=f"(y.y), "=f"(y.z), "=f"(y.w)
                 : "r"(cluster_address(shared, static_cast<uint32_t>(rank)))
                 : "memory");
    return y;
}

#endif
