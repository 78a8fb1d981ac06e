/* The operations between the products of a step, at the released sizes.
 *
 *   bench_cuda_small [sampling] [ROWS ...]
 *
 * `release`, by default 1, 8, 64, 256 and 2048 rows (sampling: at most 256); `sampling`: nothing but
 * that, by default 1, 8, 32, 64 and 256 rows. A line is one
 * operation: its time in a CUDA graph of 20 calls, the bytes that it must read and write, and their
 * rate. Activations are as warm as in a step, where the operation before has written them; mix reads
 * other weights with each call, which are in memory and not in a cache. An empty kernel is timed
 * first: at few rows an operation costs as much as its kernels' starts. About 5 s.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device.cuh"

#include "graph_times.cuh"

static constexpr int32_t WIDTH = 5120, HC = 4, VOCAB = 129280, RANK = 1280, LATENT = 512, KEY = 128;
static constexpr int32_t MIX = (2 + HC) * HC, COLUMNS = 24, TABLE_WIDTH = 256, NGRAM = 4, HEADS = 8;
static constexpr int32_t MOST_ROWS = 2048, MOST_SAMPLED = 256, BLOCK = 5, SLOTS = MOST_ROWS;
static constexpr int32_t TABLE_ROWS = 1 << 18, HISTORY = 512, CALLS = 20, MIX_COPIES = 40;

static di_backend *backend;

static void must(di_status status, const di_error *error) {
    if (status == DI_OK) return;
    fprintf(stderr, "bench_cuda_small: %s\n", error->message);
    exit(1);
}
static void check(cudaError_t status) {
    if (status == cudaSuccess) return;
    fprintf(stderr, "bench_cuda_small: %s\n", cudaGetErrorString(status));
    exit(1);
}

/* ---- Memory ---- */

static di_ptr take(uint64_t bytes) {
    di_error error;
    di_ptr memory;
    must(backend->alloc(backend, bytes, "bench", &memory, &error), &error);
    return memory;
}

static di_ptr put(const void *host, uint64_t bytes) {
    di_ptr memory = take(bytes);
    backend->upload(backend->stream, memory, host, bytes);
    return memory;
}

static di_ptr put_ints(int64_t n, int32_t (*value)(int64_t i)) {
    int32_t *host = static_cast<int32_t *>(malloc(static_cast<size_t>(n) * 4));
    if (host == NULL) abort();
    for (int64_t i = 0; i < n; i++) host[i] = value(i);
    di_ptr memory = put(host, static_cast<uint64_t>(n) * 4);
    free(host);
    return memory;
}

/* Normal values times scale, bf16 or float32. */
static __global__ void normal_kernel(uint64_t n, float scale, uint32_t seed, __nv_bfloat16 *bf16,
                                     float *f32) {
    uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += stride) {
        uint32_t word[4];
        di_philox(seed, i, 0, word);
        float u = (static_cast<float>(word[0]) + 0.5f) * 0x1p-32f;
        float x = scale * sqrtf(-2 * logf(u)) * cospif(static_cast<float>(word[1]) * 0x1p-31f);
        if (bf16 != NULL)
            bf16[i] = __float2bfloat16_rn(x);
        else
            f32[i] = x;
    }
}
static di_ptr normal(uint64_t n, uint64_t bytes, float scale) {
    static uint32_t seed;
    di_ptr to = take(n * bytes);
    normal_kernel<<<1024, 256, 0, backend->stream->stream>>>(n, scale, ++seed,
                                                             bytes == 2 ? cuda_at<__nv_bfloat16>(to)
                                                                        : NULL,
                                                             bytes == 4 ? cuda_at<float>(to)
                                                                        : NULL);
    check(cudaGetLastError());
    return to;
}

