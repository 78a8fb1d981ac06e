/* Index scores under `release`, on the matrix units: keys are decoded in registers and never
 * stored.
 *
 * A warpgroup takes strips of 128 entries against all heads, a warp 32 of them, in two tiles of 16:
 * what goes with addresses and scores is done once for both. Keys and queries are both e2m1 codes
 * with a scale for 32 values, and one product by wgmma is over 32 values: with codes as E4M3 its
 * sums are exact (multiples of 1/4 below 1153, times a power of two), so it does not matter how the
 * matrix unit adds them. The four sums of an entry and a head are then multiplied with their scales
 * and added in float32, in order.
 *
 * Scales. Those of queries are in their codes and in the weights (index_query.cuh). A key's scale
 * 2^-127 counts as 0; the quantiser's smallest is 2^-126.
 *
 * Places. Lane 4 g + t of a warp has entries g and g + 8 of a tile. Of the 32 values of a block it
 * takes 8 t .. 8 t + 7, which are one word: even ones as the codes 4 t .. 4 t + 3 of an
 * instruction, odd ones as 16 + 4 t ... Queries stand alike. Code c (its low three bits) shifted to
 * the left by two is E4M3's of the value 2^-6 too small, subnormal or not; 2^6 of the queries makes
 * up for it.
 *
 * a(dot) is made of the sums in float32, relu and products with the weights in bf16; their sum over
 * the heads is a product by mma with ones. An entry's bits depend on its key and the row alone.
 */
#ifndef DI_KERNELS_CUDA_INDEX_SCORE_CUH
#define DI_KERNELS_CUDA_INDEX_SCORE_CUH

#include "kernels/cuda/index_keys.cuh"
#include "kernels/cuda/index_whole.cuh"

static constexpr int HEAD_TILES = INDEX_HEADS / 8;
static constexpr uint32_t ONES = 0x3F803F80u; /* bf16, twice */

typedef struct score_shared { /* from a multiple of 1024 bytes on */
    index_query query;
    key_slot slots[INDEX_WARPS][STAGES]; /* then the keys that are picked from */
    float scales[INDEX_WARPS][PAIR][KEY_BLOCKS];
    uint32_t bins[BINS];
    uint16_t hits[WHOLE_LIST / 8];
    int32_t starts[INDEX_ROWS + 1];
    uint32_t ended[INDEX_ROWS / 32]; /* a bit for each row that this block is to pick from */
} score_shared;
static_assert(sizeof(key_slot) * INDEX_WARPS * STAGES >= WHOLE_LIST * sizeof(uint16_t),
              "a whole list where the slots were");

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

/* Eight e2m1 codes as E4M3, 2^6 too small: the even ones, the odd ones. */
static __device__ __forceinline__ uint32_t even_codes(uint32_t word) {
    return (word << 2 & 0x1C1C1C1Cu) | (word << 4 & 0x80808080u);
}
static __device__ __forceinline__ uint32_t odd_codes(uint32_t word) {
    return (word >> 2 & 0x1C1C1C1Cu) | (word & 0x80808080u);
}

/* ---- Scores ---- */

/* 2^(code - 127) of the scales of an entry. */
static __device__ __forceinline__ float4 scales_of(uint32_t codes) {
    const uint32_t exponent = 0x7F800000u;
    return make_float4(__uint_as_float(codes << 23 & exponent),
                       __uint_as_float(codes << 15 & exponent),
                       __uint_as_float(codes << 7 & exponent),
                       __uint_as_float(codes >> 1 & exponent));
}

/* A tile's codes as they are stored: of block b a lane's words of entries g and g + 8. */
typedef struct tile_words {
    uint32_t low[KEY_BLOCKS], high[KEY_BLOCKS];
} tile_words;
/* at: in the slot, of this lane's piece (key_place of entry lane % 8 and block lane / 8) of the
 * tile. */
