/* What the files of model/ share: weights as the forward pass sees them, and the buffers of a
 * context. Not for other folders: they include model.h. */
#ifndef DI_MODEL_NETWORK_H
#define DI_MODEL_NETWORK_H

#include "model/engram.h"
#include "model/model.h"

/* One mHC site. */
typedef struct di_mix_weights {
    di_matrix fn;
    di_vector base, scale;
} di_mix_weights;

typedef struct di_compressor_weights {
    di_matrix wkv, wgate; /* wgate.n 0 at ratio 1 */
    di_vector norm;
    di_matrix wk; /* every KV source is an index source (config_roles.c) */
    di_vector k_norm;
} di_compressor_weights;

typedef struct di_indexer_weights {
    di_matrix wq_b, weights_proj;
} di_indexer_weights;

typedef struct di_engram_weights {
    di_ptr codes, scales; /* the table, read by rows */
    di_matrix wkv, q_weight, k_weight;
} di_engram_weights;

typedef struct di_moe_weights {
    di_matrix gate;
    di_vector bias, bias_vl;
    di_matrix shared_w1, shared_w3, shared_w2;
    di_ptr experts; /* di_expert [n_experts] on the device */
    di_dtype expert_dtype;
    int32_t n_experts, top_k;
} di_moe_weights;

/* A block: a backbone layer or a draft layer. Parts that a layer does not have stay zero. */
typedef struct di_block_weights {
    di_vector attn_norm, ffn_norm;
    di_mix_weights attn_mix, ffn_mix;
    di_matrix wq_a, wq_b, wkv, wo_a, wo_b;
    di_vector q_norm, kv_norm, sink;
    di_compressor_weights compressor;
    di_indexer_weights indexer;
    di_engram_weights engram;
    di_moe_weights moe;
} di_block_weights;

/* What the draft layers share (dspark.md 2). */
typedef struct di_draft_weights {
    di_matrix main_proj, markov_embed, markov_head, confidence;
    di_vector main_norm, norm;
} di_draft_weights;

/* "layers.N.engram.embed.weight" or ".scale": read by rows. */
bool di_is_engram_table(const char *tensor_name);

/* Host bytes that belong to one layer, merged where they touch, for backend->discard. */
typedef struct di_host_range {
    const uint8_t *begin;
    uint64_t size;
} di_host_range;

typedef struct di_layer_ranges {
    di_host_range *ranges;
    int64_t n;
} di_layer_ranges;

struct di_model {
    di_config config;
    di_backend *backend;
    di_backend *host;      /* di_model_options; NULL: there is none */
    int32_t device_layers; /* num_hidden_layers without a host */
    di_checkpoint *checkpoint;
    di_tokenizer *tokenizer; /* NULL when the checkpoint brings a token map only */
    di_engram engram;
    bool release_layers;
    di_matrix embed, head;
    di_vector norm;
    di_block_weights *blocks; /* [num_hidden_layers + num_nextn_predict_layers] */
    di_draft_weights draft;
    /* When release_layers: [num_hidden_layers + num_nextn_predict_layers], embed.weight, and the
     * head with its norm. */
    di_layer_ranges *layer_ranges, embed_range, head_range;
    di_ptr freq_main, freq_compress;                     /* float32 [rd / 2] */
    di_ptr token_map, multipliers, primes, hash_offsets; /* Engram constants on the device */
};

/* The routed experts of a layer are the host's; those of draft layers never are. */
static inline bool di_on_host(const di_model *model, int32_t layer) {
    return layer >= model->device_layers && layer < model->config.num_hidden_layers;
}

/* placement.c: how a matrix of the contract is used. The groups of its products; 0: a table, of which
 * operations read rows by themselves. */
int32_t di_matrix_groups(const di_config *config, const char *tensor_name);
/* weights.c: binds every tensor of the checkpoint to model->backend. */
di_status di_weights_bind(di_model *model, const di_model_options *options, di_error *error);
/* With release_layers, what single rows of a table or the embedding mapped is given back after
 * about so many of them: each may map DI_ROW_REACH bytes. Rows of a step, of `cells` table rows
 * each. */
enum { DI_RELEASE_CELLS = 16 };
int32_t di_release_rows(int32_t n_rows, int32_t cells);
/* ranges.c: fills layer_ranges, embed_range and head_range. */
di_status di_ranges_collect(di_model *model, di_error *error);
void di_ranges_free(di_model *model);

/* All device memory of a context, carved from one allocation. Only di_ptr members: context.c
 * walks the struct as an array. */
