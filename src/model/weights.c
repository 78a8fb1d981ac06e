/* From tensors to weights: every tensor of the contract is found by name and bound to the backend.
 * Shapes and dtypes were checked when the checkpoint was opened, so a missing name here is our own
 * mistake and reported as such.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/network.h"

/* The first failure sticks; later calls do nothing. */
typedef struct loader {
    di_model *model;
    di_backend *backend; /* what is bound goes to it */
    const di_model_options *options;
    di_status status;
    di_error *error;
    int64_t done, total; /* tensors */
} loader;

static void report(loader *l) {
    l->done++;
    if (!l->options->progress || l->done % 256 != 0) return;
    if (!l->options->progress(l->options->user, l->done, l->total)) {
        l->status = di_fail(l->error, DI_ERR_CANCELLED, "loading was stopped");
    }
}

static const di_tensor *find(loader *l, const char *name) {
    const di_tensor *tensor = di_checkpoint_find(l->model->checkpoint, name);
    if (!tensor) {
        l->status =
            di_fail(l->error, DI_ERR_INVALID, "tensor %s is missing (not in the contract)", name);
    }
    return tensor;
}

/* The device has a copy: the file's pages would only fill the host's memory. */
static void release_copied(const loader *l, const di_tensor *tensor, di_ptr at) {
    bool copied = l->backend->device && at.address != (uint64_t)(uintptr_t)tensor->data;
    if (l->status == DI_OK && copied) di_tensor_release(tensor);
}

static di_ptr bind_tensor(loader *l, const char *name, const di_tensor **tensor) {
    di_ptr ptr = DI_NONE;
    if (l->status != DI_OK || !(*tensor = find(l, name))) return ptr;
    di_backend *backend = l->backend;
    l->status = backend->bind(backend, (*tensor)->data, (*tensor)->bytes, name, &ptr, l->error);
    release_copied(l, *tensor, ptr);
    report(l);
    return ptr;
}

__attribute__((format(printf, 3, 4))) static void vector(loader *l, di_vector *out,
                                                         const char *format, ...) {
    char name[128];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    const di_tensor *tensor = NULL;
    di_ptr data = bind_tensor(l, name, &tensor);
    if (l->status == DI_OK) *out = (di_vector){tensor->dtype, (int32_t)tensor->shape[0], data};
}

/* For products; scale NULL where there is none. */
static void bind_product(loader *l, const di_tensor *tensor, const di_tensor *scale, int32_t groups,
                         di_matrix *out) {
    di_backend *backend = l->backend;
    const di_host_matrix m = {out->dtype, out->n,       out->k,
                              groups,     tensor->data, scale ? scale->data : NULL};
    l->status = backend->bind_matrix(backend, &m, tensor->name, out, l->error);
    release_copied(l, tensor, out->data);
    report(l);
    if (!scale) return;
    release_copied(l, scale, out->scale);
    report(l);
}

/* `format` gives the name without its last part: "X" for X.weight and, when quantised, X.scale.
 * A name that ends in '=' is complete as it is. */
__attribute__((format(printf, 3, 4))) static void matrix(loader *l, di_matrix *out,
                                                         const char *format, ...) {
    char stem[112], name[128];
    va_list args;
    va_start(args, format);
    vsnprintf(stem, sizeof stem, format, args);
    va_end(args);
    size_t n = strlen(stem);
    bool whole = n > 0 && stem[n - 1] == '=';
    snprintf(name, sizeof name, whole ? "%.*s" : "%.*s.weight", (int)(whole ? n - 1 : n), stem);
    const di_tensor *tensor = NULL, *scale = NULL;
    if (l->status != DI_OK || !(tensor = find(l, name))) return;
    int64_t values = tensor->dtype == DI_FP4_PAIR ? 2 : 1;
    int32_t groups = di_matrix_groups(&l->model->config, name);
    *out = (di_matrix){tensor->dtype, (int32_t)tensor->shape[0],
                       (int32_t)(tensor->shape[1] * values), DI_NONE, DI_NONE};
    if (groups == 0) {
        out->data = bind_tensor(l, name, &tensor);
        return;
    }
    if (tensor->dtype == DI_F8_E4M3 || tensor->dtype == DI_FP4_PAIR) {
        snprintf(name, sizeof name, "%s.scale", stem);
        if (!(scale = find(l, name))) return;
    }
    bind_product(l, tensor, scale, groups, out);
}

