/* What is taken of a list, short or long: its k-th key, what is above it, the first of its ties,
 * and where they go. */
#ifndef DI_KERNELS_CUDA_INDEX_TAKEN_CUH
#define DI_KERNELS_CUDA_INDEX_TAKEN_CUH

#include "kernels/cuda/index_plan.cuh"

/* ---- Blocks ---- */

/* The key of block b: of its best entry; the newest one's is that of infinity. */
static __device__ __forceinline__ uint32_t block_key(const uint16_t *keys, int32_t b, int32_t size,
                                                     int32_t visible) {
    uint32_t best = 0;
    int32_t begin = b * size, end = visible - begin < size ? visible : begin + size;
    if (b == (visible - 1) / size) return MOST_KEY;
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

/* x: the bin of the k-th largest key; y: how many of that bin are among the k largest. (-1, 0)
 * where there are fewer. */
typedef int2 last_bin;

/* All threads of the block get it. */
static __device__ last_bin find_bin(const int32_t *bins, int32_t k) {
    __shared__ last_bin found;
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
    last_bin result = found;
    __syncthreads(); /* before another call */
    return result;
}

/* Eight keys apart. */
static __device__ __forceinline__ void split_keys(uint4 v, uint32_t *out) {
    uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = i % 2 ? words[i / 2] >> 16 : words[i / 2] & 0xFFFFu;
}
/* Of eight keys how many are above the bin; those in it are counted by their lower bits. low: [LOW]
 * in shared memory, one for each warp. */
static __device__ __forceinline__ int32_t count_keys(uint4 keys, int32_t bin, int32_t *low) {
    uint32_t key[8];
    int32_t above = 0;
    split_keys(keys, key);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int32_t of = static_cast<int32_t>(key[j] / LOW);
        above += key[j] != 0 && of > bin;
        if (key[j] != 0 && of == bin) atomicAdd(&low[key[j] % LOW], 1);
    }
    return above;
}
/* The least key that may be taken, of the last bin; 1 where all are. */
static __device__ __forceinline__ uint32_t least_key(last_bin found) {
    return found.x > 0 ? static_cast<uint32_t>(found.x) * LOW : 1;
}
static __device__ __forceinline__ bool is_hit(uint4 keys, uint32_t least) {
    uint32_t most = __vmaxu2(__vmaxu2(keys.x, keys.y), __vmaxu2(keys.z, keys.w));
    return most >> 16 >= least || (most & 0xFFFFu) >= least;
}

/* ---- Picks ---- */

/* x: how many keys are larger than the last one taken; y: how many equal it. */
typedef int2 taken_keys;

/* What is taken of a list: keys above `last`, and the first `ties` of that key. low: its lower
 * bits; -1: all keys are taken. */
typedef struct pick_rule {
    uint32_t last;
    int32_t low, ties;
} pick_rule;

/* found: as find_bin says; lows: [LOW], the keys of that bin by their lower bits. */
static __device__ __forceinline__ pick_rule rule_of(last_bin found, const int32_t *lows) {
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
    int32_t at = place / to.block_size;
    return to.blocks[at] * to.block_size + (place - at * to.block_size);
}

/* The eight keys at `place` of a lane, two a word; 0 behind the list. Returns `before`, larger and
 * equal keys that stand before the warp's first, with the warp's own. Not inlined: code is fetched
 * too. */
static __device__ __noinline__ taken_keys write_keys(pick_rule rule, pick_list to, uint4 keys,
                                                     int32_t place, taken_keys before) {
    uint32_t key[8], larger_ones = 0, equal_ones = 0; /* bit by bit */
    int32_t first = place; /* of eight neighbours, where they are one block */
    split_keys(keys, key);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        larger_ones |= key[j] > rule.last ? 1u << j : 0;
        equal_ones |= key[j] == rule.last && rule.low >= 0 ? 1u << j : 0;
    }
    bool is_block = to.block_size == 8 && to.blocks != NULL;
    if (is_block && (larger_ones | equal_ones) != 0) first = 8 * to.blocks[place / 8];
    int32_t mine = __popc(larger_ones) | __popc(equal_ones) << 16, upto = mine;
    for (int apart = 1; apart < WARP; apart *= 2) {
        int32_t y = __shfl_up_sync(ALL_LANES, upto, static_cast<uint32_t>(apart));
        if (lane_id() >= apart) upto += y;
    }
    int32_t all = __shfl_sync(ALL_LANES, upto, WARP - 1);
    int32_t larger = before.x + ((upto - mine) & 0xFFFF);
    int32_t equal = before.y + ((upto - mine) >> 16);
    for (uint32_t left = larger_ones | equal_ones; left != 0; left &= left - 1) {
        int32_t j = __ffs(static_cast<int>(left)) - 1;
        bool is_last = (equal_ones >> j & 1u) != 0;
        if (!is_last || equal < rule.ties) {
            int32_t at = larger + (equal < rule.ties ? equal : rule.ties);
            to.out[at] = is_block ? first + j : picked_at(to, place + j);
        }
        larger += !is_last;
        equal += is_last;
    }
    return make_int2(before.x + (all & 0xFFFF), before.y + (all >> 16));
}

#endif
