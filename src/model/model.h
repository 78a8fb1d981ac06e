/* The network: weights bound to a backend, the state of sequences, and the ragged step.
 *
 * This header is the folder's door. A di_model holds weights (read-only, mapped); a di_context
 * holds what sequences need on the device: page pool, window rings, token history, lengths,
 * workspaces, all taken at creation. di_forward enqueues one step and returns; nothing here waits
 * except the functions that say so. One thread (the engine's) uses a model and its contexts.
 * Slots, ids, pages and parameters are checked before anything is enqueued: DI_ERR_USAGE, or
 * DI_ERR_LIMIT where a context is too small; the few functions without a status abort instead.
 */
#ifndef DI_MODEL_MODEL_H
#define DI_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/backend.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "text/tokenizer.h"

typedef struct di_model di_model;
typedef struct di_context di_context;

/* ---- Weights ---- */

typedef struct di_model_options {
    /* Called while loading, with steps done and in all; may be NULL. Returns false to stop. */
    bool (*progress)(void *user, int64_t done, int64_t total);
    void *user;
    /* Drop a layer's mapped pages after its use in a step, so that resident memory stays near one
     * layer: for checkpoints larger than memory. */
    bool release_layers;
    /* Routed experts of backbone layers from device_layers on are bound to `host`, and computed by
     * it: a backend of host memory whose operations run at once ("cpu", "ref"), of the same numerics,
     * for this model alone, which must outlive it. NULL (default): all layers are the backend's. */
    di_backend *host;
    int32_t device_layers;
} di_model_options;

di_model_options di_model_options_defaults(void);

/* Scales that are NaN (byte 255) are refused: all of them in a checkpoint with at most 256 MiB of
 * scales; in a larger one not those of routed experts and Engram tables, which are most of the
 * bytes and would be read for minutes: `inspect --deep` does. One that is met all the same mostly
 * makes its row NaN, and sampling gives -2 (di_context_read_samples); nothing is promised.
 *
 * Opens the directory, checks it, derives the Engram constants and binds every tensor. The token
 * map comes from tokenizer.json, else from token_map.json. The backend must outlive the model. */
di_status di_model_open(const char *directory, di_backend *backend, const di_model_options *options,
                        di_model **out, di_error *error);
void di_model_close(di_model *model);
const di_config *di_model_config(const di_model *model);
const di_checkpoint *di_model_checkpoint(const di_model *model);
/* The directory's tokenizer, owned by the model; NULL when it has a token map only. */
const di_tokenizer *di_model_tokenizer(const di_model *model);

/* Weights that can be resident at a time with release_layers: the largest layer (with drafts, of
 * the draft layers too), the head, and what the system maps around the single rows of Engram tables
 * and the embedding that a step of max_rows rows reads. max_rows 0: without those. */
di_status di_model_released_bytes(const di_config *config, int32_t max_rows, bool drafts,
                                  uint64_t *out, di_error *error);

/* Where weights lie when the device has memory of its own (di_backend.device): in it, but for
 * Engram tables larger than every other tensor, of which only the rows that are looked up cross its
 * bus. */
typedef struct di_placement {
    uint64_t host_from; /* for di_cuda_options: tables of this size and more; 0: there are none */
    uint64_t device_bytes;  /* that the device takes for weights */
    uint64_t host_bytes;    /* of tables that stay in host memory, and are pinned there */
    uint64_t largest_bytes; /* of a tensor that is no such table, with its scales */
    uint64_t expert_bytes;  /* of routed experts that the host computes: mapped, not pinned */
} di_placement;
/* As this backend binds matrices; NULL, before there is one: as they are stored. */
di_status di_model_place(const di_config *config, const di_backend *backend, di_placement *out,
                         di_error *error);
/* The same where a host computes the routed experts of layers from device_layers on. */
di_status di_model_place_layers(const di_config *config, const di_backend *backend,
                                int32_t device_layers, di_placement *out, di_error *error);

/* ---- State ---- */

