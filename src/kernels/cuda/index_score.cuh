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

#include "kernels/cuda/index_query.cuh"
#include "kernels/cuda/index_whole.cuh"

static constexpr int TILE = 16, PAIR = 2 * TILE; /* entries of a product of a warp, and of a turn */
static_assert(PAIR == STRIP / (GROUP / WARP) && PAIR == WARP, "a lane an entry");
static constexpr int STAGES = 4, INDEX_GROUPS = INDEX_THREADS / GROUP;
static constexpr int KEY_BYTES = INDEX_DIM / 2;
static constexpr int HEAD_TILES = INDEX_HEADS / 8;
static constexpr uint32_t ONES = 0x3F803F80u; /* bf16, twice */

/* A warp's entries on their way: the 16 bytes of block b of entry e at key_place, its four scales,
 * and of listed tiles which entries there are, bit by bit. */
typedef struct key_slot {
    uint8_t codes[PAIR * KEY_BYTES];
    uint32_t scales[PAIR];
    uint32_t there, unused[3];
} key_slot;
typedef struct score_shared { /* from a multiple of 1024 bytes on */
    index_query query;
    key_slot slots[INDEX_WARPS][STAGES]; /* then the keys that are picked from */
    float scales[INDEX_WARPS][PAIR][KEY_BLOCKS];
    uint32_t bins[BINS];
    uint16_t hits[WHOLE_LIST / 8];
    int32_t starts[INDEX_ROWS + 1];
    uint32_t ended[INDEX_ROWS / 32]; /* a bit for each row that this block is to pick from */
} score_shared;
static_assert(sizeof(key_slot) % 16 == 0, "copied to by pieces of 16 bytes");
static_assert(sizeof(key_slot) * INDEX_WARPS * STAGES >= WHOLE_LIST * sizeof(uint16_t),
              "a whole list where the slots were");

/* Eight entries' pieces of one block lie in different banks. */
static __device__ __forceinline__ int32_t key_place(int32_t entry, int32_t block) {
    return entry * KEY_BYTES + ((block ^ (entry >> 1 & 3)) << 4);
}

