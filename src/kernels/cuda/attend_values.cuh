/* The warpgroup that multiplies probabilities with this block's half of the values (attend_pair.cuh).
 *
 * Thread 32 w + 4 g + t has of heads 16 w + g and 16 w + g + 8 the results at places 8 j + 2 t and the
 * next in o[4 j ..] and o[4 j + 2 ..]: of every 32 values the eight from 8 t on. */
#ifndef DI_KERNELS_CUDA_ATTEND_VALUES_CUH
#define DI_KERNELS_CUDA_ATTEND_VALUES_CUH

#include "kernels/cuda/attend_scores.cuh"

template <int DC>
static __device__ __forceinline__ void shrink_results(float a, float b, float (&o)[DC / 2]) {
    if (!__any_sync(ALL_LANES, a != 1 || b != 1)) return;
#pragma unroll
    for (int i = 0; i < DC / 2; i++) o[i] *= i / 2 % 2 ? b : a;
}

/* How far a warp is: pairs of blocks of slots, blocks of this block and of the peer, rows. */
typedef struct value_count {
    uint32_t pair, own, peer, row;
} value_count;

static __device__ __forceinline__ uint32_t value_stage(uint32_t pair, int whose) {
    return pair % 2 * 3 + 1 + static_cast<uint32_t>(whose);
}

/* Adds a block of slots, of this block or of the peer (`whose`). more: another of the same may
 * come. */
template <int DC>
static __device__ __forceinline__ void add_values(pair_shared<DC> *m, value_count *count, int whose,
                                                  int peer, bool more, float (&o)[DC / 2]) {
    int me = static_cast<int>(threadIdx.x) - GROUP;
    uint32_t stage = value_stage(count->pair, whose), p[16];
    barrier_wait(&m->sent[whose], (whose == PEER ? count->peer++ : count->own++) & 1);
    if (whose == PEER && me == 0) barrier_expect(&m->sent[PEER], SENT_BYTES);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 v = m->p[whose][i][me];
        p[4 * i] = v.x, p[4 * i + 1] = v.y, p[4 * i + 2] = v.z, p[4 * i + 3] = v.w;
    }
    shrink_results<DC>(m->shrink[whose][head_of(0)], m->shrink[whose][head_of(1)], o);
    barrier_wait(&m->full[stage], count->pair / 2 & 1);
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
 * loop can turn and write them: instructions that run once take long to be fetched. `now`: rows
 * modulo 2; stage: of the tile that was multiplied last, which nobody needs any more. */
template <int DC>
static __device__ __forceinline__ void
store_results(const di_attend_args &args, const pair_place &place, int64_t t, pair_shared<DC> *m,
              uint32_t now, uint32_t stage, const float (&o)[DC / 2]) {
    uint4 *staged = reinterpret_cast<uint4 *>(m->tiles[stage]) + (threadIdx.x - GROUP);
    asm volatile("bar.sync 1, 128;" ::: "memory"); /* all have multiplied it */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float inverse = m->inverse[now][head_of(r)];
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
        cuda_at<__nv_bfloat16>(args.out) + (t * args.n_heads + place.head) * args.head_dim;
#pragma unroll 2
    for (int i = 0; i < DC / 16; i++) {
        int dim = place.rank * DC + i / 2 * 32 + lane_id() % 4 * 8, head = head_of(i % 2);
        if (place.head + head >= args.n_heads || dim >= args.head_dim) continue;
        uint4 v = staged[i * GROUP];
        if (dim + 8 > args.head_dim - args.rope.dims) v = turned(args, m->angles[now], dim, v);
        *reinterpret_cast<uint4 *>(out + static_cast<int64_t>(head) * args.head_dim + dim) = v;
    }
}

/* The results of a row. more: of the cluster's rows it may not be the last. */
template <int DC>
static __device__ __forceinline__ void
row_results(const di_attend_args &args, const pair_place &place, const pair_row &row, bool more,
            pair_shared<DC> *m, value_count *count) {
    int n_blocks = row.blocks(), end = 2 * row.pairs();
    uint32_t now = count->row & 1, stage = 0;
    float o[DC / 2];
#pragma unroll
    for (int i = 0; i < DC / 2; i++) o[i] = 0;
#pragma unroll 1
    for (int block = 0; block < end; block++) {
        int whose = block % 2 == place.rank ? OWN : PEER;
        stage = value_stage(count->pair, whose);
        if (block < n_blocks)
            add_values<DC>(m, count, whose, place.rank ^ 1, more || block + 2 < n_blocks, o);
        else
            barrier_wait(&m->full[stage], count->pair / 2 & 1);
        if (block + 1 < end) warp_arrives(&m->empty[stage]);
        count->pair += block % 2;
    }
    barrier_wait(&m->finished[now], count->row / 2 & 1);
    store_results(args, place, row.t, m, now, stage, o);
    warp_arrives(&m->stored[now]);
    warp_arrives(&m->empty[stage]);
}

/* The results of all rows. */
template <int DC>
static __device__ __forceinline__ void make_results(const di_attend_args &args,
                                                    const pair_place &place, pair_shared<DC> *m) {
    value_count count = {0, 0, 0, 0};
    bool more = place.first + place.step < args.batch.n_rows;
#pragma unroll 1
    for (;; count.row++) {
        pair_row row = await_row(m, count.row);
        if (row.t < 0) return;
        row_results(args, place, row, more, m, &count);
    }
}

#endif
