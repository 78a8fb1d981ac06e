/* Every kind of product of the CUDA backend at the released widths, against what the GPU can do.
 *
 *   bench_cuda [ROWS ...]
 *
 * `release`, random weights, by default 1, 8, 32, 64, 256 and 2048 rows. A line is one operation: its
 * time in a CUDA graph of many calls, each on other weights until the cache cannot hold them; the
 * stored bytes that it must read (experts: of those that were picked) and what it reads and writes
 * of activations; its operations; and the share of the floor max(bytes / copy bandwidth, operations
 * / matrix rate), both measured first. What launching costs is in the times: see the line of empty
 * kernels, of which an operation has two to four.
 */
#include "kernels/cuda/cuda.h"

#include "graph_times.cuh"
#include "mma_peak.cuh"

static constexpr int32_t WIDTH = 5120, INNER = 2304, EXPERTS = 384, TOP_K = 6, MAX_ROWS = 2048;
static constexpr uint64_t POOL = UINT64_C(8) << 30; /* of weights */
static constexpr int MAX_CALLS = 64;                /* of a graph */

static di_backend *backend;
static di_ptr pool, x, out; /* weights; activations in; out, up to logits */
static double copy_rate, matrix_rate;

static void must(di_status status, const di_error *error) {
    if (status == DI_OK) return;
    fprintf(stderr, "bench_cuda: %s\n", error->message);
    exit(1);
}

static di_ptr take(uint64_t bytes, const char *what) {
    di_error error;
    di_ptr memory;
    must(backend->alloc(backend, bytes, what, &memory, &error), &error);
    return memory;
}

static void sync_all(void) {
    di_error error;
    must(di_backend_sync(backend, &error), &error);
}

/* Bytes that are moderate as codes of any format: bf16 of about 2^-2 to 2, no NaN. */
static __global__ void random_kernel(uint32_t *to, uint64_t words, uint32_t and_mask,
                                     uint32_t or_mask, uint32_t seed) {
    uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
         i += stride)
        to[i] = (mixed(static_cast<uint32_t>(i) * 2654435761u + seed) & and_mask) | or_mask;
}
static void fill_random(di_ptr to, uint64_t bytes, uint32_t and_mask, uint32_t or_mask) {
    random_kernel<<<2048, 256, 0, backend->stream->stream>>>(cuda_at<uint32_t>(to), bytes / 4,
                                                             and_mask, or_mask, 7);
    check(cudaGetLastError(), "random values");
}

/* ---- Matrices in the pool ---- */

static uint64_t stored(di_dtype dtype, int32_t n, int32_t k) {
    di_host_matrix m = {dtype, n, k, 1, NULL, NULL};
    return di_host_matrix_bytes(&m) + di_host_matrix_scale_bytes(&m);
}

static uint64_t pool_used;
static di_ptr pool_take(uint64_t bytes) {
    di_ptr at = di_ptr_at(pool, pool_used);
    pool_used += (bytes + 255) / 256 * 256;
    if (pool_used > POOL) {
        fprintf(stderr, "bench_cuda: the pool is too small\n");
        exit(1);
    }
    return at;
}

/* Bytes that are moderate as codes of any format, scales with a few of them. */
static void host_random(uint8_t *to, uint64_t bytes, uint32_t and_mask, uint32_t or_mask) {
    for (uint64_t i = 0; i < bytes; i += 4) {
        uint32_t word = (mixed(static_cast<uint32_t>(i) * 2654435761u + 7) & and_mask) | or_mask;
        memcpy(to + i, &word, bytes - i < 4 ? bytes - i : 4);
    }
}

