/* What the warps of a block of attention share (attend_pair.cuh). */
#ifndef DI_KERNELS_CUDA_ATTEND_SHARED_CUH
#define DI_KERNELS_CUDA_ATTEND_SHARED_CUH

#include "kernels/cuda/attend_keys.cuh"

/* PAIR_TILES: six, twice the three that two blocks of slots take. */
static constexpr int PAIR_TILES = 6, PAIR_HEADS = 64, PAIR_ANGLES = 256;
static constexpr int DECODERS = 8, PAIR_THREADS = 2 * GROUP + DECODERS * WARP;
static constexpr int GROUP_WARPS = GROUP / WARP;

/* Bytes that come from the peer: one number a head, and probabilities with one number a head. */
static constexpr uint32_t HEADS_BYTES = PAIR_HEADS * sizeof(float);
static constexpr uint32_t SENT_BYTES = PAIR_HEADS * SLAB * 2 + HEADS_BYTES;

enum { OWN, PEER }; /* whose block of slots it is */

/* The shared memory of a block, from a multiple of 1024 bytes on; then the list's key addresses.
 * DC: half the width of a key. Tile 3 i + k, i the pair of blocks of slots in turns, has of the own
 * block the other half (k 0) and this half (k 1), of the peer's this half (k 2). */
template <int DC> struct pair_shared {
    static constexpr int TILE_BYTES = DC / SLAB * SLAB_BYTES;
    uint8_t tiles[PAIR_TILES][TILE_BYTES];    /* at the end: results, see store_results */
    uint4 p[2][4][GROUP];                     /* probabilities, thread by thread as they are used */
    float shrink[2][PAIR_HEADS];              /* what earlier results are multiplied with */
    float top[PAIR_HEADS], total[PAIR_HEADS]; /* the peer's: running maximum, sum at the end */
    float inverse[PAIR_HEADS]; /* at first: sinks; then what results are multiplied with */
    float2 angles[PAIR_ANGLES];
    /* tiles; p and shrink are there, or read; top, total, inverse are there */
    uint64_t full[PAIR_TILES], empty[PAIR_TILES], sent[2], read[2], topped, summed, finished;
    alignas(16) key_address addresses[1];
};
template <int DC> static size_t pair_bytes(int64_t slots) {
    return 1024 + sizeof(pair_shared<DC>) + sizeof(key_address) * static_cast<size_t>(slots);
}

template <int DC> static __device__ __forceinline__ void make_barriers(pair_shared<DC> *m) {
    for (int i = 0; i < PAIR_TILES; i++) {
        barrier_init(&m->full[i], DECODERS * WARP_ARRIVALS);
        barrier_init(&m->empty[i], GROUP_WARPS * WARP_ARRIVALS);
    }
    barrier_init(&m->sent[OWN], GROUP_WARPS * WARP_ARRIVALS);
    barrier_init(&m->sent[PEER], 1);
    barrier_init(&m->read[OWN], GROUP_WARPS * WARP_ARRIVALS);
    barrier_init(&m->read[PEER], GROUP_WARPS * WARP_ARRIVALS);
    barrier_init(&m->topped, 1);
    barrier_init(&m->summed, 1);
    barrier_init(&m->finished, GROUP_WARPS * WARP_ARRIVALS);
    barrier_expect(&m->sent[PEER], SENT_BYTES);
    barrier_expect(&m->topped, HEADS_BYTES);
    barrier_expect(&m->summed, HEADS_BYTES);
    barriers_made();
}

typedef struct pair_row { /* what a block works on */
    int64_t t;
    int32_t pos, rank, head; /* head: the first of 64 */
} pair_row;

#endif
