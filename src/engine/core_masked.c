/* Blocks of sequences with masks. Every row of such a block has a mask of its own, which hangs on the
 * drafts before it: so the host must have seen them before the rows can be enqueued.
 *
 * With nothing in flight the step's own draft pass is waited for, as its results would be next. With a
 * step in flight the sequence sits one step out all the same, since the host does not know its last
 * tokens; it drafts in that step and has its rows in the one behind it, when the drafts are there: the
 * device is busy with the others meanwhile, and they wait for nothing. The block is cut at the first draft
 * that may not come. What is known to come needs no draft pass: it is taken where the drafts differ.
 *
 * Drafts stand by equality with the token that the masked row samples, so answers are those without
 * drafts, to the bit.
 */
#include <string.h>

#include "engine/core_internal.h"

void core__masked_foresee(di_core *core, core__sequence *s, int32_t most) {
    const di_core_request *given = &s->request->given;
    assert(s->n_unread == 0);
    s->n_sure = 0;
    if (most == 0 || !given->foresee) return;
    s->n_sure = given->foresee(given->user, s->choice, core__own_drafts(core, s), most);
    assert(s->n_sure >= 0 && s->n_sure <= most);
}

void core__masked_add(di_core *core, core__sequence *s) {
    core__step *step = core->building;
    const di_sample_params params = core__params(core, s);
    if (s->drafts || (s->most > s->n_sure && s->drafted_in == 0)) {
        s->drafted_at = core__draft_for(core, s, &params);
        s->drafted_in = core->stats.steps + 1;
        step->seen = true;
    }
    if (!s->block) return;
    int32_t at = step->n_blocks++;
    step->n_own++;
    core->params[step->n_params] = params; /* finish makes those of the rows from it */
    step->n_params += 1 + s->most;
    core->blocks[at] = (di_decode){.slot = s->slot,
                                   .most = s->most,
                                   .law = (int32_t)s->law,
                                   .own = core__own_drafts(core, s)};
    step->columns[at] = s->drafted_in == core->stats.steps + 1 ? s->drafted_at : -1;
    step->blocks[at] = core__owner_of(s);
    step->wants_logits |= s->request->given.top_logprobs > 0;
    s->n_unread++;
}

/* The drafts of s as the device made them, where the host may want them: to own, up to `most`, unless
 * they contradict what is known. Returns how many there are; *column -1: they are not the device's. */
static di_status see_drafts(di_core *core, core__sequence *s, int32_t most, float *confidence,
                            int32_t *column, int32_t *n, di_error *error) {
    int32_t *own = core__own_drafts(core, s), block = core->spec.block;
    *n = (int32_t)core__smaller(s->n_sure, most);
    *column = -1;
    if (s->drafted_in == 0 || most == *n) return DI_OK;
    const core__step *in = &core->steps[(s->drafted_in - 1) % CORE__STEPS];
    DI_TRY(di_context_reach(core->context, in->draft_mark, error));
    for (int32_t k = 0; k < *n; k++)
        if (in->drafts[k * in->n_drafted + s->drafted_at] != own[k]) return DI_OK;
    *column = s->drafted_at;
    for (int32_t k = 0; k < block; k++) {
        int32_t at = k * in->n_drafted + s->drafted_at;
        confidence[k] = in->confidence[at];
        if (k == *n && k < most && in->drafts[at] >= 0) own[(*n)++] = in->drafts[at];
    }
    return DI_OK;
}

/* The masks of a block with n drafts, as far as these may come: returns how many may. */
static int32_t add_masks(di_core *core, const core__sequence *s, int32_t n) {
    const di_core_request *given = &s->request->given;
    int64_t n_words = core__vocab_words(core);
    uint32_t *words = core->masks + (2 + core->n_masks) * n_words;
    const uint32_t *allowed = core->masks + CORE__MASK_ALLOWED * n_words;
    int32_t kept = given->mask_drafts(given->user, s->choice, core__own_drafts(core, s), n, words);
    assert(kept >= 0 && kept <= n && core->n_masks + 1 + kept <= CORE__MAX_MASKS);
    for (int32_t row = 0; row <= kept; row++) {
        for (int64_t i = 0; i < n_words; i++) words[row * n_words + i] &= allowed[i];
    }
    return kept;
}

/* Block b of the step, the params of whose rows begin at `to`; they were kept at `from`. Returns how many
 * there are. */
static di_status finish_block(di_core *core, core__step *step, int32_t b, int32_t from, int32_t to,
                              int32_t *n_params, di_error *error) {
    core__sequence *s = step->blocks[b].sequence;
    int32_t own = b - (step->n_blocks - step->n_own), n;
    DI_TRY(see_drafts(core, s, core->blocks[b].most,
                      step->own_confidence + (int64_t)own * core->spec.block, &step->columns[b], &n,
                      error));
    int32_t kept = add_masks(core, s, n);
    di_sample_params params = core->params[from];
    for (int32_t row = 0; row <= kept; row++) {
        params.mask = 2 + core->n_masks++;
        core->params[to + row] = params;
    }
    core->blocks[b].most = kept;
    step->allowed[b] = kept < n ? kept : core->spec.block;
    step->n_verified += kept;
    s->drafted_in = 0;
    *n_params = 1 + kept;
    return DI_OK;
}

di_status core__masked_finish(di_core *core, core__step *step, di_error *error) {
    int32_t first = step->n_blocks - step->n_own, from = first, to = first;
    if (step->n_own == 0) return DI_OK;
    for (int32_t b = first; b < step->n_blocks; b++) {
        int32_t n, reserved = 1 + core->blocks[b].most;
        DI_TRY(finish_block(core, step, b, from, to, &n, error));
        from += reserved;
        to += n;
    }
    assert(from == step->n_params);
    memmove(core->params + to, core->params + from, (size_t)step->n_outs * sizeof *core->params);
    return DI_OK;
}
