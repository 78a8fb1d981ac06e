/* config.json of the release (composite: text_config, vision_config, quantization_config), parsed
 * and checked for consistency. Field names are the file's. Immutable after di_config_parse.
 */
#ifndef DI_MODEL_CONFIG_H
#define DI_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/ops.h"

enum {
    DI_MAX_LAYERS = 256, /* backbone and draft layers together */
    DI_MAX_ENGRAM_LAYERS = 8,
    DI_MAX_NGRAM = 8,
    DI_MAX_ENGRAM_COLUMNS = 128, /* (max_ngram - 1) * n_heads */
    DI_MAX_HC = 8,
    DI_PAGE_TOKENS = 64
};

typedef struct di_rope_scaling { /* YaRN; factor 0 when the file has none */
    double factor, beta_fast, beta_slow;
    int64_t original_max_position_embeddings;
} di_rope_scaling;

typedef struct di_vision_config { /* num_hidden_layers 0 when there is no vision tower */
    int32_t num_hidden_layers, hidden_size, num_attention_heads, intermediate_size, patch_size;
    int32_t downsample_ratio;
} di_vision_config;

typedef struct di_config {
    int32_t vocab_size, hidden_size, num_hidden_layers;
    int32_t num_attention_heads, head_dim, qk_rope_head_dim;
    int32_t q_lora_rank, o_lora_rank, o_groups;
    int32_t moe_intermediate_size, n_routed_experts, num_experts_per_tok;
    double rms_norm_eps, rope_theta, compress_rope_theta;
    di_rope_scaling rope_scaling;
    int64_t max_position_embeddings;
    int32_t sliding_window;
    int32_t compress_ratios[DI_MAX_LAYERS]; /* num_hidden_layers + num_nextn_predict_layers */
    int32_t n_kv_sources, kv_source_layer_ids[DI_MAX_LAYERS]; /* ascending */
    int32_t n_index_sources, index_source_layer_ids[DI_MAX_LAYERS];
    int32_t index_n_heads, index_head_dim, index_topk;
    int32_t candidate_source_layer_id; /* -1: none */
    int32_t candidate_topk_blocks, candidate_block_size;
    di_score scoring_func;
    double gate_temp; /* 1.0 where the file does not say, as in the release */
    bool norm_topk_prob;
    double routed_scaling_factor, swiglu_limit; /* limit 0: no clamp */
    int32_t hc_mult, hc_sinkhorn_iters;
    double hc_eps;
    int32_t n_engram_layers, engram_layer_ids[DI_MAX_ENGRAM_LAYERS];
    int64_t engram_num_embeddings[DI_MAX_ENGRAM_LAYERS];
    int32_t engram_max_ngram_size, engram_n_heads, engram_head_dim, engram_pad_token_id;
    int64_t engram_vocab_size, engram_compressed_vocab_size;
    int32_t num_nextn_predict_layers, dspark_block_size, dspark_noise_token_id;
    int32_t n_dspark_targets, dspark_target_layer_ids[DI_MAX_LAYERS];
    int32_t dspark_markov_rank, dspark_n_routed_experts, dspark_num_experts_per_tok;
    int32_t bos_token_id, eos_token_id, pad_token_id, image_token_id; /* -1 when absent */
    di_vision_config vision;

    /* Derived for every backbone layer (model.md section 1, table of layer roles). */
    struct di_layer_role {
        int32_t ratio;        /* 0: window only */
        int32_t kv_source;    /* layer whose compressed cache is read; -1 at ratio 0 */
        int32_t index_source; /* layer whose selection is used; -1 at ratio 0 */
        int32_t engram;       /* index into engram_layer_ids, -1 when none */
        bool is_kv_source, is_index_source;
        bool is_candidate_source, uses_candidates;
        int32_t dspark_target; /* index into dspark_target_layer_ids, -1 */
    } roles[DI_MAX_LAYERS];
} di_config;

/* Parses the text of a config.json; `what` names it in messages. Unknown fields are ignored, a
 * missing, ill-typed or contradictory one is DI_ERR_INVALID naming the field, what was found and
 * what is expected. */
di_status di_config_parse(const char *json, size_t size, const char *what, di_config *out,
                          di_error *error);
di_status di_config_load(const char *path, di_config *out, di_error *error);
/* The released config.json, which is in the tree (models/released/config.json, compiled in). */
const char *di_config_released(size_t *size);
/* A config of the tree by name: "released", or "tiny" (every mechanism, a few MB). NULL: none. */
const char *di_config_builtin(const char *name, size_t *size);

/* Rows of a window ring: sliding_window and the rollback margin 2 * (dspark_block_size + 1). */
int32_t di_config_rollback(const di_config *config);
int32_t di_config_ring_slots(const di_config *config);
/* Bytes of growing cache a token (890 at the released size), exact for a full page / 64. */
int64_t di_config_page_bytes(const di_config *config);

#endif
