/* Instructions of compute capability 9.0 for attention and the indexer: products by a warpgroup (wgmma), barriers in
 * shared memory, stores into the shared memory of a cluster's other block.
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

static constexpr int SLAB = 64, SLAB_BYTES = SLAB * 128, GROUP = 128; /* threads of a warpgroup */

/* Where piece `piece` of 16 bytes of a slab's row lies in it. */
static __device__ __forceinline__ int slab_place(int row, int piece) {
    return row * 128 + ((piece ^ (row & 7)) << 4);
}

/* ---- Barriers ---- */

static __device__ __forceinline__ void barrier_init(uint64_t *b, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals)
                 : "memory");
}
static __device__ __forceinline__ void barrier_arrive(uint64_t *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
/* One arrival, and so many bytes that store_peer brings. */
static __device__ __forceinline__ void barrier_expect(uint64_t *b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes)
                 : "memory");
}
/* Until the phase of this parity is over. */
static __device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(shared_address(b)), "r"(parity)
                     : "memory");
    } while (done == 0);
}

/* ---- The other block of a cluster of two ---- */

/* 16 bytes, which count for the peer's barrier when they are there. */
static __device__ __forceinline__ void store_peer(uint32_t to, const float *x, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], "
                 "{%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "r"(__float_as_uint(x[0])), "r"(__float_as_uint(x[1])), "r"(__float_as_uint(x[2])),
                 "r"(__float_as_uint(x[3])), "r"(barrier)
                 : "memory");
}

/* ---- Products ---- */

static __device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t leading,
                                                      uint32_t stride) {
    return (address >> 4 & 0x3FFFu) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(stride >> 4) << 32 | UINT64_C(1) << 62;
}
/* 16 values from `address` on of 64 rows. */
static __device__ __forceinline__ uint64_t descriptor_k(uint32_t address) {
    return descriptor(address, 16, 1024);
}
/* All values of 16 rows of slabs behind each other; address: of the first row. */
static __device__ __forceinline__ uint64_t descriptor_mn(uint32_t address) {
    return descriptor(address, SLAB_BYTES, 1024);
}

/* d = a b, or d += a b when `add`: [64][16] and [64][16] by descriptor_k. */
static __device__ __forceinline__ void product_scores(float (&d)[32], uint64_t a, uint64_t b,
                                                      bool add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" WGMMA_R32
                 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : WGMMA_D32(d)
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));
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

/* d += a b: [64][16] in registers, and [16][64, 128 or 256] by descriptor_mn. */
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
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" WGMMA_R128
                 "}, {%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
                 : WGMMA_D128(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
#endif
}

#endif
