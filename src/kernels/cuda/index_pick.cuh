/* The best of the keys that index_score.cuh made: blocks, counts, then picks in increasing number.
 */
#ifndef DI_KERNELS_CUDA_INDEX_PICK_CUH
#define DI_KERNELS_CUDA_INDEX_PICK_CUH

#include "kernels/cuda/index_score.cuh"

/* ---- Blocks ---- */

static constexpr int PARTS = 2, PART = CHUNK_KEYS / PARTS; /* blocks of a turn: one a thread */
static_assert(PART == INDEX_THREADS, "a block of entries is a thread's");

/* The key of block b: of its best entry; the newest one's is that of infinity. */
static __device__ __forceinline__ uint32_t block_key(const uint16_t *keys, int32_t b, int32_t size,
                                                     int32_t visible) {
    uint32_t best = 0;
    int32_t begin = b * size, end = visible - begin < size ? visible : begin + size;
    if (b == (visible - 1) / size) return half_key(INFINITY);
    if (size == 8) { /* rows of keys begin at multiples of 16 bytes */
        uint4 v = *reinterpret_cast<const uint4 *>(keys + begin);
        uint32_t words[4] = {v.x, v.y, v.z, v.w};
        for (int i = 0; i < 4; i++) best = max(best, max(words[i] & 0xFFFFu, words[i] >> 16));
        return best;
    }
    for (int32_t j = begin; j < end; j++) best = max(best, static_cast<uint32_t>(keys[j]));
    return best;
}

static __global__
__launch_bounds__(INDEX_THREADS) void index_blocks_kernel(di_index_select_args args,
                                                          index_pass pass) {
    __shared__ uint32_t bins[BINS];
    __shared__ int32_t starts[2 * INDEX_ROWS + 1];
    let_kernels_begin();
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < BINS; i += INDEX_THREADS) bins[i] = 0;
    await_kernels_before();
    index_share share = take_share(pass.chunks, pass.lists, pass.n_rows, PARTS, starts);
    for (int32_t list = share.list; share.begin < share.end; list++) {
        int32_t r = list - pass.n_rows, visible = visible_entries(args, pass.first + r);
        int32_t n = ceil_div(visible, args.block_size), first = starts[list] * PARTS;
        int32_t end = starts[list + 1] * PARTS;
        if (share.end < end) end = share.end;
        if (end <= share.begin) continue;
        for (int32_t part = share.begin; part < end; part++) {
            int32_t b = (part - first) * PART + static_cast<int32_t>(threadIdx.x);
            if (b >= n) continue;
            uint32_t key = block_key(pass.keys + r * pass.stride, b, args.block_size, visible);
            pass.block_keys[r * pass.block_stride + b] = static_cast<uint16_t>(key);
            if (key != 0) atomicAdd(&bins[key / LOW], 1u);
        }
        __syncthreads();
        flush_bins(bins, pass.bins + list * BINS);
        __syncthreads();
        share.begin = end;
    }
}

/* ---- The k-th key ---- */

/* The bin of the k-th largest key, and how many of that bin are among the k largest; (-1, 0) where
 * there are fewer. All threads of the block get it. */
static __device__ int2 find_bin(const int32_t *bins, int32_t k) {
    __shared__ int2 found;
    const int each = BINS / INDEX_THREADS;
    int32_t top = BINS - each * static_cast<int32_t>(threadIdx.x), all, sum = 0, mine[each];
    if (threadIdx.x == 0) found = make_int2(-1, 0); /* sum_before has barriers */
    const int4 *from = reinterpret_cast<const int4 *>(bins + top - each);
#pragma unroll
    for (int i = 0; i < each / 4; i++) {
        int4 v = from[i];
        mine[4 * i] = v.x, mine[4 * i + 1] = v.y, mine[4 * i + 2] = v.z, mine[4 * i + 3] = v.w;
    }
    for (int i = 0; i < each; i++) sum += mine[i];
    int32_t above = sum_before(sum, &all);
    if (above < k && above + sum >= k) {
#pragma unroll
        for (int i = each - 1; i >= 0; i--) {
            if (above + mine[i] >= k && above < k) found = make_int2(top - each + i, k - above);
            above += mine[i];
        }
    }
    __syncthreads();
    int2 result = found;
    __syncthreads(); /* before another call */
    return result;
}

