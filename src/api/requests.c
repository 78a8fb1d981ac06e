/* Many requests at once: the public face of the engine's core, and how it is opened.
 *
 * The core knows requests by their ids and calls back with its own structs; a small record of each
 * request, freed with its last choice, turns them into the public ones.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/api_internal.h"
#include "engine/spec_calibrate.h"
#include "engine/spec_cost.h"
#include "kernels/queue.h"

/* ---- Opening ---- */

/* The number of a name in a list; `what` and the list are named in the message. */
static di_status read_name(const char *what, const char *name, const char *const *names, int n,
                           int *out, di_error *error) {
    char all[64] = "";
    for (int i = 0; i < n; i++) {
        if (name && strcmp(name, names[i]) == 0) {
            *out = i;
            return DI_OK;
        }
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", names[i]);
    }
    return di_fail(error, DI_ERR_USAGE, "%s '%.40s' is unknown; there are %s", what,
                   name ? name : "NULL", all);
}

static di_status read_replay(const char *name, di_replay *out, di_error *error) {
    static const char *const names[] = {[DI_REPLAY_EXACT] = "exact",
                                        [DI_REPLAY_STABLE] = "stable",
                                        [DI_REPLAY_BOUNDED] = "bounded"};
    int i;
    DI_TRY(read_name("replay", name, names, 3, &i, error));
    *out = (di_replay)i;
    return DI_OK;
}

/* spec NULL leaves the default. */
static di_status read_spec(const di_engine_options *o, di_core_options *out, di_error *error) {
    static const char *const modes[] =
        {[DI_SPEC_OFF] = "off", [DI_SPEC_FIXED] = "fixed", [DI_SPEC_SCHEDULED] = "scheduled"};
    static const char *const laws[] = {"coupled", "reject"};
    int mode = (int)out->spec, law;
    if (o->spec) DI_TRY(read_name("spec", o->spec, modes, 3, &mode, error));
    DI_TRY(read_name("spec_sampling", o->spec_sampling, laws, 2, &law, error));
    out->spec = (di_spec_mode)mode;
    out->reject = law == 1;
    out->profile_steps = o->profile_steps;
    out->steps_ahead = o->steps_ahead;
    return DI_OK;
}

di_status di_engine_core_options(const di_engine_options *o, const di_config *config,
                                 di_core_options *out, di_error *error) {
    *out = di_core_options_defaults(config);
    out->max_batch = o->max_batch;
    out->max_rows = o->chunk > o->max_batch ? o->chunk : o->max_batch;
    if (o->context > 0) out->max_context = o->context;
    out->prefix_cache = o->prefix_cache;
    out->window_cache_bytes = o->window_cache;
    int64_t pages = (out->max_context + DI_PAGE_TOKENS - 1) / DI_PAGE_TOKENS * o->max_batch;
    out->n_pages = pages < 1 << 28 ? (int32_t)pages : 1 << 28;
    DI_TRY(read_spec(o, out, error));
    return read_replay(o->replay, &out->replay, error);
}

/* What requests take of the host beside the context: snapshots, one of them for forks; logits, whatever
 * they are read for; what is learnt of steps and drafts; and the queue. */
static uint64_t host_bytes(const di_backend *backend, const di_config *config,
                           const di_core_options *o, const di_context_options *context) {
    const uint64_t most = UINT64_C(1) << 60; /* so that no sum overflows */
    di_context_bytes state = di_context_plan(config, backend, context);
    uint64_t windows = (state.windows + state.rings) / (uint64_t)context->n_slots;
    uint64_t host = (windows < most ? windows : most) + (uint64_t)di_config_page_bytes(config);
    if (o->prefix_cache) host += o->window_cache_bytes < most ? o->window_cache_bytes : most;
    host += (uint64_t)context->max_out * (uint64_t)config->vocab_size * sizeof(float);
    host += sizeof(di_spec_cost);
    if (context->drafts) host += sizeof(di_spec_cost) + sizeof(di_spec_calibration);
    return backend->device ? host : host + DI_QUEUE_RING_BYTES;
}

/* Where memory is bounded, the pool has the pages of all contexts, or of half of them and so on, but
 * of one at least, beside what the host takes. */
static di_status divide(di_engine *engine, const char *directory, const di_config *config,
                        di_core_options *o, di_error *error) {
    di_context_options context = di_core_context_options(config, o);
    DI_TRY(di_engine_share_layers(engine, config, &context, error));
    uint64_t host = host_bytes(engine->backend, config, o, &context);
    if (engine->host) host += di_context_plan_host(config, engine->backend, engine->host, &context);
    int32_t least = (int32_t)((o->max_context + DI_PAGE_TOKENS - 1) / DI_PAGE_TOKENS);
    for (;;) {
        di_status status =
            di_engine_divide_memory(directory, config, engine->backend, engine->device_layers,
                                    &engine->options, &context, host, &engine->memory, error);
        if (status != DI_ERR_MEMORY || o->n_pages <= least) return status;
        o->n_pages = o->n_pages / 2 > least ? o->n_pages / 2 : least;
        context.n_pages = o->n_pages;
    }
}

