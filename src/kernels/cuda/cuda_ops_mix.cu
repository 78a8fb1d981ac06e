/* Mixing coefficients of the streams (model.md 3.5). */
#include "kernels/cuda/last_block.cuh"
#include "kernels/cuda/mix_product.cuh"

/* What sum i of a row's products becomes; root: mix_root of its squares. */
static __device__ __forceinline__ float mix_root(const di_mix_args &args, float squares) {
    float mean = squares / static_cast<float>(static_cast<int64_t>(args.hc) * args.width);
    /* Where everything is 0, m is 0 whatever the divisor. */
    return sqrtf(fmaxf(mean + static_cast<float>(args.rms_eps), 0x1p-126f));
}
static __device__ __forceinline__ float mix_value(const di_mix_args &args, int i, float sum,
                                                  float root) {
    int part = i < MIX_HC ? 0 : i < 2 * MIX_HC ? 1 : 2;
    return fmaf(sum / root, vector_value(args.scale, part), vector_value(args.base, i));
}

/* ---- Sinkhorn of four streams, in the registers of every lane ---- */

/* A division that may be off by 2 ulp: iterations correct each other. */
static __device__ __forceinline__ float quick_inverse(float x) { return __fdividef(1.0f, x); }

static __device__ __forceinline__ void normalise_rows(float (*c)[MIX_HC], float eps) {
#pragma unroll
    for (int i = 0; i < MIX_HC; i++) {
        float inverse = quick_inverse(((c[i][0] + c[i][1]) + (c[i][2] + c[i][3])) + eps);
        for (int k = 0; k < MIX_HC; k++) c[i][k] *= inverse;
    }
}
static __device__ __forceinline__ void normalise_columns(float (*c)[MIX_HC], float eps) {
#pragma unroll
    for (int k = 0; k < MIX_HC; k++) {
        float inverse = quick_inverse(((c[0][k] + c[1][k]) + (c[2][k] + c[3][k])) + eps);
        for (int i = 0; i < MIX_HC; i++) c[i][k] *= inverse;
    }
}

static __device__ __forceinline__ void sinkhorn4(float (*c)[MIX_HC], int32_t iters, float eps) {
#pragma unroll
    for (int i = 0; i < MIX_HC; i++) {
        float top = fmaxf(fmaxf(c[i][0], c[i][1]), fmaxf(c[i][2], c[i][3])), sum = 0;
        for (int k = 0; k < MIX_HC; k++) sum += c[i][k] = expf(c[i][k] - top);
        for (int k = 0; k < MIX_HC; k++) c[i][k] = c[i][k] / sum + eps;
    }
    normalise_columns(c, eps);
    for (int32_t i = 1; i < iters; i++) {
        normalise_rows(c, eps);
        normalise_columns(c, eps);
    }
}

/* All outputs of row t by one warp: lane i has sum i of the products, lane MIX_N that of the
 * squares. */
static __device__ void mix_row(const di_mix_args &args, int64_t t, float sum) {
    int lane = lane_id();
    float root = mix_root(args, __shfl_sync(ALL_LANES, sum, MIX_N)), c[MIX_HC][MIX_HC], mine = 0;
    float m = lane < MIX_N ? mix_value(args, lane, sum, root) : 0;
#pragma unroll
    for (int i = 0; i < MIX_HC * MIX_HC; i++)
        c[i / MIX_HC][i % MIX_HC] = __shfl_sync(ALL_LANES, m, 2 * MIX_HC + i);
    if (lane < MIX_HC)
        cuda_at<float>(args.pre)[t * MIX_HC + lane] = sigmoid(m) + static_cast<float>(args.hc_eps);
    else if (lane < 2 * MIX_HC)
        cuda_at<float>(args.post)[t * MIX_HC + lane - MIX_HC] = 2 * sigmoid(m);
    sinkhorn4(c, args.iters, static_cast<float>(args.hc_eps));
#pragma unroll
    for (int i = 0; i < MIX_HC * MIX_HC; i++)
        if (lane == i) mine = c[i / MIX_HC][i % MIX_HC];
    if (lane < MIX_HC * MIX_HC) cuda_at<float>(args.comb)[t * MIX_HC * MIX_HC + lane] = mine;
}