/* Keys of a chunk as a warp holds them: 8 lane .. of every 8 WARP, two a word. Loaded together, and
 * before it is known what to do with them. */
static constexpr int KEY_LOADS = 4, KEYS_LOADED = KEY_LOADS * 8 * WARP;
typedef struct chunk_part {
    uint4 keys[KEY_LOADS];
} chunk_part;

/* Places begin .. of the list, of which those from `end` on are not looked at. */
static __device__ __forceinline__ chunk_part load_part(const uint16_t *keys, int32_t begin,
                                                       int32_t end) {
    chunk_part part;
#pragma unroll
    for (int i = 0; i < KEY_LOADS; i++) {
        int32_t place = begin + 8 * (WARP * i + lane_id());
        part.keys[i] = make_uint4(0, 0, 0, 0);
        if (place < end) part.keys[i] = *reinterpret_cast<const uint4 *>(keys + place);
    }
    return part;
}

/* The eight keys at `place`; those from `end` on are 0. */
static __device__ __forceinline__ void split_keys(uint4 v, int32_t place, int32_t end,
                                                  uint32_t *out) {
    uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t key = i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xFFFFu;
        out[i] = place + i < end ? key : 0;
    }
}

/* A part's keys above the bin, of this lane, and those in it by their lower bits. low: [LOW] in
 * shared memory, one for each warp. */
static __device__ __forceinline__ int32_t count_part(const chunk_part &part, int32_t begin,
                                                     int32_t end, int32_t bin, int32_t *low) {
    int32_t above = 0;
#pragma unroll
    for (int i = 0; i < KEY_LOADS; i++) {
        uint32_t key[8];
        int32_t place = begin + 8 * (WARP * i + lane_id());
        if (begin + 8 * WARP * i >= end) break;
        split_keys(part.keys[i], place, end, key);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int32_t of = static_cast<int32_t>(key[j] / LOW);
            above += key[j] != 0 && of > bin;
            if (key[j] != 0 && of == bin) atomicAdd(&low[key[j] % LOW], 1);
        }
    }
    return above;
}

static __global__
__launch_bounds__(INDEX_THREADS) void index_count_kernel(di_index_select_args args,
                                                         index_pass pass) {
    __shared__ int32_t starts[2 * INDEX_ROWS + 1], lows[INDEX_WARPS][LOW];
    int32_t lane = lane_id(), *low = lows[warp_id()];
    begin_early();
    index_share share = take_share(pass.chunks, pass.lists, 0, 1, starts);
    for (int32_t list = share.list; share.begin < share.end; list++) {
        int32_t end = starts[list + 1] < share.end ? starts[list + 1] : share.end;
        if (end <= share.begin) continue;
        int32_t size = list_size(args, pass, list), first = starts[list];
        int32_t each = list_chunk(pass, list, size), c = share.begin + warp_id();
        const uint16_t *keys = list_keys(pass, list);
        int32_t at = (c - first) * each, stop = c < end ? min(size, at + each) : 0;
        chunk_part part = load_part(keys, at, stop); /* on its way while the bin is found */
        int2 found = find_bin(pass.bins + list * BINS, list_k(args, pass, list));
        for (; c < end; c += INDEX_WARPS) {
            int32_t above = 0;
            if (lane < LOW) low[lane] = 0;
            __syncwarp();
            while (at < stop) {
                above += count_part(part, at, stop, found.x, low);
                at += KEYS_LOADED;
                if (at >= stop) { /* the next chunk of this warp */
                    int32_t next = c + INDEX_WARPS;
                    at = (next - first) * each;
                    int32_t until = next < end ? min(size, at + each) : 0;
                    part = load_part(keys, at, until);
                    stop = until;
                    break;
                }
                part = load_part(keys, at, stop);
            }
            above = warp_sum(above);
            __syncwarp();
            if (lane == 0) pass.counts[c] = above;
            if (lane < LOW) {
                pass.counts[(1 + lane) * pass.n_chunks + c] = low[lane];
                if (low[lane] != 0) atomicAdd(&pass.low[list * LOW + lane], low[lane]);
            }
            __syncwarp();
        }
        if (share.begin == first && threadIdx.x == 0) pass.found[list] = found;
        share.begin = end;
    }
}

