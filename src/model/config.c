/* Reads config.json into di_config.
 *
 * One table says for every scalar field where it goes, what it may be and when it must be there;
 * lists and the few words that must have a certain value follow by hand. Ranges are chosen so that
 * every product of two or three fields fits 64 bits, which is what lets the contract and the
 * network compute shapes without further checks.
 */
#include "model/config.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "model/config_internal.h"

enum { CONFIG_MAX_BYTES = 1 << 20 };

typedef struct reader {
    const char *what;    /* names the source in messages */
    const char *section; /* "text_config." or "" */
    const di_json *object;
    di_config *config;
    di_error *error;
} reader;

typedef enum field_type { FIELD_I32, FIELD_I64, FIELD_F64, FIELD_BOOL } field_type;

/* When a field is looked at; otherwise it stays 0. */
typedef enum field_when { WHEN_ALWAYS, WHEN_CANDIDATES, WHEN_ENGRAM, WHEN_DSPARK } field_when;

typedef struct field {
    const char *name;
    field_type type;
    field_when when;
    size_t offset;
    double min, max; /* inclusive */
} field;

#define I32(name, when, min, max)                                                                  \
    { #name, FIELD_I32, when, offsetof(di_config, name), min, max }
#define I64(name, when, min, max)                                                                  \
    { #name, FIELD_I64, when, offsetof(di_config, name), min, max }
#define F64(name, when, min, max)                                                                  \
    { #name, FIELD_F64, when, offsetof(di_config, name), min, max }
#define BOOL(name, when)                                                                           \
    { #name, FIELD_BOOL, when, offsetof(di_config, name), 0, 1 }

static const field counts[] = {
    /* read before the rest, because the rest depends on them */
    I32(num_hidden_layers, WHEN_ALWAYS, 1, DI_MAX_LAYERS),
    I32(num_nextn_predict_layers, WHEN_ALWAYS, 0, DI_MAX_LAYERS - 1),
};

static const field fields[] = {
    I32(vocab_size, WHEN_ALWAYS, 1, 1 << 24),
    I32(hidden_size, WHEN_ALWAYS, 1, 1 << 18),
    I32(num_attention_heads, WHEN_ALWAYS, 1, 4096),
    I32(head_dim, WHEN_ALWAYS, 1, 1 << 16),
    I32(qk_rope_head_dim, WHEN_ALWAYS, 2, 1 << 16),
    I32(q_lora_rank, WHEN_ALWAYS, 1, 1 << 18),
    I32(o_lora_rank, WHEN_ALWAYS, 1, 1 << 16),
    I32(o_groups, WHEN_ALWAYS, 1, 4096),
    I32(moe_intermediate_size, WHEN_ALWAYS, 1, 1 << 18),
    I32(n_routed_experts, WHEN_ALWAYS, 1, 4096),
    I32(num_experts_per_tok, WHEN_ALWAYS, 1, 4096),
    F64(rms_norm_eps, WHEN_ALWAYS, 0, 1),
    F64(rope_theta, WHEN_ALWAYS, 1, 1e15),
    F64(compress_rope_theta, WHEN_ALWAYS, 1, 1e15),
    I64(max_position_embeddings, WHEN_ALWAYS, 1, 1 << 30),
    I32(sliding_window, WHEN_ALWAYS, 1, 1 << 20),
    I32(index_n_heads, WHEN_ALWAYS, 1, 4096),
    I32(index_head_dim, WHEN_ALWAYS, 1, 1 << 16),
    I32(index_topk, WHEN_ALWAYS, 1, 1 << 20),
    I32(candidate_topk_blocks, WHEN_CANDIDATES, 1, 1 << 24),
    I32(candidate_block_size, WHEN_CANDIDATES, 1, 1 << 20),
    BOOL(norm_topk_prob, WHEN_ALWAYS),
    F64(routed_scaling_factor, WHEN_ALWAYS, 0, 1e6),
    F64(swiglu_limit, WHEN_ALWAYS, 0, 1e30),
    I32(hc_mult, WHEN_ALWAYS, 1, DI_MAX_HC),
    I32(hc_sinkhorn_iters, WHEN_ALWAYS, 1, 10000),
    F64(hc_eps, WHEN_ALWAYS, 0, 1),
    I32(engram_max_ngram_size, WHEN_ENGRAM, 2, DI_MAX_NGRAM),
    I32(engram_n_heads, WHEN_ENGRAM, 1, DI_MAX_ENGRAM_COLUMNS),
    I32(engram_head_dim, WHEN_ENGRAM, 1, 1 << 16),
    I32(engram_pad_token_id, WHEN_ENGRAM, 0, 1 << 24),
    I64(engram_vocab_size, WHEN_ENGRAM, 2, (double)(1LL << 36)),
    I64(engram_compressed_vocab_size, WHEN_ENGRAM, 1, 1 << 24),
    I32(dspark_block_size, WHEN_DSPARK, 1, 64),
    I32(dspark_noise_token_id, WHEN_DSPARK, 0, 1 << 24),
    I32(dspark_markov_rank, WHEN_DSPARK, 1, 1 << 16),
    I32(dspark_n_routed_experts, WHEN_DSPARK, 1, 4096),
    I32(dspark_num_experts_per_tok, WHEN_DSPARK, 1, 4096),
};

/* What was found, short enough for a message. */
static void describe(const di_json *value, char out[64]) {
    di_buffer text = DI_BUFFER_EMPTY;
    di_json_write(&text, value);
    if (text.failed || !text.data) {
        strcpy(out, "?");
    } else if (text.size < 64) {
        memcpy(out, text.data, text.size + 1);
    } else {
        memcpy(out, text.data, 60);
        strcpy(out + 60, "...");
    }
    di_buffer_free(&text);
}

static di_status fail_missing(const reader *r, const char *name) {
    return di_fail(r->error, DI_ERR_INVALID, "%s: %s%s is missing", r->what, r->section, name);
}

static di_status fail_value(const reader *r, const char *name, const di_json *value,
                            const char *expected) {
    char found[64];
    describe(value, found);
    return di_fail(r->error, DI_ERR_INVALID, "%s: %s%s is %s, expected %s", r->what, r->section,
                   name, found, expected);
}

static di_status fail_range(const reader *r, const field *f, const di_json *value) {
    char expected[96];
    if (f->type == FIELD_BOOL) {
        strcpy(expected, "true or false");
    } else if (f->type == FIELD_F64) {
        snprintf(expected, sizeof expected, "a number from %g to %g", f->min, f->max);
    } else {
        snprintf(expected, sizeof expected, "an integer from %.0f to %.0f", f->min, f->max);
    }
    return fail_value(r, f->name, value, expected);
}

static di_status read_field(const reader *r, const field *f, void *base) {
    const di_json *value = di_json_get(r->object, f->name);
    if (!value) return fail_missing(r, f->name);
    char *target = (char *)base + f->offset;
    int64_t integer;
    double number;
    bool truth;
    switch (f->type) {
    case FIELD_I32:
    case FIELD_I64:
        if (!di_json_int64(value, &integer) || (double)integer < f->min ||
            (double)integer > f->max) {
            return fail_range(r, f, value);
        }
        if (f->type == FIELD_I64) {
            memcpy(target, &integer, sizeof integer);
        } else {
            int32_t narrow = (int32_t)integer;
            memcpy(target, &narrow, sizeof narrow);
        }
        return DI_OK;
    case FIELD_F64:
        if (!di_json_double(value, &number) || !(number >= f->min && number <= f->max)) {
            return fail_range(r, f, value);
        }
        memcpy(target, &number, sizeof number);
        return DI_OK;
    case FIELD_BOOL:
        if (!di_json_bool(value, &truth)) return fail_range(r, f, value);
        memcpy(target, &truth, sizeof truth);
        return DI_OK;
    }
    return DI_OK;
}

static bool field_applies(const di_config *config, field_when when) {
    switch (when) {
    case WHEN_ALWAYS: return true;
    case WHEN_CANDIDATES: return config->candidate_source_layer_id >= 0;
    case WHEN_ENGRAM: return config->n_engram_layers > 0;
    case WHEN_DSPARK: return config->num_nextn_predict_layers > 0;
    }
    return true;
}

static di_status read_fields(const reader *r, const field *table, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (field_applies(r->config, table[i].when)) DI_TRY(read_field(r, &table[i], r->config));
    }
    return DI_OK;
}

/* A list of integers from min to max. Absent or null counts as empty when `optional`. */
static di_status read_list(const reader *r, const char *name, bool optional, int64_t min,
                           int64_t max, int32_t capacity, int64_t *values, int32_t *n) {
    const di_json *list = di_json_get(r->object, name);
    *n = 0;
    if (!list || list->type == DI_JSON_NULL) return optional ? DI_OK : fail_missing(r, name);
    if (list->type != DI_JSON_ARRAY) return fail_value(r, name, list, "a list of integers");
    if (list->length > (size_t)capacity) {
        return di_fail(r->error, DI_ERR_INVALID, "%s: %s%s has %zu entries, at most %d are allowed",
                       r->what, r->section, name, list->length, (int)capacity);
    }
    for (const di_json *item = list->first; item; item = item->next, (*n)++) {
        if (di_json_int64(item, &values[*n]) && values[*n] >= min && values[*n] <= max) continue;
        char where[96], expected[80];
        snprintf(where, sizeof where, "%s[%d]", name, (int)*n);
        snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, min, max);
        return fail_value(r, where, item, expected);
    }
    return DI_OK;
}

static di_status read_list32(const reader *r, const char *name, bool optional, int64_t min,
                             int64_t max, int32_t capacity, int32_t *values, int32_t *n) {
    int64_t wide[DI_MAX_LAYERS];
    DI_TRY(read_list(r, name, optional, min, max, capacity, wide, n));
    for (int32_t i = 0; i < *n; i++) values[i] = (int32_t)wide[i];
    return DI_OK;
}

static di_status fail_length(const reader *r, const char *name, int32_t found, int32_t expected,
                             const char *why) {
    return di_fail(r->error, DI_ERR_INVALID, "%s: %s%s has %d entries, expected %d (%s)", r->what,
                   r->section, name, (int)found, (int)expected, why);
}

static di_status read_lists(const reader *r) {
    di_config *c = r->config;
    int32_t layers = c->num_hidden_layers, all = layers + c->num_nextn_predict_layers, n;
    DI_TRY(read_list32(r, "compress_ratios", false, 0, DI_PAGE_TOKENS, DI_MAX_LAYERS,
                       c->compress_ratios, &n));
    if (n != all) {
        return fail_length(r, "compress_ratios", n, all,
                           "num_hidden_layers + num_nextn_predict_layers");
    }
    DI_TRY(read_list32(r, "kv_source_layer_ids", true, 0, layers - 1, layers,
                       c->kv_source_layer_ids, &c->n_kv_sources));
    DI_TRY(read_list32(r, "index_source_layer_ids", true, 0, layers - 1, layers,
                       c->index_source_layer_ids, &c->n_index_sources));
    DI_TRY(read_list32(r, "engram_layer_ids", true, 0, layers - 1, DI_MAX_ENGRAM_LAYERS,
                       c->engram_layer_ids, &c->n_engram_layers));
    if (c->n_engram_layers > 0) {
        DI_TRY(read_list(r, "engram_num_embeddings", false, 1, INT64_C(1) << 40,
                         DI_MAX_ENGRAM_LAYERS, c->engram_num_embeddings, &n));
        if (n != c->n_engram_layers) {
            return fail_length(r, "engram_num_embeddings", n, c->n_engram_layers,
                               "one for each of engram_layer_ids");
        }
    }
    if (c->num_nextn_predict_layers > 0) {
        DI_TRY(read_list32(r, "dspark_target_layer_ids", false, 0, layers - 1, layers,
                           c->dspark_target_layer_ids, &c->n_dspark_targets));
    }
    return DI_OK;
}

/* An optional token id: -1 when absent or null. */
static di_status read_token(const reader *r, const char *name, int32_t *out) {
    const di_json *value = di_json_get(r->object, name);
    int64_t id;
    *out = -1;
    if (!value || value->type == DI_JSON_NULL) return DI_OK;
    if (!di_json_int64(value, &id) || id < -1 || id > 1 << 24) {
        return fail_value(r, name, value, "a token id");
    }
    *out = (int32_t)id;
    return DI_OK;
}

/* What the release fixes and this engine has in its code: other values would compute nonsense. */
static di_status demand(const reader *r, const char *name, const char *json) {
    const di_json *value = di_json_get(r->object, name);
    if (!value) return DI_OK;
    char found[64];
    describe(value, found);
    return strcmp(found, json) == 0 ? DI_OK : fail_value(r, name, value, json);
}

static di_status read_fixed(const reader *top, const reader *text) {
    DI_TRY(demand(top, "model_type", "\"deepseek_v41\""));
    DI_TRY(demand(text, "num_key_value_heads", "1"));
    DI_TRY(demand(text, "n_shared_experts", "1"));
    DI_TRY(demand(text, "hidden_act", "\"silu\""));
    DI_TRY(demand(text, "topk_method", "\"noaux_tc\""));
    DI_TRY(demand(text, "attention_bias", "false"));
    DI_TRY(demand(text, "tie_word_embeddings", "false"));
    reader quant = *top;
    quant.section = "quantization_config.";
    quant.object = di_json_get(top->object, "quantization_config");
    DI_TRY(demand(&quant, "quant_method", "\"fp8\""));
    DI_TRY(demand(&quant, "weight_block_size", "[32, 32]"));
    DI_TRY(demand(&quant, "scale_fmt", "\"ue8m0\""));
    return demand(&quant, "expert_dtype", "\"fp4\"");
}

static di_status read_scoring(const reader *r) {
    static const struct {
        const char *name;
        di_score value;
    } known[] = {{"sqrtsoftplus", DI_SCORING_SQRTSOFTPLUS},
                 {"sigmoid", DI_SCORING_SIGMOID},
                 {"softmax", DI_SCORING_SOFTMAX}};
    const di_json *value = di_json_get(r->object, "scoring_func");
    if (!value) return fail_missing(r, "scoring_func");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!di_json_is_string(value, known[i].name)) continue;
        r->config->scoring_func = known[i].value;
        return DI_OK;
    }
    return fail_value(r, "scoring_func", value, "\"sqrtsoftplus\", \"sigmoid\" or \"softmax\"");
}

