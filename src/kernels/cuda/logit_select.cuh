/* Which ids of a row are kept: a prefix of the order (x down, id up), and of that what min_p leaves.
 *
 * Nothing is sorted. The last member of a prefix is found in a histogram of the distance to the
 * largest x, in steps of 1 / 32 of a natural logarithm: counts for top_k, shares for top_p. The
 * members of the bin that holds it are few as a rule; they are listed, and each finds its place in
 * the order by looking at all others. A bin with more than LOGIT_LIST is cut up again, byte by byte
 * of a key that has the order.
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
    float min_p, far;   /* far: -log(min_p) */
    bool prefix;        /* else everything down to -inf */
    X last;             /* of the prefix */
    int32_t last_id;
};

template <typename X>
static __device__ __forceinline__ logit_rule<X> rule_of(const di_sample_params &p, X top) {
    double temperature = sizeof(X) == sizeof(double) ? 1 : static_cast<double>(p.temperature);
    float min_p = p.min_p > 0 ? p.min_p : 0;
    return logit_rule<X>{top,
                         temperature,
                         1 / temperature,
                         min_p,
                         min_p > 0 ? -logf(min_p) : 0,
                         false,
                         top,
                         0};
}

/* How far x lies below the top, after the division; never less for a smaller x. */
template <typename X>
static __device__ __forceinline__ float distance(const logit_rule<X> &rule, X x) {
    return static_cast<float>(rule.top - x) * fminf(static_cast<float>(rule.inverse), 0x1p127f);
}

/* After the division. */
template <typename X>
static __device__ __forceinline__ double divided(const logit_rule<X> &rule, X x) {
    return static_cast<double>(x) / rule.temperature;
}

template <typename X>
static __device__ __forceinline__ bool in_prefix(const logit_rule<X> &rule, X x, int32_t id) {
    if (!rule.prefix || x > rule.last) return x != static_cast<X>(-INFINITY);
    return x == rule.last && id <= rule.last_id;
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
    double away = (static_cast<double>(rule.top) - static_cast<double>(x)) * rule.inverse;
    float high = static_cast<float>(away);
    if (high < 11.0f) return exp(-away);
    if (high > 100.0f) return 0;
    float low = static_cast<float>(away - static_cast<double>(high));
    return static_cast<double>(expf(-high) * (1 - low));
}
template <typename X>
static __device__ __forceinline__ uint64_t share_steps(const logit_rule<X> &rule, X x) {
    return static_cast<uint64_t>(share_of(rule, x) * 0x1p46);
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
    float step = fminf(distance(rule, x) * 32.0f, static_cast<float>(LOGIT_BINS - 1));
    int bin = static_cast<int>(step);
    if (search.level == 0) return bin;
    order_key k = key_of(static_cast<double>(x), id);
    if (bin != search.bin || !same_start(k, search.found, search.level - 1)) return -1;
    return 255 - static_cast<int>(key_byte(k, search.level - 1));
}

/* ---- The histogram of one digit ---- */

/* Over this block's slice, to own_count and, if shares are asked for, own_share. The last bin takes
 * whatever is far away: it is counted by the thread first. Without a share nobody is a member. */
template <typename X>
static __device__ void count_digits(logit_shared *s, const logit_source<X> &source,
                                    const logit_rule<X> &rule, const logit_search &search) {
    uint32_t far = 0;
    s->own_count[threadIdx.x] = 0;
    s->own_share[threadIdx.x] = 0;
    __syncthreads();
    EACH_QUAD(id, source) {
        X x[4];
        load_quad(source, id, x);
        for (int i = 0; i < 4; i++) {
            int digit = digit_of(search, rule, x[i], id + i);
            if (digit == LOGIT_BINS - 1 && !search.shares) far++;
            if (digit < 0 || (digit == LOGIT_BINS - 1 && !search.shares)) continue;
            uint64_t share = search.shares ? share_steps(rule, x[i]) : 1;
            if (share == 0) continue;
            atomicAdd(&s->own_count[digit], 1u);
            if (search.shares)
                atomicAdd(&s->own_share[digit], static_cast<unsigned long long>(share));
        }
    }
    far = warp_sum(far);
    if (lane_id() == 0 && far > 0) atomicAdd(&s->own_count[LOGIT_BINS - 1], far);
}

/* The bins of all blocks: each adds up its part of them and tells everybody. */
static __device__ void join_digits(logit_shared *s, int rank, bool shares) {
    constexpr int EACH = LOGIT_BINS / LOGIT_BLOCKS;
    if (threadIdx.x >= EACH) return;
    int bin = rank * EACH + static_cast<int>(threadIdx.x);
    uint32_t count = 0;
    unsigned long long share = 0;
    for (int peer = 0; peer < LOGIT_BLOCKS; peer++) {
        count += *cluster_peer(&s->own_count[bin], peer);
        if (shares) share += *cluster_peer(&s->own_share[bin], peer);
    }
    for (int peer = 0; peer < LOGIT_BLOCKS; peer++) {
        *cluster_peer(&s->all_count[bin], peer) = count;
        if (shares) *cluster_peer(&s->all_share[bin], peer) = share;
    }
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
    warps = s->warp_share[lane];
    *all = warp_sum(warps);
    return sum + warp_sum(lane < warp_id() ? warps : 0ull);
}

