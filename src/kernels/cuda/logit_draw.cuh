/* The token of a row: argmax of y + gumbel(seed, position, id) over what is kept, y = x after the
 * division, in double.
 *
 * Two logarithms in double for each of 129,280 ids would cost more than all else. The first 32 bits
 * of an id's noise bound its gumbel from both sides: u < (high + 1) / 2^32, and -log(-log(u)) <=
 * -log(1 - u). Only ids whose upper bound reaches the best lower bound of the block are computed:
 * one or two.
 */
#ifndef DI_KERNELS_CUDA_LOGIT_DRAW_CUH
#define DI_KERNELS_CUDA_LOGIT_DRAW_CUH

#include "kernels/cuda/logit_select.cuh"

/* At most this much is lost where the bounds are computed in float, of values that can matter. */
static constexpr float DRAW_MARGIN = 1e-3f;
static constexpr float GUMBEL_MOST = 37.5f; /* -log(-log(1 - 2^-53)) is 36.7 */

/* 1 - u is at least high's complement / 2^32. */
static __device__ __forceinline__ float gumbel_most(uint32_t high) {
    uint32_t left = ~high;
    return left == 0 ? GUMBEL_MOST : -__logf(static_cast<float>(left) * 0x1p-32f);
}
/* 1 - u is at most that of high's complement + 1. */
static __device__ __forceinline__ float gumbel_least(uint32_t high) {
    float left = (static_cast<float>(~high) + 1) * 0x1p-32f;
    return left >= 1 ? -8.0f : -logf(-log1pf(-left)); /* u >= 2^-53: -3.61 */
}

/* The noise of ids id and id + 1, id even. */
typedef struct noise_pair {
    uint32_t words[4];
} noise_pair;
static __device__ __forceinline__ noise_pair noise_at(uint64_t seed, int64_t position, int32_t id) {
    noise_pair noise;
    di_philox(seed, static_cast<uint64_t>(position), static_cast<uint64_t>(id) >> 1, noise.words);
    return noise;
}

/* What a thread knows of its ids. */
typedef struct draw_bounds {
    float most;    /* largest upper bound */
    uint32_t high; /* the noise of that id */
    float of_x;    /* most less its gumbel */
} draw_bounds;

/* log_weight(x, id): a value that is not below the id's y less some constant of the row, and close to
 * it; -inf: not kept. */
template <typename X, typename F>
static __device__ __forceinline__ void bound_quad(const X *x, int32_t id, uint64_t seed,
                                                  int64_t position, F log_weight,
                                                  draw_bounds *bounds) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        float y[2] = {log_weight(x[i], id + i), log_weight(x[i + 1], id + i + 1)};
        if (y[0] == -INFINITY && y[1] == -INFINITY) continue;
        noise_pair noise = noise_at(seed, position, id + i);
        for (int k = 0; k < 2; k++) {
            uint32_t high = noise.words[2 * k];
            float most = y[k] + gumbel_most(high);
            if (most > bounds->most) *bounds = draw_bounds{most, high, y[k]};
        }
    }
}

/* The best id of this block by the exact values. exact(x, id): y of what is kept, id -1 of what is
 * not, as `scored`. All threads call. */
template <typename X, typename F, typename G>
static __device__ scored draw_best(logit_shared *s, const logit_source<X> &source, uint64_t seed,
                                   int64_t position, F log_weight, G exact) {
    draw_bounds bounds = {-INFINITY, 0, -INFINITY};
    EACH_QUAD(id, source) {
        X x[4];
        load_quad(source, id, x);
        bound_quad(x, id, seed, position, log_weight, &bounds);
    }
    float least = bounds.of_x + gumbel_least(bounds.high);
    float limit = logit_max(s, least) - DRAW_MARGIN;
    scored mine = {0, -1};
    if (bounds.most >= limit && bounds.most > -INFINITY) {
        EACH_QUAD(id, source) {
            X x[4];
            load_quad(source, id, x);
            for (int i = 0; i < 4; i++) {
                float y = log_weight(x[i], id + i);
                if (y == -INFINITY || y + GUMBEL_MOST < limit) continue;
                noise_pair noise = noise_at(seed, position, (id + i) & ~1);
                if (y + gumbel_most(noise.words[2 * (i & 1)]) < limit) continue;
                scored next = exact(x[i], id + i);
                if (next.id < 0) continue;
                next.x += di_gumbel(seed, position, id + i);
                mine = better(mine, next);
            }
        }
    }
    return logit_best(s, mine);
}

/* The token of a row, the same in all blocks. Noise lies within -3.7 and 36.8: what is further from
 * the top than that cannot win. */
static constexpr float DRAW_REACH = 41.0f;
template <typename X>
static __device__ int32_t draw(logit_team *team, const logit_source<X> &source,
                               const logit_rule<X> &rule, uint64_t seed, int64_t position) {
    logit_part part = {};
    part.best = draw_best(
        team->shared, source, seed, position,
        [&](X x, int32_t id) {
            float away = distance(rule, x);
            return away < DRAW_REACH && keeps(rule, x, id) ? -away : -INFINITY;
        },
        [&](X x, int32_t id) {
            return scored{divided(rule, x), id};
        });
    return exchange(team, part).best.id;
}

#endif
