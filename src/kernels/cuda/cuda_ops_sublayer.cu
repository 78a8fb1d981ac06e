/* Collapse and expand (model.md 3.4, 3.5): the ends of sublayers.
 *
 * With few rows kernels are short, and each costs as much as its start. What lies between two
 * sublayers, the sum of the experts, expand and collapse, is one kernel: operations that may be part
 * of it are kept until sublayer_in comes, or anything else, which enqueues them first (cuda_flush).
 * Memory is as if each had been enqueued by itself. */
#include "kernels/cuda/mma_launch.cuh"
#include "kernels/cuda/streams.cuh"

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

/* Whether sublayer_in keeps such rows: for narrow products, without padding, where there is room.
 * Operations before it wait for it where it may. */
static bool may_keep(const di_stream *s, int32_t n_rows, int32_t width) {
    return s->release && n_rows > 0 && !mma_is_wide(n_rows) && width % MMA_K == 0 &&
           2 * mma_input_bytes(n_rows, 1, width) <= s->kept.bytes;
}

static kept_rows places_of_kept(di_stream *s, int32_t n_rows) {
    const di_dtype forms[2] = {DI_F8_E4M3, DI_FP4_PAIR};
    kept_rows kept = {};
    for (int i = 0; i < 2; i++) {
        kept.order[i] = mma_order_of(forms[i], false, mma_rows8(n_rows));
        kept.rows[i] = mma_kept_place(s, forms[i]);
    }
    return kept;
}

static void set_kept(di_stream *s, const di_sublayer_in_args *args) {
    s->kept.x = args->out, s->kept.n_rows = args->n_rows, s->kept.width = args->width;
}

/* ---- Expand ---- */

/* One chunk of all streams, from the sublayer's y; then(k, it) for each. HC: the number of streams, or
 * 0 for any. */
template <bool WHOLE, int HC, typename A, typename Then>
static __device__ __forceinline__ void expand_chunk(const di_sublayer_out_args &args, int64_t t,
                                                    int64_t at, const float (&y)[ROW_CHUNK],
                                                    Then then) {
    constexpr int MOST = HC > 0 ? HC : DI_OPS_MAX_HC;
    int32_t hc = HC > 0 ? HC : args.hc;
    int64_t width = args.width;
    const float *post = cuda_at<const float>(args.post) + t * hc;
    const float *comb = cuda_at<const float>(args.comb) + t * hc * hc;
    A *streams = cuda_at<A>(args.streams) + t * hc * width;
    float before[MOST][ROW_CHUNK], sum[ROW_CHUNK];
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
        then(k, sum);
    }
}

template <bool WHOLE, int HC, typename A>
static __device__ __forceinline__ void expand_row(const di_sublayer_out_args &args) {
    int64_t t = grid_row(), at = element_chunk();
    float y[ROW_CHUNK];
    begin_early();
    if (t >= args.n_rows || at >= args.width) return;
    load_chunk<WHOLE>(cuda_at<const A>(args.y) + t * args.width, at, args.width, y);
    expand_chunk<WHOLE, HC, A>(args, t, at, y, [](int, const float *) {});
}
template <typename A> static __global__ void sublayer_out_whole(di_sublayer_out_args args) {
    expand_row<true, 4, A>(args);
}
template <typename A> static __global__ void sublayer_out_any(di_sublayer_out_args args) {
    expand_row<false, 0, A>(args);
}

static void expand(di_stream *s, const di_sublayer_out_args *args) {
    cuda_begin(s);
    dim3 grid = element_grid(args->n_rows, args->width);
    if (args->hc == 4 && whole_rows(args->width, {args->streams, args->y}))
        CUDA_LAUNCH_EARLY_A(s, "sublayer_out", grid, ELEMENT_THREADS, 0, sublayer_out_whole, *args);
    else
        CUDA_LAUNCH_EARLY_A(s, "sublayer_out", grid, ELEMENT_THREADS, 0, sublayer_out_any, *args);
}

/* ---- Between two sublayers, few rows ---- */

/* y of one chunk: what the experts gave, or what is there. */
template <bool COMBINE>
static __device__ __forceinline__ void sublayer_chunk(const di_combine_args &args, di_ptr y,
                                                      int64_t t, int64_t at, int64_t width,
                                                      float (&out)[ROW_CHUNK]) {
    typedef __nv_bfloat16 A;
    if constexpr (COMBINE) {
        combine_chunk<true, A>(args, t, at, out);
        store_chunk<true>(cuda_at<A>(args.out) + t * width, at, width, out);
        for (int i = 0; i < ROW_CHUNK; i++) out[i] = round_a<A>(out[i]);
    } else {
        load_chunk<true>(cuda_at<const A>(y) + t * width, at, width, out);
    }
}

