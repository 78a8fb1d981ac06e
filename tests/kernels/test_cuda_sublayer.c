/* What the CUDA backend makes of several operations: the bits are those of the operations one by
 * one, in all of the memory that they write. A copy between two of them keeps them apart. And what
 * it makes of many rows by other kernels than of few: the bits are those of some of the rows. */
/* ctest: gpu */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"

enum { HC = 4, WIDTH = 1024, INNER = 128, TOP_K = 3, MIX = (2 + HC) * HC };

/* plain: the shared expert's w1 and w3 are BF16. over: the next sublayer's rows lie where those of
 * the experts did. */
typedef struct shape {
    int32_t width, top_k, max_rows;
    bool collapsed, plain, over;
} shape;

/* The memory that operations write, and what it begins with. */
enum { ROWS, SHARED, Y, STREAMS, PRE, PRE_NEXT, POST, COMB, U, COLLAPSED, OUT, N_BUFFERS };
static int64_t row_bytes(const shape *of, int buffer) {
    switch (buffer) {
    case ROWS: return 2 * of->top_k * of->width;
    case STREAMS: return 2 * HC * of->width;
    case PRE:
    case PRE_NEXT:
    case POST: return 4 * HC;
    case COMB: return 4 * HC * HC;
    default: return 2 * of->width;
    }
}

