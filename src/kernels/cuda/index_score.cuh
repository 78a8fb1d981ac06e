/* Index scores under `release`, on the matrix units: keys are decoded in registers and never stored.
 *
 * A warp takes 16 entries at a time against all heads by mma m16n8k16. In its operand of keys lane
 * 4 g + t has entries g and g + 8, of which it takes the 32 values of scale block t as they lie in
 * memory, 16 bytes: which of K's values stand at which place of an instruction does not matter as
 * long as queries stand alike. The eight codes of a word come apart as pairs (0, 4), (1, 5), (2, 6),
 * (3, 7), so queries are kept in that order (query_place).
 *
 * a(dot) is made of the sums in float32, relu and products with the weights in bf16; their sum over
 * the heads is one more product, with ones. An entry's bits depend on its key and the row alone.
 */
#ifndef DI_KERNELS_CUDA_INDEX_SCORE_CUH
#define DI_KERNELS_CUDA_INDEX_SCORE_CUH

#include "kernels/cuda/index_plan.cuh"

static constexpr int TILE = 16, STAGES = 4, TILES = STRIP / TILE;
static constexpr int HEAD_TILES = INDEX_HEADS / 8;
static constexpr uint32_t ONES = 0x3F803F80u; /* bf16, twice */

/* A lane's part of a tile while it is on its way: codes of entries g and g + 8, their four scales. */
typedef struct key_slot {
    uint4 codes[2][WARP];
    uint32_t scales[2][WARP];
} key_slot;
typedef struct score_shared {
    key_slot slots[INDEX_WARPS][STAGES];
    uint32_t bins[BINS];
    int32_t starts[INDEX_ROWS + 1];
} score_shared;

