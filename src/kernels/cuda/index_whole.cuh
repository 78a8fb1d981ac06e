/* What is picked of a list, and short lists picked whole: by the block of threads that scored the last
 * of a row's entries, without further kernels. */
#ifndef DI_KERNELS_CUDA_INDEX_WHOLE_CUH
#define DI_KERNELS_CUDA_INDEX_WHOLE_CUH

#include "kernels/cuda/index_plan.cuh"

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

/* ---- Short lists ---- */

/* Calls of(keys, place) for every eight of a thread's places begin .. end - 1. N: how many eights are
 * loaded together; code that runs once takes long to be fetched, so that it should be short. */
template <int N, typename Of>
static __device__ __forceinline__ void each_eight(const uint16_t *keys, int32_t begin, int32_t end,
                                                  Of of) {
#pragma unroll 1
    for (; begin < end; begin += 8 * N) {
        uint4 eight[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            if (begin + 8 * i < end)
                eight[i] = *reinterpret_cast<const uint4 *>(keys + begin + 8 * i);
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t key[8];
            if (begin + 8 * i >= end) break;
            split_keys(eight[i], begin + 8 * i, end, key);
            of(key, begin + 8 * i);
        }
    }
}

/* The k largest of n keys, at most WHOLE_LIST, whose counts by their upper bits are in bins; all
 * threads. keys: as many as a multiple of CHUNK_KEYS may be read. */
static __device__ __noinline__ void pick_whole(const uint16_t *keys, int32_t n, int32_t k,
                                               const int32_t *bins, pick_list to) {
    __shared__ int32_t lows[LOW];
    int32_t x = static_cast<int32_t>(threadIdx.x), each = ceil_div(n, 8 * INDEX_THREADS) * 8;
    int32_t begin = min(n, x * each), end = min(n, begin + each), all;
    int32_t above = 0, same = 0; /* larger than the last one taken, and equal to it */
    if (x < LOW) lows[x] = 0;
    int2 found = find_bin(bins, k); /* has barriers */
    each_eight<4>(keys, begin, end, [&](const uint32_t(&key)[8], int32_t) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (key[j] != 0 && static_cast<int32_t>(key[j] / LOW) == found.x)
                atomicAdd(&lows[key[j] % LOW], 1);
    });
    __syncthreads();
    pick_rule rule = rule_of(found, lows);
    bool ties = rule.low >= 0;
    each_eight<1>(keys, begin, end, [&](const uint32_t(&key)[8], int32_t) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            above += key[j] > rule.last, same += ties && key[j] == rule.last;
    });
    int32_t larger = sum_before(above, &all), equal = sum_before(same, &all);
    if (above + same == 0) return;
    each_eight<1>(keys, begin, end, [&](const uint32_t(&key)[8], int32_t place) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            bool is_above = key[j] > rule.last, is_last = ties && key[j] == rule.last;
            if (is_above || (is_last && equal < rule.ties))
                to.out[larger + min(equal, rule.ties)] = picked_at(to, place + j);
            larger += is_above, equal += is_last;
        }
    });
}

/* The keys of row r's blocks, and their counts to bins, which are 0 before. */
static __device__ void whole_blocks(const di_index_select_args &args, const index_pass &pass,
                                    int32_t r, int32_t visible, uint32_t *bins) {
    int32_t n = ceil_div(visible, args.block_size);
    for (int32_t b = static_cast<int32_t>(threadIdx.x); b < n; b += INDEX_THREADS) {
        uint32_t key = block_key(pass.keys + r * pass.stride, b, args.block_size, visible);
        pass.block_keys[r * pass.block_stride + b] = static_cast<uint16_t>(key);
        if (key != 0) atomicAdd(&bins[key / LOW], 1u);
    }
}

/* Whether this block is the last that scores strips of a row, `mine` of `all`; it sees what the others
 * wrote. All threads call. done: 0 at first. */
static __device__ bool is_last_of_row(int32_t *done, int32_t mine, int32_t all) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(done, mine) + mine == all;
    __syncthreads();
    if (last) __threadfence();
    return last;
}

/* Row r's picks, and its blocks if they are wanted. bins: [BINS] in shared memory, 0 before and after.
 */
static __device__ void pick_row(const di_index_select_args &args, const index_pass &pass, int32_t r,
                                uint32_t *bins) {
    pick_whole(pass.keys + r * pass.stride, list_size(args, pass, r), args.top_k,
               pass.bins + r * BINS, picks_of(args, pass, r));
    if (args.candidate_mode != DI_CANDIDATES_SOURCE) return;
    int32_t visible = visible_entries(args, pass.first + r), list = pass.n_rows + r;
    whole_blocks(args, pass, r, visible, bins);
    __syncthreads();
    pick_whole(list_keys(pass, list), ceil_div(visible, args.block_size), args.top_blocks,
               reinterpret_cast<const int32_t *>(bins), picks_of(args, pass, list));
    __syncthreads();
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < BINS; i += INDEX_THREADS) bins[i] = 0;
    __syncthreads();
}

#endif
