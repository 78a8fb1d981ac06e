/* Queries and window keys, and the projection of what attention gives (model.md 3.6). */
#include "kernels/cuda/mma_jobs.cuh"
#include "kernels/cuda/mma_launch.cuh"
#include "kernels/cuda/rows.cuh"

/* ---- Rows between the products: a block a row, a thread a chunk ---- */

static constexpr int32_t MOST_WIDTH = static_cast<int32_t>(ROW_MOST) * ROW_CHUNK;
static constexpr int32_t MOST_PAIRS = 256; /* of RoPE */

/* qr = norm(qr), and the same as the product that reads it takes it. */
typedef struct query_norm {
    di_ptr qr; /* A, in place */
    di_vector weight;
    double eps;
    di_dtype dtype; /* of the product's weights */
    mma_order order;
    uint8_t *ready; /* NULL: not wanted */
} query_norm;

template <typename A> static __device__ void query_row(const query_norm &args, int64_t t) {
    int32_t n = args.weight.n, at = static_cast<int32_t>(threadIdx.x) * ROW_CHUNK;
    A *x = cuda_at<A>(args.qr) + t * n;
    bool live = at < n, whole = whole_chunks(x, n);
    float v[ROW_CHUNK] = {}, weight[ROW_CHUNK] = {};
    if (live) vector_chunk(args.weight, at, weight);
    await_kernels_before();
    if (live && whole)
        load_chunk<true>(x, at, n, v);
    else if (live)
        load_chunk<false>(x, at, n, v);
    chunk_norm(v, weight, root_inverse(row_sum(chunk_squares(v, 0)), n, args.eps));
    for (int i = 0; i < ROW_CHUNK; i++) v[i] = round_a<A>(v[i]);
    if (live && whole)
        store_chunk<true>(x, at, n, v);
    else if (live)
        store_chunk<false>(x, at, n, v);
    if (args.ready == NULL) return;
    int32_t padded = mma_padded(n);
    if (args.order.wide && args.dtype == DI_F8_E4M3) /* the release's many: no divisions */
        mma_store_wide<DI_F8_E4M3>(args.order.octets, args.ready, t, at, at < padded, v);
    else
        mma_store_chunk(args.order, args.ready, t, at, padded, true, at < padded, v);
}

/* The pairs of RoPE that a chunk has; angles of all pairs. */
template <typename A>
static __device__ __forceinline__ void rotate_chunk(float *v, int32_t at, int32_t begin,
                                                    int32_t width, const float2 *angles) {
    for (int i = 0; i < ROW_CHUNK; i += 2) {
        if (at + i < begin || at + i >= width) continue;
        float2 y = rotated(make_float2(v[i], v[i + 1]), angles[(at + i - begin) / 2]);
        v[i] = round_a<A>(y.x), v[i + 1] = round_a<A>(y.y);
    }
}

/* Codes and scales of row t from its projection kv; and angles of its pairs, for others, or NULL. */
template <typename A>
static __device__ void window_row(const di_window_kv_args &args, int64_t t, const A *kv,
                                  float2 *for_others) {
    __shared__ float2 angles[MOST_PAIRS];
    int32_t d = args.head_dim, at = static_cast<int32_t>(threadIdx.x) * ROW_CHUNK;
    int32_t begin = d - args.rope.dims;
    bool live = at < d;
    float v[ROW_CHUNK] = {}, weight[ROW_CHUNK] = {};
    if (live) vector_chunk(args.kv_norm, at, weight);
    await_kernels_before();
    if (live) load_chunk<true>(kv + t * d, at, d, v);
    int32_t pos = cuda_at<const int32_t>(args.batch.pos)[t];
    if (pos < 0) return;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.rope.dims / 2;
         i += static_cast<int32_t>(blockDim.x)) {
        angles[i] = rope_angle(args.rope, pos, i, false);
        if (for_others != NULL) for_others[t * (args.rope.dims / 2) + i] = angles[i];
    }
    chunk_norm(v, weight, root_inverse(row_sum(chunk_squares(v, 0)), d, args.eps));
    for (int i = 0; i < ROW_CHUNK; i++) v[i] = round_a<A>(v[i]);
    rotate_chunk<A>(v, at, begin, d, angles); /* row_sum's barriers are behind them */
    uint8_t scale;
    uint2 codes = chunk_q8(v, &scale);
    if (!live) return;
    uint8_t *out = cuda_at<uint8_t>(args.kv_codes) + t * d + at;
    if (reinterpret_cast<uintptr_t>(out) % 8 == 0) {
        *reinterpret_cast<uint2 *>(out) = codes;
    } else {
        for (int i = 0; i < ROW_CHUNK; i++)
            out[i] = static_cast<uint8_t>((i < 4 ? codes.x : codes.y) >> (8 * (i % 4)));
    }
    if (at % 32 == 0) cuda_at<uint8_t>(args.kv_scales)[t * (d / 32) + at / 32] = scale;
}

