/* Engram (model.md 5): hashes, table rows, the gate. */
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/weights.cuh"

/* The class of the token at `position` of row t's sequence; before the start, pad_class. */
static __device__ int64_t token_class(const di_engram_hash_args &args, int64_t t,
                                      int32_t position) {
    const di_batch &b = args.batch;
    if (position < 0) return args.pad_class;
    int32_t slot = cuda_at<const di_row>(b.rows)[t].slot;
    int32_t length = cuda_at<const int32_t>(b.length)[slot], token;
    if (position >= length)
        token = cuda_at<const int32_t>(
            b.token)[cuda_at<const int32_t>(b.first)[t] + (position - length)];
    else
        token =
            cuda_at<const int32_t>(args.history)[static_cast<int64_t>(slot) * args.history_slots +
                                                 position % args.history_slots];
    return cuda_at<const int32_t>(args.token_map)[token];
}

/* A block a row: the classes once, then a thread a column, of n-gram n = 1 + column / n_heads. */
static constexpr int HASH_THREADS = 96;
static __global__ void hash_kernel(di_engram_hash_args args) {
    __shared__ int64_t classes[DI_OPS_MAX_NGRAM];
    int32_t columns = (args.max_ngram - 1) * args.n_heads, k = static_cast<int32_t>(threadIdx.x);
    int64_t t = blockIdx.x;
    begin_early();
    int32_t pos = cuda_at<const int32_t>(args.batch.pos)[t];
    if (pos < 0) return;
    if (k < args.max_ngram) classes[k] = token_class(args, t, pos - k);
    __syncthreads();
    for (int32_t at = k; at < args.n_layers * columns; at += HASH_THREADS) {
        int64_t layer = at / columns, column = at % columns;
        const int64_t *m = cuda_at<const int64_t>(args.multipliers) + layer * args.max_ngram;
        int64_t hash = classes[0] * m[0];
        for (int64_t n = 1; n <= 1 + column / args.n_heads; n++) hash ^= classes[n] * m[n];
        cuda_at<int64_t>(args.table_rows)[(layer * args.batch.n_rows + t) * columns + column] =
            hash % cuda_at<const int64_t>(args.primes)[at] +
            cuda_at<const int64_t>(args.offsets)[at];
    }
}

void cuda_op_engram_hash(di_stream *s, const di_engram_hash_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->max_ngram >= 1 && args->max_ngram <= DI_OPS_MAX_NGRAM);
    cuda_launch_early(s, "engram_hash", static_cast<uint32_t>(args->batch.n_rows), HASH_THREADS, 0,
                      hash_kernel, *args);
}

/* A thread 16 values of a table row, half a scale, asked for at once: the table may lie behind the
 * bus, which wants many reads under way. */
static constexpr int TABLE_EACH = 16, TABLE_THREADS = 128;
template <typename A> static __global__ void table_rows_kernel(di_engram_rows_args args) {
    uint32_t i = blockIdx.x * TABLE_THREADS + threadIdx.x;
    uint32_t each = static_cast<uint32_t>(args.width / TABLE_EACH), column = i / each;
    uint32_t t = column / static_cast<uint32_t>(args.n_columns);
    int64_t width = args.width, at = (i % each) * TABLE_EACH;
    begin_early();
    if (t >= static_cast<uint32_t>(args.n_rows)) return;
    int64_t row = cuda_at<const int64_t>(args.table_rows)[column];
    if (!cuda_none(args.pos) && cuda_at<const int32_t>(args.pos)[t] < 0) return;
    uint32_t words[4];
    uint8_t scale = cuda_at<const uint8_t>(args.scales)[row * (width / 32) + at / 32];
    load_words<4>(cuda_at<const uint8_t>(args.codes) + row * width + at, words);
    float values[TABLE_EACH];
    decode_e4m3<4>(words, di_e8m0_decode(scale), values);
    A *out = cuda_at<A>(args.out) + column * width;
    for (int half = 0; half < 2; half++) {
        if (whole_chunks(out, width))
            store_chunk<true>(out, at + ROW_CHUNK * half, width, values + ROW_CHUNK * half);
        else
            store_chunk<false>(out, at + ROW_CHUNK * half, width, values + ROW_CHUNK * half);
    }
}

void cuda_op_engram_rows(di_stream *s, const di_engram_rows_args *args) {
    cuda_begin(s);
    int64_t threads =
        static_cast<int64_t>(args->n_rows) * args->n_columns * (args->width / TABLE_EACH);
    CUDA_REQUIRE(args->width % 32 == 0 && threads < INT32_MAX);
    CUDA_LAUNCH_EARLY_A(s, "engram_rows", cuda_blocks(threads, TABLE_THREADS), TABLE_THREADS, 0,
                        table_rows_kernel, *args);
}

/* ---- The gate ---- */

typedef struct gate_sums {
    double dot, hh, kk;
} gate_sums;

