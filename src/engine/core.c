/* The core: options, creation, what it knows about itself. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core_internal.h"

di_core_options di_core_options_defaults(const di_config *config) {
    return (di_core_options){.max_batch = 16,
                             .max_rows = 256,
                             .max_context = core__smaller(config->max_position_embeddings, 32768),
                             .n_pages = 0,
                             .prefix_cache = true,
                             .replay = DI_REPLAY_EXACT,
                             .window_cache_bytes = UINT64_C(256) << 20,
                             .max_bytes = 0,
                             .spec = config->num_nextn_predict_layers > 0 ? DI_SPEC_SCHEDULED
                                                                          : DI_SPEC_OFF};
}

static di_status check_options(const di_config *config, const di_core_options *o, di_error *error) {
    enum { MOST = 1 << 16 };
    if (o->max_batch < 1 || o->max_batch > MOST) {
        return di_fail(error, DI_ERR_USAGE, "max_batch: %d sequences, 1 to %d can run at once",
                       o->max_batch, MOST);
    }
    if (o->max_rows < o->max_batch) {
        return di_fail(error, DI_ERR_USAGE,
                       "max_rows: %d rows a step are fewer than the %d sequences of max_batch",
                       o->max_rows, o->max_batch);
    }
    if (o->max_context < 2 || o->max_context > config->max_position_embeddings) {
        return di_fail(error, DI_ERR_USAGE, "max_context: %lld tokens, the model takes 2 to %lld",
                       (long long)o->max_context, (long long)config->max_position_embeddings);
    }
    if (o->n_pages < 0) return di_fail(error, DI_ERR_USAGE, "n_pages: %d", o->n_pages);
    if (o->replay != DI_REPLAY_EXACT && o->replay != DI_REPLAY_STABLE &&
        o->replay != DI_REPLAY_BOUNDED) {
        return di_fail(error, DI_ERR_USAGE, "replay: %d is no mode", (int)o->replay);
    }
    if (o->spec != DI_SPEC_OFF && config->num_nextn_predict_layers == 0) {
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "spec: this model has no draft layers; only off is possible");
    }
    if (o->steps_ahead < 0 || o->steps_ahead > CORE__STEPS - 1) {
        return di_fail(error, DI_ERR_USAGE, "steps_ahead: %d, there are 0 and 1", o->steps_ahead);
    }
    return DI_OK;
}

/* The context may ask for logits of one row a sequence, of its drafts, and of some more for prompt
 * log-probabilities, which so go in smaller chunks: a row of logits has half a megabyte. */
di_context_options di_core_context_options(const di_config *config, const di_core_options *o) {
    enum { SCORING_ROWS = 32 };
    di_context_options context = di_context_options_defaults(config);
    int64_t each = o->spec == DI_SPEC_OFF ? 1 : 1 + config->dspark_block_size;
    context.n_slots = o->max_batch;
    context.max_context = o->max_context;
    context.max_rows = o->max_rows;
    context.max_out = (int32_t)core__smaller(o->max_rows, o->max_batch * each + SCORING_ROWS);
    context.penalties = true;
    context.replay = true;
    context.drafts = o->spec != DI_SPEC_OFF;
    context.reject = context.drafts && o->reject;
    context.n_pages = o->n_pages;
    return context;
}

static di_status create_context(di_core *core, di_error *error) {
    di_core_options *o = &core->options;
    if (o->n_pages == 0) {
        int64_t n = (int64_t)o->max_batch * core__pages_for(o->max_context);
        if (n > 1 << 28) {
            return di_fail(error, DI_ERR_USAGE,
                           "n_pages: %d contexts of %lld tokens are too much; say how many pages",
                           o->max_batch, (long long)o->max_context);
        }
        o->n_pages = (int32_t)n;
    }
    di_context_options options = di_core_context_options(core->config, o);
    core->max_out = options.max_out;
    options.max_bytes = o->max_bytes;
    DI_TRY(di_context_create(core->model, &options, &core->context, error));
    if (o->replay == DI_REPLAY_EXACT) return DI_OK;
    return di_context_cut(core->context, 0, 0, error); /* refused where the model has no cut */
}

