/* Router, routed and shared experts (model.md 4).
 *
 * Routed experts run as grouped products: the live picks are sorted by expert on the device, and a
 * block of threads takes some outputs of one expert for all of its picks. */
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/rows.cuh"

/* ---- Router ---- */

typedef struct choice {
    float x;
    int32_t id;
} choice;

static __device__ __forceinline__ choice better(choice a, choice b) {
    if (a.x != b.x) return a.x > b.x ? a : b;
    return a.id < b.id ? a : b;
}

static __device__ float score_of(di_score scoring, double z, double top) {
    if (scoring == DI_SCORING_SOFTMAX) return static_cast<float>(exp(z - top));
    if (scoring == DI_SCORING_SIGMOID) return static_cast<float>(sigmoid(z));
    return static_cast<float>(sqrt(fmax(z, 0.0) + log1p(exp(-fabs(z)))));
}

/* scores[e] of all experts from z, which is divided by the temperature. */
static __device__ void row_scores(const di_route_args &args, float *z, float *scores) {
    int32_t n = args.gate.n;
    double top = -INFINITY, total = 0;
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < n; e += ROW_THREADS) {
        z[e] = static_cast<float>(static_cast<double>(z[e]) / args.temperature);
        top = fmax(top, static_cast<double>(z[e]));
    }
    bool softmax = args.scoring == DI_SCORING_SOFTMAX;
    if (softmax) top = block_max<ROW_WARPS>(top);
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < n; e += ROW_THREADS) {
        scores[e] = score_of(args.scoring, static_cast<double>(z[e]), top);
        if (softmax) total += exp(static_cast<double>(z[e]) - top);
    }
    if (!softmax) return;
    total = block_sum<ROW_WARPS>(total);
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < n; e += ROW_THREADS)
        scores[e] = static_cast<float>(exp(static_cast<double>(z[e]) - top) / total);
}

/* The best of x by warp 0, which then leaves the running: NaN counts as -inf, all can be taken. */
static __device__ int32_t take_best(float *x, int32_t n) {
    choice best = {-INFINITY, INT32_MAX};
    for (int32_t e = lane_id(); e < n; e += WARP)
        if (!isnan(x[e])) best = better(best, choice{x[e], e});
    for (int apart = WARP / 2; apart > 0; apart /= 2) {
        choice other = {__shfl_xor_sync(ALL_LANES, best.x, apart),
                        __shfl_xor_sync(ALL_LANES, best.id, apart)};
        best = better(best, other);
    }
    __syncwarp();
    if (lane_id() == 0) x[best.id] = NAN;
    __syncwarp();
    return best.id;
}

/* A block a row. Shared: z and scores of all experts. */
static __global__ void route_kernel(di_route_args args, const float *products) {
    extern __shared__ float shared[];
    int32_t n = args.gate.n, k = args.top_k;
    int64_t t = blockIdx.x;
    float *z = shared, *scores = shared + n;
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < n; e += ROW_THREADS)
        z[e] = products[t * n + e];
    row_scores(args, z, scores);
    for (int32_t e = static_cast<int32_t>(threadIdx.x); e < n; e += ROW_THREADS) {
        float x = scores[e] + vector_value(args.bias, e); /* decides who, not how much */
        z[e] = isnan(x) ? -INFINITY : x;
        if (!cuda_none(args.scores)) cuda_at<float>(args.scores)[t * n + e] = scores[e];
    }
    __syncthreads();
    if (warp_id() > 0) return;
    double sum = 0;
    int32_t *picks = cuda_at<int32_t>(args.picks) + t * k;
    for (int32_t i = 0; i < k; i++) {
        int32_t e = take_best(z, n);
        if (lane_id() == 0) picks[i] = e;
        sum += static_cast<double>(scores[e]);
    }
    __syncwarp();
    for (int32_t i = lane_id(); i < k; i += WARP) {
        double w = static_cast<double>(scores[picks[i]]);
        if (args.normalize && k > 1) w /= sum + 1e-20;
        cuda_at<float>(args.weights)[t * k + i] = static_cast<float>(w * args.scale);
    }
}

