/* The three laws of acceptance. */
#include "engine/spec_verify.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/philox.h"

static const double tiny_residual = 1e-8;

int32_t di_spec_accept_equal(const int32_t *drafts, const int32_t *tokens, int32_t n) {
    int32_t accepted = 0;
    while (accepted < n && drafts[accepted] == tokens[accepted]) accepted++;
    return accepted;
}

int32_t di_spec_argmax(const double *logits, int32_t vocab) {
    int32_t best = DI_SPEC_NO_TOKEN;
    for (int32_t id = 0; id < vocab; id++) {
        if (isnan(logits[id]) || logits[id] == INFINITY) return DI_SPEC_NO_TOKEN;
        if (logits[id] == -INFINITY) continue;
        if (best < 0 || logits[id] > logits[best]) best = id;
    }
    return best;
}

int32_t di_spec_sample(const double *logits, int32_t vocab, uint64_t seed, int64_t position) {
    int32_t token = DI_SPEC_NO_TOKEN;
    double best = 0;
    for (int32_t id = 0; id < vocab; id++) {
        if (isnan(logits[id]) || logits[id] == INFINITY) return DI_SPEC_NO_TOKEN;
        if (logits[id] == -INFINITY) continue;
        double y = logits[id] + di_gumbel(seed, position, id);
        if (token < 0 || y > best) best = y, token = id;
    }
    return token;
}

uint64_t di_spec_seed(uint64_t seed, di_spec_purpose purpose, int64_t number) {
    uint32_t words[4];
    /* The sampler's noise has an id in the high counter, below 2^31: the top bit sets this apart.
     */
    di_philox(seed, (uint64_t)number, (uint64_t)1 << 63 | (uint64_t)purpose, words);
    return (uint64_t)words[0] << 32 | words[1];
}

/* ---- Rejection ---- */

/* log sum exp, so that probability(x) = exp(logit - result); NaN when the row is no distribution.
 */
static double log_total(const double *logits, int32_t vocab) {
    int32_t top = di_spec_argmax(logits, vocab);
    if (top < 0) return NAN;
    double sum = 0;
    for (int32_t id = 0; id < vocab; id++) sum += exp(logits[id] - logits[top]);
    return logits[top] + log(sum);
}

/* q_i of one row: logits, or one-hot. */
typedef struct proposal {
    const double *logits; /* NULL: all on `draft` */
    double total;
    int32_t draft;
} proposal;

static double chance(const proposal *q, int32_t id) {
    if (q->logits == NULL) return id == q->draft;
    return exp(q->logits[id] - q->total);
}

static bool accepts(const proposal *q, double p_draft, uint64_t seed, int64_t position) {
    uint64_t words = di_spec_seed(seed, DI_SPEC_ACCEPT, position);
    double u = di_uniform53((uint32_t)(words >> 32), (uint32_t)words);
    double q_draft = chance(q, q->draft);
    return q_draft > 0 && u * q_draft < p_draft; /* u in (0, 1): p = q always stands */
}

/* A sample of max(p - q, 0), by Gumbel noise on its logarithm: no need to normalise. */
static int32_t sample_residual(const double *p, double p_total, const proposal *q, int32_t vocab,
                               uint64_t seed, int64_t position) {
    uint64_t noise = di_spec_seed(seed, DI_SPEC_RESIDUAL, 0);
    int32_t token = DI_SPEC_NO_TOKEN;
    double best = 0, mass = 0;
    for (int32_t id = 0; id < vocab; id++) {
        double left = exp(p[id] - p_total) - chance(q, id);
        if (!(left > 0)) continue;
        double y = log(left) + di_gumbel(noise, position, id);
        mass += left;
        if (token < 0 || y > best) best = y, token = id;
    }
    return mass > tiny_residual ? token : di_spec_sample(p, vocab, noise, position);
}

di_spec_verdict di_spec_reject(const di_spec_rejection *round) {
    for (int32_t i = 0; i < round->n; i++) {
        const double *p = round->p + (int64_t)i * round->vocab;
        int64_t position = round->position + i;
        proposal q = {.draft = round->drafts[i]};
        double p_total = log_total(p, round->vocab);
        if (round->q != NULL) {
            q.logits = round->q + (int64_t)i * round->vocab;
            q.total = log_total(q.logits, round->vocab);
        }
        if (isnan(p_total) || isnan(q.total)) return (di_spec_verdict){i, DI_SPEC_NO_TOKEN};
        bool known = q.draft >= 0 && q.draft < round->vocab;
        if (known && accepts(&q, exp(p[q.draft] - p_total), round->seed, position)) continue;
        return (di_spec_verdict){i, sample_residual(p, p_total, &q, round->vocab, round->seed,
                                                    position)};
    }
    const double *p = round->p + (int64_t)round->n * round->vocab;
    return (di_spec_verdict){round->n, di_spec_sample(p, round->vocab, round->seed,
                                                      round->position + round->n)};
}

double di_spec_overlap(const double *p, const double *q, int32_t vocab) {
    double p_total = log_total(p, vocab), q_total = log_total(q, vocab), sum = 0;
    for (int32_t id = 0; id < vocab; id++) sum += fmin(exp(p[id] - p_total), exp(q[id] - q_total));
    return sum;
}
