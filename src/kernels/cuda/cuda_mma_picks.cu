/* Sorting of picks by expert. Few picks have a thread of one block each that counts those before
 * its own; many, and those for wide tiles, are sorted by counting by a cluster of blocks, each warp
 * taking a stretch of them. Within an expert picks stay in the order of their rows, so lists are the
 * same in every run.
 */
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/mma_picks.cuh"
#include "kernels/cuda/mma_prepare.cuh"

static constexpr int SORT_WARPS = 32, SORT_THREADS = SORT_WARPS * WARP;
static constexpr int SORT_BLOCKS = 8; /* of the cluster */

/* Shared memory of a block: counts of every warp, then four numbers of every expert. */
typedef struct sort_tables {
    int32_t *counts; /* [SORT_WARPS][n_experts]: picks; later those before the warp's */
    int32_t *mine;   /* [n_experts]: picks of the block, for all of the cluster */
    int32_t *total, *slot, *tile; /* [n_experts]: picks; their first slot and tile */
} sort_tables;
static size_t table_bytes(int32_t n_experts) {
    return (SORT_WARPS + 4) * sizeof(int32_t) * static_cast<size_t>(n_experts);
}

/* Calls use(pick, expert, lanes before this one with the same) for the warp's live picks and moves
 * counts on. */
template <typename Use>
static __device__ void count_picks(const di_experts_args &args, int32_t *counts, Use use) {
    constexpr int32_t ALL_THREADS = SORT_BLOCKS * SORT_THREADS;
    int32_t all = args.n_rows * args.top_k, each = (all + ALL_THREADS - 1) / ALL_THREADS * WARP;
    int32_t begin = (static_cast<int32_t>(blockIdx.x) * SORT_WARPS + warp_id()) * each;
    int32_t end = begin + each < all ? begin + each : all;
    pick_source from = mma_picks_of(&args);
    int32_t next = pick_expert(from, begin + lane_id(), end);
    for (int32_t at = begin; at < end; at += WARP) {
        int32_t e = next;
        next = pick_expert(from, at + WARP + lane_id(), end); /* on its way meanwhile */
        uint32_t same = __match_any_sync(ALL_LANES, e);
        uint32_t before = same & ((1u << lane_id()) - 1);
        if (e >= 0) use(at + lane_id(), e, __popc(before));
        __syncwarp();
        if (e >= 0 && before == 0) counts[e] += __popc(same);
        __syncwarp();
    }
}

/* The running sum of x over the lanes. */
static __device__ int32_t warp_running(int32_t x) {
    for (int apart = 1; apart < WARP; apart *= 2) {
        int32_t other = __shfl_up_sync(ALL_LANES, x, apart);
        if (lane_id() >= apart) x += other;
    }
    return x;
}

/* Where the i-th tile of an expert begins, of its picks. Where tiles of many columns have to be several,
 * the first have all of them and the others a quarter less, as many as will do: that is as cheap a
 * column (mma_wide.cuh), and what a whole tile leaves over would not be. */
static __device__ int32_t tile_begin(const pick_lists &lists, int32_t picks, int32_t i) {
    int32_t width = lists.width, less = width < 128 ? width : width - 32;
    int32_t tiles = (picks + width - 1) / width;
    int32_t over = picks - tiles * less, whole = over > 0 ? (over + 31) / 32 : 0;
    return i <= whole ? i * width : whole * width + (i - whole) * less;
}

/* Warp 0 of every block: where the slots and the tiles of every expert begin. */
static __device__ void place_experts(int32_t n_experts, const sort_tables &t,
                                     const pick_lists &lists) {
    int32_t slot = 0, tile = 0;
    for (int32_t base = 0; base < n_experts; base += WARP) {
        int32_t e = base + lane_id(), picks = e < n_experts ? t.total[e] : 0;
        int32_t tiles = (picks + lists.width - 1) / lists.width;
        int32_t slots = (picks + lists.align - 1) / lists.align * lists.align;
        int32_t slot_end = slot + warp_running(slots), tile_end = tile + warp_running(tiles);
        if (e < n_experts) t.slot[e] = slot_end - slots, t.tile[e] = tile_end - tiles;
        slot = __shfl_sync(ALL_LANES, slot_end, WARP - 1);
        tile = __shfl_sync(ALL_LANES, tile_end, WARP - 1);
    }
    if (blockIdx.x == 0 && lane_id() == 0) *lists.n_tiles = tile, *lists.n_slots = slot;
}

