/* Attention under `release` on the matrix units of compute capability 9.0.
 *
 * A cluster of two blocks works on a row and 64 heads at a time, and goes on to other rows. Block `rank`
 * makes the scores and probabilities of every second block of 64 slots, from its rank-th on, and the
 * results of all slots for its half of the values, from rank * DC on; probabilities go to the other's
 * shared memory. What a block of slots needs of the one before it is the running maximum, which goes the
 * same way, one number a head. A tile is one half of the keys of a block of slots; a block decodes three
 * for every two blocks of slots: both halves of its own, and its half of the peer's.
 *
 * In a block a warpgroup makes probabilities and finds the next row's keys (attend_scores.cuh), another
 * one results (attend_values.cuh), and eight warps decode keys into a ring of tiles (attend_decode.cuh).
 * They meet by barriers alone, so one may be at the next row already: decoders by two pairs of blocks of
 * slots, those of probabilities by one.
 *
 * A row's bits depend on itself alone: DC follows from the width of a head, who makes which scores
 * from the list, results are added in the list's order, and sums of probabilities in the order of
 * each block's own slots, then the two of them.
 */
#ifndef DI_KERNELS_CUDA_ATTEND_PAIR_CUH
#define DI_KERNELS_CUDA_ATTEND_PAIR_CUH

#include "kernels/cuda/attend_decode.cuh"
#include "kernels/cuda/attend_scores.cuh"
#include "kernels/cuda/attend_values.cuh"

/* The kernel: a cluster for row blockIdx.x / 2 and every gridDim.x / 2-th after it, blockIdx.y for 64
 * heads. scale: of the products with tiles, to scores times log2(e). WHOLE: keys are 2 DC wide, their
 * codes aligned to 16 bytes, their scales to four. */
template <int DC, bool WHOLE>
static __global__ __cluster_dims__(2, 1, 1)
    __launch_bounds__(PAIR_THREADS, 1) void attend_pair_kernel(di_attend_args args, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t pair_memory[];
    pair_shared<DC> *m = reinterpret_cast<pair_shared<DC> *>(pair_memory);
    pair_place place;
    place.first = blockIdx.x / 2, place.step = gridDim.x / 2;
    place.rank = static_cast<int32_t>(blockIdx.x % 2);
    place.head = static_cast<int32_t>(blockIdx.y) * PAIR_HEADS;
    int head = static_cast<int>(threadIdx.x);
    float sink = 0; /* asked for here: what is not in the cache yet is far away */
    if (head < PAIR_HEADS && place.head + head < args.n_heads)
        sink = vector_value(args.sink, place.head + head);
    /* With few rows most of the device is free for the weights of what follows. */
    let_kernels_begin();
    if (threadIdx.x == 0) make_barriers(m);
    __syncwarp();
    cluster_come();
    await_kernels_before();
    if (warp_id() >= 2 * GROUP_WARPS) {
        fewer_registers<56>();
        cluster_meet();
        decode_tiles<DC, WHOLE>(args, m, place.rank);
    } else if (warp_id() >= GROUP_WARPS) {
        ask_for_queries(args, place, place.first, static_cast<int32_t>(threadIdx.x) - GROUP, GROUP);
        more_registers<176>();
        cluster_meet();
        make_results<DC>(args, place, m);
    } else {
        more_registers<224>();
        make_probabilities<DC, WHOLE>(args, place, m, scale, sink);
    }
    /* With several rows a block says that it has read what came last, too. */
    if (place.first + place.step < args.batch.n_rows) cluster_sync();
#endif
}

#endif