typedef struct di_context_options {
    int32_t n_slots;     /* sequences; default 1 */
    int64_t max_context; /* tokens a sequence; default min(config's, 32768) */
    int32_t max_rows;    /* rows of one step; default 256 */
    int32_t max_out;     /* rows of one step that may ask for logits; default 32 */
    bool penalties;      /* keep counts of ids for penalties: 4 V bytes a slot; default true */
    bool replay;         /* allow di_context_resume and di_context_cut; default false */
    bool drafts;         /* keep the draft layers' windows, allow di_draft; default false */
    bool reject;         /* keep the logits of drafts, for rejection sampling; default false */
    int32_t n_pages; /* of 64 tokens, shared by all slots (di_context_set_pages); 0 (default): every
                        slot has its own for a full context */
    uint64_t max_bytes; /* upper bound of what create may take; 0: none */
} di_context_options;

di_context_options di_context_options_defaults(const di_config *config);

/* Bytes that a context with these options takes on the device, workspaces included, and its parts.
 */
typedef struct di_context_bytes {
    uint64_t pages, windows, rings, counts, logits, activations, workspace, total;
} di_context_bytes;
di_context_bytes di_context_plan(const di_config *config, const di_backend *backend,
                                 const di_context_options *options);

/* What such a context takes of host memory besides, where `host` computes experts of layers: what
 * crosses between the two, and the host's workspace. */
uint64_t di_context_plan_host(const di_config *config, const di_backend *device,
                              const di_backend *host, const di_context_options *options);

/* Takes all memory. DI_ERR_MEMORY with needed and allowed bytes when it does not fit. */
di_status di_context_create(di_model *model, const di_context_options *options, di_context **out,
                            di_error *error);
void di_context_destroy(di_context *context);
const di_context_options *di_context_get_options(const di_context *context);

/* Makes slot empty (length 0, counts cleared); blocks that are not settled are given up, and it has
 * no drafts. Enqueued. */
void di_context_reset(di_context *context, int32_t slot);
/* Takes back the last n tokens of slot; the counts of ids keep them. The rings keep
 * di_config_rollback rows more than are read, so the margin is that many tokens: what is rewound
 * uses it up, what is processed restores it. DI_ERR_LIMIT beyond it, DI_ERR_USAGE while blocks are
 * not settled. Enqueued. */
di_status di_context_rewind(di_context *context, int32_t slot, int32_t n, di_error *error);
/* How many tokens of slot may be rewound now. */
int32_t di_context_margin(const di_context *context, int32_t slot);
/* Tokens in slot as the host knows it. */
int64_t di_context_length(const di_context *context, int32_t slot);

/* ---- Pages and windows of slots, for whoever shares them out (kv, engine) ---- */

/* Tokens [64 first, 64 (first + n)) of slot lie in these pages of the pool. Needs options.n_pages >
 * 0; a step may only touch positions whose pages were set. Enqueued; the numbers are copied. */
di_status di_context_set_pages(di_context *context, int32_t slot, int32_t first,
                               const int32_t *pages, int32_t n, di_error *error);
/* Copies a page's bytes on the device. Enqueued. */
void di_context_copy_page(di_context *context, int32_t to, int32_t from);

/* What a sequence has besides its whole pages: windows, raw rows of open groups, token history,
 * floors, and the bytes of its last page when that is not full. Counts of ids are not in it. */
uint64_t di_context_snapshot_bytes(const di_context *context);
/* Enqueued: `host` is filled when the stream has come so far (di_context_wait). Aborts while blocks
 * of slot are not settled. */
void di_context_save(di_context *context, int32_t slot, void *host);
/* Makes slot what was saved, of any slot of this context or of one with the same options; its
 * pages, the unfinished one too, must be set. What it was is given up, as by di_context_reset.
 * Enqueued; host is copied. */
void di_context_restore(di_context *context, int32_t slot, const void *host);
/* Until everything enqueued so far is done. */
di_status di_context_wait(di_context *context, di_error *error);

/* ---- Replay (design: three modes; model.md 8). Needs options.replay. ---- */

/* First layer above the decoder-side cut: the last KV source; it compresses every token, and from
 * there on only the tail of a prompt needs to run. */
int32_t di_model_cut_layer(const di_config *config);

