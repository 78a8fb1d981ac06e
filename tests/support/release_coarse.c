/* Coarse operations against stored ones: the table at the end says which begins with what.
 *
 * The stored rows are a sample of one prompt's positions. Where an operation may see a row alone,
 * each row is a sequence of its own whose length is its position; all of them share one page, since
 * the prompt is shorter than that. What a sequence has in its caches is written from stored values.
 */
#include "support/release_coarse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/release_coarse_run.h"

rr rc_at(const rr *r, const char *op) {
    rr copy = *r;
    snprintf(copy.op.op, sizeof copy.op.op, "%s", op);
    return copy;
}
bool rc_has(const rr *r, const char *op, const char *part) {
    rr other = rc_at(r, op);
    return release_find(r->file, &other.op, part) != NULL;
}
const di_tensor *rc_part_of(const rr *r, const char *op, const char *part) {
    rr other = rc_at(r, op);
    return rr_part(&other, part);
}
di_ptr rc_put_a(const rr *r, const char *op, const char *part) {
    rr other = rc_at(r, op);
    return rr_put_a(&other, part);
}
di_ptr rc_put_f(const rr *r, const char *op, const char *part) {
    rr other = rc_at(r, op);
    return rr_put_f(&other, part);
}
void rc_compare_a(const rr *r, const char *op, di_ptr got) {
    rr other = rc_at(r, op);
    rr_compare_a(&other, "out", got);
}
void rc_compare_f(const rr *r, const char *op, di_ptr got) {
    rr other = rc_at(r, op);
    rr_compare_f(&other, "out", got);
}

void *rc_host_memory(int64_t n, size_t size) {
    void *p = calloc((size_t)n + 1, size);
    assert_non_null(p);
    return p;
}

/* ---- Rows of a step, pages, codes ---- */

di_batch rc_batch_at(const rr *r, const int32_t *positions, int32_t n, bool together) {
    int32_t n_slots = together ? 1 : n;
    di_row *rows = rc_host_memory(n, sizeof *rows);
    int32_t *valid = rc_host_memory(n, sizeof *valid);
    for (int32_t t = 0; t < n; t++) {
        rows[t] = (di_row){0, together ? 0 : t, together ? t : 0};
        valid[t] = together ? n : 1;
    }
    uint64_t ints = (uint64_t)n_slots * 4;
    di_batch batch = {n,
                      n_slots,
                      device_put(r->dev, rows, (uint64_t)n * sizeof *rows),
                      device_put(r->dev, positions, ints),
                      device_put(r->dev, valid, ints),
                      device_put(r->dev, valid, ints),
                      device_take(r->dev, (uint64_t)n * 4),
                      device_take(r->dev, (uint64_t)n * 4),
                      device_take(r->dev, (uint64_t)n * 4),
                      DI_NONE};
    r->ops->step_begin(r->stream, &(di_step_begin_args){batch});
    free(rows);
    free(valid);
    return batch;
}

di_batch rc_batch_of(const rr *r, const char *op, bool together) {
    const di_tensor *t = rc_part_of(r, op, "in.positions");
    int32_t *positions = release_ints(t);
    di_batch batch = rc_batch_at(r, positions, (int32_t)release_count(t), together);
    free(positions);
    return batch;
}

di_pages rc_one_page(const rr *r, int32_t n_slots) {
    const di_config *c = &r->file->config;
    int32_t ratio = c->roles[r->layer].ratio, d = c->head_dim, di = c->index_head_dim;
    uint32_t n = (uint32_t)(64 / ratio), width = (uint32_t)d, key = (uint32_t)di;
    uint32_t scales = n * width / 2, keys = scales + n * width / 16,
             key_scales = keys + n * key / 2;
    uint64_t bytes = key_scales + n * key / 32;
    int32_t *table = rc_host_memory(n_slots, sizeof *table);
    di_pages pages = {device_take(r->dev, bytes),
                      bytes,
                      device_put(r->dev, table, (uint64_t)n_slots * 4),
                      1,
                      ratio,
                      d,
                      di,
                      0,
                      scales,
                      keys,
                      key_scales};
    free(table);
    return pages;
}