/* ---- Picks ---- */

/* What is taken of a list: keys above `last`, and the first `ties` of that key. low: its lower bits;
 * -1: all keys are taken. */
typedef struct pick_rule {
    uint32_t last;
    int32_t low, ties;
} pick_rule;

static __device__ __forceinline__ pick_rule rule_of(const index_pass &pass, int32_t list) {
    int2 found = pass.found[list];
    pick_rule rule = {0, -1, 0};
    if (found.x < 0) return rule;
    int32_t missing = found.y;
    for (int32_t low = LOW - 1; low >= 0; low--) {
        int32_t n = pass.low[list * LOW + low];
        if (rule.low >= 0) continue;
        if (n >= missing)
            rule = pick_rule{static_cast<uint32_t>(found.x * LOW + low), low, missing};
        missing -= n;
    }
    return rule;
}

/* A chunk's keys that are larger than the last one taken, and equal to it. */
static __device__ __forceinline__ int2 chunk_picks(const index_pass &pass, const pick_rule &rule,
                                                   int32_t chunk) {
    int2 n = make_int2(pass.counts[chunk], 0);
    if (rule.low < 0) return n;
    for (int32_t low = rule.low + 1; low < LOW; low++)
        n.x += pass.counts[(1 + low) * pass.n_chunks + chunk];
    n.y = pass.counts[(1 + rule.low) * pass.n_chunks + chunk];
    return n;
}

/* Where a list's picks go, and what they are: places, or entries of the published blocks. */
typedef struct pick_list {
    int32_t *out;
    const int32_t *blocks; /* NULL: places */
    int32_t block_size;
} pick_list;
static __device__ __forceinline__ pick_list picks_of(const di_index_select_args &args,
                                                     const index_pass &pass, int32_t list) {
    bool of_blocks = list >= pass.n_rows;
    int64_t t = pass.first + (of_blocks ? list - pass.n_rows : list);
    int32_t *blocks = cuda_at<int32_t>(args.candidates) + t * args.top_blocks;
    pick_list to = {of_blocks ? blocks : cuda_at<int32_t>(args.picks) + t * args.top_k, NULL,
                    args.block_size};
    if (args.candidate_mode == DI_CANDIDATES_USE) to.blocks = blocks;
    return to;
}
static __device__ __forceinline__ int32_t picked_at(const pick_list &to, int32_t place) {
    if (to.blocks == NULL) return place;
    int32_t at = to.block_size == 8 ? place / 8 : place / to.block_size;
    return to.blocks[at] * to.block_size + (place - at * to.block_size);
}

/* The eight keys at `place` of a lane, two a word; 0 from `end` on. Returns `before`, larger and equal
 * keys that stand before the warp's first, with the warp's own. Not inlined: code is fetched too. */