/* The same by one thread from all of the row's sums. */
static __device__ void mix_whole_row(const di_mix_args &args, int64_t t, const float *sums) {
    float root = mix_root(args, sums[MIX_N]), c[MIX_HC][MIX_HC];
    float eps = static_cast<float>(args.hc_eps);
#pragma unroll
    for (int i = 0; i < MIX_HC; i++) {
        float pre = mix_value(args, i, sums[i], root);
        float post = mix_value(args, MIX_HC + i, sums[MIX_HC + i], root);
        cuda_at<float>(args.pre)[t * MIX_HC + i] = sigmoid(pre) + eps;
        cuda_at<float>(args.post)[t * MIX_HC + i] = 2 * sigmoid(post);
    }
#pragma unroll
    for (int i = 0; i < MIX_HC * MIX_HC; i++)
        c[i / MIX_HC][i % MIX_HC] = mix_value(args, 2 * MIX_HC + i, sums[2 * MIX_HC + i], root);
    sinkhorn4(c, args.iters, eps);
#pragma unroll
    for (int i = 0; i < MIX_HC * MIX_HC; i++)
        cuda_at<float>(args.comb)[t * MIX_HC * MIX_HC + i] = c[i / MIX_HC][i % MIX_HC];
}

/* ---- Four streams: sums, then rows ---- */

static constexpr int FINISH_WARPS = 4, FINISH_THREADS = FINISH_WARPS * WARP;

/* Row t from its sums, [quads][MIX_SUMS], by FINISH_WARPS warps; shared: MIX_SUMS a group. The sums
 * may be another block's work of the same kernel. */
static __device__ void finish_row(const di_mix_args &args, const float *sums, int64_t t,
                                  float *shared) {
    int64_t k = static_cast<int64_t>(args.hc) * args.width;
    int32_t n_groups = mix_groups(k), n_quads = mix_quads(k), lane = lane_id();
    const float *row = sums + t * n_quads * MIX_SUMS + lane;
#pragma unroll 5
    for (int32_t group = warp_id(); group < n_groups; group += FINISH_WARPS) {
        float part[4] = {};
        for (int i = 0; i < 4 && lane < MIX_SUMS; i++)
            if (4 * group + i < n_quads) part[i] = __ldcg(row + (4 * group + i) * MIX_SUMS);
        if (lane < MIX_SUMS) shared[group * MIX_SUMS + lane] = mix_sum4(part, 1);
    }
    __syncthreads();
    if (warp_id() > 0) return;
    float sum = 0;
    for (int32_t group = 0; group < n_groups && lane < MIX_SUMS; group++)
        sum += shared[group * MIX_SUMS + lane];
    mix_row(args, t, sum);
}

static __global__ __launch_bounds__(FINISH_THREADS) void mix_finish_kernel(di_mix_args args,
                                                                           const float *sums) {
    extern __shared__ float shared[];
    begin_early();
    finish_row(args, sums, blockIdx.x, shared);
}

/* Many rows from theirs, [groups][MIX_SUMS]: a warp a row joins them, then a thread of the first
 * warp a row, whose iterations take a warp as long as one row's. */
