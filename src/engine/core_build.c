/* A step as the scheduler wants it, in the model's terms: blocks of those that decode, rows of those
 * that still have tokens to run, who wants logits, how they are sampled, whom to draft for.
 */
#include <assert.h>
#include <float.h>
#include <string.h>

#include "engine/core_internal.h"

/* ---- Sampling ---- */

static di_sample_params scoring_params(const core__sequence *s) {
    return (di_sample_params){.top_p = 1.0f,
                              .repetition_penalty = 1.0f,
                              .slot = s->slot,
                              .mask = CORE__MASK_NOTHING};
}

/* The request's own mask, of what may be sampled at all. Returns its place. */
static int32_t add_mask(di_core *core, const core__sequence *s) {
    const di_core_request *given = &s->request->given;
    int64_t n = core__vocab_words(core);
    int32_t at = 2 + core->n_masks++;
    uint32_t *words = core->masks + at * n;
    const uint32_t *allowed = core->masks + CORE__MASK_ALLOWED * n;
    assert(at < 2 + CORE__MAX_MASKS && s->n_unread == 0);
    given->mask(given->user, s->choice, words);
    for (int64_t i = 0; i < n; i++) words[i] &= allowed[i];
    return at;
}

di_sample_params core__params(di_core *core, const core__sequence *s) {
    const di_core_request *given = &s->request->given;
    di_sample_params p = given->sampling;
    p.seed = s->seed;
    /* 0 would mean "no token at all"; the least positive value keeps the likeliest one. */
    if (!(p.top_p > 0.0f)) p.top_p = FLT_MIN;
    p.slot = s->slot;
    p.mask = CORE__MASK_ALLOWED;
    p.noise = DI_NOISE_POSITION;
    p.bias_begin = core->n_biases;
    p.n_bias = given->n_biases;
    if (p.n_bias > 0) {
        memcpy(core->biases + core->n_biases, given->biases,
               (size_t)p.n_bias * sizeof *core->biases);
        core->n_biases += p.n_bias;
    }
    return p;
}

static di_sample_params sampling_params(di_core *core, const core__sequence *s) {
    di_sample_params p = core__params(core, s);
    if (s->request->given.mask) p.mask = add_mask(core, s);
    return p;
}

/* ---- Rows ---- */

int32_t core__draft_for(di_core *core, core__sequence *s, const di_sample_params *params) {
    int32_t at = core->building->n_drafted++;
    core->draft_slots[at] = s->slot;
    core->draft_params[at] = *params;
    if (s->law == DI_SPEC_REJECT) core->draft_params[at].noise = DI_NOISE_ROUND;
    return at;
}

static void add_block(di_core *core, core__sequence *s) {
    core__step *step = core->building;
    int32_t at = step->n_blocks++;
    core->params[at] = sampling_params(core, s);
    core->blocks[at] = (di_decode){.slot = s->slot,
                                   .most = s->most,
                                   .law = (int32_t)s->law,
                                   .reject = s->law == DI_SPEC_REJECT};
    step->columns[at] = s->most > 0 ? core__draft_for(core, s, &core->params[at]) : -1;
    step->allowed[at] = core->spec.block;
    step->blocks[at] = core__owner_of(s);
    step->n_params++;
    step->wants_logits |= s->request->given.top_logprobs > 0;
    s->n_unread++;
}

static void ask_for_logits(di_core *core, core__sequence *s, int64_t position, bool samples) {
    core__step *step = core->building;
    int32_t at = step->n_outs++, param = step->n_params + at;
    assert(step->n_params + core->n_verified + step->n_outs <= core->max_out);
    core->out_rows[at] = step->n_rows;
    step->outs[at] = (core__out){core__owner_of(s), position, samples};
    core->params[param] = samples ? sampling_params(core, s) : scoring_params(s);
    step->wants_logits |= !samples || s->request->given.top_logprobs > 0;
    s->n_unread += samples;
}

static void add_rows(di_core *core, core__sequence *s) {
    core__step *step = core->building;
    bool scores = core__scores(s);
    if (scores && s->n_scored == 0 && s->n_rows > 0) {
        step->first[step->n_first++] = core__owner_of(s);
    }
    for (int32_t i = 0; i < s->n_rows; i++) {
        int64_t position = s->n_done + i, next = position + 1;
        bool samples = next == s->n_ids && !core__only_scores(s);
        bool is_scored = scores && next >= s->n_scored && next < s->request->n_known;
        if (samples || is_scored) ask_for_logits(core, s, position, samples);
        core->rows[step->n_rows++] = (di_row){s->ids[position], s->slot, i};
    }
    if (core__pending(s) > 1) step->n_prompt_rows += s->n_rows;
}

void core__build(di_core *core) {
    core__step *step = core->building;
    step->n_rows = step->n_prompt_rows = step->n_blocks = step->n_outs = 0;
    step->n_drafted = step->n_first = step->n_own = step->n_params = 0;
    step->seen = false;
    step->n_verified = core->n_verified;
    step->wants_logits = false;
    step->context_class = core->context_class;
    core->n_biases = core->n_masks = 0;
    for (int32_t i = 0; i < core->n_order; i++) {
        core__sequence *s = core->order[i];
        if (s->block && !core__has_own(core, s)) add_block(core, s);
    }
    for (int32_t i = 0; i < core->n_order; i++) {
        core__sequence *s = core->order[i];
        if (s->drafts || (s->block && core__has_own(core, s))) core__masked_add(core, s);
    }
    for (int32_t i = 0; i < core->n_order; i++) {
        core__sequence *s = core->order[i];
        if (s->n_rows > 0) add_rows(core, s);
    }
}