di_ptr rc_page_part(const di_pages *p, uint32_t offset) { return di_ptr_at(p->pool, offset); }

/* n codes on the device, two a byte if `pairs`, against a stored part of one code a byte. */
static void compare_codes(const rr *r, const char *op, const char *part, di_ptr got, bool pairs,
                          int sign) {
    char name[96], kind[64];
    rr other = rc_at(r, op);
    const di_tensor *want = rr_part(&other, part);
    int64_t n = release_count(want), n_bytes = pairs ? n / 2 : n;
    uint8_t *bytes = rc_host_memory(2 * n, 1), *codes = bytes + n;
    device_get(r->dev, got, bytes, (uint64_t)n_bytes);
    for (int64_t i = 0; i < n; i++) {
        codes[i] = pairs ? bytes[i / 2] >> (i % 2 ? 4 : 0) & 15 : bytes[i];
    }
    rr_names_of(&other, part, name, kind);
    release_compare_fused(r->score, name, kind, want->data, codes, sign, RC_FUSED_SHARE, n);
    free(bytes);
}

/* Codes and scales of window rows. */
static void compare_q8(const rr *r, const char *op, di_ptr codes, di_ptr scales) {
    compare_codes(r, op, "out.codes", codes, false, 0x80);
    compare_codes(r, op, "out.scales", scales, false, 0);
}

/* ---- Queries, window keys, compressor ---- */

/* Positions one too high. */
static di_batch late_batch(const rr *r, const char *op) {
    const di_tensor *t = rc_part_of(r, op, "in.positions");
    int32_t *positions = release_ints(t), n = (int32_t)release_count(t);
    for (int32_t i = 0; i < n; i++) positions[i]++;
    di_batch batch = rc_batch_at(r, positions, n, false);
    free(positions);
    return batch;
}

static void run_qkv(const rr *r) {
    const di_config *c = &r->file->config;
    di_batch batch = rc_batch_of(r, "q_rope", false);
    if (r->planted == RELEASE_POSITIONS_LATE) batch = late_batch(r, "q_rope");
    di_matrix wq_a = rr_matrix_of(r, "attn.wq_a.weight");
    int32_t rows = batch.n_rows, heads = c->num_attention_heads, d = c->head_dim;
    di_ptr qr = device_take_a(r->dev, rows * wq_a.n);
    di_ptr q = device_take_a(r->dev, (int64_t)rows * heads * d);
    di_ptr codes = device_take(r->dev, (uint64_t)rows * (uint64_t)d);
    di_ptr scales = device_take(r->dev, (uint64_t)rows * (uint64_t)d / 32);
    r->ops->qkv(r->stream,
                &(di_qkv_args){batch, heads, d, c->rms_norm_eps,
                               rr_rope_of(r, rr_compressed_layer(r)), rc_put_a(r, "wq_a", "in"),
                               wq_a, rr_matrix_of(r, "attn.wq_b.weight"),
                               rr_matrix_of(r, "attn.wkv.weight"),
                               rr_vector_of(r, "attn.q_norm.weight"),
                               rr_vector_of(r, "attn.kv_norm.weight"), qr, q, codes, scales});
    rc_compare_a(r, "q_norm", qr);
    rc_compare_a(r, "q_rope", q);
    compare_q8(r, "kv_quant", codes, scales);
}

