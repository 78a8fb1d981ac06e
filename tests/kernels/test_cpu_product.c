/* Products of the CPU backend: a row's bits are the same alone and among others, with any number of
 * threads, for every format, odd shapes, unaligned weights, and scales at both ends of their range
 * (where one row and many rows take different ways). And they are right, within the bound.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "kernels/formats.h"

enum { MAX_ROWS = 64, MAX_N = 80, MAX_K = 1600, N_BACKENDS = 3 };

static di_backend *backends[N_BACKENDS]; /* 1, 2, 3 threads */
static uint32_t random_state = 12345;

static uint32_t random_word(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

static double random_value(void) { return (double)(random_word() % 20001) / 10000 - 1; }

typedef struct problem {
    di_matrix w;
    uint8_t *data, *scale;
    float *x; /* [MAX_ROWS][k] */
} problem;

static void fill(problem *p, int least_scale, int most_scale, double x_size) {
    int64_t n = p->w.n, k = p->w.k, values = n * k;
    for (int64_t i = 0; i < (p->w.dtype == DI_FP4_PAIR ? values / 2 : values); i++) {
        if (p->w.dtype == DI_BF16 || p->w.dtype == DI_F32) {
            float v = (float)random_value();
            uint32_t bits;
            memcpy(&bits, &v, 4);
            uint16_t word = (uint16_t)(bits >> 16);
            if (p->w.dtype == DI_F32)
                memcpy(p->data + 4 * i, &v, 4);
            else
                memcpy(p->data + 2 * i, &word, 2);
            continue;
        }
        uint8_t code = (uint8_t)random_word();
        if (p->w.dtype == DI_F8_E4M3 && (code & 0x7F) == 0x7F) code ^= 1; /* no NaN */
        p->data[i] = code;
    }
    int64_t scales = (k + 31) / 32 * (p->w.dtype == DI_FP4_PAIR ? n : (n + 31) / 32);
    for (int64_t i = 0; i < scales; i++)
        p->scale[i] = (uint8_t)(least_scale +
                                (int)(random_word() % (uint32_t)(most_scale - least_scale + 1)));
    for (int64_t i = 0; i < MAX_ROWS * k; i++) { /* some are 0, some a power of two */
        uint32_t kind = random_word() % 16;
        double value = kind == 0 ? 0 : random_value();
        p->x[i] = (float)((kind == 1 ? copysign(1, value) : value) * x_size);
    }
}

static double weight(const problem *p, int64_t n, int64_t k) {
    int64_t at = n * p->w.k + k, scales = (p->w.k + 31) / 32;
    float v;
    uint16_t word;
    switch (p->w.dtype) {
    case DI_F8_E4M3:
        return (double)di_e4m3_decode(p->data[at]) *
               (double)di_e8m0_decode(p->scale[n / 32 * scales + k / 32]);
    case DI_FP4_PAIR:
        return (double)di_e2m1_decode(p->data[at / 2] >> (at % 2 * 4) & 15) *
               (double)di_e8m0_decode(p->scale[n * scales + k / 32]);
    case DI_BF16: memcpy(&word, p->data + 2 * at, 2); return (double)di_bf16_decode(word);
    default: memcpy(&v, p->data + 4 * at, 4); return (double)v;
    }
}

static void run(int backend, const problem *p, const float *x, int32_t rows, float *out) {
    di_linear_args args = {.n_rows = rows, .groups = 1, .to_f = true, .w = p->w};
    args.x.address = (uint64_t)(uintptr_t)x;
    args.out.address = (uint64_t)(uintptr_t)out;
    backends[backend]->ops->linear(backends[backend]->stream, &args);
}

static void check_values(const problem *p, const float *out) {
    for (int64_t r = 0; r < 3; r++) {
        double largest = 0;
        static double want[MAX_N];
        for (int64_t n = 0; n < p->w.n; n++) {
            want[n] = 0;
            for (int64_t k = 0; k < p->w.k; k++)
                want[n] += (double)p->x[r * p->w.k + k] * weight(p, n, k);
            largest = fmax(largest, fabs(want[n]));
        }
        for (int64_t n = 0; n < p->w.n; n++)
            if (!(fabs(want[n] - (double)out[r * p->w.n + n]) <= DI_BOUND_SUM * largest))
                fail_msg("type %d, %d x %d: row %d, out %d is %g, not %g", (int)p->w.dtype,
                         (int)p->w.n, (int)p->w.k, (int)r, (int)n, (double)out[r * p->w.n + n],
                         want[n]);
    }
}

static void check(di_dtype dtype, int32_t n, int32_t k, int least, int most, double x_size) {
    static uint8_t data[4 * MAX_N * MAX_K + 64], scale[MAX_N * (MAX_K / 32 + 1) + 64];
    static float x[MAX_ROWS * MAX_K], alone[MAX_ROWS * MAX_N], together[MAX_ROWS * MAX_N];
    problem p = {{dtype, n, k, {0}, {0}}, data + 3, scale + 1, x}; /* unaligned */
    p.w.data.address = (uint64_t)(uintptr_t)p.data;
    p.w.scale.address = (uint64_t)(uintptr_t)p.scale;
    fill(&p, least, most, x_size);
    for (int64_t r = 0; r < MAX_ROWS; r++) run(0, &p, x + r * k, 1, alone + r * n);
    check_values(&p, alone);
    static const int32_t counts[] = {2, 3, 7, 12, 13, 49, 64};
    for (int b = 0; b < N_BACKENDS; b++)
        for (int c = 0; c < 8; c++) {
            int32_t rows = c < 7 ? counts[c] : 1, first = c < 7 ? (MAX_ROWS - rows) / 2 : 5;
            memset(together, 0x55, sizeof together);
            run(b, &p, x + (int64_t)first * k, rows, together);
            if (memcmp(together, alone + (int64_t)first * n, sizeof(float) * (size_t)(rows * n)) !=
                0)
                fail_msg("type %d, %d x %d, scales %d..%d: %d rows with %d threads differ from one",
                         (int)dtype, (int)n, (int)k, least, most, (int)rows, b + 1);
            for (int64_t i = (int64_t)rows * n; i < MAX_ROWS * MAX_N; i++)
                if (memcmp(&together[i], "\x55\x55\x55\x55", 4) != 0) fail_msg("wrote behind out");
        }
}

static void test_shapes(void **state) {
    (void)state;
    static const int32_t n[] = {1, 3, 31, 32, 33, 70, 80};
    static const int32_t k[] = {32, 64, 96, 512, 544, 1056, 1600};
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < 7; j++) {
            check(DI_F8_E4M3, n[i], k[j], 110, 130, 1);
            check(DI_FP4_PAIR, n[i], k[j], 110, 130, 1);
            check(DI_BF16, n[i], k[j], 127, 127, 1);
            check(DI_F32, n[i], k[j], 127, 127, 1);
        }
}

