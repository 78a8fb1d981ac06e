/* The checkpoint contract: every tensor that a config implies (model.md section 2, vision.md
 * section 2). One function per part of the model reads like the table there; the counts and bytes
 * of the release come out to the last byte, which a test holds.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model/checkpoint.h"

typedef struct walk {
    const di_config *c;
    di_tensor_visit visit;
    void *user;
    di_error *error;
    di_tensor_kind kind; /* of what is emitted next */
    bool required;
    int32_t layer;    /* the same */
    char prefix[40];  /* "layers.3." */
    di_status status; /* sticky: after a failure nothing more is visited */
} walk;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static void emit(walk *w, const char *name, const char *suffix, di_dtype dtype, int64_t n,
                 int64_t k) {
    if (w->status != DI_OK) return;
    di_tensor_spec spec = {.dtype = dtype,
                           .n_dims = k > 0 ? 2 : 1,
                           .shape = {n, k > 0 ? k : 0},
                           .kind = w->kind,
                           .layer = w->layer,
                           .required = w->required};
    snprintf(spec.name, sizeof spec.name, "%s%s%s", w->prefix, name, suffix);
    w->status = w->visit(w->user, &spec, w->error);
}

static void vector(walk *w, const char *name, di_dtype dtype, int64_t n) {
    emit(w, name, "", dtype, n, 0);
}

static void matrix(walk *w, const char *name, di_dtype dtype, int64_t n, int64_t k) {
    emit(w, name, "", dtype, n, k);
}

/* FP8 [N, K] with a scale per tile of 32 x 32. */
static void fp8(walk *w, const char *name, int64_t n, int64_t k) {
    emit(w, name, ".weight", DI_F8_E4M3, n, k);
    emit(w, name, ".scale", DI_F8_E8M0, ceil_div(n, 32), ceil_div(k, 32));
}

/* FP4 [N, K], two codes a byte, with a scale per row and 32 columns. */
static void fp4(walk *w, const char *name, int64_t n, int64_t k) {
    emit(w, name, ".weight", DI_FP4_PAIR, n, k / 2);
    emit(w, name, ".scale", DI_F8_E8M0, n, k / 32);
}

static void attention(walk *w) {
    const di_config *c = w->c;
    int64_t d = c->hidden_size, q = c->q_lora_rank, hd = c->head_dim;
    int64_t heads = c->num_attention_heads, mid = (int64_t)c->o_groups * c->o_lora_rank;
    w->kind = DI_KIND_ATTENTION;
    vector(w, "attn_norm.weight", DI_BF16, d);
    vector(w, "ffn_norm.weight", DI_BF16, d);
    fp8(w, "attn.wq_a", q, d);
    vector(w, "attn.q_norm.weight", DI_BF16, q);
    fp8(w, "attn.wq_b", heads * hd, q);
    fp8(w, "attn.wkv", hd, d);
    vector(w, "attn.kv_norm.weight", DI_BF16, hd);
    fp8(w, "attn.wo_a", mid, heads * hd / c->o_groups);
    fp8(w, "attn.wo_b", d, mid);
    vector(w, "attn.attn_sink", DI_F32, heads);
}

static void hyper_connections(walk *w) {
    int64_t hc = w->c->hc_mult, mixes = (2 + hc) * hc;
    w->kind = DI_KIND_ATTENTION;
    matrix(w, "hc_attn_fn", DI_F32, mixes, hc * w->c->hidden_size);
    vector(w, "hc_attn_base", DI_F32, mixes);
    vector(w, "hc_attn_scale", DI_F32, 3);
    matrix(w, "hc_ffn_fn", DI_F32, mixes, hc * w->c->hidden_size);
    vector(w, "hc_ffn_base", DI_F32, mixes);
    vector(w, "hc_ffn_scale", DI_F32, 3);
}

