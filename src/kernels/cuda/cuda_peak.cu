/* What the GPU can do at most: a copy within its memory, and bf16 matrix products whose operands
 * never leave shared memory.
 *
 * On compute capability 9.0 by the instruction of a whole warpgroup (wgmma), which alone reaches
 * the part's rate; elsewhere by the one of a warp (mma), which is less than a later part can do.
 * The operands are random: what zeros draw of the power limit is less, and clocks would be higher.
 * What comes out is not looked at, so it does not matter which element of a tile lies where.
 */
#include "kernels/cuda/instructions.cuh"

extern "C" {
#include "kernels/cuda/peak.h"
}

static constexpr uint64_t COPY_BYTES = UINT64_C(512) << 20;
static constexpr int RUNS = 6, THREADS = 256, WARPGROUPS = THREADS / 128;

/* ---- Warpgroup products: [64][16] times [256][16], 2 of them in turn for each warpgroup ---- */

static constexpr int M = 64, N = 256, K = 16, STEPS = 2, ROUNDS = 8192, UNROLL = 16;
static constexpr int A_BYTES = M * K * 2, B_BYTES = N * K * 2;

[[maybe_unused]] static __device__ __forceinline__ void multiply_tile(float (&d)[128], uint64_t a,
                                                                      uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" WGMMA_R128
                 "}, %128, %129, 1, 1, 1, 0, 0;"
                 : WGMMA_D128(d)
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

/* A tile without swizzle: core matrices of 8 rows and 16 bytes, 128 bytes from one to the next along
 * K, 256 along the other side. In units of 16 bytes. */
[[maybe_unused]] static __device__ uint64_t plain_descriptor(const void *shared) {
    return (shared_address(shared) >> 4 & 0x3FFFu) | UINT64_C(8) << 16 | UINT64_C(16) << 32;
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
        a[i] = plain_descriptor(mine + i * A_BYTES);
        b[i] = plain_descriptor(tiles + (WARPGROUPS * A_BYTES) * STEPS + i * B_BYTES);
    }
    shared_for_products();
    for (int round = 0; round < ROUNDS; round++) {
        products_begin();
#pragma unroll
        for (int i = 0; i < UNROLL; i++) multiply_tile(d, a[i % STEPS], b[i % STEPS]);
        products_commit();
        products_wait<0>();
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
        for (int i = 0; i < SUMS; i++) mma_bf16(d[i], words, words[4], words[5]);
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
