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

/* A thread a column: of n-gram n = 1 + column / n_heads. */
static __global__ void hash_kernel(di_engram_hash_args args) {
    int32_t columns = (args.max_ngram - 1) * args.n_heads;
    int32_t column = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    int64_t t = blockIdx.y, layer = blockIdx.z;
    int32_t pos = cuda_at<const int32_t>(args.batch.pos)[t];
    if (column >= columns || pos < 0) return;
    const int64_t *m = cuda_at<const int64_t>(args.multipliers) + layer * args.max_ngram;
    int64_t hash = token_class(args, t, pos) * m[0];
    for (int32_t n = 1; n <= 1 + column / args.n_heads; n++)
        hash ^= token_class(args, t, pos - n) * m[n];
    int64_t at = layer * columns + column;
    cuda_at<int64_t>(args.table_rows)[(layer * args.batch.n_rows + t) * columns + column] =
        hash % cuda_at<const int64_t>(args.primes)[at] + cuda_at<const int64_t>(args.offsets)[at];
}

void cuda_op_engram_hash(di_stream *s, const di_engram_hash_args *args) {
    cuda_begin(s);
    int32_t columns = (args->max_ngram - 1) * args->n_heads;
    CUDA_REQUIRE(args->max_ngram >= 1 && args->max_ngram <= DI_OPS_MAX_NGRAM);
    CUDA_REQUIRE(args->batch.n_rows <= 65535 && args->n_layers <= 65535);
    dim3 grid(cuda_blocks(columns, 64), static_cast<uint32_t>(args->batch.n_rows),
              static_cast<uint32_t>(args->n_layers));
    cuda_launch(s, "engram_hash", grid, 64, 0, hash_kernel, *args);
}

/* A warp a table row: four values a lane at a time. */
template <typename A> static __global__ void table_rows_kernel(di_engram_rows_args args) {
    int64_t column = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + warp_id();
    int64_t width = args.width, t = column / args.n_columns;
    if (t >= args.n_rows) return;
    if (!cuda_none(args.pos) && cuda_at<const int32_t>(args.pos)[t] < 0) return;
    int64_t row = cuda_at<const int64_t>(args.table_rows)[column];
    const uint8_t *codes = cuda_at<const uint8_t>(args.codes) + row * width;
    const uint8_t *scales = cuda_at<const uint8_t>(args.scales) + row * (width / 32);
    A *out = cuda_at<A>(args.out) + column * width;
    for (int64_t i = 4 * lane_id(); i < width; i += 4 * WARP) {
        uint32_t word = load_u32(codes + i);
        float values[4];
        decode_e4m3<1>(&word, di_e8m0_decode(scales[i / 32]), values);
        for (int j = 0; j < 4; j++) out[i + j] = from_float<A>(values[j]);
    }
}

void cuda_op_engram_rows(di_stream *s, const di_engram_rows_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->width % 32 == 0);
    int64_t columns = static_cast<int64_t>(args->n_rows) * args->n_columns;
    CUDA_LAUNCH_A(s, "engram_rows", cuda_blocks(columns, ROW_WARPS), ROW_THREADS, 0,
                  table_rows_kernel, *args);
}

/* A block a stream of a row. Sums in double: where the dot cancels, its root does not forgive. */
template <typename A> static __global__ void gate_kernel(di_engram_gate_args args) {
    int64_t j = blockIdx.x, t = blockIdx.y, width = args.width, hc = args.hc;
    const A *kv = cuda_at<const A>(args.kv) + t * (hc + 1) * width;
    const A *key = kv + j * width, *value = kv + hc * width;
    A *h = cuda_at<A>(args.streams) + (t * hc + j) * width;
    weight_row q = row_of<DI_BF16>(args.q_weight, j), k = row_of<DI_BF16>(args.k_weight, j);
    double dot = 0, hh = 0, kk = 0;
    for (int64_t d = threadIdx.x; d < width; d += ROW_THREADS) {
        double x = static_cast<double>(to_float(h[d])), y = static_cast<double>(to_float(key[d]));
        double weight = static_cast<double>(decode1<DI_BF16>(q, d)) *
                        static_cast<double>(decode1<DI_BF16>(k, d));
        dot += x * weight * y;
        hh += x * x;
        kk += y * y;
    }
    dot = block_sum<ROW_WARPS>(dot);
    hh = block_sum<ROW_WARPS>(hh) / static_cast<double>(width);
    kk = block_sum<ROW_WARPS>(kk) / static_cast<double>(width);
    dot /= sqrt(hh + args.eps) * sqrt(kk + args.eps);
    dot *= 1 / sqrt(static_cast<double>(width));
    float gate = static_cast<float>(sigmoid(copysign(sqrt(fmax(fabs(dot), 1e-6)), dot)));
    for (int64_t d = threadIdx.x; d < width; d += ROW_THREADS)
        h[d] = from_float<A>(fmaf(gate, to_float(value[d]), to_float(h[d])));
    if (threadIdx.x == 0 && !cuda_none(args.gate)) cuda_at<float>(args.gate)[t * hc + j] = gate;
}

void cuda_op_engram_gate(di_stream *s, const di_engram_gate_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->q_weight.dtype == DI_BF16 && args->k_weight.dtype == DI_BF16);
    CUDA_REQUIRE(args->n_rows <= 65535);
    dim3 grid(static_cast<uint32_t>(args->hc), static_cast<uint32_t>(args->n_rows));
    CUDA_LAUNCH_A(s, "engram_gate", grid, ROW_THREADS, 0, gate_kernel, *args);
}
