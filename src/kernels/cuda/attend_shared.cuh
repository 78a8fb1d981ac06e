/* What the warps of a block of attention share (attend_pair.cuh). */
#ifndef DI_KERNELS_CUDA_ATTEND_SHARED_CUH
#define DI_KERNELS_CUDA_ATTEND_SHARED_CUH

#include "kernels/cuda/attend_keys.cuh"

/* PAIR_TILES: six, twice the three that two blocks of slots take. */
static constexpr int PAIR_TILES = 6, PAIR_HEADS = 64, PAIR_ANGLES = 64, ROWS_FOUND = 4;
static constexpr int DECODERS = 8, PAIR_THREADS = 2 * GROUP + DECODERS * WARP;

/* Bytes that come from the peer: one number a head, and probabilities with one number a head. */
static constexpr uint32_t HEADS_BYTES = PAIR_HEADS * sizeof(float);
static constexpr uint32_t SENT_BYTES = PAIR_HEADS * SLAB * 2 + HEADS_BYTES;

enum { OWN, PEER }; /* whose block of slots it is */

/* The shared memory of a block, at a multiple of 1024 bytes; then the keys of two lists.
 * DC: half the width of a key. Tile 3 i + k, i the pair of blocks of slots in turns, has of the own
 * block the other half (k 0) and this half (k 1), of the peer's this half (k 2). What rows have one
 * after the other is there twice: warps may be a row apart. */
template <int DC> struct pair_shared {
    static constexpr int TILE_BYTES = DC / SLAB * SLAB_BYTES;
    uint8_t tiles[PAIR_TILES][TILE_BYTES]; /* the last of a row: then results, see store_results */
    uint4 p[2][4][GROUP];                  /* probabilities, thread by thread as they are used */
    float shrink[2][PAIR_HEADS];           /* what earlier results are multiplied with */
    float top[PAIR_HEADS];                 /* the peer's running maximum */
    float total[2][PAIR_HEADS];            /* the peer's sum at the end */
    float inverse[2][PAIR_HEADS];          /* what results are multiplied with */
    float sinks[PAIR_HEADS];
    float2 angles[2][PAIR_ANGLES];       /* cos and sin for the results' way back */
    uint4 raw_codes[2][DECODERS * WARP]; /* keys that are on their way to decoders, each thread's */
    uint32_t raw_scales[2][DECODERS * WARP];
    found_row rows[ROWS_FOUND];
    /* tiles; p and shrink are there, or read; top, total are there; inverse and angles are there, or
     * read; rows and their keys */
    uint64_t full[PAIR_TILES], empty[PAIR_TILES], sent[2], read[2], topped, summed[2];
    uint64_t finished[2], stored[2], found[ROWS_FOUND];
    uint32_t keys[1];
};
template <int DC> static constexpr size_t pair_bytes(int64_t slots) {
    return sizeof(pair_shared<DC>) + 2 * sizeof(uint32_t) * static_cast<size_t>(slots);
}

template <int DC> static __device__ __forceinline__ void make_barriers(pair_shared<DC> *m) {
    for (int i = 0; i < PAIR_TILES; i++) {
        barrier_init(&m->full[i], DECODERS * WARP_ARRIVALS);
        barrier_init(&m->empty[i], GROUP_WARPS * WARP_ARRIVALS);
    }
    barrier_init(&m->sent[OWN], GROUP_WARPS * WARP_ARRIVALS);
    barrier_init(&m->sent[PEER], 1);
    for (int i = 0; i < 2; i++) {
        barrier_init(&m->read[i], GROUP_WARPS * WARP_ARRIVALS);
        barrier_init(&m->summed[i], 1);
        barrier_init(&m->finished[i], GROUP_WARPS * WARP_ARRIVALS);
        barrier_init(&m->stored[i], GROUP_WARPS * WARP_ARRIVALS);
        barrier_expect(&m->summed[i], HEADS_BYTES);
    }
    for (int i = 0; i < ROWS_FOUND; i++) barrier_init(&m->found[i], GROUP_WARPS * WARP_ARRIVALS);
    barrier_init(&m->topped, 1);
    barrier_expect(&m->sent[PEER], SENT_BYTES);
    barrier_expect(&m->topped, HEADS_BYTES);
    barriers_made();
}

typedef struct pair_place { /* what a block works on: its half of rows first, first + step .. */
    int64_t first, step;
    int32_t rank, head; /* head: the first of 64 */
} pair_place;

/* The r-th row of this cluster as the warps that work on it have it. */
typedef struct pair_row {
    int32_t t, n, n_window, begin; /* t -1: there is none; begin: among all keys */
    /* Blocks of slots, and pairs of them: an empty list has one too, whose tiles nobody multiplies. */
    __device__ __forceinline__ int blocks() const { return (n + SLAB - 1) / SLAB; }
    __device__ __forceinline__ int pairs() const { return n > 0 ? (n - 1) / (2 * SLAB) + 1 : 1; }
} pair_row;

template <int DC>
static __device__ __forceinline__ pair_row await_row(pair_shared<DC> *m, uint32_t r) {
    barrier_wait(&m->found[r % ROWS_FOUND], r / ROWS_FOUND & 1);
    const found_row *from = &m->rows[r % ROWS_FOUND];
    pair_row row = {from->t, from->n_window, from->n_window, from->begin};
#pragma unroll
    for (int i = 0; i < GROUP_WARPS; i++) row.n += from->n_picks[i];
    return row;
}

#endif