/* The first of its shape, bound as the model's are; the others are copies of it. */
static di_matrix prototype(di_dtype dtype, int32_t n, int32_t k, int32_t groups) {
    di_host_matrix m = {dtype, n, k, groups, NULL, NULL};
    uint64_t codes = di_host_matrix_bytes(&m), scales = di_host_matrix_scale_bytes(&m);
    bool bf16 = dtype == DI_BF16;
    uint8_t *data = static_cast<uint8_t *>(malloc(codes + scales));
    di_matrix out;
    di_error error;
    if (data == NULL) {
        fprintf(stderr, "bench_cuda: no memory\n");
        exit(1);
    }
    host_random(data, codes, bf16 ? 0x80FF80FFu : 0xF7F7F7F7u, bf16 ? 0x3D003D00u : 0);
    host_random(data + codes, scales, 0x03030303u, 0x78787878u);
    m.data = data, m.scale = scales > 0 ? data + codes : NULL;
    must(backend->bind_matrix(backend, &m, "a matrix", &out, &error), &error);
    free(data);
    return out;
}
static di_matrix matrix(di_dtype dtype, int32_t n, int32_t k, int32_t groups = 1) {
    static struct {
        di_matrix m;
        int32_t groups;
    } known[16];
    static int n_known;
    di_host_matrix shape = {dtype, n, k, groups, NULL, NULL};
    uint64_t bytes = di_packed_bytes(backend, &shape);
    int i = 0;
    while (i < n_known && (known[i].m.dtype != dtype || known[i].m.n != n || known[i].m.k != k ||
                           known[i].groups != groups))
        i++;
    if (i == n_known) {
        if (n_known == 16) cuda_broken("n_known < 16", __FILE__, __LINE__);
        known[n_known].m = prototype(dtype, n, k, groups), known[n_known++].groups = groups;
    }
    di_matrix m = {dtype, n, k, pool_take(bytes), DI_NONE};
    backend->copy(backend->stream, m.data, known[i].m.data, bytes);
    return m;
}
static di_matrix floats(int32_t n, int32_t k) { /* about 2^-4 */
    di_matrix m = {DI_F32, n, k, pool_take(UINT64_C(4) * n * k), DI_NONE};
    fill_random(m.data, UINT64_C(4) * n * k, 0x80FF80FFu, 0x3D003D00u);
    return m;
}

/* ---- Times ---- */

/* Microseconds of one of `calls` calls in a graph; call(i) enqueues number i. */
template <typename Call> static double time_calls(int calls, Call call) {
    cudaStream_t s = backend->stream->stream;
    cudaGraph_t graph;
    double seconds[4];
    call(0); /* what is set up once */
    check(cudaStreamSynchronize(s), "run");
    check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < calls; i++) call(i);
    check(cudaStreamEndCapture(s, &graph), "capture");
    check(graph_times(s, graph, 4, seconds), "graph");
    check(cudaGraphDestroy(graph), "graph");
    sync_all(); /* errors of the backend's own */
    return 1e6 * best_of(seconds, 4) / calls;
}

static void report(const char *name, int32_t rows, double us, double bytes, double flop) {
    double by_memory = bytes / copy_rate * 1e-3, by_matrix = flop / matrix_rate * 1e-6;
    double floor_us = by_memory > by_matrix ? by_memory : by_matrix;
    printf("%-16s %5d %10.1f %10.1f %8.0f %8.1f   %-6s %.2f\n", name, rows, us, bytes * 1e-6,
           bytes / us * 1e-3, flop / us * 1e-6, by_memory > by_matrix ? "memory" : "matrix",
           floor_us / us);
    fflush(stdout);
}

/* How many calls go into a graph whose calls take about `floor` bytes and operations. */
static int calls_for(double bytes, double flop) {
    double us = 5 + bytes / copy_rate * 1e-3 + flop / matrix_rate * 1e-6;
    int n = static_cast<int>(6000 / us);
    return n < 2 ? 2 : n > MAX_CALLS ? MAX_CALLS : n;
}

static __global__ void empty_kernel() {}
static void time_empty(void) {
    double us = time_calls(MAX_CALLS,
                           [](int) { empty_kernel<<<132, 256, 0, backend->stream->stream>>>(); });
    printf("an empty kernel in a graph: %.2f us\n", us);
}

/* ---- Operations ---- */

typedef struct linear_case {
    const char *name;
    di_dtype dtype;
    int32_t n, k, groups;
    bool quantize, to_f;
} linear_case;

static const linear_case linear_cases[] = {
    {"wq_a", DI_F8_E4M3, 1280, WIDTH, 1, true, false},
    {"wq_b", DI_F8_E4M3, 32768, 1280, 1, true, false},
    {"wkv", DI_F8_E4M3, 512, WIDTH, 1, true, false},
    {"wo_a (8 groups)", DI_F8_E4M3, 8192, 4096, 8, false, false},
    {"wo_b", DI_F8_E4M3, WIDTH, 8192, 1, true, false},
    {"indexer.wq_b", DI_F8_E4M3, 4096, 1280, 1, true, false},
    {"engram.wkv", DI_F8_E4M3, 25600, 6144, 1, true, false},
    {"gate", DI_BF16, EXPERTS, WIDTH, 1, false, true},
    {"compressor.wkv", DI_BF16, 512, WIDTH, 1, false, true},
    {"head", DI_BF16, 129280, WIDTH, 1, false, true},
    {"hc_fn (F32)", DI_F32, 24, 4 * WIDTH, 1, false, true},
};