static void run_window_kv(const rr *r) {
    const di_config *c = &r->file->config;
    di_batch batch = rc_batch_of(r, "ring_kv_rope", false);
    int32_t rows = batch.n_rows, d = c->head_dim;
    di_ptr codes = device_take(r->dev, (uint64_t)rows * (uint64_t)d);
    di_ptr scales = device_take(r->dev, (uint64_t)rows * (uint64_t)d / 32);
    di_ptr u = rc_put_a(r, "ring_wkv", "in");
    if (r->planted == RELEASE_RING_UNNORMED) {
        rr other = *r;
        snprintf(other.op.scope, sizeof other.op.scope, "draft");
        u = rc_put_a(&other, "main_proj", "out");
    }
    r->ops->window_kv(r->stream,
                      &(di_window_kv_args){batch, d, c->rms_norm_eps, rr_rope_of(r, false), u,
                                           rr_matrix_of(r, "attn.wkv.weight"),
                                           rr_vector_of(r, "attn.kv_norm.weight"), codes, scales});
    compare_q8(r, "ring_kv_quant", codes, scales);
}

/* The ring holds c and g of every row, one after the other. */
static void compare_ring(const rr *r, di_ptr ring, int64_t d) {
    static const char *const ops[2] = {"compressor_wkv32", "compressor_wgate"};
    for (int gate = 0; gate < 2; gate++) {
        di_ptr raw = device_take_f(r->dev, RC_PROMPT * d);
        uint64_t bytes = (uint64_t)d * r->dev->backend->f_bytes;
        for (uint64_t t = 0; t < RC_PROMPT; t++) {
            r->dev->backend->copy(r->stream, di_ptr_at(raw, t * bytes),
                                  di_ptr_at(ring, (2 * t + (uint64_t)gate) * bytes), bytes);
        }
        rc_compare_f(r, ops[gate], raw);
    }
}

/* The whole prompt in one step. */
static void run_compress(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t zero = 0, d = c->head_dim;
    bool pooled = c->roles[r->layer].ratio > 1, keys = rc_has(r, "index_wk", "in");
    const char *first = pooled ? "compressor_wkv32" : "compressor_wkv";
    assert_int_equal(rc_part_of(r, first, "in")->shape[0], RC_PROMPT);
    di_pages pages = rc_one_page(r, 1);
    di_compress_args args = {.batch = rc_batch_at(r, &zero, RC_PROMPT, true),
                             .eps = c->rms_norm_eps,
                             .rope = rr_rope_of(r, true),
                             .u = rc_put_a(r, first, "in"),
                             .wkv = rr_matrix_of(r, "attn.compressor.wkv.weight"),
                             .norm = rr_vector_of(r, "attn.compressor.norm.weight"),
                             .ring_slots = RC_RING,
                             .pages = pages};
    if (pooled) {
        args.wgate = rr_matrix_of(r, "attn.compressor.wgate.weight");
        args.ring = device_take_f(r->dev, RC_RING * 2 * d);
    }
    if (keys) {
        args.wk = rr_matrix_of(r, "attn.indexer.wk.weight");
        args.k_norm = rr_vector_of(r, "attn.indexer.k_norm.weight");
    }
    r->ops->compress(r->stream, &args);
    compare_codes(r, "compressor_quant", "out.codes", rc_page_part(&pages, 0), true, 8);
    compare_codes(r, "compressor_quant", "out.scales", rc_page_part(&pages, pages.scales), false,
                  0);
    if (keys) {
        di_ptr codes = rc_page_part(&pages, pages.key_codes);
        compare_codes(r, "index_k_quant", "out.codes", codes, true, 8);
        compare_codes(r, "index_k_quant", "out.scales", rc_page_part(&pages, pages.key_scales),
                      false, 0);
    }
    if (pooled) compare_ring(r, args.ring, d);
}

static void run_attn_out(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t rows = (int32_t)rr_part(r, "in")->shape[0];
    di_ptr out = device_take_a(r->dev, rows * c->hidden_size);
    r->ops->attn_out(r->stream, &(di_attn_out_args){rows, c->o_groups, rr_put_a(r, "in"),
                                                    rr_matrix_of(r, "attn.wo_a.weight"),
                                                    rr_matrix_of(r, "attn.wo_b.weight"), out});
    rc_compare_a(r, "wo_b", out);
}

/* ---- Sublayers, experts, head ---- */