static __device__ __forceinline__ tile_words load_tile(uint32_t at) {
    tile_words w;
    static_assert(KEY_BLOCKS == 4, "four matrices are four blocks");
    load_matrices(at, w.low);
    load_matrices(at + 8 * KEY_BYTES, w.high);
    return w;
}

/* The sums over a block: of entries g and g + 8 in d[..][4 j ..] and d[..][4 j + 2 ..], heads 8 j +
 * 2 t and the next. queries: the lower word of their descriptor. */
static __device__ __forceinline__ void begin_tile(const tile_words &w, uint32_t queries,
                                                  float (&d)[KEY_BLOCKS][16]) {
    uint32_t a[KEY_BLOCKS][4];
#pragma unroll
    for (int b = 0; b < KEY_BLOCKS; b++) {
        a[b][0] = even_codes(w.low[b]), a[b][1] = even_codes(w.high[b]);
        a[b][2] = odd_codes(w.low[b]), a[b][3] = odd_codes(w.high[b]);
    }
    const uint64_t upper = descriptor_k(0) >> 32 << 32;
    products_begin();
#pragma unroll
    for (int b = 0; b < KEY_BLOCKS; b++)
        product_codes(d[b], a[b], queries + static_cast<uint32_t>(32 * b / 16) | upper);
    products_commit();
}

/* The scores of entries g and g + 8 of a tile; in all lanes of a quad. scales: shared, of the
 * tile's. APART: the queries' blocks have their factors in `apart`. weights: of heads 8 j + 2 t and
 * the next. */
template <bool APART>
static __device__ __forceinline__ float2 join_tile(const float (*scales)[KEY_BLOCKS],
                                                   float (&d)[KEY_BLOCKS][16],
                                                   const float (*apart)[KEY_BLOCKS],
                                                   const uint32_t (&weights)[HEAD_TILES]) {
    int32_t g = lane_id() / 4, t = lane_id() % 4;
    float4 first = *reinterpret_cast<const float4 *>(scales[g]);
    float4 second = *reinterpret_cast<const float4 *>(scales[g + 8]);
    const float low[KEY_BLOCKS] = {first.x, first.y, first.z, first.w};
    const float high[KEY_BLOCKS] = {second.x, second.y, second.z, second.w};
    float dot[16], sum[4] = {};
    if (APART)
#pragma unroll
        for (int b = 0; b < KEY_BLOCKS; b++)
#pragma unroll
            for (int i = 0; i < 16; i++) d[b][i] *= apart[8 * (i / 4) + 2 * t + i % 2][b];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float(&scale)[KEY_BLOCKS] = i % 4 < 2 ? low : high;
        dot[i] = d[0][i] * scale[0];
#pragma unroll
        for (int b = 1; b < KEY_BLOCKS; b++) dot[i] = fmaf(d[b][i], scale[b], dot[i]);
    }
#pragma unroll
    for (int j = 0; j < HEAD_TILES; j += 2) { /* a head's term, then the sum of 16 heads */
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float *of = dot + 4 * (j + i);
            a[2 * i] = mul_pair(relu_pair(of[0], of[1]), weights[j + i]);
            a[2 * i + 1] = mul_pair(relu_pair(of[2], of[3]), weights[j + i]);
        }
        mma_bf16(sum, a, ONES, ONES);
    }
    return make_float2(sum[0], sum[2]);
}

/* Its score: of those of both tiles. */
static __device__ __forceinline__ float stored_score(float2 first, float2 second) {
    float2 of = lane_id() % 4 < 2 ? first : second;
    return lane_id() % 2 == 0 ? of.x : of.y;
}
/* Writes an entry's key, and counts it if it may be taken. */
static __device__ __forceinline__ void store_score(float score, bool counts, uint16_t *to,
                                                   uint32_t *bins) {
    uint32_t key = counts ? half_key(bf16_bits(score)) : 0;
    *to = static_cast<uint16_t>(key);
    if (key != 0) atomicAdd(&bins[key / LOW], 1u);
}

/* ---- The strips of a row that a block takes ---- */

/* All turns of a run, the first of which have been fetched. keys: the row's; those of whole strips
 * are written, 0 where the list has none. */