static void experts(walk *w, int32_t n_experts) {
    int64_t d = w->c->hidden_size, inter = w->c->moe_intermediate_size;
    w->kind = DI_KIND_SHARED;
    matrix(w, "ffn.gate.weight", DI_BF16, n_experts, d);
    vector(w, "ffn.gate.bias", DI_F32, n_experts);
    vector(w, "ffn.gate.bias_vl", DI_F32, n_experts);
    fp8(w, "ffn.shared_experts.w1", inter, d);
    fp8(w, "ffn.shared_experts.w2", d, inter);
    fp8(w, "ffn.shared_experts.w3", inter, d);
    w->kind = DI_KIND_EXPERTS;
    for (int32_t e = 0; e < n_experts && w->status == DI_OK; e++) {
        char name[48];
        for (int part = 1; part <= 3; part++) {
            snprintf(name, sizeof name, "ffn.experts.%d.w%d", (int)e, part);
            if (part == 2) {
                fp4(w, name, d, inter);
            } else {
                fp4(w, name, inter, d);
            }
        }
    }
}

static void compressor(walk *w, int32_t ratio) {
    int64_t d = w->c->hidden_size, hd = w->c->head_dim;
    w->kind = DI_KIND_COMPRESSOR;
    matrix(w, "attn.compressor.wkv.weight", DI_BF16, hd, d);
    if (ratio > 1) matrix(w, "attn.compressor.wgate.weight", DI_BF16, hd, d);
    vector(w, "attn.compressor.norm.weight", DI_BF16, hd);
}

