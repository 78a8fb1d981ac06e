/* Attention under `release` on the matrix units of compute capability 9.0.
 *
 * A cluster of two blocks works on a row and 64 heads: block `rank` has the values from rank * DC on
 * of queries, keys and results, so that a key is decoded once for all heads. Both make the sums of
 * their halves of q . K, exchange them through each other's shared memory, and take the same softmax;
 * each multiplies the probabilities with its half of the values.
 *
 * In a block a warpgroup multiplies (`attend_heads`) while eight warps decode keys into a ring of
 * tiles (`decode_tiles`). While the matrix units make the scores of the block of slots after the next
 * and the results of this one, the softmax of the next one is taken, whose scores the peer has sent
 * long ago.
 *
 * A row's bits depend on itself alone: DC follows from the width of a head, blocks are 64 slots from
 * the start of the list, one after the other, and everything that is added in another order than this
 * is added alike for every row.
 */
#ifndef DI_KERNELS_CUDA_ATTEND_PAIR_CUH
#define DI_KERNELS_CUDA_ATTEND_PAIR_CUH

#include "kernels/cuda/attend_keys.cuh"

static constexpr int PAIR_STAGES = 4, PAIR_HEADS = 64, PAIR_ANGLES = 256;
static constexpr int DECODERS = 8, PAIR_THREADS = GROUP + DECODERS * WARP;
static constexpr uint32_t PARTIAL_BYTES = 64 * SLAB * sizeof(float); /* scores of one block */

/* The shared memory of a block, from a multiple of 1024 bytes on; then the list's key addresses. */
template <int DC> struct pair_shared {
    static constexpr int TILE_BYTES = DC / SLAB * SLAB_BYTES;
    uint8_t q[TILE_BYTES];
    uint8_t tiles[PAIR_STAGES][TILE_BYTES]; /* at the end: results, see store_heads */
    float partial[2][8][GROUP][4];          /* the peer's; thread by thread as it holds its own */
    float2 angles[PAIR_ANGLES];
    uint64_t full[PAIR_STAGES], empty[PAIR_STAGES], arrived[2], turned; /* turned: angles */
    key_address addresses[1];
};
template <int DC> static size_t pair_bytes(int64_t slots) {
    return 1024 + sizeof(pair_shared<DC>) + sizeof(key_address) * static_cast<size_t>(slots);
}

typedef struct pair_row { /* what a block works on */
    int64_t t;
    int32_t pos, rank, head; /* head: the first of 64 */
} pair_row;

/* ---- Preparation, by all threads ---- */

/* This thread's pieces of the queries: on their way while keys are looked for. */
template <int DC> struct query_pieces {
    static constexpr int ALL = PAIR_HEADS * (DC / 8);
    static constexpr int EACH = (ALL + PAIR_THREADS - 1) / PAIR_THREADS;
    uint4 piece[EACH];
};

template <int DC>
static __device__ __forceinline__ query_pieces<DC> load_queries(const di_attend_args &args,
                                                                const pair_row &row) {
    query_pieces<DC> p;
    const __nv_bfloat16 *q =
        cuda_at<const __nv_bfloat16>(args.q) + (row.t * args.n_heads + row.head) * args.head_dim;
#pragma unroll
    for (int k = 0; k < p.EACH; k++) {
        int i = static_cast<int>(threadIdx.x) + k * PAIR_THREADS;
        int head = i / (DC / 8), dim = row.rank * DC + 8 * (i % (DC / 8));
        p.piece[k] = make_uint4(0, 0, 0, 0);
        if (i < p.ALL && row.head + head < args.n_heads && dim < args.head_dim)
            p.piece[k] = __ldg(reinterpret_cast<const uint4 *>(
                q + static_cast<int64_t>(head) * args.head_dim + dim));
    }
    return p;
}

template <int DC>
static __device__ __forceinline__ void store_queries(const query_pieces<DC> &p,
                                                     pair_shared<DC> *m) {
#pragma unroll
    for (int k = 0; k < p.EACH; k++) {
        int i = static_cast<int>(threadIdx.x) + k * PAIR_THREADS;
        int head = i / (DC / 8), piece = i % (DC / 8);
        if (i < p.ALL)
            *reinterpret_cast<uint4 *>(m->q + piece / 8 * SLAB_BYTES +
                                       slab_place(head, piece % 8)) = paired(p.piece[k]);
    }
}