static void bench_linear(const linear_case &c, int32_t rows) {
    di_matrix w[MAX_CALLS];
    di_dtype dtype = c.dtype;
    double bytes = static_cast<double>(stored(dtype, c.n, c.k));
    double flop = 2.0 * rows * c.n * c.k;
    pool_used = 0;
    int copies = static_cast<int>(2e8 / bytes) + 1, calls = calls_for(bytes, flop);
    if (copies > MAX_CALLS) copies = MAX_CALLS;
    for (int i = 0; i < copies; i++) {
        w[i] = dtype == DI_F32 ? floats(c.n, c.k) : matrix(dtype, c.n, c.k, c.groups);
    }
    double us = time_calls(calls, [&](int i) {
        di_linear_args args = {rows, c.groups, c.quantize, c.to_f, x, w[i % copies], out};
        backend->ops->linear(backend->stream, &args);
    });
    bytes += 2.0 * rows * c.groups * c.k + (c.to_f ? 4.0 : 2.0) * rows * c.n;
    report(c.name, rows, us, bytes, flop);
}

static void bench_shared(int32_t rows) {
    di_shared_expert_args args = {};
    enum { SETS = 6 };
    di_shared_expert_args all[SETS];
    double bytes = 3.0 * static_cast<double>(stored(DI_F8_E4M3, INNER, WIDTH));
    double flop = 6.0 * rows * INNER * WIDTH;
    pool_used = 0;
    args.n_rows = rows, args.limit = 10, args.u = x, args.out = out;
    for (int i = 0; i < SETS; i++) {
        args.w1 = matrix(DI_F8_E4M3, INNER, WIDTH), args.w3 = matrix(DI_F8_E4M3, INNER, WIDTH);
        args.w2 = matrix(DI_F8_E4M3, WIDTH, INNER);
        all[i] = args;
    }
    double us = time_calls(calls_for(bytes, flop), [&](int i) {
        backend->ops->shared_expert(backend->stream, &all[i % SETS]);
    });
    report("shared expert", rows, us, bytes + 4.0 * rows * WIDTH, flop);
}

/* Random distinct picks of every row; how many experts have any. */
static int make_picks(int32_t rows, int32_t *picks, uint32_t *state) {
    bool hit[EXPERTS] = {};
    int n = 0;
    for (int32_t t = 0; t < rows; t++) {
        int32_t *row = picks + t * TOP_K;
        for (int i = 0; i < TOP_K;) {
            *state = *state * 1664525u + 1013904223u;
            row[i] = static_cast<int32_t>((*state >> 8) % EXPERTS);
            bool again = false;
            for (int j = 0; j < i; j++) again = again || row[j] == row[i];
            if (again) continue;
            n += !hit[row[i]];
            hit[row[i]] = true;
            i++;
        }
    }
    return n;
}

static void make_experts(di_expert *table) {
    pool_used = 0;
    for (int e = 0; e < EXPERTS; e++) {
        di_matrix w1 = matrix(DI_FP4_PAIR, INNER, WIDTH), w3 = matrix(DI_FP4_PAIR, INNER, WIDTH);
        di_matrix w2 = matrix(DI_FP4_PAIR, WIDTH, INNER);
        table[e] = di_expert{w1.data, w1.scale, w3.data, w3.scale, w2.data, w2.scale};
    }
}