static bool take_step(di_core *core, core__step *step) {
    size_t batch = (size_t)core->options.max_batch, outs = (size_t)core->max_out;
    size_t block = (size_t)core->config->dspark_block_size;
    bool ok = true;
    step->blocks = core__take(batch, sizeof *step->blocks, &ok);
    step->outs = core__take(outs, sizeof *step->outs, &ok);
    step->columns = core__take(batch, sizeof *step->columns, &ok);
    step->allowed = core__take(batch, sizeof *step->allowed, &ok);
    step->first = core__take(batch, sizeof *step->first, &ok);
    step->results.block_rows = core__take(batch, sizeof *step->results.block_rows, &ok);
    step->results.tokens = core__take(outs, sizeof *step->results.tokens, &ok);
    step->results.logprobs = core__take(outs, sizeof *step->results.logprobs, &ok);
    step->confidence = core__take(outs, sizeof *step->confidence, &ok);
    step->drafts = core__take(outs, sizeof *step->drafts, &ok);
    step->own_confidence = core__take(batch * block + 1, sizeof *step->own_confidence, &ok);
    return ok;
}

static void free_step(core__step *step) {
    free(step->blocks);
    free(step->outs);
    free(step->columns);
    free(step->first);
    free(step->results.block_rows);
    free(step->results.tokens);
    free(step->results.logprobs);
    free(step->allowed);
    free(step->confidence);
    free(step->drafts);
    free(step->own_confidence);
}

static di_status take_memory(di_core *core, di_error *error) {
    size_t batch = (size_t)core->options.max_batch, outs = (size_t)core->max_out;
    size_t words = (size_t)core__vocab_words(core), vocab = (size_t)core->config->vocab_size;
    size_t block = (size_t)core->config->dspark_block_size;
    bool ok = true;
    core->slots = core__take(batch, sizeof *core->slots, &ok);
    core->order = core__take(batch, sizeof(core__sequence *), &ok);
    core->rows = core__take((size_t)core->options.max_rows, sizeof *core->rows, &ok);
    core->out_rows = core__take(outs, sizeof *core->out_rows, &ok);
    core->blocks = core__take(batch, sizeof *core->blocks, &ok);
    core->params = core__take(outs, sizeof *core->params, &ok);
    core->draft_params = core__take(batch, sizeof *core->draft_params, &ok);
    core->draft_slots = core__take(batch, sizeof *core->draft_slots, &ok);
    core->forced = core__take(outs, sizeof *core->forced, &ok);
    core->own = core__take(batch * block + 1, sizeof *core->own, &ok);
    core->biases = core__take(CORE__MAX_BIASES, sizeof *core->biases, &ok);
    core->masks = core__take((2 + CORE__MAX_MASKS) * words, sizeof *core->masks, &ok);
    core->logits = core__take(outs * vocab, sizeof *core->logits, &ok);
    core->fork_bytes = core__take(1, (size_t)di_context_snapshot_bytes(core->context), &ok);
    for (int32_t i = 0; i < CORE__STEPS; i++) ok = take_step(core, &core->steps[i]) && ok;
    if (!ok) return di_fail(error, DI_ERR_MEMORY, "out of memory: the engine's buffers");
    memset(core->masks, 0xFF, words * sizeof *core->masks);
    core->last_end = NAN;
    di_ahead_init(&core->ahead);
    for (size_t i = 0; i < batch; i++) {
        int32_t max_pages = core__pages_for(core->options.max_context);
        DI_TRY(di_kv_sequence_init(&core->slots[i].pages, max_pages, error));
    }
    DI_TRY(core__spec_init(core, error));
    DI_TRY(core__snapshots_init(core, error));
    return core->options.profile_steps ? core__spec_profile(core, error) : DI_OK;
}