/* The cluster has counted: total of expert e, and counts of the warps of this block. */
static __device__ void join_counts(const sort_tables &t, int32_t n, int32_t e) {
    int32_t total = 0, before = 0;
#pragma unroll
    for (int b = 0; b < SORT_BLOCKS; b++) {
        int32_t of_block = cluster_peer(t.mine, b)[e];
        total += of_block;
        before += b < static_cast<int>(blockIdx.x) ? of_block : 0;
    }
    t.total[e] = total;
    for (int w = 0; w < SORT_WARPS; w++) {
        int32_t mine = t.counts[w * n + e];
        t.counts[w * n + e] = before;
        before += mine;
    }
}

/* The tiles of expert e, and what lies between its slots and the next one's. */
static __device__ void list_tiles(const sort_tables &t, const pick_lists &lists, int32_t e) {
    int32_t picks = t.total[e], done = 0;
    for (int32_t i = 0; done < picks; i++) {
        int32_t next = tile_begin(lists, picks, i + 1), end = next < picks ? next : picks;
        lists.tiles[t.tile[e] + i] = pick_tile{e, t.slot[e] + done, end - done};
        done = end;
    }
    for (int32_t i = picks; i % lists.align != 0; i++) lists.pick[t.slot[e] + i] = -1;
}

/* By the first SORT_BLOCKS blocks. */
static __device__ void sort_picks(const di_experts_args &args, const sort_tables &t,
                                  const pick_lists &lists) {
    int32_t n = args.n_experts, thread = static_cast<int32_t>(threadIdx.x);
    const int32_t *picks = cuda_at<const int32_t>(args.picks);
    int32_t *counts = t.counts + warp_id() * n;
    for (int32_t i = thread; i < SORT_WARPS * n; i += SORT_THREADS) t.counts[i] = 0;
    __syncthreads();
    count_picks(args, counts, [](int32_t, int32_t, int32_t) {});
    __syncthreads();
    for (int32_t e = thread; e < n; e += SORT_THREADS) {
        t.mine[e] = 0;
        for (int w = 0; w < SORT_WARPS; w++) t.mine[e] += t.counts[w * n + e];
    }
    cluster_sync();
    for (int32_t e = thread; e < n; e += SORT_THREADS) join_counts(t, n, e);
    cluster_arrive(); /* nothing of other blocks is read from here on */
    __syncthreads();
    if (warp_id() == 0) place_experts(n, t, lists);
    __syncthreads();
    for (int32_t e = thread * SORT_BLOCKS + static_cast<int32_t>(blockIdx.x); e < n;
         e += SORT_THREADS * SORT_BLOCKS)
        list_tiles(t, lists, e);
    count_picks(args, counts, [&](int32_t i, int32_t e, int32_t before) {
        int32_t row = i / args.top_k;
        int32_t slot = t.slot[e] + counts[e] + before, below = 0;
#pragma unroll 8 /* loads at once */
        for (int32_t k = 0; k < args.top_k; k++) below += picks[row * args.top_k + k] < e;
        lists.pick[slot] = i;
        lists.place[slot] = row * args.top_k + below;
    });
    cluster_wait();
}

/* ---- Few picks ---- */

static constexpr int FEW_PICKS = static_cast<int>(MMA_FEW_PICKS);

/* Block 0 sorts, the others make the input ready. */
static __global__ void __launch_bounds__(FEW_PICKS)
    few_picks_kernel(di_experts_args args, pick_lists lists, mma_input in) {
    __shared__ pick_sort<FEW_PICKS> sort;
    begin_early();
    if (blockIdx.x > 0)
        mma_prepare_chunk(in, static_cast<int32_t>((blockIdx.x - 1) * FEW_PICKS + threadIdx.x));
    else
        sort_few(mma_picks_of(&args), lists, sort);
}

/* ---- Many ---- */