static di_status read_rope_scaling(const reader *text) {
    static const field table[] = {
        {"factor", FIELD_F64, WHEN_ALWAYS, offsetof(di_rope_scaling, factor), 1, 1e6},
        {"beta_fast", FIELD_F64, WHEN_ALWAYS, offsetof(di_rope_scaling, beta_fast), 1e-3, 1e6},
        {"beta_slow", FIELD_F64, WHEN_ALWAYS, offsetof(di_rope_scaling, beta_slow), 1e-3, 1e6},
        {"original_max_position_embeddings", FIELD_I64, WHEN_ALWAYS,
         offsetof(di_rope_scaling, original_max_position_embeddings), 1, 1 << 30},
    };
    const di_json *value = di_json_get(text->object, "rope_scaling");
    if (!value || value->type == DI_JSON_NULL) return DI_OK;
    if (value->type != DI_JSON_OBJECT) {
        return fail_value(text, "rope_scaling", value, "an object or null");
    }
    reader r = *text;
    r.section = "text_config.rope_scaling.";
    r.object = value;
    DI_TRY(demand(&r, "rope_type", "\"yarn\""));
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        DI_TRY(read_field(&r, &table[i], &text->config->rope_scaling));
    }
    return DI_OK;
}

static di_status read_vision(const reader *top) {
#define VISION(name, min, max)                                                                     \
    { #name, FIELD_I32, WHEN_ALWAYS, offsetof(di_vision_config, name), min, max }
    static const field table[] = {
        VISION(num_hidden_layers, 1, 1024),   VISION(hidden_size, 1, 1 << 16),
        VISION(num_attention_heads, 1, 4096), VISION(intermediate_size, 1, 1 << 18),
        VISION(patch_size, 1, 1024),          VISION(downsample_ratio, 1, 64),
    };
#undef VISION
    const di_json *value = di_json_get(top->object, "vision_config");
    if (!value || value->type == DI_JSON_NULL) return DI_OK;
    if (value->type != DI_JSON_OBJECT) {
        return fail_value(top, "vision_config", value, "an object or null");
    }
    reader r = *top;
    r.section = "vision_config.";
    r.object = value;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        DI_TRY(read_field(&r, &table[i], &top->config->vision));
    }
    return DI_OK;
}

