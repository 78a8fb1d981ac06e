/* A row of logits as a token is drawn from it (di_sample_args), by a cluster of LOGIT_BLOCKS blocks,
 * each of which has a slice of the ids. A row of the released vocabulary is 16 values a thread: it is
 * read from device memory once, and again from the processors' own caches.
 *
 * What is compared is x: the float32 logit itself where nothing but a mask changes it, for division
 * by a temperature keeps the order; where penalties or biases do, y = the changed logit divided by
 * the temperature, in double, in a scratch row of the workspace. Everything below is a template of
 * the type of x.
 */
#ifndef DI_KERNELS_CUDA_LOGIT_ROW_CUH
#define DI_KERNELS_CUDA_LOGIT_ROW_CUH

#include "kernels/cuda/cluster.cuh"

extern "C" {
#include "kernels/reject.h"
}

static constexpr int LOGIT_BLOCKS = 8, LOGIT_WARPS = 32, LOGIT_THREADS = LOGIT_WARPS * WARP;
static constexpr int LOGIT_QUAD = 4 * LOGIT_THREADS; /* values of a block, four a thread */
static constexpr int LOGIT_BINS = LOGIT_THREADS, LOGIT_LIST = LOGIT_THREADS;
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

/* What blocks tell each other of a row. */
typedef struct logit_part {
    scored best;
    int32_t bad;
    float top, sum; /* of the raw logits: the largest, sum of exp(logit - top) */
    double mass;
} logit_part;

