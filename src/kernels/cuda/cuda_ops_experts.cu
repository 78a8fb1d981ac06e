/* Router, routed and shared experts (model.md 4).
 *
 * Routed experts run as grouped products: the live picks are sorted by expert on the device
 * (mma_picks.cuh). `release` multiplies on the matrix units (cuda_mma_experts.cu); what stands here
 * is for `float`. */
#include "kernels/cuda/mma_launch.cuh"
#include "kernels/cuda/mma_picks.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/streams.cuh"

/* ---- Router ---- */

static __device__ float score_of(di_score scoring, double z, double top) {
    if (scoring == DI_SCORING_SOFTMAX) return static_cast<float>(exp(z - top));
    if (scoring == DI_SCORING_SIGMOID) return static_cast<float>(sigmoid(z));
    return static_cast<float>(sqrt(fmax(z, 0.0) + log1p(exp(-fabs(z)))));
}

/* z by the temperature. */
static __device__ __forceinline__ float cooled(const di_route_args &args, float z) {
    return args.temperature == 1 ? z
                                 : static_cast<float>(static_cast<double>(z) / args.temperature);
}

/* scores[e] of all experts from z, which is divided by the temperature. A softmax is for a block of
 * ROW_THREADS threads. */
static __device__ void row_scores(const di_route_args &args, float *z, float *scores) {
    int32_t n = args.gate.n, each = static_cast<int32_t>(blockDim.x);
    double top = -INFINITY, total = 0;
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < n; e += each) {
        z[e] = cooled(args, z[e]);
        top = fmax(top, static_cast<double>(z[e]));
    }
    bool softmax = args.scoring == DI_SCORING_SOFTMAX;
    if (softmax) top = block_max<ROW_WARPS>(top);
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < n; e += each) {
        scores[e] = score_of(args.scoring, static_cast<double>(z[e]), top);
        if (softmax) total += exp(static_cast<double>(z[e]) - top);
    }
    if (!softmax) return;
    total = block_sum<ROW_WARPS>(total);
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < n; e += each)
        scores[e] = static_cast<float>(exp(static_cast<double>(z[e]) - top) / total);
}

/* Larger for what is taken first, never 0: the bits in the order of the values; -0 is 0, NaN counts
 * as -inf. */
