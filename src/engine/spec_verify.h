/* Which drafts stand, and the token after them: acceptance that loses nothing.
 *
 * The target ran on the rows [anchor, d_0 .. d_{n-1}]; row i gives p_i, the distribution of the
 * token at position + i, where d_i is a proposal when i < n. Every law emits d_0 .. d_{m-1} for m
 * accepted drafts and one token of its own: m + 1 in all (DSpark paper, verification; Leviathan et
 * al. 2023 and Chen et al. 2023 for rejection). greedy     d_i stands while it is the most likely
 * token of p_i. coupled    d_i stands while it is the token that plain decoding samples at its
 * position, from p_i and the noise of (seed, position). Draft and target use that same noise, so
 * they often agree. The bits of plain decoding, under any schedule. reject     d_i, drawn from q_i,
 * stands with probability min(1, p_i(d_i) / q_i(d_i)); at the first that does not, a token of
 * max(p_i - q_i, 0), normalised, takes its place. The distribution of plain decoding, if the
 * schedule keeps to spec_schedule.h. Greedy and coupled compare tokens that the sampler (ops.h,
 * di_sample_args) has already drawn. Rejection takes logits after all processors (penalties, bias,
 * mask, temperature, top-k, top-p, min-p; -infinity: not allowed), q_i exactly those that d_i was
 * drawn from.
 *
 * NOISE of rejection is counter-based, by (seed, position, purpose), so that a verdict does not
 * depend on the batch. The seed of a purpose is di_spec_seed; two things hang on it:
 *   - Every round draws its drafts with new noise: seed di_spec_seed(seed, DI_SPEC_DRAFT, position
 * of the round's anchor), in di_sample_params of the draft. With noise by position alone, the draft
 *     that failed to be verified comes again in the next round, and a budget from stale confidences
 *     (which saw that draft) decides on it: the look-ahead that the schedule forbids. A round that
 *     was drafted and never verified (pre-emption) takes its confidences with it.
 *   - Requests that run together and share a seed share noise, and the schedule lets them see each
 *     other. Under `scheduled`, give each its own: di_spec_seed(seed, DI_SPEC_REQUEST, serial
 * number). A token drawn from p itself (all drafts accepted, or none verified) uses the noise of
 * plain decoding, so that rejection without drafts is plain decoding to the bit.
 *
 * Nothing allocates, blocks or keeps state. Sums run over ids in increasing order.
 */
#ifndef DI_ENGINE_SPEC_VERIFY_H
#define DI_ENGINE_SPEC_VERIFY_H

#include <stdint.h>

enum { DI_SPEC_NO_TOKEN = -2 }; /* as the sampler: no finite logit, or one NaN or +infinite */

/* How many of the n drafts equal the target's tokens [n] from the first on: greedy and coupled. The
 * token emitted after them is tokens[result], so there are n + 1 tokens. */
int32_t di_spec_accept_equal(const int32_t *drafts, const int32_t *tokens, int32_t n);

/* The most likely id, ties to the lower; or DI_SPEC_NO_TOKEN. */
int32_t di_spec_argmax(const double *logits, int32_t vocab);
/* A sample of softmax(logits): argmax of logit + gumbel(seed, position, id) (base/philox.h), ties
 * to the lower id; or DI_SPEC_NO_TOKEN. What the sampler does after its processors. */
int32_t di_spec_sample(const double *logits, int32_t vocab, uint64_t seed, int64_t position);

typedef enum di_spec_purpose {
    DI_SPEC_DRAFT = 1, /* number: the position of the round's anchor */
    DI_SPEC_ACCEPT,    /* number: the position of the draft */
    DI_SPEC_RESIDUAL,  /* number: 0 */
    DI_SPEC_REQUEST    /* number: one of the request's own */
} di_spec_purpose;

/* A seed for one purpose, unrelated to `seed` and to those of other purposes and numbers. */
uint64_t di_spec_seed(uint64_t seed, di_spec_purpose purpose, int64_t number);

typedef struct di_spec_rejection {
    int32_t n, vocab;
    const int32_t *drafts; /* [n] */
    const double *p;       /* [n + 1][vocab] logits of the target */
    const double *q;       /* [n][vocab] logits of the draft; NULL: each draft was the one possible
                              token of its q (drafted greedily) */
    uint64_t seed;         /* the request's */
    int64_t position;      /* of d_0 */
} di_spec_rejection;

typedef struct di_spec_verdict {
    int32_t accepted; /* drafts that stand */
    int32_t token;    /* the one after them, or DI_SPEC_NO_TOKEN: bad logits in that row */
} di_spec_verdict;

/* Rejection sampling. A residual of at most 1e-8 in all, where rounding speaks and not the model,
 * samples from p_i instead (DeepSpec's rule). A draft that q gives no chance, or with an id
 * outside the vocabulary, is rejected. */
di_spec_verdict di_spec_reject(const di_spec_rejection *round);

/* The expected acceptance of one position, 1 - |p - q|_1 / 2 = sum min(p, q): what the confidence
 * head was trained to say. p, q: logits. For tests and metrics. */
double di_spec_overlap(const double *p, const double *q, int32_t vocab);

#endif
