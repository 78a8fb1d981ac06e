/* Attention over a list (model.md 3.6). */
#include "kernels/cuda/attend_pair.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/weights.cuh"

/* ---- The softmax over a list, 64 slots at a time ----
 *
 * A block of threads takes HEADS heads of a row, a warp each, and decodes the keys of 64 slots at a
 * time for all of them. In a warp, lane l has the scores of slots l and l + 32, and of the values
 * the pairs 2 (l + 32 i). */

static constexpr int SLOTS = 64, HEADS = 8, MAX_DIM = 512, PAIRS = MAX_DIM / 2 / WARP;

/* Shared memory of a block. Rows of keys are one pair longer than a key. */
template <typename A> static size_t attend_bytes(int32_t dim) {
    return sizeof(A) * static_cast<size_t>(SLOTS + HEADS) * static_cast<size_t>(dim + 2);
}
template <typename A> struct attend_memory {
    A *keys, *q; /* [SLOTS][dim + 2], [HEADS][dim + 2] */
};
template <typename A> static __device__ attend_memory<A> attend_shared(int32_t dim) {
    extern __shared__ __align__(16) uint8_t shared_bytes[];
    A *keys = reinterpret_cast<A *>(shared_bytes);
    return attend_memory<A>{keys, keys + SLOTS * (dim + 2)};
}

static __device__ __forceinline__ float2 load_pair(const float *x) {
    return *reinterpret_cast<const float2 *>(x);
}
static __device__ __forceinline__ float2 load_pair(const __nv_bfloat16 *x) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(x));
}

typedef struct head_state {
    float top, total;
    float2 values[PAIRS];
} head_state;

static __device__ __forceinline__ head_state start_head() {
    head_state s = {-1e30f, 0, {}};
    return s;
}

/* q . K_n * scale of one slot; four sums side by side. */
template <typename A>
static __device__ __forceinline__ float slot_score(const A *q, const A *key, int32_t dim,
                                                   float scale) {
    float sum[4] = {0, 0, 0, 0};
    for (int32_t d = 0; d < dim; d += 4) {
        float2 a = load_pair(q + d), b = load_pair(q + d + 2);
        float2 x = load_pair(key + d), y = load_pair(key + d + 2);
        sum[0] = fmaf(a.x, x.x, sum[0]), sum[1] = fmaf(a.y, x.y, sum[1]);
        sum[2] = fmaf(b.x, y.x, sum[2]), sum[3] = fmaf(b.y, y.y, sum[3]);
    }
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) * scale;
}

/* One block of slots for this warp's head; live: bit n for slot n. */
template <typename A>
static __device__ void head_block(head_state *s, const attend_memory<A> &m, const A *q, int32_t dim,
                                  float scale, uint64_t live) {
    int lane = lane_id();
    float score[2], p[2], top = s->top;
    for (int i = 0; i < 2; i++) {
        int n = lane + WARP * i;
        bool is_live = live >> n & 1u;
        score[i] = is_live ? slot_score(q, m.keys + n * (dim + 2), dim, scale) : -INFINITY;
        top = fmaxf(top, score[i]);
    }
    top = warp_reduce(top, max_op());
    float shrink = expf(s->top - top);
    for (int i = 0; i < 2; i++) p[i] = expf(score[i] - top);
    s->total = s->total * shrink + warp_sum(p[0] + p[1]); /* p as it is */
    s->top = top;
    for (int i = 0; i < 2; i++) p[i] = round_a<A>(p[i]);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) s->values[i].x *= shrink, s->values[i].y *= shrink;
    for (int n = 0; n < SLOTS; n++) {
        float mine = __shfl_sync(ALL_LANES, n < WARP ? p[0] : p[1], n % WARP);
        if (!(live >> n & 1u)) continue; /* what is in its place is no key */
        const A *key = m.keys + n * (dim + 2);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            int d = 2 * (lane + WARP * i);
            if (d >= dim) break;
            float2 v = load_pair(key + d);
            s->values[i].x = fmaf(mine, v.x, s->values[i].x);
            s->values[i].y = fmaf(mine, v.y, s->values[i].y);
        }
    }
}