static __device__ __forceinline__ uint32_t choice_key(float x) {
    uint32_t bits = __float_as_uint(isnan(x) ? -INFINITY : x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The best of this lane's experts: the lowest of those with the largest key; those taken have 0. */
static __device__ int32_t lane_best(const uint32_t *keys, int32_t n, uint32_t *key) {
    int32_t best = 0;
    *key = 0;
#pragma unroll 4
    for (int32_t e = lane_id(); e < n; e += WARP) {
        uint32_t other = keys[e];
        if (other > *key) *key = other, best = e;
    }
    return best;
}

/* picks [k] of row t and their weights by a warp: the best by their keys, ties to the lower number.
 * Shared: chosen [k]. */
static __device__ void take_best(const di_route_args &args, int64_t t, uint32_t *keys,
                                 const float *scores, int32_t *chosen) {
    int32_t n = args.gate.n, k = args.top_k;
    uint32_t key;
    int32_t mine = lane_best(keys, n, &key);
    double sum = 0;
    for (int32_t i = 0; i < k; i++) {
        uint32_t top = __reduce_max_sync(ALL_LANES, key);
        uint32_t place = key == top ? static_cast<uint32_t>(mine) : UINT32_MAX;
        int32_t e = static_cast<int32_t>(__reduce_min_sync(ALL_LANES, place));
        if (lane_id() == e % WARP) {
            chosen[i] = e;
            keys[e] = 0;
            mine = lane_best(keys, n, &key);
        }
        __syncwarp();
        sum += static_cast<double>(scores[e]);
    }
    for (int32_t i = lane_id(); i < k; i += WARP) {
        double w = static_cast<double>(scores[chosen[i]]);
        if (args.normalize && k > 1) w /= sum + 1e-20;
        cuda_at<int32_t>(args.picks)[t * k + i] = chosen[i];
        cuda_at<float>(args.weights)[t * k + i] = static_cast<float>(w * args.scale);
    }
}

/* A block a row. Shared: z, which become the keys, and scores of all experts; the chosen ones. */
static __global__ __launch_bounds__(ROW_MOST) void route_kernel(di_route_args args,
                                                                const float *products) {
    extern __shared__ float shared[];
    int32_t n = args.gate.n, first = static_cast<int32_t>(threadIdx.x);
    int64_t t = blockIdx.x;
    float *z = shared, *scores = shared + n;
    uint32_t *keys = reinterpret_cast<uint32_t *>(shared);
    let_kernels_begin();
    float bias = first < n ? vector_value(args.bias, first) : 0;
    await_kernels_before();
    for (int32_t e = first; e < n; e += static_cast<int32_t>(blockDim.x))
        z[e] = products[t * n + e];
    row_scores(args, z, scores);
    for (int32_t e = first; e < n; e += static_cast<int32_t>(blockDim.x)) {
        if (e != first) bias = vector_value(args.bias, e);
        keys[e] = choice_key(scores[e] + bias); /* decides who, not how much */
        if (!cuda_none(args.scores)) cuda_at<float>(args.scores)[t * n + e] = scores[e];
    }
    __syncthreads();
    if (warp_id() == 0) take_best(args, t, keys, scores, reinterpret_cast<int32_t *>(scores + n));
}

/* The same for many rows: a warp each, but for a softmax. Shared of a warp: keys and scores of all
 * experts; the chosen ones. */
static constexpr int ROUTE_WARPS = 4;
static constexpr int ROUTE_MANY = 8; /* rows a processor: of fewer a block each is faster */
static size_t route_bytes(const di_route_args *args) { /* of a row */
    return sizeof(float) * static_cast<size_t>(2 * args->gate.n + args->top_k);
}
static __global__
__launch_bounds__(ROUTE_WARPS *WARP) void route_many_kernel(di_route_args args,
                                                            const float *products) {
    extern __shared__ float shared[];
    int32_t n = args.gate.n;
    int64_t t = static_cast<int64_t>(blockIdx.x) * ROUTE_WARPS + warp_id();
    float *scores = shared + warp_id() * (2 * n + args.top_k);
    uint32_t *keys = reinterpret_cast<uint32_t *>(scores + n);
    begin_early();
    if (t >= args.n_rows) return;
#pragma unroll 4
    for (int32_t e = lane_id(); e < n; e += WARP) {
        float z = cooled(args, products[t * n + e]);
        float score = score_of(args.scoring, static_cast<double>(z), 0);
        scores[e] = score;
        keys[e] = choice_key(score + vector_value(args.bias, e));
        if (!cuda_none(args.scores)) cuda_at<float>(args.scores)[t * n + e] = score;
    }
    __syncwarp();
    take_best(args, t, keys, scores, reinterpret_cast<int32_t *>(keys + n));
}

void cuda_op_route(di_stream *s, const di_route_args *args) {
    cuda_begin_router(s);
    int32_t n = args->gate.n;
    CUDA_REQUIRE(args->top_k >= 1 && args->top_k <= n);
    /* The product is not beside the stream: once the shared expert's products have the device, there
     * would be no room for it until they are done. The choice is small blocks. */
    bool few = args->n_rows > 0 && args->n_rows <= CUDA_BESIDE_ROWS;
    float *scores = few ? cuda_router_products(s, args->n_rows, n) : NULL;
    di_ptr products =
        scores != NULL ? cuda_ptr(scores) : cuda_take_f(s, static_cast<int64_t>(args->n_rows) * n);
    cuda_linear_rows(s, &args->gate, args->u, args->n_rows, false, true, products);
    if (args->n_rows > ROUTE_MANY * s->n_processors && args->scoring != DI_SCORING_SOFTMAX) {
        cuda_launch_early(s, "route", cuda_blocks(args->n_rows, ROUTE_WARPS), ROUTE_WARPS * WARP,
                          ROUTE_WARPS * route_bytes(args), route_many_kernel, *args,
                          cuda_at<const float>(products));
        return;
    }
    bool aside = scores != NULL && cuda_step_aside(s, 0);
    uint32_t threads = cuda_blocks(n, WARP) * WARP; /* an expert each, as far as a block goes */
    if (threads > ROW_MOST) threads = ROW_MOST;
    if (args->scoring == DI_SCORING_SOFTMAX) threads = ROW_THREADS;
    cuda_launch_early(s, "route", static_cast<uint32_t>(args->n_rows), threads, route_bytes(args),
                      route_kernel, *args, cuda_at<const float>(products));
    if (!aside) return;
    cuda_step_back(s);
    cuda_chosen(s);
    cuda_flush(s); /* a mix, behind the choice */
}

/* ---- SwiGLU and combination ---- */

template <typename A> static __global__ void swiglu_kernel(di_swiglu_args args) {
    begin_early();
    int64_t i = static_cast<int64_t>(blockIdx.x) * ROW_THREADS + threadIdx.x, t = i / args.width;
    if (t >= args.n_rows) return;
    float weight = cuda_none(args.weight) ? 1.0f : cuda_at<const float>(args.weight)[t];
    cuda_at<A>(args.out)[i] =
        swiglu_value<A>(to_float(cuda_at<const A>(args.gate)[i]),
                        to_float(cuda_at<const A>(args.up)[i]), args.limit, weight);
}

static void run_swiglu(di_stream *s, const di_swiglu_args *args) {
    int64_t n = static_cast<int64_t>(args->n_rows) * args->width;
    CUDA_LAUNCH_EARLY_A(s, "swiglu", cuda_blocks(n, ROW_THREADS), ROW_THREADS, 0, swiglu_kernel,
                        *args);
}

void cuda_op_swiglu(di_stream *s, const di_swiglu_args *args) {
    cuda_begin(s);
    run_swiglu(s, args);
}

static void run_shared_expert(di_stream *s, const di_shared_expert_args *args) {
    int64_t n = args->n_rows, inner = args->w1.n;
    CUDA_REQUIRE(args->w3.n == inner && args->w2.k == inner && args->w1.k == args->w3.k);
    if (s->release && args->w1.dtype == DI_F8_E4M3 && args->w3.dtype == DI_F8_E4M3 &&
        args->w2.dtype == DI_F8_E4M3 && inner % 32 == 0) {
        mma_run_shared_expert(s, args);
        return;
    }
    di_ptr gate = cuda_take_a(s, n * inner), up = cuda_take_a(s, n * inner);
    cuda_linear_part parts[2] = {{args->w1, gate, false}, {args->w3, up, false}};
    cuda_linear_many(s, parts, 2, args->u, args->n_rows, 1, true);
    di_swiglu_args join = {args->n_rows, args->w1.n, args->limit, gate, up, DI_NONE, gate};
    run_swiglu(s, &join);
    cuda_linear_rows(s, &args->w2, gate, args->n_rows, true, false, args->out);
}

void cuda_op_shared_expert(di_stream *s, const di_shared_expert_args *args) {
    cuda_begin_beside(s, true);
    run_shared_expert(s, args);
    cuda_overwrites(s, args->out, cuda_rows_bytes(s, args->n_rows, args->w2.n));
}

template <bool WHOLE, typename A>
static __device__ __forceinline__ void combine_element(const di_combine_args &args) {
    int64_t t = grid_row(), at = element_chunk();
    float sum[ROW_CHUNK];
    begin_early();
    if (t >= args.n_rows || at >= args.width) return;
    combine_chunk<WHOLE, A>(args, t, at, sum);
    store_chunk<WHOLE>(cuda_at<A>(args.out) + t * args.width, at, args.width, sum);
}
template <typename A> static __global__ void combine_whole(di_combine_args args) {
    combine_element<true, A>(args);
}
template <typename A> static __global__ void combine_any(di_combine_args args) {
    combine_element<false, A>(args);
}

void cuda_combine_now(di_stream *s, const di_combine_args *args) {
    cuda_begin(s);
    dim3 grid = element_grid(args->n_rows, args->width);
    if (whole_rows(args->width, {args->rows, args->shared, args->out}))
        CUDA_LAUNCH_EARLY_A(s, "combine", grid, ELEMENT_THREADS, 0, combine_whole, *args);
    else
        CUDA_LAUNCH_EARLY_A(s, "combine", grid, ELEMENT_THREADS, 0, combine_any, *args);
}

/* ---- Routed experts, `float` ---- */

/* A warp an output j of w1 and w3: h[slot][j], for the tiles of picks that blockIdx.y counts. */
static __global__ void expert_in_kernel(di_experts_args args, pick_lists lists, float *h) {
    begin_early();
    int32_t j = static_cast<int32_t>(blockIdx.x) * PRODUCT_WARPS + warp_id();
    if (j >= args.inner) return;
    const float *x = cuda_at<const float>(args.u);
    bool aligned = args.width % 8 == 0 && args.u.address % 32 == 0;
    for (uint32_t i = blockIdx.y; i < static_cast<uint32_t>(*lists.n_tiles); i += gridDim.y) {
        pick_tile tile = lists.tiles[i];
        const di_expert &at = cuda_at<const di_expert>(args.experts)[tile.expert];
        di_matrix w1 = {args.dtype, args.inner, args.width, at.w1, at.w1_scale};
        di_matrix w3 = {args.dtype, args.inner, args.width, at.w3, at.w3_scale};
        const float *in[PRODUCT_ROWS];
        float gate[PRODUCT_ROWS] = {}, up[PRODUCT_ROWS] = {};
        for (int r = 0; r < PRODUCT_ROWS; r++) {
            int32_t pick = lists.pick[tile.first + (r < tile.count ? r : 0)];
            in[r] = x + static_cast<int64_t>(pick / args.top_k) * args.width;
        }
        lane_products<float, DI_FP4_PAIR>(row_of<DI_FP4_PAIR>(w1, j), in, tile.count, 0, args.width,
                                          aligned, gate);
        lane_products<float, DI_FP4_PAIR>(row_of<DI_FP4_PAIR>(w3, j), in, tile.count, 0, args.width,
                                          aligned, up);
#pragma unroll
        for (int r = 0; r < PRODUCT_ROWS; r++) {
            if (r >= tile.count) break;
            float g = warp_sum(gate[r]), u = warp_sum(up[r]);
            int64_t slot = tile.first + r;
            float weight = cuda_at<const float>(args.weights)[lists.pick[slot]];
            if (lane_id() == 0)
                h[slot * args.inner + j] = swiglu_value<float>(g, u, args.limit, weight);
        }
    }
}

/* A warp an output j of w2: rows[place of the slot][j]. */
static __global__ void expert_out_kernel(di_experts_args args, pick_lists lists, const float *h) {
    begin_early();
    int32_t j = static_cast<int32_t>(blockIdx.x) * PRODUCT_WARPS + warp_id();
    if (j >= args.width) return;
    bool aligned = args.inner % 8 == 0 && reinterpret_cast<uintptr_t>(h) % 32 == 0;
    for (uint32_t i = blockIdx.y; i < static_cast<uint32_t>(*lists.n_tiles); i += gridDim.y) {
        pick_tile tile = lists.tiles[i];
        const di_expert &at = cuda_at<const di_expert>(args.experts)[tile.expert];
        di_matrix w2 = {args.dtype, args.width, args.inner, at.w2, at.w2_scale};
        const float *in[PRODUCT_ROWS];
        float sum[PRODUCT_ROWS] = {};
        for (int r = 0; r < PRODUCT_ROWS; r++)
            in[r] = h + static_cast<int64_t>(tile.first + (r < tile.count ? r : 0)) * args.inner;
        lane_products<float, DI_FP4_PAIR>(row_of<DI_FP4_PAIR>(w2, j), in, tile.count, 0, args.inner,
                                          aligned, sum);
#pragma unroll
        for (int r = 0; r < PRODUCT_ROWS; r++) {
            if (r >= tile.count) break;
            float y = warp_sum(sum[r]);
            int64_t place = lists.place[tile.first + r];
            if (lane_id() == 0) cuda_at<float>(args.rows)[place * args.width + j] = y;
        }
    }
}

void cuda_op_experts(di_stream *s, const di_experts_args *args) {
    cuda_begin_beside(s, true);
    CUDA_REQUIRE(args->dtype == DI_FP4_PAIR); /* the one that experts are stored in (ops.h) */
    CUDA_REQUIRE(args->width % 32 == 0 && args->inner % 32 == 0);
    if (s->release) { /* it waits for what runs beside */
        mma_run_experts(s, args);
        return;
    }
    cuda_begin(s);
    pick_lists lists = mma_sort_picks(s, args, PRODUCT_ROWS, false, NULL);
    int64_t tiles = mma_most_tiles(args, PRODUCT_ROWS);
    uint32_t y = static_cast<uint32_t>(tiles < 65535 ? tiles : 65535);
    float *h = cuda_take<float>(s, static_cast<uint64_t>(args->n_rows) *
                                       static_cast<uint64_t>(args->top_k) *
                                       static_cast<uint64_t>(args->inner));
    cuda_launch_early(s, "experts", dim3(cuda_blocks(args->inner, PRODUCT_WARPS), y),
                      PRODUCT_THREADS, 0, expert_in_kernel, *args, lists, h);
    cuda_launch_early(s, "experts", dim3(cuda_blocks(args->width, PRODUCT_WARPS), y),
                      PRODUCT_THREADS, 0, expert_out_kernel, *args, lists, h);
}
