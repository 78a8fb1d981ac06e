/* Index selection under `release`, streamed: what its kernels share, and how they divide the work.
 *
 * Scores are bf16, so an entry is a key of 16 bits (half_key): larger for larger scores, 0 for what
 * is never taken. Keys stay in device memory, two bytes an entry. The k-th largest is found by its
 * upper 12 bits from counts made while scoring, then by its lower 4; integers are added by atomics,
 * whose order changes nothing. Each list is then gone through once more in order: what has a key of
 * the k-th's upper bits, or above, is little.
 *
 * Lists. List r < n_rows has the entries that row r looks at, in increasing number: all visible
 * ones, or (DI_CANDIDATES_USE) those of the published blocks. List n_rows + r, where there is one
 * (SOURCE), has row r's blocks.
 *
 * Rows with short lists end there: the block of threads that scores the last of a row's entries
 * picks from all of them, and from the row's blocks.
 *
 * Work. How long lists are is known to the device alone. A grid fills the device once; each block
 * of threads takes an equal share of all pieces, which lie side by side: strips of entries for the
 * scores, chunks of keys afterwards. Where pieces of a list begin each block sums up by itself.
 */
#ifndef DI_KERNELS_CUDA_INDEX_PLAN_CUH
#define DI_KERNELS_CUDA_INDEX_PLAN_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/select.cuh"

static constexpr int INDEX_WARPS = 8, INDEX_THREADS = INDEX_WARPS * WARP;
static constexpr int INDEX_ROWS = 1024; /* rows of one pass at most */
static constexpr int INDEX_HEADS = 32;  /* heads, and their width, in the queries' own layout: */
static constexpr int INDEX_DIM = 128;   /* what is missing is zero */
static constexpr int STRIP = 128;       /* entries that a warpgroup scores at once */
static constexpr int CHUNK_KEYS = 512;  /* keys of a chunk, in lists that are cut into them; */
static constexpr int LONG_CHUNK = 2048; /* of long ones, so that there are not too many */
static constexpr int LONG_LIST = 65536;
static constexpr int WHOLE_LIST = 32768;    /* entries of rows that are not cut into chunks */
static constexpr int BINS = 4096, LOW = 16; /* values of a key's upper and lower bits */

/* A row's queries as index_score.cuh multiplies them. */
typedef struct index_query {
    uint8_t codes[INDEX_HEADS * INDEX_DIM]; /* E4M3, see there */
    float apart[INDEX_HEADS][INDEX_DIM / 32];
    __nv_bfloat16 weights[INDEX_HEADS];
} index_query;
static_assert(sizeof(index_query) % 16 == 0, "copied by pieces of 16 bytes");

/* The memory of one pass over n_rows rows from `first` on; lists: n_rows, or twice as many. */
typedef struct index_pass {
    index_query *queries;         /* [n_rows] */
    uint16_t *keys, *block_keys;  /* [n_rows][stride], [n_rows][block_stride] */
    int64_t stride, block_stride; /* multiples of CHUNK_KEYS */
    int32_t *bins;                /* [lists][BINS] */
    int32_t *low;                 /* [lists][LOW]: in long lists, keys of the k-th's bin */
    int32_t *done;   /* [lists]: pieces that are dealt with: strips of whole lists, else chunks */
    int32_t *hits;   /* [n_rows][stride / 8], then [n_rows][block_stride / 8]: index_pick.cuh */
    int32_t *n_hits; /* [n_chunks] */
    int64_t n_chunks;
    int32_t first, n_rows, lists;
} index_pass;

/* The bits of a(x), in the lower half. */
static __device__ __forceinline__ uint32_t bf16_bits(float x) {
    uint32_t pair; /* one of two values is as quick as this should be, and one of one is not */
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(x));
    return pair;
}
static constexpr uint32_t MOST_KEY = 0xFF80u; /* of infinity */
/* The upper half of score_key of the bf16 value of these bits. */
static __device__ __forceinline__ uint32_t half_key(uint32_t bits) {
    uint32_t key = bits ^ ((bits & 0x8000u) != 0 ? 0xFFFFu : 0x8000u);
    key += key == 0x7FFFu;                            /* -0 */
    return key - 0x80u <= MOST_KEY - 0x80u ? key : 0; /* -inf is 0x7F, NaNs lie outside */
}

static __device__ __forceinline__ int32_t visible_entries(const di_index_select_args &args,
                                                          int64_t t) {
    return (cuda_at<const int32_t>(args.batch.pos)[t] + 1) / args.pages.ratio; /* dead: 0 */
}

static __device__ __forceinline__ int32_t ceil_div(int32_t n, int32_t each) {
    return n / each + (n % each != 0);
}

/* How many elements a list of the pass has. */
static __device__ __forceinline__ int32_t list_size(const di_index_select_args &args,
                                                    const index_pass &pass, int32_t list) {
    int32_t row = list < pass.n_rows ? list : list - pass.n_rows;
    int32_t visible = visible_entries(args, pass.first + row);
    if (list >= pass.n_rows) return ceil_div(visible, args.block_size);
    if (args.candidate_mode != DI_CANDIDATES_USE) return visible;
    /* No more of the published blocks than there are can be visible, and these come first. */
    int32_t blocks = ceil_div(visible, args.block_size);
    return (blocks < args.top_blocks ? blocks : args.top_blocks) * args.block_size;
}

/* Whether a list is that of a row, or of its blocks, which is picked from at once
 * (index_whole.cuh). */
