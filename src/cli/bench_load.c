/* Engines and requests of bench: opened for a scenario, loaded, timed. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/philox.h"
#include "cli/bench.h"
#include "cli/engine_args.h"
#include "cli/terminal.h"

/* ---- Engines ---- */

di_bench_engine di_bench_engine_defaults(int64_t max_batch, int64_t context) {
    return (di_bench_engine){.max_batch = max_batch,
                             .context = context,
                             .window = -1,
                             .steps_ahead = -1};
}

di_status di_bench_open(di_bench *b, const di_bench_engine *settings, di_engine **out,
                        di_error *error) {
    di_engine_options o;
    *out = NULL;
    di_args_engine_options(b->args, &b->loading, &o);
    o.backend = b->backend;
    o.max_batch = (int32_t)settings->max_batch;
    if (!di_args_given(b->args, DI_OPT_CONTEXT)) {
        o.context = settings->context;
    } else if (o.context < settings->context) {
        return di_fail(error, DI_ERR_USAGE,
                       "--context %" PRId64 ": this measurement needs %" PRId64
                       " tokens; allow more, or give shorter --prompt-tokens",
                       o.context, settings->context);
    }
    if (settings->replay) o.replay = settings->replay;
    if (settings->window >= 0) o.window_cache = (uint64_t)settings->window;
    if (settings->chunk > 0) o.chunk = (int32_t)settings->chunk;
    if (settings->spec) {
        o.spec = settings->spec;
    } else if (!settings->default_spec && !di_args_given(b->args, DI_OPT_SPEC)) {
        o.spec = "off";
    }
    if (settings->sampled) o.spec_sampling = settings->sampled;
    if (settings->steps_ahead >= 0) o.steps_ahead = settings->steps_ahead;
    di_bench_note_end(b);
    di_status status = di_engine_open(b->directory, &o, out, error);
    di_progress_end(&b->loading);
    return status;
}

/* ---- Prompts ---- */

/* From the middle of the vocabulary, where no special tokens are. */
void di_bench_prompt(const di_bench *b, uint64_t key, int64_t n, int32_t *ids) {
    uint32_t words[4], from = (uint32_t)b->config.vocab_size / 8;
    for (int64_t i = 0; i < n; i++) {
        if (i % 4 == 0) di_philox(b->seed, (uint64_t)i, key, words);
        ids[i] = (int32_t)(from + words[i % 4] % (from * 4 + 1));
    }
}

di_status di_bench_prompt_make(const di_bench *b, uint64_t key, int64_t n, int32_t **ids,
                               di_error *error) {
    *ids = malloc((size_t)n * sizeof **ids);
    if (!*ids) return di_fail(error, DI_ERR_MEMORY, "out of memory: a prompt");
    di_bench_prompt(b, key, n, *ids);
    return DI_OK;
}

/* ---- Requests ---- */

static bool on_token(void *user, const di_request_token *token) {
    di_bench_request *r = user;
    r->last = di_seconds();
    if (r->n_tokens == 0) r->first = r->last;
    if (r->times && r->n_tokens < r->max_tokens) r->times[r->n_tokens] = r->last;
    r->n_tokens++;
    r->digest = (r->digest ^ (uint64_t)(uint32_t)token->token.id) * UINT64_C(0x100000001b3);
    return true;
}

static void on_end(void *user, const di_request_end *end) {
    di_bench_request *r = user;
    r->running = false;
    r->n_cached = end->n_cached;
    r->failed = end->end == DI_END_FAILED;
    if (r->failed) snprintf(r->message, sizeof r->message, "%s", end->message);
}

di_status di_bench_submit(di_bench *b, di_engine *engine, di_bench_request *request,
                          di_error *error) {
    int32_t eos = di_engine_get_info(engine).eos_token;
    di_token_bias never = {eos, -1000};
    di_sampling sampling = di_engine_sampling(engine);
    if (request->temperature >= 0) sampling.temperature = request->temperature;
    sampling.seed = request->seed;
    if (request->sampling) sampling = *request->sampling;
    if (!request->may_end && eos >= 0) {
        sampling.biases = &never;
        sampling.n_biases = 1;
    }
    di_request r = {.ids = request->ids,
                    .n_ids = (size_t)request->n_ids,
                    .max_tokens = request->max_tokens,
                    .sampling = sampling,
                    .n_choices = 1,
                    .top_logprobs = request->top_logprobs,
                    .user = request,
                    .on_token = on_token,
                    .on_end = on_end};
    (void)b;
    request->n_tokens = request->n_cached = 0;
    request->first = request->last = NAN;
    request->digest = 0;
    request->running = true;
    request->failed = false;
    request->begin = di_seconds();
    return di_engine_submit(engine, &r, &request->id, error);
}

di_status di_bench_check(const di_bench_request *request, di_error *error) {
    if (!request->failed) return DI_OK;
    return di_fail(error, DI_ERR_INVALID, "a request failed: %s", request->message);
}

