/* Collapse and expand (model.md 3.4, 3.5): the ends of sublayers.
 *
 * What lies between two sublayers, the sum of the experts, expand and collapse, is one kernel: with
 * few rows each costs as much as its start, with many a quarter of the bytes are not moved again.
 * Operations that may be part of it are kept until sublayer_in comes, or anything else, which
 * enqueues them first (cuda_flush). Memory is as if each had been enqueued by itself. */
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/mma_launch.cuh"
#include "kernels/cuda/streams.cuh"

/* ---- Collapse ---- */

/* Rows of few as products read them, quantised: in the two forms, or not at all. */
typedef struct kept_rows {
    uint8_t *fp8, *fp4;
} kept_rows;

/* A thread's chunk of row t, which the norm has left in v. */
template <typename A>
static __device__ __forceinline__ void keep_chunk(const kept_rows &kept, int64_t t, int64_t at,
                                                  int64_t width, float (&v)[ROW_CHUNK]) {
    bool live = at < width;
    int32_t k = static_cast<int32_t>(at), n = static_cast<int32_t>(width);
    for (int i = 0; i < ROW_CHUNK; i++) v[i] = live ? round_a<A>(v[i]) : 0;
    mma_store_chunk(mma_order_of(DI_F8_E4M3, false, 0), kept.fp8, t, k, n, true, live, v);
    /* quantised by now */
    mma_store_chunk(mma_order_of(DI_FP4_PAIR, false, 0), kept.fp4, t, k, n, false, live, v);
}

/* The same, of many rows. */
template <typename A>
static __device__ __forceinline__ void keep_codes(const mma_codes &codes, int64_t t, int64_t at,
                                                  int64_t width, float (&v)[ROW_CHUNK]) {
    for (int i = 0; i < ROW_CHUNK; i++) v[i] = at < width ? round_a<A>(v[i]) : 0;
    mma_store_codes(codes, t, at, width, at < width, v);
}

/* A block a row, a thread a chunk, so that all of a row is asked for at once. The collapsed chunk
 * stays in registers; if the row has more chunks than a block may have threads, the others go to
 * `out` and back. A thread touches its own chunks only. KEPT: released rows. */
template <bool RELEASED, bool KEPT, typename A>
static __device__ __forceinline__ void
collapse_and_norm(const di_sublayer_in_args &args, const kept_rows &kept, const mma_codes &codes) {
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
    if (RELEASED && codes.codes != NULL) keep_codes<A>(codes, t, first, width, mine);
}

template <typename A>
__launch_bounds__(ROW_RELEASED, 2) static __global__
    void sublayer_in_released(di_sublayer_in_args args, mma_codes codes) {
    collapse_and_norm<true, false, A>(args, kept_rows{}, codes);
}
template <typename A>
__launch_bounds__(ROW_MOST) static __global__ void sublayer_in_any(di_sublayer_in_args args) {
    collapse_and_norm<false, false, A>(args, kept_rows{}, mma_codes{});
}
static __global__ __launch_bounds__(ROW_RELEASED) void sublayer_in_kept(di_sublayer_in_args args,
                                                                        kept_rows kept) {
    collapse_and_norm<true, true, __nv_bfloat16>(args, kept, mma_codes{});
}

/* Whether sublayer_in keeps such rows: for narrow products, without padding, where there is
 * room. */
static bool may_keep(const di_stream *s, int32_t n_rows, int32_t width) {
    return s->release && n_rows > 0 && !mma_is_wide(n_rows) && width % MMA_K == 0 &&
           2 * mma_input_bytes(n_rows, 1, width) <= s->kept.bytes;
}

static kept_rows places_of_kept(di_stream *s) {
    return kept_rows{mma_kept_place(s, DI_F8_E4M3), mma_kept_place(s, DI_FP4_PAIR)};
}

static void set_kept(di_stream *s, const di_sublayer_in_args *args) {
    s->kept.x = args->out, s->kept.n_rows = args->n_rows, s->kept.width = args->width;
}

/* Where the codes of many rows go; codes NULL where there is no room: they are not kept. */
static mma_codes codes_of_kept(di_stream *s, const di_sublayer_in_args *args) {
    if (!s->release || !mma_is_wide(args->n_rows)) return mma_codes{};
    return mma_codes_place(s, args->n_rows, args->width);
}

/* ---- Expand ---- */

