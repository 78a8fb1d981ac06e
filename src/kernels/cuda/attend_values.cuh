/* The warpgroup that multiplies probabilities with this block's half of the values (attend_pair.cuh).
 *
 * Thread 32 w + 4 g + t has of heads 16 w + g and 16 w + g + 8 the results at places 8 j + 2 t and the
 * next in o[4 j ..] and o[4 j + 2 ..]: of every 32 values the eight from 8 t on. */
#ifndef DI_KERNELS_CUDA_ATTEND_VALUES_CUH
#define DI_KERNELS_CUDA_ATTEND_VALUES_CUH

#include "kernels/cuda/attend_scores.cuh"

/* cos and sin for the results' way back. */
static __device__ __forceinline__ void make_angles(const di_attend_args &args, int32_t pos,
                                                   float2 *angles) {
    /* Neighbours in different warps: a few angles a warp take no longer than one. */
    int x = static_cast<int>(threadIdx.x) - GROUP;
    for (int i = x % WARP * GROUP_WARPS + x / WARP; i < args.rope.dims / 2; i += GROUP)
        angles[i] = rope_angle(args.rope, pos, i, true);
}

template <int DC>
static __device__ __forceinline__ void shrink_results(float a, float b, float (&o)[DC / 2]) {
    if (!__any_sync(ALL_LANES, a != 1 || b != 1)) return;
#pragma unroll
    for (int i = 0; i < DC / 2; i++) o[i] *= i / 2 % 2 ? b : a;
}

/* The tile of this half of the values of block u of all rows, of this block or of the peer. */
static __device__ __forceinline__ uint32_t stage_of(uint32_t u, int whose) {
    return turn_of(u) * 3 + 1 + static_cast<uint32_t>(whose);
}

/* Adds a block of slots, the u-th of this block or of the peer (`whose`), of all rows. The tile is not
 * given back where it is to be kept. */
template <int DC>
static __device__ __forceinline__ void add_values(pair_shared<DC> *m, uint32_t u, int whose,
                                                  int peer, bool keep, float (&o)[DC / 2]) {
    int me = static_cast<int>(threadIdx.x) - GROUP;
    uint32_t p[16], stage = stage_of(u, whose);
    barrier_wait(&m->sent[whose], u & 1);
    if (whose == PEER && me == 0) barrier_expect(&m->sent[PEER], SENT_BYTES);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 v = m->p[whose][i][me];
        p[4 * i] = v.x, p[4 * i + 1] = v.y, p[4 * i + 2] = v.z, p[4 * i + 3] = v.w;
    }
    shrink_results<DC>(m->shrink[whose][head_of(0)], m->shrink[whose][head_of(1)], o);
    barrier_wait(&m->full[stage], turn_parity(u));
    uint64_t tile = descriptor_mn(common_address(m->tiles[stage]));
    hold(o);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) product_values(o, p + 4 * i, tile + i * 16 * 128 / 16);
    products_commit();
    if (lane_id() == 0) { /* probabilities are in registers: products have them */
        if (whose == PEER)
            barrier_arrive_peer(cluster_address(&m->read[PEER], static_cast<uint32_t>(peer)));
        else
            barrier_arrive(&m->read[OWN]);
    }
    products_wait<0>();
    hold(o);
    if (lane_id() == 0 && !keep) barrier_arrive(&m->empty[stage]);
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
static __device__ __forceinline__ void stage_results(const float *inverses,
                                                     const float (&o)[DC / 2], uint4 *staged) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float inverse = inverses[head_of(r)];
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

/* Results to the row's places, 0 where nothing was staged. A thread's own ones go through shared
 * memory only so that a short loop can turn and write them: instructions that run once take long to be
 * fetched. */
template <int DC>
static __device__ __forceinline__ void store_results(const di_attend_args &args,
                                                     const pair_row &row, const float2 *angles,
                                                     const uint4 *staged) {
    __nv_bfloat16 *out = cuda_at<__nv_bfloat16>(args.out) + heads_before(args, row) * args.head_dim;
#pragma unroll 2
    for (int i = 0; i < DC / 16; i++) {
        int dim = row.rank * DC + i / 2 * 32 + lane_id() % 4 * 8, head = head_of(i % 2);
        if (row.head + head >= args.n_heads || dim >= args.head_dim) continue;
        uint4 v = staged == NULL ? make_uint4(0, 0, 0, 0) : staged[i * GROUP];
        if (dim + 8 > args.head_dim - args.rope.dims) v = turned(args, angles, dim, v);
        *reinterpret_cast<uint4 *>(out + static_cast<int64_t>(head) * args.head_dim + dim) = v;
    }
}

/* What is left when all blocks of slots have been added. kept: the last one's tile, which results go
 * through, or -1. */
template <int DC>
static __device__ __forceinline__ void end_row(const di_attend_args &args, const pair_row &row,
                                               pair_shared<DC> *m, int kept,
                                               const float (&o)[DC / 2]) {
    uint4 *staged = NULL;
    barrier_wait(&m->finished, row.turn & 1);
    if (kept >= 0) {
        staged = reinterpret_cast<uint4 *>(m->tiles[kept]) + (threadIdx.x - GROUP);
        stage_results<DC>(m->inverse, o, staged);
    }
    __syncwarp();
    if (lane_id() == 0) barrier_arrive(&m->taken[turn_of(row.turn)]);
    store_results<DC>(args, row, m->angles[turn_of(row.turn)], staged);
    __syncwarp();
    if (lane_id() == 0 && kept >= 0) barrier_arrive(&m->empty[kept]);
}

template <int DC>
static __device__ __forceinline__ void make_results(const di_attend_args &args, pair_row row,
                                                    pair_shared<DC> *m) {
    float o[DC / 2];
    bool more = find_row(args, row);
    if (more) make_angles(args, row.pos, m->angles[0]);
    cluster_meet();
    while (more) {
        int32_t n = await_list(m, row), n_blocks = blocks_of(n);
        int kept = -1;
#pragma unroll
        for (int i = 0; i < DC / 2; i++) o[i] = 0;
        for (int block = 0; block < n_blocks; block++) {
            int whose = block % 2 == row.rank ? OWN : PEER;
            uint32_t u = (whose == OWN ? row.own : row.peer) + static_cast<uint32_t>(block / 2);
            bool last = block + 1 == n_blocks;
            add_values<DC>(m, u, whose, row.rank ^ 1, last, o);
            if (last) kept = static_cast<int>(stage_of(u, whose));
        }
        threads_meet<RESULTS_MEET, GROUP>(); /* nobody reads the last tile, or older angles */
        pair_row next = row;
        pass_row(next, n);
        more = find_row(args, next);
        if (more) {
            ask_for_queries(args, next, static_cast<int>(threadIdx.x) - GROUP, GROUP);
            make_angles(args, next.pos, m->angles[turn_of(next.turn)]);
        }
        end_row<DC>(args, row, m, kept, o);
        row = next;
    }
}

#endif