static __device__ __forceinline__ void copy_async(void *shared, const void *from, bool wanted) {
    uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(wanted ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void copy_async_word(void *shared, const void *from,
                                                       bool wanted) {
    uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(wanted ? 4 : 0)
                 : "memory");
}
static __device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> static __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ void mma_tile(float *d, const uint32_t *a, uint32_t b0,
                                                uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Both halves times both, rounded to bf16; never fused with what follows. */
static __device__ __forceinline__ uint32_t mul_pair(uint32_t x, uint32_t y) {
    __nv_bfloat162 a = *reinterpret_cast<__nv_bfloat162 *>(&x),
                   b = *reinterpret_cast<__nv_bfloat162 *>(&y), c = __hmul2_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&c);
}

/* a(max(x, 0)) of two values; low: x. */
static __device__ __forceinline__ uint32_t relu_pair(float x, float y) {
    uint32_t pair;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}

/* Eight e2m1 codes as pairs of bf16, 2^126 too small: codes i and i + 4 in out[i]. */
static __device__ __forceinline__ void e2m1_pairs(uint32_t word, uint32_t *out) {
    const uint32_t size = 0x01C001C0u, sign = 0x80008000u;
    out[0] = (word << 6 & size) | (word << 12 & sign);
    out[1] = (word << 2 & size) | (word << 8 & sign);
    out[2] = (word >> 2 & size) | (word << 4 & sign);
    out[3] = (word >> 6 & size) | (word & sign);
}

/* What e2m1_pairs leaves out, and the scale 2^(code - 127): together 2^(code - 1), in two factors
 * of which `rest` is 1 but for scales above 2. As bf16 twice. */
typedef struct pair_scale {
    uint32_t factor, rest;
} pair_scale;
static __device__ __forceinline__ pair_scale scale_of(uint32_t code) {
    uint32_t low = code < 128 ? code : 128, more = code - low;
    return pair_scale{(low + 126) * 0x00800080u, (more + 127) * 0x00800080u};
}

/* ---- Queries ---- */

/* Where value i of a head stands. */
static __device__ __forceinline__ int32_t query_place(int32_t i) {
    int32_t of8 = i % 8;
    return i - of8 + (of8 < 4 ? 2 * of8 : 2 * of8 - 7);
}

/* iq = Q4i(rope(q)) of head h, by a warp, from q to out; width a multiple of 32. */
static __device__ __forceinline__ void make_query(const di_index_select_args &args,
                                                  const __nv_bfloat16 *q, const float2 *angles,
                                                  __nv_bfloat16 *out) {
    int32_t dim = args.pages.di, tail = dim - args.rope.dims, lane = lane_id();
    for (int32_t at = 0; at < INDEX_DIM; at += WARP) {
        int32_t i = at + lane;
        float x = i < dim ? to_float(q[i]) : 0.0f;
        float other = __shfl_xor_sync(ALL_LANES, x, 1); /* tail and dim are even */
        if (i >= tail && i < dim) {
            float2 pair = i % 2 ? make_float2(other, x) : make_float2(x, other);
            float2 turned = rotated(pair, angles[(i - tail) / 2]);
            x = round_a<__nv_bfloat16>(i % 2 ? turned.y : turned.x);
        }
        uint8_t scale, both = warp_q4i(x, &scale);
        float code = e2m1_value(lane % 2 ? both >> 4 : both);
        out[query_place(i)] = __float2bfloat16_rn(i < dim ? code * di_e8m0_decode(scale) : 0.0f);
    }
}

/* Block r: row r's queries, weights, empty lists and counts. One more block makes the plan. q:
 * [..][heads * di], weights: [..][heads], raw. */
static __global__ __launch_bounds__(INDEX_THREADS) void index_prepare_kernel(
    di_index_select_args args, index_pass pass, const __nv_bfloat16 *q,
    const __nv_bfloat16 *weights, float scale) {
    __shared__ float2 angles[INDEX_DIM / 2];
    int32_t r = static_cast<int32_t>(blockIdx.x), x = static_cast<int32_t>(threadIdx.x);
    int64_t t = pass.first + r;
    if (r == pass.n_rows) {
        plan_block(args, pass);
        return;
    }
    for (int32_t list = r; list < pass.lists; list += pass.n_rows) {
        for (int32_t i = x; i < BINS; i += INDEX_THREADS) pass.bins[list * BINS + i] = 0;
        if (x < LOW) pass.low[list * LOW + x] = 0;
    }
    int32_t pos = cuda_at<const int32_t>(args.batch.pos)[t];
    if (pos < 0) return;
    for (int32_t i = x; i < args.top_k; i += INDEX_THREADS)
        cuda_at<int32_t>(args.picks)[t * args.top_k + i] = -1;
    if (args.candidate_mode == DI_CANDIDATES_SOURCE)
        for (int32_t i = x; i < args.top_blocks; i += INDEX_THREADS)
            cuda_at<int32_t>(args.candidates)[t * args.top_blocks + i] = -1;
    for (int32_t i = x; i < args.rope.dims / 2; i += INDEX_THREADS)
        angles[i] = rope_angle(args.rope, pos, i, false);
    if (x < INDEX_HEADS) {
        float w = x < args.n_heads ? to_float(weights[t * args.n_heads + x]) * scale : 0.0f;
        pass.weights[r * INDEX_HEADS + x] = __float2bfloat16_rn(w);
    }
    __syncthreads();
    __nv_bfloat16 *out = pass.q + static_cast<int64_t>(r) * INDEX_HEADS * INDEX_DIM;
    for (int32_t h = warp_id(); h < INDEX_HEADS; h += INDEX_WARPS) {
        if (h < args.n_heads)
            make_query(args, q + (t * args.n_heads + h) * args.pages.di, angles,
                       out + h * INDEX_DIM);
        else
            for (int32_t i = lane_id(); i < INDEX_DIM; i += WARP)
                out[h * INDEX_DIM + i] = __float2bfloat16_rn(0.0f);
    }
}

/* ---- Scores ---- */

/* A row as a warp holds it. */
typedef struct score_row {
    uint4 q[HEAD_TILES][4];       /* head 8 j + g, words 8 i .. 8 i + 7 of block t */
    uint32_t weights[HEAD_TILES]; /* heads 8 j + 2 t and the next */
    int64_t t;
    int32_t slot, visible, size;
} score_row;

static __device__ __forceinline__ score_row load_row(const di_index_select_args &args,
                                                     const index_pass &pass, int32_t r) {
    score_row row;
    int32_t g = lane_id() / 4, t = lane_id() % 4;
    row.t = pass.first + r;
    row.slot = cuda_at<const di_row>(args.batch.rows)[row.t].slot;
    row.visible = visible_entries(args, row.t);
    row.size = list_size(args, pass, r);
    const __nv_bfloat16 *q = pass.q + static_cast<int64_t>(r) * INDEX_HEADS * INDEX_DIM;
    const uint32_t *w = reinterpret_cast<const uint32_t *>(pass.weights + r * INDEX_HEADS);
#pragma unroll
    for (int j = 0; j < HEAD_TILES; j++) {
        const uint4 *at = reinterpret_cast<const uint4 *>(q + (8 * j + g) * INDEX_DIM + 32 * t);
#pragma unroll
        for (int i = 0; i < 4; i++) row.q[j][i] = at[i];
        row.weights[j] = w[4 * j + t];
    }
    return row;
}

/* A lane's two entries of a tile, and the numbers of their pages; entry -1: none. */
typedef struct tile_place {
    int32_t entry[2], page[2];
} tile_place;

/* page_bits: a page has 1 << page_bits entries. */
static __device__ __forceinline__ tile_place find_tile(const di_index_select_args &args,
                                                       const score_row &row, int32_t begin,
                                                       int32_t page_bits) {
    tile_place at;
    const int32_t *table = cuda_at<const int32_t>(args.pages.table) +
                           static_cast<int64_t>(row.slot) * args.pages.table_stride;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int32_t place = begin + lane_id() / 4 + 8 * i;
        at.entry[i] = place < row.size ? list_entry(args, row.t, place, row.visible) : -1;
        at.page[i] = at.entry[i] >= 0 ? table[at.entry[i] >> page_bits] : 0;
    }
    return at;
}

