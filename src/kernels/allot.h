/* The arithmetic of choosing drafts, in one place for the operation `allot` (ops.h), its twin and
 * the engine's plans: survivals from confidences, and the largest of them over all requests.
 *
 * One mechanism: the next draft of every request stands in a heap by its survival; taking one lets
 * the request's following draft in. So a prefix is contiguous by construction, and no survival is
 * looked at before all those in front of it were taken.
 *
 * Arrays are the caller's; nothing is allocated, nothing is kept, nothing fails. Any thread.
 */
#ifndef DI_KERNELS_ALLOT_H
#define DI_KERNELS_ALLOT_H

#include <stdint.h>

/* The chance that a draft stands when those before it do: sigmoid(logit / temperature); in [0, 1],
 * NaN: 0. A survival is the product of these from the first draft on. */
double di_allot_confidence(double logit, double temperature);

typedef struct di_allot_batch {
    int32_t n;              /* requests */
    int32_t block;          /* drafts of a request, B */
    const double *survival; /* [n][block], each row in [0, 1] and non-increasing; NaN counts as 0 */
    const int32_t *limit;   /* [n] most drafts of a request, or NULL: block */
} di_allot_batch;

/* Of request r: its limit within 0..block, and the survival of draft j, from 0. */
int32_t di_allot_limit(const di_allot_batch *batch, int32_t r);
double di_allot_survival(const di_allot_batch *batch, int32_t r, int32_t j);

/* Draft after draft in the order of their survivals; equal ones: the smaller position first, then
 * the lower request. */
typedef struct di_allot_heap {
    const di_allot_batch *batch;
    int32_t *lengths; /* [n] drafts taken; the next one of request r is lengths[r] */
    int32_t *heap;    /* [n_heap] requests that have a next one */
    int32_t n_heap;   /* 0: every draft was taken */
} di_allot_heap;

/* lengths [n] (set to 0) and heap [n] stay with the result. O(n). */
di_allot_heap di_allot_begin(const di_allot_batch *batch, int32_t *lengths, int32_t *heap);
/* n_heap > 0: the survival of the draft on top; takes that draft, O(log n). */
double di_allot_top(const di_allot_heap *heap);
void di_allot_take(di_allot_heap *heap);

/* The `budget` largest: lengths [n]; their sum is returned and is min(budget, sum of the limits).
 * heap [n]: scratch. O((n + budget) log n). */
int32_t di_allot_choose(const di_allot_batch *batch, int32_t budget, int32_t *lengths,
                        int32_t *heap);

#endif
