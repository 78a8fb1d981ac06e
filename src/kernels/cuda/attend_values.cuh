/* The warpgroup that multiplies probabilities with this block's half of the values (attend_pair.cuh).
 *
 * Thread 32 w + 4 g + t has of heads 16 w + g and 16 w + g + 8 the results at places 8 j + 2 t and the
 * next in o[4 j ..] and o[4 j + 2 ..]: of every 32 values the eight from 8 t on. */
#ifndef DI_KERNELS_CUDA_ATTEND_VALUES_CUH
#define DI_KERNELS_CUDA_ATTEND_VALUES_CUH

#include "kernels/cuda/attend_scores.cuh"

/* cos and sin for the results' way back: while there are no probabilities yet. */
template <int DC>
static __device__ __forceinline__ void make_angles(const di_attend_args &args, const pair_row &row,
                                                   pair_shared<DC> *m) {
    /* Neighbours in different warps: a few angles a warp take no longer than one. */
    int x = static_cast<int>(threadIdx.x) - GROUP;
    for (int i = x % WARP * GROUP_WARPS + x / WARP; i < args.rope.dims / 2; i += GROUP)
        m->angles[i] = rope_angle(args.rope, row.pos, i, true);
    asm volatile("bar.sync 1, 128;" ::: "memory");
}

template <int DC>
static __device__ __forceinline__ void shrink_results(float a, float b, float (&o)[DC / 2]) {
    if (!__any_sync(ALL_LANES, a != 1 || b != 1)) return;
#pragma unroll
    for (int i = 0; i < DC / 2; i++) o[i] *= i / 2 % 2 ? b : a;
}

/* Adds a block of slots, the u-th of this block or of the peer (`whose`). more: another of the same
 * will come. */
template <int DC>
static __device__ __forceinline__ void add_values(pair_shared<DC> *m, int u, int whose, int peer,
                                                  bool more, float (&o)[DC / 2]) {
    int me = static_cast<int>(threadIdx.x) - GROUP, stage = u % 2 * 3 + 1 + whose;
    uint32_t p[16];
    barrier_wait(&m->sent[whose], u & 1);
    if (whose == PEER && me == 0) barrier_expect(&m->sent[PEER], SENT_BYTES);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 v = m->p[whose][i][me];
        p[4 * i] = v.x, p[4 * i + 1] = v.y, p[4 * i + 2] = v.z, p[4 * i + 3] = v.w;
    }
    shrink_results<DC>(m->shrink[whose][head_of(0)], m->shrink[whose][head_of(1)], o);
    barrier_wait(&m->full[stage], u / 2 & 1);
    shared_for_products();
    uint64_t tile = descriptor_mn(common_address(m->tiles[stage]));
    hold(o);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; i++) product_values(o, p + 4 * i, tile + i * 16 * 128 / 16);
    products_commit();
    if (more) { /* probabilities are in registers: products have them */
        if (whose == PEER)
            warp_arrives_peer(cluster_address(&m->read[PEER], static_cast<uint32_t>(peer)));
        else
            warp_arrives(&m->read[OWN]);
    }
    products_wait<0>();
    hold(o);
    warp_arrives(&m->empty[stage]);
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

/* Results to the row's places. A thread's own ones go through shared memory only so that a short
 * loop can turn and write them: instructions that run once take long to be fetched. */
template <int DC>
static __device__ __forceinline__ void store_results(const di_attend_args &args,
                                                     const pair_row &row, pair_shared<DC> *m,
                                                     const float (&o)[DC / 2]) {
    uint4 *staged = reinterpret_cast<uint4 *>(m->tiles[0]) + (threadIdx.x - GROUP);
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
    __nv_bfloat16 *out =
        cuda_at<__nv_bfloat16>(args.out) + (row.t * args.n_heads + row.head) * args.head_dim;
#pragma unroll 2
    for (int i = 0; i < DC / 16; i++) {
        int dim = row.rank * DC + i / 2 * 32 + lane_id() % 4 * 8, head = head_of(i % 2);
        if (row.head + head >= args.n_heads || dim >= args.head_dim) continue;
        uint4 v = staged[i * GROUP];
        if (dim + 8 > args.head_dim - args.rope.dims) v = turned(args, m->angles, dim, v);
        *reinterpret_cast<uint4 *>(out + static_cast<int64_t>(head) * args.head_dim + dim) = v;
    }
}

template <int DC>
static __device__ __forceinline__ void make_results(const di_attend_args &args, const pair_row &row,
                                                    const key_list &l, pair_shared<DC> *m) {
    int n_blocks = (l.n + SLAB - 1) / SLAB;
    float o[DC / 2];
    make_angles(args, row, m);
#pragma unroll
    for (int i = 0; i < DC / 2; i++) o[i] = 0;
    for (int block = 0; block < n_blocks; block++)
        add_values<DC>(m, block / 2, block % 2 == row.rank ? OWN : PEER, row.rank ^ 1,
                       block + 2 < n_blocks, o);
    barrier_wait(&m->finished, 0);
    store_results(args, row, m, o);
}

#endif
