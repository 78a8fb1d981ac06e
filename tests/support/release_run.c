/* What release_runner.c and release_coarse.c share: parts to the device, weights, comparisons. */
#include "support/release_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/network.h"
#include "support/release_runner.h"

_Static_assert((int)DI_MAX_HC <= (int)DI_OPS_MAX_HC && (int)DI_MAX_NGRAM <= (int)DI_OPS_MAX_NGRAM &&
                   (int)DI_PAGE_TOKENS <= (int)DI_OPS_MAX_RATIO,
               "operations have room for every config");

di_limits release_limits(const release_file *file) {
    const di_config *c = &file->config;
    int32_t k = c->hc_mult * c->hidden_size, o = c->num_attention_heads * c->head_dim;
    int32_t columns = (c->engram_max_ngram_size - 1) * c->engram_n_heads;
    int32_t main = c->n_dspark_targets * c->hidden_size, engram = columns * c->engram_head_dim;
    if (k < o) k = o;
    if (k < main) k = main;
    if (k < engram) k = engram;
    return (di_limits){.max_rows = 512,
                       .max_out = 64,
                       .width = c->hidden_size,
                       .hc = c->hc_mult,
                       .vocab = c->vocab_size,
                       .n_heads = c->num_attention_heads,
                       .head_dim = c->head_dim,
                       .q_rank = c->q_lora_rank,
                       .o_low = c->o_groups * c->o_lora_rank,
                       .n_experts = c->n_routed_experts,
                       .top_k = c->num_experts_per_tok,
                       .inner = c->moe_intermediate_size,
                       .index_heads = c->index_n_heads,
                       .index_dim = c->index_head_dim,
                       .index_top_k = c->index_topk > 64 ? c->index_topk : 64,
                       .top_blocks = c->candidate_topk_blocks,
                       .block_size = c->candidate_block_size,
                       .max_entries = 512,
                       .engram_columns = columns,
                       .engram_width = c->engram_head_dim,
                       .max_k = k};
}

/* ---- Reading parts, binding weights ---- */

int64_t rr_last_dim(const di_tensor *t) { return t->n_dims > 0 ? t->shape[t->n_dims - 1] : 1; }

const di_tensor *rr_part(const rr *r, const char *name) {
    return release_part(r->file, &r->op, name);
}

di_ptr rr_put_a(const rr *r, const char *name) {
    const di_tensor *t = rr_part(r, name);
    return device_put_a(r->dev, release_floats(t), release_count(t));
}

di_ptr rr_put_f(const rr *r, const char *name) {
    const di_tensor *t = rr_part(r, name);
    return device_put_f(r->dev, release_floats(t), release_count(t));
}

di_ptr rr_put_ints(const rr *r, const di_tensor *t) {
    int32_t *values = release_ints(t);
    di_ptr at = device_put(r->dev, values, (uint64_t)release_count(t) * 4);
    free(values);
    return at;
}

di_ptr rr_bind_tensor(const rr *r, const di_tensor *t) {
    di_ptr at;
    di_error error;
    di_backend *b = r->dev->backend;
    di_status status = b->bind(b, t->data, t->bytes, t->name, &at, &error);
    if (status != DI_OK) fail_msg("%s", error.message);
    return at;
}

const di_tensor *rr_weight(const rr *r, const char *name) {
    char full[128];
    if (name[0] == '/') { /* of the whole model */
        snprintf(full, sizeof full, "%s", name + 1);
    } else {
        snprintf(full, sizeof full, "%s.%s", r->prefix, name);
    }
    const di_tensor *t = di_checkpoint_find(r->file->checkpoint, full);
    if (t == NULL) fail_msg("no tensor %s", full);
    return t;
}

di_vector rr_vector_of(const rr *r, const char *name) {
    const di_tensor *t = rr_weight(r, name);
    return (di_vector){t->dtype, (int32_t)release_count(t), rr_bind_tensor(r, t)};
}

