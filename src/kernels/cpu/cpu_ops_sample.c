/* Sampling: exactly the definition of di_sample_args, without doing all of its work.
 *
 * Sorting is partial: the best ids are selected by a quickselect in growing portions. Gumbel noise
 * is drawn only for ids that can still win: noise g > y needs a uniform u with 1 - u < exp(-y), so
 * one comparison after the (cheap) generator spares two logarithms, and ids more than 38 below the
 * best cannot win at all, because 53-bit noise stays below 37.5.
 */
#include <math.h>
#include <string.h>

#include "base/philox.h"
#include "kernels/cpu/cpu.h"

typedef struct row {
    const cpu_kernels *k;
    const di_sample_args *args;
    const di_sample_params *p;
    const float *logits;
    int64_t position;
    double *x;    /* [vocab] */
    int32_t *ids; /* [vocab] */
} row;

/* Logits as the sampler sees them: penalties, bias, mask. */
static void adjust(const row *r) {
    const di_sample_args *a = r->args;
    const di_sample_params *p = r->p;
    const int32_t *counts = cpu_at(a->counts);
    for (int32_t id = 0; id < a->vocab; id++) r->x[id] = (double)r->logits[id];
    bool penalties =
        p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
    if (counts && penalties) {
        const int32_t *own = counts + (int64_t)p->slot * a->vocab;
        double repetition = (double)p->repetition_penalty;
        for (int32_t id = 0; id < a->vocab; id++) {
            if (own[id] == 0) continue;
            int32_t output = own[id] & ~DI_COUNT_PROMPT;
            double x = r->x[id];
            if (repetition != 1) x = x > 0 ? x / repetition : x * repetition;
            if (output > 0)
                x -= (double)p->presence_penalty + (double)p->frequency_penalty * output;
            r->x[id] = x;
        }
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        const di_logit_bias *bias = (const di_logit_bias *)cpu_at(a->biases) + p->bias_begin + i;
        r->x[bias->id] += (double)bias->value;
    }
    if (p->mask < 0) return;
    const uint32_t *mask =
        (const uint32_t *)cpu_at(a->masks) + (int64_t)p->mask * ((a->vocab + 31) / 32);
    for (int32_t id = 0; id < a->vocab; id++)
        if ((mask[id / 32] >> (id % 32) & 1u) == 0) r->x[id] = -INFINITY;
}

static bool before(const double *x, int32_t a, int32_t b) {
    return x[a] != x[b] ? x[a] > x[b] : a < b;
}

static void swap(int32_t *a, int32_t *b) {
    int32_t t = *a;
    *a = *b;
    *b = t;
}

/* Moves the k first of ids[0 .. n) in the order of `before` to the front, unsorted. */
static void select_first(const double *x, int32_t *ids, int32_t n, int32_t k) {
    int32_t low = 0, high = n;
    while (high - low > 1 && k > low && k < high) {
        int32_t middle = low + (high - low) / 2;
        if (before(x, ids[middle], ids[low])) swap(&ids[middle], &ids[low]);
        if (before(x, ids[high - 1], ids[low])) swap(&ids[high - 1], &ids[low]);
        if (before(x, ids[high - 1], ids[middle])) swap(&ids[high - 1], &ids[middle]);
        int32_t pivot = ids[middle], i = low, j = high - 1;
        while (i <= j) { /* no two ids are equal in the order */
            while (before(x, ids[i], pivot)) i++;
            while (before(x, pivot, ids[j])) j--;
            if (i <= j) swap(&ids[i++], &ids[j--]);
        }
        if (k <= j + 1)
            high = j + 1;
        else if (k >= i)
            low = i;
        else
            return;
    }
}

/* Heap sort of ids[0 .. n): no recursion, no memory. */
static void sift(const double *x, int32_t *ids, int32_t root, int32_t n) {
    for (int32_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && before(x, ids[child], ids[child + 1])) child++;
        if (before(x, ids[child], ids[root])) return;
        swap(&ids[root], &ids[child]);
    }
}
static void sort_ids(const double *x, int32_t *ids, int32_t n) {
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift(x, ids, i, n);
    for (int32_t end = n - 1; end > 0; end--) {
        swap(&ids[0], &ids[end]);
        sift(x, ids, 0, end);
    }
}

