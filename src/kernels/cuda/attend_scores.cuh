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
} head_pair;

/* How far a warp is: pairs of blocks of slots, own blocks, maxima of the peer's that it has met, and
 * rows. */
typedef struct score_count {
    uint32_t pair, own, met, row;
} score_count;

static __device__ __forceinline__ int head_of(int r) {
    return static_cast<int>(threadIdx.x) % GROUP / WARP * 16 + lane_id() / 4 + 8 * r;
}

/* Queries (not by __ldg, see attend_decode.cuh) as they lie, first of the other half of the values, then
 * of this. */
template <int DC, bool WHOLE>
static __device__ __forceinline__ void load_queries(const di_attend_args &args,
                                                    const pair_place &place, int64_t t,
                                                    uint32_t (&q)[DC / 2]) {
    const int width = WHOLE ? 2 * DC : args.head_dim, piece = lane_id() % 4 * 8;
    const __nv_bfloat16 *all =
        cuda_at<const __nv_bfloat16>(args.q) + (t * args.n_heads + place.head) * width;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        bool there = place.head + head_of(r) < args.n_heads;
        const __nv_bfloat16 *from = all + (there ? head_of(r) * width + piece : piece);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int begin = (h == 0 ? place.rank ^ 1 : place.rank) * DC;
            const uint4 *half = reinterpret_cast<const uint4 *>(from + begin);
#pragma unroll
            for (int i = 0; i < DC / 32; i++) {
                uint4 v = make_uint4(0, 0, 0, 0);
                if (WHOLE || begin + 32 * i < width) v = half[4 * i];
                int at = h * (DC / 4) + 8 * i + 4 * r;
                q[at] = v.x, q[at + 1] = v.y, q[at + 2] = v.z, q[at + 3] = v.w;
            }
        }
    }
}
/* What load_queries has loaded as the left operand: two times eight values in order become the pairs
 * k, k + 4, words of the first and of the second in turns. In place: there are no registers for a
 * second copy. */
template <int DC> static __device__ __forceinline__ void pair_queries(uint32_t (&q)[DC / 2]) {
#pragma unroll
    for (int i = 0; i < DC / 2; i += 8)
        asm volatile("{\n.reg .b32 x, y, z, a, b, c;\n"
                     "prmt.b32 x, %0, %2, 0x7632;\nprmt.b32 y, %1, %3, 0x5410;\n"
                     "prmt.b32 z, %1, %3, 0x7632;\nprmt.b32 %0, %0, %2, 0x5410;\n"
                     "prmt.b32 a, %4, %6, 0x5410;\nprmt.b32 b, %4, %6, 0x7632;\n"
                     "prmt.b32 c, %5, %7, 0x5410;\nprmt.b32 %7, %5, %7, 0x7632;\n"
                     "mov.b32 %1, a;\nmov.b32 %2, x;\nmov.b32 %3, b;\n"
                     "mov.b32 %4, y;\nmov.b32 %5, c;\nmov.b32 %6, z;\n}"
                     : "+r"(q[i]), "+r"(q[i + 1]), "+r"(q[i + 2]), "+r"(q[i + 3]), "+r"(q[i + 4]),
                       "+r"(q[i + 5]), "+r"(q[i + 6]), "+r"(q[i + 7]));
}

/* Adds what half `half` of the values makes of the scores. */
template <int DC>
static __device__ __forceinline__ void add_scores(const uint8_t *tile, int half,
                                                  const uint32_t (&q)[DC / 2], float (&s)[32]) {
    uint64_t keys = descriptor_k(common_address(tile));
#pragma unroll
    for (int i = 0; i < DC / 16; i++) {
        uint64_t at = keys + (i / 4 * SLAB_BYTES + i % 4 * 32) / 16;
        if (half + i == 0)
            product_scores(s, q, at);
        else
            product_more_scores(s, q + half * (DC / 4) + 4 * i, at);
    }
    products_commit();
}

/* Begins the scores of the own block of a pair; end_scores waits for them. */
template <int DC>
static __device__ __forceinline__ void begin_scores(pair_shared<DC> *m, uint32_t pair,
                                                    const uint32_t (&q)[DC / 2], float (&s)[32]) {
    uint32_t stage = pair % 2 * 3, parity = pair / 2 & 1;
    barrier_wait(&m->full[stage], parity);
    shared_for_products();
    products_begin();
    add_scores<DC>(m->tiles[stage], 0, q, s);
    barrier_wait(&m->full[stage + 1], parity);
    shared_for_products();
    products_begin();
    add_scores<DC>(m->tiles[stage + 1], 1, q, s);
}
template <int DC>
static __device__ __forceinline__ void end_scores(pair_shared<DC> *m, uint32_t pair,
                                                  float (&s)[32]) {
    products_wait<0>();
    hold(s);
    warp_arrives(&m->empty[pair % 2 * 3]);
}

