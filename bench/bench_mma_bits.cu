/* What the matrix units of this GPU do: their bits and their rates.
 *
 *   bench_mma_bits
 *
 * bits: chains of products over K by mma.sync m16n8k16, by wgmma m64nNk16 with the left operand in
 * shared memory and in registers, and by mma.sync with the operands exchanged, from the same random
 * bf16 values. The narrow and the wide tiles of a product (src/kernels/cuda/mma_wide.cuh) may be
 * chosen by the number of rows only where all of them give equal bits.
 *
 * rates: copies and reads of device memory; bf16 products from registers (mma.sync) and from shared
 * memory and registers (wgmma), on random values.
 */
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cudaStream_t stream = nullptr; /* the default one */

static void check(cudaError_t status, const char *what) {
    if (status == cudaSuccess) return;
    fprintf(stderr, "bench_mma_bits: %s: %s\n", what, cudaGetErrorString(status));
    exit(1);
}

/* ---- The instructions ---- */

static __device__ __forceinline__ void mma_sync(float *d, const uint32_t *a, const uint32_t *b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
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
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" regs "}, %" #a0  \
                     ", %" #a1 ", 1, 1, 1, 0, 0;"                                                  \
                     : outs                                                                        \
                     : "l"(a), "l"(b));                                                            \
    }                                                                                              \
    [[maybe_unused]] static __device__ __forceinline__ void wgmma_rs(float(&d)[n / 2],             \
                                                                     const uint32_t *a,            \
                                                                     uint64_t b) {                 \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" regs "}, {%" #a0 \
                     ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #a4 ", 1, 1, 1, 0;"                         \
                     : outs                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }
WGMMA(8, D4(0), R4, 4, 5, 6, 7, 8)
WGMMA(64, D32(0), R32, 32, 33, 34, 35, 36)
WGMMA(256, D128(0), R128, 128, 129, 130, 131, 132)

static __device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
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

/* ---- Random values ---- */

static __device__ uint32_t mixed(uint32_t x) {
    x ^= x >> 16, x *= 0x7FEB352Du, x ^= x >> 15, x *= 0x846CA68Bu, x ^= x >> 16;
    return x;
}

/* `spread`: how many exponents values are spread over. With `cancel`, the second half of K takes back
 * most of the first. */
static __device__ __nv_bfloat16 random_value(uint32_t seed, int spread) {
    uint32_t bits = mixed(seed);
    float fraction = 1.0f + static_cast<float>(bits & 127u) / 128.0f;
    int exponent = static_cast<int>(mixed(bits) % static_cast<uint32_t>(spread)) - spread / 2;
    return __float2bfloat16_rn(ldexpf(bits >> 31 ? -fraction : fraction, exponent));
}

/* ---- Bits ---- */

enum { THREADS = 128, COLUMNS = 256, TILE = 64 * COLUMNS, BLOCKS = 264 };
enum way { SYNC, SHARED_8, REGISTERS_8, SHARED_64, SHARED_256, REGISTERS_256, SYNC_TURNED, TURNED };
static const struct {
    const char *name;
    int columns; /* that it makes of the tile's */
} ways[] = {{"mma.sync", 256},
            {"wgmma m64n8, shared", 8},
            {"wgmma m64n8, registers", 8},
            {"wgmma m64n64, shared", 64},
            {"wgmma m64n256, shared", 256},
            {"wgmma m64n256, registers", 256},
            {"mma.sync, operands exchanged", 64},
            {"wgmma, operands exchanged", 64}};
enum { WAYS = sizeof ways / sizeof ways[0] };

typedef struct chain {
    int steps, spread; /* of 16 along K; of exponents */
    bool cancel;
    uint32_t seed;
} chain;

/* Step s of the block's 64 x 16 and 256 x 16 operands. */
static __device__ void make_operands(const chain &c, int s, __nv_bfloat16 *a, __nv_bfloat16 *b) {
    bool back = c.cancel && s >= c.steps / 2;
    uint32_t at = mixed(c.seed + blockIdx.x * 7919u) +
                  static_cast<uint32_t>(back ? s - c.steps / 2 : s) * 65536u;
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * 16; i += THREADS) {
        float v = __bfloat162float(random_value(at + static_cast<uint32_t>(i), c.spread));
        a[place(i / 16, i % 16, 64)] = __float2bfloat16_rn(back ? -v : v);
    }
    for (int i = threadIdx.x; i < COLUMNS * 16; i += THREADS)
        b[place(i / 16, i % 16, COLUMNS)] =
            random_value(at + 8192u + static_cast<uint32_t>(i), c.spread);
    proxy_fence();
    __syncthreads();
}