/* A BF16 matrix for products, bound as the model's are. */
static di_matrix product(int32_t n, int32_t k) {
    uint64_t bytes = UINT64_C(2) * n * k;
    void *host = malloc(bytes);
    di_ptr values = normal(bytes / 2, 2, 0.02f);
    di_host_matrix m = {DI_BF16, n, k, 1, host, NULL};
    di_matrix out;
    di_error error;
    backend->download(backend->stream, host, values, bytes);
    if (host == NULL || di_backend_sync(backend, &error) != DI_OK ||
        backend->bind_matrix(backend, &m, "a matrix", &out, &error) != DI_OK) {
        fprintf(stderr, "bench_cuda_small: a matrix cannot be bound\n");
        exit(1);
    }
    backend->free(backend, values);
    free(host);
    return out;
}

/* ---- Everything the operations read ---- */

typedef struct bench_data {
    di_ptr streams, x, out, f, pre, post, comb; /* f: MOST_ROWS rows of 2 LATENT floats */
    di_ptr mix, bf16; /* weights; bf16: a row of the widest norm and more */
    di_matrix embed, wkv, wgate, wk;
    di_ptr table, scales, table_rows, host_table, host_scales;
    di_ptr token_map, history, hash;
    di_ptr logits, counts, masks, params[16], token, logprob, next, n_valid, length;
    di_ptr blocks, one, four, drafts, confidence, temperatures, ints[6], rows, first, pos, which;
    di_ptr pages, page_table, ring, frequencies;
} bench_data;
static bench_data d;

static int32_t itself(int64_t i) { return static_cast<int32_t>(i); }
static int32_t position(int64_t i) { return 1000 + static_cast<int32_t>(i % 2); }
static int32_t even(int64_t i) { return static_cast<int32_t>(i - i % 2); }
static int32_t thousand(int64_t i) { return (void)i, 1000; }
static int32_t always(int64_t i) { return (void)i, INT32_MAX; }
static int32_t some_token(int64_t i) { return static_cast<int32_t>(i * 7919 % VOCAB); }
static int32_t one(int64_t i) { return (void)i, 1; }
static int32_t four(int64_t i) { return (void)i, 4; }
static int32_t no_count(int64_t i) { return i % 97 == 0; }

static void make_streams(void) {
    uint64_t rows = MOST_ROWS;
    d.streams = normal(rows * HC * WIDTH, 2, 1);
    d.x = normal(rows * (HC + 1) * WIDTH, 2, 1);
    d.out = take(rows * (HC + 2) * WIDTH * 2);
    d.f = normal(rows * 2 * LATENT * 2, 4, 1);
    d.pre = normal(rows * HC, 4, 1), d.post = normal(rows * HC, 4, 0.1f);
    d.comb = normal(rows * HC * HC, 4, 0.1f);
    d.mix = normal(static_cast<uint64_t>(MIX_COPIES) * MIX * HC * WIDTH, 4, 0.02f);
    d.bf16 = normal(2 * HC * WIDTH, 2, 1);
    d.embed = di_matrix{DI_BF16, VOCAB, WIDTH, normal(static_cast<uint64_t>(VOCAB) * WIDTH, 2, 1),
                        DI_NONE};
    d.wkv = product(LATENT, WIDTH), d.wgate = product(LATENT, WIDTH);
    d.wk = product(KEY, LATENT);
    d.ring = take(static_cast<uint64_t>(SLOTS) * 8 * 2 * LATENT * 4);
    d.pages = take(static_cast<uint64_t>(SLOTS) * 64 * 1024);
    d.page_table = put_ints(SLOTS * 32, [](int64_t i) { return static_cast<int32_t>(i / 32); });
    d.frequencies = normal(32, 4, 0.1f);
}

