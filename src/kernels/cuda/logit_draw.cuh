/* The token of a row: argmax of y + gumbel(seed, position, id) over what is kept, y = x after the
 * division, in double.
 *
 * Two logarithms in double for each of 129,280 ids would cost more than all else. The first 32 bits
 * of an id's noise bound its gumbel from above: -log(-log(u)) <= -log(1 - u), and 1 - u is at least
 * high's complement / 2^32. Four ids of every block, those with its best bound, are computed exactly,
 * by one warp at a time; others only where their bounds reach what came out, which is rare. What makes
 * noise is then most of the work: ten rounds for two ids, of which each takes two wide
 * multiplications.
 */
#ifndef DI_KERNELS_CUDA_LOGIT_DRAW_CUH
#define DI_KERNELS_CUDA_LOGIT_DRAW_CUH

#include "kernels/cuda/logit_select.cuh"

/* ---- Noise ---- */

static __device__ __forceinline__ void wide_product(uint32_t a, uint32_t b, uint32_t *high,
                                                    uint32_t *low) {
    asm("{ .reg .u64 p; mul.wide.u32 p, %2, %3; mov.b64 {%1, %0}, p; }"
        : "=r"(*high), "=r"(*low)
        : "r"(a), "r"(b));
}

/* left[2 k] and left[2 k + 1]: the complements of the first words of ids 2 pair[k] and
 * 2 pair[k] + 1, as di_philox makes them; all k at once, for they wait for themselves. */
template <int N>
static __device__ __forceinline__ void noise_left(uint64_t seed, int64_t position,
                                                  const uint32_t *pair, uint32_t *left) {
    uint32_t c[N][4], k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    asm volatile(""
                 : "+r"(k0), "+r"(k1)); /* else all rounds' keys are kept, and other values spilt */
#pragma unroll
    for (int k = 0; k < N; k++) {
        c[k][0] = static_cast<uint32_t>(position);
        c[k][1] = static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32);
        c[k][2] = pair[k], c[k][3] = 0;
    }
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t by0 = round < 9 ? k0 : ~k0, by1 = round < 9 ? k1 : ~k1; /* the complements */
#pragma unroll
        for (int k = 0; k < N; k++) {
            uint32_t high0, low0, high1, low1;
            wide_product(0xD2511F53u, c[k][0], &high0, &low0);
            wide_product(0xCD9E8D57u, c[k][2], &high1, &low1);
            c[k][0] = high1 ^ c[k][1] ^ by0, c[k][1] = low1;
            c[k][2] = high0 ^ c[k][3] ^ by1, c[k][3] = low0;
        }
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
#pragma unroll
    for (int k = 0; k < N; k++) left[2 * k] = c[k][0], left[2 * k + 1] = c[k][2];
}

/* What is not below y plus an id's gumbel but for DRAW_MARGIN, in steps of `step` natural logarithms of
 * two: x times step is y. 1 - u is at least 2^-53. x: -infinity for what is not kept. */
static __device__ __forceinline__ float bound_of(float x, float step, uint32_t left) {
    float at_least = __fmaf_rn(static_cast<float>(left), 0x1p-32f, 0x1p-53f);
    return __fmaf_rn(x, step, -fast_log2(at_least));
}

/* At most this much is lost where bounds are computed in float, of values that can matter; and so much
 * of y where that is rounded: all of 1e-3 and more for temperatures below 1e-11. */
static constexpr float DRAW_MARGIN = 1e-3f;
static constexpr double DRAW_ROUNDING = 0x1p-51;

/* ---- The best of a row ---- */

/* What is known of the bounds of some ids. */
typedef struct draw_bounds {
    float most, next; /* the largest, and that of other quads */
    int32_t quad;     /* the four ids of which one has the largest; -1: nothing is kept */
} draw_bounds;

static __device__ __forceinline__ draw_bounds no_bounds() {
    return draw_bounds{-INFINITY, -INFINITY, -1};
}
static __device__ __forceinline__ draw_bounds warp_bounds(draw_bounds mine) {
    float most = warp_largest(mine.most);
    int who = __ffs(static_cast<int>(__ballot_sync(ALL_LANES, mine.most == most))) - 1;
    float other = lane_id() == who ? mine.next : mine.most;
    return draw_bounds{most, warp_largest(other), __shfl_sync(ALL_LANES, mine.quad, who)};
}