/* x, kept in a register: the compiler would rather make it anew in every turn of a loop. */
static __device__ __forceinline__ uint32_t kept(uint32_t x) {
    return __shfl_sync(ALL_LANES, x, lane_id());
}
template <typename T> static __device__ __forceinline__ T *kept(T *p) {
    uint64_t x = reinterpret_cast<uint64_t>(p);
    uint64_t high = kept(static_cast<uint32_t>(x >> 32));
    return reinterpret_cast<T *>(high << 32 | kept(static_cast<uint32_t>(x)));
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

/* Eight e2m1 codes as E4M3, 2^6 too small: the even ones, the odd ones. */
static __device__ __forceinline__ uint32_t even_codes(uint32_t word) {
    return (word << 2 & 0x1C1C1C1Cu) | (word << 4 & 0x80808080u);
}
static __device__ __forceinline__ uint32_t odd_codes(uint32_t word) {
    return (word >> 2 & 0x1C1C1C1Cu) | (word & 0x80808080u);
}

/* ---- The keys of strips, on their way ---- */

/* What a warp asks for in advance, a lane an entry of its part of a strip. Three links: the number
 * of the candidate block, that of the page, the key. */
typedef struct key_finder {
    const int32_t *blocks; /* of the row's list, or NULL: the list is all entries */
    const int32_t *table;
    const uint8_t *codes, *scales; /* of entry 0 of page 0 */
    int32_t size, visible;         /* of the list, entries */
    int32_t size_bits, page_bits;  /* blocks of 1 << size_bits entries; -1: another size */
} key_finder;

static __device__ __forceinline__ key_finder finder_of(const di_index_select_args &args,
                                                       const index_pass &pass, int32_t r) {
    const di_pages &p = args.pages;
    int64_t t = pass.first + r;
    int32_t slot = cuda_at<const di_row>(args.batch.rows)[t].slot;
    key_finder f;
    f.blocks = args.candidate_mode == DI_CANDIDATES_USE
                   ? cuda_at<const int32_t>(args.candidates) + t * args.top_blocks
                   : NULL;
    f.table = cuda_at<const int32_t>(p.table) + static_cast<int64_t>(slot) * p.table_stride;
    f.codes = cuda_at<const uint8_t>(p.pool) + p.key_codes;
    f.scales = cuda_at<const uint8_t>(p.pool) + p.key_scales;
    f.size = list_size(args, pass, r);
    f.visible = visible_entries(args, t);
    f.page_bits = 6 - (__ffs(p.ratio) - 1);
    int32_t size = args.block_size;
    f.size_bits = size > 0 && (size & (size - 1)) == 0 ? __ffs(size) - 1 : -1;
    return f;
}

/* Link 1, of a place in the list; -1 or what link 2 takes. */
static __device__ __forceinline__ int32_t find_block(const key_finder &f, int32_t block_size,
                                                     int32_t place) {
    if (place >= f.size) return -1;
    if (f.blocks == NULL) return 0;
    return f.blocks[f.size_bits >= 0 ? place >> f.size_bits : place / block_size];
}
/* The entry, -1: none. */
static __device__ __forceinline__ int32_t entry_of(const key_finder &f, int32_t block_size,
                                                   int32_t place, int32_t block) {
    if (f.blocks == NULL) return block < 0 || place >= f.visible ? -1 : place;
    int32_t of = f.size_bits >= 0 ? place & (block_size - 1) : place % block_size;
    int32_t entry = block * block_size + of;
    return block >= 0 && entry < f.visible ? entry : -1;
}

/* Link 3: codes and scales into a slot; a lane's entry, and its page. ALIGNED: pieces of 16 and
 * scales of 4 bytes lie at such addresses and all of INDEX_DIM is there. */
template <bool ALIGNED>
static __device__ __forceinline__ void fetch_entries(const di_pages &p, const key_finder &f,
                                                     int32_t entry, int32_t page, key_slot *slot) {
    uint32_t lane = static_cast<uint32_t>(lane_id()), block = lane % 4;
    uint32_t dim = ALIGNED ? INDEX_DIM : static_cast<uint32_t>(p.di);
    uint32_t place = static_cast<uint32_t>(entry) & ((1u << f.page_bits) - 1);
    uint64_t at =
        static_cast<uint64_t>(static_cast<uint32_t>(page)) * static_cast<uint32_t>(p.page_bytes);
    uint64_t mine = at + place * (dim / 2); /* of the lane's own entry */
    uint32_t there = __ballot_sync(ALL_LANES, entry >= 0);
    int32_t to = key_place(static_cast<int32_t>(lane / 4), static_cast<int32_t>(block));
#pragma unroll
    for (uint32_t e = 0; e < PAIR; e += 8) { /* and lane / 4 */
        int from_lane = static_cast<int>(e + lane / 4);
        const uint8_t *from = f.codes + __shfl_sync(ALL_LANES, mine, from_lane) + 16 * block;
        uint8_t *piece = slot->codes + to + e * KEY_BYTES;
        bool wanted = (there >> from_lane & 1u) != 0 && 32 * block < dim;
        if (ALIGNED) {
            copy_16(piece, from, wanted ? 16 : 0);
        } else {
            uint32_t words[4] = {0, 0, 0, 0};
            if (wanted) load_words<4>(from, words);
            *reinterpret_cast<uint4 *>(piece) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
    const uint8_t *from = f.scales + at + place * (dim / 32);
    if (ALIGNED) {
        copy_4(&slot->scales[lane], from, entry >= 0 ? 4 : 0);
    } else {
        uint32_t scale = 0;
        if (entry >= 0)
            for (uint32_t i = 0; i < dim / 32; i++)
                scale |= static_cast<uint32_t>(from[i]) << (8 * i);
        slot->scales[lane] = scale;
    }
    if (lane == 0) slot->there = there;
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

/* Which of a turn's entries a lane writes. */
static __device__ __forceinline__ int32_t stored_entry() {
    return lane_id() / 4 + 8 * (lane_id() % 4);
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

/* ---- The strips of a row that a block takes, two kinds of lists ---- */

/* A warp's way through its pairs of tiles: of strips begin .. of row r, which warpgroups take in
 * turn. */
typedef struct tile_run {
    int32_t n, first; /* turns, and the first place in the list of turn 0 */
    uint32_t slots;   /* shared address of STAGES slots */
} tile_run;
static constexpr int TURN_STEP = INDEX_GROUPS * STRIP; /* from one turn to the next */

/* Entries of a list of published blocks, or whose keys lie anyhow: each has its own address. */
template <bool ALIGNED> struct listed_tiles {
    const di_index_select_args &args;
    const tile_run &run;
    key_finder f;
    key_slot *slots;
    int32_t block, entry, page;

    __device__ __forceinline__ int32_t place(int32_t i) const {
        return run.first + i * TURN_STEP + lane_id();
    }
    __device__ __forceinline__ int32_t block_at(int32_t i) const {
        return i < run.n ? find_block(f, args.block_size, place(i)) : -1;
    }
    __device__ __forceinline__ int32_t page_of(int32_t of) const {
        return of < 0 ? 0 : f.table[of >> f.page_bits];
    }
    __device__ __forceinline__ listed_tiles(const di_index_select_args &a, const tile_run &tiles,
                                            const key_finder &finder, key_slot *memory)
        : args(a), run(tiles), f(finder), slots(memory) {
        block = block_at(0);
        entry = entry_of(f, args.block_size, place(0), block);
        page = page_of(entry);
        block = block_at(1);
    }
    /* Fetches what turn i takes, asks for what is ahead of it. */
    __device__ __forceinline__ void fetch(int32_t i) {
        int32_t next = entry_of(f, args.block_size, place(i + 1), block), next_page = page_of(next);
        block = block_at(i + 2);
        fetch_entries<ALIGNED>(args.pages, f, entry, page,
                               slots + static_cast<uint32_t>(i) % STAGES);
        entry = next, page = next_page;
    }
    /* Whether this lane's entry of a turn, at a place of the list, may be taken. slot: the
     * turn's. */
    __device__ __forceinline__ bool counts(int32_t, uint32_t slot) const {
        uint32_t there = load_shared_32(slot + static_cast<uint32_t>(offsetof(key_slot, there)));
        return (there >> stored_entry() & 1u) != 0;
    }
};

/* Entries of a list of all visible ones: those of a turn are part of one page, where their keys lie
 * one behind the other. What lies behind the last visible entry may be read and is not counted. */
struct running_tiles {
    const int32_t *table; /* where the page of the next turn stands */
    const uint8_t *codes,
        *scales; /* of page 0, this lane's piece of a turn: the place is always one */
    uint32_t page_bytes, to, scales_to, slots; /* to: in a slot, where this lane's pieces go */
    int32_t page_step, n, visible, page;       /* n: turns with entries */

    __device__ __forceinline__ int32_t page_at(int32_t i) {
        int32_t of = i < n ? *table : 0;
        table += page_step;
        return of;
    }
    __device__ __forceinline__ running_tiles(const di_index_select_args &args, const tile_run &run,
                                             const key_finder &f)
        : table(f.table + (run.first >> f.page_bits)), slots(run.slots),
          page_step(TURN_STEP >> f.page_bits), visible(f.visible) {
        int32_t lane = lane_id(), place = run.first & ((1 << f.page_bits) - 1);
        static_assert(TURN_STEP % 64 == 0, "whole pages from one turn to the next");
        n = min(run.n, ceil_div(max(visible - run.first, 0), TURN_STEP));
        codes = f.codes + place * KEY_BYTES + 16 * lane;
        scales = f.scales + place * KEY_BLOCKS + 16 * (lane % 8);
        page_bytes = static_cast<uint32_t>(args.pages.page_bytes);
        to = kept(static_cast<uint32_t>(key_place(lane / 4, lane % 4)));
        scales_to = kept(static_cast<uint32_t>(offsetof(key_slot, scales)) + 16u * (lane % 8));
        page = page_at(0);
    }
    __device__ __forceinline__ void fetch(int32_t i) {
        uint32_t slot = slots + static_cast<uint32_t>(i) % STAGES * sizeof(key_slot);
        uint64_t from = static_cast<uint64_t>(static_cast<uint32_t>(page)) * page_bytes;
        page = page_at(i + 1);
        if (i >= n) return;
        const uint8_t *mine = codes + from;
#pragma unroll
        for (int e = 0; e < PAIR; e += 8) copy_16(slot + to + e * KEY_BYTES, mine + e * KEY_BYTES);
        if (to < 2 * KEY_BYTES) /* eight lanes: those of entries 0 and 1 */
            copy_16(slot + scales_to, scales + from);
    }
    __device__ __forceinline__ bool counts(int32_t place, uint32_t) const {
        return place < visible;
    }
};

/* All turns of a run, the first of which have been fetched. keys: the row's; those of whole strips
 * are written, 0 where the list has none. */
template <bool APART, typename Tiles>
static __device__ __forceinline__ void score_tiles(Tiles &tiles, const tile_run &run,
                                                   score_shared *shared, uint16_t *keys) {
    const uint32_t queries =
        static_cast<uint32_t>(descriptor_k(shared_address(shared->query.codes)));
    uint32_t weights[HEAD_TILES];
    float(*scales)[KEY_BLOCKS] = shared->scales[warp_id()];
    uint32_t words = kept(static_cast<uint32_t>(key_place(lane_id() % 8, lane_id() / 8)));
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
    run.slots = kept(shared_address(slots));
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
            is_last_of_row(pass.done + r, end - share.begin,
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
