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
#include "mma_peak.cuh"

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

int main(void) {
    cudaDeviceProp prop;
    check(cudaGetDeviceProperties(&prop, 0), "device");
    printf("%s, %d processors\n", prop.name, prop.multiProcessorCount);
    if (!wgmma_is_there()) {
        fprintf(stderr, "bench_mma_bits: this GPU has no wgmma to compare\n");
        return 77;
    }
    bool equal = compare_bits();
    memory_peak memory = measure_memory(prop.multiProcessorCount);
    matrix_peak matrix = measure_matrix(prop.multiProcessorCount);
    printf("copy (read and written bytes): driver %.0f GB/s, kernel %.0f GB/s; read %.0f GB/s\n",
           memory.driver, memory.copy, memory.read);
    printf("bf16: mma.sync %.0f TFLOP/s; wgmma m64n256 shared %.0f, registers %.0f TFLOP/s\n",
           matrix.sync, matrix.shared, matrix.registers);
    printf("%s\n", equal ? "all bits equal" : "SOME BITS DIFFER");
    return 0;
}