/* Rows of slot at positions below `from` run through the layers below the cut only, and publish
 * their entries at the cut layer; windows above it begin at `from`. Rows below it cannot ask for
 * logits. Set before the prompt's first row, with `from` counted from the prompt's end. Blocks that
 * are not settled are not looked at: settle or drop them before. Enqueued. */
di_status di_context_cut(di_context *context, int32_t slot, int64_t from, di_error *error);

/* Makes slot hold ids[0 .. position) whose windows are lost: the tokens up to `closed` (a multiple
 * of every ratio, >= position) have their entries in the slot's pages, and the rows from position
 * on are replayed to rebuild the windows, which begin empty there, without writing those entries
 * again. What it was is given up, as by di_context_reset; counts are empty. Enqueued; ids are
 * copied. */
di_status di_context_resume(di_context *context, int32_t slot, const int32_t *ids, int64_t position,
                            int64_t closed, di_error *error);

/* ---- The step ---- */

/* A sequence that decodes: its row is the token that was sampled last (next_token), and behind it
 * stand up to `most` drafts of the last di_draft, or all of its `own`, which are known on the host.
 * How many of the device's are verified, and how many tokens come out, the device decides; the host
 * hears of it later (di_context_settle). */
typedef struct di_decode {
    int32_t slot;
    int32_t most; /* 0, or up to dspark_block_size for slots of the last di_draft; with `own`: how
                     many these are, up to dspark_block_size */
    int32_t law;  /* which of the temperatures, 0 .. DI_LAWS - 1 */
    bool reject; /* drafts are accepted by rejection sampling: needs options.reject, and drafts that
                     were sampled with DI_NOISE_ROUND; not with `own` */
    const int32_t *own; /* [most] drafts, all of which are verified; or NULL */
} di_decode;

typedef struct di_step {
    const di_decode *blocks; /* n_blocks of different slots */
    int32_t n_blocks;
    int32_t n_own;    /* of them, those with `own`, which are the last */
    int32_t n_drafts; /* of the others verified in this step, at most the sum of their `most`: see
                         di_allot_args */
    const float *temperatures; /* [DI_LAWS][dspark_block_size], when n_drafts > 0 */
    const di_row
        *rows; /* n_rows, of other slots; rows of a slot contiguous, offsets 0, 1, 2, ... */
    int32_t n_rows;
    const int32_t *out_rows; /* of rows, whose logits are wanted, ascending; n_out of them */
    int32_t n_out;
    /* One for each block but those with `own`, one for each row of these, n_out; or NULL without
     * blocks: logits only, nothing is sampled */
    const di_sample_params *params;
    const di_logit_bias *biases; /* n_biases, referred to by params */
    int32_t n_biases;
    const uint32_t *masks; /* [n_masks][ceil(V / 32)], referred to by params */
    int32_t n_masks;
} di_step;

/* Checks the step (DI_ERR_LIMIT, DI_ERR_USAGE), then enqueues the forward pass, sampling included.
 * Its blocks have n_blocks + n_drafts rows and one for each of `own`; with n_rows at most max_rows.
 * So many results they have, with n_out at most max_out: those of the blocks first, block by block. */
di_status di_forward(di_context *context, const di_step *step, di_error *error);

/* Results of the last di_forward; each waits for it. */
/* tokens [results] (-1 dead or not accepted, -2 no finite logit), logprobs [results] or NULL. */
di_status di_context_read_samples(di_context *context, int32_t *tokens, float *logprobs,
                                  di_error *error);
/* float32 [results][V] */
di_status di_context_read_logits(di_context *context, float *logits, di_error *error);

/* ---- Steps that are read later ---- */

/* Where the results of a step go. The memory must stay until di_context_reach. */
typedef struct di_fetch {
    int32_t *block_rows; /* [n_blocks]: 1 + the drafts that were verified */
    int32_t *tokens;     /* [results]; as above: of a block those that came out, then -1 */
    float *logprobs;     /* [results] */
    float *logits;       /* [results][V], or NULL */
} di_fetch;

/* Enqueues the download of what the last di_forward gave, before a di_draft. Nothing without
 * params. */
void di_context_fetch(di_context *context, const di_fetch *to);
/* The same of the last di_draft: tokens [block][n], confidence [block][n] before the sigmoid; in
 * order of the token loop. Either may be NULL. */