static void make_engram(void) {
    static int64_t numbers[3 * COLUMNS], *rows;
    uint64_t n = static_cast<uint64_t>(MOST_ROWS) * COLUMNS, bytes = TABLE_ROWS * TABLE_WIDTH;
    di_error error;
    for (int i = 0; i < 3 * COLUMNS; i++) numbers[i] = 15000017 + 2 * i;
    d.hash = put(numbers, sizeof numbers);
    rows = static_cast<int64_t *>(malloc(n * 8));
    uint8_t *host = static_cast<uint8_t *>(aligned_alloc(4096, bytes));
    uint8_t *scales = static_cast<uint8_t *>(aligned_alloc(4096, bytes / 32));
    if (rows == NULL || host == NULL || scales == NULL) abort();
    for (uint64_t i = 0; i < n; i++)
        rows[i] = static_cast<int64_t>((i + 1) * 2654435761u % TABLE_ROWS);
    d.table_rows = put(rows, n * 8);
    memset(host, 0x38, bytes), memset(scales, 127, bytes / 32);
    d.table = put(host, bytes), d.scales = put(scales, bytes / 32);
    if (backend->bind(backend, host, bytes, "table", &d.host_table, &error) != DI_OK ||
        backend->bind(backend, scales, bytes / 32, "table", &d.host_scales, &error) != DI_OK) {
        printf("no table in host memory: %s\n", error.message);
        d.host_scales = DI_NONE;
    }
    d.token_map = put_ints(VOCAB, [](int64_t i) { return static_cast<int32_t>(i % 99092); });
    d.history = put_ints(static_cast<int64_t>(SLOTS) * HISTORY, some_token);
}

static di_sample_params plain(int32_t i) {
    di_sample_params p = {};
    p.seed = 77 + static_cast<uint64_t>(i), p.temperature = 1, p.top_p = 1;
    p.repetition_penalty = 1, p.slot = i, p.mask = -1;
    return p;
}
enum { GREEDY, TEMPERATURE, TOP_P, COOL, TOP_K, MIN_P, MASK, PENALTIES, N_WAYS };
static const char *const ways[N_WAYS] = {"greedy",     "temperature 1",
                                         "top_p 0.95", "0.6, top_p 0.95",
                                         "top_k 50",   "min_p 0.05",
                                         "mask",       "penalties, top_p"};

static void make_sampling(void) {
    static di_sample_params params[MOST_SAMPLED];
    static di_row rows[MOST_ROWS];
    static di_block blocks[MOST_SAMPLED];
    d.logits = normal(static_cast<uint64_t>(MOST_SAMPLED) * VOCAB, 4, 3);
    d.counts = put_ints(static_cast<int64_t>(MOST_SAMPLED) * VOCAB, no_count);
    d.masks =
        put_ints(2 * VOCAB / 32, [](int64_t i) { return static_cast<int32_t>(i * 2654435761); });
    for (int way = 0; way < N_WAYS; way++) {
        for (int32_t i = 0; i < MOST_SAMPLED; i++) {
            di_sample_params *p = &params[i];
            *p = plain(i);
            if (way == GREEDY) p->temperature = 0;
            if (way == TOP_P || way == COOL || way == PENALTIES) p->top_p = 0.95f;
            if (way == COOL) p->temperature = 0.6f;
            if (way == MASK) p->mask = i % 2;
            if (way == TOP_K) p->top_k = 50;
            if (way == MIN_P) p->min_p = 0.05f;
            if (way == PENALTIES) p->frequency_penalty = 0.5f, p->repetition_penalty = 1.1f;
        }
        d.params[way] = put(params, sizeof params);
    }
    for (int32_t i = 0; i < MOST_ROWS; i++) rows[i] = di_row{5, i, 0};
    for (int32_t i = 0; i < MOST_SAMPLED; i++) blocks[i] = di_block{i, BLOCK, i, 0, 0};
    d.rows = put(rows, sizeof rows), d.blocks = put(blocks, sizeof blocks);
    d.one = put_ints(MOST_SAMPLED, one), d.four = put_ints(MOST_SAMPLED, four);
    d.drafts = put_ints(BLOCK * MOST_SAMPLED, some_token);
    d.confidence = normal(BLOCK * MOST_SAMPLED, 4, 2);
    float ones[DI_LAWS * BLOCK];
    for (float &t : ones) t = 1;
    d.temperatures = put(ones, sizeof ones);
    for (di_ptr &p : d.ints) p = take(MOST_ROWS * 8);
    d.token = take(MOST_ROWS * 4), d.logprob = take(MOST_ROWS * 4), d.next = take(SLOTS * 4);
    d.n_valid = put_ints(SLOTS, always), d.length = put_ints(SLOTS, thousand);
    d.first = put_ints(MOST_ROWS, even), d.which = put_ints(MOST_ROWS, itself);
    d.pos = put_ints(MOST_ROWS, position);
}

