/* A row of logits as a token is drawn from it (di_sample_args), by a cluster of LOGIT_BLOCKS blocks,
 * each of which has a slice of the ids. It is read from device memory once, with what is needed of all
 * of it (look), and again from the second cache for what then is known to be needed.
 *
 * What is compared is x: the float32 logit itself where nothing but a mask changes it, for division
 * by a temperature keeps the order; where penalties or biases do, y = the changed logit divided by
 * the temperature, in double, in a scratch row of the workspace. Everything below is a template of
 * the type of x.
 *
 * Blocks are small: a row is a chain of waits for other blocks, and other rows on the same processor
 * compute meanwhile; and what a warp does but once a row is divided among more ids.
 */
#ifndef DI_KERNELS_CUDA_LOGIT_ROW_CUH
#define DI_KERNELS_CUDA_LOGIT_ROW_CUH

#include "kernels/cuda/cluster.cuh"

extern "C" {
#include "kernels/reject.h"
}

static constexpr int LOGIT_BLOCKS = 8, LOGIT_WARPS = 8, LOGIT_THREADS = LOGIT_WARPS * WARP;
/* Blocks on a processor. With 3, of 80 registers a thread, what spills is live from one loop over ids to
 * the next or read once a digit (cut_prefix); inside of such loops it is where penalties or biases change a
 * row, and where a rejected draft's residual is drawn (thread_bounds, 44 bytes). With 4 it would be in the
 * draw of every row. By -Xptxas -v and SASS of nvcc 13.0. */
static constexpr int LOGIT_AT_ONCE = 3;
static constexpr int LOGIT_QUAD = 4 * LOGIT_THREADS; /* values of a block, four a thread */
static constexpr int LOGIT_BINS = 1024, LOGIT_LIST = 512;
static constexpr int32_t LOGIT_MAX_VOCAB = 1 << 24; /* three bytes of an id */

/* Doubles of a scratch row. */
static inline __host__ __device__ uint64_t logit_scratch(int32_t vocab) {
    return (static_cast<uint64_t>(vocab) + 3) / 4 * 4;
}

typedef struct scored {
    double x;
    int32_t id; /* -1: none */
} scored;

static __device__ __forceinline__ scored better(scored a, scored b) {
    if (a.id < 0 || b.id < 0) return a.id < 0 ? b : a;
    if (a.x != b.x) return a.x > b.x ? a : b;
    return a.id < b.id ? a : b;
}

/* Room for what is known of a part of a row. */
typedef struct logit_part {
    uint64_t words[4];
} logit_part;

/* Of a block; see logit_select.cuh for the lists. */
typedef struct logit_shared {
    logit_part parts[2][LOGIT_BLOCKS], warps[LOGIT_WARPS]; /* of exchange */
    uint2 own_share[LOGIT_BINS];                           /* 64 bits, the low ones first */
    uint32_t own_count[LOGIT_BINS];
    uint64_t own_group[WARP], of_peers[2][LOGIT_BLOCKS][WARP];
    double own_x[LOGIT_LIST], all_x[LOGIT_LIST], last;
    unsigned long long all_share[LOGIT_LIST], warp_share[LOGIT_WARPS];
    int32_t own_id[LOGIT_LIST], all_id[LOGIT_LIST], n_list, last_id;
    int32_t token, block; /* token, limit, again: of a draw */
    float limit;
    bool again;
} logit_shared;

/* A cluster's place in its work. */
typedef struct logit_team {
    logit_shared *shared;
    int rank, turn; /* turn: which of `parts` is next */
    bool met;       /* all blocks are known to run */
} logit_team;

/* Arrives: the first exchange waits, or team_meet. */
static __device__ __forceinline__ logit_team team_begin(logit_shared *shared) {
    cluster_arrive();
    return logit_team{shared, static_cast<int>(blockIdx.x % LOGIT_BLOCKS), 0, false};
}
static __device__ __forceinline__ void team_meet(logit_team *team) {
    if (!team->met) cluster_wait();
    team->met = true;
}

/* ---- Of a warp; all lanes call and get the result ---- */

static __device__ __forceinline__ float fast_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A sum of 2^(. - from) as one of 2^(. - to); to >= from. */
static __device__ __forceinline__ float rescaled(float sum, float from, float to) {
    return from == to ? sum : sum * fast_exp2(from - to);
}