static __device__ __forceinline__ bool is_whole(const di_index_select_args &args,
                                                const index_pass &pass, int32_t list) {
    return list_size(args, pass, list < pass.n_rows ? list : list - pass.n_rows) <= WHOLE_LIST;
}

/* Elements of a chunk of a list of this size; lists of blocks have short ones. */
static __device__ __forceinline__ int32_t list_chunk(const index_pass &pass, int32_t list,
                                                     int32_t size) {
    return list < pass.n_rows && size > LONG_LIST ? LONG_CHUNK : CHUNK_KEYS;
}

static __device__ __forceinline__ const uint16_t *list_keys(const index_pass &pass, int32_t list) {
    return list < pass.n_rows ? pass.keys + list * pass.stride
                              : pass.block_keys + (list - pass.n_rows) * pass.block_stride;
}

static __device__ __forceinline__ int32_t *list_hits(const index_pass &pass, int32_t list) {
    return list < pass.n_rows ? pass.hits + list * (pass.stride / 8)
                              : pass.hits + pass.n_rows * (pass.stride / 8) +
                                    (list - pass.n_rows) * (pass.block_stride / 8);
}

static __device__ __forceinline__ int32_t list_k(const di_index_select_args &args,
                                                 const index_pass &pass, int32_t list) {
    return list < pass.n_rows ? args.top_k : args.top_blocks;
}

/* ---- Sums before a thread, by a block of INDEX_THREADS threads ---- */

/* The sum of x over the threads before this one; *all: over all threads. */
static __device__ __forceinline__ int32_t sum_before(int32_t x, int32_t *all) {
    __shared__ int32_t sums[INDEX_WARPS];
    int32_t upto = x;
    for (int apart = 1; apart < WARP; apart *= 2) {
        int32_t y = __shfl_up_sync(ALL_LANES, upto, static_cast<uint32_t>(apart));
        if (lane_id() >= apart) upto += y;
    }
    __syncthreads(); /* an earlier call may still read */
    if (lane_id() == WARP - 1) sums[warp_id()] = upto;
    __syncthreads();
    int32_t before = upto - x, total = 0;
    for (int i = 0; i < INDEX_WARPS; i++) {
        if (i < warp_id()) before += sums[i];
        total += sums[i];
    }
    *all = total;
    return before;
}

/* starts[i] = pieces of the lists first .. first + i - 1, i = 0 .. n, plus `base`; returns the last
 * of them. strips: pieces are strips, otherwise chunks. */
static __device__ int32_t plan_lists(const di_index_select_args &args, const index_pass &pass,
                                     int32_t first, int32_t n, bool strips, int32_t base,
                                     int32_t *starts) {
    for (int32_t begin = 0; begin < n; begin += INDEX_THREADS) {
        int32_t i = begin + static_cast<int32_t>(threadIdx.x), all;
        int32_t size = i < n ? list_size(args, pass, first + i) : 0;
        if (!strips && i < n && is_whole(args, pass, first + i)) size = 0;
        int32_t mine = ceil_div(size, strips ? STRIP : list_chunk(pass, first + i, size));
        int32_t before = sum_before(mine, &all);
        if (i < n) starts[i] = base + before;
        base += all;
    }
    if (threadIdx.x == 0) starts[n] = base;
    return base;
}

/* A row's first strip, [n_rows + 1]; a list's first chunk, [lists + 1]. In shared memory, by a
 * block; there is a barrier in the end. They read positions of rows, and index_scores_kernel calls
 * before it waits: index_prepare_kernel lets it begin only when it has waited itself. */
static __device__ void plan_strips(const di_index_select_args &args, const index_pass &pass,
                                   int32_t *starts) {
    plan_lists(args, pass, 0, pass.n_rows, true, 0, starts);
    __syncthreads();
}
static __device__ void plan_chunks(const di_index_select_args &args, const index_pass &pass,
                                   int32_t *starts) {
    int32_t chunks = plan_lists(args, pass, 0, pass.n_rows, false, 0, starts);
    if (pass.lists > pass.n_rows)
        plan_lists(args, pass, pass.n_rows, pass.n_rows, false, chunks, starts + pass.n_rows);
    __syncthreads();
}

/* ---- A block's share ---- */

/* Pieces begin .. end - 1 of all, and the list that holds the first: lists of `starts` [n + 1]. */
typedef struct index_share {
    int32_t begin, end, list;
} index_share;

/* Where a block's share of `all` pieces from `from` on begins. */
static __device__ __forceinline__ int32_t share_begin(int64_t from, int64_t all, int64_t block) {
    return static_cast<int32_t>(from + all * block / gridDim.x);
}

/* Of the pieces of lists list_from .. n - 1, each of them `scale` that are shared out. */
static __device__ index_share take_share(const int32_t *starts, int32_t n, int32_t list_from,
                                         int32_t scale) {
    int64_t from = static_cast<int64_t>(starts[list_from]) * scale;
    int64_t all = static_cast<int64_t>(starts[n]) * scale - from;
    index_share share;
    share.begin = share_begin(from, all, blockIdx.x);
    share.end = share_begin(from, all, blockIdx.x + 1);
    int32_t low = list_from, high = n - 1, piece = share.begin / scale;
    while (low < high) { /* the last list that begins at or before the piece */
        int32_t middle = (low + high + 1) / 2;
        if (starts[middle] <= piece)
            low = middle;
        else
            high = middle - 1;
    }
    share.list = low;
    return share;
}

#endif
