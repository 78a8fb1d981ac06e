/* What the CUDA backend makes of several operations: the bits are those of the operations
 * one by one, in all of the memory that they write. A copy between two of them keeps them apart. */
/* ctest: gpu */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"

enum { HC = 4, WIDTH = 1024, INNER = 128, TOP_K = 3, MIX = (2 + HC) * HC, MAX_ROWS = 700 };

/* The memory that operations write, and what it begins with. */
enum { ROWS, SHARED, Y, STREAMS, PRE, PRE_NEXT, POST, COMB, U, OUT, N_BUFFERS };
static const int64_t row_bytes[N_BUFFERS] = {[ROWS] = 2 * TOP_K * WIDTH,
                                             [SHARED] = 2 * WIDTH,
                                             [Y] = 2 * WIDTH,
                                             [STREAMS] = 2 * HC * WIDTH,
                                             [PRE] = 4 * HC,
                                             [PRE_NEXT] = 4 * HC,
                                             [POST] = 4 * HC,
                                             [COMB] = 4 * HC * HC,
                                             [U] = 2 * WIDTH,
                                             [OUT] = 2 * WIDTH};

typedef struct bed {
    di_backend *b;
    di_ptr at[N_BUFFERS], word;
    di_matrix fn, w1, w3, w2;
    di_vector base, scale, norm;
} bed;

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* bf16 or float32 of about 2^-4 to 2, either sign, and no others. */
static void fill_values(uint8_t *to, int64_t bytes, bool floats, uint32_t *state) {
    for (int64_t i = 0; i < bytes; i += floats ? 4 : 2) {
        uint32_t r = next_random(state);
        uint32_t top = (r & 1) << 15 | (123 + (r >> 1 & 3)) << 7 | (r >> 3 & 127);
        uint32_t word = floats ? top << 16 : top;
        memcpy(to + i, &word, floats ? 4 : 2);
    }
}

static di_ptr put(di_backend *b, int64_t bytes, bool floats, uint32_t *state) {
    di_error error;
    di_ptr p;
    uint8_t *host = malloc((size_t)bytes);
    assert_non_null(host);
    fill_values(host, bytes, floats, state);
    assert_int_equal(b->alloc(b, (uint64_t)bytes, "test", &p, &error), DI_OK);
    b->upload(b->stream, p, host, (uint64_t)bytes);
    free(host);
    return p;
}

static di_matrix put_fp8(di_backend *b, int32_t n, int32_t k, uint32_t *state) {
    di_error error;
    di_matrix out;
    uint8_t *codes = malloc((size_t)n * (size_t)k), scales[INNER * WIDTH / 1024];
    assert_non_null(codes);
    for (int32_t i = 0; i < n * k; i++) codes[i] = (uint8_t)(next_random(state) & 0xBF);
    for (int32_t i = 0; i < n * k / 1024; i++) scales[i] = (uint8_t)(119 + i % 3);
    const di_host_matrix m = {DI_F8_E4M3, n, k, 1, codes, scales};
    assert_int_equal(b->bind_matrix(b, &m, "test", &out, &error), DI_OK);
    free(codes);
    return out;
}

static bed make_bed(di_backend *b) {
    uint32_t state = 7;
    bed t = {.b = b};
    di_error error;
    const di_limits limits = {.max_rows = MAX_ROWS,
                              .width = WIDTH,
                              .hc = HC,
                              .inner = INNER,
                              .top_k = TOP_K,
                              .n_experts = 8,
                              .max_k = HC * WIDTH};
    assert_int_equal(b->prepare(b, &limits, &error), DI_OK);
    for (int i = 0; i < N_BUFFERS; i++)
        assert_int_equal(b->alloc(b, (uint64_t)(row_bytes[i] * MAX_ROWS), "test", &t.at[i], &error),
                         DI_OK);
    t.word = put(b, 4, true, &state);
    t.fn =
        (di_matrix){DI_F32, MIX, HC * WIDTH, put(b, 4 * MIX * HC * WIDTH, true, &state), DI_NONE};
    t.base = (di_vector){DI_F32, MIX, put(b, 4 * MIX, true, &state)};
    t.scale = (di_vector){DI_F32, 3, put(b, 12, true, &state)};
    t.norm = (di_vector){DI_BF16, WIDTH, put(b, 2 * WIDTH, false, &state)};
    t.w1 = put_fp8(b, INNER, WIDTH, &state);
    t.w3 = put_fp8(b, INNER, WIDTH, &state);
    t.w2 = put_fp8(b, WIDTH, INNER, &state);
    return t;
}