/* Bits that have the order of floats, as unsigned; not of NaN. */
static __device__ __forceinline__ uint32_t order_bits(float x) {
    int32_t bits = __float_as_int(x + 0.0f); /* -0 and 0 are equal */
    return static_cast<uint32_t>(bits) ^ (static_cast<uint32_t>(bits >> 31) | 0x80000000u);
}
static __device__ __forceinline__ float warp_largest(float x) {
    uint32_t bits = __reduce_max_sync(ALL_LANES, order_bits(x));
    return __uint_as_float(bits & 0x80000000u ? bits ^ 0x80000000u : ~bits);
}

/* What `better` makes of a warp: by the bits that have the order. */
static __device__ __forceinline__ scored warp_best(scored mine) {
    uint64_t bits = static_cast<uint64_t>(__double_as_longlong(mine.x + 0.0));
    bits ^= static_cast<uint64_t>(static_cast<int64_t>(bits) >> 63) | UINT64_C(1) << 63;
    if (mine.id < 0) bits = 0;
    uint32_t high = static_cast<uint32_t>(bits >> 32), low = static_cast<uint32_t>(bits);
    uint32_t top = __reduce_max_sync(ALL_LANES, high);
    uint32_t next = __reduce_max_sync(ALL_LANES, high == top ? low : 0);
    bool best = high == top && low == next && mine.id >= 0;
    uint32_t id = best ? static_cast<uint32_t>(mine.id) : UINT32_MAX;
    bits = static_cast<uint64_t>(top) << 32 | next;
    bits = bits >> 63 ? bits ^ UINT64_C(1) << 63 : ~bits;
    return scored{__longlong_as_double(static_cast<int64_t>(bits)),
                  static_cast<int32_t>(__reduce_min_sync(ALL_LANES, id))};
}

/* ---- Of a cluster ---- */

/* What all threads know as LOGIT_BLOCKS parts, one of each block, for all of them to read: join(mine)
 * makes one of those of a warp, and `none` is what adds nothing. Two sets of parts take turns: whoever
 * writes the one before last has seen everybody arrive with the last. */
template <typename P, typename J>
static __device__ __forceinline__ const P *exchange(logit_team *team, P mine, P none, J join) {
    static_assert(sizeof(P) <= sizeof(logit_part));
    logit_shared *s = team->shared;
    P *warps = reinterpret_cast<P *>(s->warps),
      *parts = reinterpret_cast<P *>(s->parts[team->turn]);
    team->turn ^= 1;
    mine = join(mine);
    if (lane_id() == 0) warps[warp_id()] = mine;
    __syncthreads();
    team_meet(team);
    if (warp_id() == 0) {
        mine = join(lane_id() < LOGIT_WARPS ? warps[lane_id()] : none);
        if (lane_id() < LOGIT_BLOCKS) *cluster_peer(&parts[team->rank], lane_id()) = mine;
        __syncwarp();
    }
    cluster_sync_aligned();
    return parts;
}

/* The sum of all threads, in all of them. */
static __device__ double exchange_sum(logit_team *team, double mine) {
    auto join = [](double x) { return warp_sum(x); };
    const double *parts = exchange(team, mine, 0.0, join);
    return join(lane_id() < LOGIT_BLOCKS ? parts[lane_id()] : 0);
}

/* ---- The values of a row ---- */

template <typename X> struct logit_source {
    const X *x;           /* [vocab] */
    const uint32_t *mask; /* NULL: none, or already in x */
    int32_t begin, end;   /* the ids of this block; begin is a multiple of 4 */
    bool whole;           /* x is aligned to 16 bytes, end a multiple of 4 */
};

static __device__ __forceinline__ void slice_of(int32_t vocab, int rank, int32_t *begin,
                                                int32_t *end) {
    int64_t slice = ((vocab + LOGIT_BLOCKS - 1) / LOGIT_BLOCKS + 3) / 4 * 4;
    int64_t from = slice * rank, to = from + slice;
    *begin = static_cast<int32_t>(from < vocab ? from : (vocab + 3) / 4 * 4);
    *end = static_cast<int32_t>(to < vocab ? to : vocab);
}

template <typename X>
static __device__ __forceinline__ logit_source<X> source_of(const X *x, const uint32_t *mask,
                                                            int32_t vocab, int rank) {
    logit_source<X> source = {x, mask, 0, 0, false};
    slice_of(vocab, rank, &source.begin, &source.end);
    source.whole = vocab % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
    return source;
}