static void bench_experts(int32_t rows, di_ptr table) {
    enum { SETS = 8 };
    static di_ptr picks[SETS], weights;
    uint32_t state = 12345;
    double hit = 0;
    if (cuda_none(weights)) {
        weights = take(UINT64_C(4) * MAX_ROWS * TOP_K, "weights");
        fill_random(weights, UINT64_C(4) * MAX_ROWS * TOP_K, 0x007FFFFFu, 0x3E000000u);
        for (int i = 0; i < SETS; i++) picks[i] = take(UINT64_C(4) * MAX_ROWS * TOP_K, "picks");
    }
    for (int i = 0; i < SETS; i++) {
        static int32_t host[MAX_ROWS * TOP_K];
        hit += make_picks(rows, host, &state) / static_cast<double>(SETS);
        backend->upload(backend->stream, picks[i], host, UINT64_C(4) * rows * TOP_K);
        sync_all();
    }
    double bytes = hit * 3.0 * static_cast<double>(stored(DI_FP4_PAIR, INNER, WIDTH));
    double flop = 6.0 * rows * TOP_K * static_cast<double>(INNER) * WIDTH;
    int calls = calls_for(bytes, flop) / SETS * SETS;
    double us = time_calls(calls < SETS ? SETS : calls, [&](int i) {
        di_experts_args args = {rows,    TOP_K,       EXPERTS, 10,    DI_NONE, x,  picks[i % SETS],
                                weights, DI_FP4_PAIR, WIDTH,   INNER, table,   out};
        backend->ops->experts(backend->stream, &args);
    });
    report("experts", rows, us, bytes + 2.0 * rows * WIDTH * (1 + TOP_K), flop);
}

static void create(void) {
    di_error error;
    di_limits limits = {};
    must(di_backend_create_cuda(DI_NUMERICS_RELEASE, NULL, &backend, &error), &error);
    limits.max_rows = limits.max_out = MAX_ROWS, limits.width = WIDTH, limits.hc = 4;
    limits.vocab = 129280, limits.n_heads = 64, limits.head_dim = 512, limits.q_rank = 1280;
    limits.o_low = 8192, limits.n_experts = EXPERTS, limits.top_k = TOP_K, limits.inner = INNER;
    limits.index_heads = 32, limits.index_dim = 128, limits.max_k = 4 * WIDTH;
    limits.max_entries = 64, limits.index_top_k = 512, limits.top_blocks = 1;
    limits.block_size = 8;
    must(backend->prepare(backend, &limits, &error), &error);
    pool = take(POOL, "weights");
    x = take(UINT64_C(2) * MAX_ROWS * 32768, "activations");
    out = take(UINT64_C(4) * MAX_ROWS * 129280, "results");
    fill_random(x, UINT64_C(2) * MAX_ROWS * 32768, 0x80FF80FFu, 0x3F003F00u);
    sync_all();
}

int main(int argc, char **argv) {
    static int32_t rows[16] = {1, 8, 32, 64, 256, 2048};
    static di_expert table[EXPERTS];
    int n_rows = argc > 1 ? argc - 1 : 6;
    for (int i = 1; i < argc && i <= 16; i++) rows[i - 1] = atoi(argv[i]);
    for (int i = 0; i < n_rows; i++) {
        if (n_rows <= 16 && rows[i] >= 1 && rows[i] <= MAX_ROWS) continue;
        fprintf(stderr, "bench_cuda: up to 16 numbers of rows from 1 to %d\n", MAX_ROWS);
        return 2;
    }
    cudaDeviceProp prop;
    check(cudaGetDeviceProperties(&prop, 0), "device");
    memory_peak memory = measure_memory(prop.multiProcessorCount);
    matrix_peak peak = measure_matrix(prop.multiProcessorCount);
    copy_rate = memory.driver > memory.copy ? memory.driver : memory.copy;
    matrix_rate = fmax(peak.sync, fmax(peak.shared, peak.registers));
    printf("%s: copies %.0f GB/s, reads %.0f GB/s; bf16 %.0f TFLOP/s (mma.sync %.0f)\n", prop.name,
           copy_rate, memory.read, matrix_rate, peak.sync);
    create();
    time_empty();
    printf("%-16s %5s %10s %10s %8s %8s   %s\n", "operation", "rows", "us", "MB", "GB/s", "TFLOP/s",
           "share of the floor");
    for (const linear_case &c : linear_cases)
        for (int i = 0; i < n_rows; i++) bench_linear(c, rows[i]);
    for (int i = 0; i < n_rows; i++) bench_shared(rows[i]);
    make_experts(table);
    di_ptr experts = take(sizeof table, "experts");
    backend->upload(backend->stream, experts, table, sizeof table);
    for (int i = 0; i < n_rows; i++) bench_experts(rows[i], experts);
    backend->destroy(backend);
    return 0;
}