/* out [dim] of this warp's head, rotated back where rope is given. */
template <typename A>
static __device__ void end_head(const head_state &s, float sink, int32_t dim, const di_rope *rope,
                                int32_t pos, A *out) {
    /* An empty list: the sum is infinite, and 0 / infinity is the 0 that is wanted. */
    float total = s.total + expf(sink - s.top);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        int d = 2 * (lane_id() + WARP * i);
        if (d >= dim) break;
        float2 o =
            make_float2(round_a<A>(s.values[i].x / total), round_a<A>(s.values[i].y / total));
        int tail = rope == NULL ? -1 : d - (dim - rope->dims);
        if (tail >= 0) o = rotated(o, rope_angle(*rope, pos, tail / 2, true));
        out[d] = from_float<A>(o.x);
        out[d + 1] = from_float<A>(o.y);
    }
}

/* This warp's head, and its query in shared memory; -1: none is left for it. */
template <typename A>
static __device__ int32_t load_query(const attend_memory<A> &m, const A *q, int32_t n_heads,
                                     int32_t dim) {
    int32_t head = static_cast<int32_t>(blockIdx.y) * HEADS + warp_id();
    if (head >= n_heads) return -1;
    for (int32_t d = lane_id(); d < dim; d += WARP)
        m.q[warp_id() * (dim + 2) + d] = q[static_cast<int64_t>(head) * dim + d];
    return head;
}

/* ---- attend ---- */

/* Row t's list: window positions begin .. end - 1, then n_picks picks. */
typedef struct row_list {
    int32_t slot, length, first, begin, end, n_picks;
    const int32_t *picks;
} row_list;

/* Picks before the first negative one; all threads of the block get it. */
static __device__ int32_t live_picks(const int32_t *picks, int32_t top_k) {
    int32_t n = top_k; /* this thread's own first negative one */
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < top_k; i += HEADS * WARP) {
        if (picks[i] >= 0) continue;
        n = i;
        break;
    }
    struct min_op {
        __device__ int32_t operator()(int32_t a, int32_t b) const { return a < b ? a : b; }
    };
    return block_reduce<HEADS>(n, min_op());
}

static __device__ row_list list_of(const di_attend_args &args, int64_t t) {
    const di_batch &b = args.batch;
    row_list l;
    l.slot = cuda_at<const di_row>(b.rows)[t].slot;
    l.length = cuda_at<const int32_t>(b.length)[l.slot];
    l.first = cuda_at<const int32_t>(b.first)[t];
    int32_t floor = cuda_none(b.floor) ? 0 : cuda_at<const int32_t>(b.floor)[l.slot];
    int32_t now = cuda_at<const int32_t>(b.pos)[t] + 1;
    int32_t before = (args.block ? l.length : now) - args.window;
    l.begin = before > floor ? before : floor;
    l.end = args.block ? l.length + args.block : now;
    l.picks = cuda_at<const int32_t>(args.picks) + t * args.top_k;
    l.n_picks = args.top_k > 0 ? live_picks(l.picks, args.top_k) : 0;
    return l;
}

/* The key of window position p by a warp: in the step's rows, or in the ring. */
template <typename A>
static __device__ void window_key(const di_attend_args &args, const row_list &l, int32_t p,
                                  A *out) {
    int64_t d = args.head_dim, row = static_cast<int64_t>(l.first) + (p - l.length);
    bool in_step = p >= l.length;
    if (!in_step)
        row = static_cast<int64_t>(l.slot) * args.ring.ring_slots + p % args.ring.ring_slots;
    const uint8_t *codes =
        cuda_at<const uint8_t>(in_step ? args.kv_codes : args.ring.codes) + row * d;
    const uint8_t *scales =
        cuda_at<const uint8_t>(in_step ? args.kv_scales : args.ring.scales) + row * (d / 32);
    for (int32_t i = 4 * lane_id(); i < args.head_dim; i += 4 * WARP) {
        uint32_t word = load_u32(codes + i);
        float values[4];
        decode_e4m3<1>(&word, di_e8m0_decode(scales[i / 32]), values);
        for (int j = 0; j < 4; j++) out[i + j] = from_float<A>(values[j]);
    }
}