typedef struct di_context_buffers {
    /* the step */
    di_ptr rows, length, n_valid, next_token, pos, first, token, rewind;
    di_ptr which, params, biases, masks, sampled, logprob, sampled_slot;
    /* blocks: what they are, and what allot makes of them */
    di_ptr blocks, temperatures, block_rows, param_of, extra_at, n_extra;
    /* activations */
    di_ptr streams, pre, pre_attn, post, comb, u, y;
    di_ptr qr, q, o, kv_codes, kv_scales, picks, candidates;
    di_ptr router_picks, router_weights, expert_rows, shared;
    di_ptr engram_rows, engram_values, engram_kv, main_hidden;
    di_ptr normed, logits, export;
    /* the rows above the cut */
    di_ptr upper_rows, upper_pos, upper_first, upper_token, upper_streams, upper_pre;
    /* drafts: [block][n] tokens and confidences, the logits of one step of the token loop */
    di_ptr drafts, draft_confidence, draft_logits, draft_next, draft_export;
    /* the state of sequences */
    di_ptr floor_lower, floor_upper, closed;
    di_ptr history, counts, page_table, page_pool;
    di_ptr window_codes, window_scales; /* [layers][n_slots][ring_slots][...] */
} di_context_buffers;
_Static_assert(sizeof(di_context_buffers) % sizeof(di_ptr) == 0 &&
                   _Alignof(di_context_buffers) == _Alignof(di_ptr),
               "context.c walks the members as an array of di_ptr");

enum { DI_MAX_BIASES = 16384, DI_MAX_MASKS = 130 };

struct di_context {
    di_model *model;
    di_backend *backend;
    di_context_options options;
    di_limits limits;
    di_context_buffers at;
    di_ptr memory; /* the allocation behind `at` */
    int32_t pages_per_slot, history_slots, ring_slots, compress_slots;
    uint64_t page_bytes;
    di_ptr compress_ring[DI_MAX_LAYERS]; /* by layer; DI_NONE where there is none */
    struct di_page_part {                /* by layer, KV sources only: offsets inside a page */
        uint32_t codes, scales, key_codes, key_scales;
    } page_part[DI_MAX_LAYERS];
    /* The host's view of the slots, after what was enqueued but for the blocks that were not
     * settled; margins are what may be rewound. */
    int64_t *length;   /* [n_slots] */
    int32_t *margin;   /* [n_slots] */
    int32_t *ahead;    /* [n_slots][DI_MAX_AHEAD]: most rows of unsettled blocks, the oldest first;
                          0: none */
    int64_t *cut_from; /* [n_slots]: rows below it run below the cut layer only */
    di_row *upper;     /* [max_rows]: the rows of a step that run above the cut */
    /* [n_slots]: the host's copies of what replay.c puts on the device */
    int64_t *floor_lower, *floor_upper, *closed;
    int32_t *page_of; /* [n_slots][pages_per_slot]: the page table, -1: not set */
    int64_t *seen;    /* [n_slots]: the last step that had rows of the slot */
    int64_t step_number;
    int32_t *out_slots; /* [max_out] */
    /* With drafts: the first n_aside rows of at.main_hidden did not go into the draft layers' windows
     * yet (observe.c). They are the last ones of their slots, in the order of their steps. */
    int32_t n_aside;
    int32_t *aside_slot; /* [max_rows]: whose they are, -1: nobody's any more */
    int32_t *n_aside_of; /* [n_slots]: how many each slot has */
    int32_t n_drafts;    /* sequences of the last di_draft */
    int32_t *column;     /* [n_slots]: where their drafts stand, -1: not drafted last */
    di_block *blocks;    /* [n_slots]: of a step, as uploaded */
    /* [max_out] each, with drafts: what a download fills, in order of the token loop */
    int32_t *draft_tokens;
    float *draft_confidence;
    float *draft_logits;            /* host, see di_context_keep_draft_logits */
    di_sample_params *draft_params; /* [n_slots] */
    int32_t n_out;                  /* results of the last step */
    int32_t n_blocks;               /* of the last step */
    bool sampled;                   /* the last step sampled */
    uint64_t serial;                /* no two contexts have the same one */
    struct di_crossing *crossing;   /* host_experts.c; NULL where the model has no host */
    di_tap_fn tap;
    void *tap_user;
};

/* context_layout.c: sizes and places. With context NULL only counts. */
uint64_t di_context_lay_out(const di_config *config, const di_backend *backend,
                            const di_context_options *options, di_context *context,
                            di_context_bytes *bytes);

/* step_check.c: what is refused before anything is enqueued. */
di_status di_step_check(di_context *context, const di_step *step, di_error *error);
di_status di_draft_check(di_context *context, const di_draft_step *step, di_error *error);
di_status di_slot_check(const di_context *context, int32_t slot, di_error *error);
/* No blocks of slot are under way (di_context_settle). */
di_status di_settled_check(const di_context *context, int32_t slot, di_error *error);
/* For functions that return no status: says which one was called wrongly, and aborts. */
void di_slot_require(const di_context *context, int32_t slot, const char *function);
void di_slot_require_settled(const di_context *context, int32_t slot, const char *function);
/* ids[from .. to) are ids of the vocabulary; `what` names the array in messages. */
di_status di_ids_check(const di_context *context, const char *what, const int32_t *ids,
                       int64_t from, int64_t to, di_error *error);
/* The row runs below the cut layer only (di_context_cut). */
bool di_context_is_below_cut(const di_context *context, const di_row *row);

/* replay.c: slot is as if it had never been cut or resumed; the marks, and the length, of a slot go
 * to the device. Enqueued. */