static void run_sublayer_in(const rr *r) {
    const di_config *c = &r->file->config;
    bool ffn = strcmp(r->op.op, "ffn_collapse") == 0;
    const char *norm = ffn ? "ffn_norm" : "attn_norm";
    int32_t rows = (int32_t)rr_part(r, "in.pre")->shape[0], width = c->hidden_size;
    di_ptr out = device_take_a(r->dev, rows * width);
    r->ops->sublayer_in(r->stream,
                        &(di_sublayer_in_args){rows, c->hc_mult, width, c->rms_norm_eps,
                                               rr_put_a(r, "in.streams"), rr_put_f(r, "in.pre"),
                                               rr_vector_of(r, ffn ? "ffn_norm.weight"
                                                                   : "attn_norm.weight"),
                                               DI_NONE, out});
    rc_compare_a(r, norm, out);
}

/* The rows that one expert got, each with this one pick. */
static void run_experts(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t n = r->layer < 0 ? c->dspark_n_routed_experts : c->n_routed_experts;
    int32_t rows = (int32_t)rr_part(r, "in")->shape[0],
            *which = release_ints(rr_part(r, "in.expert"));
    static const char *const names[3] = {"w1", "w3", "w2"};
    di_matrix w[3];
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "ffn.experts.%d.%s.weight", which[0], names[i]);
        w[i] = rr_matrix_of(r, name);
    }
    di_expert *experts = rc_host_memory(n, sizeof *experts);
    int32_t *picks = rc_host_memory(rows, sizeof *picks);
    for (int32_t t = 0; t < rows; t++) picks[t] = which[0];
    experts[which[0]] =
        (di_expert){w[0].data, w[0].scale, w[1].data, w[1].scale, w[2].data, w[2].scale};
    di_ptr out = device_take_a(r->dev, rows * c->hidden_size);
    r->ops->experts(r->stream,
                    &(di_experts_args){rows, 1, n, c->swiglu_limit, DI_NONE, rr_put_a(r, "in"),
                                       device_put(r->dev, picks, (uint64_t)rows * 4),
                                       rc_put_f(r, "expert_h", "in.weights"), w[0].dtype, w[0].k,
                                       w[0].n,
                                       device_put(r->dev, experts, (uint64_t)n * sizeof *experts),
                                       out});
    rc_compare_a(r, "expert_w2", out);
    free(which);
    free(picks);
    free(experts);
}

static void run_shared_expert(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t rows = (int32_t)rr_part(r, "in")->shape[0];
    di_ptr out = device_take_a(r->dev, rows * c->hidden_size);
    r->ops->shared_expert(r->stream,
                          &(di_shared_expert_args){rows, c->swiglu_limit, rr_put_a(r, "in"),
                                                   rr_matrix_of(r, "ffn.shared_experts.w1.weight"),
                                                   rr_matrix_of(r, "ffn.shared_experts.w3.weight"),
                                                   rr_matrix_of(r, "ffn.shared_experts.w2.weight"),
                                                   out});
    rc_compare_a(r, "shared_w2", out);
}

static void run_head(const rr *r) {
    const di_config *c = &r->file->config;
    bool draft = strcmp(r->op.op, "draft_collapse") == 0;
    bool backbone = !draft || r->planted == RELEASE_BACKBONE_NORM;
    int32_t rows = (int32_t)rr_part(r, "in.pre")->shape[0];
    int32_t *which = rc_host_memory(rows, sizeof *which);
    for (int32_t t = 0; t < rows; t++) which[t] = t;
    di_ptr normed = device_take_a(r->dev, rows * c->hidden_size);
    di_ptr logits = device_take_f(r->dev, (int64_t)rows * c->vocab_size);
    r->ops->head(r->stream,
                 &(di_head_args){rows, c->hc_mult, c->hidden_size, c->rms_norm_eps,
                                 device_put(r->dev, which, (uint64_t)rows * 4),
                                 rr_put_a(r, "in.streams"), rr_put_f(r, "in.pre"),
                                 rr_vector_of(r, backbone ? "/norm.weight" : "norm.weight"),
                                 rr_matrix_of(r, "/head.weight"), normed, logits});
    rc_compare_a(r, draft ? "draft_norm" : "final_norm", normed);
    rc_compare_f(r, draft ? "base_logits" : "logits", logits);
    free(which);
}

