/* Loops that do nothing but read, or nothing but multiply and add. */
#include "kernels/cpu/simd_avx2.h"

static float peak_read(const float *x, int64_t n) {
    __m256 a[8];
    for (int j = 0; j < 8; j++) a[j] = _mm256_setzero_ps();
    for (int64_t i = 0; i + 64 <= n; i += 64)
        for (int j = 0; j < 8; j++) a[j] = _mm256_add_ps(a[j], _mm256_loadu_ps(x + i + 8 * j));
    float sum = 0;
    for (int j = 0; j < 8; j++) sum += reduce1(a[j]);
    return sum;
}

/* 12 chains hide the latency of any core that has AVX2. 192 operations an iteration. */
static float peak_fma(int64_t iterations) {
    __m256 a[12], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
    for (int j = 0; j < 12; j++) a[j] = _mm256_set1_ps((float)j);
    for (int64_t i = 0; i < iterations; i++)
        for (int j = 0; j < 12; j++) a[j] = _mm256_fmadd_ps(a[j], x, y);
    float sum = 0;
    for (int j = 0; j < 12; j++) sum += reduce1(a[j]);
    return sum;
}

void cpu_peak_init_avx2(cpu_kernels *kernels) {
    kernels->peak_read = peak_read;
    kernels->peak_fma = peak_fma;
}