/* ---- The list of one bin ---- */

/* Members with this digit to own_x and own_id; there is room for all. */
template <typename X>
static __device__ void list_digit(logit_shared *s, const logit_source<X> &source,
                                  const logit_rule<X> &rule, const logit_search &search,
                                  int digit) {
    EACH_QUAD(id, source) {
        X x[4];
        load_quad(source, id, x);
        for (int i = 0; i < 4; i++) {
            if (digit_of(search, rule, x[i], id + i) != digit) continue;
            if (search.shares && share_steps(rule, x[i]) == 0) continue;
            int at = atomicAdd(&s->n_list, 1);
            s->own_x[at] = static_cast<double>(x[i]), s->own_id[at] = id + i;
        }
    }
}

/* The lists of all blocks as one of n, to all_x, all_share (the shares or ones) and all_count (the
 * ids). */
template <typename X>
static __device__ int join_lists(logit_shared *s, const logit_rule<X> &rule, bool shares) {
    int at = static_cast<int>(threadIdx.x), n = 0;
    for (int peer = 0; peer < LOGIT_BLOCKS; peer++) {
        int of_peer = *cluster_peer(&s->n_list, peer);
        if (at >= n && at < n + of_peer) {
            double x = *cluster_peer(&s->own_x[at - n], peer);
            s->all_x[at] = x;
            s->all_count[at] = static_cast<uint32_t>(*cluster_peer(&s->own_id[at - n], peer));
            s->all_share[at] = shares ? share_steps(rule, static_cast<X>(x)) : 1;
        }
        n += of_peer;
    }
    __syncthreads();
    return n;
}

/* The member of the list with which the sum in the order reaches `wanted`, to last and last_id. */
static __device__ void find_in_list(logit_shared *s, int n, uint64_t wanted) {
    int mine = static_cast<int>(threadIdx.x);
    if (mine < n) {
        double x = s->all_x[mine];
        uint32_t id = s->all_count[mine];
        uint64_t before = 0;
        for (int j = 0; j < n; j++) {
            bool ahead = s->all_x[j] > x || (s->all_x[j] == x && s->all_count[j] < id);
            before += ahead ? s->all_share[j] : 0;
        }
        if (before < wanted && before + s->all_share[mine] >= wanted)
            s->last = x, s->last_id = static_cast<int32_t>(id);
    }
    __syncthreads();
}

/* ---- Prefixes ---- */

/* Cuts the rule to the shortest prefix that has `most` members or, with shares, that share of what
 * is kept so far; all blocks call. */
template <typename X>
static __device__ void cut_prefix(const logit_team &team, const logit_source<X> &source,
                                  bool shares, double most, logit_rule<X> *rule) {
    logit_shared *s = team.shared;
    logit_search search = {shares, 0, 0, order_key{0, 0}};
    uint64_t wanted = shares ? 0 : static_cast<uint64_t>(most);
    for (;; search.level++) {
        count_digits(s, source, *rule, search);
        cluster_sync();
        join_digits(s, team.rank, shares);
        cluster_sync();
        uint64_t all, mine = shares ? s->all_share[threadIdx.x] : s->all_count[threadIdx.x];
        uint64_t sum = sum_before(s, mine, &all);
        if (shares && search.level == 0) {
            double share = ceil(most * static_cast<double>(all));
            wanted = share < 1 ? 1 : static_cast<uint64_t>(share);
        }
        if (all < wanted) return; /* all of them, at the first digit or never */
        if (sum >= wanted && sum - mine < wanted) {
            s->bin = static_cast<int32_t>(threadIdx.x);
            s->before = sum - mine;
            s->inside = s->all_count[threadIdx.x];
            s->n_list = 0;
        }
        __syncthreads();
        wanted -= s->before;
        if (s->inside <= LOGIT_LIST) break;
        if (search.level == 0)
            search.bin = s->bin;
        else if (search.level <= 8)
            search.found.high |= static_cast<uint64_t>(255 - s->bin) << (64 - 8 * search.level);
        else
            search.found.low |= static_cast<uint32_t>(255 - s->bin) << (88 - 8 * search.level);
    }
    list_digit(s, source, *rule, search, s->bin);
    cluster_sync();
    find_in_list(s, join_lists(s, *rule, shares), wanted);
    rule->prefix = true;
    rule->last = static_cast<X>(s->last);
    rule->last_id = s->last_id;
}

/* top_k, then top_p, then min_p. */
template <typename X>
static __device__ logit_rule<X> truncate(const logit_team &team, const di_sample_params &p,
                                         const logit_source<X> &source, int32_t vocab, X top) {
    logit_rule<X> rule = rule_of(p, top);
    if (p.top_k > 0 && p.top_k < vocab)
        cut_prefix(team, source, false, static_cast<double>(p.top_k), &rule);
    if (p.top_p < 1) cut_prefix(team, source, true, static_cast<double>(p.top_p), &rule);
    return rule;
}

#endif