static void mix(loader *l, di_mix_weights *out, const char *prefix, const char *site) {
    matrix(l, &out->fn, "%s.hc_%s_fn=", prefix, site);
    vector(l, &out->base, "%s.hc_%s_base", prefix, site);
    vector(l, &out->scale, "%s.hc_%s_scale", prefix, site);
}

static void attention(loader *l, di_block_weights *b, const char *p) {
    vector(l, &b->attn_norm, "%s.attn_norm.weight", p);
    matrix(l, &b->wq_a, "%s.attn.wq_a", p);
    vector(l, &b->q_norm, "%s.attn.q_norm.weight", p);
    matrix(l, &b->wq_b, "%s.attn.wq_b", p);
    matrix(l, &b->wkv, "%s.attn.wkv", p);
    vector(l, &b->kv_norm, "%s.attn.kv_norm.weight", p);
    matrix(l, &b->wo_a, "%s.attn.wo_a", p);
    matrix(l, &b->wo_b, "%s.attn.wo_b", p);
    vector(l, &b->sink, "%s.attn.attn_sink", p);
}

static void experts(loader *l, di_moe_weights *moe, const char *p) {
    if (l->status != DI_OK) return;
    size_t bytes = (size_t)moe->n_experts * sizeof(di_expert);
    di_expert *table = calloc((size_t)moe->n_experts, sizeof *table);
    if (!table) {
        l->status = di_fail(l->error, DI_ERR_MEMORY, "out of memory: table of experts");
        return;
    }
    for (int32_t e = 0; e < moe->n_experts; e++) {
        di_matrix w1 = {0}, w3 = {0}, w2 = {0};
        matrix(l, &w1, "%s.ffn.experts.%d.w1", p, e);
        matrix(l, &w3, "%s.ffn.experts.%d.w3", p, e);
        matrix(l, &w2, "%s.ffn.experts.%d.w2", p, e);
        table[e] = (di_expert){w1.data, w1.scale, w3.data, w3.scale, w2.data, w2.scale};
        moe->expert_dtype = w1.dtype;
    }
    di_backend *backend = l->backend;
    if (l->status == DI_OK) {
        l->status = backend->alloc(backend, bytes, "table of experts", &moe->experts, l->error);
    }
    if (l->status == DI_OK) backend->upload(backend->stream, moe->experts, table, bytes);
    free(table);
}

static void moe(loader *l, di_block_weights *b, const char *p, bool draft, bool on_host) {
    const di_config *c = &l->model->config;
    b->moe.n_experts = draft ? c->dspark_n_routed_experts : c->n_routed_experts;
    b->moe.top_k = draft ? c->dspark_num_experts_per_tok : c->num_experts_per_tok;
    vector(l, &b->ffn_norm, "%s.ffn_norm.weight", p);
    matrix(l, &b->moe.gate, "%s.ffn.gate", p);
    vector(l, &b->moe.bias, "%s.ffn.gate.bias", p);
    vector(l, &b->moe.bias_vl, "%s.ffn.gate.bias_vl", p);
    matrix(l, &b->moe.shared_w1, "%s.ffn.shared_experts.w1", p);
    matrix(l, &b->moe.shared_w3, "%s.ffn.shared_experts.w3", p);
    matrix(l, &b->moe.shared_w2, "%s.ffn.shared_experts.w2", p);
    if (on_host) l->backend = l->model->host;
    experts(l, &b->moe, p);
    l->backend = l->model->backend;
}

static void block(loader *l, di_block_weights *b, const char *p, bool draft, bool on_host) {
    mix(l, &b->attn_mix, p, "attn");
    mix(l, &b->ffn_mix, p, "ffn");
    attention(l, b, p);
    moe(l, b, p, draft, on_host);
}

