/* How far prompts are, told between steps. */
#include "engine/core_internal.h"

/* Rows of a step in flight are enqueued, and not computed yet. */
static bool tell_one(const di_core *core, const core__sequence *s, di_core_prompt_fn tell) {
    const core__request *r = s->request;
    int64_t computed = s->n_done - (core->flying ? s->n_rows : 0);
    if (computed > r->n_known) computed = r->n_known;
    int64_t done = computed > r->n_cached ? computed - r->n_cached : 0; /* it may run them again */
    return tell(r->given.user, done, r->n_known - r->n_cached);
}

void di_core_tell_prompts(di_core *core, di_core_prompt_fn tell) {
    core->telling = true;
    for (int32_t i = 0; i < core->options.max_batch; i++) {
        const core__sequence *s = core->slots[i].sequence;
        if (!s || s->choice != 0 || s->request->cancelled) continue;
        if (tell_one(core, s, tell)) continue;
        s->request->cancelled = true;
        core->n_cancelled++;
    }
    core->telling = false;
    core__sweep(core);
}