static di_batch batch_of(int32_t rows) {
    di_batch b = {};
    b.n_rows = rows, b.n_slots = SLOTS, b.rows = d.rows, b.length = d.length, b.n_valid = d.n_valid;
    b.next_token = d.next, b.pos = d.pos, b.first = d.first, b.token = d.ints[0];
    return b;
}

/* ---- Timing ---- */

/* Seconds of one of CALLS calls of f(call, rows) in a graph. */
template <typename F> static double seconds_of(int32_t rows, F f) {
    cudaStream_t stream = backend->stream->stream;
    cudaGraph_t graph;
    double seconds[5];
    f(0, rows); /* what is set at a kernel's first launch */
    cuda_join(backend->stream);
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int call = 0; call < CALLS; call++) f(call, rows);
    cuda_join(backend->stream);
    check(cudaStreamEndCapture(stream, &graph));
    check(graph_times(stream, graph, 5, seconds));
    check(cudaGraphDestroy(graph));
    return best_of(seconds, 5) / CALLS;
}

template <typename F> static void time_op(const char *name, int32_t rows, double bytes, F f) {
    double seconds = seconds_of(rows, f);
    printf("%-26s %5d %9.2f us %10.3f MB %8.1f GB/s\n", name, rows, seconds * 1e6, bytes * 1e-6,
           bytes / seconds * 1e-9);
}

static __global__ void empty_kernel() {}

/* ---- The operations ---- */

static void time_streams(int32_t rows) {
    const di_ops *ops = backend->ops;
    di_stream *s = backend->stream;
    double a = 2.0 * WIDTH * rows, weights = 4.0 * MIX * HC * WIDTH;
    time_op("embed", rows, (1 + HC) * a, [&](int, int32_t n) {
        di_embed_args args = {batch_of(n), d.embed, HC, d.out, d.pre};
        args.batch.token = d.which;
        ops->embed(s, &args);
    });
    time_op("mix", rows, HC * a + weights, [&](int call, int32_t n) {
        di_matrix fn = {DI_F32, MIX, HC * WIDTH, d.mix, DI_NONE};
        fn.data.address += static_cast<uint64_t>(call % MIX_COPIES) * MIX * HC * WIDTH * 4;
        di_mix_args args = {n,
                            HC,
                            WIDTH,
                            20,
                            1e-20,
                            1e-6,
                            d.streams,
                            fn,
                            {DI_F32, MIX, d.f},
                            {DI_F32, 3, d.f},
                            d.pre,
                            d.post,
                            d.comb};
        ops->mix(s, &args);
    });
    time_op("sublayer_in", rows, (1 + HC) * a, [&](int, int32_t n) {
        di_sublayer_in_args args =
            {n, HC, WIDTH, 1e-20, d.streams, d.pre, {DI_BF16, WIDTH, d.bf16}, DI_NONE, d.out};
        ops->sublayer_in(s, &args);
    });
    time_op("sublayer_out", rows, (1 + 2 * HC) * a, [&](int, int32_t n) {
        di_sublayer_out_args args = {n, HC, WIDTH, d.x, d.post, d.comb, d.out};
        ops->sublayer_out(s, &args);
    });
    time_op("stream_mean", rows, (1 + HC) * a, [&](int, int32_t n) {
        di_stream_mean_args args = {n, HC, WIDTH, d.streams, d.out, WIDTH};
        ops->stream_mean(s, &args);
    });
    for (int32_t width : {RANK, WIDTH}) {
        time_op(width == RANK ? "rms_norm 1280" : "rms_norm 5120", rows, 4.0 * width * rows,
                [&](int, int32_t n) {
                    di_rms_norm_args args = {n, width, 1e-20, d.x, {DI_BF16, width, d.bf16}, d.out};
                    ops->rms_norm(s, &args);
                });
    }
}

