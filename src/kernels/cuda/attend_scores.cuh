/* The warpgroup that makes the scores of a block's own slots, and probabilities of them
 * (attend_pair.cuh).
 *
 * Thread 32 w + 4 g + t has, of heads 16 w + g and 16 w + g + 8, the scores of slots 8 j + 2 t and the
 * next in s[4 j ..] and s[4 j + 2 ..]. Maxima are those of scores times log2(e): powers are of 2. */
#ifndef DI_KERNELS_CUDA_ATTEND_SCORES_CUH
#define DI_KERNELS_CUDA_ATTEND_SCORES_CUH

#include "kernels/cuda/attend_shared.cuh"

typedef struct head_pair {  /* of two heads */
    float top[2], total[2]; /* after the last own block; total: of this thread's slots */
    uint32_t met;           /* blocks of the peer whose maxima have been taken over */
} head_pair;

static __device__ __forceinline__ int head_of(int r) {
    return static_cast<int>(threadIdx.x) % GROUP / WARP * 16 + lane_id() / 4 + 8 * r;
}

/* Queries (not by __ldg, see attend_decode.cuh) as the left operand, first of the other half of the
 * values, then of this. */
template <int DC, bool WHOLE>
static __device__ __forceinline__ void load_queries(const di_attend_args &args, const pair_row &row,
                                                    uint32_t (&q)[DC / 2]) {
    const int width = WHOLE ? 2 * DC : args.head_dim, place = lane_id() % 4 * 8;
    const __nv_bfloat16 *all =
        cuda_at<const __nv_bfloat16>(args.q) + (row.t * args.n_heads + row.head) * width;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool there = row.head + head_of(r) < args.n_heads;
        const __nv_bfloat16 *from = all + (there ? head_of(r) * width + place : place);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int begin = (h == 0 ? row.rank ^ 1 : row.rank) * DC;
            const uint4 *half = reinterpret_cast<const uint4 *>(from + begin);
#pragma unroll
            for (int i = 0; i < DC / 32; i++) {
                uint4 v = make_uint4(0, 0, 0, 0);
                if (WHOLE || begin + 32 * i < width) v = half[4 * i];
                int at = h * (DC / 4) + 8 * i + r;
                q[at] = v.x, q[at + 2] = v.y, q[at + 4] = v.z, q[at + 6] = v.w;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < DC / 2; i += 8) /* once all are under way */
#pragma unroll
        for (int r = i; r < i + 2; r++) {
            uint4 v = paired(make_uint4(q[r], q[r + 2], q[r + 4], q[r + 6]));
            q[r] = v.x, q[r + 2] = v.y, q[r + 4] = v.z, q[r + 6] = v.w;
        }
}

/* Adds what half `half` of the values makes of the scores. */
template <int DC>
static __device__ __forceinline__ void add_scores(const uint8_t *tile, int half,
                                                  const uint32_t (&q)[DC / 2], float (&s)[32]) {
    uint64_t keys = descriptor_k(common_address(tile));
#pragma unroll
    for (int i = 0; i < DC / 16; i++)
        product_scores(s, q + half * (DC / 4) + 4 * i,
                       keys + (i / 4 * SLAB_BYTES + i % 4 * 32) / 16, half + i > 0);
    products_commit();
}

/* The scores of own block u. */
template <int DC>
static __device__ __forceinline__ void make_scores(pair_shared<DC> *m, int u,
                                                   const uint32_t (&q)[DC / 2], float (&s)[32]) {
    int stage = u % 2 * 3;
    uint32_t parity = u / 2 & 1;
    barrier_wait(&m->full[stage], parity);
    shared_for_products();
    hold(s);
    products_begin();
    add_scores<DC>(m->tiles[stage], 0, q, s);
    barrier_wait(&m->full[stage + 1], parity);
    shared_for_products();
    products_begin();
    add_scores<DC>(m->tiles[stage + 1], 1, q, s);
    products_wait<1>();
    warp_arrives(&m->empty[stage]);
    products_wait<0>();
    hold(s);
}

/* Of the slots that there are, and -infinity of others. */
static __device__ __forceinline__ void mask_scores(float (&s)[32], int live) {
    int t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (i / 4 * 8 + 2 * t + i % 2 >= live) s[i] = -INFINITY;
}

/* The peer's running maxima, after its next block. */
template <int DC>
static __device__ __forceinline__ void meet_maximum(pair_shared<DC> *m, head_pair *h,
                                                    float (&top)[2]) {
    barrier_wait(&m->topped, h->met++ & 1);
    top[0] = m->top[head_of(0)], top[1] = m->top[head_of(1)];
    if (threadIdx.x == 0) barrier_expect(&m->topped, HEADS_BYTES);
}
/* One number a head to the peer. */
static __device__ __forceinline__ void send_heads(const float *mine, uint64_t *barrier, int peer,
                                                  const float (&x)[2]) {
    if (lane_id() % 4 != 0) return;
    uint32_t rank = static_cast<uint32_t>(peer), to = cluster_address(mine, rank);
#pragma unroll
    for (int r = 0; r < 2; r++)
        store_peer(to + static_cast<uint32_t>(4 * head_of(r)), x[r],
                   cluster_address(barrier, rank));
}

