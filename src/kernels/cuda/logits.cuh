/* The logits of one out row as a token is drawn from them (di_sample_args), by one block of
 * LOGIT_THREADS threads, in double, in a scratch row x [vocab] of the workspace.
 *
 * Nothing is sorted. What is kept of a row is a prefix of the order (x down, id up); its last member
 * is found byte by byte from the top of a key that has that order, with counts (top_k) or shares
 * (top_p) of the 256 values a byte can take. Shares are integers, so that their sum has no order:
 * exp(x - top) in steps of 2^-46.
 */
#ifndef DI_KERNELS_CUDA_LOGITS_CUH
#define DI_KERNELS_CUDA_LOGITS_CUH

#include "kernels/cuda/device.cuh"

extern "C" {
#include "kernels/reject.h"
}

static constexpr int LOGIT_WARPS = 16, LOGIT_THREADS = LOGIT_WARPS * WARP;
static constexpr int32_t LOGIT_MAX_VOCAB = 1 << 24; /* three bytes of an id */

/* ---- The best of a row ---- */

typedef struct scored {
    double x;
    int32_t id; /* -1: none */
} scored;

static __device__ __forceinline__ scored better(scored a, scored b) {
    if (a.id < 0 || b.id < 0) return a.id < 0 ? b : a;
    if (a.x != b.x) return a.x > b.x ? a : b;
    return a.id < b.id ? a : b;
}

/* Of all threads' candidates; every thread gets it. */
static __device__ scored block_best(scored mine) {
    __shared__ scored part[LOGIT_WARPS];
    for (int apart = WARP / 2; apart > 0; apart /= 2) {
        scored other = {__shfl_xor_sync(ALL_LANES, mine.x, apart),
                        __shfl_xor_sync(ALL_LANES, mine.id, apart)};
        mine = better(mine, other);
    }
    __syncthreads();
    if (lane_id() == 0) part[warp_id()] = mine;
    __syncthreads();
    scored all = part[0];
    for (int i = 1; i < LOGIT_WARPS; i++) all = better(all, part[i]);
    return all;
}

#define EACH_ID(id, vocab)                                                                         \
    for (int32_t id = static_cast<int32_t>(threadIdx.x); id < (vocab); id += LOGIT_THREADS)

/* ---- Penalties, bias, mask ---- */