/* As weights.c binds it: whatever the model reads row by row stays as it is stored. */
di_matrix rr_matrix_of(const rr *r, const char *name) {
    const di_tensor *t = rr_weight(r, name);
    int32_t n = (int32_t)t->shape[0], k = (int32_t)t->shape[1] * (t->dtype == DI_FP4_PAIR ? 2 : 1);
    int32_t groups = di_matrix_groups(&r->file->config, t->name);
    if (groups == 0) return (di_matrix){t->dtype, n, k, rr_bind_tensor(r, t), DI_NONE};
    di_host_matrix host = {t->dtype, n, k, groups, t->data, NULL};
    if (t->dtype == DI_F8_E4M3 || t->dtype == DI_FP4_PAIR) {
        char scale[128];
        snprintf(scale, sizeof scale, "%.*sscale", (int)(strlen(name) - strlen("weight")), name);
        host.scale = rr_weight(r, scale)->data;
    }
    di_matrix m;
    di_error error;
    di_backend *b = r->dev->backend;
    if (b->bind_matrix(b, &host, t->name, &m, &error) != DI_OK) fail_msg("%s", error.message);
    return m;
}

di_rope rr_rope_of(const rr *r, bool compress) {
    const di_tensor *t =
        di_safetensors_find(r->file->golden, compress ? "rope/inverse_frequencies_compress"
                                                      : "rope/inverse_frequencies_main");
    assert_non_null(t);
    return (di_rope){2 * (int32_t)release_count(t), rr_bind_tensor(r, t)};
}

/* ---- Comparing ---- */

void rr_names_of(const rr *r, const char *out, char *name, char *kind) {
    snprintf(name, 96, "%s.%s.%s", r->op.scope, r->op.op, out);
    snprintf(kind, 64, "%s.%s", r->op.op, out);
}

double *rr_got_memory(int64_t n) {
    double *got = malloc((size_t)(n + 1) * sizeof *got);
    assert_non_null(got);
    return got;
}

void rr_compare_a(const rr *r, const char *out, di_ptr at) {
    char name[96], kind[64];
    const di_tensor *t = rr_part(r, out);
    int64_t n = release_count(t), width = rr_last_dim(t);
    double *got = rr_got_memory(n);
    rr_names_of(r, out, name, kind);
    device_get_a(r->dev, at, got, n);
    release_compare_bf16(r->score, name, kind, release_floats(t), got, n / width, width);
    free(got);
}

void rr_compare_f(const rr *r, const char *out, di_ptr at) {
    char name[96], kind[64];
    const di_tensor *t = rr_part(r, out);
    int64_t n = release_count(t);
    double *got = rr_got_memory(n);
    rr_names_of(r, out, name, kind);
    device_get_f(r->dev, at, got, n);
    release_compare_f32(r->score, name, release_floats(t), got, n);
    free(got);
}

void rr_compare_ints_host(const rr *r, const char *out, const int32_t *got) {
    char name[96], kind[64];
    const di_tensor *t = rr_part(r, out);
    int32_t *want = release_ints(t);
    rr_names_of(r, out, name, kind);
    release_compare_ints(r->score, name, want, got, release_count(t));
    free(want);
}

void rr_compare_bytes(const rr *r, const char *out, const char *near, const uint8_t *got) {
    char name[96], kind[64];
    const di_tensor *t = rr_part(r, out), *marks = release_find(r->file, &r->op, near);
    rr_names_of(r, out, name, kind);
    release_compare_codes(r->score, name, t->data, got, marks == NULL ? NULL : marks->data,
                          release_count(t));
}

bool rr_compressed_layer(const rr *r) {
    return r->layer >= 0 && r->file->config.compress_ratios[r->layer] > 0;
}

rr rr_open(const release_file *file, const release_op *op, device *dev, release_score *score) {
    rr r = {.file = file,
            .op = *op,
            .dev = dev,
            .ops = dev->backend->ops,
            .stream = dev->backend->stream,
            .score = score,
            .layer = -1};
    int last = file->config.num_nextn_predict_layers - 1, number;
    snprintf(r.prefix, sizeof r.prefix, "mtp.%d", last);
    if (sscanf(op->scope, "layer%d", &number) == 1) {
        r.layer = number;
        snprintf(r.prefix, sizeof r.prefix, "layers.%d", number);
    } else if (sscanf(op->scope, "draft%d", &number) == 1) {
        snprintf(r.prefix, sizeof r.prefix, "mtp.%d", number);
    } else if (strncmp(op->op, "main_", 5) == 0) {
        snprintf(r.prefix, sizeof r.prefix, "mtp.0");
    }
    return r;
}
