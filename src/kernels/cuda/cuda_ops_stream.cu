/* Streams: embedding, collapse and expand (model.md 3.4, 3.5). Mixing: cuda_ops_mix.cu. */
#include "kernels/cuda/mma_launch.cuh"
#include "kernels/cuda/streams.cuh"

/* Elementwise kernels: a thread a chunk, the rows in grid.y. With few rows the blocks of one are on
 * as many processors as there are. */
static constexpr int ELEMENT_THREADS = 128, ELEMENT_ROWS = 65535;

static dim3 element_grid(int64_t n_rows, int64_t width) {
    CUDA_REQUIRE(n_rows <= ELEMENT_ROWS);
    return dim3(cuda_blocks(width, ROW_CHUNK * ELEMENT_THREADS), static_cast<uint32_t>(n_rows));
}
static __device__ __forceinline__ int64_t element_chunk() {
    return (static_cast<int64_t>(blockIdx.x) * ELEMENT_THREADS + threadIdx.x) * ROW_CHUNK;
}

/* ---- Embedding ---- */

/* A dead row's token may be anything. */
template <typename A> static __global__ void embed_kernel(di_embed_args args) {
    int64_t t = blockIdx.y, width = args.embed.k, at = element_chunk();
    begin_early();
    if (cuda_at<const int32_t>(args.batch.pos)[t] < 0) return;
    int64_t token = cuda_at<const int32_t>(args.batch.token)[t];
    di_vector row = {DI_BF16, args.embed.k,
                     di_ptr_at(args.embed.data, static_cast<uint64_t>(2 * width * token))};
    A *streams = cuda_at<A>(args.streams) + t * args.hc * width;
    if (blockIdx.x == 0 && threadIdx.x < args.hc)
        cuda_at<float>(args.pre)[t * args.hc + threadIdx.x] = threadIdx.x == 0 ? 1.0f : 0.0f;
    if (at >= width) return;
    float v[ROW_CHUNK];
    vector_chunk(row, at, v);
    bool whole = whole_chunks(streams, width);
    for (int32_t j = 0; j < args.hc; j++) {
        if (whole)
            store_chunk<true>(streams + j * width, at, width, v);
        else
            store_chunk<false>(streams + j * width, at, width, v);
    }
}

void cuda_op_embed(di_stream *s, const di_embed_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->embed.dtype == DI_BF16 && args->hc <= ELEMENT_THREADS);
    CUDA_LAUNCH_EARLY_A(s, "embed", element_grid(args->batch.n_rows, args->embed.k),
                        ELEMENT_THREADS, 0, embed_kernel, *args);
}

/* ---- Collapse ---- */

/* Rows of few as products read them, quantised: in the two forms, or not at all. */
typedef struct kept_rows {
    mma_order order[2];
    uint8_t *rows[2];
} kept_rows;

/* A thread's chunk of row t, which the norm has left in v. */
template <typename A>
static __device__ __forceinline__ void keep_chunk(const kept_rows &kept, int64_t t, int64_t at,
                                                  int64_t width, float (&v)[ROW_CHUNK]) {
    bool live = at < width;
    int32_t k = static_cast<int32_t>(at), n = static_cast<int32_t>(width);
    for (int i = 0; i < ROW_CHUNK; i++) v[i] = live ? round_a<A>(v[i]) : 0;
    mma_store_chunk(kept.order[0], kept.rows[0], t, k, n, true, live, v);
    mma_store_chunk(kept.order[1], kept.rows[1], t, k, n, false, live, v); /* quantised by now */
}

/* A block a row, a thread a chunk, so that all of a row is asked for at once. The collapsed chunk
 * stays in registers; if the row has more chunks than a block may have threads, the others go to
 * `out` and back. A thread touches its own chunks only. KEPT: released rows. */