/* Starts the way of a tile's codes and scales into a slot. ALIGNED: pieces of 16 and scales of 4
 * bytes lie at such addresses and all of INDEX_DIM is there. */
template <bool ALIGNED>
static __device__ __forceinline__ void fetch_tile(const di_pages &p, const tile_place &at,
                                                  int32_t page_bits, key_slot *slot) {
    uint32_t lane = static_cast<uint32_t>(lane_id()), t = lane % 4;
    uint32_t dim = ALIGNED ? INDEX_DIM : static_cast<uint32_t>(p.di);
    const uint8_t *all_codes = cuda_at<const uint8_t>(p.pool) + p.key_codes + 16 * t;
    const uint8_t *all_scales = cuda_at<const uint8_t>(p.pool) + p.key_scales;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool wanted = at.entry[i] >= 0 && 32 * t < dim;
        uint32_t place = static_cast<uint32_t>(at.entry[i]) & ((1u << page_bits) - 1);
        uint64_t page = static_cast<uint64_t>(static_cast<uint32_t>(at.page[i])) *
                        static_cast<uint32_t>(p.page_bytes);
        const uint8_t *codes = all_codes + page + place * (dim / 2);
        const uint8_t *scales = all_scales + page + place * (dim / 32);
        if (ALIGNED) {
            copy_async(&slot->codes[i][lane], codes, wanted);
            copy_async_word(&slot->scales[i][lane], scales, wanted);
        } else {
            uint32_t words[4] = {0, 0, 0, 0}, scale = 0;
            if (wanted) {
                load_words<4>(codes, words);
                scale = scales[t];
            }
            slot->codes[i][lane] = make_uint4(words[0], words[1], words[2], words[3]);
            slot->scales[i][lane] = scale << (8 * t);
        }
    }
}

/* The scores of entries g and g + 8 of a tile; in all lanes of a quad. */
static __device__ __forceinline__ float2 score_tile(const key_slot &slot, const score_row &row) {
    int32_t lane = lane_id(), t = lane % 4;
    float d[HEAD_TILES][4] = {}, sum[4] = {};
    uint32_t words[2][4];
    pair_scale scale[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 codes = slot.codes[i][lane];
        words[i][0] = codes.x, words[i][1] = codes.y, words[i][2] = codes.z, words[i][3] = codes.w;
        scale[i] = scale_of(slot.scales[i][lane] >> (8 * t) & 255u);
    }
    bool large = __any_sync(ALL_LANES, scale[0].rest != ONES || scale[1].rest != ONES);
#pragma unroll
    for (int w = 0; w < 4; w++) {
        uint32_t pairs[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            e2m1_pairs(words[i][w], pairs[i]);
#pragma unroll
            for (int p = 0; p < 4; p++) pairs[i][p] = mul_pair(pairs[i][p], scale[i].factor);
            if (large)
#pragma unroll
                for (int p = 0; p < 4; p++) pairs[i][p] = mul_pair(pairs[i][p], scale[i].rest);
        }
        uint32_t a[4] = {pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]};
        uint32_t b[4] = {pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3]};