static di_status read_text(const reader *r) {
    di_config *c = r->config;
    DI_TRY(read_fields(r, counts, sizeof counts / sizeof *counts));
    if (c->num_hidden_layers + c->num_nextn_predict_layers > DI_MAX_LAYERS) {
        return di_fail(r->error, DI_ERR_INVALID,
                       "%s: text_config.num_hidden_layers %d and num_nextn_predict_layers %d are "
                       "more than %d layers together",
                       r->what, (int)c->num_hidden_layers, (int)c->num_nextn_predict_layers,
                       (int)DI_MAX_LAYERS);
    }
    DI_TRY(read_lists(r));
    DI_TRY(read_token(r, "candidate_source_layer_id", &c->candidate_source_layer_id));
    DI_TRY(read_fields(r, fields, sizeof fields / sizeof *fields));
    DI_TRY(read_scoring(r));
    DI_TRY(read_rope_scaling(r));
    static const field gate_temp = F64(gate_temp, WHEN_ALWAYS, 1e-6, 1e6);
    c->gate_temp = 1.0;
    return di_json_get(r->object, "gate_temp") ? read_field(r, &gate_temp, c) : DI_OK;
}

static di_status read_document(const di_json *document, const char *what, di_config *out,
                               di_error *error) {
    reader top = {what, "", document, out, error};
    if (document->type != DI_JSON_OBJECT) {
        return di_fail(error, DI_ERR_INVALID, "%s: expected a JSON object", what);
    }
    reader text = top;
    text.section = "text_config.";
    text.object = di_json_get(document, "text_config");
    if (!text.object) return fail_missing(&top, "text_config");
    if (text.object->type != DI_JSON_OBJECT) {
        return fail_value(&top, "text_config", text.object, "an object");
    }
    DI_TRY(read_fixed(&top, &text));
    DI_TRY(read_text(&text));
    DI_TRY(read_token(&top, "bos_token_id", &out->bos_token_id));
    DI_TRY(read_token(&top, "eos_token_id", &out->eos_token_id));
    DI_TRY(read_token(&top, "pad_token_id", &out->pad_token_id));
    DI_TRY(read_token(&top, "image_token_id", &out->image_token_id));
    return read_vision(&top);
}