void di_context_fetch_drafts(di_context *context, int32_t *tokens, float *confidence);
/* A point in the stream, and waiting until it is reached. */
uint64_t di_context_mark(di_context *context);
di_status di_context_reach(di_context *context, uint64_t mark, di_error *error);
/* See di_backend: the stream's clock at this point, to *host. */
void di_context_stamp(di_context *context, double *host);

/* The host learns what became of the oldest block of slot that it did not know of: of its `rows`
 * rows (block_rows) the first `kept` stayed, 1 <= kept <= rows. Until then di_context_length leaves
 * the block out, the slot takes further blocks only, at most DI_MAX_AHEAD in all, and each of them
 * must fit pages and context wherever it comes to stand. */
enum { DI_MAX_AHEAD = 2 };
void di_context_settle(di_context *context, int32_t slot, int32_t rows, int32_t kept);
/* Tokens that the unsettled blocks of slot may add, at most. */
int32_t di_context_ahead(const di_context *context, int32_t slot);
/* Gives up the blocks of slot that are not settled: its length is again what the host knows.
 * Enqueued. */
void di_context_drop(di_context *context, int32_t slot);

/* ---- Drafts (DSpark, dspark.md 4 and 5). Needs options.drafts. ---- */

typedef struct di_draft_step {
    const int32_t *slots; /* n different slots; n * block at most max_rows and max_out */
    int32_t n;
    const int32_t *anchors; /* [n] token that stands at each slot's length, or NULL: the one that
                               was sampled last (next_token) */
    const di_sample_params *params; /* [n], or NULL: the most likely token */
    const di_logit_bias *biases;
    int32_t n_biases;
    const uint32_t *masks;
    int32_t n_masks;
} di_draft_step;

/* Steps that only decode put aside what the draft layers' windows are made of; here it goes into them.
 * Whoever reads these, or changes a slot's length otherwise than by a step, needs that done before:
 * di_draft, di_context_save, rewind and drop do it themselves. Enqueued. */
void di_context_catch_up(di_context *context);

/* Enqueues a draft of dspark_block_size tokens behind each anchor. Sequences stay as they are; the
 * logits of the last di_forward are lost. Noise of a draft is that of the target at its position,
 * or of the round (params' noise). Penalties see the drafts before. The drafts can be verified by
 * the next di_forward. */
di_status di_draft(di_context *context, const di_draft_step *step, di_error *error);
/* Of the last di_draft; waits. tokens [n][block]; confidence [n][block] before the sigmoid,
 * may be NULL. */
di_status di_context_read_drafts(di_context *context, int32_t *tokens, float *confidence,
                                 di_error *error);
/* Tests: other drafts in place of those of the last di_draft, tokens [n][block] of its slots.
 * Enqueued; copied. */
di_status di_context_put_drafts(di_context *context, const int32_t *tokens, di_error *error);
/* Tests: where the biased logits of every step of the token loop go, [block][n][V] float32 on the
 * host, filled by the time di_context_read_drafts returns; NULL: nowhere. */
void di_context_keep_draft_logits(di_context *context, float *logits);

/* Adds ids to the counts of slot, as part of its prompt or of its output. Enqueued; the ids are
 * copied. Sampled tokens are counted by di_forward itself where the context keeps counts; those of
 * blocks that are not settled too, so this needs none to be settled. */
di_status di_context_count(di_context *context, int32_t slot, const int32_t *ids, int32_t n,
                           bool prompt, di_error *error);

/* Tests and `score --streams`: called while a step is being enqueued, with the name of an
 * intermediate and where it will be. The callee may enqueue a download of it at once.
 * names: embed streams attn_input attn_output ffn_input ffn_output router_picks router_weights
 * topk candidates engram_rows final_norm main_hidden. layer -1 outside layers. */
typedef enum di_tap_type { DI_TAP_A, DI_TAP_F, DI_TAP_I32, DI_TAP_I64 } di_tap_type;
typedef void (*di_tap_fn)(void *user, const char *name, int32_t layer, di_ptr data,
                          di_tap_type type, int64_t n_rows, int64_t row_width);
void di_context_set_tap(di_context *context, di_tap_fn tap, void *user);

#endif