static void test_odd_k(void **state) {
    (void)state;
    static const int32_t k[] = {1, 7, 9, 33, 511, 513, 1033};
    for (int j = 0; j < 7; j++) {
        check(DI_F8_E4M3, 37, k[j], 110, 130, 1);
        check(DI_BF16, 37, k[j], 127, 127, 1);
        check(DI_F32, 37, k[j], 127, 127, 1);
    }
}

/* Weights near both ends of the float range; x brings the results back into it. */
static void test_extreme_scales(void **state) {
    (void)state;
    for (int type = 0; type < 2; type++) {
        di_dtype dtype = type ? DI_FP4_PAIR : DI_F8_E4M3;
        check(dtype, 40, 544, 0, 30, 0x1p100);
        check(dtype, 40, 544, 20, 40, 0x1p70);
        check(dtype, 40, 544, 225, 244, 0x1p-100);
        check(dtype, 40, 544, 120, 140, 0x1p-60);
        check(dtype, 40, 544, 120, 128, 0x1p90);
        check(dtype, 40, 544, 60, 200, 1);
        check(dtype, 40, 544, 130, 134, 2); /* x times the largest of them and 2^120 is 2^128 */
        check(dtype, 40, 544, 1, 200, 0x1p-30);
    }
}

/* NaN codes: what comes of one is the backend's, but it is the same for one row and for many, and
 * no other output changes. (The twins' NaN: test_formats.) */
static void test_nan_weights(void **state) {
    (void)state;
    enum { N = 70, K = 1000 };
    static uint8_t data[N * K + 64], scale[3 * 32 + 64];
    static float x[MAX_ROWS * K], clean[MAX_ROWS * N], alone[MAX_ROWS * N], out[MAX_ROWS * N];
    static const int32_t counts[] = {2, 3, 4, 13, 64}, widths[] = {K, K - 8, 32};
    for (int i = 0; i < 3; i++) {
        int32_t k = widths[i];
        problem p = {{DI_F8_E4M3, N, k, {0}, {0}}, data + 3, scale + 1, x};
        p.w.data.address = (uint64_t)(uintptr_t)p.data;
        p.w.scale.address = (uint64_t)(uintptr_t)p.scale;
        fill(&p, 110, 130, 1);
        run(0, &p, x, MAX_ROWS, clean);
        p.data[5 * k] = 0x7F;
        p.data[66 * k + k - 1] = 0xFF;
        for (int r = 0; r < MAX_ROWS; r++) run(0, &p, x + r * k, 1, alone + r * N);
        for (int j = 0; j < MAX_ROWS * N; j++) {
            bool own = j % N == 5 || j % N == 66;
            assert_true(own || memcmp(&alone[j], &clean[j], 4) == 0);
        }
        for (int c = 0; c < 5; c++) {
            run(1, &p, x, counts[c], out);
            assert_memory_equal(out, alone, (size_t)(counts[c] * N) * sizeof *out);
        }
    }
}

static int create_all(void **state) {
    (void)state;
    di_error error;
    di_limits limits = {.max_rows = MAX_ROWS, .max_out = 1, .max_k = MAX_K, .vocab = 1, .hc = 1};
    for (int b = 0; b < N_BACKENDS; b++) {
        di_cpu_options options = {b + 1, -1, ~0u};
        if (di_backend_create_cpu(DI_NUMERICS_FLOAT, &options, &backends[b], &error) != DI_OK)
            exit(77);
        if (backends[b]->prepare(backends[b], &limits, &error) != DI_OK) return 1;
    }
    return 0;
}

static int destroy_all(void **state) {
    (void)state;
    for (int b = 0; b < N_BACKENDS; b++) backends[b]->destroy(backends[b]);
    return 0;
}

static void test_mask(void **state) {
    (void)state;
    di_error error;
    di_backend *none = NULL;
    di_cpu_options options = {1, 0, 0}; /* hides every instruction set */
    assert_int_equal(di_backend_create_cpu(DI_NUMERICS_FLOAT, &options, &none, &error),
                     DI_ERR_UNSUPPORTED);
    assert_null(none);
    assert_non_null(strstr(error.message, "cpu_mask"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),         cmocka_unit_test(test_odd_k),
        cmocka_unit_test(test_extreme_scales), cmocka_unit_test(test_nan_weights),
        cmocka_unit_test(test_mask),
    };
    return cmocka_run_group_tests(tests, create_all, destroy_all);
}