static void time_engram(int32_t rows) {
    const di_ops *ops = backend->ops;
    di_stream *s = backend->stream;
    double row = COLUMNS * TABLE_WIDTH, a = 2.0 * WIDTH * rows;
    time_op("engram_hash (2 layers)", rows, 2.0 * COLUMNS * 8 * rows, [&](int, int32_t n) {
        di_engram_hash_args args = {batch_of(n), d.history, HISTORY, d.token_map, 2,      2,
                                    NGRAM,       HEADS,     d.hash,  d.hash,      d.hash, d.out};
        args.batch.token = d.which;
        ops->engram_hash(s, &args);
    });
    for (int host = 0; host < (d.host_scales.address ? 2 : 1); host++) {
        time_op(host ? "engram_rows, host table" : "engram_rows", rows,
                rows * row * (host ? 1.03125 : 3.03125), [&](int, int32_t n) {
                    di_engram_rows_args args = {n,
                                                COLUMNS,
                                                TABLE_WIDTH,
                                                DI_NONE,
                                                d.table_rows,
                                                host ? d.host_table : d.table,
                                                host ? d.host_scales : d.scales,
                                                d.out};
                    ops->engram_rows(s, &args);
                });
    }
    time_op("engram_gate", rows, (2 * HC + HC + 1) * a, [&](int, int32_t n) {
        di_matrix w = {DI_BF16, HC, WIDTH, d.bf16, DI_NONE};
        di_engram_gate_args args = {n, HC, WIDTH, 1e-20, d.x, w, w, d.out, DI_NONE};
        ops->engram_gate(s, &args);
    });
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        time_op(ratio == 1 ? "compress, ratio 1" : "compress, ratio 2", rows,
                a + 2.0 * LATENT * (WIDTH * ratio + KEY), [&](int, int32_t n) {
                    di_vector norm = {DI_BF16, LATENT, d.bf16}, k_norm = {DI_BF16, KEY, d.bf16};
                    di_pages pages = {d.pages, 64 * 1024, d.page_table, 32,    ratio, LATENT,
                                      KEY,     0,         32768,        49152, 57344};
                    di_compress_args args = {batch_of(n), 1e-20, {64, d.frequencies},
                                             d.x,         d.wkv, d.wgate,
                                             norm,        d.wk,  k_norm,
                                             d.ring,      8,     pages,
                                             DI_NONE};
                    ops->compress(s, &args);
                });
    }
    time_op("pool, ratio 2", rows, (2.0 * 2 * 4 + 2) * LATENT * rows, [&](int, int32_t n) {
        di_pool_args args = {n, 2, LATENT, d.f, d.f, d.out};
        ops->pool(s, &args);
    });
}

static di_sample_args sample_of(int32_t n, int way, bool logprob) {
    di_sample_args args = {};
    args.n_out = n, args.vocab = VOCAB, args.which = d.which, args.pos = d.pos;
    args.first = d.first, args.logits = d.logits, args.params = d.params[way];
    args.masks = d.masks;
    if (way == PENALTIES) args.counts = d.counts;
    args.extra_stride = 1, args.next_token = d.next, args.token = d.token;
    args.logprob = logprob ? d.logprob : DI_NONE;
    return args;
}