static __device__ __noinline__ int2 write_keys(pick_rule rule, pick_list to, uint4 keys,
                                               int32_t place, int32_t end, int2 before) {
    uint32_t key[8];
    split_keys(keys, place, end, key);
    int32_t mine = 0; /* larger, and equal ones << 16 */
#pragma unroll
    for (int j = 0; j < 8; j++) {
        mine += key[j] > rule.last ? 1 : 0;
        mine += key[j] == rule.last && rule.low >= 0 ? 1 << 16 : 0;
    }
    int32_t upto = mine;
    for (int apart = 1; apart < WARP; apart *= 2) {
        int32_t y = __shfl_up_sync(ALL_LANES, upto, static_cast<uint32_t>(apart));
        if (lane_id() >= apart) upto += y;
    }
    int32_t all = __shfl_sync(ALL_LANES, upto, WARP - 1);
    int32_t larger = before.x + ((upto - mine) & 0xFFFF);
    int32_t equal = before.y + ((upto - mine) >> 16);
    for (int j = 0; j < 8 && mine != 0; j++) {
        bool is_last = key[j] == rule.last && rule.low >= 0;
        if (key[j] > rule.last || (is_last && equal < rule.ties)) {
            int32_t at = larger + (equal < rule.ties ? equal : rule.ties);
            to.out[at] = picked_at(to, place + j);
        }
        larger += key[j] > rule.last;
        equal += is_last;
    }
    return make_int2(before.x + (all & 0xFFFF), before.y + (all >> 16));
}

/* Writes what places begin .. end - 1, a chunk, add to a list, part by part. */
static __device__ __forceinline__ void write_chunk(const pick_rule &rule, const pick_list &to,
                                                   const uint16_t *keys, int32_t begin, int32_t end,
                                                   int2 before) {
    for (; begin < end; begin += KEYS_LOADED) {
        chunk_part part = load_part(keys, begin, end);
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) {
            int32_t first = begin + 8 * WARP * i;
            if (first >= end) break;
            before = write_keys(rule, to, part.keys[i], first + 8 * lane_id(), end, before);
        }
    }
}

/* A warp a chunk; a round of the block is INDEX_WARPS chunks. */
static __global__
__launch_bounds__(INDEX_THREADS) void index_write_kernel(di_index_select_args args,
                                                         index_pass pass) {
    __shared__ int32_t starts[2 * INDEX_ROWS + 1];
    __shared__ int2 round_picks[INDEX_WARPS];
    begin_early();
    index_share share = take_share(pass.chunks, pass.lists, 0, 1, starts);
    for (int32_t list = share.list; share.begin < share.end; list++) {
        int32_t end = starts[list + 1] < share.end ? starts[list + 1] : share.end;
        if (end <= share.begin) continue;
        int32_t size = list_size(args, pass, list), first = starts[list];
        int32_t each = list_chunk(pass, list, size);
        const uint16_t *keys = list_keys(pass, list);
        pick_list to = picks_of(args, pass, list);
        pick_rule rule = rule_of(pass, list);
        int2 before = make_int2(0, 0), mine = make_int2(0, 0);
        for (int32_t c = first + static_cast<int32_t>(threadIdx.x); c < share.begin;
             c += INDEX_THREADS) {
            int2 n = chunk_picks(pass, rule, c);
            mine.x += n.x, mine.y += n.y;
        }
        (void)sum_before(mine.x, &before.x);
        (void)sum_before(mine.y, &before.y);
        for (int32_t round = share.begin; round < end; round += INDEX_WARPS) {
            int32_t c = round + warp_id();
            int2 n = c < end ? chunk_picks(pass, rule, c) : make_int2(0, 0), mine_before = before;
            __syncthreads();
            if (lane_id() == 0) round_picks[warp_id()] = n;
            __syncthreads();
            for (int i = 0; i < INDEX_WARPS; i++) {
                if (i < warp_id())
                    mine_before.x += round_picks[i].x, mine_before.y += round_picks[i].y;
                before.x += round_picks[i].x, before.y += round_picks[i].y;
            }
            bool some = n.x > 0 || (n.y > 0 && mine_before.y < rule.ties);
            int32_t at = (c - first) * each;
            if (some) write_chunk(rule, to, keys, at, min(size, at + each), mine_before);
        }
        share.begin = end;
    }
}

#endif