static constexpr int JOINED_ROWS = 8; /* of a block: small ones find room beside products */
static __global__ __launch_bounds__(JOINED_ROWS *WARP) void mix_join_kernel(di_mix_args args,
                                                                            const float *sums) {
    __shared__ float joined[JOINED_ROWS][MIX_SUMS];
    int32_t n_groups = mix_groups(static_cast<int64_t>(args.hc) * args.width), lane = lane_id();
    int64_t first = static_cast<int64_t>(blockIdx.x) * JOINED_ROWS, t = first + warp_id();
    begin_early();
    if (t < args.n_rows && lane < MIX_SUMS) {
        const float *row = sums + t * n_groups * MIX_SUMS + lane;
        float sum = 0;
#pragma unroll 20 /* the release's: all at once */
        for (int32_t group = 0; group < n_groups; group++) sum += row[group * MIX_SUMS];
        joined[warp_id()][lane] = sum;
    }
    __syncthreads();
    if (warp_id() == 0 && lane < JOINED_ROWS && first + lane < args.n_rows)
        mix_whole_row(args, first + lane, joined[lane]);
}

/* At most 8 rows: a block a quad. The last one finishes the rows if they are at most `finish`. */
static constexpr int FEW_ROWS = 8, FEW_FINISH = 2;
template <typename A>
static __global__ __launch_bounds__(FINISH_THREADS) void mix_few_kernel(di_mix_args args,
                                                                        float *sums,
                                                                        uint32_t *counter) {
    extern __shared__ float shared[];
    __shared__ __align__(16) float part[4][FEW_ROWS * MIX_SUMS];
    int64_t width = static_cast<int64_t>(args.hc) * args.width;
    int64_t k = static_cast<int64_t>(blockIdx.x) * MIX_QUAD_K + warp_id() * MIX_WARP_K;
    mix_input<A> x;
    mix_weights w;
    let_kernels_begin();
    mix_load_weights(args.fn, k, &w);
    await_kernels_before();
    mix_load_rows<FEW_ROWS>(cuda_at<const A>(args.streams), args.n_rows, width, 0, k, &x);
    mix_tile<FEW_ROWS>(x, w, part[warp_id()]);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < FEW_ROWS * MIX_SUMS; i += FINISH_THREADS) {
        int64_t t = mix_row_at<FEW_ROWS>(i), at = t * gridDim.x + blockIdx.x;
        if (t < args.n_rows)
            sums[at * MIX_SUMS + mix_sum_at<FEW_ROWS>(i)] =
                mix_sum4(&part[0][i], FEW_ROWS * MIX_SUMS);
    }
    if (args.n_rows > FEW_FINISH || !last_block(counter, gridDim.x)) return;
    for (int64_t t = 0; t < args.n_rows; t++) {
        finish_row(args, sums, t, shared);
        __syncthreads();
    }
}

/* Any number of rows: a block a group of K and every gridDim.y-th tile of 16 rows. The next tile is
 * asked for before this one is multiplied. */
static constexpr int MANY_ROWS = 16, MANY_WARPS = MIX_GROUP_K / MIX_WARP_K;
static constexpr int MANY_THREADS = MANY_WARPS * WARP, MANY_SUMS = MANY_ROWS * MIX_SUMS;
template <typename A>
static __global__ __launch_bounds__(MANY_THREADS, 1) void mix_many_kernel(di_mix_args args,
                                                                          float *sums) {
    extern __shared__ float shared[]; /* [2][MANY_WARPS][MANY_SUMS] */
    const A *streams = cuda_at<const A>(args.streams);
    int64_t width = static_cast<int64_t>(args.hc) * args.width;
    int64_t k = static_cast<int64_t>(blockIdx.x) * MIX_GROUP_K + warp_id() * MIX_WARP_K;
    int64_t first = static_cast<int64_t>(blockIdx.y) * MANY_ROWS;
    mix_input<A> x, next;
    mix_weights w;
    let_kernels_begin();
    mix_load_weights(args.fn, k, &w);
    await_kernels_before();
    mix_load_rows<MANY_ROWS>(streams, args.n_rows, width, first, k, &next);
    for (int turn = 0; first < args.n_rows; turn ^= 1) {
        float *part = shared + turn * MANY_WARPS * MANY_SUMS;
        int64_t after = first + static_cast<int64_t>(gridDim.y) * MANY_ROWS;
        x = next;
        if (after < args.n_rows)
            mix_load_rows<MANY_ROWS>(streams, args.n_rows, width, after, k, &next);
        mix_tile<MANY_ROWS>(x, w, part + warp_id() * MANY_SUMS);
        __syncthreads(); /* two turns: the one before last was read before this barrier */
        int i = static_cast<int>(threadIdx.x);
        int64_t t = first + mix_row_at<MANY_ROWS>(i);
        if (i < MANY_SUMS && t < args.n_rows) {
            float quad[4];
            for (int q = 0; q < 4; q++) quad[q] = mix_sum4(part + 4 * q * MANY_SUMS + i, MANY_SUMS);
            sums[(t * gridDim.x + blockIdx.x) * MIX_SUMS + mix_sum_at<MANY_ROWS>(i)] =
                mix_sum4(quad, 1);
        }
        first = after;
    }
}