template <int DC> static __device__ __forceinline__ void init_barriers(pair_shared<DC> *m) {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < PAIR_STAGES; i++) {
        barrier_init(&m->full[i], DECODERS);
        barrier_init(&m->empty[i], GROUP / WARP);
    }
    barrier_init(&m->turned, DECODERS);
    for (int i = 0; i < 2; i++) {
        barrier_init(&m->arrived[i], 1);
        barrier_expect(&m->arrived[i], PARTIAL_BYTES);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* ---- The warps that decode ---- */

/* A warp takes 16 keys and 64 values at a time, a lane 32 of a key: neighbours in a row of shared
 * memory are then keys, which lie in different banks. */
template <int DC, bool ALIGNED> struct key_decoder {
    static constexpr int UNITS = DC / SLAB * 4, EACH = UNITS > DECODERS ? UNITS / DECODERS : 1;
    const di_attend_args &args;
    const key_list &l;
    pair_shared<DC> *m;
    int warp, lane, rank;

    __device__ __forceinline__ bool has(int i) const { return warp * EACH + i < UNITS; }
    __device__ __forceinline__ int key_of(int i) const {
        return (warp * EACH + i) % 4 * 16 + lane % 16;
    }
    __device__ __forceinline__ int part_of(int i) const {
        return (warp * EACH + i) / 4 * 2 + lane / 16;
    }
    __device__ __forceinline__ int dim_of(int i) const { return rank * DC + 32 * part_of(i); }

    __device__ __forceinline__ void load(int block, raw_key (&raw)[EACH]) const {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (has(i)) raw[i] = load_raw<ALIGNED>(args, l, block * SLAB + key_of(i), dim_of(i));
    }
    __device__ __forceinline__ void store(int block, const raw_key (&raw)[EACH]) const {
        int stage = block % PAIR_STAGES;
        barrier_wait(&m->empty[stage], (block / PAIR_STAGES & 1) ^ 1);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int at = block * SLAB + key_of(i);
            int kind = at >= l.n || dim_of(i) >= args.head_dim ? 2 : at >= l.n_window ? 1 : 0;
            if (has(i)) store_key(raw[i], kind, m->tiles[stage], key_of(i), part_of(i));
        }
        shared_for_products();
        __syncwarp();
        if (lane == 0) barrier_arrive(&m->full[stage]);
    }
};

/* cos and sin for the results' way back: while the first tiles are multiplied. */
template <int DC>
static __device__ __forceinline__ void make_angles(const di_attend_args &args, const pair_row &row,
                                                   pair_shared<DC> *m) {
    int x = static_cast<int>(threadIdx.x) - GROUP;
    /* Neighbours in different warps: a few angles a warp take no longer than one. */
    for (int i = x % WARP * DECODERS + x / WARP; i < args.rope.dims / 2; i += DECODERS * WARP)
        m->angles[i] = rope_angle(args.rope, row.pos, i, true);
    __syncwarp();
    if (lane_id() == 0) barrier_arrive(&m->turned);
}

/* Keys are asked for AHEAD blocks before they are decoded. */
template <int DC, bool ALIGNED>
static __device__ __forceinline__ void decode_tiles(const di_attend_args &args, const pair_row &row,
                                                    const key_list &l, pair_shared<DC> *m) {
    constexpr int AHEAD = 3;
    using decoder = key_decoder<DC, ALIGNED>;
    decoder d = {args, l, m, warp_id() - GROUP / WARP, lane_id(), row.rank};
    raw_key raw[AHEAD][decoder::EACH];
    int n_blocks = (l.n + SLAB - 1) / SLAB;
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (i < n_blocks) d.load(i, raw[i]);
    for (int begin = 0; begin < n_blocks; begin += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (begin + i >= n_blocks) break;
            d.store(begin + i, raw[i]);
            if (begin + i + AHEAD < n_blocks) d.load(begin + i + AHEAD, raw[i]);
        }
        if (begin == 0) make_angles(args, row, m);
    }
    if (n_blocks == 0) make_angles(args, row, m);
}

