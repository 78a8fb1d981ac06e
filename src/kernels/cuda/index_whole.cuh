/* Short lists picked whole, by the block of threads that scored the last of a row's entries,
 * without further kernels. */
#ifndef DI_KERNELS_CUDA_INDEX_WHOLE_CUH
#define DI_KERNELS_CUDA_INDEX_WHOLE_CUH

#include "kernels/cuda/index_taken.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/last_block.cuh"

/* A list in shared memory, 0 from n to the next multiple of eight, and room for the places of
 * eights (in order, from 0 on) that have a key of the last bin or above it: few of many. */
typedef struct whole_list {
    const uint16_t *keys;
    uint16_t *hits; /* [n / 8] */
    int32_t n;
} whole_list;

static __device__ __forceinline__ uint4 eight_keys(const whole_list &list, int32_t eight) {
    return reinterpret_cast<const uint4 *>(list.keys)[eight];
}

/* A warp's hits, of its eighth of the list: how many. hits: its own. */
static __device__ __forceinline__ int32_t find_hits(const whole_list &list, int32_t begin,
                                                    int32_t end, uint32_t least, uint16_t *hits) {
    int32_t n = 0;
#pragma unroll 4
    for (int32_t first = begin; first < end; first += WARP) {
        int32_t eight = first + lane_id();
        uint4 v = eight < end ? eight_keys(list, eight) : make_uint4(0, 0, 0, 0);
        bool hit = is_hit(v, least);
        uint32_t lanes = __ballot_sync(ALL_LANES, hit);
        if (hit) hits[n + __popc(lanes & ((1u << lane_id()) - 1))] = static_cast<uint16_t>(eight);
        n += __popc(lanes);
    }
    __syncwarp();
    return n;
}

/* The k largest, whose last one's bin is `found` (find_bin): a warp looks at an eighth of all keys,
 * and then at its hits alone, twice. All threads, before and after a barrier. */
static __device__ __noinline__ void pick_whole(whole_list list, last_bin found, pick_list to) {
    __shared__ int32_t lows[INDEX_WARPS][LOW], low[LOW];
    __shared__ taken_keys picks[INDEX_WARPS];
    int32_t x = static_cast<int32_t>(threadIdx.x), lane = lane_id(), warp = warp_id();
    int32_t eights = ceil_div(list.n, 8), each = ceil_div(eights, INDEX_WARPS), above = 0;
    int32_t begin = min(eights, warp * each), end = min(eights, begin + each);
    uint16_t *hits = list.hits + begin;
    if (lane < LOW) lows[warp][lane] = 0;
    int32_t n = find_hits(list, begin, end, least_key(found), hits);
    for (int32_t i = lane; i < n; i += WARP)
        above += count_keys(eight_keys(list, hits[i]), found.x, lows[warp]);
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
    taken_keys before = make_int2(0, 0), mine = picks[warp];
    for (int i = 0; i < warp; i++) before.x += picks[i].x, before.y += picks[i].y;
    if (mine.x == 0 && (mine.y == 0 || before.y >= rule.ties)) n = 0;
    for (int32_t first = 0; first < n; first += WARP) {
        int32_t i = first + lane, eight = i < n ? hits[i] : 0;
        uint4 keys = i < n ? eight_keys(list, eight) : make_uint4(0, 0, 0, 0);
        before = write_keys(rule, to, keys, 8 * eight, before);
    }
    __syncthreads();
}

/* Instead of the keys of entries those of their blocks, and their counts to bins, which are 0
 * before. Block b stands where entry b stood, which only blocks up to b look at: a turn reads, then
 * writes. */
static __device__ __forceinline__ void whole_blocks(uint16_t *keys, int32_t visible, int32_t size,
                                                    uint32_t *bins) {
    int32_t n = ceil_div(visible, size);
    for (int32_t first = 0; first < n; first += INDEX_THREADS) {
        int32_t b = first + static_cast<int32_t>(threadIdx.x);
        uint32_t key = b < n ? block_key(keys, b, size, visible) : 0;
        __syncthreads();
        if (b < ceil_div(n, 8) * 8) keys[b] = static_cast<uint16_t>(key);
        if (key != 0) atomicAdd(&bins[key / LOW], 1u);
    }
    __syncthreads();
}

/* Shared memory that picking takes: room for a whole list and its hits; counts that are 0 before
 * and after. */
typedef struct pick_memory {
    uint16_t *keys, *hits; /* [WHOLE_LIST], [WHOLE_LIST / 8] */
    uint32_t *bins;        /* [BINS] */
} pick_memory;

/* Row r's picks, and its blocks if they are wanted; all threads, after a barrier. */
static __device__ __forceinline__ void pick_row(const di_index_select_args &args,
                                                const index_pass &pass, int32_t r,
                                                const pick_memory &m) {
    int32_t n = list_size(args, pass, r), x = static_cast<int32_t>(threadIdx.x);
    const uint16_t *from = list_keys(pass, r);
    for (int32_t i = 8 * x; i < n; i += 8 * INDEX_THREADS) copy_16(m.keys + i, from + i, 16);
    copies_commit();
    last_bin found = find_bin(pass.bins + r * BINS, args.top_k); /* meanwhile */
    copies_wait<0>();
    __syncthreads();
    pick_whole(whole_list{m.keys, m.hits, n}, found, picks_of(args, pass, r));
    if (args.candidate_mode != DI_CANDIDATES_SOURCE) return;
    int32_t visible = visible_entries(args, pass.first + r), list = pass.n_rows + r;
    whole_blocks(m.keys, visible, args.block_size, m.bins);
    found = find_bin(reinterpret_cast<const int32_t *>(m.bins), args.top_blocks);
    for (int32_t i = x; i < BINS; i += INDEX_THREADS) m.bins[i] = 0;
    whole_list blocks = {m.keys, m.hits, list_size(args, pass, list)};
    pick_whole(blocks, found, picks_of(args, pass, list));
}

#endif