static void time_sampling(int32_t rows) {
    const di_ops *ops = backend->ops;
    di_stream *s = backend->stream;
    double logits = 4.0 * VOCAB * rows;
    for (int way = 0; way < N_WAYS; way++) {
        char name[64];
        snprintf(name, sizeof name, "sample, %s", ways[way]);
        time_op(name, rows, logits, [&](int, int32_t n) {
            di_sample_args args = sample_of(n, way, true);
            ops->sample(s, &args);
        });
    }
    time_op("sample, greedy, bare", rows, logits, [&](int, int32_t n) {
        di_sample_args args = sample_of(n, GREEDY, false);
        ops->sample(s, &args);
    });
    int32_t n_blocks = rows < 4 ? 1 : rows / 4;
    time_op("accept, three stand", rows, 20.0 * rows, [&](int, int32_t n) {
        di_accept_args args = {};
        args.sample = sample_of(n < 4 ? 1 : 4 * n_blocks, GREEDY, true);
        args.sample.param_of = d.which, args.sample.token = d.four;
        args.n_blocks = n_blocks, args.block = BLOCK, args.n_columns = MOST_SAMPLED;
        args.blocks = d.blocks, args.n_rows = n < 4 ? d.one : d.four, args.row_token = d.four;
        args.draft_logits = d.logits, args.n_valid = d.n_valid;
        ops->accept(s, &args);
    });
    time_op("allot, 1/4 blocks", rows, 40.0 * rows, [&](int, int32_t n) {
        di_allot_args args = {n_blocks,       n - n_blocks, BLOCK,     MOST_SAMPLED,
                              d.blocks,       d.next,       d.drafts,  d.confidence,
                              d.temperatures, d.ints[1],    d.ints[2], d.ints[3],
                              d.ints[4],      d.ints[5],    d.ints[1], d.ints[0]};
        ops->allot(s, &args);
    });
    time_op("tally", rows, 12.0 * rows, [&](int, int32_t n) {
        di_tally_args args = {n, VOCAB, 1, false, d.drafts, d.which, d.counts};
        ops->tally(s, &args);
    });
}

static void time_step(int32_t rows) {
    const di_ops *ops = backend->ops;
    di_stream *s = backend->stream;
    time_op("step_begin", rows, 36.0 * rows, [&](int, int32_t n) {
        di_step_begin_args args = {batch_of(n)};
        args.batch.pos = d.ints[1], args.batch.first = d.ints[2], args.batch.token = d.ints[3];
        ops->step_begin(s, &args);
    });
    time_op("step_end", rows, 36.0 * rows, [&](int, int32_t n) {
        di_step_end_args args = {batch_of(n), d.history, HISTORY};
        args.batch.length = d.ints[5];
        ops->step_end(s, &args);
    });
}

static di_limits limits_of(void) {
    di_limits l = {};
    l.max_rows = MOST_ROWS, l.max_out = MOST_SAMPLED, l.width = WIDTH, l.hc = HC, l.vocab = VOCAB;
    l.n_heads = 64, l.head_dim = LATENT, l.q_rank = RANK, l.o_low = 8192, l.n_experts = 384;
    l.top_k = 6, l.inner = 2304, l.index_heads = 32, l.index_dim = KEY, l.index_top_k = 1024;
    l.top_blocks = 64, l.block_size = 64, l.max_entries = 1 << 16, l.engram_columns = COLUMNS;
    l.engram_width = TABLE_WIDTH, l.max_k = 32768;
    return l;
}

int main(int argc, char **argv) {
    static const int32_t usual[] = {1, 8, 64, 256, 2048}, sampled[] = {1, 8, 32, 64, 256};
    bool sampling = argc > 1 && strcmp(argv[1], "sampling") == 0;
    di_error error;
    di_cuda_options options = {};
    di_limits limits = limits_of();
    options.host_from = 1 << 20;
    must(di_backend_create_cuda(DI_NUMERICS_RELEASE, &options, &backend, &error), &error);
    must(backend->prepare(backend, &limits, &error), &error);
    if (!sampling) make_streams(), make_engram();
    make_sampling();
    must(di_backend_sync(backend, &error), &error);
    printf("%s\n", backend->device);
    time_op("an empty kernel", 1, 0,
            [&](int, int32_t) { empty_kernel<<<1, 32, 0, backend->stream->stream>>>(); });
    int given = sampling ? 2 : 1;
    for (int i = 0; i < (argc > given ? argc - given : 5); i++) {
        int32_t rows = argc > given ? atoi(argv[given + i]) : sampling ? sampled[i] : usual[i];
        if (rows < 1 || rows > MOST_ROWS) continue;
        if (!sampling) time_streams(rows), time_engram(rows), time_step(rows);
        if (rows <= MOST_SAMPLED) time_sampling(rows);
    }
    must(di_backend_sync(backend, &error), &error);
    backend->destroy(backend);
    return 0;
}
