/* What is picked of a list; and short lists picked whole, by the block of threads that scored the last
 * of a row's entries, without further kernels. */
#ifndef DI_KERNELS_CUDA_INDEX_WHOLE_CUH
#define DI_KERNELS_CUDA_INDEX_WHOLE_CUH

#include "kernels/cuda/index_plan.cuh"

/* ---- Blocks ---- */

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

/* ---- Picks ---- */

/* What is taken of a list: keys above `last`, and the first `ties` of that key. low: its lower bits;
 * -1: all keys are taken. */
typedef struct pick_rule {
    uint32_t last;
    int32_t low, ties;
} pick_rule;

/* found: as find_bin says; lows: [LOW], the keys of that bin by their lower bits. */
static __device__ __forceinline__ pick_rule rule_of(int2 found, const int32_t *lows) {
    pick_rule rule = {0, -1, 0};
    if (found.x < 0) return rule;
    int32_t missing = found.y;
    for (int32_t low = LOW - 1; low >= 0; low--) {
        int32_t n = lows[low];
        if (rule.low >= 0) continue;
        if (n >= missing)
            rule = pick_rule{static_cast<uint32_t>(found.x * LOW + low), low, missing};
        missing -= n;
    }
    return rule;
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

/* ---- Short lists ---- */

/* The k largest of n keys, whose counts by their upper bits are in bins: a warp goes through an eighth
 * of them, twice. All threads; they meet before bins or keys are used again. */
static __device__ __noinline__ void pick_whole(const uint16_t *keys, int32_t n, int32_t k,
                                               const int32_t *bins, pick_list to) {
    __shared__ int32_t lows[INDEX_WARPS][LOW], low[LOW];
    __shared__ int2 picks[INDEX_WARPS];
    int32_t x = static_cast<int32_t>(threadIdx.x), lane = lane_id(), warp = warp_id();
    int32_t each = ceil_div(n, INDEX_WARPS * 8 * WARP) * (8 * WARP), begin = min(n, warp * each);
    int32_t end = min(n, begin + each), above = 0;
    chunk_part part = load_part(keys, begin, end); /* on its way while the bin is found */
    if (lane < LOW) lows[warp][lane] = 0;
    int2 found = find_bin(bins, k); /* has barriers */
    for (int32_t at = begin; at < end;) {
        above += count_part(part, at, end, found.x, lows[warp]);
        at += KEYS_LOADED;
        if (at < end) part = load_part(keys, at, end);
    }
    above = warp_sum(above);
    if (lane == 0) picks[warp] = make_int2(above, 0);
    __syncthreads();
    if (x < LOW) {
        int32_t sum = 0;
        for (int i = 0; i < INDEX_WARPS; i++) sum += lows[i][x];
        low[x] = sum;
    }
    __syncthreads();
    pick_rule rule = rule_of(found, low);
    if (x < INDEX_WARPS && rule.low >= 0) { /* larger than the last one taken, and equal to it */
        for (int i = rule.low + 1; i < LOW; i++) picks[x].x += lows[x][i];
        picks[x].y = lows[x][rule.low];
    }
    __syncthreads();
    int2 before = make_int2(0, 0), mine = picks[warp];
    for (int i = 0; i < warp; i++) before.x += picks[i].x, before.y += picks[i].y;
    if (mine.x > 0 || (mine.y > 0 && before.y < rule.ties))
        write_chunk(rule, to, keys, begin, end, before);
    __syncthreads();
}

/* The keys of row r's blocks, and their counts to bins, which are 0 before. */
static __device__ __forceinline__ void whole_blocks(const di_index_select_args &args,
                                                    const index_pass &pass, int32_t r,
                                                    int32_t visible, uint32_t *bins) {
    int32_t n = ceil_div(visible, args.block_size);
    for (int32_t b = static_cast<int32_t>(threadIdx.x); b < ceil_div(n, 8) * 8;
         b += INDEX_THREADS) { /* keys are read by eights */
        uint32_t key = 0;
        if (b < n) key = block_key(pass.keys + r * pass.stride, b, args.block_size, visible);
        pass.block_keys[r * pass.block_stride + b] = static_cast<uint16_t>(key);
        if (key != 0) atomicAdd(&bins[key / LOW], 1u);
    }
}

/* Whether this block is the last that scores strips of a row, `mine` of `all`; it sees what the others
 * wrote. All threads call. done: 0 at first. */
static __device__ __forceinline__ bool is_last_of_row(int32_t *done, int32_t mine, int32_t all) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(done, mine) + mine == all;
    __syncthreads();
    if (last) __threadfence();
    return last;
}

/* Row r's picks, and its blocks if they are wanted. bins: [BINS] in shared memory, 0 before and after;
 * all threads, after a barrier. */
static __device__ __forceinline__ void pick_row(const di_index_select_args &args,
                                                const index_pass &pass, int32_t r, uint32_t *bins) {
    pick_whole(list_keys(pass, r), list_size(args, pass, r), args.top_k, pass.bins + r * BINS,
               picks_of(args, pass, r));
    if (args.candidate_mode != DI_CANDIDATES_SOURCE) return;
    int32_t visible = visible_entries(args, pass.first + r), list = pass.n_rows + r;
    whole_blocks(args, pass, r, visible, bins);
    __syncthreads();
    pick_whole(list_keys(pass, list), list_size(args, pass, list), args.top_blocks,
               reinterpret_cast<const int32_t *>(bins), picks_of(args, pass, list));
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < BINS; i += INDEX_THREADS) bins[i] = 0;
    __syncthreads();
}

#endif