/* A block a row, a thread a chunk; four streams. */
template <bool COMBINE>
static __global__ __launch_bounds__(ROW_RELEASED) void between_kernel(di_combine_args combine,
                                                                      di_sublayer_out_args before,
                                                                      di_sublayer_in_args args,
                                                                      kept_rows kept) {
    typedef __nv_bfloat16 A;
    int64_t t = blockIdx.x, width = args.width;
    int64_t at = static_cast<int64_t>(threadIdx.x) * ROW_CHUNK;
    const float *pre = cuda_at<const float>(args.pre) + t * args.hc;
    bool live = at < width;
    float sum = 0, mine[ROW_CHUNK] = {}, weight[ROW_CHUNK] = {};
    let_kernels_begin();
    if (live) vector_chunk(args.norm, at, weight);
    await_kernels_before();
    if (live) {
        float y[ROW_CHUNK];
        sublayer_chunk<COMBINE>(combine, before.y, t, at, width, y);
        expand_chunk<true, 4, A>(before, t, at, y, [&](int k, const float *stream) {
            for (int i = 0; i < ROW_CHUNK; i++)
                mine[i] = fmaf(pre[k], round_a<A>(stream[i]), mine[i]);
        });
        for (int i = 0; i < ROW_CHUNK; i++) mine[i] = round_a<A>(mine[i]);
        if (!cuda_none(args.collapsed))
            store_chunk<true>(cuda_at<A>(args.collapsed) + t * width, at, width, mine);
        sum = chunk_squares(mine, 0);
    }
    chunk_norm(mine, weight, root_inverse(row_sum(sum), width, args.eps));
    if (live) store_chunk<true>(cuda_at<A>(args.out) + t * width, at, width, mine);
    keep_chunk<A>(kept, t, at, width, mine);
}

void cuda_op_combine(di_stream *s, const di_combine_args *args) {
    cuda_flush(s);
    if (!may_keep(s, args->n_rows, args->width) ||
        !released_rows(args->width, {args->rows, args->shared, args->out})) {
        cuda_combine_now(s, args);
        return;
    }
    s->pending.has_combine = true;
    s->pending.combine = *args;
}

void cuda_op_sublayer_out(di_stream *s, const di_sublayer_out_args *args) {
    CUDA_REQUIRE(args->hc >= 1 && args->hc <= DI_OPS_MAX_HC);
    cuda_pending *p = &s->pending;
    bool follows = p->has_combine && !p->has_out && p->combine.out.address == args->y.address &&
                   p->combine.n_rows == args->n_rows && p->combine.width == args->width;
    if (!follows) cuda_flush(s);
    if (args->hc != 4 || !may_keep(s, args->n_rows, args->width) ||
        !released_rows(args->width, {args->streams, args->y})) {
        expand(s, args);
        return;
    }
    p->has_out = true;
    p->out = *args;
}

void cuda_op_mix(di_stream *s, const di_mix_args *args) {
    cuda_pending *p = &s->pending;
    if (!p->has_out || p->has_mix || p->out.streams.address != args->streams.address ||
        p->out.n_rows != args->n_rows) {
        cuda_mix_now(s, args);
        return;
    }
    p->has_mix = true;
    p->mix = *args;
}

void cuda_flush(di_stream *s) {
    cuda_pending p = s->pending;
    s->pending.has_combine = s->pending.has_out = s->pending.has_mix = false;
    if (p.has_combine) cuda_combine_now(s, &p.combine);
    if (p.has_out) expand(s, &p.out);
    if (p.has_mix) cuda_mix_now(s, &p.mix);
}

/* Whether what is pending goes with this sublayer's beginning. */
static bool follows_out(const di_stream *s, const di_sublayer_in_args *args) {
    const cuda_pending *p = &s->pending;
    return p->has_out && p->out.streams.address == args->streams.address &&
           p->out.n_rows == args->n_rows && p->out.hc == args->hc && p->out.width == args->width &&
           may_keep(s, args->n_rows, args->width) &&
           released_rows(args->width, {args->collapsed, args->out}) &&
           !(p->has_mix && p->mix.pre.address == args->pre.address);
}

static void run_between(di_stream *s, const di_sublayer_in_args *args) {
    cuda_pending p = s->pending;
    s->pending.has_combine = s->pending.has_out = s->pending.has_mix = false;
    cuda_begin_beside(s, false);
    if (!cuda_none(s->beside.pre)) cuda_join(s);
    kept_rows kept = places_of_kept(s, args->n_rows);
    uint32_t rows = static_cast<uint32_t>(args->n_rows), threads = row_threads(args->width);
    if (p.has_combine)
        cuda_launch_early(s, "sublayer", rows, threads, 0, between_kernel<true>, p.combine, p.out,
                          *args, kept);
    else
        cuda_launch_early(s, "sublayer", rows, threads, 0, between_kernel<false>, p.combine, p.out,
                          *args, kept);
    if (p.has_mix) cuda_mix_now(s, &p.mix);
    set_kept(s, args);
}

void cuda_op_sublayer_in(di_stream *s, const di_sublayer_in_args *args) {
    if (follows_out(s, args)) {
        run_between(s, args);
        return;
    }
    cuda_begin_beside(s, false);
    s->kept.x = DI_NONE;
    if (args->pre.address == s->beside.pre.address) cuda_join(s);
    uint32_t rows = static_cast<uint32_t>(args->n_rows), threads = row_threads(args->width);
    if (!released_rows(args->width, {args->streams, args->collapsed, args->out})) {
        CUDA_LAUNCH_EARLY_A(s, "sublayer_in", rows, threads, 0, sublayer_in_any, *args);
    } else if (!may_keep(s, args->n_rows, args->width)) {
        CUDA_LAUNCH_EARLY_A(s, "sublayer_in", rows, threads, 0, sublayer_in_released, *args);
    } else {
        cuda_launch_early(s, "sublayer_in", rows, threads, 0, sublayer_in_kept, *args,
                          places_of_kept(s, args->n_rows));
        set_kept(s, args);
    }
}