/* The scores of the slots that there are, and -infinity of others: not in place, since the next
 * products have the same registers. */
static __device__ __forceinline__ void take_scores(const float (&made)[32], int live,
                                                   float (&s)[32]) {
    int t = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < 32; i++) s[i] = i / 4 * 8 + 2 * t + i % 2 < live ? made[i] : -INFINITY;
}

/* The peer's running maxima, after its next block. */
template <int DC>
static __device__ __forceinline__ void meet_maximum(pair_shared<DC> *m, score_count *count,
                                                    float (&top)[2]) {
    barrier_wait(&m->topped, count->met++ & 1);
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

/* The running maximum with this block's scores: to *h and the peer. first: of the row. shrink: what
 * results of earlier blocks are multiplied with. */
template <int DC>
static __device__ __forceinline__ void
take_maximum(pair_shared<DC> *m, bool first, int peer, float scale, const float (&s)[32],
             score_count *count, head_pair *h, float (&shrink)[2]) {
    float top[2] = {-INFINITY, -INFINITY}, before[2] = {-1e30f, -1e30f};
#pragma unroll
    for (int i = 0; i < 32; i++) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) top[r] = warp_reduce(top[r], max_op(), 4);
    if (!first) meet_maximum(m, count, before);
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

/* Probabilities of the own-th own block for both blocks' results. */
template <int DC>
static __device__ __forceinline__ void send_probabilities(pair_shared<DC> *m, uint32_t own,
                                                          int peer, const float (&shrink)[2],
                                                          const uint32_t (&p)[16]) {
    int me = static_cast<int>(threadIdx.x);
    uint32_t rank = static_cast<uint32_t>(peer), free = (own & 1) ^ 1;
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

/* cos and sin of this thread's angle, if there is one: made while there are no scores yet. Neighbours
 * in different warps: a few angles a warp take no longer than one. */
static __device__ __forceinline__ int angle_of() {
    int x = static_cast<int>(threadIdx.x);
    return x % WARP * GROUP_WARPS + x / WARP;
}
template <int DC>
static __device__ __forceinline__ float2 make_angle(const di_attend_args &args, uint32_t row,
                                                    const pair_shared<DC> *m) {
    if (angle_of() >= args.rope.dims / 2) return make_float2(0, 0);
    return rope_angle(args.rope, m->rows[row % ROWS_FOUND].pos, angle_of(), true);
}

/* What results are multiplied with at the end of a row. */
template <int DC>
static __device__ __forceinline__ void finish_heads(pair_shared<DC> *m, int rank, int n,
                                                    uint32_t row, score_count *count,
                                                    const head_pair &h, float2 angle) {
    uint32_t now = row & 1, parity = row / 2 & 1;
    float top[2] = {h.top[0], h.top[1]}, total[2];
    if (n > 0 && (n + SLAB - 1) / SLAB % 2 == rank) meet_maximum(m, count, top);
#pragma unroll
    for (int r = 0; r < 2; r++)
        total[r] = warp_reduce(h.total[r], add_op(), 4) * fast_exp2(h.top[r] - top[r]);
    /* By rows modulo 2: a block may send those of the next row while the other's warps still wait here;
     * those of the row after that only with all sums of the next one. */
    send_heads(m->total[now], &m->summed[now], rank ^ 1, total);
    barrier_wait(&m->summed[now], parity);
    if (threadIdx.x == 0) barrier_expect(&m->summed[now], HEADS_BYTES);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int head = head_of(r);
        /* An empty list: the sum is infinite, and 0 / infinity is the 0 that is wanted. */
        total[r] += m->total[now][head] + exp2f(m->sinks[head] * LOG2_E - top[r]);
    }
    __syncwarp();
    barrier_wait(&m->stored[now], parity ^ 1); /* the row before the last */
    if (lane_id() % 4 == 0)
#pragma unroll
        for (int r = 0; r < 2; r++) m->inverse[now][head_of(r)] = 1 / (KEY_SHARE * total[r]);
    if (angle_of() < PAIR_ANGLES) m->angles[now][angle_of()] = angle;
    warp_arrives(&m->finished[now]);
}

/* Scores of an own block to probabilities for both. live: the row's slots from there on. */
template <int DC>
static __device__ __forceinline__ void use_scores(pair_shared<DC> *m, int live, bool first,
                                                  int peer, float scale, float (&s)[32],
                                                  score_count *count, head_pair *h) {
    uint32_t p[16];
    float shrink[2];
    take_maximum(m, first, peer, scale, s, count, h, shrink);
    take_softmax(h, scale, s, p);
    send_probabilities(m, count->own++, peer, shrink, p);
}

/* Finds the next row that is not dead from row t on, as the r-th; returns which it is. */
template <int DC>
static __device__ __forceinline__ int64_t find_row(const di_attend_args &args,
                                                   const pair_place &place, int64_t t,
                                                   pair_shared<DC> *m, uint32_t r) {
    found_row *to = &m->rows[r & 3];
    int32_t begin = r % 2 ? args.window + args.block + args.top_k : 0;
    row_start start = {-1, 0, 0, {}};
    for (; t < args.batch.n_rows; t += place.step) {
        start = start_row(args, t);
        if (r == 0 && t == place.first) cluster_meet(); /* loads are under way meanwhile */
        if (start.pos >= 0) break;
    }
    if (t < args.batch.n_rows)
        find_keys(args, t, start, begin, m->keys, to);
    else if (threadIdx.x == 0)
        to->t = -1;
    warp_arrives(&m->found[r & 3]);
    return t;
}

/* Asks for a row's queries, by n threads of which this is the i-th. */
static __device__ __forceinline__ void ask_for_queries(const di_attend_args &args,
                                                       const pair_place &place, int64_t t,
                                                       int32_t i, int32_t n) {
    const uint8_t *q = cuda_at<const uint8_t>(args.q) +
                       2 * (t * args.n_heads + place.head) * static_cast<int64_t>(args.head_dim);
    int32_t heads = args.n_heads - place.head < PAIR_HEADS ? args.n_heads - place.head : PAIR_HEADS;
#pragma unroll 1
    for (i *= 64; i < heads * args.head_dim * 2; i += n * 64) ask_for(q + i);
}

/* The own blocks of a row, and the loads of the next row's queries when the last scores are there.
 * Products of the next block run while probabilities are made; where the last pair has no own block
 * they are of zeros. */
template <int DC, bool WHOLE>
static __device__ __forceinline__ void
row_probabilities(const di_attend_args &args, const pair_place &place, int64_t &t, int n,
                  pair_shared<DC> *m, float scale, uint32_t (&q)[DC / 2], score_count *count,
                  head_pair *h, float2 *angle) {
    float s[32], coming[32];
    int live = n - place.rank * SLAB;
    begin_scores<DC>(m, count->pair, q, coming);
    t = find_row(args, place, t + place.step, m, count->row + 1);
    if (t < args.batch.n_rows)
        ask_for_queries(args, place, t, place.rank * GROUP + threadIdx.x, 2 * GROUP);
    *angle = make_angle(args, count->row, m);
#pragma unroll 1
    for (;; live -= 2 * SLAB) {
        end_scores<DC>(m, count->pair++, coming);
        take_scores(coming, live, s);
        if (live <= SLAB * (2 - place.rank)) break;
        begin_scores<DC>(m, count->pair, q, coming);
        use_scores(m, live, live == n, place.rank ^ 1, scale, s, count, h);
    }
    if (t < args.batch.n_rows) load_queries<DC, WHOLE>(args, place, t, q);
    if (live > 0) use_scores(m, live, live == n, place.rank ^ 1, scale, s, count, h);
}

/* The probabilities of all rows. */
template <int DC, bool WHOLE>
static __device__ __forceinline__ void
make_probabilities(const di_attend_args &args, const pair_place &place, pair_shared<DC> *m,
                   float scale, float sink) {
    uint32_t q[DC / 2];
    score_count count = {0, 0, 0, 0};
    int64_t t = find_row(args, place, place.first, m, 0);
    if (t < args.batch.n_rows) load_queries<DC, WHOLE>(args, place, t, q);
    if (threadIdx.x < PAIR_HEADS) m->sinks[threadIdx.x] = sink;
    asm volatile("bar.sync 2, 128;" ::: "memory");
#pragma unroll 1
    for (;; count.row++) {
        pair_row row = await_row(m, count.row);
        if (row.t < 0) return;
        head_pair h = {{-1e30f, -1e30f}, {0, 0}};
        float2 angle;
        pair_queries<DC>(q);
        row_probabilities<DC, WHOLE>(args, place, t, row.n, m, scale, q, &count, &h, &angle);
        finish_heads(m, place.rank, row.n, count.row, &count, h, angle);
    }
}

#endif