/* Sums that are written before they are joined. */
static uint64_t sums_of(const di_mix_args *args) {
    int64_t k = static_cast<int64_t>(args->hc) * args->width;
    int32_t parts = args->n_rows <= FEW_ROWS ? mix_quads(k) : mix_groups(k);
    return static_cast<uint64_t>(args->n_rows) * static_cast<uint64_t>(parts) * MIX_SUMS;
}

static void mix4(di_stream *s, const di_mix_args *args) {
    int64_t k = static_cast<int64_t>(args->hc) * args->width;
    uint32_t quads = static_cast<uint32_t>(mix_quads(k)),
             groups = static_cast<uint32_t>(mix_groups(k));
    bool few = args->n_rows <= FEW_ROWS;
    size_t finish = groups * MIX_SUMS * sizeof(float);
    size_t many = 2 * MANY_WARPS * MANY_SUMS * sizeof(float);
    float *sums = cuda_take<float>(s, sums_of(args));
    if (few) {
        uint32_t blocks = args->n_rows > 0 ? quads : 0;
        CUDA_LAUNCH_EARLY_A(s, "mix", blocks, FINISH_THREADS, finish, mix_few_kernel, *args, sums,
                            cuda_counters(s));
        if (args->n_rows <= FEW_FINISH) return;
        cuda_launch_early(s, "mix", static_cast<uint32_t>(args->n_rows), FINISH_THREADS, finish,
                          mix_finish_kernel, *args, static_cast<const float *>(sums));
    } else {
        uint32_t tiles = cuda_blocks(args->n_rows, MANY_ROWS);
        uint32_t fit = static_cast<uint32_t>(s->n_processors) / groups;
        dim3 grid(groups, fit < 1 ? 1 : fit < tiles ? fit : tiles);
        CUDA_LAUNCH_EARLY_A(s, "mix", grid, MANY_THREADS, many, mix_many_kernel, *args, sums);
        cuda_launch_early(s, "mix", cuda_blocks(args->n_rows, JOINED_ROWS), JOINED_ROWS * WARP, 0,
                          mix_join_kernel, *args, static_cast<const float *>(sums));
    }
}

/* ---- Any other number of streams ---- */

static __device__ void normalise(double *comb, int32_t hc, int32_t of, int32_t step, double eps) {
    double sum = 0;
    for (int32_t i = 0; i < hc; i++) sum += comb[of + i * step];
    for (int32_t i = 0; i < hc; i++) comb[of + i * step] /= sum + eps;
}

/* Row softmax + eps of row i. */
static __device__ void soften(double *row, int32_t hc, double eps) {
    double top = row[0], sum = 0;
    for (int32_t k = 1; k < hc; k++) top = fmax(top, row[k]);
    for (int32_t k = 0; k < hc; k++) sum += row[k] = exp(row[k] - top);
    for (int32_t k = 0; k < hc; k++) row[k] = row[k] / sum + eps;
}