typedef struct bed {
    di_backend *b;
    shape of;
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

/* Random weights. FP8 codes that are no NaN, and scales about 2^-8. */
static di_matrix put_matrix(di_backend *b, di_dtype dtype, int32_t n, int32_t k, int32_t groups,
                            uint32_t *state) {
    di_error error;
    di_matrix out;
    di_host_matrix m = {dtype, n, k, groups, NULL, NULL};
    int64_t bytes = (int64_t)di_host_matrix_bytes(&m);
    int64_t scale_bytes = (int64_t)di_host_matrix_scale_bytes(&m);
    uint8_t *data = malloc((size_t)bytes), *scales = malloc((size_t)scale_bytes + 1);
    assert_true(data != NULL && scales != NULL);
    if (dtype == DI_BF16) fill_values(data, bytes, false, state);
    for (int64_t i = 0; i < bytes && dtype != DI_BF16; i++)
        data[i] = (uint8_t)(next_random(state) & (dtype == DI_F8_E4M3 ? 0xBF : 0xFF));
    for (int64_t i = 0; i < scale_bytes; i++) scales[i] = (uint8_t)(119 + i % 3);
    m.data = data, m.scale = scale_bytes > 0 ? scales : NULL;
    assert_int_equal(b->bind_matrix(b, &m, "test", &out, &error), DI_OK);
    free(data);
    free(scales);
    return out;
}

static di_ptr take(di_backend *b, int64_t bytes) {
    di_error error;
    di_ptr p;
    assert_int_equal(b->alloc(b, (uint64_t)bytes, "test", &p, &error), DI_OK);
    return p;
}

static void prepare(di_backend *b, const shape *of, int32_t n_experts) {
    di_error error;
    const di_limits limits = {.max_rows = of->max_rows,
                              .width = of->width,
                              .hc = HC,
                              .inner = INNER,
                              .top_k = of->top_k,
                              .n_experts = n_experts,
                              .max_k = HC * of->width};
    assert_int_equal(b->prepare(b, &limits, &error), DI_OK);
}

/* On the GPU; where there is none the test is skipped. */
static di_backend *open_backend(void) {
    di_backend *b = NULL;
    di_error error;
    di_status status = di_backend_create_cuda(DI_NUMERICS_RELEASE, NULL, &b, &error);
    if (status == DI_ERR_UNSUPPORTED) skip();
    assert_int_equal(status, DI_OK);
    return b;
}

static bed open_bed(const shape *of) {
    uint32_t state = 7;
    di_backend *b = open_backend();
    bed t = {.b = b, .of = *of};
    int32_t width = of->width, k = HC * width;
    di_dtype dtype = of->plain ? DI_BF16 : DI_F8_E4M3;
    prepare(b, of, 8);
    for (int i = 0; i < N_BUFFERS; i++) t.at[i] = take(b, row_bytes(of, i) * of->max_rows);
    if (of->over) t.at[U] = t.at[ROWS];
    t.word = put(b, 4, true, &state);
    t.fn = (di_matrix){DI_F32, MIX, k, put(b, (int64_t)4 * MIX * k, true, &state), DI_NONE};
    t.base = (di_vector){DI_F32, MIX, put(b, 4 * MIX, true, &state)};
    t.scale = (di_vector){DI_F32, 3, put(b, 12, true, &state)};
    t.norm = (di_vector){DI_BF16, width, put(b, 2 * width, false, &state)};
    t.w1 = put_matrix(b, dtype, INNER, width, 1, &state);
    t.w3 = put_matrix(b, dtype, INNER, width, 1, &state);
    t.w2 = put_matrix(b, DI_F8_E4M3, width, INNER, 1, &state);
    return t;
}

/* All memory as it is at the beginning, the same each time. */
static void reset(const bed *t) {
    uint32_t state = 99;
    for (int i = 0; i < N_BUFFERS; i++) {
        int64_t n = row_bytes(&t->of, i) * t->of.max_rows;
        uint8_t *bytes = malloc((size_t)n);
        assert_non_null(bytes);
        fill_values(bytes, n, i >= PRE && i <= COMB, &state);
        t->b->upload(t->b->stream, t->at[i], bytes, (uint64_t)n);
        free(bytes);
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
    int32_t width = t->of.width, top_k = t->of.top_k;
    di_ptr collapsed = t->of.collapsed ? at[COLLAPSED] : DI_NONE;
    reset(t);
    if (combine) ops->combine(s, &(di_combine_args){n, top_k, width, at[ROWS], at[SHARED], at[Y]});
    part(t, apart);
    ops->sublayer_out(s, &(di_sublayer_out_args){n, HC, width, at[Y], at[POST], at[COMB],
                                                 at[STREAMS]});
    part(t, apart);
    ops->mix(s, &(di_mix_args){n, HC, width, 20, 1e-6, 1e-6, at[STREAMS], t->fn, t->base, t->scale,
                               at[PRE_NEXT], at[POST], at[COMB]});
    part(t, apart);
    ops->sublayer_in(s, &(di_sublayer_in_args){n, HC, width, 1e-6, at[STREAMS], at[PRE], t->norm,
                                               collapsed, at[U]});
    part(t, apart);
    ops->shared_expert(s, &(di_shared_expert_args){n, 10, at[U], t->w1, t->w3, t->w2, at[OUT]});
}

static int64_t all_bytes(const bed *t) {
    int64_t size = 0;
    for (int i = 0; i < N_BUFFERS; i++) size += row_bytes(&t->of, i) * t->of.max_rows;
    return size;
}

static void read_all(const bed *t, uint8_t *to) {
    di_error error;
    for (int i = 0; i < N_BUFFERS; i++) {
        int64_t n = row_bytes(&t->of, i) * t->of.max_rows;
        t->b->download(t->b->stream, to, t->at[i], (uint64_t)n);
        to += n;
    }
    assert_int_equal(di_backend_sync(t->b, &error), DI_OK);
}

static void check_between(const shape *of) {
    static const int32_t rows[] = {1, 3, 8, 9, 65, 1500}; /* kept, beside the mix, and not */
    bed t = open_bed(of);
    int64_t size = all_bytes(&t);
    uint8_t *apart = malloc((size_t)size), *together = malloc((size_t)size);
    assert_true(apart != NULL && together != NULL);
    for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
        if (rows[i / 2] > of->max_rows) continue;
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

static void test_between(void **state) {
    (void)state;
    static const shape shapes[] =
        {{.width = WIDTH, .top_k = TOP_K, .max_rows = 1500}, /* blocks take a third row, and more */
         {.width = 640,
          .top_k = 1,
          .max_rows = 65,
          .collapsed = true}, /* threads without a chunk */
         {.width = 1056, .top_k = 6, .max_rows = 65, .collapsed = true}, /* not kept */
         {.width = 5120, .top_k = 7, .max_rows = 65, .collapsed = true}, /* no room for many rows */
         {.width = WIDTH, .top_k = TOP_K, .max_rows = 65, .plain = true},
         {.width = WIDTH, .top_k = TOP_K, .max_rows = 1500, .over = true}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check_between(&shapes[i]);
}

/* What an operation wrote over the rows that sublayer_in kept is read by the next. */
static void check_overwritten(const bed *t, int32_t n, uint8_t *apart, uint8_t *together) {
    di_backend *b = t->b;
    di_error error;
    for (int i = 0; i < 2; i++) {
        run(t, n, false, false);
        b->ops->shared_expert(b->stream, &(di_shared_expert_args){n, 10, t->at[Y], t->w1, t->w3,
                                                                  t->w2, t->at[U]});
        part(t, i == 0);
        b->ops->shared_expert(b->stream, &(di_shared_expert_args){n, 10, t->at[U], t->w1, t->w3,
                                                                  t->w2, t->at[OUT]});
        b->download(b->stream, i == 0 ? apart : together, t->at[OUT], (uint64_t)n * 2 * WIDTH);
    }
    assert_int_equal(di_backend_sync(b, &error), DI_OK);
    assert_memory_equal(apart, together, (size_t)n * 2 * WIDTH);
}

/* Rows that changed since sublayer_in left them are not taken for those that it kept. */
static void check_changed_rows(int32_t n) {
    static const shape of = {.width = WIDTH, .top_k = TOP_K, .max_rows = 65};
    static uint8_t before[65 * 2 * WIDTH], after[65 * 2 * WIDTH], zeros[65 * 2 * WIDTH];
    bed t = open_bed(&of);
    di_backend *b = t.b;
    di_error error;
    uint64_t size = (uint64_t)n * 2 * WIDTH;
    run(&t, n, true, false);
    b->download(b->stream, before, t.at[OUT], size);
    b->fill(b->stream, t.at[U], 0, size);
    b->ops->shared_expert(b->stream,
                          &(di_shared_expert_args){n, 10, t.at[U], t.w1, t.w3, t.w2, t.at[OUT]});
    b->download(b->stream, after, t.at[OUT], size);
    assert_int_equal(di_backend_sync(b, &error), DI_OK);
    assert_memory_not_equal(before, after, size);
    assert_memory_equal(after, zeros, size);
    check_overwritten(&t, n, before, after);
    b->destroy(b);
}
static void test_changed_rows(void **state) {
    (void)state;
    check_changed_rows(1);
    check_changed_rows(65);
}

/* ---- Routed experts of many rows ---- */

/* Every block of the sort has picks, warps of it twice 32 (cuda_mma_picks.cu), and experts are more
 * than a warp has lanes. */
enum { N_EXPERTS = 40, MANY = 5400, FEW = 5, PICKED_BYTES = 2 * TOP_K * WIDTH };
static const shape many_shape = {.width = WIDTH, .top_k = TOP_K, .max_rows = MANY};

static bool is_dead(int64_t row) { return row % 7 == 3; }

/* Different experts, and three different picks a row that lives. */
static void put_experts(di_backend *b, di_experts_args *args, uint32_t *state) {
    di_expert experts[N_EXPERTS];
    static int32_t picks[MANY * TOP_K], pos[MANY];
    for (int32_t e = 0; e < N_EXPERTS; e++) {
        di_matrix w1 = put_matrix(b, DI_FP4_PAIR, INNER, WIDTH, 1, state);
        di_matrix w3 = put_matrix(b, DI_FP4_PAIR, INNER, WIDTH, 1, state);
        di_matrix w2 = put_matrix(b, DI_FP4_PAIR, WIDTH, INNER, 1, state);
        experts[e] = (di_expert){w1.data, w1.scale, w3.data, w3.scale, w2.data, w2.scale};
    }
    for (int32_t i = 0; i < MANY * TOP_K; i++)
        picks[i] = i % TOP_K == 0 ? (int32_t)(next_random(state) % N_EXPERTS)
                                  : (picks[i - 1] + 3) % N_EXPERTS;
    for (int32_t t = 0; t < MANY; t++) {
        pos[t] = is_dead(t) ? -1 : t;
        if (is_dead(t)) picks[t * TOP_K] = -12345; /* may hold anything */
    }
    args->experts = take(b, sizeof experts);
    args->picks = take(b, sizeof picks);
    args->pos = take(b, sizeof pos);
    b->upload(b->stream, args->experts, experts, sizeof experts);
    b->upload(b->stream, args->picks, picks, sizeof picks);
    b->upload(b->stream, args->pos, pos, sizeof pos);
    args->weights = put(b, (int64_t)sizeof picks, true, state);
}

static void read_rows(di_backend *b, const di_experts_args *args, uint8_t *to) {
    di_error error;
    b->ops->experts(b->stream, args);
    b->download(b->stream, to, args->rows, (uint64_t)args->n_rows * PICKED_BYTES);
    assert_int_equal(di_backend_sync(b, &error), DI_OK);
}

/* n rows from row `first` of all: those that live. */
static void same_rows(const uint8_t *all, const uint8_t *rows, int64_t first, int64_t n) {
    for (int64_t t = 0; t < n; t++)
        if (!is_dead(first + t))
            assert_memory_equal(all + (first + t) * PICKED_BYTES, rows + t * PICKED_BYTES,
                                PICKED_BYTES);
}

/* Rows of all from some of them by themselves; about where blocks of the sort meet, too. */
static void check_some(di_backend *b, const di_experts_args *args, const uint8_t *all) {
    static const int64_t firsts[] = {0, 1, 1331, 2730, 4095, 4776, MANY - FEW};
    static uint8_t rows[FEW * PICKED_BYTES];
    for (size_t i = 0; i < sizeof firsts / sizeof firsts[0]; i++) {
        uint64_t first = (uint64_t)firsts[i];
        di_experts_args some = *args;
        some.n_rows = FEW;
        some.pos = di_ptr_at(args->pos, first * 4);
        some.u = di_ptr_at(args->u, first * 2 * WIDTH);
        some.picks = di_ptr_at(args->picks, first * TOP_K * 4);
        some.weights = di_ptr_at(args->weights, first * TOP_K * 4);
        read_rows(b, &some, rows);
        same_rows(all, rows, firsts[i], FEW);
    }
}

/* From what sublayer_in keeps of the rows, from the rows, from some of them, and from others that
 * were put in their place while what was kept lay there. */
static void test_many_picks(void **state) {
    (void)state;
    di_backend *b = open_backend();
    uint32_t random = 5;
    int64_t size = (int64_t)MANY * PICKED_BYTES, u_bytes = (int64_t)MANY * 2 * WIDTH;
    uint8_t *kept = malloc((size_t)size), *rows = malloc((size_t)size);
    di_experts_args args = {.n_rows = MANY, .top_k = TOP_K, .n_experts = N_EXPERTS, .limit = 10};
    assert_true(kept != NULL && rows != NULL);
    prepare(b, &many_shape, N_EXPERTS);
    put_experts(b, &args, &random);
    args.dtype = DI_FP4_PAIR, args.width = WIDTH, args.inner = INNER;
    args.u = take(b, u_bytes), args.rows = take(b, size);
    di_vector norm = {DI_BF16, WIDTH, put(b, 2 * WIDTH, false, &random)};
    di_ptr streams = put(b, MANY * row_bytes(&many_shape, STREAMS), false, &random);
    di_ptr pre = put(b, MANY * row_bytes(&many_shape, PRE), true, &random);
    const di_sublayer_in_args begin = {MANY, HC, WIDTH, 1e-6, streams, pre, norm, DI_NONE, args.u};
    b->ops->sublayer_in(b->stream, &begin);
    read_rows(b, &args, kept);
    read_rows(b, &args, rows);
    same_rows(kept, rows, 0, MANY);
    check_some(b, &args, kept);
    b->ops->sublayer_in(b->stream, &begin);
    b->copy(b->stream, args.u, streams, (uint64_t)u_bytes);
    read_rows(b, &args, rows);
    assert_memory_not_equal(kept, rows, PICKED_BYTES);
    check_some(b, &args, rows);
    free(kept);
    free(rows);
    b->destroy(b);
}

/* ---- The output of attention ---- */

/* wo_a gives many rows as wo_b reads them, in tiles that have all parts of its K: of so many, on a
 * GPU of 132 processors, no tile is split. Few rows go another way. */
static void test_made_rows(void **state) {
    (void)state;
    enum { N = 100, GROUPS = 4, K = 1024, LOW = 4 * 2176, OUT_WIDTH = 256 };
    static const uint64_t firsts[] = {0, 61, N - FEW};
    static uint8_t all[N * 2 * OUT_WIDTH], some[FEW * 2 * OUT_WIDTH];
    di_backend *b = open_backend();
    di_error error;
    uint32_t random = 11;
    const di_limits limits = {.max_rows = N,
                              .width = OUT_WIDTH,
                              .hc = HC,
                              .o_low = LOW,
                              .max_k = LOW};
    assert_int_equal(b->prepare(b, &limits, &error), DI_OK);
    di_attn_out_args args = {.n_rows = N, .groups = GROUPS};
    args.o = put(b, (int64_t)N * GROUPS * K * 2, false, &random);
    args.wo_a = put_matrix(b, DI_F8_E4M3, LOW, K, GROUPS, &random);
    args.wo_b = put_matrix(b, DI_F8_E4M3, OUT_WIDTH, LOW, 1, &random);
    args.out = take(b, sizeof all);
    b->ops->attn_out(b->stream, &args);
    b->download(b->stream, all, args.out, sizeof all);
    for (size_t i = 0; i < sizeof firsts / sizeof firsts[0]; i++) {
        di_attn_out_args few = args;
        few.n_rows = FEW;
        few.o = di_ptr_at(args.o, firsts[i] * GROUPS * K * 2);
        b->ops->attn_out(b->stream, &few);
        b->download(b->stream, some, args.out, sizeof some);
        assert_int_equal(di_backend_sync(b, &error), DI_OK);
        assert_memory_equal(all + firsts[i] * 2 * OUT_WIDTH, some, sizeof some);
    }
    b->destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_between),
                                       cmocka_unit_test(test_many_picks),
                                       cmocka_unit_test(test_made_rows),
                                       cmocka_unit_test(test_changed_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