void cuda_op_route(di_stream *s, const di_route_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->top_k >= 1 && args->top_k <= args->gate.n);
    di_ptr products = cuda_take_f(s, static_cast<int64_t>(args->n_rows) * args->gate.n);
    cuda_linear_rows(s, &args->gate, args->u, args->n_rows, false, true, products);
    cuda_launch(s, "route", static_cast<uint32_t>(args->n_rows), ROW_THREADS,
                2 * sizeof(float) * static_cast<size_t>(args->gate.n), route_kernel, *args,
                cuda_at<const float>(products));
}

/* ---- SwiGLU and combination ---- */

template <typename A>
static __device__ __forceinline__ A swiglu_value(float gate, float up, double limit, float weight) {
    if (limit > 0) {
        float most = static_cast<float>(limit);
        gate = fminf(gate, most);
        up = fminf(fmaxf(up, -most), most);
    }
    return from_float<A>(weight * (gate * sigmoid(gate) * up));
}

template <typename A> static __global__ void swiglu_kernel(di_swiglu_args args) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * ROW_THREADS + threadIdx.x, t = i / args.width;
    if (t >= args.n_rows) return;
    float weight = cuda_none(args.weight) ? 1.0f : cuda_at<const float>(args.weight)[t];
    cuda_at<A>(args.out)[i] =
        swiglu_value<A>(to_float(cuda_at<const A>(args.gate)[i]),
                        to_float(cuda_at<const A>(args.up)[i]), args.limit, weight);
}

static void run_swiglu(di_stream *s, const di_swiglu_args *args) {
    int64_t n = static_cast<int64_t>(args->n_rows) * args->width;
    CUDA_LAUNCH_A(s, "swiglu", cuda_blocks(n, ROW_THREADS), ROW_THREADS, 0, swiglu_kernel, *args);
}

void cuda_op_swiglu(di_stream *s, const di_swiglu_args *args) {
    cuda_begin(s);
    run_swiglu(s, args);
}

void cuda_op_shared_expert(di_stream *s, const di_shared_expert_args *args) {
    cuda_begin(s);
    int64_t n = args->n_rows, inner = args->w1.n;
    CUDA_REQUIRE(args->w3.n == inner && args->w2.k == inner && args->w1.k == args->w3.k);
    di_ptr gate = cuda_take_a(s, n * inner), up = cuda_take_a(s, n * inner);
    di_ptr x = cuda_quantized(s, args->u, n, args->w1.k);
    cuda_linear_rows(s, &args->w1, x, args->n_rows, false, false, gate);
    cuda_linear_rows(s, &args->w3, x, args->n_rows, false, false, up);
    di_swiglu_args join = {args->n_rows, args->w1.n, args->limit, gate, up, DI_NONE, gate};
    run_swiglu(s, &join);
    cuda_linear_rows(s, &args->w2, gate, args->n_rows, true, false, args->out);
}

template <typename A> static __global__ void combine_kernel(di_combine_args args) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * ROW_THREADS + threadIdx.x, width = args.width;
    int64_t t = i / width, d = i % width;
    if (t >= args.n_rows) return;
    const A *rows = cuda_at<const A>(args.rows) + t * args.top_k * width + d;
    float y = 0;
    for (int32_t k = 0; k < args.top_k; k++) y += to_float(rows[k * width]);
    cuda_at<A>(args.out)[i] = from_float<A>(y + to_float(cuda_at<const A>(args.shared)[i]));
}

void cuda_op_combine(di_stream *s, const di_combine_args *args) {
    cuda_begin(s);
    int64_t n = static_cast<int64_t>(args->n_rows) * args->width;
    CUDA_LAUNCH_A(s, "combine", cuda_blocks(n, ROW_THREADS), ROW_THREADS, 0, combine_kernel, *args);
}

/* ---- Routed experts ---- */

/* The live picks, sorted by expert. All in device memory. */
typedef struct pick_lists {
    int32_t *n_active; /* experts that were picked */
    int32_t *active;   /* [n_experts] their numbers */
    int32_t *begin;    /* [n_experts + 1] where the list of expert e begins */
    int32_t *fill;     /* [n_experts] */
    int32_t *pick;     /* [n_rows * top_k] row * top_k + i; the order within a list is any */
} pick_lists;

static constexpr int SORT_THREADS = 1024;

static __device__ bool live_pick(const di_experts_args &args, int64_t i) {
    return cuda_none(args.pos) || cuda_at<const int32_t>(args.pos)[i / args.top_k] >= 0;
}