/* Sinkhorn by the first warp: lane i has row i, then column i. */
static __device__ void sinkhorn(double *comb, int32_t hc, int32_t iters, double eps) {
    int32_t lane = lane_id();
    if (lane < hc) soften(comb + lane * hc, hc, eps);
    __syncwarp();
    if (lane < hc) normalise(comb, hc, lane, hc, eps);
    for (int32_t i = 1; i < iters; i++) {
        __syncwarp();
        if (lane < hc) normalise(comb, hc, lane * hc, 1, eps);
        __syncwarp();
        if (lane < hc) normalise(comb, hc, lane, hc, eps);
    }
    __syncwarp();
}

/* One row: m [(2 + hc) hc], the bare products, to pre, post and comb. In double: a few hundred
 * values, and what they are multiplied with must not be off. */
template <typename A>
static __global__ void mix_any_kernel(di_mix_args args, const float *products) {
    __shared__ double comb[DI_OPS_MAX_HC * DI_OPS_MAX_HC];
    int32_t hc = args.hc, n_mix = (2 + hc) * hc;
    begin_early();
    int64_t t = blockIdx.x, width = static_cast<int64_t>(hc) * args.width;
    const A *v = cuda_at<const A>(args.streams) + t * width;
    double squares = 0;
    for (int64_t i = threadIdx.x; i < width; i += ROW_THREADS) {
        double x = static_cast<double>(to_float(v[i]));
        squares += x * x;
    }
    double root = sqrt(block_sum<ROW_WARPS>(squares) / static_cast<double>(width) + args.rms_eps);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n_mix; i += ROW_THREADS) {
        int part = i < hc ? 0 : i < 2 * hc ? 1 : 2;
        double m = static_cast<double>(products[t * n_mix + i]) / root;
        m = m * static_cast<double>(vector_value(args.scale, part)) +
            static_cast<double>(vector_value(args.base, i));
        if (part == 0)
            cuda_at<float>(args.pre)[t * hc + i] = static_cast<float>(sigmoid(m) + args.hc_eps);
        else if (part == 1)
            cuda_at<float>(args.post)[t * hc + i - hc] = static_cast<float>(2 * sigmoid(m));
        else
            comb[i - 2 * hc] = m;
    }
    __syncthreads();
    if (warp_id() > 0) return;
    sinkhorn(comb, hc, args.iters, args.hc_eps);
    for (int32_t i = lane_id(); i < hc * hc; i += WARP)
        cuda_at<float>(args.comb)[t * hc * hc + i] = static_cast<float>(comb[i]);
}

static void mix_any(di_stream *s, const di_mix_args *args) {
    di_ptr products = cuda_take_f(s, static_cast<int64_t>(args->n_rows) * args->fn.n);
    cuda_linear_rows(s, &args->fn, args->streams, args->n_rows, false, true, products);
    CUDA_LAUNCH_EARLY_A(s, "mix", static_cast<uint32_t>(args->n_rows), ROW_THREADS, 0,
                        mix_any_kernel, *args, cuda_at<const float>(products));
}

void cuda_mix_now(di_stream *s, const di_mix_args *args) {
    cuda_begin_beside(s, true);
    if (!cuda_none(s->beside.pre)) cuda_join(s);
    CUDA_REQUIRE(args->hc >= 1 && args->hc <= DI_OPS_MAX_HC && args->iters >= 1 &&
                 args->fn.dtype == DI_F32 && args->fn.n == (2 + args->hc) * args->hc &&
                 args->fn.k == args->hc * args->width);
    if (args->hc != MIX_HC) {
        mix_any(s, args);
        return;
    }
    bool aside = args->n_rows > 0 && args->n_rows <= CUDA_BESIDE_ROWS &&
                 cuda_step_aside(s, 4 * sums_of(args));
    mix4(s, args);
    if (!aside) return;
    cuda_step_back(s);
    s->beside.pre = args->pre;
}