template <typename A>
static __global__ __launch_bounds__(ROW_MOST) void window_kernel(di_window_kv_args args,
                                                                 const A *kv) {
    let_kernels_begin();
    window_row(args, blockIdx.x, kv, static_cast<float2 *>(NULL));
}

/* Rows of queries (blockIdx.y 0) and of keys. */
template <typename A>
static __global__ __launch_bounds__(ROW_MOST) void low_kernel(query_norm query,
                                                              di_window_kv_args window, const A *kv,
                                                              float2 *angles) {
    let_kernels_begin();
    if (blockIdx.y == 0)
        query_row<A>(query, blockIdx.x);
    else
        window_row(window, blockIdx.x, kv, angles);
}

/* RoPE of the queries: a warp EACH heads of a row, all of which are asked for at once; lane l has the
 * pairs l, l + 32, ... angles: of all rows' pairs, by an earlier kernel of the operation. */
template <typename A, int EACH>
static __global__ void query_rope_kernel(di_qkv_args args, const float2 *angles) {
    int32_t half = args.rope.dims / 2, width = args.head_dim;
    int32_t first = (static_cast<int32_t>(blockIdx.y) * ROW_WARPS + warp_id()) * EACH;
    int64_t t = blockIdx.x, tail = width - args.rope.dims;
    A *q = cuda_at<A>(args.q) + (t * args.n_heads + first) * width + tail;
    begin_early();
    int32_t pos = cuda_at<const int32_t>(args.batch.pos)[t];
    if (pos < 0) return;
    for (int32_t i = lane_id(); i < half; i += WARP) {
        float2 x[EACH];
#pragma unroll
        for (int h = 0; h < EACH; h++) {
            const A *pair = q + static_cast<int64_t>(h) * width + 2 * i;
            x[h] = make_float2(0, 0);
            if (first + h < args.n_heads) x[h] = make_float2(to_float(pair[0]), to_float(pair[1]));
        }
        float2 angle = angles[t * half + i];
#pragma unroll
        for (int h = 0; h < EACH; h++) {
            A *pair = q + static_cast<int64_t>(h) * width + 2 * i;
            if (first + h >= args.n_heads) break;
            float2 y = rotated(x[h], angle);
            pair[0] = from_float<A>(y.x);
            pair[1] = from_float<A>(y.y);
        }
    }
}

/* ---- Operations ---- */

static void require_window(const di_window_kv_args *args) {
    CUDA_REQUIRE(args->head_dim % 32 == 0 && args->head_dim <= MOST_WIDTH &&
                 args->wkv.n == args->head_dim && args->kv_norm.n == args->head_dim &&
                 args->rope.dims % 2 == 0 && args->rope.dims <= 2 * MOST_PAIRS);
}

void cuda_op_window_kv(di_stream *s, const di_window_kv_args *args) {
    cuda_begin(s);
    int32_t rows = args->batch.n_rows;
    require_window(args);
    di_ptr kv = cuda_take_a(s, static_cast<int64_t>(rows) * args->head_dim);
    cuda_linear_rows(s, &args->wkv, args->u, rows, true, false, kv);
    uint32_t grid = static_cast<uint32_t>(rows), threads = row_threads(args->head_dim);
    if (s->release)
        cuda_launch_early(s, "window", grid, threads, 0, window_kernel<__nv_bfloat16>, *args,
                          cuda_at<const __nv_bfloat16>(kv));
    else
        cuda_launch_early(s, "window", grid, threads, 0, window_kernel<float>, *args,
                          cuda_at<const float>(kv));
}

/* The rows of queries and keys from their projections qr and kv. Returns the queries' as wq_b reads
 * them; without data where that is no matter of the matrix units. */
static mma_ready low_rows(di_stream *s, const di_qkv_args *args, di_ptr kv, float2 *angles) {
    di_window_kv_args window = {};
    window.batch = args->batch, window.head_dim = args->head_dim, window.eps = args->eps;
    window.rope = args->rope, window.u = args->u, window.wkv = args->wkv;
    window.kv_norm = args->kv_norm;
    window.kv_codes = args->kv_codes, window.kv_scales = args->kv_scales;
    require_window(&window);
    int32_t n = args->batch.n_rows, k = args->wq_b.k, padded = mma_padded(k);
    mma_ready ready = {};
    query_norm query = {args->qr, args->q_norm, args->eps, args->wq_b.dtype, {}, NULL};
    CUDA_REQUIRE(args->q_norm.n == k && padded <= MOST_WIDTH);
    if (mma_takes(s, args->wq_b.dtype)) {
        CUDA_REQUIRE(k % 32 == 0);
        ready = mma_room(s, args->wq_b.dtype, n, 1, k);
        query.order = mma_order_of(ready.dtype, ready.wide, mma_rows8(n)), query.ready = ready.data;
    }
    dim3 grid(static_cast<uint32_t>(n), 2);
    uint32_t threads = row_threads(padded > args->head_dim ? padded : args->head_dim);
    if (s->release)
        cuda_launch_early(s, "norms", grid, threads, 0, low_kernel<__nv_bfloat16>, query, window,
                          cuda_at<const __nv_bfloat16>(kv), angles);
    else
        cuda_launch_early(s, "norms", grid, threads, 0, low_kernel<float>, query, window,
                          cuda_at<const float>(kv), angles);
    return ready;
}