/* The running maximum with this block's scores: to *h and the peer. shrink: what results of earlier
 * blocks are multiplied with. */
template <int DC>
static __device__ __forceinline__ void take_maximum(pair_shared<DC> *m, int block, int peer,
                                                    float scale, const float (&s)[32], head_pair *h,
                                                    float (&shrink)[2]) {
    float top[2] = {-INFINITY, -INFINITY}, before[2] = {-1e30f, -1e30f};
#pragma unroll
    for (int i = 0; i < 32; i++) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) top[r] = warp_reduce(top[r], max_op(), 4);
    if (block > 0) meet_maximum(m, h, before);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(before[r], top[r] * scale);
        shrink[r] = fast_exp2(before[r] - top[r]);
        h->total[r] *= fast_exp2(h->top[r] - top[r]);
        h->top[r] = top[r];
    }
    send_heads(m->top, &m->topped, peer, top);
}

/* Scores to probabilities, in pairs as the left operand of four products of 16 slots. */
static __device__ __forceinline__ void take_softmax(head_pair *h, float scale, float (&s)[32],
                                                    uint32_t (&p)[16]) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
        s[i] = fast_exp2(fmaf(s[i], scale, -h->top[i / 2 % 2]));
        h->total[i / 2 % 2] += s[i]; /* p as it is */
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(s[2 * i], s[2 * i + 1]);
        p[i] = *reinterpret_cast<uint32_t *>(&pair);
    }
}

/* Probabilities of own block u for both blocks' results. */
template <int DC>
static __device__ __forceinline__ void send_probabilities(pair_shared<DC> *m, int u, int peer,
                                                          const float (&shrink)[2],
                                                          const uint32_t (&p)[16]) {
    int me = static_cast<int>(threadIdx.x);
    uint32_t rank = static_cast<uint32_t>(peer), free = (u & 1) ^ 1;
    barrier_wait(&m->read[PEER], free);
    uint32_t to = cluster_address(&m->p[PEER][0][me], rank);
    uint32_t barrier = cluster_address(&m->sent[PEER], rank);
#pragma unroll
    for (int i = 0; i < 4; i++)
        store_peer(to + static_cast<uint32_t>(i * GROUP * 16), p + 4 * i, barrier);
    send_heads(m->shrink[PEER], &m->sent[PEER], peer, shrink);
    barrier_wait(&m->read[OWN], free);
#pragma unroll
    for (int i = 0; i < 4; i++)
        m->p[OWN][i][me] = make_uint4(p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]);
    if (lane_id() % 4 == 0)
        m->shrink[OWN][head_of(0)] = shrink[0], m->shrink[OWN][head_of(1)] = shrink[1];
    warp_arrives(&m->sent[OWN]);
}

/* What results are multiplied with at the end. */
template <int DC>
static __device__ __forceinline__ void finish_heads(const pair_row &row, const key_list &l,
                                                    pair_shared<DC> *m, head_pair *h) {
    uint32_t n_blocks = static_cast<uint32_t>(l.n + SLAB - 1) / SLAB;
    float top[2] = {h->top[0], h->top[1]}, total[2];
    if (h->met < (n_blocks + static_cast<uint32_t>(row.rank)) / 2) meet_maximum(m, h, top);
#pragma unroll
    for (int r = 0; r < 2; r++)
        total[r] = warp_reduce(h->total[r], add_op(), 4) * fast_exp2(h->top[r] - top[r]);
    send_heads(m->total, &m->summed, row.rank ^ 1, total);
    barrier_wait(&m->summed, 0);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int head = head_of(r);
        /* An empty list: the sum is infinite, and 0 / infinity is the 0 that is wanted. */
        total[r] += m->total[head] + exp2f(m->inverse[head] * LOG2_E - top[r]);
    }
    __syncwarp();
    if (lane_id() % 4 == 0)
#pragma unroll
        for (int r = 0; r < 2; r++) m->inverse[head_of(r)] = 1 / (KEY_SHARE * total[r]);
    warp_arrives(&m->finished);
}

template <int DC, bool WHOLE>
static __device__ __forceinline__ void make_probabilities(const di_attend_args &args,
                                                          const pair_row &row, const key_list &l,
                                                          pair_shared<DC> *m, float scale) {
    uint32_t q[DC / 2], p[16];
    float s[32], shrink[2];
    head_pair h = {{-1e30f, -1e30f}, {0, 0}, 0};
    load_queries<DC, WHOLE>(args, row, q);
    for (int u = 0;; u++) {
        int block = 2 * u + row.rank, live = l.n - block * SLAB;
        if (live <= 0) break;
        make_scores<DC>(m, u, q, s);
        if (live < SLAB) mask_scores(s, live);
        take_maximum(m, block, row.rank ^ 1, scale, s, &h, shrink);
        take_softmax(&h, scale, s, p);
        send_probabilities(m, u, row.rank ^ 1, shrink, p);
    }
    finish_heads(row, l, m, &h);
}

#endif
