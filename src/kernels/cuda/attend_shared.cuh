/* What the warps of a block of attention share (attend_pair.cuh). */
#ifndef DI_KERNELS_CUDA_ATTEND_SHARED_CUH
#define DI_KERNELS_CUDA_ATTEND_SHARED_CUH

#include "kernels/cuda/attend_keys.cuh"

static constexpr int PAIR_HEADS = 64, PAIR_ANGLES = 256;
static constexpr int DECODERS = 8, DECODER_THREADS = DECODERS * WARP;
static constexpr int GROUP_WARPS = GROUP / WARP, PAIR_THREADS = 2 * GROUP + DECODER_THREADS;

/* Bytes that come from the peer: one number a head, and probabilities with one number a head. */
static constexpr uint32_t HEADS_BYTES = PAIR_HEADS * sizeof(float);
static constexpr uint32_t SENT_BYTES = PAIR_HEADS * SLAB * 2 + HEADS_BYTES;

enum { OWN, PEER }; /* whose block of slots it is */

/* The tiles of a stage: of an own block of slots the peer's half of the values and this block's, and
 * of a block of the peer's this block's half. */
enum { AWAY, HERE, FROM_PEER, STAGE_TILES };
static constexpr int PAIR_STAGES = 2;

/* Named barriers of threads_meet: of the warpgroup that makes results, of the decoders, and of all
 * when the list is known. */
enum { RESULTS_MEET = 1, DECODERS_MEET, LIST_MEET };

/* The shared memory of a block, from a multiple of 1024 bytes on; then the list's key addresses.
 * DC: half the width of a key. The u-th own block of slots, and the peer's u-th, are in stage u % 2. */
template <int DC> struct pair_shared {
    static constexpr int TILE_BYTES = DC / SLAB * SLAB_BYTES;
    uint8_t tiles[PAIR_STAGES][STAGE_TILES][TILE_BYTES]; /* results at the end, see store_results */
    uint4 p[2][4][GROUP];                     /* probabilities, thread by thread as they are used */
    float shrink[2][PAIR_HEADS];              /* what earlier results are multiplied with */
    float top[PAIR_HEADS], total[PAIR_HEADS]; /* the peer's: running maximum, sum at the end */
    float inverse[PAIR_HEADS]; /* at first: sinks; then what results are multiplied with */
    float2 angles[PAIR_ANGLES];
    /* A tile is there, and has been read: AWAY by products and by the peer, whose copy of it it is. */
    uint64_t full[PAIR_STAGES][STAGE_TILES], empty[PAIR_STAGES][2];
    uint64_t sent[2], read[2];          /* p and shrink are there, or read */
    uint64_t topped, summed, finished;  /* top, total, inverse are there */
    int32_t n_window, picked[DECODERS]; /* slots: of the window, or -1 if there is no row; picks */
    key_address addresses[1];
};
template <int DC> static size_t pair_bytes(int64_t slots) {
    return 1024 + sizeof(pair_shared<DC>) + sizeof(key_address) * static_cast<size_t>(slots);
}

template <int DC> static __device__ __forceinline__ void make_barriers(pair_shared<DC> *m) {
#pragma unroll
    for (int i = 0; i < PAIR_STAGES; i++) {
        barrier_init(&m->full[i][AWAY], DECODERS);
        barrier_init(&m->full[i][HERE], DECODERS);
        barrier_init(&m->full[i][FROM_PEER], 1);
        barrier_init(&m->empty[i][AWAY], 2 * GROUP_WARPS);
        barrier_init(&m->empty[i][HERE], GROUP_WARPS);
        barrier_expect(&m->full[i][FROM_PEER], m->TILE_BYTES);
    }
    barrier_init(&m->sent[OWN], GROUP_WARPS);
    barrier_init(&m->sent[PEER], 1);
    barrier_init(&m->read[OWN], GROUP_WARPS);
    barrier_init(&m->read[PEER], GROUP_WARPS);
    barrier_init(&m->topped, 1);
    barrier_init(&m->summed, 1);
    barrier_init(&m->finished, GROUP_WARPS);
    barrier_expect(&m->sent[PEER], SENT_BYTES);
    barrier_expect(&m->topped, HEADS_BYTES);
    barrier_expect(&m->summed, HEADS_BYTES);
    barriers_made();
}

/* Slots of the list, once LIST_MEET is over (the decoders: DECODERS_MEET); negative: no row. */
template <int DC> static __device__ __forceinline__ int32_t slots_listed(const pair_shared<DC> *m) {
    int32_t n = m->n_window;
    if (n < 0) return n;
#pragma unroll
    for (int i = 0; i < DECODERS; i++) n += m->picked[i];
    return n;
}

typedef struct pair_row { /* what a block works on */
    int64_t t;
    int32_t rank, head; /* head: the first of 64 */
} pair_row;

/* Blocks of slots of the whole list, and of block `rank`. */
static __device__ __forceinline__ int blocks_of(int32_t n) { return (n + SLAB - 1) / SLAB; }
static __device__ __forceinline__ int blocks_of(int32_t n, int rank) {
    return (blocks_of(n) + 1 - rank) / 2;
}

#endif