static __device__ __forceinline__ void load4(const float *x, float *out) {
    float4 v = *reinterpret_cast<const float4 *>(x);
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}
static __device__ __forceinline__ void load4(const double *x, double *out) {
    double2 a = reinterpret_cast<const double2 *>(x)[0],
            b = reinterpret_cast<const double2 *>(x)[1];
    out[0] = a.x, out[1] = a.y, out[2] = b.x, out[3] = b.y;
}

/* The values of ids id .. id + 3, id a multiple of 4; -inf behind the end. */
template <typename X>
static __device__ __forceinline__ void load_raw(const logit_source<X> &source, int32_t id, X *out) {
    __builtin_assume(__isGlobal(source.x)); /* what functions do not hear from their callers */
    if (source.whole && id < source.end) return load4(source.x + id, out);
    for (int i = 0; i < 4; i++)
        out[i] = id + i < source.end ? source.x[id + i] : static_cast<X>(-INFINITY);
}
/* Bit i: id + i is allowed, or behind the end. */
template <typename X>
static __device__ __forceinline__ uint32_t allowed4(const logit_source<X> &source, int32_t id) {
    if (source.mask == NULL || id >= source.end) return 15u;
    return source.mask[id / 32] >> (id % 32) & 15u;
}
/* The same, -inf for what is not allowed. */
template <typename X>
static __device__ __forceinline__ void load_quad(const logit_source<X> &source, int32_t id,
                                                 X *out) {
    load_raw(source, id, out);
    if (source.mask == NULL) return;
    uint32_t allowed = allowed4(source, id);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (!(allowed >> i & 1)) out[i] = static_cast<X>(-INFINITY);
}
/* One value, of any block's slice. */
template <typename X>
static __device__ __forceinline__ X value_of(const logit_source<X> &source, int32_t id) {
    bool allowed = source.mask == NULL || (source.mask[id / 32] >> (id % 32) & 1u) != 0;
    return allowed ? source.x[id] : static_cast<X>(-INFINITY);
}

/* f(x, id) for the values of ids id .. id + 3, by the thread that has them, -inf behind the end; the
 * load of the next four runs ahead. */
template <typename X, typename F>
static __device__ __forceinline__ void each_quad(const logit_source<X> &source, F f) {
    X next[4], x[4];
    int32_t id = source.begin + 4 * static_cast<int32_t>(threadIdx.x);
    load_quad(source, id, next);
#pragma unroll 1
    for (; id < source.end; id += LOGIT_QUAD) {
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = next[i];
        load_quad(source, id + LOGIT_QUAD, next);
        f(x, id);
    }
}

/* Asks for a later row's values, so that memory does not rest while this row is worked on. */
static __device__ __forceinline__ void prefetch_row(const float *x, int32_t vocab, int rank) {
    constexpr int LINE = 128 / sizeof(float);
    int32_t begin, end;
    slice_of(vocab, rank, &begin, &end);
    for (int32_t id = begin + LINE * static_cast<int32_t>(threadIdx.x); id < end;
         id += LINE * LOGIT_THREADS)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(x + id));
}

/* ---- Penalties and biases ---- */

static __device__ __forceinline__ const di_sample_params &params_of(const di_sample_args &a,
                                                                    int64_t i) {
    int64_t which = cuda_none(a.param_of) ? i : cuda_at<const int32_t>(a.param_of)[i];
    return cuda_at<const di_sample_params>(a.params)[which];
}

static __device__ __forceinline__ bool has_penalties(const di_sample_args &a,
                                                     const di_sample_params &p) {
    return !cuda_none(a.counts) &&
           (p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0);
}

static __device__ __forceinline__ const uint32_t *mask_of(const di_sample_args &a,
                                                          const di_sample_params &p) {
    if (p.mask < 0) return NULL;
    return cuda_at<const uint32_t>(a.masks) + static_cast<int64_t>(p.mask) * ((a.vocab + 31) / 32);
}

/* How often an id stands among the drafts before out row i. */
static __device__ int32_t extra_count(const di_sample_args &a, int64_t i, int32_t id) {
    if (cuda_none(a.extra)) return 0;
    const int32_t *extra = cuda_at<const int32_t>(a.extra) + cuda_at<const int32_t>(a.extra_at)[i];
    int32_t n = cuda_at<const int32_t>(a.n_extra)[i], count = 0;
    for (int64_t j = 0; j < n; j++) count += extra[j * a.extra_stride] == id;
    return count;
}

