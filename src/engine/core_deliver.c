/* Results of a step go to their owners: the one place where they are consumed. */
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

static void end_well(di_core *core, core__sequence *s, di_finish finish) {
    core__snapshot_take(core, s);
    core__end(core, s, finish, NULL);
}

static void end_not_finite(di_core *core, core__sequence *s, int64_t position) {
    di_error error;
    (void)di_fail(&error, DI_ERR_INVALID,
                  "no token can be sampled at position %lld: the logits are not finite numbers, or "
                  "biases and masks leave none; if it happens often, the weights may be damaged",
                  (long long)position + 1);
    core__end(core, s, DI_FINISH_ERROR, error.message);
}

/* The row's logits are the prompt's next token's. */
static void deliver_score(di_core *core, const core__out *out, const float *logits) {
    core__sequence *s = out->sequence;
    di_top_logprob top[DI_MAX_TOP_LOGPROBS];
    int64_t position = out->position + 1, n_prompt = s->request->n_prompt;
    double log_sum = core__log_sum(logits, core->config->vocab_size);
    if (!isfinite(log_sum)) {
        end_not_finite(core, s, out->position);
        return;
    }
    int32_t id = s->ids[position], n_top = top_of(core, s, logits, log_sum, top);
    float logprob = (float)((double)logits[id] - log_sum);
    s->n_scored = position + 1;
    if (!tell(core, s, position - n_prompt, id, logprob, top, n_top)) {
        end_well(core, s, DI_FINISH_STOP);
    }
}

/* The same token has the same log-probability wherever it is said. */
static void agree(di_top_logprob *top, int32_t n_top, int32_t id, float logprob) {
    for (int32_t i = 0; i < n_top; i++) {
        if (top[i].id == id) top[i].logprob = logprob;
    }
}

static void deliver_sample(di_core *core, const core__out *out, int32_t id, float logprob,
                           const float *logits) {
    core__sequence *s = out->sequence;
    const core__request *r = s->request;
    di_top_logprob top[DI_MAX_TOP_LOGPROBS];
    int32_t n_top = 0;
    if (id < 0) {
        end_not_finite(core, s, out->position);
        return;
    }
    if (r->given.top_logprobs > 0) {
        n_top = top_of(core, s, logits, core__log_sum(logits, core->config->vocab_size), top);
        agree(top, n_top, id, logprob);
    }
    s->ids[s->n_ids++] = id;
    bool goes_on = tell(core, s, s->n_ids - 1 - r->n_prompt, id, logprob, top, n_top);
    bool is_end = id == core->config->eos_token_id && !r->given.ignore_end_token;
    if (r->cancelled) return; /* swept behind the step */
    if (!goes_on || is_end)
        end_well(core, s, DI_FINISH_STOP);
    else if (s->n_ids == s->max_ids)
        end_well(core, s, DI_FINISH_LENGTH);
}

/* Nothing stands before the first token of a prompt, so nothing predicts it. */
static void deliver_first_tokens(di_core *core) {
    for (int32_t i = 0; i < core->n_order; i++) {
        core__sequence *s = core->order[i];
        if (s->n_rows == 0 || !core__scores(s) || s->n_scored > 0 || s->request->cancelled)
            continue;
        s->n_scored = 1;
        if (!tell(core, s, -s->request->n_prompt, s->ids[0], NAN, NULL, 0)) {
            end_well(core, s, DI_FINISH_STOP);
        }
    }
}

di_status core__deliver(di_core *core, di_error *error) {
    if (core->n_out > 0) {
        DI_TRY(di_context_read_samples(core->context, core->tokens, core->logprobs, error));
    }
    if (core->wants_logits) DI_TRY(di_context_read_logits(core->context, core->logits, error));
    deliver_first_tokens(core);
    for (int32_t i = 0; i < core->n_out; i++) {
        const core__out *out = &core->outs[i];
        const float *logits = core->logits + (int64_t)i * core->config->vocab_size;
        if (out->sequence->state != CORE__RUNNING || out->sequence->request->cancelled) continue;
        if (out->samples) {
            deliver_sample(core, out, core->tokens[i], core->logprobs[i], logits);
        } else {
            deliver_score(core, out, logits);
        }
    }
    return DI_OK;
}
