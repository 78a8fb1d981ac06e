/* Instructions of compute capability 9.0 for attention and the indexer: products by a warpgroup
 * (wgmma), barriers in shared memory, stores into the shared memory of a cluster's other block.
 *
 * Tiles. A slab is 64 bf16 values of each of 64 rows: 128 bytes a row, in which piece i of 16 bytes
 * stands at i ^ (row % 8) (the 128-byte swizzle); slabs begin at multiples of 1024 bytes. The same
 * slabs serve as [rows][values] with K along the values (descriptor_k) and, for the other operand, as
 * [values][rows] with K along the rows (descriptor_mn).
 */
#ifndef DI_KERNELS_CUDA_ATTEND_WIDE_CUH
#define DI_KERNELS_CUDA_ATTEND_WIDE_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/instructions.cuh"

static constexpr int SLAB = 64, SLAB_BYTES = SLAB * 128;
static constexpr int GROUP = 128, GROUP_WARPS = GROUP / WARP; /* threads and warps of a warpgroup */

/* Where piece `piece` of 16 bytes of a slab's row lies in it. */
static __device__ __forceinline__ int slab_place(int row, int piece) {
    return row * 128 + ((piece ^ (row & 7)) << 4);
}

/* ---- Caches ---- */

/* Asks for the 64 bytes around p, into the second cache. */
static __device__ __forceinline__ void ask_for(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* ---- Products ---- */

static __device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t leading,
                                                      uint32_t stride) {
    return (address >> 4 & 0x3FFFu) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(stride >> 4) << 32 | UINT64_C(1) << 62;
}
/* An address in shared memory that is the same for all lanes, and known to be: descriptors are then
 * made for the warp, not by every lane. */
static __device__ __forceinline__ uint32_t common_address(const void *p) {
    return __shfl_sync(ALL_LANES, shared_address(p), 0);
}
/* 16 values from `address` on of 64 rows. */
static __device__ __forceinline__ uint64_t descriptor_k(uint32_t address) {
    return descriptor(address, 16, 1024);
}
/* All values of 16 rows of slabs behind each other; address: of the first row. */
static __device__ __forceinline__ uint64_t descriptor_mn(uint32_t address) {
    return descriptor(address, SLAB_BYTES, 1024);
}

/* d = a b, whatever d was: [64][16] in registers, and [64][16] by descriptor_k. */
static __device__ __forceinline__ void product_scores(float (&d)[32], const uint32_t *a,
                                                      uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_R32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
                 : WGMMA_NEW32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}
/* d += a b */
static __device__ __forceinline__ void product_more_scores(float (&d)[32], const uint32_t *a,
                                                           uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_R32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
                 : WGMMA_D32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

/* d = a b of E4M3 codes: [64][32] in registers, and [32][32] by descriptor_k, whose 16 values are 32
 * codes here. */
static __device__ __forceinline__ void product_codes(float (&d)[16], const uint32_t *a,
                                                     uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {" WGMMA_R16
                 "}, {%16, %17, %18, %19}, %20, p, 1, 1;\n}"
                 : WGMMA_D16(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

/* d += a b: [64][16] in registers, and [16][64, 128 or 256] by descriptor_mn. 256 are two products:
 * one with so many registers is for kernels of fewer threads. */
static __device__ __forceinline__ void product_values(float (&d)[32], const uint32_t *a,
                                                      uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_R32
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : WGMMA_D32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}
static __device__ __forceinline__ void product_values(float (&d)[64], const uint32_t *a,
                                                      uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_R64
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : WGMMA_D64(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}
static __device__ __forceinline__ void product_values(float (&d)[128], const uint32_t *a,
                                                      uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define VALUES_AT(i, b)                                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" WGMMA_R64               \
                 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                                       \
                 : WGMMA_D64_AT(d, i)                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
    VALUES_AT(0, b);
    VALUES_AT(64, b + (2 * SLAB_BYTES >> 4));
#undef VALUES_AT
#endif
}

#endif