/* Moves the ids with x >= least to the front; how many. */
static int32_t split_ids(const double *x, int32_t *ids, int32_t n, double least) {
    int32_t front = 0;
    for (int32_t i = 0; i < n; i++)
        if (x[ids[i]] >= least) swap(&ids[front++], &ids[i]);
    return front;
}

/* How many of n ids, best first, make up top_p; puts them in order as it goes. The few that are
 * near the top come first by themselves: mostly they suffice. */
static int32_t prefix_of(const row *r, int32_t n, double total, double top) {
    double sum = 0;
    int32_t sorted = 0, kept = 0, portion = 32, limit = split_ids(r->x, r->ids, n, top - 12);
    while (kept < n) {
        if (kept == limit) limit = n;
        if (kept == sorted) {
            int32_t more = limit - sorted < portion ? limit - sorted : portion;
            select_first(r->x, r->ids + sorted, limit - sorted, more);
            sort_ids(r->x, r->ids + sorted, more);
            sorted += more;
            portion *= 4;
        }
        sum += exp(r->x[r->ids[kept++]] - top) / total;
        if (sum >= (double)r->p->top_p) break;
    }
    return kept;
}

/* Leaves the kept ids at the front of r->ids, in any order, and returns their number. `top`:
 * largest x; ids holds n ids, those with x = -inf left out. */
static int32_t truncate(const row *r, int32_t n, double top) {
    const di_sample_params *p = r->p;
    if (p->top_k > 0 && p->top_k < n) {
        select_first(r->x, r->ids, n, p->top_k);
        n = p->top_k;
    }
    if (p->top_p < 1) {
        double total = 0; /* terms below e^-55 of the first do not show in a double */
        if (n > 1000 && p->top_k <= 0) {
            total = r->k->sum_exp_double(r->x, top, r->args->vocab);
        } else {
            for (int32_t i = 0; i < n; i++) total += exp(r->x[r->ids[i]] - top);
        }
        n = prefix_of(r, n, total, top);
    }
    if (p->min_p > 0) {
        int32_t kept = 0;
        for (int32_t i = 0; i < n; i++) {
            double x = r->x[r->ids[i]];
            if (exp(x - top) >= (double)p->min_p || x == top) r->ids[kept++] = r->ids[i];
        }
        n = kept;
    }
    return n;
}

/* The winner, given the best sum so far and its id. `e`: not below exp(x - best). */
typedef struct winner {
    double best;
    int32_t token;
} winner;

static void consider(const row *r, winner *w, int32_t id) {
    double y = r->x[id] + di_gumbel(r->p->seed, r->position, id);
    if (w->token < 0 || y > w->best || (y == w->best && id < w->token)) *w = (winner){y, id};
}

/* Whether u may give noise that lifts x to `best`: -log(-log u) >= best - x needs
 * 1 - u <= -log u <= exp(x - best). The margin covers the rounding of exp. */
static bool may_win(double u, double x, double best) { return 1 - u <= exp(x - best) * (1 + 1e-9); }

static double uniform_of(const row *r, int32_t id) {
    uint32_t words[4];
    di_philox(r->p->seed, (uint64_t)r->position, (uint64_t)(uint32_t)id >> 1, words);
    return di_uniform53(words[2 * (id & 1)], words[2 * (id & 1) + 1]);
}

static int32_t draw_listed(const row *r, int32_t n, int32_t first) {
    winner w = {0, -1};
    consider(r, &w, first);
    for (int32_t i = 0; i < n; i++) {
        int32_t id = r->ids[i];
        if (r->x[id] < w.best - 38) continue;
        if (may_win(uniform_of(r, id), r->x[id], w.best)) consider(r, &w, id);
    }
    return w.token;
}