#pragma unroll
        for (int j = 0; j < HEAD_TILES; j++) {
            mma_tile(d[j], a, row.q[j][w].x, row.q[j][w].y);
            mma_tile(d[j], b, row.q[j][w].z, row.q[j][w].w);
        }
    }
#pragma unroll
    for (int j = 0; j < HEAD_TILES; j += 2) { /* a head's term, then the sum of 16 heads */
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            a[2 * i] = mul_pair(relu_pair(d[j + i][0], d[j + i][1]), row.weights[j + i]);
            a[2 * i + 1] = mul_pair(relu_pair(d[j + i][2], d[j + i][3]), row.weights[j + i]);
        }
        mma_tile(sum, a, ONES, ONES);
    }
    return make_float2(sum[0], sum[2]);
}

/* The strips of one row that are this block's: warps take them in turn. */
template <bool ALIGNED>
static __device__ void score_strips(const di_index_select_args &args, const index_pass &pass,
                                    score_shared *shared, int32_t r, int32_t begin, int32_t end) {
    int32_t warp = warp_id(), page_bits = 6 - (__ffs(args.pages.ratio) - 1);
    if (begin + warp >= end) return;
    score_row row = load_row(args, pass, r);
    int32_t first = (begin + warp - shared->starts[r]) * STRIP;
    int32_t tiles = ceil_div(end - begin - warp, INDEX_WARPS) * TILES;
    uint16_t *keys = pass.keys + r * pass.stride;
    key_slot *slots = shared->slots[warp];
    auto place_of = [&](int32_t i) { /* of the i-th tile of this warp */
                                     return first + i / TILES * (INDEX_WARPS * STRIP) +
                                            i % TILES * TILE;
    };
    auto find = [&](int32_t i) {
        tile_place none = {{-1, -1}, {0, 0}};
        return i < tiles ? find_tile(args, row, place_of(i), page_bits) : none;
    };
    tile_place next = find(0);
    for (int32_t i = 0; i < STAGES - 1; i++) {
        tile_place later = find(i + 1);
        fetch_tile<ALIGNED>(args.pages, next, page_bits, &slots[i]);
        copy_commit();
        next = later;
    }
    for (int32_t i = 0; i < tiles; i++) {
        tile_place later = find(i + STAGES);
        fetch_tile<ALIGNED>(args.pages, next, page_bits, &slots[(i + STAGES - 1) % STAGES]);
        copy_commit();
        copy_wait<STAGES - 1>();
        float2 sums = score_tile(slots[i % STAGES], row);
        next = later;
        int32_t place = place_of(i) + lane_id() / 4 + lane_id() % 4 * 8;
        if (lane_id() % 4 < 2 && place < row.size) { /* lanes 4 g and 4 g + 1 write */
            float score = round_a<__nv_bfloat16>(lane_id() % 4 == 0 ? sums.x : sums.y);
            bool counts = list_entry(args, row.t, place, row.visible) >= 0;
            uint32_t key = counts ? half_key(score) : 0;
            keys[place] = static_cast<uint16_t>(key);
            if (key != 0) atomicAdd(&shared->bins[key / LOW], 1u);
        }
        __syncwarp();
    }
    copy_wait<0>();
}

/* Adds the block's counts to a list's, and clears them; all threads, before and after a barrier. */
static __device__ void flush_bins(uint32_t *bins, int32_t *out) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < BINS; i += INDEX_THREADS) {
        uint32_t n = bins[i];
        if (n == 0) continue;
        atomicAdd(out + i, static_cast<int32_t>(n));
        bins[i] = 0;
    }
}

template <bool ALIGNED>
static __global__ __launch_bounds__(INDEX_THREADS,
                                    2) void index_scores_kernel(di_index_select_args args,
                                                                index_pass pass) {
    extern __shared__ __align__(16) uint8_t shared_bytes[];
    score_shared *shared = reinterpret_cast<score_shared *>(shared_bytes);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < BINS; i += INDEX_THREADS)
        shared->bins[i] = 0;
    index_share share = take_share(pass.strips, pass.n_rows, 0, 1, shared->starts);
    for (int32_t r = share.list; share.begin < share.end; r++) {
        int32_t end = shared->starts[r + 1] < share.end ? shared->starts[r + 1] : share.end;
        if (end <= share.begin) continue;
        score_strips<ALIGNED>(args, pass, shared, r, share.begin, end);
        __syncthreads();
        flush_bins(shared->bins, pass.bins + r * BINS);
        __syncthreads();
        share.begin = end;
    }
}

#endif