/* A row's noise, and how values become bounds: value(x, id), times step, is not below the id's y less a
 * constant of the row, in powers of two, and close to it; -infinity: not kept. */
template <typename F> struct draw_rule {
    uint64_t seed;
    int64_t position;
    float step;
    F value;
};

/* Bounds of the ids of N quads; of those that are not kept -infinity. */
template <int N, typename X, typename F>
static __device__ __forceinline__ void bounds_of(const draw_rule<F> &rule, const X *x,
                                                 const int32_t *id, float *bound) {
    uint32_t pair[2 * N], left[4 * N];
    float most = -INFINITY;
#pragma unroll
    for (int q = 0; q < N; q++) {
        pair[2 * q] = static_cast<uint32_t>(id[q]) / 2, pair[2 * q + 1] = pair[2 * q] + 1;
#pragma unroll
        for (int i = 4 * q; i < 4 * q + 4; i++) {
            bound[i] = rule.value(x[i], id[q] + i % 4);
            most = fmaxf(most, bound[i]);
        }
    }
    if (most == -INFINITY) return;
    noise_left<2 * N>(rule.seed, rule.position, pair, left);
#pragma unroll
    for (int i = 0; i < 4 * N; i++) bound[i] = bound_of(bound[i], rule.step, left[i]);
}

/* Of what a thread has; loads run ahead. */
template <typename X, typename F>
static __device__ __noinline__ draw_bounds thread_bounds(logit_source<X> source,
                                                         draw_rule<F> rule) {
    constexpr int N = sizeof(X) == sizeof(float) ? 2 : 1;
    draw_bounds bounds = no_bounds();
    int32_t first = source.begin + 4 * static_cast<int32_t>(threadIdx.x);
    X next[4 * N];
#pragma unroll
    for (int q = 0; q < N; q++) load_quad(source, first + q * LOGIT_QUAD, next + 4 * q);
#pragma unroll 1
    for (; first < source.end; first += N * LOGIT_QUAD) {
        X x[4 * N];
        int32_t id[N];
        float bound[4 * N];
#pragma unroll
        for (int i = 0; i < 4 * N; i++) x[i] = next[i];
#pragma unroll
        for (int q = 0; q < N; q++) {
            id[q] = first + q * LOGIT_QUAD;
            load_quad(source, id[q] + N * LOGIT_QUAD, next + 4 * q);
        }
        bounds_of<N>(rule, x, id, bound);
#pragma unroll
        for (int q = 0; q < N; q++) {
            float most = fmaxf(fmaxf(bound[4 * q], bound[4 * q + 1]),
                               fmaxf(bound[4 * q + 2], bound[4 * q + 3]));
            if (most > bounds.most) bounds.quad = id[q];
            bounds.next = fmaxf(bounds.next, fminf(bounds.most, most));
            bounds.most = fmaxf(bounds.most, most);
        }
    }
    return bounds;
}

/* An id of any block by the exact values; id -1 if it is not kept. */
template <typename X, typename G>
static __device__ __noinline__ scored exact_value(logit_source<X> source, int32_t vocab, int32_t id,
                                                  uint64_t seed, int64_t position, G exact) {
    scored mine = {0, -1};
    if (id < 0 || id >= vocab) return mine;
    mine = exact(value_of(source, id), id);
    if (mine.id >= 0) mine.x += di_gumbel(seed, position, id);
    return mine;
}

