/* Plans over the heap of next drafts (kernels/allot.h). */
#include "engine/spec_schedule.h"

#include <math.h>
#include <stddef.h>

int32_t di_spec_limit(int32_t block, int64_t remaining) {
    if (remaining <= 1 || block <= 0) return 0;
    return remaining - 1 < block ? (int32_t)(remaining - 1) : block;
}

int32_t di_spec_early_stop(const di_spec_batch *current, const di_spec_costs *costs,
                           int32_t *lengths, int32_t *heap) {
    di_allot_heap h = di_allot_begin(current, lengths, heap);
    int32_t taken = 0;
    double tokens = costs->tokens, best = tokens / (costs->draft_s + costs->step_s[0]);
    while (taken < costs->max_drafts && h.n_heap > 0) {
        tokens += di_allot_top(&h);
        double rate = tokens / (costs->draft_s + costs->step_s[taken + 1]);
        if (!(rate > best)) break;
        best = rate;
        di_allot_take(&h);
        taken++;
    }
    return taken;
}

/* ---- The plan ---- */

/* What k drafts that bring `more` tokens are worth: the larger, the better. */
static double value_of(const di_spec_costs *costs, int32_t k, double more) {
    double seconds = k > 0 ? costs->draft_s + costs->step_s[k] : costs->step_s[0];
    if (costs->rate > 0) return more - costs->rate * (seconds - costs->step_s[0]);
    return (costs->tokens + more) / seconds;
}

di_spec_plan di_spec_choose(const di_spec_batch *stale, const di_spec_costs *costs,
                            int32_t *lengths, int32_t *heap) {
    di_spec_plan plan = {.mode = DI_SPEC_OFF};
    di_allot_heap h = di_allot_begin(stale, lengths, heap);
    double more = 0, best = value_of(costs, 0, 0), taken = 0;
    int32_t k = 0;
    while (k < costs->max_drafts && h.n_heap > 0) {
        more += di_allot_top(&h);
        di_allot_take(&h);
        k++;
        double value = value_of(costs, k, more);
        if (!(value > best)) continue;
        best = value;
        plan.drafts = k;
        taken = more;
    }
    bool all = plan.drafts == k && h.n_heap == 0;
    if (plan.drafts > 0) plan.mode = all ? DI_SPEC_FIXED : DI_SPEC_SCHEDULED;
    double drafting = plan.drafts > 0 ? costs->draft_s : 0;
    plan.rate = (costs->tokens + taken) / (drafting + costs->step_s[plan.drafts]);
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
