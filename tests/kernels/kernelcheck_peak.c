/* kernelcheck: what this machine can do, so that a speed can be read as a share of it. */
#include <immintrin.h>
#include <pthread.h>
#include <stdlib.h>

#include "kernelcheck.h"

enum { MAX_THREADS = 64 };
static const int64_t buffer_bytes = (int64_t)64 << 20; /* a thread: far beyond any cache */

typedef struct worker {
    pthread_t thread;
    pthread_barrier_t *barrier;
    float *buffer;
    bool fma;
    double seconds;
    float result; /* so that nothing is optimised away */
} worker;

/* Eight streams of eight floats. */
__attribute__((target("avx2,fma"))) static float read_all(const float *x, int64_t n) {
    __m256 sum[8];
    float out[8];
    for (int j = 0; j < 8; j++) sum[j] = _mm256_setzero_ps();
    for (int64_t i = 0; i + 64 <= n; i += 64) {
        for (int j = 0; j < 8; j++) sum[j] = _mm256_add_ps(sum[j], _mm256_loadu_ps(x + i + 8 * j));
    }
    for (int j = 1; j < 8; j++) sum[0] = _mm256_add_ps(sum[0], sum[j]);
    _mm256_storeu_ps(out, sum[0]);
    return out[0];
}

enum { FMA_ROUNDS = 2000000, FMA_CHAINS = 10 };

__attribute__((target("avx2,fma"))) static float multiply_add(void) {
    __m256 sum[FMA_CHAINS], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
    float out[8];
    for (int j = 0; j < FMA_CHAINS; j++) sum[j] = _mm256_set1_ps((float)j);
    for (int i = 0; i < FMA_ROUNDS; i++) {
        for (int j = 0; j < FMA_CHAINS; j++) sum[j] = _mm256_fmadd_ps(sum[j], a, b);
    }
    for (int j = 1; j < FMA_CHAINS; j++) sum[0] = _mm256_add_ps(sum[0], sum[j]);
    _mm256_storeu_ps(out, sum[0]);
    return out[0];
}

static void *work(void *user) {
    worker *w = user;
    int64_t n = buffer_bytes / 4;
    if (!w->fma) {
        for (int64_t i = 0; i < n; i++) w->buffer[i] = (float)(i & 7);
    }
    w->seconds = 1e9;
    for (int i = 0; i < 5; i++) { /* the best of five, all threads together */
        pthread_barrier_wait(w->barrier);
        double began = kc_now();
        w->result += w->fma ? multiply_add() : read_all(w->buffer, n);
        pthread_barrier_wait(w->barrier);
        double elapsed = kc_now() - began;
        if (elapsed < w->seconds) w->seconds = elapsed;
    }
    return NULL;
}

static double best_seconds(int32_t n, bool fma) {
    static worker workers[MAX_THREADS];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)n);
    for (int32_t i = 0; i < n; i++) {
        workers[i] = (worker){.barrier = &barrier, .fma = fma};
        workers[i].buffer = fma ? NULL : malloc((size_t)buffer_bytes);
        if (!fma && workers[i].buffer == NULL) abort();
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) abort();
    }
    for (int32_t i = 0; i < n; i++) pthread_join(workers[i].thread, NULL);
    for (int32_t i = 0; i < n; i++) free(workers[i].buffer);
    pthread_barrier_destroy(&barrier);
    return workers[0].seconds;
}

void kc_machine(int32_t n_threads, double *gb_per_s, double *gflop_per_s) {
    *gb_per_s = *gflop_per_s = 0;
    if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
    *gb_per_s = (double)n_threads * (double)buffer_bytes / best_seconds(n_threads, false) * 1e-9;
    *gflop_per_s =
        (double)n_threads * FMA_ROUNDS * FMA_CHAINS * 16.0 / best_seconds(n_threads, true) * 1e-9;
}