/* ---- The warpgroup that multiplies ----
 *
 * Thread 32 w + 4 g + t has, of heads 16 w + g and 16 w + g + 8, the scores of slots 8 j + 2 t and the
 * next in s[4 j ..] and s[4 j + 2 ..], and of the results the places 8 j + 2 t and the next. */

template <int DC> struct head_pair {
    float top[2], total[2]; /* total: of this thread's slots */
    float o[DC / 2];
};

/* Begins this block's half of the scores of a tile. */
template <int DC>
static __device__ __forceinline__ void begin_scores(const pair_shared<DC> *m, int stage,
                                                    float (&s)[32]) {
    uint32_t q = shared_address(m->q), keys = shared_address(m->tiles[stage]);
    hold(s);
    products_begin();
#pragma unroll
    for (int i = 0; i < DC / 16; i++) {
        uint32_t at = static_cast<uint32_t>(i / 4 * SLAB_BYTES + i % 4 * 32);
        product_scores(s, descriptor_k(q + at), descriptor_k(keys + at), i > 0);
    }
    products_commit();
}

static __device__ __forceinline__ void send_partial(float *slot, uint64_t *arrived, int peer,
                                                    const float (&s)[32]) {
    uint32_t rank = static_cast<uint32_t>(peer), to = cluster_address(slot, rank);
    uint32_t barrier = cluster_address(arrived, rank);
#pragma unroll
    for (int i = 0; i < 8; i++)
        store_peer(to + static_cast<uint32_t>((i * GROUP + static_cast<int>(threadIdx.x)) * 16),
                   s + 4 * i, barrier);
}

static __device__ __forceinline__ float fast_exp(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}

/* Scores, scaled, in place, and the running maximum. live: slots of this block. shrink: what earlier
 * results are multiplied with. */
template <int DC>
static __device__ __forceinline__ void take_maximum(head_pair<DC> *h, float (&s)[32], float scale,
                                                    int live, float *shrink) {
    int t = lane_id() % 4;
    float top[2] = {h->top[0], h->top[1]};
    if (live < SLAB) {
#pragma unroll
        for (int i = 0; i < 32; i++)
            s[i] = i / 4 * 8 + 2 * t + i % 2 < live ? s[i] * scale : -INFINITY;
    } else {
#pragma unroll
        for (int i = 0; i < 32; i++) s[i] *= scale;
    }
#pragma unroll
    for (int i = 0; i < 32; i++) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = warp_reduce(top[r], max_op(), 4);
        shrink[r] = fast_exp(h->top[r] - top[r]);
        h->top[r] = top[r];
        h->total[r] *= shrink[r];
    }
}

/* Scores to probabilities, in place. */
template <int DC>
static __device__ __forceinline__ void take_softmax(head_pair<DC> *h, float (&s)[32]) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
        s[i] = fast_exp(s[i] - h->top[i / 2 % 2]);
        h->total[i / 2 % 2] += s[i]; /* p as it is */
    }
}

/* They as the left operand of four products of 16 slots. */
static __device__ __forceinline__ void pack_probabilities(float (&s)[32], uint32_t (&p)[16]) {
    hold(s);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(s[2 * i], s[2 * i + 1]);
        p[i] = *reinterpret_cast<uint32_t *>(&pair);
    }
}

template <int DC>
static __device__ __forceinline__ void begin_values(const pair_shared<DC> *m, int stage,
                                                    const uint32_t (&p)[16], float (&o)[DC / 2]) {
    uint32_t tile = shared_address(m->tiles[stage]);
    hold(o);
    products_begin();
#pragma unroll
    for (int i = 0; i < 4; i++)
        product_values(o, p + 4 * i, descriptor_mn(tile + static_cast<uint32_t>(i * 16 * 128)));
    products_commit();
}

/* The peer's half of block's scores is added; the barrier is then set for the one after the next.
 *
 * A slot is written again without asking: the peer sends the scores of a block only after it has
 * read mine of the block before, and I send those of the next one only when I have them. */
