/* Results of a step go to their owners: the one place where they are consumed. The next step may be
 * in flight meanwhile: what it does for a sequence that ends here is dropped. */
#include <math.h>

#include "engine/core_internal.h"

/* Calls back; false: the choice ends here. */
static bool tell(di_core *core, const core__sequence *s, int64_t index, int32_t id, float logprob,
                 const di_top_logprob *top, int32_t n_top) {
    const di_core_request *given = &s->request->given;
    if (!given->on_token) return true;
    core->telling = true;
    bool goes_on = given->on_token(given->user, &(di_core_token){.request = s->request->id,
                                                                 .choice = s->choice,
                                                                 .index = index,
                                                                 .id = id,
                                                                 .logprob = logprob,
                                                                 .top = top,
                                                                 .n_top = n_top});
    core->telling = false;
    return goes_on;
}

static int32_t top_of(const di_core *core, const core__sequence *s, const float *logits,
                      double log_sum, di_top_logprob *top) {
    int32_t vocab = core->config->vocab_size, n = s->request->given.top_logprobs;
    if (n > vocab) n = vocab;
    if (n > 0) core__top(logits, vocab, log_sum, top, n);
    return n;
}

/* Takes back what ran past the last token: the blocks in flight, the rest of the last one. */
static bool trim(core__sequence *s, di_core *core) {
    di_error error;
    di_context_drop(core->context, s->slot);
    int64_t back = s->n_done - (s->n_ids - 1);
    if (back <= 0) return true;
    if (di_context_rewind(core->context, s->slot, (int32_t)back, &error) != DI_OK) return false;
    s->n_done -= back;
    return true;
}

static di_status end_well(di_core *core, core__sequence *s, di_finish finish, di_error *error) {
    if (trim(s, core)) {
        DI_TRY(core__settle(core, s, error));
        core__snapshot_take(core, s);
    }
    core->reading->n_ended += finish == DI_FINISH_STOP;
    core__end(core, s, finish, NULL);
    return DI_OK;
}

static void end_not_finite(di_core *core, core__sequence *s, int64_t position) {
    di_error error;
    (void)di_fail(&error, DI_ERR_INVALID,
                  "no token can be sampled at position %lld: the logits are not finite numbers, or "
                  "biases and masks leave none; if it happens often, the weights may be damaged",
                  (long long)position + 1);
    core__end(core, s, DI_FINISH_ERROR, error.message);
}

/* The row's logits are those of the next token, which is known. */
static di_status deliver_score(di_core *core, const core__out *out, const float *logits,
                               di_error *error) {
    core__sequence *s = out->owner.sequence;
    di_top_logprob top[DI_MAX_TOP_LOGPROBS];
    int64_t position = out->position + 1;
    double log_sum = core__log_sum(logits, core->config->vocab_size);
    if (!isfinite(log_sum)) {
        end_not_finite(core, s, out->position);
        return DI_OK;
    }
    int32_t id = s->ids[position], n_top = top_of(core, s, logits, log_sum, top);
    float logprob = (float)((double)logits[id] - log_sum);
    s->n_scored = position + 1;
    bool goes_on = tell(core, s, position - s->request->n_prompt, id, logprob, top, n_top);
    if (s->request->cancelled) return DI_OK; /* swept behind the step */
    if (!goes_on) return end_well(core, s, DI_FINISH_STOP, error);
    bool is_last = s->n_scored == s->request->n_known && core__only_scores(s);
    return is_last ? end_well(core, s, DI_FINISH_LENGTH, error) : DI_OK;
}

/* The same token has the same log-probability wherever it is said. */
static void agree(di_top_logprob *top, int32_t n_top, int32_t id, float logprob) {
    for (int32_t i = 0; i < n_top; i++) {
        if (top[i].id == id) top[i].logprob = logprob;
    }
}

/* The next token of s. */
static di_status deliver_sample(di_core *core, core__sequence *s, int32_t id, float logprob,
                                const float *logits, di_error *error) {
    const core__request *r = s->request;
    di_top_logprob top[DI_MAX_TOP_LOGPROBS];
    int32_t n_top = 0;
    if (id < 0) {
        end_not_finite(core, s, s->n_ids - 1);
        return DI_OK;
    }
    if (r->given.top_logprobs > 0) {
        n_top = top_of(core, s, logits, core__log_sum(logits, core->config->vocab_size), top);
        agree(top, n_top, id, logprob);
    }
    s->ids[s->n_ids++] = id;
    bool goes_on = tell(core, s, s->n_ids - 1 - r->n_prompt, id, logprob, top, n_top);
    bool is_end = id == core->config->eos_token_id && !r->given.ignore_end_token;
    if (r->cancelled) return DI_OK; /* swept behind the step */
    if (!goes_on || is_end) return end_well(core, s, DI_FINISH_STOP, error);
    if (s->n_ids == s->max_ids) return end_well(core, s, DI_FINISH_LENGTH, error);
    return DI_OK;
}

/* ---- A step's results, in the order in which they lie ---- */

static void release(core__owner *owner) { owner->sequence->request->n_flying--; }