/* Of all threads of the block, in every thread. */
static __device__ gate_sums block_sums(gate_sums mine) {
    __shared__ gate_sums part[WARP];
    int warps = static_cast<int>(blockDim.x) / WARP;
    mine = {warp_sum(mine.dot), warp_sum(mine.hh), warp_sum(mine.kk)};
    if (lane_id() == 0) part[warp_id()] = mine;
    __syncthreads();
    gate_sums all = lane_id() < warps ? part[lane_id()] : gate_sums{0, 0, 0};
    return gate_sums{warp_sum(all.dot), warp_sum(all.hh), warp_sum(all.kk)};
}

/* The dot in double: where it cancels, its root does not forgive. The weights' product, of two bf16,
 * is exact in float32. */
static __device__ __forceinline__ void add_chunk(const float *h, const float *key, const float *q,
                                                 const float *k, gate_sums *sums) {
    for (int i = 0; i < ROW_CHUNK; i++) {
        double x = static_cast<double>(h[i]), y = static_cast<double>(key[i]);
        sums->dot += x * static_cast<double>(q[i] * k[i]) * y;
    }
    sums->hh += static_cast<double>(chunk_squares(h, 0));
    sums->kk += static_cast<double>(chunk_squares(key, 0));
}

/* A block a stream of a row; a thread's first chunk stays in registers. */
template <bool RELEASED, typename A>
static __device__ __forceinline__ void gate_stream(const di_engram_gate_args &args, int64_t j,
                                                   int64_t t) {
    int64_t width = args.width, hc = args.hc, first = static_cast<int64_t>(threadIdx.x) * ROW_CHUNK;
    const A *kv = cuda_at<const A>(args.kv) + t * (hc + 1) * width;
    const A *key = kv + j * width, *value = kv + hc * width;
    A *streams = cuda_at<A>(args.streams) + (t * hc + j) * width;
    uint64_t row = static_cast<uint64_t>(2 * j * width);
    di_vector q_row = {DI_BF16, args.width, di_ptr_at(args.q_weight.data, row)};
    di_vector k_row = {DI_BF16, args.width, di_ptr_at(args.k_weight.data, row)};
    float h[ROW_CHUNK] = {}, v[ROW_CHUNK] = {}, y[ROW_CHUNK], q[ROW_CHUNK], k[ROW_CHUNK];
    gate_sums sums = {0, 0, 0};
    begin_early();
    if (t >= args.n_rows) return;
    each_chunk<RELEASED>(width, [&](int64_t at) {
        float x[ROW_CHUNK];
        load_chunk<RELEASED>(streams, at, width, x);
        load_chunk<RELEASED>(key, at, width, y);
        if (at == first) load_chunk<RELEASED>(value, at, width, v);
        vector_chunk(q_row, at, q);
        vector_chunk(k_row, at, k);
        add_chunk(x, y, q, k, &sums);
        for (int i = 0; i < ROW_CHUNK && at == first; i++) h[i] = x[i];
    });
    sums = block_sums(sums);
    double of_h = sums.hh / static_cast<double>(width), of_k = sums.kk / static_cast<double>(width);
    double dot = sums.dot / (sqrt(of_h + args.eps) * sqrt(of_k + args.eps));
    dot *= 1 / sqrt(static_cast<double>(width));
    float gate = static_cast<float>(sigmoid(copysign(sqrt(fmax(fabs(dot), 1e-6)), dot)));
    each_chunk<RELEASED>(width, [&](int64_t at) {
        if (at != first) {
            load_chunk<RELEASED>(streams, at, width, h);
            load_chunk<RELEASED>(value, at, width, v);
        }
        for (int i = 0; i < ROW_CHUNK; i++) h[i] = fmaf(gate, v[i], h[i]);
        store_chunk<RELEASED>(streams, at, width, h);
    });
    if (threadIdx.x == 0 && !cuda_none(args.gate)) cuda_at<float>(args.gate)[t * hc + j] = gate;
}

template <typename A>
static __global__ __launch_bounds__(ROW_RELEASED) void gate_released(di_engram_gate_args args) {
    gate_stream<true, A>(args, blockIdx.x, grid_row());
}
template <typename A>
static __global__ __launch_bounds__(ROW_MOST) void gate_any(di_engram_gate_args args) {
    gate_stream<false, A>(args, blockIdx.x, grid_row());
}

void cuda_op_engram_gate(di_stream *s, const di_engram_gate_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->q_weight.dtype == DI_BF16 && args->k_weight.dtype == DI_BF16);
    dim3 grid = cuda_row_grid(static_cast<uint32_t>(args->hc), args->n_rows);
    uint32_t threads = row_threads(args->width);
    if (released_rows(args->width, {args->kv, args->streams}))
        CUDA_LAUNCH_EARLY_A(s, "engram_gate", grid, threads, 0, gate_released, *args);
    else
        CUDA_LAUNCH_EARLY_A(s, "engram_gate", grid, threads, 0, gate_any, *args);
}
