/* The warpgroup that multiplies probabilities with this block's half of the values (attend_pair.cuh).
 *
 * Thread 32 w + 4 g + t has of heads 16 w + g and 16 w + g + 8 the results at places 8 j + 2 t and the
 * next in o[4 j ..] and o[4 j + 2 ..]: of every 32 values the eight from 8 t on. */
#ifndef DI_KERNELS_CUDA_ATTEND_VALUES_CUH
#define DI_KERNELS_CUDA_ATTEND_VALUES_CUH

#include "kernels/cuda/attend_scores.cuh"

/* cos and sin for the results' way back: while the list is not known yet. */
template <int DC>
static __device__ __forceinline__ void make_angles(const di_attend_args &args, int32_t pos,
                                                   pair_shared<DC> *m) {
    /* Neighbours in different warps: a few angles a warp take no longer than one. */
    int x = static_cast<int>(threadIdx.x) - GROUP;
    for (int i = x % WARP * GROUP_WARPS + x / WARP; i < args.rope.dims / 2; i += GROUP)
        m->angles[i] = rope_angle(args.rope, pos, i, true);
}

template <int DC>
static __device__ __forceinline__ void shrink_results(float a, float b, float (&o)[DC / 2]) {
    if (!__any_sync(ALL_LANES, a != 1 || b != 1)) return;
#pragma unroll
    for (int i = 0; i < DC / 2; i++) o[i] *= i / 2 % 2 ? b : a;
}

/* Says that probabilities have been read: they are in registers. */
template <int DC>
static __device__ __forceinline__ void release_probabilities(pair_shared<DC> *m, int whose,
                                                             uint32_t peer) {
    if (whose == PEER)
        barrier_arrive_peer(cluster_address(&m->read[PEER], peer));
    else
        barrier_arrive(&m->read[OWN]);
}
/* Says that a tile has been read; of one from the peer, to the peer, whose next may then be made. */
template <int DC>
static __device__ __forceinline__ void release_tile(pair_shared<DC> *m, int stage, int whose,
                                                    uint32_t peer) {
    if (whose == PEER)
        barrier_arrive_peer(cluster_address(&m->empty[stage][AWAY], peer));
    else
        barrier_arrive(&m->empty[stage][HERE]);
}

/* Adds a block of slots, the u-th of this block or of the peer (`whose`). more: another of the same
 * will come. */
template <int DC>
static __device__ __forceinline__ void add_values(pair_shared<DC> *m, int u, int whose, int peer,
                                                  bool more, float (&o)[DC / 2]) {
    int me = static_cast<int>(threadIdx.x) - GROUP, stage = u % PAIR_STAGES;
    int from = whose == PEER ? FROM_PEER : HERE;
    uint32_t p[16];
    barrier_wait(&m->sent[whose], u & 1);
    if (whose == PEER && me == 0) barrier_expect(&m->sent[PEER], SENT_BYTES);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 v = m->p[whose][i][me];
        p[4 * i] = v.x, p[4 * i + 1] = v.y, p[4 * i + 2] = v.z, p[4 * i + 3] = v.w;
    }
    shrink_results<DC>(m->shrink[whose][head_of(0)], m->shrink[whose][head_of(1)], o);
    barrier_wait(&m->full[stage][from], u / PAIR_STAGES & 1);
    if (whose == PEER && me == 0) barrier_expect(&m->full[stage][FROM_PEER], m->TILE_BYTES);
    uint64_t tile = descriptor_mn(common_address(m->tiles[stage][from]));
    hold(o);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) product_values(o, p + 4 * i, tile + i * 16 * 128 / 16);
    products_commit();
    if (lane_id() == 0 && more) release_probabilities(m, whose, static_cast<uint32_t>(peer));
    products_wait<0>();
    hold(o);
    if (lane_id() == 0) release_tile(m, stage, whose, static_cast<uint32_t>(peer));
}