di_status di_engine_open_core(di_engine *engine, const char *directory, const di_config *config,
                              const di_model_options *model, di_error *error) {
    di_core_options options;
    di_model_options model_options = *model;
    di_kv_name fingerprint;
    DI_TRY(di_engine_core_options(&engine->options, config, &options, error));
    DI_TRY(divide(engine, directory, config, &options, error));
    options.max_bytes = engine->memory.max_bytes;
    if (options.steps_ahead < 0) options.steps_ahead = engine->backend->device ? 1 : 0;
    model_options.release_layers = engine->memory.release_layers;
    model_options.host = engine->host;
    model_options.device_layers = engine->device_layers;
    DI_TRY(di_model_open(directory, engine->backend, &model_options, &engine->model, error));
    DI_TRY(di_kv_fingerprint(directory, di_model_checkpoint(engine->model), &fingerprint, error));
    di_context_options context = di_core_context_options(config, &options);
    engine->info.context = context.max_context;
    engine->info.state_bytes = di_context_plan(config, engine->backend, &context).total;
    char kernels[32]; /* bits depend on who computes what */
    snprintf(kernels, sizeof kernels, "%s", engine->backend->name);
    if (engine->host)
        snprintf(kernels, sizeof kernels, "%s cpu %d", engine->backend->name,
                 (int)engine->device_layers);
    return di_core_create(engine->model, &options, &fingerprint, engine->options.numerics, kernels,
                          &engine->core, error);
}

/* ---- Requests ---- */

typedef struct di_request_record {
    struct di_request_record *before, *after; /* engine->records */
    di_engine *engine;
    void *user;
    bool (*on_token)(void *user, const di_request_token *token);
    void (*on_end)(void *user, const di_request_end *end);
    bool (*on_prompt)(void *user, int64_t done, int64_t total);
    void (*mask)(void *user, int32_t choice, uint32_t *words);
    int32_t (*mask_drafts)(void *user, int32_t choice, const int32_t *drafts, int32_t n,
                           uint32_t *words);
    int32_t (*foresee)(void *user, int32_t choice, int32_t *ids, int32_t most);
    bool answers;   /* the prompt is read */
    int32_t n_open; /* choices */
} record;

static void add_record(record *r) {
    r->after = r->engine->records;
    if (r->after) r->after->before = r;
    r->engine->records = r;
}

static void drop_record(record *r) {
    if (r->after) r->after->before = r->before;
    if (r->before) {
        r->before->after = r->after;
    } else {
        r->engine->records = r->after;
    }
    free(r);
}

void di_engine_close_core(di_engine *engine) {
    di_core_destroy(engine->core);
    while (engine->records) drop_record(engine->records);
}

static bool on_token(void *user, const di_core_token *t) {
    record *r = user;
    r->answers = true;
    if (!r->on_token) return true;
    di_top_token top[DI_MAX_TOP_LOGPROBS];
    for (int32_t i = 0; i < t->n_top; i++) {
        top[i] = (di_top_token){t->top[i].id, t->top[i].logprob};
    }
    return r->on_token(r->user, &(di_request_token){.choice = t->choice,
                                                    .token = {t->id, t->logprob},
                                                    .top = top,
                                                    .n_top = t->n_top});
}

static void mask(void *user, int32_t choice, uint32_t *words) {
    record *r = user;
    r->mask(r->user, choice, words);
}

static int32_t mask_drafts(void *user, int32_t choice, const int32_t *drafts, int32_t n,
                           uint32_t *words) {
    record *r = user;
    return r->mask_drafts(r->user, choice, drafts, n, words);
}

static int32_t foresee(void *user, int32_t choice, int32_t *ids, int32_t most) {
    record *r = user;
    return r->foresee(r->user, choice, ids, most);
}

static void on_end(void *user, const di_core_result *result) {
    static const di_end ends[] = {[DI_FINISH_STOP] = DI_END_STOP,
                                  [DI_FINISH_LENGTH] = DI_END_LENGTH,
                                  [DI_FINISH_CANCELLED] = DI_END_CANCELLED,
                                  [DI_FINISH_ERROR] = DI_END_FAILED};
    record *r = user;
    if (r->on_end) {
        r->on_end(r->user, &(di_request_end){.choice = result->choice,
                                             .end = ends[result->finish],
                                             .n_prompt = result->n_prompt,
                                             .n_cached = result->n_cached,
                                             .n_found = result->n_found,
                                             .n_accepted = result->n_accepted,
                                             .message = result->message});
    }
    if (--r->n_open == 0) drop_record(r);
}

static di_status need_core(const di_engine *engine, di_error *error) {
    if (engine->core) return DI_OK;
    return di_fail(error, DI_ERR_USAGE, "the engine serves sequences; open it with max_batch");
}

