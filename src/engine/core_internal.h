/* What the files of engine/ share. Not for other folders: they include engine.h. */
#ifndef DI_ENGINE_CORE_INTERNAL_H
#define DI_ENGINE_CORE_INTERNAL_H

#include <assert.h>
#include <stdlib.h>

#include "base/arena.h"
#include "engine/engine.h"
#include "engine/spec_calibrate.h"
#include "engine/spec_cost.h"
#include "engine/spec_schedule.h"
#include "engine/step_ahead.h"

typedef struct core__request core__request;
typedef struct core__sequence core__sequence;

typedef enum core__state {
    CORE__HELD,    /* a further choice whose prompt the first choice is computing */
    CORE__WAITING, /* in the waiting list; holds nothing but its tokens */
    CORE__RUNNING, /* has a slot and pages */
    CORE__DONE     /* on_end was or is being called; only its request is left */
} core__state;

/* One choice of a request: prompt and answer so far. The tokens alone determine what follows (with
 * seed and sampling), so a sequence that loses its slot loses nothing but time.
 *
 * In a slot it first runs the rows of the tokens it has; the last of them samples. From then on it
 * decodes: each step gives it a block (model.h), whose first row is the token that the device
 * sampled last and whose results are read later. n_done counts what is settled. */
struct core__sequence {
    core__request *request;
    core__sequence *before, *after; /* in the waiting list */
    core__state state;
    int32_t choice, slot; /* slot -1 unless running */
    uint64_t seed;
    di_spec_law law;
    int32_t *ids;      /* [max_ids], the sampled ones included */
    int64_t n_ids;     /* of which the last is never computed ahead: its row samples what follows */
    int64_t max_ids;   /* prompt + max_tokens */
    int64_t n_done;    /* tokens in the slot that are settled; 0 unless running */
    int64_t n_high;    /* the largest n_done so far: what is below it has been computed once */
    int64_t n_scored;  /* tokens whose log-probability was delivered, or was not asked for */
    di_kv_name *names; /* of the whole pages of ids, by the plain chain, the first n_names known */
    int32_t n_names;

    /* While it runs: */
    uint32_t stay;        /* counts its stays in slots: results of an earlier one are nobody's */
    bool decoding;        /* the rows of all its tokens are enqueued */
    int32_t n_unread;     /* enqueued steps that will give it a token, at least, each */
    double *survival;     /* [block]: what its drafts promise, or those of others */
    int32_t survival_age; /* steps since it had drafts, this one included; 0: it had none */
    int64_t n_accepted;   /* drafts that stand in the answer */

    int32_t n_rows; /* in the step that is being built: of its tokens */
    bool takes;     /* there is room for its biases and its mask; else it sits the step out */
    bool block;     /* or its block, */
    int32_t most;   /* with so many drafts at most, */
    int32_t n_sure; /* of which so many are known already (core_masked.c) */
    bool drafts;    /* what it drafts in this step is for a later one */

    /* The draft pass whose drafts stand behind its tokens, when the host is to see them: step `drafted_in`
     * - 1 as statistics count them, 0: none; and its column there. */
    uint64_t drafted_in;
    int32_t drafted_at;
};

/* Allocated in its own arena with everything that hangs on it; freed when all choices are done. */
struct core__request {
    core__request *before, *after; /* in order of arrival */
    di_arena arena;
    uint64_t id;
    di_core_request given; /* biases copied; ids and salt not kept */
    di_kv_name root;
    int64_t n_prompt;
    int64_t n_known;  /* tokens that were submitted: the prompt and what is given of the answer */
    int64_t cut;      /* rows below it run below the decoder-side cut only; 0: no cut */
    int64_t n_cached; /* of the first admission, -1 before */
    int64_t n_found;  /* then: tokens whose pages were there */
    int32_t n_open;   /* choices that are not done */
    int32_t n_flying; /* mentions in steps that were not read */
    bool forked;      /* the prompt was computed, its choices go their own ways */
    bool cancelled;
    core__sequence *sequences; /* [given.n] */
};

typedef struct core__list {
    core__sequence *head, *tail;
} core__list;