/* Nothing stands before the first token of a prompt, so nothing predicts it. */
static di_status deliver_first_tokens(di_core *core, core__step *step, di_error *error) {
    for (int32_t i = 0; i < step->n_first; i++) {
        core__sequence *s = step->first[i].sequence;
        release(&step->first[i]);
        if (!core__is_current(&step->first[i]) || s->n_scored > 0) continue;
        s->n_scored = 1;
        bool goes_on = tell(core, s, -s->request->n_prompt, s->ids[0], NAN, NULL, 0);
        if (s->request->cancelled) continue;
        if (!goes_on)
            DI_TRY(end_well(core, s, DI_FINISH_STOP, error));
        else if (s->request->n_known == 1 && core__only_scores(s))
            DI_TRY(end_well(core, s, DI_FINISH_LENGTH, error));
    }
    return DI_OK;
}

/* The tokens that came out of a block, as long as somebody wants them. All but the last were drafts. */
static di_status deliver_tokens(di_core *core, const core__owner *owner, int32_t n,
                                const core__step *step, int64_t at, di_error *error) {
    for (int64_t i = at; i < at + n && core__is_current(owner); i++) {
        owner->sequence->n_accepted += i + 1 < at + n;
        const float *logits = core->logits + i * core->config->vocab_size;
        DI_TRY(deliver_sample(core, owner->sequence, step->results.tokens[i],
                              step->results.logprobs[i], logits, error));
    }
    return DI_OK;
}

/* Block b has `rows` results from `at` on. */
static di_status deliver_block(di_core *core, const core__step *step, int32_t b, int32_t rows,
                               int64_t at, di_error *error) {
    const core__owner *owner = &step->blocks[b];
    core__sequence *s = owner->sequence;
    int32_t kept = 0, own = b - (step->n_blocks - step->n_own);
    while (kept < rows && step->results.tokens[at + kept] != -1) kept++;
    if (!core__is_current(owner)) return DI_OK;
    di_context_settle(core->context, s->slot, rows, kept);
    s->n_unread--;
    s->n_done += kept;
    if (s->n_done > s->n_high) s->n_high = s->n_done;
    core->stats.draft_blocks += rows > 1;
    core->stats.accepted += (uint64_t)(kept - 1);
    core__lesson lesson = {.stride = own < 0 ? step->n_drafted : 1,
                           .n_verified = rows - 1,
                           .n_accepted = kept - 1,
                           .allowed = step->allowed[b]};
    if (step->columns[b] < 0) {
        core__spec_pass(s);
    } else {
        lesson.confidence = own < 0 ? step->confidence + step->columns[b]
                                    : step->own_confidence + (int64_t)own * core->spec.block;
        core__spec_learn(core, s, &lesson);
    }
    DI_TRY(deliver_tokens(core, owner, kept, step, at, error));
    return core__is_current(owner) ? core__settle(core, s, error) : DI_OK;
}

static di_status deliver_blocks(di_core *core, core__step *step, int64_t *at, di_error *error) {
    for (int32_t b = 0; b < step->n_blocks; b++) {
        int32_t rows = step->results.block_rows[b];
        release(&step->blocks[b]);
        DI_TRY(deliver_block(core, step, b, rows, *at, error));
        *at += rows;
    }
    return DI_OK;
}

static di_status deliver_outs(di_core *core, core__step *step, int64_t at, di_error *error) {
    for (int32_t i = 0; i < step->n_outs; i++, at++) {
        core__out *out = &step->outs[i];
        const float *logits = core->logits + at * core->config->vocab_size;
        release(&out->owner);
        if (!core__is_current(&out->owner)) continue;
        if (!out->samples) {
            DI_TRY(deliver_score(core, out, logits, error));
            continue;
        }
        out->owner.sequence->n_unread--;
        DI_TRY(deliver_sample(core, out->owner.sequence, step->results.tokens[at],
                              step->results.logprobs[at], logits, error));
    }
    return DI_OK;
}

/* Time between two steps counts as a gap when the second was enqueued because the first had been:
 * not when there was nothing to do. */
static void count_times(di_core *core, const core__step *step) {
    core->stats.step_seconds += step->end - step->begin;
    if (!isnan(core->last_end)) {
        double gap = step->begin - core->last_end;
        core->stats.gap_seconds += gap;
        if (step->alone) di_ahead_gap(&core->ahead, gap, step->end - step->begin);
    }
    core->last_end = step->end;
    core__spec_time(core, step);
}

di_status core__deliver(di_core *core, core__step *step, di_error *error) {
    int64_t at = 0;
    core->reading = step;
    step->n_ended = 0;
    step->trace.wait = core__now(core);
    DI_TRY(di_context_reach(core->context, step->mark, error));
    step->trace.deliver = core__now(core);
    bool follows = !isnan(core->last_end);
    count_times(core, step);
    DI_TRY(deliver_first_tokens(core, step, error));
    DI_TRY(deliver_blocks(core, step, &at, error));
    DI_TRY(deliver_outs(core, step, at, error));
    di_ahead_ends(&core->ahead, step->n_blocks, step->n_ended);
    core__tell_trace(core, step, follows);
    return DI_OK;
}

di_status core__settle(di_core *core, core__sequence *s, di_error *error) {
    di_kv_sequence *pages = core__pages(core, s);
    di_kv_settled settled;
    while ((settled = di_kv_settle(core->kv, pages, s->ids, NULL, s->n_done)) != DI_KV_NOTHING) {
        if (settled == DI_KV_NAMED) continue;
        int32_t at = pages->n_named - 1;
        DI_TRY(di_context_set_pages(core->context, s->slot, at, pages->pages + at, 1, error));
    }
    return DI_OK;
}