static di_status submit(di_engine *engine, const di_request *request, record *r, uint64_t *id,
                        di_error *error) {
    const di_sampling *s = &request->sampling;
    size_t n = (size_t)s->n_biases;
    di_logit_bias *biases = malloc((n + 1) * sizeof *biases);
    if (!biases) return di_fail(error, DI_ERR_MEMORY, "out of memory: logit biases");
    for (size_t i = 0; i < n; i++) {
        biases[i] = (di_logit_bias){s->biases[i].token, s->biases[i].value};
    }
    int64_t max_tokens = request->max_tokens;
    if (max_tokens == 0) max_tokens = engine->info.context;
    if (max_tokens == -1) max_tokens = 0;
    di_core_request inner = {.ids = request->ids,
                             .n_ids = (int64_t)request->n_ids,
                             .n_given = (int64_t)request->n_given,
                             .max_tokens = max_tokens,
                             .sampling = di_sampling_params(s, 0),
                             .biases = biases,
                             .n_biases = s->n_biases,
                             .n = request->n_choices,
                             .top_logprobs = request->top_logprobs,
                             .user = r,
                             .mask = request->mask ? mask : NULL,
                             .mask_drafts = request->mask_drafts ? mask_drafts : NULL,
                             .foresee = request->foresee ? foresee : NULL,
                             .on_token = on_token,
                             .on_end = on_end};
    di_status status = di_core_submit(engine->core, &inner, id, error);
    free(biases);
    return status;
}

di_status di_engine_submit(di_engine *engine, const di_request *request, uint64_t *id,
                           di_error *error) {
    uint64_t given;
    DI_TRY(need_core(engine, error));
    DI_TRY(di_sampling_check(&request->sampling, engine->info.vocab_size, error));
    if (request->max_tokens < (request->n_given > 0 ? -1 : 0)) {
        return di_fail(error, DI_ERR_USAGE, "max_tokens: %" PRId64 " is negative",
                       request->max_tokens);
    }
    if (request->n_given > request->n_ids) {
        return di_fail(error, DI_ERR_USAGE, "n_given: %zu of %zu tokens", request->n_given,
                       request->n_ids);
    }
    if (request->max_tokens == -1 && request->n_choices != 1) {
        return di_fail(error, DI_ERR_USAGE, "n_choices: %d, a request for given tokens has one",
                       request->n_choices);
    }
    if ((request->mask_drafts && !request->mask) || (request->foresee && !request->mask_drafts)) {
        return di_fail(error, DI_ERR_USAGE, "%s: only with %s",
                       request->mask_drafts ? "mask_drafts" : "foresee",
                       request->mask_drafts ? "mask" : "mask_drafts");
    }
    record *r = calloc(1, sizeof *r);
    if (!r) return di_fail(error, DI_ERR_MEMORY, "out of memory: request");
    *r = (record){.engine = engine,
                  .user = request->user,
                  .on_token = request->on_token,
                  .on_end = request->on_end,
                  .on_prompt = request->on_prompt,
                  .mask = request->mask,
                  .mask_drafts = request->mask_drafts,
                  .foresee = request->foresee,
                  .n_open = request->n_choices};
    di_status status = submit(engine, request, r, &given, error);
    if (status != DI_OK) {
        free(r);
        return status;
    }
    add_record(r);
    if (id) *id = given;
    return DI_OK;
}

bool di_engine_cancel(di_engine *engine, uint64_t id) {
    return engine->core && di_core_cancel(engine->core, id);
}

static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool on_prompt(void *user, int64_t done, int64_t total) {
    record *r = user;
    return !r->on_prompt || r->answers || r->on_prompt(r->user, done, total);
}

di_status di_engine_step(di_engine *engine, bool *busy, di_error *error) {
    DI_TRY(need_core(engine, error));
    double begin = thread_seconds();
    di_status status = di_core_step(engine->core, busy, error);
    engine->host_seconds += thread_seconds() - begin;
    if (status == DI_OK) di_core_tell_prompts(engine->core, on_prompt);
    return status;
}

void di_engine_trace(di_engine *engine, void (*told)(void *user, const di_step_trace *step),
                     void *user) {
    if (engine->core) di_core_trace(engine->core, told, user);
}

di_engine_stats di_engine_get_stats(const di_engine *engine) {
    if (!engine->core) return (di_engine_stats){0};
    di_core_stats s = di_core_get_stats(engine->core);
    return (di_engine_stats){.waiting = s.waiting,
                             .running = s.running,
                             .steps = s.steps,
                             .rows = s.rows,
                             .prompt_rows = s.prompt_rows,
                             .replayed_rows = s.replayed_rows,
                             .preemptions = s.preemptions,
                             .drafted = s.drafted,
                             .verified = s.verified,
                             .accepted = s.accepted,
                             .draft_blocks = s.draft_blocks,
                             .snapshots = s.snapshots,
                             .snapshot_hits = s.snapshot_hits,
                             .prompt_tokens = s.prompt_tokens,
                             .cached_tokens = s.cached_tokens,
                             .pages = s.kv.n_pages,
                             .pages_used = s.kv.n_private + s.kv.n_named,
                             .step_seconds = s.step_seconds,
                             .gap_seconds = s.gap_seconds,
                             .host_seconds = engine->host_seconds};
}

void di_engine_forget(di_engine *engine) {
    if (engine->core) di_core_forget(engine->core);
}