template <bool RELEASED, bool KEPT, typename A>
static __device__ __forceinline__ void collapse_and_norm(const di_sublayer_in_args &args,
                                                         const kept_rows &kept) {
    int64_t t = blockIdx.x, width = args.width;
    const A *streams = cuda_at<const A>(args.streams) + t * args.hc * width;
    const float *pre = cuda_at<const float>(args.pre) + t * args.hc;
    A *out = cuda_at<A>(args.out) + t * width, *collapsed = cuda_at<A>(args.collapsed) + t * width;
    int64_t first = static_cast<int64_t>(threadIdx.x) * ROW_CHUNK;
    float sum = 0, mine[ROW_CHUNK], weight[ROW_CHUNK];
    let_kernels_begin();
    if (first < width) vector_chunk(args.norm, first, weight);
    await_kernels_before();
    each_chunk<RELEASED>(width, [&](int64_t at) {
        float v[ROW_CHUNK];
        collapse_chunk<RELEASED>(streams, pre, args.hc, width, at, v);
        for (int i = 0; i < ROW_CHUNK; i++) v[i] = round_a<A>(v[i]);
        sum = chunk_squares(v, sum);
        if (!cuda_none(args.collapsed)) store_chunk<RELEASED>(collapsed, at, width, v);
        if (at != first) store_chunk<RELEASED>(out, at, width, v);
        for (int i = 0; i < ROW_CHUNK && at == first; i++) mine[i] = v[i];
    });
    float inverse = root_inverse(row_sum(sum), width, args.eps);
    each_chunk<RELEASED>(width, [&](int64_t at) {
        if (at != first) {
            load_chunk<RELEASED>(out, at, width, mine);
            vector_chunk(args.norm, at, weight);
        }
        chunk_norm(mine, weight, inverse);
        store_chunk<RELEASED>(out, at, width, mine);
    });
    if constexpr (KEPT) keep_chunk<A>(kept, t, first, width, mine);
}

template <typename A>
__launch_bounds__(ROW_RELEASED, 2) static __global__
    void sublayer_in_released(di_sublayer_in_args args) {
    collapse_and_norm<true, false, A>(args, kept_rows{});
}
template <typename A>
__launch_bounds__(ROW_MOST) static __global__ void sublayer_in_any(di_sublayer_in_args args) {
    collapse_and_norm<false, false, A>(args, kept_rows{});
}
static __global__ __launch_bounds__(ROW_RELEASED) void sublayer_in_kept(di_sublayer_in_args args,
                                                                        kept_rows kept) {
    collapse_and_norm<true, true, __nv_bfloat16>(args, kept);
}

/* Rows are kept where all of a workspace's are of this width and few. */
static bool may_keep(const di_stream *s, const di_sublayer_in_args *args) {
    return s->release && !mma_is_wide(args->n_rows) && args->width % MMA_K == 0 &&
           2 * mma_input_bytes(args->n_rows, 1, args->width) <= s->kept.bytes;
}

void cuda_op_sublayer_in(di_stream *s, const di_sublayer_in_args *args) {
    cuda_begin_beside(s, false);
    s->kept.x = DI_NONE;
    if (args->pre.address == s->beside.pre.address) cuda_join(s);
    uint32_t rows = static_cast<uint32_t>(args->n_rows), threads = row_threads(args->width);
    if (!released_rows(args->width, {args->streams, args->collapsed, args->out})) {
        CUDA_LAUNCH_EARLY_A(s, "sublayer_in", rows, threads, 0, sublayer_in_any, *args);
        return;
    }
    if (!may_keep(s, args)) {
        CUDA_LAUNCH_EARLY_A(s, "sublayer_in", rows, threads, 0, sublayer_in_released, *args);
        return;
    }
    kept_rows kept = {};
    const di_dtype forms[2] = {DI_F8_E4M3, DI_FP4_PAIR};
    for (int i = 0; i < 2; i++) {
        kept.order[i] = mma_order_of(forms[i], false, mma_rows8(args->n_rows));
        kept.rows[i] = mma_kept_place(s, forms[i]);
    }
    cuda_launch_early(s, "sublayer_in", rows, threads, 0, sublayer_in_kept, *args, kept);
    s->kept.x = args->out, s->kept.n_rows = args->n_rows, s->kept.width = args->width;
}

/* ---- Expand ---- */

