/* The best of the keys that index_score.cuh made, of lists that it has not picked from: blocks,
 * then picks in increasing number. */
#ifndef DI_KERNELS_CUDA_INDEX_PICK_CUH
#define DI_KERNELS_CUDA_INDEX_PICK_CUH

#include "kernels/cuda/index_score.cuh"

/* ---- Blocks ---- */

static constexpr int PARTS = 2, PART = CHUNK_KEYS / PARTS; /* blocks of a turn: one a thread */
static_assert(PART == INDEX_THREADS, "a block of entries is a thread's");

static __global__
__launch_bounds__(INDEX_THREADS) void index_blocks_kernel(di_index_select_args args,
                                                          index_pass pass) {
    __shared__ uint32_t bins[BINS];
    __shared__ int32_t starts[2 * INDEX_ROWS + 1];
    let_kernels_begin();
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < BINS; i += INDEX_THREADS) bins[i] = 0;
    await_kernels_before();
    plan_chunks(args, pass, starts);
    index_share share = take_share(starts, pass.lists, pass.n_rows, PARTS);
    for (int32_t list = share.list; share.begin < share.end; list++) {
        int32_t r = list - pass.n_rows, visible = visible_entries(args, pass.first + r);
        int32_t n = ceil_div(visible, args.block_size), first = starts[list] * PARTS;
        int32_t end = starts[list + 1] * PARTS;
        if (share.end < end) end = share.end;
        if (end <= share.begin) continue;
        for (int32_t part = share.begin; part < end; part++) {
            int32_t b = (part - first) * PART + static_cast<int32_t>(threadIdx.x);
            if (b >= ceil_div(n, 8) * 8) continue; /* keys are read by eights */
            uint32_t key = 0;
            if (b < n) key = block_key(pass.keys + r * pass.stride, b, args.block_size, visible);
            pass.block_keys[r * pass.block_stride + b] = static_cast<uint16_t>(key);
            if (key != 0) atomicAdd(&bins[key / LOW], 1u);
        }
        __syncthreads();
        flush_bins(bins, pass.bins + list * BINS);
        __syncthreads();
        share.begin = end;
    }
}

/* ---- Hits: eights of keys that have one of the last bin or above it, few of many ---- */

/* Of a list the eights begin .. end - 1: those that are hits go to `out` in order, and keys of the
 * last bin (find_bin) are counted to low [LOW], shared, by their lower bits. Returns how many hits
 * there are. All threads, after a barrier; what others counted is there after the next one. */
static __device__ int32_t collect_hits(const uint16_t *keys, int32_t begin, int32_t end,
                                       last_bin found, int32_t *out, int32_t *low) {
    const int EACH = 4;
    const uint32_t least = least_key(found);
    int32_t n = 0;
    for (; begin < end; begin += EACH * INDEX_THREADS) {
        uint4 v[EACH];
        uint32_t lanes[EACH];
        int32_t first = begin + EACH * WARP * warp_id(), mine = 0, all;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int32_t eight = first + WARP * i + lane_id();
            v[i] = make_uint4(0, 0, 0, 0);
            if (eight < end) v[i] = reinterpret_cast<const uint4 *>(keys)[eight];
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            lanes[i] = __ballot_sync(ALL_LANES, is_hit(v[i], least));
            mine += __popc(lanes[i]);
        }
        int32_t at = n + sum_before(lane_id() == 0 ? mine : 0, &all);
        at = __shfl_sync(ALL_LANES, at, 0);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            uint32_t before = lanes[i] & ((1u << lane_id()) - 1);
            if ((lanes[i] >> lane_id() & 1u) != 0) {
                out[at + __popc(before)] = first + WARP * i + lane_id();
                (void)count_keys(v[i], found.x, low);
            }
            at += __popc(lanes[i]);
        }
        n += all;
    }
    return n;
}

/* ---- Picks of a list from its hits, by one block ---- */

static constexpr int MOST_BLOCKS = 2 * INDEX_THREADS; /* of a grid */
/* Hits that a thread asks for at once, and of a turn: two blocks find room on a processor. */
static constexpr int HITS_AHEAD = 8, HITS = 2 * HITS_AHEAD * INDEX_THREADS;

