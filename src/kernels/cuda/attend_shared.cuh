/* What the warps of a block of attention share (attend_pair.cuh). */
#ifndef DI_KERNELS_CUDA_ATTEND_SHARED_CUH
#define DI_KERNELS_CUDA_ATTEND_SHARED_CUH

#include "kernels/cuda/attend_keys.cuh"

/* PAIR_TILES: six, twice the three that two blocks of slots take. */
static constexpr int PAIR_TILES = 6, PAIR_HEADS = 64, PAIR_ANGLES = 256;
static constexpr int DECODERS = 8, PAIR_THREADS = 2 * GROUP + DECODERS * WARP;
static constexpr int GROUP_WARPS = GROUP / WARP, DECODER_THREADS = DECODERS * WARP;
enum { RESULTS_MEET = 1, DECODERS_MEET, SCORES_MEET }; /* for threads_meet */

/* Bytes that come from the peer: one number a head, and probabilities with one number a head. */
static constexpr uint32_t HEADS_BYTES = PAIR_HEADS * sizeof(float);
static constexpr uint32_t SENT_BYTES = PAIR_HEADS * SLAB * 2 + HEADS_BYTES;

enum { OWN, PEER }; /* whose block of slots it is */

/* Where there are two of something that a row has one of, rows have them in turn.
 *
 * The shared memory of a block, from a multiple of 1024 bytes on; then the list's key addresses.
 * DC: half the width of a key. Tile 3 i + k, i the pair of blocks of slots in turns, has of the own
 * block the other half (k 0) and this half (k 1), of the peer's this half (k 2). */
template <int DC> struct pair_shared {
    static constexpr int TILE_BYTES = DC / SLAB * SLAB_BYTES;
    uint8_t tiles[PAIR_TILES][TILE_BYTES]; /* a row's last: then results, see store_results */
    uint4 p[2][4][GROUP];                  /* probabilities, thread by thread as they are used */
    float shrink[2][PAIR_HEADS];           /* what earlier results are multiplied with */
    float top[PAIR_HEADS], total[2][PAIR_HEADS]; /* the peer's: running maximum, sum at the end */
    float inverse[PAIR_HEADS];                   /* what results are multiplied with */
    float2 angles[2][PAIR_ANGLES];
    int32_t picked[DECODERS], slots[2]; /* picks that each warp has found; slots of a list */
    /* tiles; p and shrink are there, or read; top, total, inverse are there; a list is there, and its
     * results, with all that led to them, are done with. */
    uint64_t full[PAIR_TILES], empty[PAIR_TILES], sent[2], read[2], topped, summed, finished;
    uint64_t listed[2], taken[2];
    key_address addresses[1];
};
template <int DC> static size_t pair_bytes(int64_t slots) {
    return 1024 + sizeof(pair_shared<DC>) + sizeof(key_address) * static_cast<size_t>(slots);
}

template <int DC> static __device__ __forceinline__ void make_barriers(pair_shared<DC> *m) {
    for (int i = 0; i < PAIR_TILES; i++) {
        barrier_init(&m->full[i], DECODERS);
        barrier_init(&m->empty[i], GROUP_WARPS);
    }
    barrier_init(&m->sent[OWN], GROUP_WARPS);
    barrier_init(&m->sent[PEER], 1);
    barrier_init(&m->read[OWN], GROUP_WARPS);
    barrier_init(&m->read[PEER], GROUP_WARPS);
    barrier_init(&m->topped, 1);
    barrier_init(&m->summed, 1);
    barrier_init(&m->finished, GROUP_WARPS);
    for (int i = 0; i < 2; i++) {
        barrier_init(&m->listed[i], 1);
        barrier_init(&m->taken[i], GROUP_WARPS);
    }
    barrier_expect(&m->sent[PEER], SENT_BYTES);
    barrier_expect(&m->topped, HEADS_BYTES);
    barrier_expect(&m->summed, HEADS_BYTES);
    barriers_made();
}

/* What the warps of a role work on: rows t, t + n, ..., of n clusters, without dead ones. */
typedef struct pair_row {
    int32_t t, pos, rank, head; /* head: the first of 64 */
    uint32_t turn;              /* how many rows were before */
    uint32_t own, peer;         /* how many blocks of slots those had: this block's, the peer's */
} pair_row;

/* How many heads of all rows stand before the row's first one here. */
static __device__ __forceinline__ int64_t heads_before(const di_attend_args &args,
                                                       const pair_row &row) {
    return static_cast<int64_t>(row.t) * args.n_heads + row.head;
}

/* Blocks of slots of a list, and those of them that are OWN, or the PEER's. */
static __device__ __forceinline__ int blocks_of(int32_t n) { return (n + SLAB - 1) / SLAB; }
static __device__ __forceinline__ int blocks_of(int32_t n, int rank, int whose) {
    return (blocks_of(n) + 1 - (whose == OWN ? rank : rank ^ 1)) / 2;
}

/* The row itself if there is one and it is alive, or the next one; whether there is one. */
static __device__ __forceinline__ bool find_row(const di_attend_args &args, pair_row &row) {
    for (; row.t < args.batch.n_rows; row.t += static_cast<int32_t>(gridDim.x / 2)) {
        row.pos = load_early(cuda_at<const int32_t>(args.batch.pos) + row.t);
        if (row.pos >= 0) return true;
    }
    return false;
}
/* To the one behind it. n: slots of its list. */
static __device__ __forceinline__ void pass_row(pair_row &row, int32_t n) {
    row.t += static_cast<int32_t>(gridDim.x / 2), row.turn++;
    row.own += static_cast<uint32_t>(blocks_of(n, row.rank, OWN));
    row.peer += static_cast<uint32_t>(blocks_of(n, row.rank, PEER));
}

/* Of what rows have in turn: which one it is, and the parity of its barriers. */
static __device__ __forceinline__ uint32_t turn_of(uint32_t turn) { return turn & 1; }
static __device__ __forceinline__ uint32_t turn_parity(uint32_t turn) { return turn >> 1 & 1; }

/* Slots of a row's list, once they are known. */
template <int DC>
static __device__ __forceinline__ int32_t await_list(pair_shared<DC> *m, const pair_row &row) {
    barrier_wait(&m->listed[turn_of(row.turn)], turn_parity(row.turn));
    return m->slots[turn_of(row.turn)];
}

#endif
