/* Which ids of a row are kept: a prefix of the order (x down, id up), and of that what min_p leaves.
 *
 * Nothing is sorted. The last member of a prefix is found in a histogram of the distance to the
 * largest x, in steps of 1 / 64 of a natural logarithm: counts for top_k, shares for top_p. The
 * members of the bin that holds it are few as a rule; they are listed, and each finds its place in
 * the order by looking at all others. A bin with more than LOGIT_LIST is cut up again, byte by byte
 * of a key that has the order. What is far away shares the last bin, which threads count for
 * themselves: most ids are there.
 *
 * Shares are integers, so that their sum has no order: exp(x - top) in steps of 2^-46. Large ones
 * are computed in double; of those below exp(-11), which come by the ten thousand, a float's 24 bits
 * reach as far.
 */
#ifndef DI_KERNELS_CUDA_LOGIT_SELECT_CUH
#define DI_KERNELS_CUDA_LOGIT_SELECT_CUH

#include "kernels/cuda/logit_row.cuh"

/* ---- What is kept ---- */

template <typename X> struct logit_rule {
    X top;              /* the largest x of the row */
    double temperature; /* that x is still to be divided by */
    double inverse;     /* 1 / temperature */
    float scale, rest;  /* scale + rest: inverse, or the largest that leaves distances finite */
    float min_p, far;   /* far: -log(min_p) */
    X last;             /* of the prefix */
    int32_t last_id;    /* all down to -inf: -1 */
};

template <typename X>
static __device__ __forceinline__ logit_rule<X> rule_of(const di_sample_params &p, X top) {
    double temperature = sizeof(X) == sizeof(double) ? 1 : static_cast<double>(p.temperature);
    double inverse = 1 / temperature;
    float min_p = p.min_p > 0 ? p.min_p : 0, scale = fminf(static_cast<float>(inverse), 0x1p127f);
    return logit_rule<X>{top,
                         temperature,
                         inverse,
                         scale,
                         static_cast<float>(inverse - static_cast<double>(scale)),
                         min_p,
                         min_p > 0 ? -logf(min_p) : 0,
                         static_cast<X>(-INFINITY),
                         -1};
}

/* How far x lies below the top, after the division; never less for a smaller x. */
template <typename X>
static __device__ __forceinline__ float distance(const logit_rule<X> &rule, X x) {
    return static_cast<float>(rule.top - x) * rule.scale;
}

/* After the division. */
template <typename X>
static __device__ __forceinline__ double divided(const logit_rule<X> &rule, X x) {
    return static_cast<double>(x) / rule.temperature;
}

template <typename X>
static __device__ __forceinline__ bool in_prefix(const logit_rule<X> &rule, X x, int32_t id) {
    return x > rule.last || (x == rule.last && id <= rule.last_id);
}

/* Only what lies near the limit needs the exact answer. */
template <typename X>
static __device__ __forceinline__ bool above_min_p(const logit_rule<X> &rule, X x) {
    float away = distance(rule, x) - rule.far;
    if (rule.min_p <= 0 || x == rule.top || away < -1e-3f) return true;
    if (away > 1e-3f) return false;
    return exp(divided(rule, x) - divided(rule, rule.top)) >= static_cast<double>(rule.min_p);
}

template <typename X>
static __device__ __forceinline__ bool keeps(const logit_rule<X> &rule, X x, int32_t id) {
    return in_prefix(rule, x, id) && above_min_p(rule, x);
}

/* exp(x - top) after the division. */
template <typename X>
static __device__ __forceinline__ double share_of(const logit_rule<X> &rule, X x) {
    return exp((static_cast<double>(x) - static_cast<double>(rule.top)) * rule.inverse);
}

/* The distance as a sum of two floats. */
static __device__ __forceinline__ float2 far_away(const logit_rule<double> &rule, double x) {
    double away = (rule.top - x) * rule.inverse;
    float high = static_cast<float>(away);
    return make_float2(high, static_cast<float>(away - static_cast<double>(high)));
}
static __device__ __forceinline__ float2 far_away(const logit_rule<float> &rule, float x) {
    float apart = rule.top - x, back = apart - rule.top; /* what is lost is exactly `lost` */
    float lost = (rule.top - (apart - back)) - (x + back), high = apart * rule.scale;
    float low = __fmaf_rn(apart, rule.scale, -high);
    return make_float2(high, __fmaf_rn(lost, rule.scale, __fmaf_rn(apart, rule.rest, low)));
}

