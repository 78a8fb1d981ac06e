/* What the GPU can do at most: a copy within its memory, and bf16 matrix products whose operands
 * never leave shared memory.
 *
 * On compute capability 9.0 by the instruction of a whole warpgroup (wgmma), which alone reaches
 * the part's rate; elsewhere by the one of a warp (mma), which is less than a later part can do.
 * The operands are random: what zeros draw of the power limit is less, and clocks would be higher.
 * What comes out is not looked at, so it does not matter which element of a tile lies where.
 */
#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/cuda/peak.h"
}

static constexpr uint64_t COPY_BYTES = UINT64_C(512) << 20;
static constexpr int RUNS = 6, THREADS = 256, WARPGROUPS = THREADS / 128;

/* ---- Warpgroup products: [64][16] times [256][16], 2 of them in turn for each warpgroup ---- */

static constexpr int M = 64, N = 256, K = 16, STEPS = 2, ROUNDS = 8192, UNROLL = 16;
static constexpr int A_BYTES = M * K * 2, B_BYTES = N * K * 2;

/* Tiles without swizzle: pieces of 8 rows and 16 bytes, which lie behind each other; 128 bytes from
 * one to the next along K, 256 along M or N. All in units of 16 bytes. */
[[maybe_unused]] static __device__ uint64_t tile_descriptor(const void *shared) {
    uint64_t address = static_cast<uint64_t>(__cvta_generic_to_shared(shared));
    return (address >> 4 & 0x3FFF) | UINT64_C(8) << 16 | UINT64_C(16) << 32;
}

[[maybe_unused]] static __device__ __forceinline__ void multiply_tile(float (&d)[128], uint64_t a,
                                                                      uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "
                 "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, "
                 "%120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
                   "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
                   "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
                   "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]),
                   "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                   "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]),
                   "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
                   "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]),
                   "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
                   "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]),
                   "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]),
                   "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
                   "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]),
                   "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]),
                   "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]),
                   "+f"(d[127])
                 : "l"(a), "l"(b));
#else
    (void)d, (void)a, (void)b;
#endif
}

static __device__ void random_tiles(uint32_t *words, int n) {
    for (int i = static_cast<int>(threadIdx.x); i < n; i += THREADS) {
        uint32_t x = static_cast<uint32_t>(i) * 2654435761u + 12345u;
        x ^= x >> 15;
        x *= 2246822519u;
        words[i] = (x & 0x807F807Fu) | 0x3F803F80u; /* 1 to 2, of either sign */
    }
}

static __global__ void __launch_bounds__(THREADS) multiply_warpgroups(float *out) {
    __shared__ __align__(128) uint8_t tiles[(WARPGROUPS * A_BYTES + B_BYTES) * STEPS];
    random_tiles(reinterpret_cast<uint32_t *>(tiles), static_cast<int>(sizeof tiles / 4));
    __syncthreads();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    float d[128] = {0};
    uint64_t a[STEPS], b[STEPS];
    const uint8_t *mine = tiles + (threadIdx.x / 128) * (A_BYTES * STEPS);
    for (int i = 0; i < STEPS; i++) {
        a[i] = tile_descriptor(mine + i * A_BYTES);
        b[i] = tile_descriptor(tiles + (WARPGROUPS * A_BYTES) * STEPS + i * B_BYTES);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    for (int round = 0; round < ROUNDS; round++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int i = 0; i < UNROLL; i++) multiply_tile(d, a[i % STEPS], b[i % STEPS]);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    float sum = 0;
    for (int i = 0; i < 128; i++) sum += d[i];
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
#else
    out[blockIdx.x * THREADS + threadIdx.x] = 0;
#endif
}

/* ---- Warp products: [16][16] times [8][16], 8 sums in turn ---- */

static constexpr int SUMS = 8, WARP_ROUNDS = 65536;

static __global__ void __launch_bounds__(THREADS) multiply_warps(float *out) {
    uint32_t words[6];
    float d[SUMS][4] = {{0}}, sum = 0;
    for (int i = 0; i < 6; i++)
        words[i] = ((threadIdx.x * 6 + i) * 2654435761u & 0x807F807Fu) | 0x3F803F80u;
    for (int round = 0; round < WARP_ROUNDS; round++) {
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                         "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
                         : "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]),
                           "r"(words[4]), "r"(words[5]));
    }
    for (int i = 0; i < SUMS; i++) sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}

/* ---- Timing ---- */

typedef struct bench {
    di_backend *backend;
    di_ptr from, to;
    bool warpgroups;
} bench;

static void enqueue_copy(const bench *b) {
    b->backend->copy(b->backend->stream, b->to, b->from, COPY_BYTES);
}

static void enqueue_products(const bench *b) {
    di_stream *s = b->backend->stream;
    dim3 grid(static_cast<uint32_t>(s->n_processors) * (b->warpgroups ? 1 : 2));
    cuda_launch(s, "peak", grid, THREADS, 0, b->warpgroups ? multiply_warpgroups : multiply_warps,
                cuda_at<float>(b->to));
}

static double products_flops(const bench *b) {
    double n = static_cast<double>(b->backend->stream->n_processors);
    if (b->warpgroups) return n * WARPGROUPS * ROUNDS * UNROLL * (2.0 * M * N * K);
    return 2 * n * (THREADS / 32) * WARP_ROUNDS * SUMS * (2.0 * 16 * 8 * 16);
}

/* Of the best run; the first does not count. */
static di_status best_seconds(const bench *b, void (*enqueue)(const bench *b), double *seconds,
                              di_error *error) {
    di_backend *backend = b->backend;
    double at[2];
    *seconds = INFINITY;
    for (int i = 0; i <= RUNS; i++) {
        backend->stamp(backend->stream, &at[0]);
        enqueue(b);
        backend->stamp(backend->stream, &at[1]);
        DI_TRY(di_backend_sync(backend, error));
        if (i > 0 && at[1] - at[0] < *seconds) *seconds = at[1] - at[0];
    }
    return DI_OK;
}

static di_status measure(bench *b, di_cuda_peak *out, di_error *error) {
    di_backend *backend = b->backend;
    cudaDeviceProp prop;
    double copy, products;
    if (!cuda_check(backend->stream, cudaGetDeviceProperties(&prop, backend->stream->device),
                    "the device's properties"))
        return di_backend_sync(backend, error);
    b->warpgroups = prop.major == 9;
    DI_TRY(backend->alloc(backend, COPY_BYTES, "what is copied", &b->from, error));
    DI_TRY(backend->alloc(backend, COPY_BYTES, "its copy", &b->to, error));
    DI_TRY(best_seconds(b, enqueue_copy, &copy, error));
    DI_TRY(best_seconds(b, enqueue_products, &products, error));
    snprintf(out->device, sizeof out->device, "%s", backend->device);
    out->copy_bytes_per_s = 2.0 * static_cast<double>(COPY_BYTES) / copy;
    out->flop_per_s = products_flops(b) / products;
    return DI_OK;
}

extern "C" di_status di_cuda_peak_measure(int32_t device, di_cuda_peak *out, di_error *error) {
    bench b = {};
    const di_cuda_options options = {device, 0, 0};
    DI_TRY(di_backend_create_cuda(DI_NUMERICS_RELEASE, &options, &b.backend, error));
    di_status status = measure(&b, out, error);
    b.backend->destroy(b.backend);
    return status;
}
