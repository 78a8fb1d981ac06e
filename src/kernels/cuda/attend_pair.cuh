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
 * A row's bits depend on itself alone: DC follows from the width of a head, who makes which scores
 * from the list, results are added in the list's order, and sums of probabilities in the order of
 * each block's own slots, then the two of them.
 */
#ifndef DI_KERNELS_CUDA_ATTEND_PAIR_CUH
#define DI_KERNELS_CUDA_ATTEND_PAIR_CUH

#include "kernels/cuda/attend_decode.cuh"
#include "kernels/cuda/attend_scores.cuh"
#include "kernels/cuda/attend_values.cuh"

/* Asks for a row's queries: they are loaded when the warps have their registers. */
static __device__ __forceinline__ void ask_for_queries(const di_attend_args &args,
                                                       const pair_row &row) {
    const uint8_t *q = cuda_at<const uint8_t>(args.q) +
                       2 * (row.t * args.n_heads + row.head) * static_cast<int64_t>(args.head_dim);
    int32_t heads = args.n_heads - row.head < PAIR_HEADS ? args.n_heads - row.head : PAIR_HEADS;
#pragma unroll 1
    for (int32_t i = static_cast<int32_t>(threadIdx.x) * 64; i < heads * args.head_dim * 2;
         i += PAIR_THREADS * 64)
        ask_for(q + i);
}

/* The kernel: blocks 2 t and 2 t + 1 for row t, blockIdx.y for 64 heads. scale: of the products with
 * tiles, to scores times log2(e). WHOLE: keys are 2 DC wide, their codes aligned to 16 bytes, their
 * scales to four. */
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
    int head = static_cast<int>(threadIdx.x);
    float sink = 0; /* asked for here: what is not in the cache yet is far away */
    if (head < PAIR_HEADS && row.head + head < args.n_heads)
        sink = vector_value(args.sink, row.head + head);
    /* With few rows most of the device is free for the weights of what follows. */
    let_kernels_begin();
    if (threadIdx.x == 0) make_barriers(m);
    __syncwarp();
    await_kernels_before();
    ask_for_queries(args, row);
    row_start start = start_row(args, row.t);
    row.pos = start.pos;
    if (row.pos < 0) return; /* both blocks */
    __syncwarp();
    cluster_come();
    key_list l = find_keys(args, row.t, start, PAIR_THREADS, m->addresses);
    if (head < PAIR_HEADS) m->inverse[head] = sink;
    __syncthreads();
    cluster_meet();
    if (warp_id() >= 2 * GROUP_WARPS) {
        fewer_registers<72>();
        decode_tiles<DC, WHOLE>(args, l, m, row.rank);
    } else if (warp_id() >= GROUP_WARPS) {
        more_registers<176>();
        make_results<DC>(args, row, l, m);
    } else {
        more_registers<192>();
        make_probabilities<DC, WHOLE>(args, row, l, m, scale);
    }
#endif
}

#endif
