/* Demands between the fields of a config: each field is in its own range already (config.c). */
#include <inttypes.h>

#include "model/config_internal.h"

typedef struct checker {
    const di_config *c;
    const char *what;
    di_error *error;
} checker;

/* K of a product with quantised weights or inputs; N is free, its last tile may be partial. */
static di_status check_k(const checker *k, int64_t size, const char *fields, const char *tensor) {
    if (size % 32 == 0) return DI_OK;
    return di_fail(k->error, DI_ERR_INVALID,
                   "%s: text_config.%s gives %s a K of %" PRId64
                   ", expected a multiple of 32 (one quantisation group)",
                   k->what, fields, tensor, size);
}

static di_status check_widths(const checker *k) {
    const di_config *c = k->c;
    int64_t heads = c->num_attention_heads, d = c->head_dim;
    if (c->num_attention_heads % c->o_groups != 0) {
        return di_fail(k->error, DI_ERR_INVALID,
                       "%s: text_config.o_groups is %d, expected a divisor of num_attention_heads "
                       "%d",
                       k->what, (int)c->o_groups, (int)c->num_attention_heads);
    }
    DI_TRY(check_k(k, c->hidden_size, "hidden_size", "attn.wq_a"));
    DI_TRY(check_k(k, c->q_lora_rank, "q_lora_rank", "attn.wq_b"));
    DI_TRY(check_k(k, heads * d / c->o_groups, "num_attention_heads * head_dim / o_groups",
                   "attn.wo_a"));
    DI_TRY(
        check_k(k, (int64_t)c->o_groups * c->o_lora_rank, "o_groups * o_lora_rank", "attn.wo_b"));
    DI_TRY(check_k(k, c->moe_intermediate_size, "moe_intermediate_size", "ffn.experts.w2"));
    if (c->n_engram_layers > 0) {
        DI_TRY(check_k(k, c->engram_head_dim, "engram_head_dim", "engram.embed"));
    }
    return DI_OK;
}

/* The caches hold whole quantisation groups: 32 of the window and the index keys, 16 of Q4c. */
static di_status check_heads(const checker *k) {
    const di_config *c = k->c;
    const struct {
        const char *name;
        int32_t value;
    } dims[] = {{"head_dim", c->head_dim}, {"index_head_dim", c->index_head_dim}};
    if (c->qk_rope_head_dim % 2 != 0) {
        return di_fail(k->error, DI_ERR_INVALID,
                       "%s: text_config.qk_rope_head_dim is %d, expected an even number", k->what,
                       (int)c->qk_rope_head_dim);
    }
    for (int i = 0; i < 2; i++) {
        if (dims[i].value % 32 != 0) {
            return di_fail(k->error, DI_ERR_INVALID,
                           "%s: text_config.%s is %d, expected a multiple of 32 (caches hold whole "
                           "quantisation groups)",
                           k->what, dims[i].name, (int)dims[i].value);
        }
        if (c->qk_rope_head_dim > dims[i].value) {
            return di_fail(k->error, DI_ERR_INVALID,
                           "%s: text_config.qk_rope_head_dim is %d, expected at most %s %d",
                           k->what, (int)c->qk_rope_head_dim, dims[i].name, (int)dims[i].value);
        }
    }
    return DI_OK;
}

static di_status check_experts(const checker *k, const char *name, int32_t picked,
                               const char *total_name, int32_t total) {
    if (picked <= total) return DI_OK;
    return di_fail(k->error, DI_ERR_INVALID, "%s: text_config.%s is %d, expected at most %s %d",
                   k->what, name, (int)picked, total_name, (int)total);
}

static di_status check_ascending(const checker *k, const char *name, const int32_t *ids,
                                 int32_t n) {
    for (int32_t i = 1; i < n; i++) {
        if (ids[i] > ids[i - 1]) continue;
        return di_fail(k->error, DI_ERR_INVALID,
                       "%s: text_config.%s[%d] is %d after %d, expected ascending layers", k->what,
                       name, (int)i, (int)ids[i], (int)ids[i - 1]);
    }
    return DI_OK;
}

static di_status check_token(const checker *k, const char *name, int32_t id) {
    if (id < k->c->vocab_size) return DI_OK;
    return di_fail(k->error, DI_ERR_INVALID,
                   "%s: %s is %d, expected a token below text_config.vocab_size %d", k->what, name,
                   (int)id, (int)k->c->vocab_size);
}

static di_status check_tokens(const checker *k) {
    const di_config *c = k->c;
    DI_TRY(check_token(k, "bos_token_id", c->bos_token_id));
    DI_TRY(check_token(k, "eos_token_id", c->eos_token_id));
    DI_TRY(check_token(k, "pad_token_id", c->pad_token_id));
    DI_TRY(check_token(k, "image_token_id", c->image_token_id));
    DI_TRY(check_token(k, "text_config.engram_pad_token_id", c->engram_pad_token_id));
    return check_token(k, "text_config.dspark_noise_token_id", c->dspark_noise_token_id);
}