typedef struct core__slot {
    core__sequence *sequence; /* NULL: free */
    di_kv_sequence pages;
} core__slot;

/* ---- A step, from its building until its results are read ---- */

/* Whose results they are: nobody's when the sequence has left the slot since. */
typedef struct core__owner {
    core__sequence *sequence;
    uint32_t stay;
} core__owner;

/* Why a row of a prompt asked for its logits. */
typedef struct core__out {
    core__owner owner;
    int64_t position;
    bool samples; /* else only the log-probability of the next token, which is known, is wanted */
} core__out;

typedef struct core__step {
    int32_t n_rows, n_prompt_rows, n_blocks, n_verified, n_outs, n_drafted;
    int32_t n_params;    /* of its blocks, at most, while it is built */
    int32_t n_own;       /* the last of the blocks: those of sequences with masks (core_masked.c) */
    core__owner *blocks; /* [max_batch]; their results come first */
    core__out *outs;     /* [max_out]; then these */
    int32_t *columns;    /* [max_batch]: where a block's drafts stand, -1: it has none */
    int32_t *
        allowed; /* [max_batch]: drafts of a block that its masks let pass, all: the block's size */
    core__owner *first; /* [max_batch]: whose first token has no log-probability */
    int32_t n_first;
    bool wants_logits;
    bool alone;      /* nothing was in flight when it was enqueued */
    int32_t n_ended; /* sequences that ended in it before their max_tokens */
    int32_t context_class;
    di_fetch results;  /* [max_batch], [max_out] */
    float *confidence; /* [block][n_drafted] */
    bool seen;         /* the host is to see what was drafted: */
    int32_t *drafts;   /* [block][n_drafted], there when the stream has come to draft_mark */
    uint64_t draft_mark;
    float *own_confidence; /* [max_batch][block]: of the last n_own blocks, block by block */
    /* Seconds of the stream: before all, before the drafts, behind them, after all. */
    double begin, ready, middle, end;
    uint64_t mark;
    di_step_trace trace; /* the host's times, when somebody wants them */
} core__step;

enum { CORE__STEPS = 2 };

/* ---- Speculation (core_spec.c) ---- */

typedef struct core__spec {
    int32_t block; /* drafts of a sequence; 0: off, and there is `verify` only */
    di_spec_calibration *calibration;
    di_spec_cost *verify, *draft; /* by rows of the step; by sequences drafted for */
    di_spec_probe probe;
    int32_t since_plain; /* steps with drafts since one without */
    double mixed_row_s;  /* seconds of a row in steps with prompts, a running mean; 0 before */
    double *survival;    /* [max_batch][block] */
    int32_t *limit, *lengths, *heap; /* [max_batch] */
    double *step_s;                  /* [max_batch * block + 1] */
    float *temperatures;             /* [DI_LAWS][block] */
    float *confidence;               /* [block] */
    double *now;                     /* [block]: survivals of the block that is learned from */
    /* [DI_LAWS][block]: survivals and their squares, running means over blocks; 1 at first */
    double *mean, *mean_square;
} core__spec;

/* ---- Window snapshots (core_snapshot.c) ---- */

typedef struct core__snapshot {
    di_kv_name plain;            /* the whole pages before it, by the plain chain of tokens, */
    di_kv_name lineage;          /* and as they are really named */
    int64_t length;              /* tokens in it */
    int64_t cut;                 /* its windows above the cut layer begin here */
    uint64_t used;               /* clock of its last use; 0: the place is empty */
    int32_t margin;              /* tokens that may be taken back */
    int32_t ids[DI_PAGE_TOKENS]; /* those behind the last whole page */
} core__snapshot;

typedef struct core__snapshots {
    core__snapshot *entries; /* [n_max] */
    uint8_t *bytes;          /* [n_max][entry_bytes] */
    uint64_t entry_bytes, clock;
    int32_t n_max, n;
} core__snapshots;

struct di_core {
    di_model *model;
    const di_config *config;
    di_core_options options;
    di_context *context;
    di_kv *kv;
    di_kv_name fingerprint;
    char numerics[32], kernels[64];
    int64_t max_tokens_held; /* of a sequence: min(max_context, the pool) */