/* Values k 2 t + 8 k8 and the next of a row. */
static __device__ uint32_t pair(const __nv_bfloat16 *x, int row, int k8, int rows) {
    return *reinterpret_cast<const uint32_t *>(&x[place(row, threadIdx.x % 4 * 2 + 8 * k8, rows)]);
}
static __device__ void left_fragment(const __nv_bfloat16 *x, int row, int rows, uint32_t *out) {
    for (int i = 0; i < 4; i++) out[i] = pair(x, row + i % 2 * 8, i / 2, rows);
}

template <way WAY, int N>
static __device__ void run_step(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float (&d)[N]) {
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    uint32_t left[4], right[2];
    if constexpr (WAY == SYNC || WAY == SYNC_TURNED) {
        const __nv_bfloat16 *l = WAY == SYNC ? a : b, *r = WAY == SYNC ? b : a;
        left_fragment(l, 16 * warp + g, WAY == SYNC ? 64 : COLUMNS, left);
        for (int j = 0; j < N / 4; j++) {
            for (int i = 0; i < 2; i++)
                right[i] = pair(r, 8 * j + g, i, WAY == SYNC ? COLUMNS : 64);
            mma_sync(d + 4 * j, left, right);
        }
        return;
    } else {
        left_fragment(a, 16 * warp + g, 64, left);
        wgmma_fence();
        if constexpr (WAY == REGISTERS_8 || WAY == REGISTERS_256)
            wgmma_rs(d, left, descriptor(b, COLUMNS));
        else if constexpr (WAY == TURNED)
            wgmma_ss(d, descriptor(b, COLUMNS), descriptor(a, 64));
        else
            wgmma_ss(d, descriptor(a, 64), descriptor(b, COLUMNS));
        wgmma_wait();
    }
}

/* One 64 x 256 tile a block, or its first columns. */
template <way WAY, int N>
static __global__ void __launch_bounds__(THREADS) tile_kernel(chain c, float *out) {
    __shared__ __align__(128) __nv_bfloat16 a[64 * 16], b[COLUMNS * 16];
    const bool turned = WAY == SYNC_TURNED || WAY == TURNED;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float d[N];
    for (int i = 0; i < N; i++) d[i] = 0;
    for (int s = 0; s < c.steps; s++) {
        make_operands(c, s, a, b);
        run_step<WAY, N>(a, b, d);
    }
    for (int i = 0; i < N; i++) {
        int row = threadIdx.x / 32 * 16 + g + i / 2 % 2 * 8, column = i / 4 * 8 + 2 * t + i % 2;
        int at = turned ? column * COLUMNS + row : row * COLUMNS + column;
        out[static_cast<size_t>(blockIdx.x) * TILE + static_cast<size_t>(at)] = d[i];
    }
}

typedef struct counts {
    unsigned long long equal, unequal;
    unsigned int apart; /* bits of the largest difference over the want's size, a float */
} counts;

static __global__ void compare_kernel(const float *got, const float *want, int columns,
                                      counts *out) {
    size_t tile = static_cast<size_t>(blockIdx.x) * TILE;
    for (int i = threadIdx.x; i < 64 * columns; i += THREADS) {
        size_t at = tile + static_cast<size_t>(i / columns * COLUMNS + i % columns);
        bool same = __float_as_uint(got[at]) == __float_as_uint(want[at]);
        float apart = fabsf(got[at] - want[at]) / fmaxf(fabsf(want[at]), 1e-30f);
        atomicAdd(same ? &out->equal : &out->unequal, 1ull);
        if (!same) atomicMax(&out->apart, __float_as_uint(apart));
    }
}