/* Of a block; see logit_select.cuh for the lists. */
typedef struct logit_shared {
    logit_part parts[2][LOGIT_BLOCKS];
    unsigned long long own_share[LOGIT_BINS], all_share[LOGIT_BINS];
    uint32_t own_count[LOGIT_BINS], all_count[LOGIT_BINS];
    double own_x[LOGIT_LIST], all_x[LOGIT_LIST];
    int32_t own_id[LOGIT_LIST];
    double warp_x[LOGIT_WARPS];
    int32_t warp_id[LOGIT_WARPS];
    float warp_top[LOGIT_WARPS], warp_sum[LOGIT_WARPS];
    unsigned long long warp_share[LOGIT_WARPS], before;
    int32_t n_list, bin, last_id;
    uint32_t inside;
    double last;
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

/* ---- Reductions; every thread of the block calls and gets the result ---- */

static __device__ __forceinline__ scored warp_best(scored mine) {
    for (int apart = WARP / 2; apart > 0; apart /= 2) {
        scored other = {__shfl_xor_sync(ALL_LANES, mine.x, apart),
                        __shfl_xor_sync(ALL_LANES, mine.id, apart)};
        mine = better(mine, other);
    }
    return mine;
}

static __device__ scored logit_best(logit_shared *s, scored mine) {
    mine = warp_best(mine);
    __syncthreads(); /* an earlier call may still read */
    if (lane_id() == 0) s->warp_x[warp_id()] = mine.x, s->warp_id[warp_id()] = mine.id;
    __syncthreads();
    return warp_best(scored{s->warp_x[lane_id()], s->warp_id[lane_id()]});
}

static __device__ float logit_max(logit_shared *s, float mine) {
    mine = warp_reduce(mine, max_op());
    __syncthreads();
    if (lane_id() == 0) s->warp_top[warp_id()] = mine;
    __syncthreads();
    return warp_reduce(s->warp_top[lane_id()], max_op());
}

static __device__ double logit_sum(logit_shared *s, double mine) {
    mine = warp_sum(mine);
    __syncthreads();
    if (lane_id() == 0) s->warp_x[warp_id()] = mine;
    __syncthreads();
    return warp_sum(s->warp_x[lane_id()]);
}

/* A sum of exp(. - from) as one of exp(. - to); to >= from. */
static __device__ __forceinline__ float rescaled(float sum, float from, float to) {
    return from == to ? sum : sum * __expf(from - to);
}
static __device__ __forceinline__ void warp_exponents(float *top, float *sum) {
    float most = warp_reduce(*top, max_op());
    *sum = warp_sum(rescaled(*sum, *top, most));
    *top = most;
}
static __device__ void logit_exponents(logit_shared *s, float *top, float *sum) {
    warp_exponents(top, sum);
    __syncthreads();
    if (lane_id() == 0) s->warp_top[warp_id()] = *top, s->warp_sum[warp_id()] = *sum;
    __syncthreads();
    *top = s->warp_top[lane_id()], *sum = s->warp_sum[lane_id()];
    warp_exponents(top, sum);
}

/* The parts of all blocks as one, in every block. Two sets of `parts` take turns: whoever writes the
 * one before last has seen everybody arrive with the last. */
static __device__ logit_part exchange(logit_team *team, const logit_part &mine) {
    logit_part *parts = team->shared->parts[team->turn];
    team->turn ^= 1;
    team_meet(team);
    if (threadIdx.x < LOGIT_BLOCKS)
        *cluster_peer(&parts[team->rank], static_cast<int>(threadIdx.x)) = mine;
    cluster_sync();
    logit_part all = parts[0];
    for (int i = 1; i < LOGIT_BLOCKS; i++) {
        const logit_part &other = parts[i];
        float top = fmaxf(all.top, other.top);
        all.best = better(all.best, other.best);
        all.bad |= other.bad;
        all.sum = rescaled(all.sum, all.top, top) + rescaled(other.sum, other.top, top);
        all.top = top;
        all.mass += other.mass;
    }
    return all;
}

/* ---- The values of a row ---- */

template <typename X> struct logit_source {
    const X *x;           /* [vocab] */
    const uint32_t *mask; /* NULL: none, or already in x */
    int32_t begin, end;   /* the ids of this block; begin is a multiple of 4 */
    bool whole;           /* x + begin is aligned, end a multiple of 4 */
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

#define EACH_QUAD(id, source)                                                                      \
    for (int32_t id = (source).begin + 4 * static_cast<int32_t>(threadIdx.x); id < (source).end;   \
         id += LOGIT_QUAD)

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
    if (source.whole && id < source.end) return load4(source.x + id, out);
    for (int i = 0; i < 4; i++)
        out[i] = id + i < source.end ? source.x[id + i] : static_cast<X>(-INFINITY);
}
/* Bit i: id + i is allowed. */
template <typename X>
static __device__ __forceinline__ uint32_t allowed4(const logit_source<X> &source, int32_t id) {
    return source.mask == NULL ? 15u : source.mask[id / 32] >> (id % 32) & 15u;
}
/* The same, -inf for what is not allowed. */
template <typename X>
static __device__ __forceinline__ void load_quad(const logit_source<X> &source, int32_t id,
                                                 X *out) {
    uint32_t allowed = allowed4(source, id);
    load_raw(source, id, out);
    for (int i = 0; i < 4; i++)
        if (!(allowed >> i & 1)) out[i] = static_cast<X>(-INFINITY);
}
/* One value, of any block's slice. */
template <typename X>
static __device__ __forceinline__ X value_of(const logit_source<X> &source, int32_t id) {
    bool allowed = source.mask == NULL || (source.mask[id / 32] >> (id % 32) & 1u) != 0;
    return allowed ? source.x[id] : static_cast<X>(-INFINITY);
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

static __device__ double penalised(const di_sample_args &a, const di_sample_params &p, int64_t i,
                                   int32_t id, double x) {
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

/* Those of one id in their order, by the thread of the first of them. */
static __device__ void add_biases(const di_sample_args &a, const di_sample_params &p, int32_t begin,
                                  int32_t end, double *x) {
    const di_logit_bias *biases = cuda_at<const di_logit_bias>(a.biases) + p.bias_begin;
    for (int32_t k = static_cast<int32_t>(threadIdx.x); k < p.n_bias; k += LOGIT_THREADS) {
        int32_t id = biases[k].id;
        bool first = id >= begin && id < end;
        for (int32_t j = 0; j < k && first; j++) first = biases[j].id != id;
        for (int32_t j = k; j < p.n_bias && first; j++)
            if (biases[j].id == id) x[id] += static_cast<double>(biases[j].value);
    }
}

/* scratch = the logits of this block's slice after penalties, biases and mask, divided by the
 * temperature unless it is 0. Returns whether one of them is none (NaN, +infinite). Not yet seen by
 * other blocks. */
static __device__ bool change_row(const di_sample_args &a, const di_sample_params &p, int64_t i,
                                  const float *logits, int rank, double *scratch) {
    const uint32_t *mask = mask_of(a, p);
    bool penalties = has_penalties(a, p), bad = false;
    double temperature = p.temperature == 0 ? 1 : static_cast<double>(p.temperature);
    int32_t begin, end;
    slice_of(a.vocab, rank, &begin, &end);
    begin += static_cast<int32_t>(threadIdx.x);
    for (int32_t id = begin; id < end; id += LOGIT_THREADS) {
        double x = static_cast<double>(logits[id]);
        scratch[id] = penalties ? penalised(a, p, i, id, x) : x;
    }
    __syncthreads();
    if (p.n_bias > 0) add_biases(a, p, begin - static_cast<int32_t>(threadIdx.x), end, scratch);
    __syncthreads();
    for (int32_t id = begin; id < end; id += LOGIT_THREADS) {
        double x = scratch[id];
        if (mask != NULL && (mask[id / 32] >> (id % 32) & 1u) == 0) x = -INFINITY;
        bad = bad || !(x < INFINITY);
        scratch[id] = x / temperature;
    }
    __syncthreads();
    return bad;
}

/* ---- The first look at a row ---- */

/* Best id, and top and sum of the raw logits if `wanted`: this block's part. */
template <typename X>
static __device__ logit_part look(logit_shared *s, const logit_source<float> &raw,
                                  const logit_source<X> &source, bool wanted, bool bad) {
    X best = static_cast<X>(-INFINITY);
    int32_t id_of_best = -1;
    float top = -INFINITY, sum = 0;
    for (int32_t base = raw.begin; base < raw.end; base += 4 * LOGIT_QUAD) {
        int32_t first = base + 4 * static_cast<int32_t>(threadIdx.x);
        float v[16], most = -INFINITY;
#pragma unroll
        for (int q = 0; q < 4; q++) load_raw(raw, first + q * LOGIT_QUAD, v + 4 * q);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            int32_t id = first + q * LOGIT_QUAD;
            uint32_t allowed = id < raw.end ? allowed4(source, id) : 0;
            X x[4];
            if constexpr (sizeof(X) == sizeof(double))
                load_raw(source, id, x);
            else
                for (int i = 0; i < 4; i++) x[i] = v[4 * q + i];
            for (int i = 0; i < 4; i++) {
                bool candidate = (allowed >> i & 1) != 0;
                bad = bad || isnan(v[4 * q + i]) || (candidate && !(x[i] < INFINITY));
                if (candidate && x[i] > best) best = x[i], id_of_best = id + i;
                most = fmaxf(most, v[4 * q + i]);
            }
        }
        if (!wanted || most == -INFINITY) continue;
        float now = fmaxf(top, most);
        sum = rescaled(sum, top, now);
#pragma unroll
        for (int i = 0; i < 16; i++) sum += __expf(v[i] - now);
        top = now;
    }
    logit_part part = {};
    part.bad = __syncthreads_or(bad);
    part.best = logit_best(s, scored{static_cast<double>(best), id_of_best});
    if (wanted) logit_exponents(s, &top, &sum);
    part.top = top, part.sum = sum;
    return part;
}

/* log softmax of the raw logits at an id >= 0; 0 for a negative one. */
static __device__ __forceinline__ float log_softmax(const float *logits, const logit_part &row,
                                                    int32_t id) {
    if (id < 0) return 0;
    return static_cast<float>(static_cast<double>(logits[id]) - static_cast<double>(row.top) -
                              log(static_cast<double>(row.sum)));
}

#endif