typedef struct hit_memory {
    uint4 keys[HITS];
    int32_t eights[HITS];
    int32_t starts[MOST_BLOCKS]; /* the first of the hits that each block found */
    int32_t places[MOST_BLOCKS]; /* hit i of them is list.hits[places + i] */
    taken_keys picks[INDEX_WARPS];
} hit_memory;
static_assert(2 * (sizeof(hit_memory) + sizeof(int32_t[2 * INDEX_ROWS + 1]) + 2048) <= 226 * 1024,
              "two blocks on a processor; each with the starts of lists, and a little");

/* A list whose hits are there: its chunks, those of all lists, and where hits and keys lie. */
typedef struct hit_list {
    int32_t first, last, each, all; /* its chunks first .. last - 1 of `all`, of so many keys */
    const uint16_t *keys;
    const int32_t *hits; /* those of a block from the place of its first eight on */
} hit_list;
static __device__ __forceinline__ int32_t block_chunk(const hit_list &list, int32_t block) {
    return min(list.last, max(list.first, share_begin(0, list.all, block)));
}

/* Where the hits of all blocks begin and lie; returns their number. n: by a block's first chunk. */
static __device__ int32_t sum_hits(const hit_list &list, const int32_t *n, hit_memory *m) {
    int32_t base = 0, sum;
    for (int32_t turn = 0; turn < MOST_BLOCKS; turn += INDEX_THREADS) {
        int32_t b = turn + static_cast<int32_t>(threadIdx.x), first = list.last, mine = 0;
        if (b < static_cast<int32_t>(gridDim.x)) {
            first = block_chunk(list, b);
            if (first < block_chunk(list, b + 1)) mine = n[first];
        }
        int32_t start = base + sum_before(mine, &sum);
        m->starts[b] = start;
        m->places[b] = (first - list.first) * (list.each / 8) - start;
        base += sum;
    }
    return base;
}

/* Hits from `base` on, n of them, into shared memory; there is a barrier before and after. */
static __device__ void load_hits(const hit_list &list, int32_t base, int32_t n, hit_memory *m) {
    const uint4 *keys = reinterpret_cast<const uint4 *>(list.keys);
    __syncthreads();
    for (int32_t first = static_cast<int32_t>(threadIdx.x); first < n;
         first += HITS_AHEAD * INDEX_THREADS) {
        int32_t b[HITS_AHEAD], hit[HITS_AHEAD], eights[HITS_AHEAD];
        uint4 v[HITS_AHEAD];
#pragma unroll
        for (int i = 0; i < HITS_AHEAD; i++)
            b[i] = 0, hit[i] = base + min(first + i * INDEX_THREADS, n - 1);
#pragma unroll
        for (int32_t step = MOST_BLOCKS / 2; step > 0; step /= 2)
#pragma unroll
            for (int i = 0; i < HITS_AHEAD; i++) /* the last block that begins at or before it */
                if (m->starts[b[i] + step] <= hit[i]) b[i] += step;
#pragma unroll
        for (int i = 0; i < HITS_AHEAD; i++) eights[i] = list.hits[m->places[b[i]] + hit[i]];
#pragma unroll
        for (int i = 0; i < HITS_AHEAD; i++) v[i] = keys[eights[i]];
#pragma unroll
        for (int i = 0; i < HITS_AHEAD; i++) {
            int32_t to = first + i * INDEX_THREADS;
            if (to < n) m->eights[to] = eights[i], m->keys[to] = v[i];
        }
    }
    __syncthreads();
}

/* Keys of an eight: what of them is taken, all ties included. */
static __device__ __forceinline__ taken_keys count_taken(uint4 keys, const pick_rule &rule) {
    uint32_t key[8];
    taken_keys n = make_int2(0, 0);
    split_keys(keys, key);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        n.x += key[i] > rule.last;
        n.y += key[i] == rule.last && rule.low >= 0;
    }
    return n;
}

