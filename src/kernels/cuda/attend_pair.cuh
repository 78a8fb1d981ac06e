/* Attention under `release` on the matrix units of compute capability 9.0.
 *
 * A cluster of two blocks works on a row and 64 heads. Block `rank` makes the scores and probabilities
 * of every second block of 64 slots, from its rank-th on, and the results of all slots for its half
 * of the values, from rank * DC on; probabilities go to the other's shared memory. What a block of
 * slots needs of the one before it is the running maximum, which goes the same way, one number a
 * head. A tile is one half of the keys of a block of slots; a block decodes three for every two
 * blocks of slots: both halves of its own, and its half of the peer's.
 *
 * In a block a warpgroup makes probabilities (attend_scores.cuh), another one results
 * (attend_values.cuh), and eight warps decode keys into a ring of tiles (attend_decode.cuh).
 *
 * Rows are taken in turns, and a role begins the next one as soon as it has done its part: the decoders
 * find and decode keys of a row while results of the one before are finished. Barriers go on from row
 * to row; how often each was used before is counted (pair_row).
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

/* The kernel: blocks 2 t and 2 t + 1, a cluster, for row t and every row that is a multiple of the
 * number of clusters later; blockIdx.y for 64 heads. scale: of the products with tiles, to scores times
 * log2(e). WHOLE: keys are 2 DC wide, their codes aligned to 16 bytes, the scales of entries to two. */
template <int DC, bool WHOLE>
static __global__ __cluster_dims__(2, 1, 1)
    __launch_bounds__(PAIR_THREADS, 1) void attend_pair_kernel(di_attend_args args, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t shared_bytes[];
    uint32_t off = -shared_address(shared_bytes) & 1023u;
    pair_shared<DC> *m = reinterpret_cast<pair_shared<DC> *>(shared_bytes + off);
    pair_row row = {};
    row.t = blockIdx.x / 2, row.rank = static_cast<int32_t>(blockIdx.x % 2);
    row.head = static_cast<int32_t>(blockIdx.y) * PAIR_HEADS;
    /* With few rows most of the device is free for the weights of what follows. */
    let_kernels_begin();
    if (threadIdx.x == 0) make_barriers(m);
    cluster_come();
    await_kernels_before();
    ask_for_queries(args, row, static_cast<int>(threadIdx.x), PAIR_THREADS);
    if (warp_id() >= 2 * GROUP_WARPS) {
        fewer_registers<72>();
        make_tiles<DC, WHOLE>(args, row, m);
    } else if (warp_id() >= GROUP_WARPS) {
        more_registers<176>();
        make_results<DC>(args, row, m);
    } else {
        more_registers<192>();
        make_probabilities<DC, WHOLE>(args, row, m, scale);
    }
    __syncwarp();
    cluster_sync_aligned(); /* the peer may still send, or be told that something has been read */
#endif
}

#endif