static void indexer(walk *w, bool owns_keys) {
    const di_config *c = w->c;
    w->kind = DI_KIND_INDEXER;
    fp8(w, "attn.indexer.wq_b", (int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank);
    matrix(w, "attn.indexer.weights_proj.weight", DI_BF16, c->index_n_heads, c->hidden_size);
    if (!owns_keys) return;
    matrix(w, "attn.indexer.wk.weight", DI_BF16, c->index_head_dim, c->head_dim);
    vector(w, "attn.indexer.k_norm.weight", DI_BF16, c->index_head_dim);
}

static void engram(walk *w, int32_t table) {
    const di_config *c = w->c;
    int64_t rows = c->engram_num_embeddings[table], e = c->engram_head_dim, d = c->hidden_size;
    int64_t columns = (int64_t)(c->engram_max_ngram_size - 1) * c->engram_n_heads;
    w->kind = DI_KIND_ENGRAM;
    matrix(w, "engram.embed.weight", DI_F8_E4M3, rows, e);
    matrix(w, "engram.embed.scale", DI_F8_E8M0, rows, e / 32); /* per row, unlike a matrix */
    fp8(w, "engram.wkv", (c->hc_mult + 1) * d, columns * e);
    matrix(w, "engram.q_weight", DI_BF16, c->hc_mult, d);
    matrix(w, "engram.k_weight", DI_BF16, c->hc_mult, d);
}

static void backbone_layer(walk *w, int32_t layer) {
    const struct di_layer_role *role = &w->c->roles[layer];
    w->layer = layer;
    snprintf(w->prefix, sizeof w->prefix, "layers.%d.", (int)layer);
    attention(w);
    hyper_connections(w);
    if (role->is_kv_source) compressor(w, role->ratio);
    if (role->is_index_source) indexer(w, role->is_kv_source);
    if (role->engram >= 0) engram(w, role->engram);
    experts(w, w->c->n_routed_experts);
}

static di_status as_dspark(void *user, const di_tensor_spec *spec, di_error *error) {
    const walk *outer = user;
    di_tensor_spec copy = *spec;
    copy.kind = DI_KIND_DSPARK;
    return outer->visit(outer->user, &copy, error);
}

/* Draft layers have the names of backbone layers and count as DSpark as a whole. */
static void draft_layer(walk *outer, int32_t stage) {
    const di_config *c = outer->c;
    int64_t d = c->hidden_size, rank = c->dspark_markov_rank;
    walk w = *outer;
    w.visit = as_dspark;
    w.user = outer;
    w.layer = c->num_hidden_layers + stage;
    snprintf(w.prefix, sizeof w.prefix, "mtp.%d.", (int)stage);
    attention(&w);
    hyper_connections(&w);
    experts(&w, c->dspark_n_routed_experts);
    if (stage == 0) {
        fp8(&w, "main_proj", d, d * c->n_dspark_targets);
        vector(&w, "main_norm.weight", DI_BF16, d);
    }
    if (stage == c->num_nextn_predict_layers - 1) {
        vector(&w, "norm.weight", DI_BF16, d);
        matrix(&w, "markov_head.embed.weight", DI_BF16, c->vocab_size, rank);
        matrix(&w, "markov_head.head.weight", DI_BF16, c->vocab_size, rank);
        matrix(&w, "confidence_head.proj.weight", DI_BF16, 1, d + rank);
    }
    outer->status = w.status;
}

static void vision_block(walk *w, int32_t block) {
    int64_t h = w->c->vision.hidden_size, inter = w->c->vision.intermediate_size;
    snprintf(w->prefix, sizeof w->prefix, "vision.blocks.%d.", (int)block);
    vector(w, "norm1.weight", DI_BF16, h);
    matrix(w, "attn.wqkv.weight", DI_BF16, 3 * h, h);
    vector(w, "attn.wqkv.bias", DI_BF16, 3 * h);
    matrix(w, "attn.wo.weight", DI_BF16, h, h);
    vector(w, "attn.wo.bias", DI_BF16, h);
    vector(w, "norm2.weight", DI_BF16, h);
    matrix(w, "mlp.w1.weight", DI_BF16, 2 * inter, h);
    matrix(w, "mlp.w2.weight", DI_BF16, h, inter);
}

static void vision(walk *w) {
    const di_vision_config *v = &w->c->vision;
    int64_t d = w->c->hidden_size, h = v->hidden_size;
    int64_t patch = 3 * (int64_t)v->patch_size * v->patch_size;
    int64_t cell = h * v->downsample_ratio * v->downsample_ratio;
    w->kind = DI_KIND_VISION;
    w->required = false;
    w->prefix[0] = '\0';
    matrix(w, "vision.patch_embed.proj.weight", DI_BF16, h, patch);
    vector(w, "vision.patch_embed.proj.bias", DI_BF16, h);
    for (int32_t i = 0; i < v->num_hidden_layers; i++) vision_block(w, i);
    w->prefix[0] = '\0';
    vector(w, "vision.norm.weight", DI_BF16, h);
    matrix(w, "aligner.w1.weight", DI_BF16, d, cell);
    vector(w, "aligner.w1.bias", DI_BF16, d);
    matrix(w, "aligner.w2.weight", DI_BF16, d, d);
    vector(w, "aligner.w2.bias", DI_BF16, d);
    vector(w, "image_start", DI_BF16, d);
    vector(w, "image_end", DI_BF16, d);
    vector(w, "image_newline", DI_BF16, d);
}

di_status di_contract_each(const di_config *config, di_tensor_visit visit, void *user,
                           di_error *error) {
    walk w = {.c = config, .visit = visit, .user = user, .error = error, .required = true};
    w.layer = -1;
    w.kind = DI_KIND_EMBED;
    matrix(&w, "embed.weight", DI_BF16, config->vocab_size, config->hidden_size);
    w.kind = DI_KIND_HEAD;
    vector(&w, "norm.weight", DI_BF16, config->hidden_size);
    matrix(&w, "head.weight", DI_BF16, config->vocab_size, config->hidden_size);
    for (int32_t i = 0; i < config->num_hidden_layers; i++) backbone_layer(&w, i);
    for (int32_t i = 0; i < config->num_nextn_predict_layers; i++) draft_layer(&w, i);
    w.layer = -1;
    if (config->vision.num_hidden_layers > 0) vision(&w);
    return w.status;
}
