/* Attention under `release` on the matrix units of compute capability 9.0.
 *
 * A cluster of two blocks works on a row and 64 heads. Block `rank` makes the scores and probabilities
 * of every second block of 64 slots, from its rank-th on, and the results of all slots for its half
 * of the values, from rank * DC on; probabilities go to the other's shared memory. What a block of
 * slots needs of the one before it is the running maximum, which goes the same way, one number a
 * head. A tile is one half of the keys of a block of slots; a block decodes both halves of its own,
 * and copies the peer's half to the peer.
 *
 * In a block a warpgroup makes probabilities (attend_scores.cuh), another one results
 * (attend_values.cuh), and eight warps decode keys into a ring of tiles (attend_decode.cuh).
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

/* The decoders: where the row's keys lie, then their tiles. */
template <int DC, bool WHOLE>
static __device__ __forceinline__ void make_tiles(const di_attend_args &args, const pair_row &row,
                                                  pair_shared<DC> *m) {
    int me = static_cast<int>(threadIdx.x) - 2 * GROUP;
    row_start start = start_row(args, row.t, me, DECODER_THREADS);
    if (start.pos >= 0)
        find_keys(args, row.t, start, me, DECODER_THREADS, m->addresses, &m->n_window,
                  &m->picked[me / WARP]);
    else
        m->n_window = -1;
    threads_come<LIST_MEET, PAIR_THREADS>();
    threads_meet<DECODERS_MEET, DECODER_THREADS>();
    int32_t n = slots_listed(m);
    if (n < 0) return;
    cluster_meet();
    key_list l = listed_keys(args, m->n_window, n, m->addresses);
    decode_tiles<DC, WHOLE>(args, l, m, row.rank);
}

/* The kernel: blocks 2 t and 2 t + 1 for row t, blockIdx.y for 64 heads. scale: of the products with
 * tiles, to scores times log2(e). WHOLE: keys are 2 DC wide and lie as whole_keys demands. */
template <int DC, bool WHOLE>
static __global__ __cluster_dims__(2, 1, 1)
    __launch_bounds__(PAIR_THREADS, 1) void attend_pair_kernel(di_attend_args args, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t shared_bytes[];
    uint32_t off = -shared_address(shared_bytes) & 1023u;
    pair_shared<DC> *m = reinterpret_cast<pair_shared<DC> *>(shared_bytes + off);
    pair_row row;
    row.t = blockIdx.x / 2, row.rank = static_cast<int32_t>(blockIdx.x % 2);
    row.head = static_cast<int32_t>(blockIdx.y) * PAIR_HEADS;
    let_kernels_begin();
    if (threadIdx.x == 0) make_barriers(m);
    __syncwarp();
    cluster_come();
    if (warp_id() >= 2 * GROUP_WARPS) {
        fewer_registers<72>();
        await_kernels_before();
        make_tiles<DC, WHOLE>(args, row, m);
    } else if (warp_id() >= GROUP_WARPS) {
        more_registers<176>();
        await_kernels_before();
        make_results<DC>(args, row, m);
    } else {
        more_registers<192>();
        await_kernels_before();
        make_probabilities<DC, WHOLE>(args, row, m, scale);
    }
#endif
}

#endif