/* All memory as it is at the beginning, the same each time. */
static void reset(const bed *t) {
    static uint8_t bytes[2 * HC * WIDTH * MAX_ROWS];
    uint32_t state = 99;
    for (int i = 0; i < N_BUFFERS; i++) {
        int64_t n = row_bytes[i] * MAX_ROWS;
        fill_values(bytes, n, i >= PRE && i <= COMB, &state);
        t->b->upload(t->b->stream, t->at[i], bytes, (uint64_t)n);
    }
}

static void part(const bed *t, bool apart) {
    static const uint32_t word = 1;
    if (apart) t->b->upload(t->b->stream, t->word, &word, sizeof word);
}

/* The end of one sublayer and the beginning of the next. */
static void run(const bed *t, int32_t n, bool combine, bool apart) {
    const di_ops *ops = t->b->ops;
    di_stream *s = t->b->stream;
    const di_ptr *at = t->at;
    reset(t);
    if (combine) ops->combine(s, &(di_combine_args){n, TOP_K, WIDTH, at[ROWS], at[SHARED], at[Y]});
    part(t, apart);
    ops->sublayer_out(s, &(di_sublayer_out_args){n, HC, WIDTH, at[Y], at[POST], at[COMB],
                                                 at[STREAMS]});
    part(t, apart);
    ops->mix(s, &(di_mix_args){n, HC, WIDTH, 20, 1e-6, 1e-6, at[STREAMS], t->fn, t->base, t->scale,
                               at[PRE_NEXT], at[POST], at[COMB]});
    part(t, apart);
    ops->sublayer_in(s, &(di_sublayer_in_args){n, HC, WIDTH, 1e-6, at[STREAMS], at[PRE], t->norm,
                                               DI_NONE, at[U]});
    part(t, apart);
    ops->shared_expert(s, &(di_shared_expert_args){n, 10, at[U], t->w1, t->w3, t->w2, at[OUT]});
}

static void read_all(const bed *t, uint8_t *to) {
    di_error error;
    for (int i = 0; i < N_BUFFERS; to += row_bytes[i] * MAX_ROWS, i++)
        t->b->download(t->b->stream, to, t->at[i], (uint64_t)(row_bytes[i] * MAX_ROWS));
    assert_int_equal(di_backend_sync(t->b, &error), DI_OK);
}

/* A bed on the GPU; where there is none the test is skipped. */
static bed open_bed(void) {
    di_backend *b = NULL;
    di_error error;
    di_status status = di_backend_create_cuda(DI_NUMERICS_RELEASE, NULL, &b, &error);
    if (status == DI_ERR_UNSUPPORTED) skip();
    assert_int_equal(status, DI_OK);
    return make_bed(b);
}

static void test_between(void **state) {
    (void)state;
    /* Kept, beside the mix, and not; in rounds. */
    static const int32_t rows[] = {1, 3, 8, 9, 65, 700};
    bed t = open_bed();
    int64_t size = 0;
    for (int i = 0; i < N_BUFFERS; i++) size += row_bytes[i] * MAX_ROWS;
    uint8_t *apart = malloc((size_t)size), *together = malloc((size_t)size);
    assert_true(apart != NULL && together != NULL);
    for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
        run(&t, rows[i / 2], i % 2 != 0, true);
        read_all(&t, apart);
        run(&t, rows[i / 2], i % 2 != 0, false);
        read_all(&t, together);
        assert_memory_equal(apart, together, size);
    }
    free(apart);
    free(together);
    t.b->destroy(t.b);
}

/* Rows that changed since sublayer_in left them are not taken for those that it kept. */
static void test_changed_rows(void **state) {
    (void)state;
    bed t = open_bed();
    di_backend *b = t.b;
    di_error error;
    uint8_t before[2 * WIDTH], after[2 * WIDTH], zeros[2 * WIDTH] = {0};
    run(&t, 1, true, false);
    b->download(b->stream, before, t.at[OUT], sizeof before);
    b->fill(b->stream, t.at[U], 0, sizeof zeros);
    b->ops->shared_expert(b->stream,
                          &(di_shared_expert_args){1, 10, t.at[U], t.w1, t.w3, t.w2, t.at[OUT]});
    b->download(b->stream, after, t.at[OUT], sizeof after);
    assert_int_equal(di_backend_sync(b, &error), DI_OK);
    assert_memory_not_equal(before, after, sizeof after);
    assert_memory_equal(after, zeros, sizeof zeros);
    b->destroy(b);
}

/* ---- Routed experts of many rows ---- */

enum { N_EXPERTS = 8, MANY = 4000, FEW = 5 }; /* all blocks of the sort have picks, twice */

