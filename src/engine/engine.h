/* The engine: many requests at once through one model.
 *
 * Requests are submitted, wait, are admitted to a slot, and run in steps: every step is one ragged
 * forward pass over prompt chunks and decode rows of all running sequences (model.h), within a row
 * budget. Pages and the prefix index: kv.h. Results come through a callback, token by token.
 *
 * Determinism is the law: a request's tokens and log-probabilities are the same bits whatever else
 * runs, however it is chunked, pre-empted, or served from the cache in a mode that is exact about
 * it. One option breaks it, and says so: with `reject` a sampled answer depends on which drafts were
 * verified, which depends on time and company.
 *
 * One thread, the engine's, calls everything here; callbacks run on it. Memory is taken by create;
 * a step allocates nothing. A request that cannot be served is refused alone.
 */
#ifndef DI_ENGINE_ENGINE_H
#define DI_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/spec_schedule.h"
#include "kv/kv.h"
#include "model/model.h"

typedef struct di_core di_core;

/* How windows are rebuilt behind a prefix hit, and whether a prompt's head runs above the cut
 * (design: replay has three modes). */
typedef enum di_replay { DI_REPLAY_EXACT, DI_REPLAY_STABLE, DI_REPLAY_BOUNDED } di_replay;

typedef void (*di_core_force)(void *user, uint64_t request, int32_t choice, const int32_t *ids,
                              int64_t n_ids, int32_t *drafts);

typedef struct di_core_options {
    int32_t max_batch;   /* sequences that run at once; default 16 */
    int32_t max_rows;    /* rows of one step, prompt chunks and decode rows together; at least
                            max_batch; default 256 */
    int64_t max_context; /* tokens of one sequence; default min(config's, 32768) */
    int32_t n_pages;     /* pool, in pages of 64 tokens; 0: max_batch full contexts */
    bool prefix_cache;   /* default true */
    di_replay replay;    /* default exact: see README.md of this folder for why */
    uint64_t window_cache_bytes; /* host memory for window snapshots; default 256 MiB */
    uint64_t max_bytes;          /* what the context may take; 0: no bound */
    di_spec_mode spec;           /* default scheduled where the model has draft layers, else off */
    bool reject;         /* sampled drafts stand by rejection sampling, not when they are the
                            token that plain decoding samples: another sample of the same
                            distribution, not repeatable from the seed; default false */
    int32_t steps_ahead; /* 1: the next step is enqueued before one is read, where that pays
                            (step_ahead.h); 0 (default): always after */
    bool profile_steps;  /* create measures what steps cost */
} di_core_options;

di_core_options di_core_options_defaults(const di_config *config);

/* The context that a core with these options takes (n_pages as they say, not 0), max_bytes apart: for
 * plans of memory before there is a core. */
di_context_options di_core_context_options(const di_config *config, const di_core_options *options);

/* `fingerprint` (di_kv_fingerprint), `numerics` and `kernels` go into page names; all are copied.
 * The model must outlive the core. DI_ERR_USAGE, DI_ERR_MEMORY; DI_ERR_UNSUPPORTED when the model
 * has no cut and replay is not exact, when it has no draft layers and spec is not off, and when
 * contexts are too short for profile_steps. What fails on the device while that measures is an error
 * too. */
di_status di_core_create(di_model *model, const di_core_options *options,
                         const di_kv_name *fingerprint, const char *numerics, const char *kernels,
                         di_core **out, di_error *error);
void di_core_destroy(di_core *core); /* open requests end as cancelled, without callbacks */

typedef enum di_finish {
    DI_FINISH_STOP,   /* the end token, which is delivered and counted, or the callback said so */
    DI_FINISH_LENGTH, /* max_tokens or the context */
    DI_FINISH_CANCELLED, /* di_core_cancel */
    DI_FINISH_ERROR      /* its logits were not finite, ...: message in the result */
} di_finish;

typedef struct di_top_logprob {
    int32_t id;
    float logprob;
} di_top_logprob;

enum { DI_MAX_TOP_LOGPROBS = 20 };

/* One token of one choice, in order. Pointers are valid during the call. */
typedef struct di_core_token {
    uint64_t request;
    int32_t choice; /* 0 .. n - 1 */
    int64_t index;  /* of the answer, from 0; prompt log-probabilities: position - n_prompt, < 0 */
    int32_t id;
    float logprob;             /* of the raw logits; NAN at the first token of a prompt */
    const di_top_logprob *top; /* best first, n_top of them when asked for */
    int32_t n_top;
} di_core_token;

typedef struct di_core_result {
    uint64_t request;
    int32_t choice;
    di_finish finish;
    /* Tokens; n_cached: of the prompt, found in the cache and not run again, by the first choice.
     * n_found: those whose pages were found; rows of all of them may have had to run again for
     * their windows. n_answer: of the answer as far as it is known, given ones included, reported
     * or not. */
    int64_t n_prompt, n_cached, n_found, n_answer;
    int64_t n_accepted;  /* of the answer: drafts that stood */
    const char *message; /* DI_FINISH_ERROR */
} di_core_result;

