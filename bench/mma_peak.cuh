/* The matrix instructions of this GPU, and what it can do at most: copies of its memory and bf16
 * products. For the programs that compare with that. */
#ifndef DI_BENCH_MMA_PEAK_CUH
#define DI_BENCH_MMA_PEAK_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cudaStream_t stream = nullptr; /* the default one */

static void check(cudaError_t status, const char *what) {
    if (status == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
    exit(1);
}

/* ---- The instructions ---- */

static __device__ __forceinline__ void mma_sync(float *d, const uint32_t *a, const uint32_t *b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Only Hopper has wgmma (wgmma_is_there); code for other parts is compiled with a trap instead. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WGMMA_ASM(...) asm volatile(__VA_ARGS__)
#else
#define WGMMA_ASM(...) asm volatile("trap;")
#endif
static bool wgmma_is_there(void) {
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "device");
    return major == 9;
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define D32(i) D16(i), D16(i + 16)
#define D64(i) D32(i), D32(i + 32)
#define D128(i) D64(i), D64(i + 64)
#define R4 "%0,%1,%2,%3"
#define R32                                                                                        \
    R4 ",%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,"   \
       "%27,%28,%29,%30,%31"
#define R128                                                                                       \
    R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,"    \
        "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74," \
        "%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96," \
        "%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,"  \
        "%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

/* d += a b: the left operand by a descriptor, or in registers. */
#define WGMMA(n, outs, regs, a0, a1, a2, a3, a4)                                                   \
    [[maybe_unused]] static __device__ __forceinline__ void wgmma_ss(float(&d)[n / 2], uint64_t a, \
                                                                     uint64_t b) {                 \
        WGMMA_ASM("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" regs "}, %" #a0     \
                  ", %" #a1 ", 1, 1, 1, 0, 0;"                                                     \
                  : outs                                                                           \
                  : "l"(a), "l"(b));                                                               \
    }                                                                                              \
    [[maybe_unused]] static __device__ __forceinline__ void wgmma_rs(float(&d)[n / 2],             \
                                                                     const uint32_t *a,            \
                                                                     uint64_t b) {                 \
        WGMMA_ASM("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" regs "}, {%" #a0    \
                  ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #a4 ", 1, 1, 1, 0;"                            \
                  : outs                                                                           \
                  : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                           \
    }
WGMMA(8, D4(0), R4, 4, 5, 6, 7, 8)
WGMMA(64, D32(0), R32, 32, 33, 34, 35, 36)
WGMMA(256, D128(0), R128, 128, 129, 130, 131, 132)

static __device__ __forceinline__ void wgmma_fence() {
    WGMMA_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_wait() {
    WGMMA_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
    WGMMA_ASM("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
static __device__ __forceinline__ void proxy_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Blocks of 8 rows x 8 values, 128 bytes each: `rows / 8` of them, then as many for k 8..15. In
 * the descriptor: address, distance of the two k halves, distance of neighbours, all by 16. */
static __device__ __forceinline__ uint64_t descriptor(const void *shared, int rows) {
    uint64_t at = static_cast<uint64_t>(__cvta_generic_to_shared(shared)) >> 4 & 0x3FFF;
    return at | static_cast<uint64_t>(rows * 16 >> 4) << 16 | UINT64_C(8) << 32;
}
static __device__ __forceinline__ int place(int row, int k, int rows) { /* in values */
    return k / 8 * rows * 8 + row * 8 + k % 8;
}

/* ---- Rates ---- */

static __host__ __device__ uint32_t mixed(uint32_t x) {
    x ^= x >> 16, x *= 0x7FEB352Du, x ^= x >> 15, x *= 0x846CA68Bu, x ^= x >> 16;
    return x;
}

static __global__ void fill_kernel(uint4 *to, size_t n) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n;
         i += size_t(gridDim.x) * blockDim.x) {
        uint32_t x = mixed(static_cast<uint32_t>(i));
        to[i] = make_uint4(x, x * 3u, x * 5u, x * 7u);
    }
}

static __global__ void copy_kernel(const uint4 *from, uint4 *to, size_t n) {
    size_t stride = size_t(gridDim.x) * blockDim.x,
           i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        uint4 v[4];
        for (int j = 0; j < 4; j++) v[j] = __ldcs(from + i + j * stride);
        for (int j = 0; j < 4; j++) __stcs(to + i + j * stride, v[j]);
    }
}

static __global__ void read_kernel(const uint4 *from, uint32_t *to, size_t n) {
    size_t stride = size_t(gridDim.x) * blockDim.x,
           i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    uint32_t x = 0;
    for (; i + 7 * stride < n; i += 8 * stride) {
        uint4 v[8];
        for (int j = 0; j < 8; j++) v[j] = __ldcs(from + i + j * stride);
        for (int j = 0; j < 8; j++) x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (x == 0x12345678u) *to = x;
}

static __global__ void __launch_bounds__(256) mma_rate_kernel(int n, float *out) {
    uint32_t a[4], b[2];
    float d[8][4] = {};
    for (int i = 0; i < 4; i++) a[i] = (mixed(threadIdx.x * 4u + i) & 0x807F807Fu) | 0x3F803F80u;
    for (int i = 0; i < 2; i++) b[i] = (mixed(threadIdx.x * 9u + i) & 0x807F807Fu) | 0x3F803F80u;
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) mma_sync(d[j], a, b);
    float sum = 0;
    for (int j = 0; j < 8; j++) sum += d[j][0] + d[j][1] + d[j][2] + d[j][3];
    if (sum == 0.123f) *out = sum;
}

template <bool REGISTERS>
static __global__ void __launch_bounds__(256) wgmma_rate_kernel(int n, float *out) {
    __shared__ __align__(128) uint32_t a[64 * 8 * 2], b[256 * 8];
    for (int i = threadIdx.x; i < 64 * 8 * 2; i += 256)
        a[i] = (mixed(i) & 0x807F807Fu) | 0x3F803F80u;
    for (int i = threadIdx.x; i < 256 * 8; i += 256)
        b[i] = (mixed(i + 77) & 0x807F807Fu) | 0x3F803F80u;
    proxy_fence();
    __syncthreads();
    uint32_t fa[4] = {a[threadIdx.x], a[threadIdx.x + 256], a[threadIdx.x + 512],
                      a[threadIdx.x + 768]};
    uint64_t da = descriptor(a + threadIdx.x / 128 * 512, 64), db = descriptor(b, 256);
    float d[128];
    for (int i = 0; i < 128; i++) d[i] = 0;
    for (int i = 0; i < n; i++) {
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (REGISTERS)
                wgmma_rs(d, fa, db);
            else
                wgmma_ss(d, da, db);
        }
        wgmma_wait();
    }
    float sum = 0;
    for (int i = 0; i < 128; i++) sum += d[i];
    if (sum == 0.123f) *out = sum;
}

/* Milliseconds of the best of some runs. */
template <typename Run> static float best_ms(int repeats, Run run) {
    cudaEvent_t from, to;
    float best = 1e30f;
    check(cudaEventCreate(&from), "event");
    check(cudaEventCreate(&to), "event");
    for (int i = 0; i < repeats; i++) {
        float ms;
        check(cudaEventRecord(from), "event");
        run();
        check(cudaGetLastError(), "launch");
        check(cudaEventRecord(to), "event");
        check(cudaEventSynchronize(to), "run");
        check(cudaEventElapsedTime(&ms, from, to), "event");
        if (ms < best) best = ms;
    }
    check(cudaEventDestroy(from), "event");
    check(cudaEventDestroy(to), "event");
    return best;
}

/* GB/s: copies (bytes read and written) by the driver and by a kernel, and reads alone. */
typedef struct memory_peak {
    double driver, copy, read;
} memory_peak;

static memory_peak measure_memory(int processors) {
    const size_t bytes = size_t(2) << 30, n = bytes / 16;
    uint4 *from, *to;
    check(cudaMalloc(&from, bytes), "memory");
    check(cudaMalloc(&to, bytes), "memory");
    fill_kernel<<<processors * 8, 256, 0, stream>>>(from, n);
    float driver = best_ms(10, [&] {
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
    });
    float copy = best_ms(10, [&] { copy_kernel<<<processors * 4, 512, 0, stream>>>(from, to, n); });
    float read = best_ms(10, [&] {
        read_kernel<<<processors * 2, 1024, 0, stream>>>(from, reinterpret_cast<uint32_t *>(to), n);
    });
    double gb = static_cast<double>(bytes) * 1e-6;
    check(cudaFree(from), "free");
    check(cudaFree(to), "free");
    return memory_peak{2 * gb / driver, 2 * gb / copy, gb / read};
}

/* TFLOP/s of bf16 products: mma.sync from registers, wgmma with the left operand in shared memory
 * and in registers (0 where there is none). */
typedef struct matrix_peak {
    double sync, shared, registers;
} matrix_peak;

static matrix_peak measure_matrix(int processors) {
    float *out;
    const int n = 4000;
    check(cudaMalloc(&out, 4), "memory");
    double sync =
        best_ms(5, [&] { mma_rate_kernel<<<processors * 2, 256, 0, stream>>>(4 * n, out); });
    double by_warp = 2.0 * 16 * 8 * 16 * 8 * 4 * n * processors * 2 * 8;
    double by_group = 2.0 * 64 * 256 * 16 * 4 * n * processors * 2;
    if (!wgmma_is_there()) {
        check(cudaFree(out), "free");
        return matrix_peak{by_warp / sync * 1e-9, 0, 0};
    }
    double shared =
        best_ms(5, [&] { wgmma_rate_kernel<false><<<processors, 256, 0, stream>>>(n, out); });
    double registers =
        best_ms(5, [&] { wgmma_rate_kernel<true><<<processors, 256, 0, stream>>>(n, out); });
    check(cudaFree(out), "free");
    return matrix_peak{by_warp / sync * 1e-9, by_group / shared * 1e-9,
                       by_group / registers * 1e-9};
}

#endif