/* One block. Integers alone: where a pick stands in its list changes nothing in its values. */
static __global__ void sort_picks_kernel(di_experts_args args, pick_lists lists) {
    const int32_t *picks = cuda_at<const int32_t>(args.picks);
    int64_t n = static_cast<int64_t>(args.n_rows) * args.top_k, thread = threadIdx.x;
    for (int64_t e = thread; e < args.n_experts; e += SORT_THREADS) lists.fill[e] = 0;
    __syncthreads();
    for (int64_t i = thread; i < n; i += SORT_THREADS)
        if (live_pick(args, i)) atomicAdd(&lists.fill[picks[i]], 1);
    __syncthreads();
    if (thread == 0) {
        int32_t at = 0, active = 0;
        for (int32_t e = 0; e < args.n_experts; e++) {
            lists.begin[e] = at;
            if (lists.fill[e] > 0) lists.active[active++] = e;
            at += lists.fill[e];
            lists.fill[e] = 0;
        }
        lists.begin[args.n_experts] = at;
        *lists.n_active = active;
    }
    __syncthreads();
    for (int64_t i = thread; i < n; i += SORT_THREADS) {
        if (!live_pick(args, i)) continue;
        int32_t e = picks[i];
        lists.pick[lists.begin[e] + atomicAdd(&lists.fill[e], 1)] = static_cast<int32_t>(i);
    }
}

/* The expert and the up to PRODUCT_ROWS picks of a block of threads: blockIdx.y counts experts,
 * tiles go through its list. */
typedef struct expert_tile {
    int32_t expert, first, last; /* last: behind the list's end */
} expert_tile;

static __device__ bool find_expert(const pick_lists &lists, expert_tile *out) {
    if (static_cast<int32_t>(blockIdx.y) >= *lists.n_active) return false;
    out->expert = lists.active[blockIdx.y];
    out->first = lists.begin[out->expert];
    out->last = lists.begin[out->expert + 1];
    return true;
}

/* A warp an output j of w1 and w3: h[pick][j]. */
template <typename A, di_dtype W>
static __global__ void expert_in_kernel(di_experts_args args, pick_lists lists, const A *x, A *h) {
    int32_t j = static_cast<int32_t>(blockIdx.x) * PRODUCT_WARPS + warp_id();
    expert_tile tile;
    if (j >= args.inner || !find_expert(lists, &tile)) return;
    const di_expert &at = cuda_at<const di_expert>(args.experts)[tile.expert];
    di_matrix w1 = {args.dtype, args.inner, args.width, at.w1, at.w1_scale};
    di_matrix w3 = {args.dtype, args.inner, args.width, at.w3, at.w3_scale};
    weight_row gate_row = row_of<W>(w1, j), up_row = row_of<W>(w3, j);
    bool aligned = args.width % 8 == 0 && reinterpret_cast<uintptr_t>(x) % 32 == 0;
    for (int32_t from = tile.first; from < tile.last; from += PRODUCT_ROWS) {
        int rows = tile.last - from < PRODUCT_ROWS ? tile.last - from : PRODUCT_ROWS;
        const A *in[PRODUCT_ROWS];
        float gate[PRODUCT_ROWS] = {}, up[PRODUCT_ROWS] = {};
        for (int r = 0; r < PRODUCT_ROWS; r++) {
            int32_t row = r < rows ? lists.pick[from + r] / args.top_k : 0;
            in[r] = x + static_cast<int64_t>(row) * args.width;
        }
        lane_products<A, W>(gate_row, in, rows, args.width, aligned, gate);
        lane_products<A, W>(up_row, in, rows, args.width, aligned, up);
#pragma unroll
        for (int r = 0; r < PRODUCT_ROWS; r++) {
            if (r >= rows) break;
            float g = round_a<A>(warp_sum(gate[r])), u = round_a<A>(warp_sum(up[r]));
            int64_t pick = lists.pick[from + r];
            float weight = cuda_at<const float>(args.weights)[pick];
            if (lane_id() == 0)
                h[pick * args.inner + j] = swiglu_value<A>(g, u, args.limit, weight);
        }
    }
}