/* The same in steps, rounded down; exp(-33) is less than one. Few are near. */
template <typename X>
static __device__ __noinline__ uint64_t near_share(X top, X x, double inverse) {
    double y = (static_cast<double>(x) - static_cast<double>(top)) * inverse;
    return static_cast<uint64_t>(exp(y) * 0x1p46);
}
template <typename X>
static __device__ __forceinline__ uint64_t share_steps(const logit_rule<X> &rule, X x) {
    float away = distance(rule, x);
    if (away > 33.0f) return 0;
    if (away < 11.0f) return near_share(rule.top, x, rule.inverse);
    float2 far = far_away(rule, x);
    return __float2uint_rz(expf(-far.x) * (1 - far.y) * 0x1p46f);
}

/* ---- Digits of the order: a bin of distance, then eleven bytes of a key ---- */

typedef struct order_key {
    uint64_t high; /* of x: larger comes first */
    uint32_t low;  /* of the id, 24 bits */
} order_key;

static __device__ __forceinline__ order_key key_of(double x, int32_t id) {
    uint64_t bits = static_cast<uint64_t>(__double_as_longlong(x + 0.0)); /* -0 and 0 are equal */
    uint64_t sign = bits >> 63;
    return order_key{sign ? ~bits : bits | UINT64_C(1) << 63,
                     static_cast<uint32_t>(LOGIT_MAX_VOCAB - 1 - id)};
}
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

/* Where the search is: `level` digits are known. */
typedef struct logit_search {
    bool shares;
    int level, bin;  /* bin: the first digit, from level 1 on */
    order_key found; /* its bytes before level - 1 */
} logit_search;

/* This digit of a member, from the front of the order; -1: not among those searched. */
template <typename X>
static __device__ __forceinline__ int digit_of(const logit_search &search,
                                               const logit_rule<X> &rule, X x, int32_t id) {
    if (!in_prefix(rule, x, id)) return -1;
    float step = fminf(distance(rule, x) * 64.0f, static_cast<float>(LOGIT_BINS - 1));
    int bin = static_cast<int>(step);
    if (search.level == 0) return bin;
    order_key k = key_of(static_cast<double>(x), id);
    if (bin != search.bin || !same_start(k, search.found, search.level - 1)) return -1;
    return 255 - static_cast<int>(key_byte(k, search.level - 1));
}

/* ---- The histogram of one digit ---- */

/* Shared memory adds words by itself, and 64 bits only in a loop: the sum in two words, with what
 * the lower one carries. */
static __device__ __forceinline__ void add_to_bin(logit_shared *s, int bin, uint32_t count,
                                                  uint64_t share) {
    atomicAdd(&s->own_count[bin], count);
    if (share == 0) return;
    uint32_t low = static_cast<uint32_t>(share), high = static_cast<uint32_t>(share >> 32);
    if (atomicAdd(&s->own_share[bin].x, low) + low < low) high++;
    if (high != 0) atomicAdd(&s->own_share[bin].y, high);
}

/* Over this block's slice, to own_count and, if shares are asked for, own_share. Without a share
 * nobody is a member. */
template <typename X>
static __device__ void count_digits(logit_shared *s, const logit_source<X> &source,
                                    const logit_rule<X> &rule, const logit_search &search) {
    uint32_t far = 0;
    uint64_t far_share = 0;
    for (int bin = static_cast<int>(threadIdx.x); bin < LOGIT_BINS; bin += LOGIT_THREADS) {
        s->own_count[bin] = 0;
        s->own_share[bin] = make_uint2(0, 0);
    }
    __syncthreads();
    each_quad(source, [&](const X *x, int32_t id) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int digit = digit_of(search, rule, x[k], id + k);
            uint64_t share = digit >= 0 && search.shares ? share_steps(rule, x[k]) : 0;
            if (digit < 0 || (search.shares && share == 0)) continue;
            if (digit == LOGIT_BINS - 1)
                far++, far_share += share;
            else
                add_to_bin(s, digit, 1, share);
        }
    });
    far = warp_sum(far);
    far_share = warp_sum(far_share);
    if (lane_id() == 0 && far > 0) add_to_bin(s, LOGIT_BINS - 1, far, far_share);
}

/* Sum of `mine` over this thread and those before it; *all: over all. */
static __device__ uint64_t sum_before(logit_shared *s, uint64_t mine, uint64_t *all) {
    unsigned long long sum = mine, warps;
    int lane = lane_id();
    for (int apart = 1; apart < WARP; apart *= 2) {
        unsigned long long other = __shfl_up_sync(ALL_LANES, sum, apart);
        if (lane >= apart) sum += other;
    }
    __syncthreads(); /* an earlier call may still read */
    if (lane == WARP - 1) s->warp_share[warp_id()] = sum;
    __syncthreads();
    warps = lane < LOGIT_WARPS ? s->warp_share[lane] : 0;
    *all = warp_sum(warps);
    return sum + warp_sum(lane < warp_id() ? warps : 0ull);
}

