/* The best of the keys that index_score.cuh made, of lists that it has not picked from: blocks, counts,
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

/* ---- Counts ---- */

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

/* A chunk's keys that are larger than the last one taken, and equal to it. All counts are loaded,
 * wanted or not: so they are under way together. */
static __device__ __forceinline__ int2 chunk_picks(const index_pass &pass, const pick_rule &rule,
                                                   int32_t chunk) {
    int2 n = make_int2(pass.counts[chunk], 0);
    int32_t lows[LOW];
    if (rule.low < 0) return n;
#pragma unroll
    for (int i = 0; i < LOW; i++) lows[i] = pass.counts[(1 + i) * pass.n_chunks + chunk];
#pragma unroll
    for (int i = 0; i < LOW; i++) {
        n.x += i > rule.low ? lows[i] : 0;
        n.y += i == rule.low ? lows[i] : 0;
    }
    return n;
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
        pick_rule rule = rule_of(pass.found[list], pass.low + list * LOW);
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
