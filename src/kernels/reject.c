/* Rejection sampling of one draft. */
#include "kernels/reject.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

int32_t di_reject_argmax(const double *logits, int32_t vocab) {
    int32_t best = DI_NO_TOKEN;
    for (int32_t id = 0; id < vocab; id++) {
        if (isnan(logits[id]) || logits[id] == INFINITY) return DI_NO_TOKEN;
        if (logits[id] == -INFINITY) continue;
        if (best < 0 || logits[id] > logits[best]) best = id;
    }
    return best;
}

int32_t di_reject_sample(const double *logits, int32_t vocab, uint64_t seed, int64_t position) {
    int32_t token = DI_NO_TOKEN;
    double best = 0;
    for (int32_t id = 0; id < vocab; id++) {
        if (isnan(logits[id]) || logits[id] == INFINITY) return DI_NO_TOKEN;
        if (logits[id] == -INFINITY) continue;
        double y = logits[id] + di_gumbel(seed, position, id);
        if (token < 0 || y > best) best = y, token = id;
    }
    return token;
}

/* ---- Rejection ---- */

/* log sum exp, so that probability(x) = exp(logit - result); NaN when the row is no distribution.
 */
static double log_total(const double *logits, int32_t vocab) {
    int32_t top = di_reject_argmax(logits, vocab);
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
    uint64_t words = di_noise_seed(seed, DI_NOISE_ACCEPT, position);
    double u = di_uniform53((uint32_t)(words >> 32), (uint32_t)words);
    double q_draft = chance(q, q->draft);
    return q_draft > 0 && u * q_draft < p_draft; /* u in (0, 1): p = q always stands */
}

/* A sample of max(p - q, 0), by Gumbel noise on its logarithm: no need to normalise. */
static int32_t sample_residual(const double *p, double p_total, const proposal *q, int32_t vocab,
                               uint64_t seed, int64_t position) {
    uint64_t noise = di_noise_seed(seed, DI_NOISE_RESIDUAL, 0);
    int32_t token = DI_NO_TOKEN;
    double best = 0, mass = 0;
    for (int32_t id = 0; id < vocab; id++) {
        double left = exp(p[id] - p_total) - chance(q, id);
        if (!(left > 0)) continue;
        double y = log(left) + di_gumbel(noise, position, id);
        mass += left;
        if (token < 0 || y > best) best = y, token = id;
    }
    return mass > DI_TINY_RESIDUAL ? token : di_reject_sample(p, vocab, noise, position);
}

di_verdict di_reject_draft(const double *p, const double *q_logits, int32_t vocab, int32_t draft,
                           uint64_t seed, int64_t position) {
    proposal q = {.logits = q_logits, .draft = draft};
    double p_total = log_total(p, vocab);
    if (q_logits != NULL) q.total = log_total(q_logits, vocab);
    if (isnan(p_total)) return (di_verdict){false, DI_NO_TOKEN};
    if (isnan(q.total)) return (di_verdict){false, di_reject_sample(p, vocab, seed, position)};
    bool known = draft >= 0 && draft < vocab;
    if (known && accepts(&q, exp(p[draft] - p_total), seed, position))
        return (di_verdict){true, draft};
    return (di_verdict){false, sample_residual(p, p_total, &q, vocab, seed, position)};
}

double di_reject_overlap(const double *p, const double *q, int32_t vocab) {
    double p_total = log_total(p, vocab), q_total = log_total(q, vocab), sum = 0;
    for (int32_t id = 0; id < vocab; id++) sum += fmin(exp(p[id] - p_total), exp(q[id] - q_total));
    return sum;
}
