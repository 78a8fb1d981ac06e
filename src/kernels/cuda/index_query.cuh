/* The indexer's queries under `release`, as index_score.cuh multiplies them, and what else a
 * pass begins with: one kernel.
 *
 * Scales. A head's queries are kept as E4M3 codes of q 2^(6 - largest scale of the head), which are
 * exact while its scales lie within 2^14 of each other; a head whose do not has its blocks' factors
 * apart (index_query.apart). 2^largest goes into the head's weight: rounding by a() is the same
 * before and after.
 */
#ifndef DI_KERNELS_CUDA_INDEX_QUERY_CUH
#define DI_KERNELS_CUDA_INDEX_QUERY_CUH

#include "kernels/cuda/attend_wide.cuh"
#include "kernels/cuda/index_plan.cuh"

static constexpr int KEY_BLOCKS = INDEX_DIM / 32; /* of values with a scale */
static_assert(INDEX_DIM == 128 && INDEX_HEADS == 32, "a head's codes are a row of a slab");

/* Where value i of block b of a head stands. */
static __device__ __forceinline__ int32_t query_place(int32_t head, int32_t b, int32_t i) {
    return slab_place(head, 2 * b + i % 2) + 4 * (i / 8) + i % 8 / 2;
}

/* A lane's values of a head: lane, lane + 32, ... */
typedef struct head_values {
    float x[KEY_BLOCKS];
} head_values;

static __device__ __forceinline__ head_values load_head(const di_index_select_args &args,
                                                        const __nv_bfloat16 *q, int32_t head) {
    head_values v;
#pragma unroll
    for (int b = 0; b < KEY_BLOCKS; b++) {
        int32_t i = 32 * b + lane_id();
        v.x[b] = head < args.n_heads && i < args.pages.di
                     ? to_float(q[static_cast<int64_t>(head) * args.pages.di + i])
                     : 0.0f;
    }
    return v;
}

/* iq = Q4i(rope(q)) of a head by a warp, and its weight. */
static __device__ __forceinline__ void make_query(const di_index_select_args &args, head_values v,
                                                  const float2 *angles, int32_t head, float weight,
                                                  index_query *out) {
    int32_t dim = args.pages.di, tail = dim - args.rope.dims, lane = lane_id();
    int32_t scales[KEY_BLOCKS], largest = -1, smallest = 255;
    uint32_t codes[KEY_BLOCKS];
#pragma unroll
    for (int b = 0; b < KEY_BLOCKS; b++) {
        int32_t i = 32 * b + lane;
        float other = __shfl_xor_sync(ALL_LANES, v.x[b], 1); /* tail and dim are even */
        if (i >= tail && i < dim) {
            float2 pair = i % 2 ? make_float2(other, v.x[b]) : make_float2(v.x[b], other);
            float2 turned = rotated(pair, angles[(i - tail) / 2]);
            v.x[b] = round_a<__nv_bfloat16>(i % 2 ? turned.y : turned.x);
        }
        uint8_t scale, both = warp_q4i(v.x[b], &scale);
        codes[b] = lane % 2 ? both >> 4 : both & 15u;
        scales[b] = scale;
        if (!__any_sync(ALL_LANES, (codes[b] & 7u) != 0)) continue; /* any scale will do */
        largest = max(largest, scales[b]);
        smallest = min(smallest, scales[b]);
    }
    if (largest < 0) largest = smallest = 127;
    bool apart = largest - smallest > 14;
#pragma unroll
    for (int b = 0; b < KEY_BLOCKS; b++) {
        bool is_zero = !__any_sync(ALL_LANES, (codes[b] & 7u) != 0);
        int32_t less = is_zero ? 0 : largest - scales[b];
        float value = e2m1_value(codes[b]) * (apart ? 64.0f : ldexpf(64.0f, -less));
        out->codes[query_place(head, b, lane)] = di_e4m3_encode(value);
        if (lane == b) out->apart[head][b] = apart ? ldexpf(1.0f, -less) : 1.0f;
    }
    float factor = di_e8m0_decode(static_cast<uint8_t>(largest));
    if (lane == 0) out->weights[head] = __float2bfloat16_rn(weight * factor);
}

/* A row is prepared by so many blocks of threads, a warp a head. */
static constexpr int ROW_PARTS = INDEX_HEADS / INDEX_WARPS;

/* Counts and lists of row r, without what is found: this block's part. */
static __device__ __forceinline__ void clear_row(const di_index_select_args &args,
                                                 const index_pass &pass, int32_t r, int32_t part,
                                                 bool live) {
    const int32_t step = ROW_PARTS * INDEX_THREADS;
    int32_t x = part * INDEX_THREADS + static_cast<int32_t>(threadIdx.x);
    int64_t t = pass.first + r;
    for (int32_t list = r; list < pass.lists; list += pass.n_rows) {
        int4 *bins = reinterpret_cast<int4 *>(pass.bins + list * BINS);
        for (int32_t i = x; i < BINS / 4; i += step) bins[i] = make_int4(0, 0, 0, 0);
        if (x < LOW) pass.low[list * LOW + x] = 0;
        if (x == 0) pass.done[list] = 0;
    }
    if (!live) return;
    for (int32_t i = x; i < args.top_k; i += step)
        cuda_at<int32_t>(args.picks)[t * args.top_k + i] = -1;
    if (args.candidate_mode == DI_CANDIDATES_SOURCE)
        for (int32_t i = x; i < args.top_blocks; i += step)
            cuda_at<int32_t>(args.candidates)[t * args.top_blocks + i] = -1;
}

/* Rows' queries, weights, empty lists and counts. q: [..][heads * di], weights: [..][heads], raw.
 * What is here before the products may be read by the next kernel early (finder_of): it begins only
 * when they are done, since this waits before it lets it. */
static __global__ __launch_bounds__(INDEX_THREADS) void index_prepare_kernel(
    di_index_select_args args, index_pass pass, const __nv_bfloat16 *q,
    const __nv_bfloat16 *weights, float scale) {
    __shared__ float2 angles[INDEX_DIM / 2];
    int32_t at = static_cast<int32_t>(blockIdx.x), x = static_cast<int32_t>(threadIdx.x);
    int32_t r = at / ROW_PARTS, part = at % ROW_PARTS, head = part * INDEX_WARPS + warp_id();
    int64_t t = pass.first + r;
    await_kernels_before();
    let_kernels_begin();
    head_values values = load_head(args, q + t * args.n_heads * args.pages.di, head);
    float w = head < args.n_heads ? to_float(weights[t * args.n_heads + head]) : 0.0f;
    int32_t pos = cuda_at<const int32_t>(args.batch.pos)[t];
    if (pos >= 0) /* a few a warp */
        for (int32_t i = x % WARP * INDEX_WARPS + x / WARP; i < args.rope.dims / 2;
             i += INDEX_THREADS)
            angles[i] = rope_angle(args.rope, pos, i, false);
    clear_row(args, pass, r, part, pos >= 0);
    if (pos < 0) return;
    __syncthreads();
    make_query(args, values, angles, head, round_a<__nv_bfloat16>(w * scale), pass.queries + r);
}

#endif
