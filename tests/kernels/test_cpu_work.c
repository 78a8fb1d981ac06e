/* The workspaces that follow from limits: operations at exactly those sizes, shapes that no release
 * has, against the twins. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formats.h"
#include "support/device.h"

enum { MAX_VALUES = 8192 };

/* Side 0: the twin, side 1: cpu. */
static void open_both(device dev[2], const di_limits *limits) {
    if (!device_open(&dev[1], "cpu", DI_NUMERICS_FLOAT, 1)) skip();
    assert_true(device_open(&dev[0], "ref", DI_NUMERICS_FLOAT, 1));
    for (int i = 0; i < 2; i++) device_prepare(&dev[i], limits);
}

static void close_both(device dev[2]) {
    for (int i = 0; i < 2; i++) {
        assert_int_equal(device_reset(&dev[i]), 0);
        device_close(&dev[i]);
    }
}

static float wave(int64_t i) { return sinf((float)(i * 7 % 1009)); }

static di_ptr put_wave(device *d, int64_t n) {
    float x[MAX_VALUES];
    assert_true(n <= MAX_VALUES);
    for (int64_t i = 0; i < n; i++) x[i] = wave(i);
    return device_put_a(d, x, n);
}

static di_ptr put_bf16(device *d, int64_t n) {
    static uint16_t x[MAX_VALUES * 32];
    assert_true(n <= MAX_VALUES * 32);
    for (int64_t i = 0; i < n; i++) x[i] = di_bf16_encode(wave(i + 3));
    return device_put(d, x, (uint64_t)n * 2);
}

/* One head whose RoPE takes all of it: more angles than a block of attention has slots. */
static void test_wide_rope_one_head(void **state) {
    (void)state;
    enum { ROWS = 3, D = 512, WIDTH = 32 };
    device dev[2];
    const di_limits limits = {.max_rows = ROWS,
                              .max_out = 1,
                              .width = WIDTH,
                              .hc = 1,
                              .vocab = 8,
                              .n_heads = 1,
                              .head_dim = D,
                              .max_entries = 64,
                              .max_k = WIDTH};
    static uint8_t codes[2][ROWS * D], scales[2][ROWS * D / 32];
    open_both(dev, &limits);
    for (int i = 0; i < 2; i++) {
        device *d = &dev[i];
        float freq[D / 2];
        di_row rows[ROWS];
        int32_t length = 11, valid = ROWS, next = 0;
        for (int j = 0; j < D / 2; j++) freq[j] = powf(1000, -2 * (float)j / D);
        for (int t = 0; t < ROWS; t++) rows[t] = (di_row){0, 0, t};
        di_batch batch = {ROWS,
                          1,
                          device_put(d, rows, sizeof rows),
                          device_put(d, &length, 4),
                          device_put(d, &valid, 4),
                          device_put(d, &next, 4),
                          device_take(d, ROWS * 4),
                          device_take(d, ROWS * 4),
                          device_take(d, ROWS * 4),
                          DI_NONE};
        di_stream *s = d->backend->stream;
        di_ptr code = device_take(d, ROWS * D), scale = device_take(d, ROWS * D / 32);
        d->backend->ops->step_begin(s, &(di_step_begin_args){batch});
        d->backend->ops->window_kv(s, &(di_window_kv_args){batch,
                                                           D,
                                                           1e-6,
                                                           {D, device_put(d, freq, sizeof freq)},
                                                           put_wave(d, ROWS * WIDTH),
                                                           {DI_BF16, D, WIDTH,
                                                            put_bf16(d, D * WIDTH), DI_NONE},
                                                           {DI_BF16, D, put_bf16(d, D)},
                                                           code,
                                                           scale});
        device_get(d, code, codes[i], sizeof codes[i]);
        device_get(d, scale, scales[i], sizeof scales[i]);
    }
    int differ = 0;
    for (int j = 0; j < ROWS * D; j++) differ += codes[0][j] != codes[1][j];
    assert_true(differ <= 2); /* a value at the middle of two codes */
    assert_memory_equal(scales[0], scales[1], sizeof scales[0]);
    close_both(dev);
}

/* A rank of the Markov head that is larger than everything else. */
static void test_markov_large_rank(void **state) {
    (void)state;
    enum { N = 96, WIDTH = 33, RANK = 1601, VOCAB = 40 };
    device dev[2];
    const di_limits limits = {.max_rows = N,
                              .max_out = N,
                              .width = WIDTH,
                              .hc = 1,
                              .vocab = VOCAB,
                              .n_heads = 1,
                              .head_dim = 32,
                              .max_entries = 64,
                              .max_k = WIDTH + RANK};
    double logits[2][N * VOCAB], confidence[2][N];
    open_both(dev, &limits);
    for (int i = 0; i < 2; i++) {
        device *d = &dev[i];
        int32_t prev[N];
        float base[N * VOCAB];
        for (int j = 0; j < N; j++) prev[j] = j * 7 % VOCAB;
        for (int j = 0; j < N * VOCAB; j++) base[j] = wave(j + 5);
        di_ptr out = device_take_f(d, N * VOCAB), share = device_take_f(d, N);
        d->backend->ops
            ->markov(d->backend->stream,
                     &(di_markov_args){N,
                                       VOCAB,
                                       WIDTH,
                                       1,
                                       1,
                                       device_put(d, prev, sizeof prev),
                                       {DI_BF16, VOCAB, RANK, put_bf16(d, VOCAB * RANK), DI_NONE},
                                       {DI_BF16, VOCAB, RANK, put_bf16(d, VOCAB * RANK), DI_NONE},
                                       {DI_BF16, 1, WIDTH + RANK, put_bf16(d, WIDTH + RANK),
                                        DI_NONE},
                                       device_put_f(d, base, N * VOCAB),
                                       put_wave(d, N * WIDTH),
                                       out,
                                       share});
        device_get_f(d, out, logits[i], N * VOCAB);
        device_get_f(d, share, confidence[i], N);
    }
    for (int j = 0; j < N * VOCAB; j++) assert_true(fabs(logits[0][j] - logits[1][j]) < 1e-2);
    for (int j = 0; j < N; j++) assert_true(fabs(confidence[0][j] - confidence[1][j]) < 1e-2);
    close_both(dev);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wide_rope_one_head),
        cmocka_unit_test(test_markov_large_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