/* What is looked for: where the sums reach `wanted`, and what was found. */
typedef struct logit_bin {
    uint64_t all, before; /* the sum of all bins; of those before this one */
    int bin;
    uint32_t inside; /* how many members it has */
} logit_bin;

/* A lane's bin: how much is in it, or how many. */
static __device__ __forceinline__ uint64_t in_bin(const logit_shared *s, bool shares, int bin,
                                                  int peer) {
    if (!shares) return *cluster_peer(&s->own_count[bin], peer);
    uint2 words = *cluster_peer(&s->own_share[bin], peer);
    return static_cast<uint64_t>(words.y) << 32 | words.x;
}

/* The sums over all blocks of what the warps hold of them, a block a warp: all that comes up to this
 * lane. */
static __device__ uint64_t sums_to(uint64_t (*of_peers)[WARP], uint64_t of_peer) {
    unsigned long long sum = 0;
    int lane = lane_id();
    of_peers[warp_id()][lane] = of_peer;
    __syncthreads();
    for (int peer = 0; peer < LOGIT_BLOCKS; peer++) sum += of_peers[peer][lane];
    for (int apart = 1; apart < WARP; apart *= 2) {
        unsigned long long other = __shfl_up_sync(ALL_LANES, sum, apart);
        if (lane >= apart) sum += other;
    }
    return sum;
}

/* The lane in which sums reach `wanted`, which they do; *before: the sum before it. */
static __device__ int lane_reaching(uint64_t sum, uint64_t wanted, uint64_t *before) {
    unsigned long long last = __shfl_up_sync(ALL_LANES, static_cast<unsigned long long>(sum), 1);
    if (lane_id() == 0) last = 0;
    int lane = __ffs(static_cast<int>(__ballot_sync(ALL_LANES, sum >= wanted))) - 1;
    *before = __shfl_sync(ALL_LANES, last, lane);
    return lane;
}

/* Sums of a warp's bins each, to be read by other blocks after the next time they meet. */
static __device__ void sum_groups(logit_shared *s, int rank, bool shares) {
    __syncthreads();
    for (int group = warp_id(); group < WARP; group += LOGIT_WARPS) {
        unsigned long long sum = in_bin(s, shares, group * WARP + lane_id(), rank);
        sum = warp_sum(sum);
        if (lane_id() == 0) s->own_group[group] = sum;
    }
}

/* The bin in which the sums over all blocks reach `wanted`, by groups of bins first; only `all` if they
 * do not. *wanted becomes the share `most` of all where that is not negative. The same everywhere. */
static __device__ logit_bin find_bin(logit_shared *s, bool shares, double most, uint64_t *wanted) {
    static_assert(LOGIT_BINS == WARP * WARP && LOGIT_WARPS == LOGIT_BLOCKS, "a block a warp");
    int peer = warp_id(), lane = lane_id();
    uint64_t sum = sums_to(s->of_peers[0], *cluster_peer(&s->own_group[lane], peer)), inner;
    logit_bin out = {__shfl_sync(ALL_LANES, static_cast<unsigned long long>(sum), WARP - 1), 0, 0,
                     0};
    if (most >= 0) {
        double share = ceil(most * static_cast<double>(out.all));
        *wanted = share < 1 ? 1 : static_cast<uint64_t>(share);
    }
    if (out.all < *wanted) return out;
    int first = lane_reaching(sum, *wanted, &out.before) * WARP;
    uint64_t count = *cluster_peer(&s->own_count[first + lane], peer);
    sum = sums_to(s->of_peers[1], in_bin(s, shares, first + lane, peer));
    int reached = lane_reaching(sum, *wanted - out.before, &inner);
    sum = shares ? sums_to(s->of_peers[0], count) : sum;
    sum -= reached == 0 ? 0
                        : __shfl_sync(ALL_LANES, static_cast<unsigned long long>(sum), reached - 1);
    out.inside = static_cast<uint32_t>(
        __shfl_sync(ALL_LANES, static_cast<unsigned long long>(sum), reached));
    out.before += inner;
    out.bin = first + reached;
    return out;
}

/* ---- The list of one bin ---- */

/* Members with this digit to own_x and own_id; there is room for all. */
template <typename X>
static __device__ void list_digit(logit_shared *s, const logit_source<X> &source,
                                  const logit_rule<X> &rule, const logit_search &search,
                                  int digit) {
    if (threadIdx.x == 0) s->n_list = 0;
    __syncthreads();
    each_quad(source, [&](const X *x, int32_t id) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (digit_of(search, rule, x[k], id + k) != digit) continue;
            if (search.shares && share_steps(rule, x[k]) == 0) continue;
            int at = atomicAdd(&s->n_list, 1);
            s->own_x[at] = static_cast<double>(x[k]), s->own_id[at] = id + k;
        }
    });
}