    core__request *first, *last; /* all open requests, in order of arrival */
    core__request *ended;        /* to be freed at the end of the step */
    core__list waiting;          /* by rank */
    core__slot *slots;           /* [max_batch] */
    core__sequence **order;      /* [max_batch]: the running ones by rank, of this step */
    int32_t n_order, n_running, n_waiting;
    int64_t n_open; /* choices that are not done */
    uint64_t last_id;
    int32_t n_cancelled; /* open requests that were cancelled while others were told something */
    bool telling;        /* callbacks may be running: cancelling only marks */
    bool preempt_asked, saving; /* saving: snapshots are on their way to the host */
    uint64_t saved_at;          /* where in the stream they are there */
    di_status failed;           /* the engine's own failure: every later step says it */
    di_error failure;

    core__snapshots snapshots;
    void *fork_bytes; /* one snapshot: a prompt on its way to its choices */

    /* The step that is being built; then one is in flight until it is read. */
    int32_t max_out;
    core__step steps[CORE__STEPS], *building, *reading, *flying; /* flying NULL: all are read */
    di_row *rows;                                                /* [max_rows] */
    int32_t *out_rows;                                           /* [max_out] */
    di_decode *blocks;                                           /* [max_batch] */
    di_sample_params *params;                                    /* [max_out] */
    di_sample_params *draft_params;                              /* [max_batch] */
    int32_t *draft_slots;                                        /* [max_batch] */
    int32_t *forced;                                             /* [max_batch][block] */
    int32_t *own;                                                /* [max_batch][block], by slot */
    di_logit_bias *biases;                                       /* [CORE__MAX_BIASES] */
    uint32_t *
        masks; /* [2 + CORE__MAX_MASKS][ceil(V / 32)]: what may be sampled; nothing; requests' own */
    int32_t n_masks; /* of requests, in the step that is being built */
    float *logits;   /* [max_out][V] */
    int32_t n_biases;
    int32_t n_verified, context_class; /* drafts to verify; of those that decode */
    core__spec spec;
    di_core_force force;
    void *force_user;
    di_ahead ahead;
    bool force_ahead;
    void (*told)(void *user, const di_step_trace *step); /* NULL: nobody wants to know */
    void *told_user;
    double last_end; /* seconds of the stream when the last step ended; NAN: work was paused */

    di_core_stats stats;
};

enum {
    CORE__MAX_MASKS = 128,    /* of one step, beside the two that are the engine's */
    CORE__MAX_BIASES = 16384, /* of one step, as the model takes them */
    CORE__MASK_ALLOWED = 0,
    CORE__MASK_NOTHING = 1, /* a row that only scores samples -2 and so leaves no trace */
    CORE__MIN_SNAPSHOT = DI_PAGE_TOKENS, /* shorter ones are computed again */
};

static inline int64_t core__smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Zeroed; *ok becomes false when there is none. */
static inline void *core__take(size_t n, size_t size, bool *ok) {
    void *memory = calloc(n, size);
    *ok = *ok && memory;
    return memory;
}

static inline int32_t core__pages_for(int64_t n_tokens) {
    return (int32_t)((n_tokens + DI_PAGE_TOKENS - 1) / DI_PAGE_TOKENS);
}

static inline int64_t core__vocab_words(const di_core *core) {
    return ((int64_t)core->config->vocab_size + 31) / 32;
}

/* Rows of known tokens that must still run. */
static inline int64_t core__pending(const core__sequence *s) {
    return s->decoding ? 0 : s->n_ids - s->n_done;
}

static inline bool core__is_current(const core__owner *owner) {
    const core__sequence *s = owner->sequence;
    return s->state == CORE__RUNNING && s->stay == owner->stay && !s->request->cancelled;
}

/* s is mentioned in the step that is being built. */
static inline core__owner core__owner_of(core__sequence *s) {
    s->request->n_flying++;
    return (core__owner){s, s->stay};
}

static inline di_kv_sequence *core__pages(di_core *core, const core__sequence *s) {
    return &core->slots[s->slot].pages;
}