/* The best of what this thread may hold, by the exact values: those whose bounds reach `limit`. */
template <typename X, typename F, typename G>
static __device__ __noinline__ scored best_above(logit_source<X> source, int32_t vocab,
                                                 draw_rule<F> rule, G exact, float limit) {
    scored best = {0, -1};
    int32_t quad = source.begin + 4 * static_cast<int32_t>(threadIdx.x);
    for (; quad < source.end; quad += LOGIT_QUAD) {
        X x[4];
        float bound[4];
        load_quad(source, quad, x);
        bounds_of<1>(rule, x, &quad, bound);
        uint32_t reach = 0;
        for (int i = 0; i < 4; i++)
            reach |= static_cast<uint32_t>(bound[i] >= limit && bound[i] > -INFINITY) << i;
        for (; reach != 0; reach &= reach - 1) {
            int32_t id = quad + __ffs(static_cast<int>(reach)) - 1;
            best = better(best, exact_value(source, vocab, id, rule.seed, rule.position, exact));
        }
    }
    return best;
}

/* The best id of a row by the exact values, -1 if nothing is kept, in all blocks. exact(x, id): y of what
 * is kept, id -1 of what is not, as `scored`; base: what y was less by. All threads call. */
template <typename X, typename F, typename G>
static __device__ __forceinline__ int32_t draw_best(logit_team *team, const logit_source<X> &source,
                                                    int32_t vocab, const draw_rule<F> &rule,
                                                    double base, G exact) {
    logit_shared *s = team->shared;
    draw_bounds mine = thread_bounds(source, rule);
    const draw_bounds *parts =
        exchange(team, mine, no_bounds(), [](draw_bounds b) { return warp_bounds(b); });
    if (warp_id() == 0) { /* a lane an id */
        draw_bounds part = parts[lane_id() / 4];
        int32_t id = part.quad < 0 ? -1 : part.quad + lane_id() % 4;
        scored best = warp_best(exact_value(source, vocab, id, rule.seed, rule.position, exact));
        double least = best.x - base - fabs(base) * DRAW_ROUNDING;
        float limit = (static_cast<float>(least) - DRAW_MARGIN) * LOG2_E;
        if (best.id < 0) limit = -INFINITY;
        bool again = __any_sync(ALL_LANES, part.next >= limit && part.next > -INFINITY);
        if (lane_id() == 0) s->token = best.id, s->limit = limit, s->again = again;
    }
    static_assert(4 * LOGIT_BLOCKS == WARP, "four ids a block");
    __syncthreads();
    if (!s->again) return s->token;
    scored best = {0, -1};
    if (mine.quad >= 0 && mine.most >= s->limit)
        best = best_above(source, vocab, rule, exact, s->limit);
    const scored *found =
        exchange(team, best, scored{0, -1}, [](scored b) { return warp_best(b); });
    return warp_best(lane_id() < LOGIT_BLOCKS ? found[lane_id()] : scored{0, -1}).id;
}

/* ---- The token of a row ---- */

/* The smallest x that is not further than `reach` below the top after the division; or one below. */
static __device__ __forceinline__ float lowest_within(const logit_rule<float> &rule, float reach) {
    return __fsub_rd(rule.top, __fdiv_ru(reach, rule.scale));
}
static __device__ __forceinline__ double lowest_within(const logit_rule<double> &rule,
                                                       float reach) {
    return rule.top - static_cast<double>(reach);
}

/* Noise lies within -3.7 and 36.8: what is further from the top than that cannot win. Whether an id
 * is kept is asked exactly only where it may win: here what is equal to the last of the prefix, or
 * close to the limit of min_p, is taken along. The same in all blocks. */
static constexpr float DRAW_REACH = 41.0f;
template <typename X>
static __device__ int32_t draw(logit_team *team, const logit_source<X> &source, int32_t vocab,
                               const logit_rule<X> &rule, uint64_t seed, int64_t position) {
    float reach = rule.min_p > 0 ? fminf(DRAW_REACH, fmaxf(rule.far, 0) + 2e-3f) : DRAW_REACH;
    X top = rule.top, lowest = lowest_within(rule, reach);
    if (rule.last > lowest) lowest = rule.last;
    auto value = [=](X x, int32_t) {
        return x >= lowest ? static_cast<float>(x - top) : -INFINITY;
    };
    return draw_best(team, source, vocab,
                     draw_rule<decltype(value)>{seed, position, rule.scale * LOG2_E, value},
                     divided(rule, rule.top), [=](X x, int32_t id) {
                         return keeps(rule, x, id) ? scored{divided(rule, x), id} : scored{0, -1};
                     });
}

#endif