di_status di_bench_step(di_engine *engine, bool *busy, di_error *error) {
    if (di_interrupt_seen()) return di_fail(error, DI_ERR_CANCELLED, "interrupted");
    return di_engine_step(engine, busy, error);
}

di_status di_bench_drain(di_engine *engine, di_error *error) {
    bool busy = true;
    while (busy) DI_TRY(di_bench_step(engine, &busy, error));
    return DI_OK;
}

di_status di_bench_first_token(di_bench *b, di_engine *engine, const int32_t *ids, int64_t n,
                               double *seconds, int64_t *n_cached, di_error *error) {
    di_bench_request r = {.ids = ids, .n_ids = n, .max_tokens = 1};
    DI_TRY(di_bench_submit(b, engine, &r, error));
    di_status status = di_bench_drain(engine, error);
    if (status != DI_OK) {
        di_engine_cancel(engine, r.id); /* r ends here */
        return status;
    }
    DI_TRY(di_bench_check(&r, error));
    *seconds = r.first - r.begin;
    if (n_cached) *n_cached = r.n_cached;
    return DI_OK;
}

/* ---- Crowds ---- */

static int64_t chunk_of(const di_bench *b) { return di_args_int(b->args, DI_OPT_CHUNK); }

/* While the last prompts are read, the first ones decode: every step reads at least half a chunk of
 * prompts, or a row for each that reads. With drafts a step may give a block of tokens. */
int64_t di_bench_crowd_room(const di_bench *b, int64_t n, int64_t prompt, int64_t steps) {
    const char *spec = di_args_text(b->args, DI_OPT_SPEC);
    int64_t each = spec && strcmp(spec, "off") != 0 ? b->config.dspark_block_size + 1 : 1;
    return each * (steps + 2 * n * prompt / chunk_of(b) + 2 * n + 64);
}

di_status di_bench_crowd_start(di_bench *b, di_bench_crowd *crowd, di_engine *engine, int64_t n,
                               int64_t length, di_error *error) {
    bool busy, all = false;
    *crowd = (di_bench_crowd){.engine = engine, .n = n};
    crowd->requests = calloc((size_t)n, sizeof *crowd->requests);
    if (!crowd->requests) return di_fail(error, DI_ERR_MEMORY, "out of memory: requests");
    DI_TRY(di_bench_prompt_make(b, UINT64_C(1) << 32, n * length, &crowd->ids, error));
    for (int64_t i = 0; i < n; i++) {
        crowd->requests[i] = (di_bench_request){.ids = crowd->ids + i * length, .n_ids = length};
        DI_TRY(di_bench_submit(b, engine, &crowd->requests[i], error));
    }
    while (!all) {
        DI_TRY(di_bench_step(engine, &busy, error));
        all = true;
        for (int64_t i = 0; i < n; i++) all = all && crowd->requests[i].n_tokens > 0;
        if (!busy && !all) return di_bench_check(&crowd->requests[0], error);
    }
    return DI_OK;
}

static di_status check_crowd(const di_bench_crowd *crowd, di_error *error) {
    for (int64_t i = 0; i < crowd->n; i++) {
        DI_TRY(di_bench_check(&crowd->requests[i], error));
        if (crowd->requests[i].running) continue;
        return di_fail(error, DI_ERR_LIMIT,
                       "the context is full before the measurement ends; give shorter "
                       "--prompt-tokens");
    }
    return DI_OK;
}

static int64_t tokens_of(const di_bench_crowd *crowd) {
    int64_t n = 0;
    for (int64_t i = 0; i < crowd->n; i++) n += crowd->requests[i].n_tokens;
    return n;
}

di_status di_bench_crowd_steps(di_bench_crowd *crowd, int n_steps, double *seconds, double *tokens,
                               di_error *error) {
    bool busy;
    DI_TRY(di_bench_step(crowd->engine, &busy, error));
    int64_t before = tokens_of(crowd);
    double begin = di_seconds();
    for (int i = 0; i < n_steps; i++) DI_TRY(di_bench_step(crowd->engine, &busy, error));
    *seconds = (di_seconds() - begin) / n_steps;
    if (tokens) *tokens = (double)(tokens_of(crowd) - before) / n_steps;
    return check_crowd(crowd, error);
}

void di_bench_settle(double step_seconds) {
    double wait = 2 * step_seconds;
    struct timespec t = {.tv_sec = (time_t)wait, .tv_nsec = (long)((wait - floor(wait)) * 1e9)};
    nanosleep(&t, NULL);
}

void di_bench_crowd_end(di_bench_crowd *crowd) {
    di_error ignored;
    bool busy = true;
    for (int64_t i = 0; crowd->requests && i < crowd->n; i++) {
        if (crowd->requests[i].running) di_engine_cancel(crowd->engine, crowd->requests[i].id);
    }
    while (busy && crowd->engine && di_engine_step(crowd->engine, &busy, &ignored) == DI_OK) {
    }
    free(crowd->requests);
    free(crowd->ids);
    *crowd = (di_bench_crowd){0};
}