template <bool APART, typename Tiles>
static __device__ __forceinline__ void score_tiles(Tiles &tiles, const tile_run &run,
                                                   score_shared *shared, uint16_t *keys) {
    const uint32_t queries =
        static_cast<uint32_t>(descriptor_k(shared_address(shared->query.codes)));
    uint32_t weights[HEAD_TILES];
    float(*scales)[KEY_BLOCKS] = shared->scales[warp_id()];
    uint32_t words = held(static_cast<uint32_t>(key_place(lane_id() % 8, lane_id() / 8)));
    int32_t at = run.first + stored_entry();
    uint16_t *to = keys + at;
#pragma unroll
    for (int j = 0; j < HEAD_TILES; j++)
        weights[j] =
            reinterpret_cast<const uint32_t *>(shared->query.weights)[4 * j + lane_id() % 4];
#pragma unroll 1
    for (int32_t i = 0; i < run.n; i++) {
        float d[KEY_BLOCKS][16];
        uint32_t slot = run.slots + static_cast<uint32_t>(i) % STAGES * sizeof(key_slot);
        copies_wait<STAGES - 2>();
        __syncwarp();
        begin_tile(load_tile(slot + words), queries, d);
        tile_words second = load_tile(slot + words + TILE * KEY_BYTES);
        uint32_t codes = load_shared_32(slot + static_cast<uint32_t>(offsetof(key_slot, scales)) +
                                        4 * static_cast<uint32_t>(lane_id()));
        *reinterpret_cast<float4 *>(scales[lane_id()]) = scales_of(codes);
        bool counts = tiles.counts(at, slot);
        tiles.fetch(i + STAGES - 1); /* where those of the turn before this one were */
        copies_commit();
        __syncwarp();
        products_wait<0>();
#pragma unroll
        for (int b = 0; b < KEY_BLOCKS; b++) hold(d[b]);
        float2 first_scores = join_tile<APART>(scales, d, shared->query.apart, weights);
#pragma unroll
        for (int b = 0; b < KEY_BLOCKS; b++) hold(d[b]);
        begin_tile(second, queries, d);
        products_wait<0>();
#pragma unroll
        for (int b = 0; b < KEY_BLOCKS; b++) hold(d[b]);
        float2 second_scores = join_tile<APART>(scales + TILE, d, shared->query.apart, weights);
        store_score(stored_score(first_scores, second_scores), counts, to, shared->bins);
        at += TURN_STEP, to += TURN_STEP;
    }
    copies_wait<0>();
}

/* Row r's queries into shared memory; all threads, after a barrier, and there is one in the end.
 * Returns whether a head has its factors apart. */
static __device__ __forceinline__ bool share_query(const index_pass &pass, score_shared *shared,
                                                   int32_t r) {
    const float *apart = pass.queries[r].apart[0];
    float factor = threadIdx.x < INDEX_HEADS * KEY_BLOCKS ? apart[threadIdx.x] : 1.0f;
    const uint4 *from = reinterpret_cast<const uint4 *>(pass.queries + r);
    uint4 *to = reinterpret_cast<uint4 *>(&shared->query);
    for (uint32_t i = threadIdx.x; i < sizeof(index_query) / 16; i += INDEX_THREADS)
        to[i] = from[i];
    shared_for_products();
    return __syncthreads_count(factor != 1.0f) > 0;
}

/* Both kinds: keys are on their way before the queries are there, of which the kernel before makes
 * the first. */
template <typename Tiles>
static __device__ __forceinline__ void score_list(const index_pass &pass, Tiles &tiles,
                                                  const tile_run &run, score_shared *shared,
                                                  int32_t r) {
    uint16_t *keys = pass.keys + r * pass.stride;
    for (int32_t i = 0; i < STAGES - 1; i++) {
        tiles.fetch(i);
        copies_commit();
    }
    await_kernels_before();
    if (share_query(pass, shared, r))
        score_tiles<true>(tiles, run, shared, keys);
    else
        score_tiles<false>(tiles, run, shared, keys);
}