/* Where a pick's row goes: the number of the row's picks of lower experts. */
static __device__ int64_t place_of(const di_experts_args &args, int64_t pick) {
    int64_t row = pick / args.top_k;
    const int32_t *picks = cuda_at<const int32_t>(args.picks) + row * args.top_k;
    int32_t e = picks[pick % args.top_k], below = 0;
    for (int32_t i = 0; i < args.top_k; i++) below += picks[i] < e;
    return row * args.top_k + below;
}

/* A warp an output j of w2: rows[place of pick][j]. */
template <typename A, di_dtype W>
static __global__ void expert_out_kernel(di_experts_args args, pick_lists lists, const A *h) {
    int32_t j = static_cast<int32_t>(blockIdx.x) * PRODUCT_WARPS + warp_id();
    expert_tile tile;
    if (j >= args.width || !find_expert(lists, &tile)) return;
    const di_expert &at = cuda_at<const di_expert>(args.experts)[tile.expert];
    di_matrix w2 = {args.dtype, args.width, args.inner, at.w2, at.w2_scale};
    weight_row row = row_of<W>(w2, j);
    bool aligned = args.inner % 8 == 0 && reinterpret_cast<uintptr_t>(h) % 32 == 0;
    for (int32_t from = tile.first; from < tile.last; from += PRODUCT_ROWS) {
        int rows = tile.last - from < PRODUCT_ROWS ? tile.last - from : PRODUCT_ROWS;
        const A *in[PRODUCT_ROWS];
        float sum[PRODUCT_ROWS] = {};
        for (int r = 0; r < PRODUCT_ROWS; r++) {
            int64_t pick = r < rows ? lists.pick[from + r] : 0;
            in[r] = h + pick * args.inner;
        }
        lane_products<A, W>(row, in, rows, args.inner, aligned, sum);
#pragma unroll
        for (int r = 0; r < PRODUCT_ROWS; r++) {
            if (r >= rows) break;
            float y = warp_sum(sum[r]);
            int64_t at_row = place_of(args, lists.pick[from + r]);
            if (lane_id() == 0) cuda_at<A>(args.rows)[at_row * args.width + j] = from_float<A>(y);
        }
    }
}

template <typename A, di_dtype W>
static void run_experts(di_stream *s, const di_experts_args *args, const pick_lists &lists) {
    int64_t picks = static_cast<int64_t>(args->n_rows) * args->top_k;
    uint32_t y = static_cast<uint32_t>(picks < args->n_experts ? picks : args->n_experts);
    dim3 in(cuda_blocks(args->inner, PRODUCT_WARPS), y);
    dim3 out(cuda_blocks(args->width, PRODUCT_WARPS), y);
    di_ptr x = cuda_quantized(s, args->u, args->n_rows, args->width);
    di_ptr h = cuda_take_a(s, picks * args->inner);
    cuda_launch(s, "experts", in, PRODUCT_THREADS, 0, expert_in_kernel<A, W>, *args, lists,
                cuda_at<const A>(x), cuda_at<A>(h));
    h = cuda_quantized(s, h, picks, args->inner); /* of dead picks too: nobody reads them */
    cuda_launch(s, "experts", out, PRODUCT_THREADS, 0, expert_out_kernel<A, W>, *args, lists,
                cuda_at<const A>(h));
}

void cuda_op_experts(di_stream *s, const di_experts_args *args) {
    cuda_begin(s);
    uint64_t n = static_cast<uint64_t>(args->n_experts);
    uint64_t picks = static_cast<uint64_t>(args->n_rows) * static_cast<uint64_t>(args->top_k);
    CUDA_REQUIRE(args->n_experts <= 65535);
    CUDA_REQUIRE(args->dtype == DI_FP4_PAIR); /* the one that experts are stored in (ops.h) */
    pick_lists lists = {cuda_take<int32_t>(s, 1), cuda_take<int32_t>(s, n),
                        cuda_take<int32_t>(s, n + 1), cuda_take<int32_t>(s, n),
                        cuda_take<int32_t>(s, picks)};
    uint32_t any = picks > 0;
    cuda_launch(s, "experts", any, SORT_THREADS, 0, sort_picks_kernel, *args, lists);
    if (s->release)
        run_experts<__nv_bfloat16, DI_FP4_PAIR>(s, args, lists);
    else
        run_experts<float, DI_FP4_PAIR>(s, args, lists);
}