/* Log-probabilities of submitted tokens are not all delivered: the rows before them must run. */
static inline bool core__scores(const core__sequence *s) {
    return s->choice == 0 && s->n_scored < s->request->n_known;
}

/* Nothing is to be sampled: it ends when its tokens are scored. */
static inline bool core__only_scores(const core__sequence *s) {
    return s->max_ids == s->request->n_known;
}

/* Tokens that need not run when their pages and windows are there: the row before the first that is
 * scored must, and that of the last. Who scores the prompt itself takes the exact path. */
static inline int64_t core__skippable(const core__sequence *s) {
    if (!core__scores(s)) return s->n_ids - 1;
    return s->n_scored < s->request->n_prompt ? 0 : s->n_scored - 1;
}

/* ---- core_request.c ---- */

/* Whether a goes before b: higher priority, earlier request, lower choice. */
bool core__goes_before(const core__sequence *a, const core__sequence *b);
void core__waiting_insert(di_core *core, core__sequence *s);
void core__waiting_remove(di_core *core, core__sequence *s);
/* Names of the first n_pages pages of its ids. */
void core__name_pages(core__sequence *s, int32_t n_pages);
/* Ends a choice in any state, giving back what it holds, and tells its owner. */
void core__end(di_core *core, core__sequence *s, di_finish finish, const char *message);
/* Ends every open choice of a request. It stays in memory until core__sweep. */
void core__end_request(di_core *core, core__request *r, di_finish finish, const char *message);
/* Ends what was cancelled meanwhile and frees what has ended. No callback is running. */
void core__sweep(di_core *core);
void core__request_free(core__request *r);

/* ---- core_trace.c ---- */

/* The monotonic clock; 0 when nobody wants to know. */
double core__now(const di_core *core);
/* The step was read: tells of it. `follows`: as in di_step_trace. */
void core__tell_trace(di_core *core, core__step *step, bool follows);

/* ---- core_check.c ---- */

di_status core__check_request(const di_core *core, const di_core_request *request, di_error *error);

/* ---- core_replay.c ---- */

/* Where the cut of a prompt of n tokens lies in this mode; 0: none. */
int64_t core__cut_of(const di_core *core, int64_t n_prompt, bool scores);
/* The token from which rows must run when the windows are lost and `hit` tokens have their pages.
 */
int64_t core__replay_start(const di_core *core, int64_t hit, int64_t cut);

/* ---- core_snapshot.c ---- */

di_status core__snapshots_init(di_core *core, di_error *error);
void core__snapshots_deinit(core__snapshots *snapshots);
/* Saves what a running sequence holds now, unless it is there or of no use. Enqueued. */
void core__snapshot_take(di_core *core, core__sequence *s);
/* Enqueues the saving of a running sequence to host memory. */
void core__save(di_core *core, const core__sequence *s, void *host);
/* As take, from bytes that are on the host already; no snapshot is on its way. */
void core__snapshot_keep(di_core *core, core__sequence *s, const void *bytes);
/* The one with which a waiting sequence may go on the furthest when its first n_hits pages are
 * there, or NULL; *length: how far, and what is behind must be taken back. Names of these pages must
 * be known. */
core__snapshot *core__snapshot_find(di_core *core, const core__sequence *s, int32_t n_hits,
                                    int64_t *length);
const void *core__snapshot_bytes(const di_core *core, const core__snapshot *snapshot);
/* Until no snapshot is on its way any more. */
di_status core__snapshots_wait(di_core *core, di_error *error);

/* ---- core_admit.c ---- */

/* Lets in waiting sequences, the best first, while slots and pages last. */
di_status core__admit_all(di_core *core, di_error *error);
/* A running sequence waits again; its tokens stay. */
void core__preempt(di_core *core, core__sequence *s);
/* The slot and the pages are free again. */
void core__give_back(di_core *core, core__sequence *s);
/* Choices of running requests whose prompt is computed go their own ways. */
di_status core__fork_all(di_core *core, di_error *error);
/* Pages for n_tokens, told to the device. *ok false: there are none now. */
di_status core__extend(di_core *core, core__sequence *s, int64_t n_tokens, bool *ok,
                       di_error *error);