static di_status check_ratios(const checker *k) {
    const di_config *c = k->c;
    int32_t all = c->num_hidden_layers + c->num_nextn_predict_layers;
    for (int32_t i = 0; i < all; i++) {
        int32_t ratio = c->compress_ratios[i];
        if (ratio > 0 && i >= c->num_hidden_layers) {
            return di_fail(
                k->error, DI_ERR_INVALID,
                "%s: text_config.compress_ratios[%d] is %d, expected 0 for a draft layer", k->what,
                (int)i, (int)ratio);
        }
        if (ratio > 0 && DI_PAGE_TOKENS % ratio != 0) {
            return di_fail(k->error, DI_ERR_INVALID,
                           "%s: text_config.compress_ratios[%d] is %d, expected 0 or a divisor of "
                           "the page of %d tokens",
                           k->what, (int)i, (int)ratio, (int)DI_PAGE_TOKENS);
        }
    }
    return DI_OK;
}

static di_status check_engram(const checker *k) {
    const di_config *c = k->c;
    if (c->n_engram_layers == 0) return DI_OK;
    int32_t columns = (c->engram_max_ngram_size - 1) * c->engram_n_heads;
    if (columns > DI_MAX_ENGRAM_COLUMNS) {
        return di_fail(k->error, DI_ERR_INVALID,
                       "%s: text_config.engram_n_heads is %d: (engram_max_ngram_size %d - 1) * "
                       "engram_n_heads gives %d columns, expected at most %d",
                       k->what, (int)c->engram_n_heads, (int)c->engram_max_ngram_size, (int)columns,
                       (int)DI_MAX_ENGRAM_COLUMNS);
    }
    if (c->engram_compressed_vocab_size > c->vocab_size) {
        return di_fail(k->error, DI_ERR_INVALID,
                       "%s: text_config.engram_compressed_vocab_size is %" PRId64
                       ", expected at most vocab_size %d",
                       k->what, c->engram_compressed_vocab_size, (int)c->vocab_size);
    }
    return check_ascending(k, "engram_layer_ids", c->engram_layer_ids, c->n_engram_layers);
}

static di_status check_dspark(const checker *k) {
    const di_config *c = k->c;
    if (c->num_nextn_predict_layers == 0) return DI_OK;
    if (c->n_dspark_targets == 0) {
        return di_fail(k->error, DI_ERR_INVALID,
                       "%s: text_config.dspark_target_layer_ids is empty, expected a layer for the "
                       "%d draft layers to read",
                       k->what, (int)c->num_nextn_predict_layers);
    }
    DI_TRY(check_ascending(k, "dspark_target_layer_ids", c->dspark_target_layer_ids,
                           c->n_dspark_targets));
    return check_experts(k, "dspark_num_experts_per_tok", c->dspark_num_experts_per_tok,
                         "dspark_n_routed_experts", c->dspark_n_routed_experts);
}

static di_status check_vision(const checker *k) {
    const di_vision_config *v = &k->c->vision;
    if (v->num_hidden_layers == 0 || v->hidden_size % v->num_attention_heads == 0) return DI_OK;
    return di_fail(k->error, DI_ERR_INVALID,
                   "%s: vision_config.num_attention_heads is %d, expected a divisor of hidden_size "
                   "%d",
                   k->what, (int)v->num_attention_heads, (int)v->hidden_size);
}

di_status config__check(const di_config *c, const char *what, di_error *error) {
    checker k = {c, what, error};
    DI_TRY(check_heads(&k));
    DI_TRY(check_widths(&k));
    DI_TRY(check_experts(&k, "num_experts_per_tok", c->num_experts_per_tok, "n_routed_experts",
                         c->n_routed_experts));
    if (c->rope_scaling.factor > 0 && c->rope_scaling.beta_fast <= c->rope_scaling.beta_slow) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s: text_config.rope_scaling.beta_fast is %g, expected more than beta_slow "
                       "%g",
                       what, c->rope_scaling.beta_fast, c->rope_scaling.beta_slow);
    }
    DI_TRY(check_tokens(&k));
    DI_TRY(check_ratios(&k));
    DI_TRY(check_ascending(&k, "kv_source_layer_ids", c->kv_source_layer_ids, c->n_kv_sources));
    DI_TRY(check_ascending(&k, "index_source_layer_ids", c->index_source_layer_ids,
                           c->n_index_sources));
    DI_TRY(check_engram(&k));
    DI_TRY(check_dspark(&k));
    return check_vision(&k);
}
