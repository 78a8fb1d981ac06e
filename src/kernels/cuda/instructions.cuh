/* Instructions that C++ has no name for, a function each: products by a warp and by a warpgroup,
 * and copies that run on.
 */
#ifndef DI_KERNELS_CUDA_INSTRUCTIONS_CUH
#define DI_KERNELS_CUDA_INSTRUCTIONS_CUH

#include "kernels/cuda/device.cuh"

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* ---- Copies to shared memory ---- */

/* 16 bytes past the first cache, 4 through it, of which `valid` are there: zeros for the others. */
static __device__ __forceinline__ void copy_16(void *shared, const void *from, uint32_t valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(from), "r"(valid)
                 : "memory");
}
static __device__ __forceinline__ void copy_4(void *shared, const void *from, uint32_t valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)),
                 "l"(from), "r"(valid)
                 : "memory");
}
/* The same by its address, all of it. */
static __device__ __forceinline__ void copy_16(uint32_t shared, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}
static __device__ __forceinline__ void copy_4(uint32_t shared, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(from) : "memory");
}
static __device__ __forceinline__ void copies_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until at most N of this thread's groups are on their way. */
template <int N> static __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- Shared memory by its address: one register, where a pointer takes two ---- */

static __device__ __forceinline__ uint4 load_shared_128(uint32_t shared) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(shared)
                 : "memory");
    return v;
}
static __device__ __forceinline__ uint32_t load_shared_32(uint32_t shared) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared) : "memory");
    return v;
}
static __device__ __forceinline__ uint32_t load_shared_8(uint32_t shared) {
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(shared) : "memory");
    return v;
}

/* Four matrices of 8 x 8 values of 16 bits: lane 8 i + r has the address of row r of the i-th, 16
 * bytes, and lane 4 g + t gets of each the values 2 t and 2 t + 1 of row g. */
static __device__ __forceinline__ void load_matrices(uint32_t shared, uint32_t (&x)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared)
                 : "memory");
}

/* Four matrices of 8 x 8 values of 16 bits, of which lane 4 g + t has values 2 t and 2 t + 1 of row
 * g, stored by their columns: lane 8 i + c has the address of column c of the i-th, 16 bytes. */
static __device__ __forceinline__ void store_matrices(uint32_t shared, uint32_t a, uint32_t b,
                                                      uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* 1 in one lane of the warp, 0 in the others. A value that is kept: what the lane's number is
 * compared with is read anew every time, which takes as long as a load. */
static __device__ __forceinline__ uint32_t elected_lane() {
    uint32_t is;
    asm volatile("{\n.reg .pred p;\n"
                 "elect.sync _|p, 0xFFFFFFFF;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(is));
    return is;
}

/* ---- Registers ---- */

/* x, kept in a register: the compiler would rather make it anew in every turn of a loop. `held`
 * hides from the assembler, too, what it is made of, for one instruction. */
static __device__ __forceinline__ uint32_t kept(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}
static __device__ __forceinline__ uint32_t held(uint32_t x) {
    return __shfl_sync(ALL_LANES, x, lane_id());
}

/* All warps of a warpgroup: how many registers each thread has from now on. */
template <int N> static __device__ __forceinline__ void fewer_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N> static __device__ __forceinline__ void more_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

/* ---- Products by a warp ---- */

/* d [16 rows][8 columns] += a [16][16] b [16][8]. Lane 4 g + t has rows g and g + 8 of columns 2 t
 * and 2 t + 1 of d, and of a and b the values 2 t, 2 t + 1 (first) and 2 t + 8, 2 t + 9
 * (second). */
static __device__ __forceinline__ void mma_bf16(float *d, const uint32_t *a, uint32_t b0,
                                                uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- Products by a warpgroup (wgmma), which later parts do not have in this form ---- */

/* The sums d[0 .. n) as operands, and the names of operands 0 .. n - 1. */
#define WGMMA_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_D16_AT(d, i)                                                                         \
    WGMMA_D4(d, i), WGMMA_D4(d, i + 4), WGMMA_D4(d, i + 8), WGMMA_D4(d, i + 12)
#define WGMMA_D64_AT(d, i)                                                                         \
    WGMMA_D16_AT(d, i), WGMMA_D16_AT(d, i + 16), WGMMA_D16_AT(d, i + 32), WGMMA_D16_AT(d, i + 48)
#define WGMMA_D8(d) WGMMA_D4(d, 0), WGMMA_D4(d, 4)
#define WGMMA_D16(d) WGMMA_D16_AT(d, 0)
#define WGMMA_D32(d) WGMMA_D16_AT(d, 0), WGMMA_D16_AT(d, 16)
#define WGMMA_D48(d) WGMMA_D32(d), WGMMA_D16_AT(d, 32)
#define WGMMA_D64(d) WGMMA_D64_AT(d, 0)
#define WGMMA_D128(d) WGMMA_D64_AT(d, 0), WGMMA_D64_AT(d, 64)
#define WGMMA_NEW4(d, i) "=f"(d[i]), "=f"(d[(i) + 1]), "=f"(d[(i) + 2]), "=f"(d[(i) + 3])
#define WGMMA_NEW16(d, i)                                                                          \
    WGMMA_NEW4(d, i), WGMMA_NEW4(d, (i) + 4), WGMMA_NEW4(d, (i) + 8), WGMMA_NEW4(d, (i) + 12)
#define WGMMA_NEW32(d) WGMMA_NEW16(d, 0), WGMMA_NEW16(d, 16)
#define WGMMA_R4 "%0,%1,%2,%3"
#define WGMMA_R8 WGMMA_R4 ",%4,%5,%6,%7"
#define WGMMA_R16 WGMMA_R8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_R32 WGMMA_R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_R48 WGMMA_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WGMMA_R64 WGMMA_R48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_R128                                                                                 \
    WGMMA_R64                                                                                      \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,"    \
    "%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,"  \
    "%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,"   \
    "%125,%126,%127"

static __device__ __forceinline__ void products_begin() { /* registers are ready */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void products_commit() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/* Until at most N groups are under way. */
template <int N> static __device__ __forceinline__ void products_wait() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}
/* What is done with these registers before stays before, and what is done after stays after: the
 * compiler does not know that they change while products are under way. */
template <int N> static __device__ __forceinline__ void hold(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}
/* What was stored or copied to shared memory is seen by products: those of this thread, of what it
 * or threads whose barrier it waited for wrote (attention); or those of threads that wait for a
 * barrier to which this one comes afterwards, of what it wrote itself (the indexer's queries). */
static __device__ __forceinline__ void shared_for_products() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