/* Eight values from `dim` on of a head, rotated back. */
static __device__ __forceinline__ uint4 turned(const di_attend_args &args, const float2 *angles,
                                               int dim, uint4 v) {
    uint32_t words[4] = {v.x, v.y, v.z, v.w};
    int tail = args.head_dim - args.rope.dims;
#pragma unroll
    for (int w = 0; w < 4; w++) {
        if (dim + 2 * w < tail) continue;
        float2 x =
            make_float2(__uint_as_float(words[w] << 16), __uint_as_float(words[w] & 0xFFFF0000u));
        x = rotated(x, angles[(dim + 2 * w - tail) / 2]);
        __nv_bfloat162 pair = __floats2bfloat162_rn(x.x, x.y);
        words[w] = *reinterpret_cast<uint32_t *>(&pair);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* This thread's results to shared memory, piece 2 i + r of eight values at piece * GROUP. */
template <int DC>
static __device__ __forceinline__ void stage_results(pair_shared<DC> *m, const float (&o)[DC / 2],
                                                     uint4 *staged) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float inverse = m->inverse[head_of(r)];
#pragma unroll
        for (int i = 0; i < DC / 32; i++) {
            uint32_t x[4];
#pragma unroll
            for (int k = 0; k < 4; k++) { /* values 2 k and 2 k + 1 */
                int at = 16 * i + 2 * r, j = 2 * k % 4 * 4 + 2 * k / 4;
                __nv_bfloat162 pair =
                    __floats2bfloat162_rn(o[at + j] * inverse, o[at + j + 4] * inverse);
                x[k] = *reinterpret_cast<uint32_t *>(&pair);
            }
            staged[(i * 2 + r) * GROUP] = make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
}

/* Results to the row's places. A thread's own ones go through shared memory only so that short loops
 * can turn and write them: instructions that run once take long to be fetched. */
template <int DC>
static __device__ __forceinline__ void store_results(const di_attend_args &args,
                                                     const pair_row &row, pair_shared<DC> *m,
                                                     const float (&o)[DC / 2]) {
    uint4 *staged = reinterpret_cast<uint4 *>(m->tiles[0][HERE]) + (threadIdx.x - GROUP);
    threads_meet<RESULTS_MEET, GROUP>(); /* all have read the last tile */
    stage_results<DC>(m, o, staged);
    __nv_bfloat16 *out =
        cuda_at<__nv_bfloat16>(args.out) + (row.t * args.n_heads + row.head) * args.head_dim;
    const int first = row.rank * DC + lane_id() % 4 * 8; /* of piece 0 */
    const int tail = args.head_dim - args.rope.dims - 8, left = args.n_heads - row.head;
#pragma unroll 4
    for (int i = 0; i < DC / 16; i++) {
        int dim = first + i / 2 * 32, head = head_of(i % 2);
        if (head < left && dim <= tail && dim < args.head_dim)
            *reinterpret_cast<uint4 *>(out + static_cast<int64_t>(head) * args.head_dim + dim) =
                staged[i * GROUP];
    }
#pragma unroll 1
    for (int i = 0; i < DC / 16; i++) {
        int dim = first + i / 2 * 32, head = head_of(i % 2);
        if (head >= left || dim <= tail || dim >= args.head_dim) continue;
        *reinterpret_cast<uint4 *>(out + static_cast<int64_t>(head) * args.head_dim + dim) =
            turned(args, m->angles, dim, staged[i * GROUP]);
    }
}

/* Until the peer has this block's last tiles: before that it may not end. */
template <int DC>
static __device__ __forceinline__ void await_peer(pair_shared<DC> *m, int own_blocks) {
    for (int u = own_blocks > PAIR_STAGES ? own_blocks - PAIR_STAGES : 0; u < own_blocks; u++)
        barrier_wait(&m->empty[u % PAIR_STAGES][AWAY], u / PAIR_STAGES & 1);
}

template <int DC>
static __device__ __forceinline__ void make_results(const di_attend_args &args, const pair_row &row,
                                                    pair_shared<DC> *m) {
    float o[DC / 2];
    make_angles(args, position_of(args, row.t), m);
    threads_meet<LIST_MEET, PAIR_THREADS>();
    int32_t n = slots_listed(m);
    if (n < 0) return;
    cluster_meet();
    int n_blocks = blocks_of(n);
#pragma unroll
    for (int i = 0; i < DC / 2; i++) o[i] = 0;
    for (int block = 0; block < n_blocks; block++)
        add_values<DC>(m, block / 2, block % 2 == row.rank ? OWN : PEER, row.rank ^ 1,
                       block + 2 < n_blocks, o);
    barrier_wait(&m->finished, 0);
    store_results(args, row, m, o);
    await_peer(m, blocks_of(n, row.rank));
}

#endif