/* Writes what hits in shared memory, n of them, add to a list; `before`: what stands before them.
 * Returns that with theirs. */
static __device__ taken_keys write_hits(const pick_rule &rule, const pick_list &to, hit_memory *m,
                                        int32_t n, taken_keys before) {
    int32_t each = ceil_div(n, INDEX_THREADS) * WARP; /* of a warp: whole turns of it */
    int32_t first = min(n, warp_id() * each), end = min(n, first + each);
    taken_keys mine = make_int2(0, 0), mine_before = before;
    for (int32_t i = first + lane_id(); i < end; i += WARP) {
        taken_keys here = count_taken(m->keys[i], rule);
        mine.x += here.x, mine.y += here.y;
    }
    mine.x = warp_sum(mine.x), mine.y = warp_sum(mine.y);
    if (lane_id() == 0) m->picks[warp_id()] = mine;
    __syncthreads();
    for (int i = 0; i < INDEX_WARPS; i++) {
        taken_keys of = m->picks[i];
        if (i < warp_id()) mine_before.x += of.x, mine_before.y += of.y;
        before.x += of.x, before.y += of.y;
    }
    for (; first < end; first += WARP) {
        int32_t i = first + lane_id();
        uint4 keys = i < end ? m->keys[i] : make_uint4(0, 0, 0, 0);
        mine_before = write_keys(rule, to, keys, i < end ? 8 * m->eights[i] : 0, mine_before);
    }
    __syncthreads();
    return before;
}

/* All threads of a block, before and after a barrier. n: how many hits blocks found. */
static __device__ void pick_hits(const hit_list &list, const int32_t *n, const pick_rule &rule,
                                 const pick_list &to, hit_memory *m) {
    int32_t all = sum_hits(list, n, m);
    taken_keys before = make_int2(0, 0);
    for (int32_t base = 0; base < all; base += HITS) {
        load_hits(list, base, min(HITS, all - base), m);
        before = write_hits(rule, to, m, min(HITS, all - base), before);
    }
}

/* Every block looks for hits in its share of all long lists; the last one that does so in a list
 * picks from them. */
static __global__ __launch_bounds__(INDEX_THREADS) void index_pick_kernel(di_index_select_args args,
                                                                          index_pass pass) {
    __shared__ int32_t starts[2 * INDEX_ROWS + 1], low[LOW];
    extern __shared__ __align__(16) uint8_t hit_bytes[]; /* hit_memory */
    int32_t x = static_cast<int32_t>(threadIdx.x);
    begin_early();
    if (x < LOW) low[x] = 0;
    plan_chunks(args, pass, starts);
    index_share share = take_share(starts, pass.lists, 0, 1);
    for (int32_t i = share.list; share.begin < share.end; i++) {
        int32_t first = starts[i], last = starts[i + 1], end = min(last, share.end);
        if (end <= share.begin) continue;
        int32_t size = list_size(args, pass, i), each = list_chunk(pass, i, size);
        hit_list list =
            {first, last, each, starts[pass.lists], list_keys(pass, i), list_hits(pass, i)};
        int32_t begin = (share.begin - first) * (each / 8);
        int32_t stop = min(ceil_div(size, 8), (end - first) * (each / 8));
        last_bin found = find_bin(pass.bins + i * BINS, list_k(args, pass, i));
        int32_t n = collect_hits(list.keys, begin, stop, found, list_hits(pass, i) + begin, low);
        int32_t *lows = pass.low + i * LOW;
        if (x == 0) pass.n_hits[share.begin] = n;
        __syncthreads();
        if (x < LOW && low[x] != 0) atomicAdd(lows + x, low[x]);
        if (last_pieces(pass.done + i, end - share.begin, last - first)) {
            if (x < LOW) low[x] = lows[x];
            __syncthreads();
            pick_hits(list, pass.n_hits, rule_of(found, low), picks_of(args, pass, i),
                      reinterpret_cast<hit_memory *>(hit_bytes));
        }
        __syncthreads();
        if (x < LOW) low[x] = 0; /* find_bin has barriers */
        share.begin = end;
    }
}

#endif