typedef struct di_core_request {
    const int32_t *ids; /* n_ids >= 1, copied */
    int64_t n_ids;
    int64_t n_given; /* the last n_given <= n_ids of ids are the beginning of the answer: choice 0
                        reports them with their log-probabilities as it does those it samples */
    int64_t max_tokens; /* sampled per choice, cut to what the context leaves; >= 1, or 0 with
                           n_given > 0 and n 1 */
    di_sample_params sampling;   /* slot, bias and mask fields are filled by the engine */
    const di_logit_bias *biases; /* n_biases, copied */
    int32_t n_biases;
    int32_t
        n; /* choices; the seed of choice i is hash(seed, i), that of choice 0 the seed itself */
    int32_t top_logprobs;  /* 0 .. DI_MAX_TOP_LOGPROBS */
    bool prompt_logprobs;  /* with choice 0; takes the exact path: nothing is found, nothing cut */
    bool ignore_end_token; /* do not stop at config's eos_token_id */
    int32_t priority;      /* higher goes first; equal ones in order of arrival */
    const void *salt;      /* tenant, salt_bytes, copied */
    uint64_t salt_bytes;
    void *user;
    /* Which tokens may come next: ceil(V / 32) words, bit set: allowed, all to be written; called while
     * a step is built, when every token before was given to on_token. A request with a mask sits out
     * the steps that are enqueued before its results are read. NULL: any. */
    void (*mask)(void *user, int32_t choice, uint32_t *words);
    /* The same for a block: writes the mask before the first of n drafts and those behind each of them,
     * one after the other, as far as the drafts may come, and returns how many these are: one less than
     * there are masks. Drafts that may not come are no failure. NULL with a mask: no drafts. */
    int32_t (*mask_drafts)(void *user, int32_t choice, const int32_t *drafts, int32_t n,
                           uint32_t *words);
    /* What must come next, as far as that is known: up to `most` ids, and returns how many. They are
     * verified as drafts are, so a wrong guess costs its row and nothing else. Called while a step is
     * planned, as often as that takes. NULL: nothing is known. */
    int32_t (*foresee)(void *user, int32_t choice, int32_t *ids, int32_t most);
    /* false: this choice ends here (DI_FINISH_STOP), the token counts. Must not call the core, but
     * for di_core_cancel. May be NULL. */
    bool (*on_token)(void *user, const di_core_token *token);
    /* Once a choice, the last call for it. May submit and cancel, but not step. May be NULL. */
    void (*on_end)(void *user, const di_core_result *result);
} di_core_request;

/* Checks and queues. DI_ERR_USAGE naming the field, DI_ERR_LIMIT when prompt and one token can
 * never fit the context or the pool. *id > 0. */
di_status di_core_submit(di_core *core, const di_core_request *request, uint64_t *id,
                         di_error *error);
/* Ends all choices of a request; on_end comes before this returns or, called from a callback,
 * before di_core_step returns. False: no such request (any more). */
bool di_core_cancel(di_core *core, uint64_t id);

/* Calls `tell` for every request whose first choice runs, with the request's user: how far the rows
 * of its known tokens are, computed, and all, without those that were found in the cache. False: the
 * request is cancelled, and has ended when this returns. Between steps; takes max_batch of time. */
typedef bool (*di_core_prompt_fn)(void *user, int64_t done, int64_t total);
void di_core_tell_prompts(di_core *core, di_core_prompt_fn tell);

/* Never-sampled ids: a mask of ceil(V / 32) words, bit set: allowed; copied. Default: all allowed.
 */
void di_core_set_mask(di_core *core, const uint32_t *words);

/* One step: admits, builds, runs, delivers. *busy false: nothing is left to do. An error is the
 * engine's own (device lost); requests then end with DI_FINISH_ERROR. */
di_status di_core_step(di_core *core, bool *busy, di_error *error);
/* Steps until nothing is left or *stop becomes true. */
di_status di_core_run(di_core *core, const volatile bool *stop, di_error *error);

typedef struct di_core_stats {
    int64_t waiting, running;          /* choices */
    uint64_t steps, rows, prompt_rows; /* since create */
    uint64_t replayed_rows, preemptions;
    uint64_t snapshots, snapshot_hits;
    uint64_t prompt_tokens, cached_tokens; /* of prompts that were admitted; of those, found */
    uint64_t drafted, verified, accepted;  /* draft tokens; the first two when enqueued, accepted
                                              when read */
    uint64_t draft_blocks;                 /* blocks that verified some */
    double step_seconds;                   /* the device computed steps; */
    double gap_seconds;                    /* it waited for the next, while there was work */
    di_kv_stats kv;
} di_core_stats;
di_core_stats di_core_get_stats(const di_core *core);

/* See di_engine_trace. Between steps. */
void di_core_trace(di_core *core, void (*told)(void *user, const di_step_trace *step), void *user);

/* Forgets cached pages and snapshots: a cold start without a new core. Between steps. */
void di_core_forget(di_core *core);

/* The seed of choice i of a request with this seed. Any thread. */
uint64_t di_core_seed(uint64_t seed, int32_t choice);

/* Tests: other drafts in place of the model's, of choice of request with these n_ids tokens;
 * drafts [block] are the model's own before. Needs steps_ahead 0: else the host knows the tokens
 * too late. */
void di_core_force_drafts(di_core *core, di_core_force force, void *user);

/* Tests: with steps_ahead 1, always ahead. */
void di_core_force_ahead(di_core *core);

/* Tests: forces a pre-emption of a running sequence before the next step, the one that would be
 * chosen. */
void di_core_preempt(di_core *core);
/* Tests and debug builds: every invariant of README.md, those of kv included. DI_ERR_INVALID says
 * which is broken. Between steps only. Allocates. */
di_status di_core_check(const di_core *core, di_error *error);

#endif
