/* Sampling: exactly the definition of di_sample_args, without doing all of its work.
 *
 * Gumbel noise is drawn only for ids that can still win: noise g > y needs a uniform u with
 * 1 - u < exp(-y), so one comparison after the (cheap) generator spares two logarithms, and ids more
 * than 38 below the best cannot win at all, because 53-bit noise stays below 37.5.
 */
#include <math.h>
#include <string.h>

#include "base/philox.h"
#include "kernels/cpu/cpu_logits.h"
#include "kernels/reject.h"

/* A row's logits, and its noise. */
typedef struct row {
    cpu_logits logits;
    uint64_t seed;
    int64_t position;
} row;

/* The winner, given the best sum so far and its id. `e`: not below exp(x - best). */
typedef struct winner {
    double best;
    int32_t token;
} winner;

static void consider(const row *r, winner *w, int32_t id) {
    double y = r->logits.x[id] + di_gumbel(r->seed, r->position, id);
    if (w->token < 0 || y > w->best || (y == w->best && id < w->token)) *w = (winner){y, id};
}

/* Whether u may give noise that lifts x to `best`: -log(-log u) >= best - x needs
 * 1 - u <= -log u <= exp(x - best). The margin covers the rounding of exp. */
static bool may_win(double u, double x, double best) { return 1 - u <= exp(x - best) * (1 + 1e-9); }

static double uniform_of(const row *r, int32_t id) {
    uint32_t words[4];
    di_philox(r->seed, (uint64_t)r->position, (uint64_t)(uint32_t)id >> 1, words);
    return di_uniform53(words[2 * (id & 1)], words[2 * (id & 1) + 1]);
}

static int32_t draw_listed(const row *r, int32_t n, int32_t first) {
    winner w = {0, -1};
    consider(r, &w, first);
    for (int32_t i = 0; i < n; i++) {
        int32_t id = r->logits.ids[i];
        if (r->logits.x[id] < w.best - 38) continue;
        if (may_win(uniform_of(r, id), r->logits.x[id], w.best)) consider(r, &w, id);
    }
    return w.token;
}

/* All ids: one generator call serves two neighbours. */
static int32_t draw_all(const row *r, int32_t first) {
    winner w = {0, -1};
    consider(r, &w, first);
    int32_t n = r->logits.args->vocab;
    for (int32_t id = 0; id < n; id += 2) {
        bool pair = id + 1 < n;
        double top =
            pair && r->logits.x[id + 1] > r->logits.x[id] ? r->logits.x[id + 1] : r->logits.x[id];
        if (!(top >= w.best - 38)) continue;
        uint32_t words[4];
        di_philox(r->seed, (uint64_t)r->position, (uint64_t)(uint32_t)id >> 1, words);
        double u = di_uniform53(words[0], words[1]), v = di_uniform53(words[2], words[3]);
        double least = 1 - (pair && v > u ? v : u);
        if (!(least <= exp(top - w.best) * (1 + 1e-9))) continue;
        for (int32_t i = id; i <= id + pair; i++)
            if (r->logits.x[i] != -INFINITY) consider(r, &w, i);
    }
    return w.token;
}

static int32_t choose(const row *r) {
    int32_t n_listed, greedy = cpu_logits_adjust(&r->logits);
    if (greedy < 0 || r->logits.p->temperature == 0) return greedy;
    int32_t kept = cpu_logits_keep(&r->logits, greedy, &n_listed);
    return kept < 0 ? draw_all(r, greedy) : draw_listed(r, kept, greedy);
}

/* Greedy where nothing but a mask may change the logits, and the best of all is allowed: that is the
 * answer, and no doubles are needed. -1 where it is not so simple. */
static int32_t plain_greedy(const di_sample_args *a, const di_sample_params *p, const float *logits,
                            float top) {
    int32_t id = 0;
    if (p->temperature != 0 || cpu_has_penalties(a, p) || p->n_bias != 0) return -1;
    if (!isfinite(top)) return -1;
    while (logits[id] != top) id++;
    return cpu_allows(cpu_mask_of(a, p), id) ? id : -1;
}

/* The seed of a live row's noise. */
static uint64_t seed_of(const di_sample_args *a, const di_sample_params *p, int32_t t) {
    if (p->noise != DI_NOISE_ROUND) return p->seed;
    int32_t first = ((const int32_t *)cpu_at(a->first))[t];
    return di_noise_seed(p->seed, DI_NOISE_DRAFT, ((const int32_t *)cpu_at(a->pos))[first]);
}

static void sample_row(di_stream *s, cpu_scratch *scratch, const di_sample_args *a, int64_t i) {
    const float *logits = (const float *)cpu_at(a->logits) + i * a->vocab;
    int32_t t = ((const int32_t *)cpu_at(a->which))[i], pos = ((const int32_t *)cpu_at(a->pos))[t];
    int32_t token = -1;
    float logprob = 0;
    if (pos >= 0) {
        bool bad;
        float top = s->k->max(logits, a->vocab, &bad);
        row r = {.logits = cpu_logits_of(s->k, a, i, logits, scratch->x, scratch->ids),
                 .position = (int64_t)pos + 1};
        r.seed = seed_of(a, r.logits.p, t);
        token = bad ? -2 : plain_greedy(a, r.logits.p, logits, top);
        if (token == -1) token = choose(&r);
        if (token >= 0 && a->logprob.address)
            logprob = cpu_logprob(s->k, logits, a->vocab, top, token);
    }
    ((int32_t *)cpu_at(a->token))[i] = token;
    if (a->logprob.address) ((float *)cpu_at(a->logprob))[i] = logprob;
}

static void sample_rows(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                        int64_t end) {
    for (int64_t i = begin; i < end; i++) sample_row(s, scratch, user, i);
}

void cpu_op_sample(di_stream *s, const di_sample_args *args) {
    di_sample_args a = *args;
    CPU_REQUIRE(a.vocab <= s->limits.vocab);
    cpu_parallel(s, a.n_out, 1, (int64_t)a.n_out * a.vocab * 10, sample_rows, &a);
    /* Here, in order: the last row of a slot decides. */
    const int32_t *token = cpu_at(a.token);
    for (int32_t i = 0; i < a.n_out; i++)
        if (token[i] >= 0) ((int32_t *)cpu_at(a.next_token))[cpu_params_of(&a, i)->slot] = token[i];
}

void cpu_op_tally(di_stream *s, const di_tally_args *args) {
    (void)s;
    const int32_t *tokens = cpu_at(args->tokens), *slots = cpu_at(args->slots);
    for (int32_t i = 0; i < args->n; i++) {
        if (tokens[i] < 0) continue;
        int32_t *count =
            (int32_t *)cpu_at(args->counts) + (int64_t)slots[i] * args->vocab + tokens[i];
        if (args->prompt)
            *count |= DI_COUNT_PROMPT;
        else
            *count += args->delta;
    }
}