static __device__ __forceinline__ const di_sample_params &params_of(const di_sample_args &a,
                                                                    int64_t i) {
    int64_t which = cuda_none(a.param_of) ? i : cuda_at<const int32_t>(a.param_of)[i];
    return cuda_at<const di_sample_params>(a.params)[which];
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

/* x = the logits after penalties, bias and mask. A thread has the same ids everywhere. */
static __device__ void adjust_row(const di_sample_args &a, const di_sample_params &p, int64_t i,
                                  const float *logits, double *x) {
    bool penalties = !cuda_none(a.counts) && (p.repetition_penalty != 1 ||
                                              p.presence_penalty != 0 || p.frequency_penalty != 0);
    EACH_ID(id, a.vocab) {
        double raw = static_cast<double>(logits[id]);
        x[id] = penalties ? penalised(a, p, i, id, raw) : raw;
    }
    const di_logit_bias *biases = cuda_at<const di_logit_bias>(a.biases) + p.bias_begin;
    for (int32_t k = 0; k < p.n_bias; k++) { /* in their order; each by the thread of its id */
        di_logit_bias b = biases[k];
        if (b.id % LOGIT_THREADS == static_cast<int32_t>(threadIdx.x))
            x[b.id] += static_cast<double>(b.value);
    }
    if (p.mask < 0) return;
    const uint32_t *mask =
        cuda_at<const uint32_t>(a.masks) + static_cast<int64_t>(p.mask) * ((a.vocab + 31) / 32);
    EACH_ID(id, a.vocab) {
        if ((mask[id / 32] >> (id % 32) & 1u) == 0) x[id] = -INFINITY;
    }
}

/* ---- Prefixes of the order (x down, id up) ---- */

typedef struct order_key {
    uint64_t high; /* of x: larger comes first; 0 for what is not in the order */
    uint32_t low;  /* of the id, 24 bits */
} order_key;

static __device__ __forceinline__ order_key key_of(double x, int32_t id) {
    if (x == -INFINITY) return order_key{0, 0};
    uint64_t bits = static_cast<uint64_t>(__double_as_longlong(x + 0.0)); /* -0 and 0 are equal */
    uint64_t sign = bits >> 63;
    return order_key{sign ? ~bits : bits | UINT64_C(1) << 63,
                     static_cast<uint32_t>(LOGIT_MAX_VOCAB - 1 - id)};
}

enum { KEY_BYTES = 11 }; /* eight of high, three of low, from the top */
static __device__ __forceinline__ uint32_t key_byte(order_key k, int byte) {
    return static_cast<uint32_t>(byte < 8 ? k.high >> (56 - 8 * byte) : k.low >> (80 - 8 * byte)) &
           255u;
}
/* Whether the bytes before `byte` are those of `of`. */
static __device__ __forceinline__ bool same_start(order_key k, order_key of, int byte) {
    if (byte == 0) return true;
    if (byte <= 8) return k.high >> (64 - 8 * byte) == of.high >> (64 - 8 * byte);
    return k.high == of.high && k.low >> (88 - 8 * byte) == of.low >> (88 - 8 * byte);
}

/* What a member adds to a prefix: 1, or its share. */
static __device__ __forceinline__ uint64_t weight_of(double x, double top, bool shares) {
    return shares ? static_cast<uint64_t>(exp(x - top) * 0x1p46) : 1;
}

/* Sums of integers have no order: atomics would do, but few threads should meet. */
static __device__ void add_weights(const double *x, int32_t vocab, double top, bool shares,
                                   order_key found, int byte, unsigned long long *sums) {
    uint32_t last = 0;
    unsigned long long sum = 0;
    EACH_ID(id, vocab) {
        order_key k = key_of(x[id], id);
        if (k.high == 0 || !same_start(k, found, byte)) continue;
        uint32_t digit = key_byte(k, byte);
        if (digit != last && sum > 0) {
            atomicAdd(&sums[last], sum);
            sum = 0;
        }
        last = digit;
        sum += weight_of(x[id], top, shares);
    }
    if (sum > 0) atomicAdd(&sums[last], sum);
}

/* Keeps the shortest prefix whose weights reach `wanted` > 0 and makes all others -inf; everything
 * when the whole does not reach it. */
static __device__ void keep_prefix(double *x, int32_t vocab, double top, bool shares,
                                   uint64_t wanted) {
    __shared__ unsigned long long sums[256];
    __shared__ order_key found;
    __shared__ uint64_t missing;
    __shared__ bool all;
    if (threadIdx.x == 0) found = order_key{0, 0}, missing = wanted, all = false;
    for (int byte = 0; byte < KEY_BYTES; byte++) {
        for (int i = static_cast<int>(threadIdx.x); i < 256; i += LOGIT_THREADS) sums[i] = 0;
        __syncthreads();
        add_weights(x, vocab, top, shares, found, byte, sums);
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 255;
            for (; digit >= 0 && sums[digit] < missing; digit--) missing -= sums[digit];
            if (digit < 0)
                all = true; /* at the first byte or never */
            else if (byte < 8)
                found.high |= static_cast<uint64_t>(digit) << (56 - 8 * byte);
            else
                found.low |= static_cast<uint32_t>(digit) << (80 - 8 * byte);
        }
        __syncthreads();
        if (all) return;
    }
    EACH_ID(id, vocab) {
        order_key k = key_of(x[id], id);
        if (k.high < found.high || (k.high == found.high && k.low < found.low)) x[id] = -INFINITY;
    }
}