static __device__ __noinline__ double penalised(const di_sample_args &a, const di_sample_params &p,
                                                int64_t i, int32_t id, double x) {
    int32_t count = cuda_at<const int32_t>(a.counts)[static_cast<int64_t>(p.slot) * a.vocab + id];
    int32_t extra = extra_count(a, i, id), output = (count & ~DI_COUNT_PROMPT) + extra;
    if ((count != 0 || extra > 0) && p.repetition_penalty != 1) {
        double r = static_cast<double>(p.repetition_penalty);
        x = x > 0 ? x / r : x * r;
    }
    if (output > 0)
        x -= static_cast<double>(p.presence_penalty) +
             static_cast<double>(p.frequency_penalty) * output;
    return x;
}

/* What becomes of the logits of out row i, which only here are changed. */
typedef struct row_change {
    const di_sample_args *args;
    const di_sample_params *p;
    int64_t i;
    const int32_t *counts; /* [vocab], or NULL: no penalties */
    const uint32_t *mask;
    bool drafts; /* stand before the row */
    double temperature;
} row_change;

static __device__ row_change change_of(const di_sample_args &a, const di_sample_params &p,
                                       int64_t i) {
    row_change c = {&a, &p, i, NULL, mask_of(a, p), false, 1};
    if (has_penalties(a, p)) {
        c.counts = cuda_at<const int32_t>(a.counts) + static_cast<int64_t>(p.slot) * a.vocab;
        c.drafts = !cuda_none(a.extra) && cuda_at<const int32_t>(a.n_extra)[i] > 0;
    }
    if (p.temperature != 0) c.temperature = static_cast<double>(p.temperature);
    return c;
}

/* What mask and temperature make of x; *bad if it is none (NaN, +infinite). */
static __device__ __forceinline__ double changed_last(const row_change &c, int32_t id, double x,
                                                      bool *bad) {
    if (c.mask != NULL && (c.mask[id / 32] >> (id % 32) & 1u) == 0) x = -INFINITY;
    *bad = *bad || !(x < INFINITY);
    return c.temperature == 1 ? x : x / c.temperature;
}

/* The values of biased ids anew, those of one id in their order, by the thread of the first of them.
 */
static __device__ bool add_biases(const row_change &c, const logit_source<float> &raw,
                                  double *scratch) {
    const di_logit_bias *biases = cuda_at<const di_logit_bias>(c.args->biases) + c.p->bias_begin;
    bool bad = false;
    for (int32_t k = static_cast<int32_t>(threadIdx.x); k < c.p->n_bias; k += LOGIT_THREADS) {
        int32_t id = biases[k].id;
        bool first = id >= raw.begin && id < raw.end;
        for (int32_t j = 0; j < k && first; j++) first = biases[j].id != id;
        if (!first) continue;
        double x = static_cast<double>(raw.x[id]);
        if (c.counts != NULL) x = penalised(*c.args, *c.p, c.i, id, x);
        for (int32_t j = k; j < c.p->n_bias; j++)
            if (biases[j].id == id) x += static_cast<double>(biases[j].value);
        scratch[id] = changed_last(c, id, x, &bad);
    }
    return bad;
}

/* scratch = the logits of this block's slice after penalties, biases and mask, divided by the
 * temperature unless it is 0. Returns whether one of them is none (NaN, +infinite). Not yet seen by
 * other blocks. All blocks call. */
static __device__ bool change_row(logit_team *team, const di_sample_args &a,
                                  const di_sample_params &p, int64_t i, const float *logits,
                                  double *scratch) {
    row_change c = change_of(a, p, i);
    logit_source<float> raw = source_of(logits, NULL, a.vocab, team->rank);
    bool bad = false;
    if (team->met) cluster_sync(); /* others may still read the row that was here (exact_value) */
    each_quad(raw, [&](const float *logit, int32_t id) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (id + k >= raw.end) break;
            double x = static_cast<double>(logit[k]);
            if (c.counts != NULL && (c.drafts || c.counts[id + k] != 0))
                x = penalised(a, p, i, id + k, x);
            scratch[id + k] = changed_last(c, id + k, x, &bad);
        }
    });
    __syncthreads();
    if (p.n_bias > 0) {
        bad = add_biases(c, raw, scratch) || bad;
        __syncthreads();
    }
    return bad;
}

/* ---- The first look at a row ---- */