static float as_float(unsigned int bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void run_way(int w, const chain &c, float *out) {
    switch (w) {
    case SYNC: tile_kernel<SYNC, 128><<<BLOCKS, THREADS, 0, stream>>>(c, out); break;
    case SHARED_8: tile_kernel<SHARED_8, 4><<<BLOCKS, THREADS, 0, stream>>>(c, out); break;
    case REGISTERS_8: tile_kernel<REGISTERS_8, 4><<<BLOCKS, THREADS, 0, stream>>>(c, out); break;
    case SHARED_64: tile_kernel<SHARED_64, 32><<<BLOCKS, THREADS, 0, stream>>>(c, out); break;
    case SHARED_256: tile_kernel<SHARED_256, 128><<<BLOCKS, THREADS, 0, stream>>>(c, out); break;
    case REGISTERS_256:
        tile_kernel<REGISTERS_256, 128><<<BLOCKS, THREADS, 0, stream>>>(c, out);
        break;
    case SYNC_TURNED: tile_kernel<SYNC_TURNED, 32><<<BLOCKS, THREADS, 0, stream>>>(c, out); break;
    default: tile_kernel<TURNED, 32><<<BLOCKS, THREADS, 0, stream>>>(c, out);
    }
    check(cudaGetLastError(), "bits");
}

static bool compare_bits(void) {
    static const chain chains[] = {{1, 1, false, 1},   {1, 24, false, 2}, {4, 8, false, 3},
                                   {40, 1, false, 4},  {40, 8, false, 5}, {64, 24, true, 6},
                                   {320, 4, false, 7}, {320, 12, true, 8}};
    counts *out, part, total[WAYS] = {};
    float *want, *got;
    bool all = true;
    check(cudaMalloc(&out, sizeof part), "memory");
    check(cudaMalloc(&want, sizeof(float) * TILE * BLOCKS), "memory");
    check(cudaMalloc(&got, sizeof(float) * TILE * BLOCKS), "memory");
    for (const chain &c : chains) {
        run_way(SYNC, c, want);
        for (int w = 1; w < WAYS; w++) {
            check(cudaMemset(got, 0xFF, sizeof(float) * TILE * BLOCKS), "memset");
            check(cudaMemset(out, 0, sizeof part), "memset");
            run_way(w, c, got);
            compare_kernel<<<BLOCKS, THREADS, 0, stream>>>(got, want, ways[w].columns, out);
            check(cudaMemcpy(&part, out, sizeof part, cudaMemcpyDeviceToHost), "bits");
            total[w].equal += part.equal, total[w].unequal += part.unequal;
            if (part.unequal > 0)
                printf("  steps %d, spread %d%s: %s: %llu of %llu unequal, up to %.2g\n", c.steps,
                       c.spread, c.cancel ? ", cancelling" : "", ways[w].name, part.unequal,
                       part.equal + part.unequal, static_cast<double>(as_float(part.apart)));
        }
    }
    printf("bits against mma.sync m16n8k16:\n");
    for (int w = 1; w < WAYS; w++) {
        printf("  %-28s equal %10llu  unequal %10llu\n", ways[w].name, total[w].equal,
               total[w].unequal);
        all = all && total[w].unequal == 0;
    }
    check(cudaFree(out), "free");
    check(cudaFree(want), "free");
    check(cudaFree(got), "free");
    return all;
}

/* ---- Rates ---- */

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

static void memory_rates(int processors) {
    const size_t bytes = size_t(2) << 30, n = bytes / 16;
    uint4 *from, *to;
    check(cudaMalloc(&from, bytes), "memory");
    check(cudaMalloc(&to, bytes), "memory");
    fill_kernel<<<processors * 8, 256, 0, stream>>>(from, n);
    float driver = best_ms(10, [&] {
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice), "copy");
    });
    float copy = best_ms(10, [&] { copy_kernel<<<processors * 4, 512, 0, stream>>>(from, to, n); });
    float read = best_ms(10, [&] {
        read_kernel<<<processors * 2, 1024, 0, stream>>>(from, reinterpret_cast<uint32_t *>(to), n);
    });
    double gb = static_cast<double>(bytes) * 1e-6;
    printf("copy (read and written bytes): driver %.0f GB/s, kernel %.0f GB/s; read %.0f GB/s\n",
           2 * gb / driver, 2 * gb / copy, gb / read);
    check(cudaFree(from), "free");
    check(cudaFree(to), "free");
}

static void matrix_rates(int processors) {
    float *out;
    const int n = 4000;
    check(cudaMalloc(&out, 4), "memory");
    double sync =
        best_ms(5, [&] { mma_rate_kernel<<<processors * 2, 256, 0, stream>>>(4 * n, out); });
    double shared =
        best_ms(5, [&] { wgmma_rate_kernel<false><<<processors, 256, 0, stream>>>(n, out); });
    double registers =
        best_ms(5, [&] { wgmma_rate_kernel<true><<<processors, 256, 0, stream>>>(n, out); });
    double flop_sync = 2.0 * 16 * 8 * 16 * 8 * 4 * n * processors * 2 * 8;
    double flop_group = 2.0 * 64 * 256 * 16 * 4 * n * processors * 2;
    printf("bf16: mma.sync %.0f TFLOP/s; wgmma m64n256 shared %.0f, registers %.0f TFLOP/s\n",
           flop_sync / sync * 1e-9, flop_group / shared * 1e-9, flop_group / registers * 1e-9);
    check(cudaFree(out), "free");
}

int main(void) {
    cudaDeviceProp prop;
    check(cudaGetDeviceProperties(&prop, 0), "device");
    printf("%s, %d processors\n", prop.name, prop.multiProcessorCount);
    bool equal = compare_bits();
    memory_rates(prop.multiProcessorCount);
    matrix_rates(prop.multiProcessorCount);
    printf("%s\n", equal ? "all bits equal" : "SOME BITS DIFFER");
    return 0;
}