static di_matrix put_fp4(di_backend *b, int32_t n, int32_t k, uint32_t *state) {
    di_error error;
    di_matrix out;
    static uint8_t codes[INNER * WIDTH / 2], scales[INNER * WIDTH / 32];
    for (int32_t i = 0; i < n * k / 2; i++) codes[i] = (uint8_t)next_random(state);
    for (int32_t i = 0; i < n * k / 32; i++) scales[i] = (uint8_t)(119 + i % 3);
    const di_host_matrix m = {DI_FP4_PAIR, n, k, 1, codes, scales};
    assert_int_equal(b->bind_matrix(b, &m, "test", &out, &error), DI_OK);
    return out;
}

static di_ptr take(di_backend *b, uint64_t bytes) {
    di_error error;
    di_ptr p;
    assert_int_equal(b->alloc(b, bytes, "test", &p, &error), DI_OK);
    return p;
}

/* Different experts, and three different picks a row. */
static void put_experts(di_backend *b, di_experts_args *args, uint32_t *state) {
    di_expert experts[N_EXPERTS];
    static int32_t picks[MANY * TOP_K];
    for (int32_t e = 0; e < N_EXPERTS; e++) {
        di_matrix w1 = put_fp4(b, INNER, WIDTH, state), w3 = put_fp4(b, INNER, WIDTH, state);
        di_matrix w2 = put_fp4(b, WIDTH, INNER, state);
        experts[e] = (di_expert){w1.data, w1.scale, w3.data, w3.scale, w2.data, w2.scale};
    }
    for (int32_t i = 0; i < MANY * TOP_K; i++)
        picks[i] = i % TOP_K == 0 ? (int32_t)(next_random(state) % N_EXPERTS)
                                  : (picks[i - 1] + 3) % N_EXPERTS;
    args->experts = take(b, sizeof experts);
    args->picks = take(b, sizeof picks);
    b->upload(b->stream, args->experts, experts, sizeof experts);
    b->upload(b->stream, args->picks, picks, sizeof picks);
    args->weights = put(b, (int64_t)sizeof picks, true, state);
}

static void read_rows(di_backend *b, const di_experts_args *args, uint8_t *to) {
    di_error error;
    b->ops->experts(b->stream, args);
    b->download(b->stream, to, args->rows, (uint64_t)(args->n_rows * row_bytes[ROWS]));
    assert_int_equal(di_backend_sync(b, &error), DI_OK);
}

/* From what sublayer_in keeps of the rows, from the rows, and from some of them. */
static void test_many_picks(void **state) {
    (void)state;
    static const int32_t firsts[] = {0, 1, 1331, 2730, MANY - FEW};
    bed t = open_bed();
    di_backend *b = t.b;
    di_error error;
    uint32_t random = 5;
    int64_t size = MANY * row_bytes[ROWS];
    uint8_t *kept = malloc((size_t)size), *rows = malloc((size_t)size);
    di_experts_args args = {.n_rows = MANY, .top_k = TOP_K, .n_experts = N_EXPERTS, .limit = 10};
    const di_limits limits = {.max_rows = MANY,
                              .width = WIDTH,
                              .hc = HC,
                              .inner = INNER,
                              .top_k = TOP_K,
                              .n_experts = N_EXPERTS,
                              .max_k = HC * WIDTH};
    assert_true(kept != NULL && rows != NULL);
    assert_int_equal(b->prepare(b, &limits, &error), DI_OK);
    put_experts(b, &args, &random);
    args.dtype = DI_FP4_PAIR, args.width = WIDTH, args.inner = INNER;
    args.u = take(b, MANY * 2 * WIDTH), args.rows = take(b, (uint64_t)size);
    di_ptr streams = put(b, MANY * row_bytes[STREAMS], false, &random);
    di_ptr pre = put(b, MANY * row_bytes[PRE], true, &random);
    b->ops->sublayer_in(b->stream, &(di_sublayer_in_args){MANY, HC, WIDTH, 1e-6, streams, pre,
                                                          t.norm, DI_NONE, args.u});
    read_rows(b, &args, kept);
    read_rows(b, &args, rows);
    assert_memory_equal(kept, rows, size);
    for (size_t i = 0; i < sizeof firsts / sizeof firsts[0]; i++) {
        uint64_t first = (uint64_t)firsts[i];
        di_experts_args some = args;
        some.n_rows = FEW;
        some.u = di_ptr_at(args.u, first * 2 * WIDTH);
        some.picks = di_ptr_at(args.picks, first * TOP_K * 4);
        some.weights = di_ptr_at(args.weights, first * TOP_K * 4);
        read_rows(b, &some, rows);
        assert_memory_equal(kept + first * (uint64_t)row_bytes[ROWS], rows, FEW * row_bytes[ROWS]);
    }
    free(kept);
    free(rows);
    b->destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_between),
                                       cmocka_unit_test(test_many_picks),
                                       cmocka_unit_test(test_changed_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