/* All ids: one generator call serves two neighbours. */
static int32_t draw_all(const row *r, int32_t first) {
    winner w = {0, -1};
    consider(r, &w, first);
    int32_t n = r->args->vocab;
    for (int32_t id = 0; id < n; id += 2) {
        bool pair = id + 1 < n;
        double top = pair && r->x[id + 1] > r->x[id] ? r->x[id + 1] : r->x[id];
        if (!(top >= w.best - 38)) continue;
        uint32_t words[4];
        di_philox(r->p->seed, (uint64_t)r->position, (uint64_t)(uint32_t)id >> 1, words);
        double u = di_uniform53(words[0], words[1]), v = di_uniform53(words[2], words[3]);
        double least = 1 - (pair && v > u ? v : u);
        if (!(least <= exp(top - w.best) * (1 + 1e-9))) continue;
        for (int32_t i = id; i <= id + pair; i++)
            if (r->x[i] != -INFINITY) consider(r, &w, i);
    }
    return w.token;
}

/* -2: a NaN, an infinite logit, or nothing allowed. */
static int32_t choose(const row *r) {
    int32_t n = r->args->vocab, greedy = 0, kept = 0;
    const di_sample_params *p = r->p;
    adjust(r);
    bool bad = false;
    for (int32_t id = 0; id < n; id++) {
        bad = bad || isnan(r->logits[id]) || isnan(r->x[id]) || r->x[id] == INFINITY;
        if (r->x[id] > r->x[greedy]) greedy = id;
    }
    if (bad || r->x[greedy] == -INFINITY) return -2;
    if (p->temperature == 0) return greedy;
    for (int32_t id = 0; id < n; id++) r->x[id] /= (double)p->temperature;
    if (!(p->top_k > 0 || p->top_p < 1 || p->min_p > 0)) return draw_all(r, greedy);
    for (int32_t id = 0; id < n; id++)
        if (r->x[id] != -INFINITY) r->ids[kept++] = id;
    kept = truncate(r, kept, r->x[greedy]);
    return draw_listed(r, kept, greedy);
}

/* Greedy without anything that changes logits: no doubles needed. */
static bool plain_greedy(const di_sample_args *a, const di_sample_params *p) {
    bool penalties = a->counts.address && (p->repetition_penalty != 1 || p->presence_penalty != 0 ||
                                           p->frequency_penalty != 0);
    return p->temperature == 0 && !penalties && p->n_bias == 0 && p->mask < 0;
}

static int32_t first_equal(const float *x, float value) {
    int32_t id = 0;
    while (x[id] != value) id++;
    return id;
}

static void sample_row(di_stream *s, cpu_scratch *scratch, const di_sample_args *a, int64_t i) {
    const di_sample_params *p = (const di_sample_params *)cpu_at(a->params) + i;
    const float *logits = (const float *)cpu_at(a->logits) + i * a->vocab;
    int32_t pos = ((const int32_t *)cpu_at(a->pos))[((const int32_t *)cpu_at(a->which))[i]];
    int32_t token = -1;
    float logprob = 0;
    if (pos >= 0) {
        bool bad;
        float top = s->k->max(logits, a->vocab, &bad);
        row r = {s->k, a, p, logits, (int64_t)pos + 1, scratch->x, scratch->ids};
        if (bad || (plain_greedy(a, p) && !isfinite(top)))
            token = -2;
        else
            token = plain_greedy(a, p) ? first_equal(logits, top) : choose(&r);
        if (token >= 0) {
            double sum = s->k->sum_exp(logits, top, a->vocab);
            logprob = (float)((double)logits[token] - (double)top - log(sum));
        }
    }
    ((int32_t *)cpu_at(a->token))[i] = token;
    ((float *)cpu_at(a->logprob))[i] = logprob;
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
    const di_sample_params *p = cpu_at(a.params);
    const int32_t *token = cpu_at(a.token);
    for (int32_t i = 0; i < a.n_out; i++)
        if (token[i] >= 0) ((int32_t *)cpu_at(a.next_token))[p[i].slot] = token[i];
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
