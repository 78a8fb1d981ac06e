/* One mechanism under all schedules: the next draft of every request stands in a heap by its
 * survival; taking one lets the request's following draft in. So a prefix is contiguous by
 * construction, and no survival is looked at before all those in front of it were taken. */
#include "engine/spec_schedule.h"

#include <math.h>
#include <stddef.h>

typedef struct heads {
    const di_spec_batch *batch;
    int32_t *lengths; /* [n] drafts taken; the next one of request r is lengths[r] */
    int32_t *heap;    /* [n_heap] requests that have a next one */
    int32_t n_heap;
} heads;

static int32_t limit_of(const di_spec_batch *batch, int32_t r) {
    int32_t limit = batch->limit == NULL ? batch->block : batch->limit[r];
    if (limit > batch->block) limit = batch->block;
    return limit < 0 ? 0 : limit;
}

static double survival_at(const di_spec_batch *batch, int32_t r, int32_t j) {
    double a = batch->survival[(int64_t)r * batch->block + j];
    return a > 0 ? fmin(a, 1) : 0; /* NaN: 0 */
}

static double next_survival(const heads *h, int32_t r) {
    return survival_at(h->batch, r, h->lengths[r]);
}

/* Whether request a's next draft is taken before b's. */
static bool before(const heads *h, int32_t a, int32_t b) {
    double x = next_survival(h, a), y = next_survival(h, b);
    if (x != y) return x > y;
    return h->lengths[a] != h->lengths[b] ? h->lengths[a] < h->lengths[b] : a < b;
}

static void sift_down(heads *h, int32_t root) {
    for (int32_t child; (child = 2 * root + 1) < h->n_heap; root = child) {
        if (child + 1 < h->n_heap && before(h, h->heap[child + 1], h->heap[child])) child++;
        if (!before(h, h->heap[child], h->heap[root])) return;
        int32_t swap = h->heap[root];
        h->heap[root] = h->heap[child];
        h->heap[child] = swap;
    }
}

static heads heads_init(const di_spec_batch *batch, int32_t *lengths, int32_t *heap) {
    heads h = {.batch = batch, .lengths = lengths, .heap = heap};
    for (int32_t r = 0; r < batch->n; r++) {
        lengths[r] = 0;
        if (limit_of(batch, r) > 0) heap[h.n_heap++] = r;
    }
    for (int32_t i = h.n_heap / 2 - 1; i >= 0; i--) sift_down(&h, i);
    return h;
}

/* Takes the draft on top. The heap is not empty. */
static void take(heads *h) {
    int32_t r = h->heap[0];
    if (++h->lengths[r] >= limit_of(h->batch, r)) h->heap[0] = h->heap[--h->n_heap];
    sift_down(h, 0);
}

int32_t di_spec_limit(int32_t block, int64_t remaining) {
    if (remaining <= 1 || block <= 0) return 0;
    return remaining - 1 < block ? (int32_t)(remaining - 1) : block;
}

int32_t di_spec_allocate(const di_spec_batch *current, int32_t budget, int32_t *lengths,
                         int32_t *heap) {
    heads h = heads_init(current, lengths, heap);
    int32_t taken = 0;
    for (; taken < budget && h.n_heap > 0; taken++) take(&h);
    return taken;
}

int32_t di_spec_early_stop(const di_spec_batch *current, const di_spec_costs *costs,
                           int32_t *lengths, int32_t *heap) {
    heads h = heads_init(current, lengths, heap);
    int32_t taken = 0;
    double tokens = costs->tokens, best = tokens / (costs->draft_s + costs->step_s[0]);
    while (taken < costs->max_drafts && h.n_heap > 0) {
        tokens += next_survival(&h, h.heap[0]);
        double rate = tokens / (costs->draft_s + costs->step_s[taken + 1]);
        if (!(rate > best)) break;
        best = rate;
        take(&h);
        taken++;
    }
    return taken;
}

int32_t di_spec_fixed(const di_spec_batch *batch, int32_t max_drafts, int32_t *lengths) {
    int32_t taken = 0;
    for (int32_t r = 0; r < batch->n; r++) lengths[r] = 0;
    for (int32_t j = 0; j < batch->block; j++) {
        for (int32_t r = 0; r < batch->n && taken < max_drafts; r++) {
            if (limit_of(batch, r) > j) lengths[r]++, taken++;
        }
    }
    return taken;
}

/* ---- The plan ---- */

static double fixed_rate(const di_spec_batch *stale, const di_spec_costs *costs, int32_t *lengths) {
    int32_t drafts = di_spec_fixed(stale, costs->max_drafts, lengths);
    double tokens = costs->tokens;
    for (int32_t r = 0; r < stale->n; r++) {
        for (int32_t j = 0; j < lengths[r]; j++) tokens += survival_at(stale, r, j);
    }
    return tokens / (costs->draft_s + costs->step_s[drafts]);
}

di_spec_plan di_spec_choose(const di_spec_batch *stale, const di_spec_costs *costs,
                            int32_t *lengths, int32_t *heap) {
    di_spec_plan plan = {.mode = DI_SPEC_OFF, .tokens = costs->tokens};
    plan.seconds = costs->step_s[0];
    plan.off_rate = costs->tokens / costs->step_s[0];
    plan.fixed_rate = fixed_rate(stale, costs, lengths);

    heads h = heads_init(stale, lengths, heap);
    double tokens = costs->tokens, best = plan.off_rate;
    int32_t k = 0;
    while (k < costs->max_drafts && h.n_heap > 0) {
        tokens += next_survival(&h, h.heap[0]);
        take(&h);
        k++;
        double seconds = costs->draft_s + costs->step_s[k];
        if (!(tokens / seconds > best)) continue;
        best = tokens / seconds;
        plan.drafts = k;
        plan.tokens = tokens;
        plan.seconds = seconds;
    }
    if (plan.drafts > 0) {
        plan.mode = plan.drafts == k ? DI_SPEC_FIXED : DI_SPEC_SCHEDULED;
        /* All that fit, but not the ones that `fixed` would take: the allocation decides. */
        if (h.n_heap > 0) plan.mode = DI_SPEC_SCHEDULED;
    }
    di_spec_allocate(stale, plan.drafts, lengths, heap);
    return plan;
}

bool di_spec_probe_due(di_spec_probe *probe, double step_s, double excess_s) {
    if (!(excess_s > 0) || !(step_s > 0) || !isfinite(excess_s) || !isfinite(step_s)) return false;
    /* Saved for one probe at most: hours of `off` must not buy a burst of them. */
    probe->credit_s = fmin(probe->credit_s + step_s / DI_SPEC_PROBE_DIVISOR, excess_s);
    if (probe->credit_s < excess_s) return false;
    probe->credit_s = 0;
    return true;
}