/* The strips of one row that are this block's: warpgroups take them in turn. All warps of a group
 * go through the same number of strips. All threads, after a barrier. */
template <bool ALIGNED>
static __device__ void score_strips(const di_index_select_args &args, const index_pass &pass,
                                    score_shared *shared, int32_t r, int32_t begin, int32_t end) {
    int32_t group = warp_id() / (GROUP / WARP);
    key_finder f = finder_of(args, pass, r);
    key_slot *slots = shared->slots[warp_id()];
    tile_run run;
    run.n = ceil_div(end - begin - group, INDEX_GROUPS);
    run.first = (begin + group - shared->starts[r]) * STRIP + warp_id() % (GROUP / WARP) * PAIR;
    run.slots = held(shared_address(slots));
    if (ALIGNED && f.blocks == NULL && (1 << f.page_bits) >= PAIR) {
        running_tiles tiles(args, run, f);
        score_list(pass, tiles, run, shared, r);
    } else {
        listed_tiles<ALIGNED> tiles(args, run, f, slots);
        score_list(pass, tiles, run, shared, r);
    }
}

/* Adds the block's counts to a list's, and clears them; all threads, before and after a barrier. */
static __device__ void flush_bins(uint32_t *bins, int32_t *out) {
#pragma unroll
    for (int32_t turn = 0; turn < BINS / 4 / INDEX_THREADS; turn++) {
        int32_t at = 4 * (turn * INDEX_THREADS + static_cast<int32_t>(threadIdx.x));
        uint4 v = *reinterpret_cast<const uint4 *>(bins + at);
        uint32_t n[4] = {v.x, v.y, v.z, v.w};
        if ((v.x | v.y | v.z | v.w) == 0) continue;
        for (int i = 0; i < 4; i++)
            if (n[i] != 0) atomicAdd(out + at + i, static_cast<int32_t>(n[i]));
        *reinterpret_cast<uint4 *>(bins + at) = make_uint4(0, 0, 0, 0);
    }
}

template <bool ALIGNED>
static __global__ __launch_bounds__(INDEX_THREADS,
                                    2) void index_scores_kernel(di_index_select_args args,
                                                                index_pass pass) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t shared_bytes[];
    uint32_t off = -shared_address(shared_bytes) & 1023u;
    score_shared *shared = reinterpret_cast<score_shared *>(shared_bytes + off);
    let_kernels_begin();
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < BINS; i += INDEX_THREADS)
        shared->bins[i] = 0;
    if (threadIdx.x < INDEX_ROWS / 32) shared->ended[threadIdx.x] = 0;
    plan_strips(args, pass, shared->starts);
    index_share share = take_share(shared->starts, pass.n_rows, 0, 1);
    for (int32_t r = share.list; share.begin < share.end; r++) {
        int32_t end = shared->starts[r + 1] < share.end ? shared->starts[r + 1] : share.end;
        if (end <= share.begin) continue;
        score_strips<ALIGNED>(args, pass, shared, r, share.begin, end);
        __syncthreads();
        flush_bins(shared->bins, pass.bins + r * BINS);
        __syncthreads();
        if (is_whole(args, pass, r) &&
            last_pieces(pass.done + r, end - share.begin,
                        shared->starts[r + 1] - shared->starts[r]) &&
            threadIdx.x == 0)
            shared->ended[r / 32] |= 1u << r % 32;
        share.begin = end;
    }
    await_kernels_before(); /* who had no strips */
    __syncthreads();
    /* Only now: scoring needs no registers any more, nor the slots. */
    pick_memory memory = {reinterpret_cast<uint16_t *>(shared->slots), shared->hits, shared->bins};
    for (int32_t i = 0; i < ceil_div(pass.n_rows, 32); i++)
        for (uint32_t rows = shared->ended[i]; rows != 0; rows &= rows - 1)
            pick_row(args, pass, 32 * i + __ffs(static_cast<int>(rows)) - 1, memory);
#endif
}

#endif
