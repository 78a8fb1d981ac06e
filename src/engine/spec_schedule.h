/* How many drafts the next step verifies.
 *
 * A step over n requests verifies the first l_r drafts of request r, so it has n + k rows with
 * k = sum of l_r, and is expected to yield
 *     tokens = n + sum_r sum_{j <= l_r} a_{r,j},
 * a_{r,j}: the survival of draft j, the probability that it and all before it are accepted. The
 * rate tokens / seconds(k) is made as large as the cost model allows (DSpark paper, section on
 * hardware-aware prefix scheduling, algorithm 1 and its asynchronous form).
 *
 * WHO MAY SEE WHAT. Verification keeps a sampled request's distribution only if whether draft k is
 * verified does not depend on draft k itself. The confidence of draft k+1 is computed from draft k,
 * so position k may be admitted by a_{r,1..k}, never by a_{r,k+1} (paper, appendix A: a look-ahead
 * turns (0.7, 0.3) into (0.85, 0.15)). Each function says which survivals it may be given:
 *   - CURRENT, of the drafts that this step verifies: di_spec_early_stop, and the allotment;
 *   - STALE, of drafts made for an earlier step: di_spec_choose. It looks ahead freely; given
 *     current survivals it is the planted error of the tests. Stale survivals are only independent of
 *     the current drafts if every round draws its drafts with noise of its own
 *     (DI_NOISE_DRAFT in kernels/reject.h).
 * Greedy and coupled requests give the same bits under any schedule.
 *
 * The engine's step (synchronous: one old; asynchronous: two old), of which the host does the first
 * line and the device the others:
 *     plan = di_spec_choose(stale)       a number of drafts for the whole step, 0: no draft pass
 *     draft
 *     allot(current, plan.drafts)        which: the likeliest (kernels/allot.h)
 *     verify
 * Arrays are the caller's; nothing is allocated, nothing is kept, nothing fails. Every function
 * takes O((n + k) log n), besides reading its arrays. Any thread.
 */
#ifndef DI_ENGINE_SPEC_SCHEDULE_H
#define DI_ENGINE_SPEC_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/allot.h"

/* The requests that decode in this step, with their survivals; limits: di_spec_limit. */
typedef di_allot_batch di_spec_batch;

/* Most drafts worth verifying when a request may still emit `remaining` tokens: a step emits one
 * more than it accepts. 0 <= result <= block. */
int32_t di_spec_limit(int32_t block, int64_t remaining);

typedef struct di_spec_costs {
    const double *step_s; /* [max_drafts + 1]: seconds of the step with k drafts verified, above its
                             n decode rows and its prompt rows; > 0, any shape
                             (di_spec_cost_fill) */
    int32_t max_drafts;   /* what the row budget leaves for drafts, >= 0 */
    double draft_s;       /* seconds of drafting for the batch, >= 0; 0 when already spent */
    double tokens; /* what the step yields without drafts: n, and whatever its prompt rows are
                      to count for */
    double rate;   /* di_spec_choose: tokens a second that drafts must beat by themselves, as where
                      the step is made anyway, for prompts; 0: the step's own rate counts */
} di_spec_costs;

typedef enum di_spec_mode {
    DI_SPEC_OFF,      /* no draft pass, one row a request */
    DI_SPEC_FIXED,    /* every draft that fits is verified; when rows are fewer, the likeliest */
    DI_SPEC_SCHEDULED /* as many as pay */
} di_spec_mode;

typedef struct di_spec_plan {
    di_spec_mode mode; /* fixed: all drafts that there are */
    int32_t drafts;    /* K: drafts to verify in the step; 0 when off */
    double rate; /* tokens a second that the step then yields; of no use where costs had one */
} di_spec_plan;

/* STALE survivals. The best of off, fixed and scheduled for this load: K is the global argmax of
 * (tokens + S_k) / (draft_s + step_s[k]), S_k the sum of the k largest survivals; off when that is
 * not better than tokens / step_s[0]. Among equals the fewest drafts. So the rate is never below
 * that of the other two, whatever the curve's shape. With costs->rate > 0, K is the argmax of
 * S_k - rate * (draft_s + step_s[k] - step_s[0]), off when that is not above 0. lengths, heap [n]:
 * scratch. */
di_spec_plan di_spec_choose(const di_spec_batch *stale, const di_spec_costs *costs,
                            int32_t *lengths, int32_t *heap);

/* CURRENT survivals. Paper, algorithm 1: candidates by survival, as di_allot_choose takes them; the
 * first that does not raise the rate ends it. The stop is what makes it safe. It finds the true
 * maximum where the rate has one peak. Returns the sum of lengths. The engine does not call it: it
 * would have to read confidences in the middle of a step. Tests measure by it what is lossless and
 * what is best. */
int32_t di_spec_early_stop(const di_spec_batch *current, const di_spec_costs *costs,
                           int32_t *lengths, int32_t *heap);

/* ---- Looking again ----
 *
 * While speculation is off, nothing is learnt: no survivals, no cost of larger steps. So now and
 * then a step is speculated all the same (fixed, so that every position is observed), paid for by
 * the time of the steps before: over any stretch the extra time stays below `share` of it and one
 * probe. Start with {0}. */
enum {
    DI_SPEC_PROBE_DIVISOR = 128
}; /* share 1/128: 0.8 %, beside the 5 % that a user may notice */
typedef struct di_spec_probe {
    double credit_s;
} di_spec_probe;

/* Call for every step that is planned off. step_s: its seconds; excess_s: what the probe takes
 * beyond that (draft pass and more rows). True: probe in this step; its price is taken. */
bool di_spec_probe_due(di_spec_probe *probe, double step_s, double excess_s);

#endif