di_status di_core_create(di_model *model, const di_core_options *options,
                         const di_kv_name *fingerprint, const char *numerics, const char *kernels,
                         di_core **out, di_error *error) {
    *out = NULL;
    DI_TRY(check_options(di_model_config(model), options, error));
    di_core *core = calloc(1, sizeof *core);
    if (!core) return di_fail(error, DI_ERR_MEMORY, "out of memory: engine");
    core->model = model;
    core->config = di_model_config(model);
    core->options = *options;
    core->fingerprint = *fingerprint;
    snprintf(core->numerics, sizeof core->numerics, "%s", numerics);
    snprintf(core->kernels, sizeof core->kernels, "%s", kernels);
    di_status status;
    DI_TRY_DONE(create_context(core, error));
    DI_TRY_DONE(di_kv_create(core->options.n_pages, core->options.prefix_cache, &core->kv, error));
    core->max_tokens_held =
        core__smaller(core->options.max_context, (int64_t)core->options.n_pages * DI_PAGE_TOKENS);
    status = take_memory(core, error);
done:
    if (status != DI_OK) {
        di_core_destroy(core);
        return status;
    }
    *out = core;
    return DI_OK;
}

static void release_slots(di_core *core) {
    if (!core->slots) return;
    for (int32_t i = 0; i < core->options.max_batch; i++) {
        if (core->slots[i].sequence) di_kv_release(core->kv, &core->slots[i].pages);
        di_kv_sequence_deinit(&core->slots[i].pages);
    }
}

static void free_requests(core__request *r) {
    for (core__request *after; r; r = after) {
        after = r->after;
        core__request_free(r);
    }
}

void di_core_destroy(di_core *core) {
    if (!core) return;
    release_slots(core);
    free_requests(core->first);
    free_requests(core->ended);
    di_context_destroy(core->context); /* waits: downloads may be on their way into what follows */
    core__snapshots_deinit(&core->snapshots);
    di_kv_destroy(core->kv);
    free(core->slots);
    free(core->order);
    free(core->rows);
    free(core->out_rows);
    free(core->blocks);
    free(core->params);
    free(core->draft_params);
    free(core->draft_slots);
    free(core->forced);
    free(core->own);
    free(core->biases);
    free(core->masks);
    free(core->logits);
    free(core->fork_bytes);
    for (int32_t i = 0; i < CORE__STEPS; i++) free_step(&core->steps[i]);
    core__spec_deinit(&core->spec);
    free(core);
}

void di_core_set_mask(di_core *core, const uint32_t *words) {
    memcpy(core->masks, words, (size_t)core__vocab_words(core) * sizeof *words);
}

void di_core_forget(di_core *core) {
    di_kv_forget(core->kv);
    core->snapshots.n = 0;
}

di_core_stats di_core_get_stats(const di_core *core) {
    di_core_stats stats = core->stats;
    stats.running = core->n_running;
    stats.waiting = core->n_open - core->n_running;
    stats.kv = di_kv_get_stats(core->kv);
    return stats;
}

void di_core_force_drafts(di_core *core, di_core_force force, void *user) {
    assert(core->options.steps_ahead == 0);
    core->force = force;
    core->force_user = user;
}

void di_core_force_ahead(di_core *core) { core->force_ahead = true; }

void di_core_preempt(di_core *core) { core->preempt_asked = true; }

di_status di_core_check(const di_core *core, di_error *error) {
    const di_kv_sequence **held = calloc((size_t)core->options.max_batch, sizeof *held);
    if (!held) return di_fail(error, DI_ERR_MEMORY, "out of memory: check");
    int32_t n = 0, n_waiting = 0;
    di_status status = DI_OK;
    for (int32_t i = 0; i < core->options.max_batch; i++) {
        const core__sequence *s = core->slots[i].sequence;
        if (!s) continue;
        held[n++] = &core->slots[i].pages;
        if (s->slot != i || s->state != CORE__RUNNING || s->n_done >= s->n_ids + 1 ||
            s->n_done != di_context_length(core->context, i)) {
            status = di_fail(error, DI_ERR_INVALID, "slot %d and its sequence disagree", i);
        }
    }
    for (const core__sequence *s = core->waiting.head; s; s = s->after, n_waiting++) {
        if (s->state != CORE__WAITING || s->slot != -1 ||
            (s->after && !core__goes_before(s, s->after))) {
            status = di_fail(error, DI_ERR_INVALID, "the waiting list is out of order");
        }
    }
    if (n != core->n_running || n_waiting != core->n_waiting) {
        status = di_fail(error, DI_ERR_INVALID, "%d run and %d wait, counted were %d and %d", n,
                         n_waiting, core->n_running, core->n_waiting);
    }
    if (status == DI_OK) status = di_kv_check(core->kv, held, n, error);
    free(held);
    return status;
}