template <int DC>
static __device__ __forceinline__ void add_partial(pair_shared<DC> *m, int block, int n_blocks,
                                                   float (&s)[32]) {
    int slot = block % 2;
    barrier_wait(&m->arrived[slot], block / 2 & 1);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float4 v = *reinterpret_cast<const float4 *>(m->partial[slot][i][threadIdx.x]);
        s[4 * i] += v.x, s[4 * i + 1] += v.y, s[4 * i + 2] += v.z, s[4 * i + 3] += v.w;
    }
    if (threadIdx.x == 0 && block + 2 < n_blocks) barrier_expect(&m->arrived[slot], PARTIAL_BYTES);
}

template <int DC>
static __device__ __forceinline__ void shrink_results(const float *shrink, float (&o)[DC / 2]) {
    if (!__any_sync(ALL_LANES, shrink[0] != 1 || shrink[1] != 1)) return;
#pragma unroll
    for (int i = 0; i < DC / 2; i++) o[i] *= shrink[i / 2 % 2];
}

/* One block of slots, of which p has the probabilities; s has this block's half of the scores of the
 * one after it. AFTER: how many of the next two there are. Leaves p and s as they are for the next.
 */
template <int DC, int AFTER>
static __device__ __forceinline__ void
attend_block(const pair_row &row, const key_list &l, pair_shared<DC> *m, int block, float scale,
             head_pair<DC> *h, float (&s)[32], uint32_t (&p)[16]) {
    int n_blocks = (l.n + SLAB - 1) / SLAB, later = block + 2;
    float next[32], shrink[2];
    if (AFTER == 2) {
        barrier_wait(&m->full[later % PAIR_STAGES], later / PAIR_STAGES & 1);
        begin_scores(m, later % PAIR_STAGES, next);
    }
    begin_values(m, block % PAIR_STAGES, p, h->o);
    if (AFTER >= 1) {
        add_partial(m, block + 1, n_blocks, s);
        take_maximum(h, s, scale, l.n - (block + 1) * SLAB, shrink);
    }
    if (AFTER == 2) { /* as early as they are there: the way to the peer is long */
        hold(s);
        products_wait<1>();
        hold(next);
        send_partial(m->partial[later % 2][0][0], &m->arrived[later % 2], row.rank ^ 1, next);
    }
    if (AFTER >= 1) take_softmax(h, s);
    products_wait<0>();
    hold(h->o);
    if (lane_id() == 0) barrier_arrive(&m->empty[block % PAIR_STAGES]);
    if (AFTER == 0) return;
    shrink_results<DC>(shrink, h->o);
    pack_probabilities(s, p);
#pragma unroll
    for (int i = 0; i < 32; i++) s[i] = AFTER == 2 ? next[i] : 0;
}

/* Results through shared memory, in order, rotated back, to the row's places. */
template <int DC>
static __device__ void store_heads(const di_attend_args &args, const pair_row &row,
                                   pair_shared<DC> *m, const head_pair<DC> &h) {
    constexpr int STRIDE = DC + 8; /* bf16 values between heads: other banks */
    __nv_bfloat16 *staged = reinterpret_cast<__nv_bfloat16 *>(m->tiles[0]);
    int warp = warp_id(), lane = lane_id(), g = lane / 4, t = lane % 4;
    asm volatile("bar.sync 1, 128;" ::: "memory"); /* nobody's products read the tiles any more */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int head = 16 * warp + g + 8 * r;
        float sink = row.head + head < args.n_heads ? vector_value(args.sink, row.head + head) : 0;
        /* An empty list: the sum is infinite, and 0 / infinity is the 0 that is wanted. */
        float inverse = 1 / (warp_reduce(h.total[r], add_op(), 4) + expf(sink - h.top[r]));
#pragma unroll
        for (int j = 0; j < DC / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) /* place 2 t + i of eight holds value t + 4 i */
                staged[head * STRIDE + 8 * j + t + 4 * i] =
                    __float2bfloat16_rn(h.o[4 * j + 2 * r + i] * inverse);
    }
    __syncwarp();
    barrier_wait(&m->turned, 0);
    int tail = args.head_dim - args.rope.dims;
    for (int i = lane; i < 16 * (DC / 8); i += WARP) {
        int head = 16 * warp + i / (DC / 8), dim = i % (DC / 8) * 8, at = row.rank * DC + dim;
        if (row.head + head >= args.n_heads || at >= args.head_dim) continue;
        uint4 v = *reinterpret_cast<const uint4 *>(staged + head * STRIDE + dim);
        uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int w = 0; w < 4; w++) {
            if (at + 2 * w < tail) continue;
            float2 x = make_float2(__uint_as_float(words[w] << 16),
                                   __uint_as_float(words[w] & 0xFFFF0000u));
            x = rotated(x, m->angles[(at + 2 * w - tail) / 2]);
            __nv_bfloat162 pair = __floats2bfloat162_rn(x.x, x.y);
            words[w] = *reinterpret_cast<uint32_t *>(&pair);
        }
        __nv_bfloat16 *out = cuda_at<__nv_bfloat16>(args.out) +
                             (row.t * args.n_heads + row.head + head) * args.head_dim + at;
        *reinterpret_cast<uint4 *>(out) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