di_status di_config_parse(const char *json, size_t size, const char *what, di_config *out,
                          di_error *error) {
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *document;
    memset(out, 0, sizeof *out);
    di_status status = di_json_parse(json, size, what, &arena, &document, error);
    if (status == DI_OK) status = read_document(document, what, out, error);
    if (status == DI_OK) status = config__check(out, what, error);
    if (status == DI_OK) status = config__derive_roles(out, what, error);
    di_arena_free(&arena);
    return status;
}

di_status di_config_load(const char *path, di_config *out, di_error *error) {
    char *json;
    uint64_t size;
    DI_TRY(di_file_read(path, CONFIG_MAX_BYTES, &json, &size, error));
    di_status status = di_config_parse(json, (size_t)size, path, out, error);
    free(json);
    return status;
}

int32_t di_config_rollback(const di_config *config) { return 2 * (config->dspark_block_size + 1); }

int32_t di_config_ring_slots(const di_config *config) {
    return config->sliding_window + di_config_rollback(config);
}

int64_t di_config_page_bytes(const di_config *config) {
    int64_t d = config->head_dim, index = config->index_head_dim, bytes = 0;
    int64_t entry = d / 2 + d / 16 + index / 2 + index / 32; /* codes and scales of both caches */
    for (int32_t i = 0; i < config->n_kv_sources; i++) {
        int32_t ratio = config->compress_ratios[config->kv_source_layer_ids[i]];
        bytes += entry * (DI_PAGE_TOKENS / ratio);
    }
    return bytes;
}