/* With few rows a warp takes one head, so that nobody waits for long. */
static constexpr int FEW_ROWS = 32, MANY_HEADS = 8;
static void rope_queries(di_stream *s, const di_qkv_args *args, const float2 *angles) {
    uint32_t rows = static_cast<uint32_t>(args->batch.n_rows);
    dim3 few(rows, cuda_blocks(args->n_heads, ROW_WARPS));
    dim3 many(rows, cuda_blocks(args->n_heads, ROW_WARPS * MANY_HEADS));
    bool is_few = args->batch.n_rows <= FEW_ROWS;
    if (s->release && is_few)
        cuda_launch_early(s, "rope", few, ROW_THREADS, 0, query_rope_kernel<__nv_bfloat16, 1>,
                          *args, angles);
    else if (s->release)
        cuda_launch_early(s, "rope", many, ROW_THREADS, 0,
                          query_rope_kernel<__nv_bfloat16, MANY_HEADS>, *args, angles);
    else
        cuda_launch_early(s, "rope", many, ROW_THREADS, 0, query_rope_kernel<float, MANY_HEADS>,
                          *args, angles);
}

void cuda_op_qkv(di_stream *s, const di_qkv_args *args) {
    cuda_begin_beside(s, false);
    if (s->beside.store) cuda_join(s);
    int32_t rows = args->batch.n_rows;
    CUDA_REQUIRE(args->wq_a.k == args->wkv.k && args->wq_b.k == args->wq_a.n);
    CUDA_REQUIRE(args->wq_b.n == args->n_heads * args->head_dim);
    di_ptr kv = cuda_take_a(s, static_cast<int64_t>(rows) * args->head_dim);
    cuda_linear_part low[2] = {{args->wq_a, args->qr, false}, {args->wkv, kv, false}};
    cuda_linear_many(s, low, 2, args->u, rows, 1, true);
    cuda_overwrites(s, args->qr, cuda_rows_bytes(s, rows, args->wq_a.n));
    cuda_overwrites(s, args->q, cuda_rows_bytes(s, rows, args->wq_b.n));
    bool few = !mma_is_wide(rows); /* RoPE is part of the product */
    uint64_t pairs = static_cast<uint64_t>(rows) * static_cast<uint64_t>(args->rope.dims / 2);
    float2 *angles = cuda_take<float2>(s, pairs);
    mma_ready ready = low_rows(s, args, kv, angles);
    cuda_product up = {};
    up.w = args->wq_b, up.n_rows = rows, up.groups = 1;
    up.out = args->q, up.out_stride = args->wq_b.n;
    mma_turn turn = {cuda_at<const int32_t>(args->batch.pos), angles, args->head_dim,
                     args->rope.dims};
    if (few && ready.data != NULL && mma_run_turned(s, &up, &ready, &turn)) return;
    if (ready.data != NULL)
        mma_run_linear(s, &up, 1, &ready);
    else
        cuda_linear_rows(s, &args->wq_b, args->qr, rows, true, false, args->q);
    rope_queries(s, args, angles);
}

void cuda_op_attn_out(di_stream *s, const di_attn_out_args *args) {
    cuda_begin_beside(s, false);
    cuda_overwrites(s, args->out, cuda_rows_bytes(s, args->n_rows, args->wo_b.n));
    int32_t groups = args->groups > 1 ? args->groups : 1;
    mma_ready ready;
    cuda_product low = {}, out = {};
    low.w = args->wo_a, low.n_rows = args->n_rows, low.groups = groups;
    low.x = args->o, low.x_stride = static_cast<int64_t>(groups) * args->wo_a.k;
    if (mma_run_low(s, &low, &args->wo_b, &ready)) {
        out.w = args->wo_b, out.n_rows = args->n_rows, out.groups = 1;
        out.out = args->out, out.out_stride = args->wo_b.n;
        mma_run_linear(s, &out, 1, &ready);
        return;
    }
    low.out = cuda_take_a(s, static_cast<int64_t>(args->n_rows) * args->wo_a.n);
    cuda_linear_groups(s, &args->wo_a, groups, args->o, args->n_rows, false, false, low.out);
    cuda_linear_rows(s, &args->wo_b, low.out, args->n_rows, true, false, args->out);
}