/* All blocks of slots, n_blocks > 0. */
template <int DC>
static __device__ __forceinline__ void attend_blocks(const pair_row &row, const key_list &l,
                                                     pair_shared<DC> *m, float scale,
                                                     head_pair<DC> *h) {
    int n_blocks = (l.n + SLAB - 1) / SLAB, block = 0;
    float s[32], next[32], shrink[2];
    uint32_t p[16];
    barrier_wait(&m->full[0], 0);
    begin_scores(m, 0, s);
    products_wait<0>();
    hold(s);
    send_partial(m->partial[0][0][0], &m->arrived[0], row.rank ^ 1, s);
    if (n_blocks > 1) {
        barrier_wait(&m->full[1], 0);
        begin_scores(m, 1, next);
    }
    add_partial(m, 0, n_blocks, s);
    take_maximum(h, s, scale, l.n, shrink); /* there are no results to shrink */
    take_softmax(h, s);
    products_wait<0>();
    hold(next);
    pack_probabilities(s, p);
    if (n_blocks > 1) send_partial(m->partial[1][0][0], &m->arrived[1], row.rank ^ 1, next);
    for (; block + 2 < n_blocks; block++) attend_block<DC, 2>(row, l, m, block, scale, h, next, p);
    if (n_blocks > 1) attend_block<DC, 1>(row, l, m, block++, scale, h, next, p);
    attend_block<DC, 0>(row, l, m, block, scale, h, next, p);
}

template <int DC>
static __device__ __forceinline__ void attend_heads(const di_attend_args &args, const pair_row &row,
                                                    const key_list &l, pair_shared<DC> *m,
                                                    float scale) {
    head_pair<DC> h;
    h.top[0] = h.top[1] = -1e30f, h.total[0] = h.total[1] = 0;
#pragma unroll
    for (int i = 0; i < DC / 2; i++) h.o[i] = 0;
    if (l.n > 0) attend_blocks(row, l, m, scale, &h);
    store_heads(args, row, m, h);
}

/* ---- The kernel: blocks 2 t and 2 t + 1 for row t, blockIdx.y for 64 heads ---- */

template <int DC, bool ALIGNED>
static __global__ __cluster_dims__(2, 1, 1)
    __launch_bounds__(PAIR_THREADS, 1) void attend_pair_kernel(di_attend_args args, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t shared_bytes[];
    uint32_t off = -shared_address(shared_bytes) & 1023u;
    pair_shared<DC> *m = reinterpret_cast<pair_shared<DC> *>(shared_bytes + off);
    pair_row row;
    row.t = blockIdx.x / 2, row.rank = static_cast<int32_t>(blockIdx.x % 2);
    row.head = static_cast<int32_t>(blockIdx.y) * PAIR_HEADS;
    row_start start = start_row(args, row.t, PAIR_THREADS);
    query_pieces<DC> queries = load_queries<DC>(args, row);
    row.pos = start.pos;
    if (row.pos < 0) return; /* both blocks */
    init_barriers(m);
    key_list l = find_keys(args, row.t, start, PAIR_THREADS, m->addresses);
    store_queries<DC>(queries, m);
    shared_for_products();
    __syncthreads();
    cluster_sync_aligned(); /* the peer's barriers are there */
    if (warp_id() >= GROUP / WARP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 128;");
        decode_tiles<DC, ALIGNED>(args, row, l, m);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        attend_heads(args, row, l, m, scale);
    }
#endif
}

#endif