/* The key of a picked entry by a warp. */
template <typename A>
static __device__ void entry_key(const di_attend_args &args, const row_list &l, int32_t pick,
                                 A *out) {
    page_entry entry = entry_at(args.pages, l.slot, pick);
    for (int32_t i = 8 * lane_id(); i < args.head_dim; i += 8 * WARP) {
        float values[8];
        decode_e2m1(load_u32(entry.codes + i / 2), di_e4m3_decode(entry.scales[i / 16]), values);
        for (int j = 0; j < 8; j++) out[i + j] = from_float<A>(values[j]);
    }
}

/* Slots begin .. begin + n - 1 of the list, by all warps. */
template <typename A>
static __device__ void load_keys(const di_attend_args &args, const row_list &l, int32_t begin,
                                 int32_t n, A *keys) {
    int32_t window = l.end - l.begin;
    for (int32_t i = warp_id(); i < n; i += HEADS) {
        A *out = keys + i * (args.head_dim + 2);
        if (begin + i < window)
            window_key(args, l, l.begin + begin + i, out);
        else
            entry_key(args, l, l.picks[begin + i - window], out);
    }
}

template <typename A>
static __global__ __launch_bounds__(HEADS *WARP) void attend_kernel(di_attend_args args,
                                                                    float scale) {
    int64_t t = blockIdx.x, row = static_cast<int64_t>(args.n_heads) * args.head_dim;
    int32_t dim = args.head_dim, pos = cuda_at<const int32_t>(args.batch.pos)[t];
    attend_memory<A> m = attend_shared<A>(dim);
    if (pos < 0) return;
    row_list l = list_of(args, t);
    int32_t head = load_query(m, cuda_at<const A>(args.q) + t * row, args.n_heads, dim);
    const A *q = m.q + warp_id() * (dim + 2);
    head_state state = start_head();
    int32_t length = l.end - l.begin + l.n_picks;
    for (int32_t begin = 0; begin < length; begin += SLOTS) {
        int32_t n = length - begin < SLOTS ? length - begin : SLOTS;
        __syncthreads(); /* all are done with the keys before */
        load_keys(args, l, begin, n, m.keys);
        __syncthreads();
        uint64_t live = n == SLOTS ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1;
        if (head >= 0) head_block(&state, m, q, dim, scale, live);
    }
    if (head < 0) return;
    end_head(state, vector_value(args.sink, head), dim, &args.rope, pos,
             cuda_at<A>(args.out) + t * row + static_cast<int64_t>(head) * dim);
}

static float score_scale(int32_t dim) {
    return static_cast<float>(1 / sqrt(static_cast<double>(dim)));
}

/* Whether a block of compute capability 9.0 has room for the list (attend_pair.cuh). */
static bool fits_pair(const di_stream *s, size_t bytes) {
    int major = 0;
    if (!s->release || bytes > SHARED_MOST) return false;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, s->device);
    return major == 9;
}

/* Whether keys are of the largest width, their codes aligned to 16 bytes, the scales to four
 * (attend_pair_kernel): those of released models are. */
static bool whole_keys(const di_attend_args *args) {
    uint64_t codes = args->kv_codes.address | args->ring.codes.address;
    uint64_t scales = args->kv_scales.address | args->ring.scales.address;
    if (args->top_k > 0) {
        codes |= args->pages.pool.address | args->pages.page_bytes | args->pages.codes;
        scales |= args->pages.scales;
    }
    return args->head_dim == MAX_DIM && codes % 16 == 0 && scales % 4 == 0;
}