/* x: divided by the temperature. */
static __device__ void truncate_row(const di_sample_params &p, int32_t vocab, double top,
                                    double *x) {
    if (p.top_k > 0 && p.top_k < vocab)
        keep_prefix(x, vocab, top, false, static_cast<uint64_t>(p.top_k));
    if (p.top_p < 1) {
        unsigned long long mine = 0;
        EACH_ID(id, vocab) {
            if (x[id] != -INFINITY) mine += weight_of(x[id], top, true);
        }
        unsigned long long total = block_sum<LOGIT_WARPS>(mine);
        double wanted = ceil(static_cast<double>(p.top_p) * static_cast<double>(total));
        keep_prefix(x, vocab, top, true, wanted < 1 ? 1 : static_cast<uint64_t>(wanted));
    }
    if (p.min_p <= 0) return;
    EACH_ID(id, vocab) { /* the first of the order stays in any case */
        if (x[id] != top && exp(x[id] - top) < static_cast<double>(p.min_p)) x[id] = -INFINITY;
    }
}

/* ---- A row ---- */

/* x = the logits of out row i after all processors, -inf where not kept (at temperature 0 all but
 * the most likely id, which is 0). Returns the most likely id, or -1: no distribution. All threads
 * call, and a thread may read the x of its own ids (EACH_ID) without a barrier. */
static __device__ int32_t process_row(const di_sample_args &a, int64_t i, const float *logits,
                                      double *x) {
    const di_sample_params &p = params_of(a, i);
    scored mine = {0, -1};
    bool bad = false;
    adjust_row(a, p, i, logits, x);
    EACH_ID(id, a.vocab) {
        bad = bad || isnan(logits[id]) || isnan(x[id]) || x[id] == INFINITY;
        if (x[id] != -INFINITY) mine = better(mine, scored{x[id], id});
    }
    if (__syncthreads_or(bad)) return -1;
    scored best = block_best(mine);
    if (best.id < 0) return -1;
    if (p.temperature == 0) {
        EACH_ID(id, a.vocab) x[id] = id == best.id ? 0 : -INFINITY;
        return best.id;
    }
    double temperature = static_cast<double>(p.temperature);
    EACH_ID(id, a.vocab) x[id] /= temperature;
    if (p.top_k > 0 || p.top_p < 1 || p.min_p > 0)
        truncate_row(p, a.vocab, best.x / temperature, x);
    return best.id;
}

/* argmax of x + gumbel over what is kept. */
static __device__ int32_t draw(const double *x, int32_t vocab, uint64_t seed, int64_t position) {
    scored mine = {0, -1};
    EACH_ID(id, vocab) {
        if (x[id] != -INFINITY)
            mine = better(mine, scored{x[id] + di_gumbel(seed, position, id), id});
    }
    return block_best(mine).id;
}

/* log sum exp of a processed row. */
static __device__ double log_total(const double *x, int32_t vocab) {
    scored mine = {0, -1};
    double sum = 0;
    EACH_ID(id, vocab) {
        if (x[id] != -INFINITY) mine = better(mine, scored{x[id], id});
    }
    double top = block_best(mine).x;
    EACH_ID(id, vocab) sum += exp(x[id] - top);
    return top + log(block_sum<LOGIT_WARPS>(sum));
}

/* log softmax of the raw logits at an id >= 0; 0 for a negative one. */
static __device__ float log_softmax(const float *logits, int32_t vocab, int32_t id) {
    double top = -INFINITY, sum = 0;
    if (id < 0) return 0;
    EACH_ID(i, vocab) top = fmax(top, static_cast<double>(logits[i]));
    top = block_max<LOGIT_WARPS>(top);
    EACH_ID(i, vocab) sum += exp(static_cast<double>(logits[i]) - top);
    sum = block_sum<LOGIT_WARPS>(sum);
    return static_cast<float>(static_cast<double>(logits[id]) - top - log(sum));
}

#endif