/* One chunk of all streams. HC: the number of streams, or 0 for any. */
template <bool WHOLE, int HC, typename A>
static __device__ __forceinline__ void expand_chunk(const di_sublayer_out_args &args,
                                                    const float *post, const float *comb, int64_t t,
                                                    int64_t at) {
    constexpr int MOST = HC > 0 ? HC : DI_OPS_MAX_HC;
    int32_t hc = HC > 0 ? HC : args.hc;
    int64_t width = args.width;
    A *streams = cuda_at<A>(args.streams) + t * hc * width;
    float before[MOST][ROW_CHUNK], y[ROW_CHUNK], sum[ROW_CHUNK];
    load_chunk<WHOLE>(cuda_at<const A>(args.y) + t * width, at, width, y);
#pragma unroll
    for (int i = 0; i < MOST; i++)
        if (i < hc) load_chunk<WHOLE>(streams + i * width, at, width, before[i]);
#pragma unroll
    for (int k = 0; k < MOST; k++) {
        if (k >= hc) break;
        for (int e = 0; e < ROW_CHUNK; e++) sum[e] = 0;
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            if (i >= hc) break;
            float share = comb[i * hc + k];
            for (int e = 0; e < ROW_CHUNK; e++) sum[e] = fmaf(share, before[i][e], sum[e]);
        }
        for (int e = 0; e < ROW_CHUNK; e++) sum[e] = fmaf(post[k], y[e], sum[e]);
        store_chunk<WHOLE>(streams + k * width, at, width, sum);
    }
}

template <bool WHOLE, int HC, typename A>
static __device__ __forceinline__ void expand_row(const di_sublayer_out_args &args) {
    int64_t t = blockIdx.y, at = element_chunk(), hc = args.hc;
    const float *post = cuda_at<const float>(args.post) + t * hc;
    const float *comb = cuda_at<const float>(args.comb) + t * hc * hc;
    begin_early();
    if (at < args.width) expand_chunk<WHOLE, HC, A>(args, post, comb, t, at);
}
template <typename A> static __global__ void sublayer_out_released(di_sublayer_out_args args) {
    expand_row<true, 4, A>(args);
}
template <typename A> static __global__ void sublayer_out_any(di_sublayer_out_args args) {
    expand_row<false, 0, A>(args);
}

void cuda_op_sublayer_out(di_stream *s, const di_sublayer_out_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->hc >= 1 && args->hc <= DI_OPS_MAX_HC);
    dim3 grid = element_grid(args->n_rows, args->width);
    if (args->hc == 4 && released_rows(args->width, {args->streams, args->y}))
        CUDA_LAUNCH_EARLY_A(s, "sublayer_out", grid, ELEMENT_THREADS, 0, sublayer_out_released,
                            *args);
    else
        CUDA_LAUNCH_EARLY_A(s, "sublayer_out", grid, ELEMENT_THREADS, 0, sublayer_out_any, *args);
}

/* ---- Mean ---- */

template <bool WHOLE, typename A>
static __device__ __forceinline__ void mean_chunk(const di_stream_mean_args &args, int64_t t,
                                                  int64_t at) {
    int64_t width = args.width;
    const A *streams = cuda_at<const A>(args.streams) + t * args.hc * width;
    float sum[ROW_CHUNK] = {}, v[ROW_CHUNK];
#pragma unroll 4
    for (int32_t j = 0; j < args.hc; j++) {
        load_chunk<WHOLE>(streams + j * width, at, width, v);
        for (int i = 0; i < ROW_CHUNK; i++) sum[i] += v[i];
    }
    for (int i = 0; i < ROW_CHUNK; i++) sum[i] = sum[i] / static_cast<float>(args.hc);
    store_chunk<WHOLE>(cuda_at<A>(args.out) + t * args.out_stride, at, width, sum);
}

template <typename A> static __global__ void stream_mean_kernel(di_stream_mean_args args) {
    int64_t t = blockIdx.y, at = element_chunk();
    begin_early();
    if (at >= args.width) return;
    bool whole = whole_chunks(cuda_at<const A>(args.streams), args.width) &&
                 whole_chunks(cuda_at<const A>(args.out), args.out_stride);
    if (whole)
        mean_chunk<true, A>(args, t, at);
    else
        mean_chunk<false, A>(args, t, at);
}

void cuda_op_stream_mean(di_stream *s, const di_stream_mean_args *args) {
    cuda_begin(s);
    CUDA_LAUNCH_EARLY_A(s, "stream_mean", element_grid(args->n_rows, args->width), ELEMENT_THREADS,
                        0, stream_mean_kernel, *args);
}