/* ---- core_schedule.c ---- */

/* Fills order, and n_rows, block and most of the running sequences, with pages for all of these
 * rows. *again: somebody must give way, and cannot before the step in flight is read; then nothing
 * may be built. */
di_status core__schedule(di_core *core, bool *again, di_error *error);

/* ---- core_build.c ---- */

/* The step as it was scheduled, but for what hangs on drafts that the host is to see. */
void core__build(di_core *core);
/* How s is sampled, its mask apart. Takes places for its biases. */
di_sample_params core__params(di_core *core, const core__sequence *s);
/* The column of s's drafts, drawn with these params, in the draft pass of the step. */
int32_t core__draft_for(di_core *core, core__sequence *s, const di_sample_params *params);

/* ---- core_masked.c ---- */

/* Whether s may have drafts although every one of its rows has a mask of its own. */
static inline bool core__has_own(const di_core *core, const core__sequence *s) {
    return s->request->given.mask_drafts && core->spec.block > 0;
}
/* The host's drafts of a sequence in a slot, [block]. */
static inline int32_t *core__own_drafts(const di_core *core, const core__sequence *s) {
    return core->own + (int64_t)s->slot * core->spec.block;
}
/* The drafts of s that are known while its block is planned, up to `most`: n_sure. */
void core__masked_foresee(di_core *core, core__sequence *s, int32_t most);
/* A block of s, in the step that is being built, whose rows follow. */
void core__masked_add(di_core *core, core__sequence *s);
/* Its drafts are here, or are waited for: the rows of these blocks, their masks and params. */
di_status core__masked_finish(di_core *core, core__step *step, di_error *error);

/* ---- core_spec.c ---- */

di_status core__spec_init(di_core *core, di_error *error);
void core__spec_deinit(core__spec *spec);
/* How many drafts the step verifies beside those that are known: the sequences of order with blocks
 * have n_blocks rows without them, each may have `most` drafts, and room rows are left; prompt_rows:
 * what prompts could use of the step. Of these, the ones of sequences with masks are named by making
 * `most` what they get; the rest comes back: the device says whose they are. */
int32_t core__spec_plan(di_core *core, int32_t n_blocks, int32_t room, int64_t prompt_rows);
/* Whether a draft pass for s is worth making in a step that it sits out, of n_blocks. */
bool core__spec_ahead(const di_core *core, const core__sequence *s, int32_t n_blocks);
/* What became of a block's drafts; confidence k stands at k * stride. So many were verified and
 * accepted, and its masks let `allowed` pass. And a step's times. */
typedef struct core__lesson {
    const float *confidence;
    int32_t stride, n_verified, n_accepted, allowed;
} core__lesson;
void core__spec_learn(di_core *core, core__sequence *s, const core__lesson *lesson);
/* A step of s went by without drafts. */
void core__spec_pass(core__sequence *s);
void core__spec_time(di_core *core, const core__step *step);
/* Seconds by which a step would be shorter without one of its blocks, draft included. */
double core__spec_block_seconds(const di_core *core, const core__step *step);
/* s comes into a slot: of its drafts is expected what others of its law had lately. */
void core__spec_forget(di_core *core, core__sequence *s);
const float *core__spec_temperatures(di_core *core);
/* core_profile.c: times steps of all sizes on empty sequences, before there are requests. */
di_status core__spec_profile(di_core *core, di_error *error);

/* ---- core_deliver.c ---- */

/* Waits for the results of a step and gives them to their owners. */
di_status core__deliver(di_core *core, core__step *step, di_error *error);
/* Pages whose tokens are settled get their names. */
di_status core__settle(di_core *core, core__sequence *s, di_error *error);

/* ---- core_logprob.c ---- */

/* log of the sum of exp over n logits, in double, in index order. */
double core__log_sum(const float *logits, int32_t n);
/* The n_top likeliest ids, ties to the lower one. */
void core__top(const float *logits, int32_t n, double log_sum, di_top_logprob *top, int32_t n_top);

#endif