void di_context_forget_replay(di_context *context, int32_t slot);
void di_context_put_floors(di_context *context, int32_t slot, int64_t lower, int64_t upper,
                           int64_t closed);
void di_context_put_length(di_context *context, int32_t slot);

/* ---- Passes ---- */

/* One pass under way: of a step, or of drafts. */
typedef struct di_pass {
    di_context *context;
    const di_config *config;
    const di_context_buffers *at;
    const di_ops *ops;
    di_stream *stream;
    di_batch batch;
    int32_t published; /* layer whose compressed entries are written already, -1 */
    int32_t block;     /* 0, or the rows of a sequence in a draft pass */
} di_pass;

/* forward.c: before the operations of a pass whose calls follow from this alone. True: they were
 * enqueued; else di_pass_recorded comes behind them. */
typedef struct di_pass_shape {
    bool drafts;                      /* a draft pass, else a step of blocks */
    bool samples;                     /* the step has params */
    int32_t n, n_verified, n_columns; /* sequences; drafts that the step verifies, of so many */
    int32_t n_own, own_rows; /* of the sequences, those with drafts of the host; their rows */
} di_pass_shape;
bool di_pass_record(const di_pass *p, di_pass_shape shape);
void di_pass_recorded(const di_pass *p);

/* block.c */
/* Gives the pages of a list back; nothing without release_layers. */
void di_pass_discard(const di_pass *p, const di_layer_ranges *list);
/* The same for a layer, and for what reading it mapped of the one before it. */
void di_pass_discard_layer(const di_pass *p, int32_t layer);
/* The token embeddings of the rows of the pass, in all streams. */
void di_pass_embed(const di_pass *p);
void di_pass_tap(const di_pass *p, const char *name, int32_t layer, di_ptr data, di_tap_type type,
                 int64_t row_width);
di_rope di_pass_rope(const di_pass *p, bool compressed);
/* The window ring of a layer; draft layers follow the backbone's. */
di_window di_pass_window(const di_pass *p, int32_t layer);
/* u = norm(collapse(streams, pre)) */
void di_pass_sublayer_in(const di_pass *p, di_ptr pre, di_vector norm);
/* A KV source takes the rows of the pass, from u, into the compressed cache. */
void di_pass_compress(const di_pass *p, int32_t layer);
/* A backbone layer, or a draft layer (num_hidden_layers + stage). */
void di_pass_block(const di_pass *p, int32_t layer);

/* forward.c: the batch over the step's row buffers; logits of the rows listed in `which` on the
 * device; what sampling reads (n params, biases, masks of `step`). */
di_batch di_pass_batch(const di_context *context, int32_t n_rows, di_ptr floor);
void di_pass_head(const di_pass *p, int32_t n_out, di_vector norm);
void di_pass_upload_sampling(const di_pass *p, const di_step *step, int32_t n_params);

/* verify.c: rows that the blocks of a step take: first those that the device makes, then those of the
 * blocks with drafts of the host; what is sampled by; the former, made on the device; how sampling is
 * called for a step's results; what comes out of the blocks; the host's view afterwards. */
static inline int32_t di_step_allotted_blocks(const di_step *step) {
    return step->n_blocks - step->n_own;
}
static inline int32_t di_step_allotted_rows(const di_step *step) {
    return di_step_allotted_blocks(step) + step->n_drafts;
}
static inline int32_t di_step_own_rows(const di_step *step) {
    int32_t n = step->n_own;
    for (int32_t i = di_step_allotted_blocks(step); i < step->n_blocks; i++)
        n += step->blocks[i].most;
    return n;
}
static inline int32_t di_step_block_rows(const di_step *step) {
    return di_step_allotted_rows(step) + di_step_own_rows(step);
}
static inline int32_t di_step_params(const di_step *step) {
    return di_step_allotted_blocks(step) + di_step_own_rows(step) + step->n_out;
}
void di_pass_upload_blocks(const di_pass *p, const di_step *step);
void di_pass_allot(const di_pass *p, const di_step *step);
void di_pass_accept(const di_pass *p, const di_step *step, const di_sample_args *sampled);
void di_blocks_advance(di_context *context, const di_step *step);
di_status di_blocks_check(di_context *context, const di_step *step, di_error *error);

/* host_experts.c: whether `host` can compute for this device; what crosses between the two, of a
 * context; y = experts(u) of a layer, from what the router chose and the shared expert gave. */
typedef struct di_crossing di_crossing;
di_status di_host_check(const di_backend *device, const di_backend *host, di_error *error);
di_status di_crossing_create(di_context *context, di_error *error);
void di_crossing_destroy(di_context *context);
void di_pass_host_experts(const di_pass *p, int32_t layer);

/* observe.c: window rows of the draft layers for the rows of the pass, from main_hidden. */
void di_pass_observe(const di_pass *p);
/* Before a step: true, and where its main_hidden goes, when that is put aside. Else all that was put
 * aside before is in the windows when it begins. */
bool di_context_put_aside(di_context *context, const di_step *step, di_ptr *where);
/* What was put aside of slot is not wanted any more. */
void di_context_drop_aside(di_context *context, int32_t slot);

#endif
