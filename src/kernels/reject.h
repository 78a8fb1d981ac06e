/* Acceptance that loses nothing: the law of a rejected draft, and the noise of every law.
 *
 * The target ran on the rows [anchor, d_0 .. d_{n-1}]; row i gives p_i, the distribution of the
 * token at position + i, where d_i is a proposal when i < n. Every law emits d_0 .. d_{m-1} for m
 * accepted drafts and one token of its own: m + 1 in all (DSpark paper, verification; Leviathan et
 * al. 2023 and Chen et al. 2023 for rejection).
 *   greedy   d_i stands while it is the most likely token of p_i.
 *   coupled  d_i stands while it is the token that plain decoding samples at its position, from p_i
 *            and the noise of (seed, position). Draft and target use that same noise, so they often
 *            agree. The bits of plain decoding, under any schedule.
 *   reject   d_i, drawn from q_i, stands with probability min(1, p_i(d_i) / q_i(d_i)); at the first
 *            that does not, a token of max(p_i - q_i, 0), normalised, takes its place. When all
 *            stand, the last token is drawn from p_n. The distribution of plain decoding, if the
 *            schedule keeps to engine/spec_schedule.h.
 * Greedy and coupled compare tokens that the sampler (ops.h, di_sample_args) has already drawn.
 * Rejection takes logits after all processors (penalties, bias, mask, temperature, top-k, top-p,
 * min-p; -infinity: not allowed), q_i exactly those that d_i was drawn from.
 *
 * NOISE of rejection is counter-based, by (seed, position, purpose), so that a verdict does not
 * depend on the batch. The seed of a purpose is di_noise_seed; two things hang on it:
 *   - Every round draws its drafts with new noise: DI_NOISE_ROUND of ops.h. With noise by position
 *     alone, the draft that failed to be verified comes again in the next round, and a budget from
 *     stale confidences (which saw that draft) decides on it: the look-ahead that the schedule
 *     forbids. A round that was drafted and never verified (pre-emption) takes its confidences with
 *     it.
 *   - Requests that run together and share a seed share noise, and whoever decides which drafts are
 *     verified lets them see each other. So the engine gives every rejecting request a seed of its
 *     own: di_noise_seed(seed, DI_NOISE_REQUEST, serial number).
 * A token drawn from p itself (all drafts accepted, or none verified) uses the noise of plain
 * decoding, so that rejection without drafts is plain decoding to the bit.
 *
 * Plain C on host memory, shared by the twins, the CPU and the tests. Nothing allocates, blocks or
 * keeps state. Sums run over ids in increasing order.
 */
#ifndef DI_KERNELS_REJECT_H
#define DI_KERNELS_REJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/philox.h"

enum { DI_NO_TOKEN = -2 }; /* as the sampler: no finite logit, or one NaN or +infinite */

/* The most likely id, ties to the lower; or DI_NO_TOKEN. */
int32_t di_reject_argmax(const double *logits, int32_t vocab);
/* A sample of softmax(logits): argmax of logit + gumbel(seed, position, id) (base/philox.h), ties
 * to the lower id; or DI_NO_TOKEN. What the sampler does after its processors. */
int32_t di_reject_sample(const double *logits, int32_t vocab, uint64_t seed, int64_t position);

typedef enum di_noise_purpose {
    DI_NOISE_DRAFT = 1, /* number: the position of the round's anchor */
    DI_NOISE_ACCEPT,    /* number: the position of the draft */
    DI_NOISE_RESIDUAL,  /* number: 0 */
    DI_NOISE_REQUEST    /* number: one of the request's own */
} di_noise_purpose;

/* A seed for one purpose, unrelated to `seed` and to those of other purposes and numbers. */
DI_INLINE uint64_t di_noise_seed(uint64_t seed, di_noise_purpose purpose, int64_t number) {
    uint32_t words[4];
    /* The sampler's noise has an id in the high counter, below 2^31: the top bit sets this apart.
     */
    di_philox(seed, (uint64_t)number, (uint64_t)1 << 63 | (uint64_t)purpose, words);
    return (uint64_t)words[0] << 32 | words[1];
}

/* A residual of at most this in all samples from p instead: rounding speaks and not the model. */
#define DI_TINY_RESIDUAL 1e-8

typedef struct di_verdict {
    bool stands;   /* the draft does */
    int32_t token; /* the draft, or the one in its place; DI_NO_TOKEN: p is no distribution */
} di_verdict;

/* One draft: p, q [vocab] logits of target and draft; q NULL: the draft was the one possible token
 * of its q (drafted greedily). seed: the request's; position: the draft's.
 * A residual of at most 1e-8 in all, where rounding speaks and not the model, samples from p
 * instead (DeepSpec's rule). A draft that q gives no chance, or with an id outside the vocabulary,
 * is rejected. A q that is no distribution (NaN, nothing finite) proposes nothing: the token is
 * drawn from p with the noise of plain decoding. */
di_verdict di_reject_draft(const double *p, const double *q, int32_t vocab, int32_t draft,
                           uint64_t seed, int64_t position);

/* The expected acceptance of one position, 1 - |p - q|_1 / 2 = sum min(p, q): what the confidence
 * head was trained to say. p, q: logits. For tests and metrics. */
double di_reject_overlap(const double *p, const double *q, int32_t vocab);

#endif