/* The same, by the first cluster. */
static __global__ void __launch_bounds__(SORT_THREADS) __cluster_dims__(SORT_BLOCKS)
    picks_kernel(di_experts_args args, pick_lists lists, mma_input in) {
    extern __shared__ int32_t tables[];
    begin_early();
    if (blockIdx.x >= SORT_BLOCKS) {
        mma_prepare_chunk(in, static_cast<int32_t>((blockIdx.x - SORT_BLOCKS) * SORT_THREADS +
                                                   threadIdx.x));
        return;
    }
    int32_t n = args.n_experts, *mine = tables + SORT_WARPS * n;
    sort_picks(args, sort_tables{tables, mine, mine + n, mine + 2 * n, mine + 3 * n}, lists);
}

pick_lists mma_sort_picks(di_stream *s, const di_experts_args *args, int32_t width, bool wide,
                          const mma_input *in) {
    uint64_t picks = static_cast<uint64_t>(args->n_rows) * static_cast<uint64_t>(args->top_k);
    uint64_t slots = wide ? mma_wide_slots(picks, args->n_experts) : picks;
    pick_lists lists = {};
    lists.width = width, lists.align = wide ? 8 : 1;
    lists.n_tiles = cuda_take<int32_t>(s, 1), lists.n_slots = cuda_take<int32_t>(s, 1);
    lists.tiles = cuda_take<pick_tile>(s, static_cast<uint64_t>(mma_most_tiles(args, width)));
    lists.pick = cuda_take<int32_t>(s, slots), lists.place = cuda_take<int32_t>(s, slots);
    CUDA_REQUIRE(picks <= INT32_MAX / 2);
    mma_input input = in == NULL ? mma_input{} : *in;
    int64_t chunks = in == NULL ? 0 : mma_input_chunks(input);
    constexpr int32_t AT_ONCE = SORT_BLOCKS * SORT_THREADS; /* chunks; a grid has whole clusters */
    CUDA_REQUIRE(chunks < INT32_MAX - AT_ONCE);
    if (picks > FEW_PICKS || (wide && picks > 0)) {
        CUDA_REQUIRE(table_bytes(args->n_experts) <= 200 * 1024);
        cuda_launch_early(s, "experts", SORT_BLOCKS * (1 + cuda_blocks(chunks, AT_ONCE)),
                          SORT_THREADS, table_bytes(args->n_experts), picks_kernel, *args, lists,
                          input);
    } else if (picks > 0) {
        cuda_launch_early(s, "experts", 1 + cuda_blocks(chunks, FEW_PICKS), FEW_PICKS, 0,
                          few_picks_kernel, *args, lists, input);
    }
    return lists;
}

/* ---- Rows by slots, for wide tiles ---- */

/* A block for eight slots; a warp some groups of K, so that they are looked up once. */
static constexpr int GATHER_EACH = 5;
static __global__ __launch_bounds__(WIDE_PREPARE_WARPS *WARP) void gather_kernel(mma_input in,
                                                                                 pick_lists lists,
                                                                                 int32_t top_k) {
    begin_early();
    int32_t parts = mma_padded(in.k) / mma_format<DI_FP4_PAIR>::GROUP;
    int32_t part =
        (static_cast<int32_t>(blockIdx.x) * WIDE_PREPARE_WARPS + warp_id()) * GATHER_EACH;
    int32_t octet = grid_row(), end = part + GATHER_EACH < parts ? part + GATHER_EACH : parts;
    if (octet * 8 >= *lists.n_slots) return;
    int32_t pick = lists.pick[octet * 8 + lane_id() / 4], row = pick >= 0 ? pick / top_k : -1;
#pragma unroll 1
    for (; part < end; part++) mma_prepare_group<DI_FP4_PAIR>(in, row, 0, part, octet);
}

void mma_gather_rows(di_stream *s, const mma_input *in, const pick_lists *lists, int64_t slots,
                     int32_t top_k) {
    CUDA_REQUIRE(in->quantize && in->groups == 1);
    int32_t parts = mma_padded(in->k) / mma_format<DI_FP4_PAIR>::GROUP;
    cuda_launch_early(s, "experts",
                      cuda_row_grid(cuda_blocks(parts, WIDE_PREPARE_WARPS * GATHER_EACH),
                                    slots / 8),
                      WIDE_PREPARE_WARPS * WARP, 0, gather_kernel, *in, *lists, top_k);
}