/* The largest of four; NaN if one is. */
static __device__ __forceinline__ float larger(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
static __device__ __forceinline__ float largest4(const float *v) {
    return larger(larger(v[0], v[1]), larger(v[2], v[3]));
}

/* The largest x of four whose raw values are v; -inf if none is allowed. */
static __device__ __forceinline__ float best_of_quad(const logit_source<float> &source, int32_t id,
                                                     const float *v) {
    if (source.mask == NULL) return largest4(v);
    uint32_t allowed = allowed4(source, id);
    float best = -INFINITY;
    for (int i = 0; i < 4; i++)
        if (allowed >> i & 1) best = fmaxf(best, v[i]);
    return best;
}
static __device__ __forceinline__ double best_of_quad(const logit_source<double> &source,
                                                      int32_t id, const float *) {
    double x[4];
    load_raw(source, id, x);
    return fmax(fmax(x[0], x[1]), fmax(x[2], x[3]));
}

/* What the first look finds, and which row comes next. */
typedef struct row_look {
    scored best;
    int32_t bad;
    float top, sum; /* of the raw logits: log2(e) times the largest, sum of 2^(. - top) */
    int32_t next;   /* -1: unknown */
} row_look;

static __device__ __forceinline__ row_look no_look() {
    return row_look{{0, -1}, 0, -INFINITY, 0, -1};
}

/* Of a thread's ids. It remembers the four among which its best is, and only the best of a warp look for
 * it there. Its own function, as the other loops over a row are: what is live around it would not leave
 * enough registers. */
template <typename X>
static __device__ __noinline__ row_look look_at(logit_source<float> raw, logit_source<X> source,
                                                bool wanted, bool bad) {
    row_look mine = no_look();
    X best = static_cast<X>(-INFINITY);
    int32_t of_best = -1;
#pragma unroll 1
    for (int32_t base = raw.begin; base < raw.end; base += 4 * LOGIT_QUAD) {
        int32_t first = base + 4 * static_cast<int32_t>(threadIdx.x);
        float v[16], most = -INFINITY;
#pragma unroll
        for (int q = 0; q < 4; q++) load_raw(raw, first + q * LOGIT_QUAD, v + 4 * q);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            int32_t id = first + q * LOGIT_QUAD;
            X x = best_of_quad(source, id, v + 4 * q);
            if (x > best) best = x, of_best = id;
            most = larger(most, largest4(v + 4 * q));
        }
        bad = bad || isnan(most);
        if (!wanted || most == -INFINITY) continue;
        float now = fmaxf(mine.top, most * LOG2_E), sum[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 16; i++) sum[i % 2] += fast_exp2(__fmaf_rn(v[i], LOG2_E, -now));
        mine.sum = rescaled(mine.sum, mine.top, now) + (sum[0] + sum[1]);
        mine.top = now;
    }
    mine.bad = bad || best == static_cast<X>(INFINITY);
    float near = static_cast<float>(best), nearest = warp_largest(near); /* keeps the order */
    if (of_best < 0 || near != nearest) return mine;
    X x[4];
    load_quad(source, of_best, x);
    for (int i = 3; i >= 0; i--)
        if (x[i] == best) mine.best = scored{static_cast<double>(best), of_best + i};
    return mine;
}

/* Of a row: best id, and top and sum if they are `wanted`, which only the first warp hears of. All
 * blocks call; next: of one thread. */
template <typename X>
static __device__ __forceinline__ row_look look(logit_team *team, const logit_source<float> &raw,
                                                const logit_source<X> &source, bool wanted,
                                                bool bad, int32_t next) {
    auto join = [=](row_look part, bool sums) {
        row_look all = {warp_best(part.best), __any_sync(ALL_LANES, part.bad), 0, 0,
                        __reduce_max_sync(ALL_LANES, part.next)};
        if (!sums) return all;
        all.top = warp_largest(part.top);
        all.sum = warp_sum(rescaled(part.sum, part.top, all.top));
        return all;
    };
    row_look mine = look_at(raw, source, wanted, bad);
    mine.next = next;
    const row_look *parts =
        exchange(team, mine, no_look(), [=](row_look part) { return join(part, wanted); });
    return join(lane_id() < LOGIT_BLOCKS ? parts[lane_id()] : no_look(), wanted && warp_id() == 0);
}

/* log softmax of the raw logits at an id >= 0; 0 for a negative one. The powers of two were those
 * of logits times a rounded log2(e), which is taken back. */
static __device__ __forceinline__ float log_softmax(const float *logits, const row_look &row,
                                                    int32_t id) {
    if (id < 0) return 0;
    double all = static_cast<double>(row.top) + log2(static_cast<double>(row.sum));
    return static_cast<float>(static_cast<double>(logits[id]) - all / static_cast<double>(LOG2_E));
}

#endif
