/* The CPU backend at the release's width against the machine's limits.
 *
 *   bench_cpu [THREADS]
 *
 * linear: GB/s counts the stored bytes of the matrix (what one row is bound by), GFLOP/s two
 * operations a weight and row (what many rows are bound by). Matrices of a kind stand in a buffer
 * larger than caches and are used in turn. With one thread times are CPU times, so that a busy
 * machine disturbs them less; with more they are wall times. Shares are of the best run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/backend.h"
#include "kernels/cpu/peak.h"

static bool one_thread;

static double seconds(void) {
    struct timespec t;
    clock_gettime(one_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t random_state = 1;
static uint32_t random_word(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

typedef struct bench {
    di_backend *backend;
    di_cpu_peak peak;
    uint8_t *weights; /* POOL bytes of codes that are finite in every format */
    di_ptr x, out;
} bench;

enum { WIDTH = 5120, INNER = 2304, MAX_ROWS = 256 };
static const uint64_t pool = UINT64_C(1) << 29;

static uint64_t stored_bytes(di_dtype dtype, int64_t n, int64_t k) {
    switch (dtype) {
    case DI_F8_E4M3: return (uint64_t)(n * k + (n + 31) / 32 * (k / 32));
    case DI_FP4_PAIR: return (uint64_t)(n * k / 2 + n * k / 32);
    case DI_BF16: return (uint64_t)(n * k * 2);
    default: return (uint64_t)(n * k * 4);
    }
}

static void one(bench *b, const char *name, di_dtype dtype, int32_t n, int32_t k, int32_t rows) {
    uint64_t bytes = stored_bytes(dtype, n, k), step = (bytes + 4095) / 4096 * 4096;
    uint64_t codes =
        dtype == DI_F8_E4M3 ? (uint64_t)n * (uint64_t)k : (uint64_t)n * (uint64_t)k / 2;
    int64_t places = (int64_t)(pool / step), runs = rows == 1 ? 2 * places : 3;
    if (runs > 300) runs = 300;
    double best = 1e9, total = 0;
    for (int64_t i = 0; i < runs; i++) {
        uint8_t *at = b->weights + (uint64_t)(i % places) * step;
        /* Scales lie behind the codes; any byte of the pool is a moderate scale. */
        di_linear_args args =
            {rows,
             1,
             dtype == DI_F8_E4M3 || dtype == DI_FP4_PAIR,
             false,
             b->x,
             {dtype, n, k, {(uint64_t)(uintptr_t)at}, {(uint64_t)(uintptr_t)(at + codes)}},
             b->out};
        double start = seconds();
        b->backend->ops->linear(b->backend->stream, &args);
        double took = seconds() - start;
        if (took < best) best = took;
        total += took;
    }
    double mean = total / (double)runs, flop = 2.0 * n * k * rows;
    printf("%-6s %5d x %5d, %3d rows: %9.1f us (mean %9.1f)  %6.2f GB/s (%3.0f %%)  %7.2f GFLOP/s "
           "(%3.0f %%)\n",
           name, n, k, rows, best * 1e6, mean * 1e6, (double)bytes / best * 1e-9,
           100 * (double)bytes / best / b->peak.read_bytes_per_s, flop / best * 1e-9,
           100 * flop / best / b->peak.flop_per_s);
}

int main(int argc, char **argv) {
    di_error error;
    bench b = {0};
    one_thread = argc > 1 && atoi(argv[1]) == 1;
    di_cpu_options options = {argc > 1 ? atoi(argv[1]) : 0, -1, ~0u};
    di_limits limits = {.max_rows = MAX_ROWS,
                        .max_out = 1,
                        .width = WIDTH,
                        .hc = 4,
                        .vocab = 1,
                        .n_heads = 64,
                        .head_dim = 512,
                        .inner = INNER,
                        .top_k = 6,
                        .n_experts = 384,
                        .max_k = 8192,
                        .max_entries = 64};
    if (di_cpu_peak_measure(options.n_threads, &b.peak, &error) != DI_OK ||
        di_backend_create_cpu(DI_NUMERICS_RELEASE, &options, &b.backend, &error) != DI_OK ||
        b.backend->prepare(b.backend, &limits, &error) != DI_OK ||
        b.backend->alloc(b.backend, (uint64_t)MAX_ROWS * 8192 * 4, "x", &b.x, &error) != DI_OK ||
        b.backend->alloc(b.backend, (uint64_t)MAX_ROWS * 8192 * 4, "out", &b.out, &error) !=
            DI_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    printf("peak: %.2f GB/s read, %.1f GFLOP/s FMA\n", b.peak.read_bytes_per_s * 1e-9,
           b.peak.flop_per_s * 1e-9);
    b.weights = malloc(pool);
    float *x = malloc((size_t)MAX_ROWS * 8192 * 4);
    if (!b.weights || !x) return 1;
    for (uint64_t i = 0; i < pool; i++) /* bf16 and f32 of these bytes are moderate, too */
        b.weights[i] = (uint8_t)(0x38 + random_word() % 16);
    for (int64_t i = 0; i < (int64_t)MAX_ROWS * 8192; i++)
        x[i] = (float)(random_word() % 512) / 256.0f - 1.0f;
    b.backend->upload(b.backend->stream, b.x, x, (uint64_t)MAX_ROWS * 8192 * 4);
    static const int32_t rows[] = {1, 2, 6, 32, 256};
    for (int i = 0; i < 5; i++) {
        one(&b, "FP8", DI_F8_E4M3, 5120, 5120, rows[i]);
        one(&b, "FP4", DI_FP4_PAIR, INNER, WIDTH, rows[i]);
        one(&b, "BF16", DI_BF16, 4096, WIDTH, rows[i]);
        one(&b, "F32", DI_F32, 24, 4 * WIDTH / 4, rows[i]);
    }
    b.backend->destroy(b.backend);
    free(b.weights);
    free(x);
    return 0;
}