/* The lists of all blocks as one of n, to all_x, all_id and all_share (the shares or ones). */
template <typename X>
static __device__ int join_lists(logit_shared *s, const logit_rule<X> &rule, bool shares) {
    int n_of[LOGIT_BLOCKS], n = 0;
#pragma unroll
    for (int peer = 0; peer < LOGIT_BLOCKS; peer++) n_of[peer] = *cluster_peer(&s->n_list, peer);
#pragma unroll
    for (int peer = 0; peer < LOGIT_BLOCKS; peer++) {
        for (int k = static_cast<int>(threadIdx.x); k < n_of[peer]; k += LOGIT_THREADS) {
            double x = *cluster_peer(&s->own_x[k], peer);
            s->all_x[n + k] = x;
            s->all_id[n + k] = *cluster_peer(&s->own_id[k], peer);
        }
        n += n_of[peer];
    }
    __syncthreads();
    for (int k = static_cast<int>(threadIdx.x); k < n; k += LOGIT_THREADS)
        s->all_share[k] = shares ? share_steps(rule, static_cast<X>(s->all_x[k])) : 1;
    __syncthreads();
    return n;
}

/* The member of the list with which the sum in the order reaches `wanted`, to last and last_id of all
 * blocks, between which the members are divided; eight lanes a member. */
static __device__ void find_in_list(logit_shared *s, int rank, int n, uint64_t wanted) {
    constexpr int LANES = 8, AT_ONCE = LOGIT_BLOCKS * LOGIT_THREADS / LANES;
    int lane = lane_id() % LANES,
        first = static_cast<int>(threadIdx.x) / LANES * LOGIT_BLOCKS + rank;
    for (int begin = 0; begin < n; begin += AT_ONCE) {
        bool there = begin + first < n;
        int mine = there ? begin + first : 0;
        double x = s->all_x[mine];
        int32_t id = s->all_id[mine];
        unsigned long long before = 0;
        for (int j = lane; j < n; j += LANES) {
            bool ahead = s->all_x[j] > x || (s->all_x[j] == x && s->all_id[j] < id);
            before += ahead ? s->all_share[j] : 0;
        }
        before = warp_reduce(before, add_op(), LANES);
        if (there && before < wanted && before + s->all_share[mine] >= wanted) {
            *cluster_peer(&s->last, lane) = x;
            *cluster_peer(&s->last_id, lane) = id;
        }
    }
    static_assert(LANES == LOGIT_BLOCKS, "a lane tells a block");
}

/* ---- Prefixes ---- */

/* The rule cut to the shortest prefix that has `most` members or, with shares, that share of what is
 * kept so far; all blocks call. */
template <typename X>
static __device__ __noinline__ logit_rule<X> cut_prefix(logit_shared *s, int rank,
                                                        logit_source<X> source, bool shares,
                                                        double most, logit_rule<X> rule) {
    logit_search search = {shares, 0, 0, order_key{0, 0}};
    uint64_t wanted = shares ? 0 : static_cast<uint64_t>(most);
    logit_bin found;
    for (;; search.level++) {
        count_digits(s, source, rule, search);
        sum_groups(s, rank, shares);
        cluster_sync();
        found = find_bin(s, shares, shares && search.level == 0 ? fmax(most, 0.0) : -1, &wanted);
        if (found.all < wanted) break; /* all of them, at the first digit or never */
        wanted -= found.before;
        if (found.inside <= LOGIT_LIST) break;
        uint64_t byte = static_cast<uint64_t>(255 - found.bin);
        if (search.level == 0)
            search.bin = found.bin;
        else if (search.level <= 8)
            search.found.high |= byte << (64 - 8 * search.level);
        else
            search.found.low |= static_cast<uint32_t>(byte << (88 - 8 * search.level));
        cluster_sync(); /* the bins have been read */
    }
    if (found.all < wanted) {
        cluster_sync();
        return rule;
    }
    list_digit(s, source, rule, search, found.bin);
    cluster_sync();
    find_in_list(s, rank, join_lists(s, rule, shares), wanted);
    cluster_sync();
    rule.last = static_cast<X>(s->last);
    rule.last_id = s->last_id;
    return rule;
}

/* top_k, then top_p, then min_p. */
template <typename X>
static __device__ __forceinline__ logit_rule<X>
truncate(const logit_team &team, const di_sample_params &p, const logit_source<X> &source,
         int32_t vocab, X top) {
    logit_rule<X> rule = rule_of(p, top);
    for (int shares = 0; shares < 2; shares++) {
        bool cut = shares ? p.top_p < 1 : p.top_k > 0 && p.top_k < vocab;
        double most = shares ? static_cast<double>(p.top_p) : static_cast<double>(p.top_k);
        if (cut) rule = cut_prefix(team.shared, team.rank, source, shares != 0, most, rule);
    }
    return rule;
}

#endif