static void engram(loader *l, di_engram_weights *out, const char *p) {
    char name[128];
    const di_tensor *tensor;
    snprintf(name, sizeof name, "%s.engram.embed.weight", p);
    out->codes = bind_tensor(l, name, &tensor);
    if (l->status == DI_OK) di_tensor_read_by_rows(tensor);
    snprintf(name, sizeof name, "%s.engram.embed.scale", p);
    out->scales = bind_tensor(l, name, &tensor);
    if (l->status == DI_OK) di_tensor_read_by_rows(tensor);
    matrix(l, &out->wkv, "%s.engram.wkv", p);
    matrix(l, &out->q_weight, "%s.engram.q_weight=", p);
    matrix(l, &out->k_weight, "%s.engram.k_weight=", p);
}

static void layer(loader *l, int32_t number) {
    const di_config *c = &l->model->config;
    const struct di_layer_role *role = &c->roles[number];
    di_block_weights *b = &l->model->blocks[number];
    char p[32];
    snprintf(p, sizeof p, "layers.%d", number);
    block(l, b, p, false, di_on_host(l->model, number));
    if (role->engram >= 0) engram(l, &b->engram, p);
    if (role->is_kv_source) {
        matrix(l, &b->compressor.wkv, "%s.attn.compressor.wkv", p);
        if (role->ratio > 1) matrix(l, &b->compressor.wgate, "%s.attn.compressor.wgate", p);
        vector(l, &b->compressor.norm, "%s.attn.compressor.norm.weight", p);
        matrix(l, &b->compressor.wk, "%s.attn.indexer.wk", p);
        vector(l, &b->compressor.k_norm, "%s.attn.indexer.k_norm.weight", p);
    }
    if (role->is_index_source) {
        matrix(l, &b->indexer.wq_b, "%s.attn.indexer.wq_b", p);
        matrix(l, &b->indexer.weights_proj, "%s.attn.indexer.weights_proj", p);
    }
}

static void draft(loader *l) {
    const di_config *c = &l->model->config;
    di_draft_weights *d = &l->model->draft;
    int32_t n = c->num_nextn_predict_layers;
    if (n == 0) return;
    for (int32_t stage = 0; stage < n; stage++) {
        char p[32];
        snprintf(p, sizeof p, "mtp.%d", stage);
        block(l, &l->model->blocks[c->num_hidden_layers + stage], p, true, false);
    }
    matrix(l, &d->main_proj, "mtp.0.main_proj");
    vector(l, &d->main_norm, "mtp.0.main_norm.weight");
    vector(l, &d->norm, "mtp.%d.norm.weight", n - 1);
    matrix(l, &d->markov_embed, "mtp.%d.markov_head.embed", n - 1);
    matrix(l, &d->markov_head, "mtp.%d.markov_head.head", n - 1);
    matrix(l, &d->confidence, "mtp.%d.confidence_head.proj", n - 1);
}

di_status di_weights_bind(di_model *model, const di_model_options *options, di_error *error) {
    const di_config *c = &model->config;
    loader l = {.model = model,
                .backend = model->backend,
                .options = options,
                .status = DI_OK,
                .error = error,
                .total = di_checkpoint_count(model->checkpoint)};
    size_t n_blocks = (size_t)c->num_hidden_layers + (size_t)c->num_nextn_predict_layers;
    model->blocks = calloc(n_blocks, sizeof *model->blocks);
    if (!model->blocks) return di_fail(error, DI_ERR_MEMORY, "out of memory: table of layers");
    matrix(&l, &model->embed, "embed");
    if (l.status == DI_OK)
        di_tensor_read_by_rows(di_checkpoint_find(model->checkpoint, "embed.weight"));
    matrix(&l, &model->head, "head");
    vector(&l, &model->norm, "norm.weight");
    for (int32_t i = 0; i < c->num_hidden_layers; i++) layer(&l, i);
    draft(&l);
    return l.status;
}