template <bool WHOLE, int HC, typename A, typename Then>
static __device__ __forceinline__ void expand_chunk(const di_sublayer_out_args &args, int64_t t,
                                                    int64_t at, const float (&y)[ROW_CHUNK],
                                                    Then then) {
    int32_t hc = HC > 0 ? HC : args.hc;
    A *streams = cuda_at<A>(args.streams) + t * hc * args.width;
    expand_chunk<WHOLE, HC>(cuda_at<const float>(args.post) + t * hc,
                            cuda_at<const float>(args.comb) + t * hc * hc, hc, streams, streams,
                            args.width, at, y, then);
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

/* ---- Between two sublayers ---- */

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

/* Four streams. Factors of row t, one each of a warp's lanes: pre, then post, then comb. */
static constexpr int STREAMS = 4, POST = STREAMS, COMB = 2 * STREAMS,
                     FACTORS = COMB + STREAMS * STREAMS;
static __device__ __forceinline__ float between_factor(const di_sublayer_out_args &before,
                                                       di_ptr pre, int64_t t) {
    int lane = lane_id();
    if (lane >= FACTORS) return 0;
    return lane < POST   ? cuda_at<const float>(pre)[t * STREAMS + lane]
           : lane < COMB ? cuda_at<const float>(before.post)[t * STREAMS + lane - POST]
                         : cuda_at<const float>(before.comb)[t * (STREAMS * STREAMS) + lane - COMB];
}

/* What new streams of a chunk collapse to, one after the other. */
struct between_collapse {
    const float *pre;
    float (&sum)[ROW_CHUNK];
    __device__ __forceinline__ void operator()(int k, const float *stream) const {
        for (int i = 0; i < ROW_CHUNK; i++)
            sum[i] = fmaf(pre[k], round_a<__nv_bfloat16>(stream[i]), sum[i]);
    }
};
/* That of all of them is known. Returns the sum of its squares. */
static __device__ __forceinline__ float
between_collapsed(const di_sublayer_in_args &args, int64_t t, int64_t at, float (&v)[ROW_CHUNK]) {
    typedef __nv_bfloat16 A;
    for (int i = 0; i < ROW_CHUNK; i++) v[i] = round_a<A>(v[i]);
    if (!cuda_none(args.collapsed))
        store_chunk<true>(cuda_at<A>(args.collapsed) + t * args.width, at, args.width, v);
    return chunk_squares(v, 0);
}

/* Few rows: a cluster a row. Some 1,000 instructions a chunk would take one processor long. */
static constexpr int FEW_BLOCKS = 4;

/* row_sum over all threads of the cluster, in their order. */
struct cluster_sum {
    float part[WARP];
    uint64_t there; /* barrier: all parts */
    __device__ __forceinline__ void begin() {
        cluster_expect(&there, blockDim.x / WARP * FEW_BLOCKS * 4);
    }
    __device__ __forceinline__ float operator()(float x, int rank) {
        int warps = static_cast<int>(blockDim.x) / WARP, lane = lane_id();
        float mine = warp_sum(x);
        cluster_meet(); /* all have begun */
        if (lane < FEW_BLOCKS) {
            uint32_t to = static_cast<uint32_t>(lane);
            store_peer(cluster_address(&part[rank * warps + warp_id()], to), mine,
                       cluster_address(&there, to));
        }
        barrier_wait(&there, 0);
        return warp_sum(lane < FEW_BLOCKS * warps ? part[lane] : 0.0f);
    }
};

/* A thread a chunk; four streams. All that is read is asked for before anything is stored: a load
 * behind a store, which might be to where it lies, would wait for memory by itself. */
template <bool COMBINE>
static __global__ __cluster_dims__(FEW_BLOCKS, 1, 1)
    __launch_bounds__(ROW_RELEASED / FEW_BLOCKS) void between_kernel(di_combine_args combine,
                                                                     di_sublayer_out_args before,
                                                                     di_sublayer_in_args args,
                                                                     kept_rows kept) {
    typedef __nv_bfloat16 A;
    __shared__ cluster_sum row;
    __shared__ float factor[FACTORS];
    int rank = static_cast<int>(blockIdx.x % FEW_BLOCKS);
    int64_t t = blockIdx.x / FEW_BLOCKS, width = args.width;
    int64_t at = static_cast<int64_t>(rank * blockDim.x + threadIdx.x) * ROW_CHUNK;
    A *streams = cuda_at<A>(before.streams) + t * STREAMS * width;
    bool live = at < width;
    float sum = 0, y[ROW_CHUNK], mine[ROW_CHUNK] = {}, weight[ROW_CHUNK] = {};
    stream_chunks<true, STREAMS, A> was;
    let_kernels_begin();
    row.begin();
    if (live) vector_chunk(args.norm, at, weight);
    await_kernels_before();
    if (live) was.load(streams, STREAMS, width, at);
    float of_lane = between_factor(before, args.pre, t);
    if (live) sublayer_chunk<COMBINE>(combine, before.y, t, at, width, y);
    if (threadIdx.x < FACTORS) factor[threadIdx.x] = of_lane;
    __syncthreads();
    if (live) {
        expand_chunk<true, STREAMS, A>(factor + POST, factor + COMB, STREAMS, was, streams, width,
                                       at, y, between_collapse{factor, mine});
        sum = between_collapsed(args, t, at, mine);
    }
    chunk_norm(mine, weight, root_inverse(row(sum, rank), width, args.eps));
    if (live) store_chunk<true>(cuda_at<A>(args.out) + t * width, at, width, mine);
    keep_chunk<A>(kept, t, at, width, mine);
}

/* Many: blocks stay, and a row's pieces are on their way while the one before it is computed, each
 * thread's own to places of its own in shared memory. A row's pieces, of `width` values: of y, or
 * what it is the sum of; and its streams. */
template <bool COMBINE>
static __host__ __device__ __forceinline__ int32_t between_pieces(int32_t top_k) {
    return (COMBINE ? top_k + 1 : 1) + STREAMS;
}
static size_t between_bytes(int32_t pieces, int64_t width) {
    return 2 * sizeof(__nv_bfloat16) * static_cast<size_t>(pieces * width);
}

/* This thread's chunk of all pieces of row t. */
template <bool COMBINE>
static __device__ __forceinline__ void copy_pieces(const di_combine_args &combine,
                                                   const di_sublayer_out_args &before, int64_t t,
                                                   int64_t at, __nv_bfloat16 *to) {
    typedef const __nv_bfloat16 A;
    int64_t width = before.width;
    auto copy = [&](A *from, int32_t n) {
#pragma unroll 6
        for (int32_t i = 0; i < n; i++, to += width) copy_16(to + at, from + i * width + at, 16);
    };
    if (COMBINE) {
        copy(cuda_at<A>(combine.rows) + t * combine.top_k * width, combine.top_k);
        copy(cuda_at<A>(combine.shared) + t * width, 1);
    } else {
        copy(cuda_at<A>(before.y) + t * width, 1);
    }
    copy(cuda_at<A>(before.streams) + t * STREAMS * width, STREAMS);
}

template <bool COMBINE>
static __global__ __launch_bounds__(ROW_RELEASED) void between_many(di_combine_args combine,
                                                                    di_sublayer_out_args before,
                                                                    di_sublayer_in_args args,
                                                                    mma_codes codes) {
    typedef __nv_bfloat16 A;
    extern __shared__ __align__(16) uint8_t shared[]; /* [2][pieces][width] */
    int64_t width = args.width, at = static_cast<int64_t>(threadIdx.x) * ROW_CHUNK;
    int32_t top_k = combine.top_k, pieces = between_pieces<COMBINE>(top_k);
    A *staged = reinterpret_cast<A *>(shared);
    int32_t stage = pieces * static_cast<int32_t>(width), turn = 0;
    bool live = at < width;
    float weight[ROW_CHUNK] = {}, next = 0;
    let_kernels_begin();
    if (live) vector_chunk(args.norm, at, weight);
    await_kernels_before();
    auto ask = [&](int64_t t, A *to) {
        if (t < args.n_rows) {
            next = between_factor(before, args.pre, t);
            if (live) copy_pieces<COMBINE>(combine, before, t, at, to);
        }
        copies_commit();
    };
    ask(blockIdx.x, staged);
    for (int64_t t = blockIdx.x; t < args.n_rows; t += gridDim.x, turn ^= 1) {
        const A *from = staged + turn * stage;
        float factor[FACTORS], sum = 0, mine[ROW_CHUNK] = {};
#pragma unroll
        for (int i = 0; i < FACTORS; i++) factor[i] = __shfl_sync(ALL_LANES, next, i);
        ask(t + gridDim.x, staged + (turn ^ 1) * stage);
        copies_wait<1>();
        if (live) {
            float y[ROW_CHUNK];
            if (COMBINE) {
                combine_chunk<true>(from, from + top_k * width, top_k, width, at, y);
                store_chunk<true>(cuda_at<A>(combine.out) + t * width, at, width, y);
                for (int i = 0; i < ROW_CHUNK; i++) y[i] = round_a<A>(y[i]);
            } else {
                load_chunk<true>(from, at, width, y);
            }
            expand_chunk<true, STREAMS>(factor + POST, factor + COMB, STREAMS,
                                        from + (pieces - STREAMS) * width,
                                        cuda_at<A>(before.streams) + t * STREAMS * width, width, at,
                                        y, between_collapse{factor, mine});
            sum = between_collapsed(args, t, at, mine);
        }
        chunk_norm(mine, weight, root_inverse(row_sum(sum), width, args.eps));
        if (live) store_chunk<true>(cuda_at<A>(args.out) + t * width, at, width, mine);
        if (codes.codes != NULL) keep_codes<A>(codes, t, at, width, mine);
    }
}

/* Whether operations on such rows wait for the sublayer_in that may follow. Rows that are not kept
 * as products read them need room for their pieces, and row_sum has some, too. */
static bool may_wait(const di_stream *s, int32_t n_rows, int32_t pieces, int64_t width,
                     std::initializer_list<di_ptr> rows) {
    if (!s->release || n_rows <= 0 || !released_rows(width, rows)) return false;
    return may_keep(s, n_rows, static_cast<int32_t>(width)) ||
           between_bytes(pieces, width) <= SHARED_MOST - 1024;
}

void cuda_op_combine(di_stream *s, const di_combine_args *args) {
    cuda_flush(s);
    if (!may_wait(s, args->n_rows, between_pieces<true>(args->top_k), args->width,
                  {args->rows, args->shared, args->out})) {
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
    if (args->hc != STREAMS || !may_wait(s, args->n_rows, between_pieces<false>(0), args->width,
                                         {args->streams, args->y})) {
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

static bool is_apart(di_ptr a, int64_t a_bytes, di_ptr b, int64_t b_bytes) {
    return a.address + static_cast<uint64_t>(a_bytes) <= b.address ||
           b.address + static_cast<uint64_t>(b_bytes) <= a.address;
}
/* Whether the experts' rows that are pending, of which one of out's has several, lie elsewhere than
 * what this sublayer's beginning writes: one kernel writes it before it has read them all. */
static bool reads_elsewhere(const cuda_pending *p, const di_sublayer_in_args *args) {
    int64_t bytes = static_cast<int64_t>(args->n_rows) * args->width * 2;
    int64_t rows = bytes * p->combine.top_k;
    return !p->has_combine || (is_apart(p->combine.rows, rows, args->out, bytes) &&
                               (cuda_none(args->collapsed) ||
                                is_apart(p->combine.rows, rows, args->collapsed, bytes)));
}

/* Whether what is pending goes with this sublayer's beginning. */
static bool follows_out(const di_stream *s, const di_sublayer_in_args *args) {
    const cuda_pending *p = &s->pending;
    return p->has_out && p->out.streams.address == args->streams.address &&
           p->out.n_rows == args->n_rows && p->out.hc == args->hc && p->out.width == args->width &&
           released_rows(args->width, {args->collapsed, args->out}) && reads_elsewhere(p, args) &&
           !(p->has_mix && p->mix.pre.address == args->pre.address);
}

template <bool COMBINE>
static void launch_between(di_stream *s, const cuda_pending &p, const di_sublayer_in_args *args) {
    uint32_t rows = static_cast<uint32_t>(args->n_rows), threads = row_threads(args->width);
    if (may_keep(s, args->n_rows, args->width)) {
        cuda_early_behind_wait(s); /* for a mix */
        threads = cuda_blocks(args->width, FEW_BLOCKS * ROW_CHUNK * WARP) * WARP;
        cuda_launch_early(s, "sublayer", FEW_BLOCKS * rows, threads, 0, between_kernel<COMBINE>,
                          p.combine, p.out, *args, places_of_kept(s));
        set_kept(s, args);
        return;
    }
    uint32_t most = static_cast<uint32_t>(s->n_processors) * (ROW_RELEASED / threads);
    size_t bytes = between_bytes(between_pieces<COMBINE>(p.combine.top_k), args->width);
    mma_codes codes = codes_of_kept(s, args);
    cuda_launch_early(s, "sublayer", rows < most ? rows : most, threads, bytes,
                      between_many<COMBINE>, p.combine, p.out, *args, codes);
    s->kept.x = DI_NONE;
    if (codes.codes != NULL) set_kept(s, args);
}

static void run_between(di_stream *s, const di_sublayer_in_args *args) {
    cuda_pending p = s->pending;
    s->pending.has_combine = s->pending.has_out = s->pending.has_mix = false;
    cuda_begin_beside(s, false);
    if (!cuda_none(s->beside.pre)) cuda_join(s);
    if (p.has_combine)
        launch_between<true>(s, p, args);
    else
        launch_between<false>(s, p, args);
    s->pending.has_mix = p.has_mix, s->pending.mix = p.mix; /* with what comes next */
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
        mma_codes codes = codes_of_kept(s, args);
        CUDA_LAUNCH_EARLY_A(s, "sublayer_in", rows, threads, 0, sublayer_in_released, *args, codes);
        if (codes.codes != NULL) set_kept(s, args);
    } else {
        cuda_launch_early(s, "sublayer_in", rows, threads, 0, sublayer_in_kept, *args,
                          places_of_kept(s));
        set_kept(s, args);
    }
}