/* Returns whether it did. */
template <int DC> static bool attend_pair(di_stream *s, const di_attend_args *args) {
    size_t bytes = pair_bytes<DC>(static_cast<int64_t>(args->window) + args->block + args->top_k);
    if (args->rope.dims > 2 * PAIR_ANGLES || !fits_pair(s, bytes)) return false;
    static_assert(pair_bytes<DC>(128 + 512 + 16) <= SHARED_MOST, "lists of the release fit");
    uint32_t groups = cuda_blocks(args->n_heads, PAIR_HEADS),
             rows = static_cast<uint32_t>(args->batch.n_rows);
    uint32_t most = static_cast<uint32_t>(s->n_processors) / 2 / groups; /* clusters at one time */
    dim3 grid(2 * (most == 0 ? 1 : rows < most ? rows : most), groups);
    float scale = score_scale(args->head_dim) * (LOG2_E / KEY_SHARE);
    if (DC == MAX_DIM / 2 && whole_keys(args))
        cuda_launch_early(s, "attend", grid, PAIR_THREADS, bytes,
                          attend_pair_kernel<MAX_DIM / 2, true>, *args, scale);
    else
        cuda_launch_early(s, "attend", grid, PAIR_THREADS, bytes, attend_pair_kernel<DC, false>,
                          *args, scale);
    return true;
}

void cuda_op_attend(di_stream *s, const di_attend_args *args) {
    cuda_begin(s);
    int32_t dim = args->head_dim;
    CUDA_REQUIRE(dim % 32 == 0 && dim <= MAX_DIM && args->rope.dims % 2 == 0);
    CUDA_REQUIRE(args->top_k == 0 || args->pages.d == dim);
    if (dim <= 128   ? attend_pair<64>(s, args)
        : dim <= 256 ? attend_pair<128>(s, args)
                     : attend_pair<256>(s, args))
        return;
    dim3 grid(static_cast<uint32_t>(args->batch.n_rows), cuda_blocks(args->n_heads, HEADS));
    size_t bytes = s->release ? attend_bytes<__nv_bfloat16>(dim) : attend_bytes<float>(dim);
    CUDA_LAUNCH_A(s, "attend", grid, HEADS * WARP, bytes, attend_kernel, *args, score_scale(dim));
}

/* ---- attend_list ---- */

template <typename A>
static __global__ __launch_bounds__(HEADS *WARP) void attend_list_kernel(di_attend_list_args args,
                                                                         float scale) {
    int64_t t = blockIdx.x, row = static_cast<int64_t>(args.n_heads) * args.head_dim;
    int32_t dim = args.head_dim;
    attend_memory<A> m = attend_shared<A>(dim);
    const int32_t *slots = cuda_at<const int32_t>(args.slots) + t * args.n_slots;
    int32_t head = load_query(m, cuda_at<const A>(args.q) + t * row, args.n_heads, dim);
    const A *q = m.q + warp_id() * (dim + 2);
    head_state state = start_head();
    for (int32_t begin = 0; begin < args.n_slots; begin += SLOTS) {
        int32_t n = args.n_slots - begin < SLOTS ? args.n_slots - begin : SLOTS;
        uint64_t live = 0;
        __syncthreads();
        for (int32_t i = 0; i < n; i++) {
            int64_t key = slots[begin + i];
            if (key < 0) continue;
            live |= UINT64_C(1) << i;
            if (i % HEADS != warp_id()) continue;
            for (int32_t d = lane_id(); d < dim; d += WARP)
                m.keys[i * (dim + 2) + d] = cuda_at<const A>(args.keys)[key * dim + d];
        }
        __syncthreads();
        if (head >= 0) head_block(&state, m, q, dim, scale, live);
    }
    if (head < 0) return;
    end_head(state, vector_value(args.sink, head), dim, static_cast<const di_rope *>(NULL), 0,
             cuda_at<A>(args.out) + t * row + static_cast<int64_t>(head) * dim);
}

void cuda_op_attend_list(di_stream *s, const di_attend_list_args *args) {
    cuda_begin(s);
    int32_t dim = args->head_dim;
    CUDA_REQUIRE(dim % 4 == 0 && dim <= MAX_DIM);
    dim3 grid(static_cast<uint32_t>(args->n_rows), cuda_blocks(args->n_heads, HEADS));
    size_t bytes = s->release ? attend_bytes<__nv_bfloat16>(dim) : attend_bytes<float>(dim);
    CUDA_LAUNCH_A(s, "attend_list", grid, HEADS * WARP, bytes, attend_list_kernel, *args,
                  score_scale(dim));
}