/* The tokens whose Markov rows count: those before, or what a mistake takes. */
static di_ptr put_previous(const rr *r) {
    const di_tensor *t = rr_part(r, "in.previous");
    const di_tensor *drafted = di_safetensors_find(r->file->vectors, "p33/release.draft.ids");
    assert_non_null(drafted);
    int32_t *previous = release_ints(t), *ids = release_ints(drafted),
            n = (int32_t)release_count(t);
    assert_int_equal(release_count(drafted), n + 1); /* the anchor, then what was drafted */
    assert_memory_equal(previous, ids, (size_t)n * sizeof *ids);
    if (r->planted == RELEASE_MARKOV_OF_TOKEN) memcpy(previous, ids + 1, (size_t)n * sizeof *ids);
    for (int32_t i = 0; r->planted == RELEASE_MARKOV_OF_ANCHOR && i < n; i++) previous[i] = ids[0];
    di_ptr out = device_put(r->dev, previous, (uint64_t)n * sizeof *previous);
    free(previous);
    free(ids);
    return out;
}

static void run_markov(const rr *r) {
    const di_config *c = &r->file->config;
    const di_tensor *base = rr_part(r, "in");
    int32_t rows = (int32_t)base->shape[0], vocab = (int32_t)base->shape[1];
    di_ptr logits = device_take_f(r->dev, (int64_t)rows * vocab);
    di_ptr confidence = device_take_f(r->dev, rows);
    di_ptr hidden = r->planted == RELEASE_CONFIDENCE_NORMED ? rc_put_a(r, "draft_norm", "out")
                                                            : rc_put_a(r, "confidence", "in");
    r->ops->markov(r->stream,
                   &(di_markov_args){.n = rows,
                                     .vocab = vocab,
                                     .width = c->hidden_size,
                                     .prev_stride = 1,
                                     .hidden_stride = 1,
                                     .prev = put_previous(r),
                                     .embed = rr_matrix_of(r, "markov_head.embed.weight"),
                                     .head = rr_matrix_of(r, "markov_head.head.weight"),
                                     .proj = rr_matrix_of(r, "confidence_head.proj.weight"),
                                     .base = rr_put_f(r, "in"),
                                     .hidden = hidden,
                                     .logits = logits,
                                     .confidence = confidence});
    rc_compare_f(r, "markov", logits);
    rc_compare_f(r, "confidence", confidence);
}

/* ---- The table ---- */

static const struct {
    const char *first; /* stored operation it begins with */
    void (*run)(const rr *r);
} entries[] = {
    {"attn_collapse", run_sublayer_in},
    {"ffn_collapse", run_sublayer_in},
    {"wq_a", run_qkv},
    {"ring_wkv", run_window_kv},
    {"compressor_wkv", run_compress},
    {"compressor_wkv32", run_compress},
    {"index_scores", rc_run_index_select},
    {"attend", rc_run_attend},
    {"wo_a", run_attn_out},
    {"expert_w1", run_experts},
    {"shared_w1", run_shared_expert},
    {"final_collapse", run_head},
    {"draft_collapse", run_head},
    {"markov", run_markov},
};

int release_run_planted(const release_file *file, const release_op *op, device *dev,
                        release_score *score, release_mistake mistake) {
    int n = 0;
    rr r = rr_open(file, op, dev, score);
    r.planted = r.layer < 0 ? (int)mistake : RELEASE_RIGHT;
    if (strcmp(op->scope, "synthetic") == 0) return 0; /* lists without a sequence */
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (strcmp(entries[i].first, op->op) != 0) continue;
        entries[i].run(&r);
        n++;
    }
    return n;
}

int release_run_coarse(const release_file *file, const release_op *op, device *dev,
                       release_score *score) {
    return release_run_planted(file, op, dev, score, RELEASE_RIGHT);
}
