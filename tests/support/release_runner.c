/* Every stored operation is one call of an operation of ops.h: the table at the end says which. */
#include "support/release_runner.h"

#include "support/release_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formats.h"

/* ---- Quantisers and products ---- */

static void run_codes(const rr *r, di_quantizer kind) {
    const di_tensor *x = rr_part(r, "in");
    int64_t n = release_count(x), width = rr_last_dim(x);
    int64_t block = kind == DI_Q4C ? 16 : 32, n_bytes = kind == DI_Q8 ? n : n / 2;
    di_ptr codes = device_take(r->dev, (uint64_t)n_bytes);
    di_ptr scales = device_take(r->dev, (uint64_t)(n / block));
    r->ops->quantize(r->stream, &(di_quantize_args){(int32_t)(n / width), (int32_t)width, kind,
                                                    rr_put_a(r, "in"), codes, scales});
    uint8_t *bytes = malloc((size_t)(2 * n)), *values = bytes + n;
    assert_non_null(bytes);
    device_get(r->dev, codes, bytes, (uint64_t)n_bytes);
    for (int64_t i = 0; i < n; i++) { /* stored one code a byte */
        values[i] = kind == DI_Q8 ? bytes[i] : bytes[i / 2] >> (i % 2 ? 4 : 0) & 15;
    }
    rr_compare_bytes(r, "out.codes", "out.near", values);
    device_get(r->dev, scales, bytes, (uint64_t)(n / block));
    rr_compare_bytes(r, "out.scales", "out.scale_near", bytes);
    free(bytes);
}

static void run_q8(const rr *r) { run_codes(r, DI_Q8); }
static void run_q4i(const rr *r) { run_codes(r, DI_Q4I); }
static void run_q4c(const rr *r) { run_codes(r, DI_Q4C); }

static void product(const rr *r, int32_t groups, bool quantize, bool to_f) {
    char name[96];
    const di_tensor *which = release_find(r->file, &r->op, "in.expert");
    int32_t *expert = which == NULL ? NULL : release_ints(which);
    if (expert != NULL) {
        snprintf(name, sizeof name, "ffn.experts.%d.%s", expert[0], r->tensor);
    } else {
        snprintf(name, sizeof name, "%s", r->tensor);
    }
    free(expert);
    di_matrix w = rr_matrix_of(r, name);
    int32_t n_rows = (int32_t)(release_count(rr_part(r, "in")) / (groups * w.k));
    int64_t n = (int64_t)n_rows * w.n;
    di_ptr out = to_f ? device_take_f(r->dev, n) : device_take_a(r->dev, n);
    r->ops->linear(r->stream,
                   &(di_linear_args){n_rows, groups, quantize, to_f, rr_put_a(r, "in"), w, out});
    if (to_f) {
        rr_compare_f(r, "out", out);
    } else {
        rr_compare_a(r, "out", out);
    }
}

static void run_quantized(const rr *r) {
    run_codes(r, DI_Q8);
    product(r, 1, true, false);
}
static void run_product(const rr *r) { product(r, 1, false, false); }
static void run_product32(const rr *r) { product(r, 1, false, true); }
static void run_wo_a(const rr *r) { product(r, r->file->config.o_groups, false, false); }

/* ---- Norms, RoPE, streams ---- */

static void run_norm(const rr *r) {
    const di_tensor *x = rr_part(r, "in");
    int64_t n = release_count(x), width = rr_last_dim(x);
    di_ptr out = device_take_a(r->dev, n);
    r->ops->rms_norm(r->stream, &(di_rms_norm_args){(int32_t)(n / width), (int32_t)width,
                                                    r->file->config.rms_norm_eps, rr_put_a(r, "in"),
                                                    rr_vector_of(r, r->tensor), out});
    rr_compare_a(r, "out", out);
}

static void rope(const rr *r, bool compress, bool inverse) {
    const di_tensor *x = rr_part(r, "in");
    int32_t heads = x->n_dims == 3 ? (int32_t)x->shape[1] : 1;
    di_ptr at = rr_put_a(r, "in");
    r->ops->rope(r->stream, &(di_rope_args){(int32_t)x->shape[0], heads, (int32_t)rr_last_dim(x),
                                            inverse, rr_rope_of(r, compress),
                                            rr_put_ints(r, rr_part(r, "in.positions")), at});
    rr_compare_a(r, "out", at);
}

static void run_rope(const rr *r) { rope(r, rr_compressed_layer(r), false); }
static void run_rope_inverse(const rr *r) { rope(r, rr_compressed_layer(r), true); }
static void run_rope_compress(const rr *r) { rope(r, true, false); }

static void run_mix(const rr *r) {
    const di_config *c = &r->file->config;
    const di_tensor *x = rr_part(r, "in");
    int32_t rows = (int32_t)x->shape[0], hc = c->hc_mult;
    char fn[64], base[64], scale[64];
    snprintf(fn, sizeof fn, "%s_fn", r->tensor);
    snprintf(base, sizeof base, "%s_base", r->tensor);
    snprintf(scale, sizeof scale, "%s_scale", r->tensor);
    di_ptr pre = device_take_f(r->dev, rows * hc), post = device_take_f(r->dev, rows * hc);
    di_ptr comb = device_take_f(r->dev, rows * hc * hc);
    r->ops->mix(r->stream,
                &(di_mix_args){rows, hc, c->hidden_size, c->hc_sinkhorn_iters, c->rms_norm_eps,
                               c->hc_eps, rr_put_a(r, "in"), rr_matrix_of(r, fn),
                               rr_vector_of(r, base), rr_vector_of(r, scale), pre, post, comb});
    rr_compare_f(r, "out.pre", pre);
    rr_compare_f(r, "out.post", post);
    rr_compare_f(r, "out.comb", comb);
}

static void run_collapse(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t rows = (int32_t)rr_part(r, "in.pre")->shape[0], width = c->hidden_size;
    di_ptr x = device_take_a(r->dev, rows * width), out = device_take_a(r->dev, rows * width);
    r->ops->sublayer_in(r->stream,
                        &(di_sublayer_in_args){rows, c->hc_mult, width, c->rms_norm_eps,
                                               rr_put_a(r, "in.streams"), rr_put_f(r, "in.pre"),
                                               rr_vector_of(r, "/norm.weight"), x, out});
    rr_compare_a(r, "out", x);
}

static void run_expand(const rr *r) {
    const di_config *c = &r->file->config;
    di_ptr streams = rr_put_a(r, "in.streams");
    r->ops->sublayer_out(r->stream,
                         &(di_sublayer_out_args){(int32_t)rr_part(r, "in")->shape[0], c->hc_mult,
                                                 c->hidden_size, rr_put_a(r, "in"),
                                                 rr_put_f(r, "in.post"), rr_put_f(r, "in.comb"),
                                                 streams});
    rr_compare_a(r, "out", streams);
}

static void run_stream_mean(const rr *r) {
    const di_tensor *x = rr_part(r, "in");
    int32_t rows = (int32_t)x->shape[0], width = (int32_t)x->shape[2];
    di_ptr out = device_take_a(r->dev, rows * width);
    r->ops->stream_mean(r->stream, &(di_stream_mean_args){rows, (int32_t)x->shape[1], width,
                                                          rr_put_a(r, "in"), out, width});
    rr_compare_a(r, "out", out);
}

/* ---- Tokens and Engram ---- */

/* Rows with these ids from position 0 of one sequence. */
static di_batch batch_of(const rr *r, const di_tensor *ids) {
    int32_t n = (int32_t)release_count(ids), zero = 0;
    int32_t *tokens = release_ints(ids);
    di_row *rows = calloc((size_t)n, sizeof *rows);
    assert_non_null(rows);
    for (int32_t t = 0; t < n; t++) rows[t] = (di_row){tokens[t], 0, t};
    di_batch batch = {n,
                      1,
                      device_put(r->dev, rows, (uint64_t)n * sizeof *rows),
                      device_put(r->dev, &zero, 4),
                      device_put(r->dev, &n, 4),
                      device_put(r->dev, &zero, 4),
                      device_take(r->dev, (uint64_t)n * 4),
                      device_take(r->dev, (uint64_t)n * 4),
                      device_take(r->dev, (uint64_t)n * 4),
                      DI_NONE};
    r->ops->step_begin(r->stream, &(di_step_begin_args){batch});
    free(rows);
    free(tokens);
    return batch;
}

static void run_embed(const rr *r) {
    const di_config *c = &r->file->config;
    di_batch batch = batch_of(r, rr_part(r, "in.ids"));
    int64_t rows = batch.n_rows, hc = c->hc_mult, width = c->hidden_size;
    di_ptr streams = device_take_a(r->dev, rows * hc * width);
    di_ptr pre = device_take_f(r->dev, rows * hc);
    r->ops->embed(r->stream, &(di_embed_args){batch, rr_matrix_of(r, "/embed.weight"), c->hc_mult,
                                              streams, pre});
    double *all = rr_got_memory(rows * hc * width), *first = rr_got_memory(rows * width);
    device_get_a(r->dev, streams, all, rows * hc * width);
    for (int64_t t = 0; t < rows; t++) {
        memcpy(first + t * width, all + t * hc * width, (size_t)width * sizeof *first);
        for (int64_t j = 1; j < hc; j++) {
            assert_memory_equal(first + t * width, all + (t * hc + j) * width, width * 8);
        }
    }
    const di_tensor *want = rr_part(r, "out");
    release_compare_bf16(r->score, "model.embed.out", "embed.out", release_floats(want), first,
                         rows, width);
    device_get_f(r->dev, pre, all, rows * hc);
    for (int64_t i = 0; i < rows * hc; i++) assert_true(all[i] == (i % hc == 0 ? 1 : 0));
    free(all);
    free(first);
}

static di_ptr golden_put(const rr *r, const char *name) {
    const di_tensor *t = di_safetensors_find(r->file->golden, name);
    assert_non_null(t);
    return device_put(r->dev, t->data, t->bytes);
}

static void run_engram_hash(const rr *r) {
    const di_config *c = &r->file->config;
    const di_tensor *map = di_safetensors_find(r->file->golden, "engram/token_map");
    int32_t columns = (c->engram_max_ngram_size - 1) * c->engram_n_heads;
    int32_t *classes = release_ints(map), pad = classes[c->engram_pad_token_id];
    di_batch batch = batch_of(r, rr_part(r, "in.ids"));
    int64_t n = (int64_t)batch.n_rows * columns, at = c->roles[r->layer].engram;
    di_ptr out = device_take(r->dev, (uint64_t)(n * c->n_engram_layers) * 8);
    di_ptr history = device_take(r->dev, 64 * 4);
    r->ops->engram_hash(r->stream,
                        &(di_engram_hash_args){batch, history, 64, rr_put_ints(r, map), pad,
                                               c->n_engram_layers, c->engram_max_ngram_size,
                                               c->engram_n_heads,
                                               golden_put(r, "engram/multipliers"),
                                               golden_put(r, "engram/primes"),
                                               golden_put(r, "engram/offsets"), out});
    int64_t *rows = malloc((size_t)n * 8);
    int32_t *got = malloc((size_t)n * 4);
    assert_true(rows != NULL && got != NULL);
    device_get(r->dev, di_ptr_at(out, (uint64_t)(at * n) * 8), rows, (uint64_t)n * 8);
    for (int64_t i = 0; i < n; i++) got[i] = (int32_t)rows[i];
    rr_compare_ints_host(r, "out", got);
    free(rows);
    free(got);
    free(classes);
}

static void run_engram_rows(const rr *r) {
    const di_config *c = &r->file->config;
    const di_tensor *in = rr_part(r, "in.rows");
    int64_t n = release_count(in);
    int32_t *rows = release_ints(in), n_rows = (int32_t)in->shape[0];
    int64_t *wide = malloc((size_t)n * sizeof *wide);
    assert_non_null(wide);
    for (int64_t i = 0; i < n; i++) wide[i] = rows[i];
    di_ptr out = device_take_a(r->dev, n * c->engram_head_dim);
    r->ops
        ->engram_rows(r->stream,
                      &(di_engram_rows_args){n_rows, (int32_t)in->shape[1], c->engram_head_dim,
                                             DI_NONE, device_put(r->dev, wide, (uint64_t)n * 8),
                                             rr_bind_tensor(r, rr_weight(r, "engram.embed.weight")),
                                             rr_bind_tensor(r, rr_weight(r, "engram.embed.scale")),
                                             out});
    rr_compare_a(r, "out", out);
    free(rows);
    free(wide);
}

static void run_engram_gate(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t rows = (int32_t)rr_part(r, "in.kv")->shape[0];
    di_ptr streams = rr_put_a(r, "in.streams"), gate = device_take_f(r->dev, rows * c->hc_mult);
    r->ops->engram_gate(r->stream,
                        &(di_engram_gate_args){rows, c->hc_mult, c->hidden_size, c->rms_norm_eps,
                                               rr_put_a(r, "in.kv"),
                                               rr_matrix_of(r, "engram.q_weight"),
                                               rr_matrix_of(r, "engram.k_weight"), streams, gate});
    rr_compare_a(r, "out", streams);
    rr_compare_f(r, "out.gate", gate);
}

/* ---- Attention ---- */

static void run_attend(const rr *r) {
    const di_tensor *q = rr_part(r, "in.q"), *keys = rr_part(r, "in.keys"),
                    *slots = rr_part(r, "in.slots");
    const di_tensor *own = release_find(r->file, &r->op, "in.sink");
    di_vector sink = {DI_F32, (int32_t)q->shape[1], DI_NONE};
    if (own != NULL) {
        sink.data = device_put(r->dev, own->data, own->bytes);
    } else {
        sink = rr_vector_of(r, "attn.attn_sink");
    }
    di_ptr out = device_take_a(r->dev, release_count(q));
    r->ops->attend_list(r->stream,
                        &(di_attend_list_args){(int32_t)q->shape[0], (int32_t)q->shape[1],
                                               (int32_t)q->shape[2], (int32_t)keys->shape[0],
                                               (int32_t)slots->shape[1], rr_put_a(r, "in.q"),
                                               rr_put_a(r, "in.keys"), rr_put_ints(r, slots), sink,
                                               out});
    rr_compare_a(r, "out", out);
}

static void run_pool(const rr *r) {
    const di_tensor *kv = rr_part(r, "in.kv");
    int32_t groups = (int32_t)kv->shape[0], ratio = (int32_t)kv->shape[1];
    int32_t width = (int32_t)kv->shape[2];
    di_ptr out = device_take_a(r->dev, groups * width);
    r->ops->pool(r->stream, &(di_pool_args){groups, ratio, width, rr_put_f(r, "in.kv"),
                                            rr_put_f(r, "in.gate"), out});
    rr_compare_a(r, "out", out);
}

static void run_index_weights(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t rows = (int32_t)rr_part(r, "in")->shape[0];
    di_matrix proj = rr_matrix_of(r, "attn.indexer.weights_proj.weight");
    di_ptr out = device_take_a(r->dev, rows * proj.n);
    r->ops->index_weights(r->stream, &(di_index_weights_args){rows, c->index_head_dim,
                                                              rr_put_a(r, "in"), proj, out});
    rr_compare_a(r, "out", out);
}

static void run_index_scores(const rr *r) {
    const di_tensor *q = rr_part(r, "in.q"), *keys = rr_part(r, "in.keys");
    int32_t rows = (int32_t)q->shape[0], n_keys = (int32_t)keys->shape[0];
    di_ptr out = device_take_a(r->dev, rows * n_keys);
    r->ops->index_scores(r->stream,
                         &(di_index_scores_args){rows, (int32_t)q->shape[1], (int32_t)q->shape[2],
                                                 n_keys, rr_put_a(r, "in.q"),
                                                 rr_put_a(r, "in.keys"), rr_put_a(r, "in.weights"),
                                                 rr_put_ints(r, rr_part(r, "in.visible")), out});
    rr_compare_a(r, "out", out);
}

/* The stored form of candidates is a mask of entries. */
static void run_candidates(const rr *r) {
    const di_config *c = &r->file->config;
    const di_tensor *scores = rr_part(r, "in.scores");
    int32_t rows = (int32_t)scores->shape[0], n = (int32_t)scores->shape[1];
    int32_t top = c->candidate_topk_blocks, size = c->candidate_block_size;
    di_ptr out = device_take(r->dev, (uint64_t)(rows * top) * 4);
    r->ops->candidates(r->stream,
                       &(di_candidates_args){rows, n, top, size, rr_put_a(r, "in.scores"),
                                             rr_put_ints(r, rr_part(r, "in.visible")), out});
    int32_t *blocks = malloc((size_t)(rows * top) * 4);
    int32_t *mask = calloc((size_t)(rows * n), 4);
    assert_true(blocks != NULL && mask != NULL);
    device_get(r->dev, out, blocks, (uint64_t)(rows * top) * 4);
    for (int32_t i = 0; i < rows * top; i++) {
        for (int32_t j = blocks[i] * size; blocks[i] >= 0 && j < (blocks[i] + 1) * size; j++) {
            if (j < n) mask[i / top * n + j] = 1;
        }
        /* ascending, -1 only at the end */
        if (i % top > 0) assert_true(blocks[i] == -1 || blocks[i] > blocks[i - 1]);
        if (i % top > 0 && blocks[i] >= 0) assert_true(blocks[i - 1] >= 0);
    }
    rr_compare_ints_host(r, "out", mask);
    free(blocks);
    free(mask);
}

static void run_top_k(const rr *r) {
    const di_config *c = &r->file->config;
    const di_tensor *scores = rr_part(r, "in.scores");
    const di_tensor *mask = release_find(r->file, &r->op, "in.candidates");
    int32_t rows = (int32_t)scores->shape[0], n = (int32_t)scores->shape[1];
    int32_t top = c->candidate_topk_blocks, size = c->candidate_block_size;
    di_ptr candidates = DI_NONE, out = device_take(r->dev, (uint64_t)(rows * c->index_topk) * 4);
    if (mask != NULL) {
        int32_t *blocks = malloc((size_t)(rows * top) * 4);
        assert_non_null(blocks);
        for (int32_t t = 0; t < rows; t++) {
            int32_t count = 0;
            for (int32_t b = 0; b * size < n; b++) {
                if (mask->data[t * n + b * size] != 0) blocks[t * top + count++] = b;
            }
            while (count < top) blocks[t * top + count++] = -1;
        }
        candidates = device_put(r->dev, blocks, (uint64_t)(rows * top) * 4);
        free(blocks);
    }
    r->ops->top_k(r->stream, &(di_top_k_args){rows, n, c->index_topk, top, size,
                                              rr_put_a(r, "in.scores"), candidates, out});
    int32_t *got = malloc((size_t)(rows * c->index_topk) * 4);
    assert_non_null(got);
    device_get(r->dev, out, got, (uint64_t)(rows * c->index_topk) * 4);
    rr_compare_ints_host(r, "out", got);
    free(got);
}

/* ---- Experts and drafts ---- */

/* The margin by which the last expert taken beat the first one left out: not an engine's output,
 * but it follows from the scores. */
static void compare_gap(const rr *r, const double *scores, int32_t rows, int32_t n, int32_t k) {
    const di_tensor *bias = rr_weight(r, "ffn.gate.bias");
    const float *b = (const float *)(const void *)bias->data;
    double *gap = rr_got_memory(rows);
    for (int32_t t = 0; t < rows; t++) {
        double sorted[64];
        for (int32_t e = 0; e < n; e++) {
            double value = (double)((float)scores[t * n + e] + b[e]);
            int32_t at = e;
            for (; at > 0 && sorted[at - 1] < value; at--) sorted[at] = sorted[at - 1];
            sorted[at] = value;
        }
        gap[t] = n > k ? (double)(float)(sorted[k - 1] - sorted[k]) : INFINITY;
    }
    release_compare_f32(r->score, "router.out.gap", release_floats(rr_part(r, "out.gap")), gap,
                        rows);
    free(gap);
}

static void run_router(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t rows = (int32_t)rr_part(r, "in")->shape[0];
    di_matrix gate = rr_matrix_of(r, "ffn.gate.weight");
    int32_t k = r->layer < 0 ? c->dspark_num_experts_per_tok : c->num_experts_per_tok;
    di_score scoring = c->scoring_func;
    di_ptr picks = device_take(r->dev, (uint64_t)(rows * k) * 4);
    di_ptr weights = device_take_f(r->dev, rows * k), scores = device_take_f(r->dev, rows * gate.n);
    r->ops->route(r->stream,
                  &(di_route_args){rows, k, scoring, c->norm_topk_prob, c->gate_temp,
                                   c->routed_scaling_factor, rr_put_a(r, "in"), gate,
                                   rr_vector_of(r, "ffn.gate.bias"), picks, weights, scores});
    int32_t *got = malloc((size_t)(rows * k) * 4);
    double *values = rr_got_memory(rows * gate.n);
    assert_non_null(got);
    device_get(r->dev, picks, got, (uint64_t)(rows * k) * 4);
    rr_compare_ints_host(r, "out.picks", got);
    rr_compare_f(r, "out.weights", weights);
    rr_compare_f(r, "out.scores", scores);
    device_get_f(r->dev, scores, values, rows * gate.n);
    compare_gap(r, values, rows, gate.n, k);
    free(got);
    free(values);
}

static void run_swiglu(const rr *r) {
    const di_tensor *gate = rr_part(r, "in.gate");
    int32_t rows = (int32_t)gate->shape[0], width = (int32_t)gate->shape[1];
    di_ptr weights = DI_NONE, out = device_take_a(r->dev, rows * width);
    if (release_find(r->file, &r->op, "in.weights") != NULL) weights = rr_put_f(r, "in.weights");
    r->ops->swiglu(r->stream,
                   &(di_swiglu_args){rows, width, r->file->config.swiglu_limit,
                                     rr_put_a(r, "in.gate"), rr_put_a(r, "in.up"), weights, out});
    rr_compare_a(r, "out", out);
}

static void run_combine(const rr *r) {
    const di_tensor *routed = rr_part(r, "in.routed");
    int32_t rows = (int32_t)routed->shape[0], width = (int32_t)routed->shape[2];
    di_ptr out = device_take_a(r->dev, rows * width);
    r->ops->combine(r->stream,
                    &(di_combine_args){rows, (int32_t)routed->shape[1], width,
                                       rr_put_a(r, "in.routed"), rr_put_a(r, "in.shared"), out});
    rr_compare_a(r, "out", out);
}

/* Rows of markov_head.embed, as floats. */
static float *markov_rows(const rr *r, const int32_t *ids, int32_t n) {
    const di_tensor *embed = rr_weight(r, "markov_head.embed.weight");
    int64_t rank = embed->shape[1];
    float *out = malloc((size_t)(n * rank) * sizeof *out);
    assert_non_null(out);
    for (int64_t i = 0; i < n * rank; i++) {
        uint16_t word;
        memcpy(&word, embed->data + 2 * (ids[i / rank] * rank + i % rank), 2);
        out[i] = di_bf16_decode(word);
    }
    return out;
}

/* Base logits plus the bias of the token before: a product to F, and one float32 addition. */
static void run_markov(const rr *r) {
    const di_tensor *base = rr_part(r, "in");
    int32_t rows = (int32_t)base->shape[0], vocab = (int32_t)base->shape[1];
    int32_t *previous = release_ints(rr_part(r, "in.previous"));
    float *x = markov_rows(r, previous, rows);
    di_matrix head = rr_matrix_of(r, "markov_head.head.weight");
    di_ptr out = device_take_f(r->dev, rows * vocab);
    r->ops->linear(r->stream,
                   &(di_linear_args){rows, 1, false, true,
                                     device_put_a(r->dev, x, (int64_t)rows * head.k), head, out});
    double *got = rr_got_memory(rows * vocab);
    device_get_f(r->dev, out, got, rows * vocab);
    for (int32_t i = 0; i < rows * vocab; i++) {
        got[i] = (double)(float)(got[i] + (double)release_floats(base)[i]);
    }
    release_compare_f32(r->score, "draft.markov.out", release_floats(rr_part(r, "out")), got,
                        rows * vocab);
    free(got);
    free(x);
    free(previous);
}

static void run_confidence(const rr *r) {
    const di_tensor *in = rr_part(r, "in");
    int32_t rows = (int32_t)in->shape[0], width = (int32_t)in->shape[1];
    int32_t *previous = release_ints(rr_part(r, "in.previous"));
    float *markov = markov_rows(r, previous, rows);
    di_matrix proj = rr_matrix_of(r, "confidence_head.proj.weight");
    int32_t rank = proj.k - width;
    float *x = malloc((size_t)(rows * proj.k) * sizeof *x);
    assert_non_null(x);
    for (int32_t t = 0; t < rows; t++) {
        memcpy(x + t * proj.k, release_floats(in) + t * width, (size_t)width * sizeof *x);
        memcpy(x + t * proj.k + width, markov + t * rank, (size_t)rank * sizeof *x);
    }
    di_ptr out = device_take_f(r->dev, rows);
    r->ops->linear(r->stream,
                   &(di_linear_args){rows, 1, false, true,
                                     device_put_a(r->dev, x, (int64_t)rows * proj.k), proj, out});
    rr_compare_f(r, "out", out);
    free(x);
    free(markov);
    free(previous);
}

/* ---- The table ---- */

typedef struct entry {
    const char *op;
    void (*run)(const rr *r);
    const char *tensor;
} entry;

static const entry entries[] = {
    {"embed", run_embed, NULL},
    {"final_collapse", run_collapse, NULL},
    {"final_norm", run_norm, "/norm.weight"},
    {"logits", run_product32, "/head.weight"},
    {"engram_hash", run_engram_hash, NULL},
    {"engram_rows", run_engram_rows, NULL},
    {"engram_wkv", run_quantized, "engram.wkv.weight"},
    {"engram_gate", run_engram_gate, NULL},
    {"hc_attn", run_mix, "hc_attn"},
    {"hc_ffn", run_mix, "hc_ffn"},
    {"attn_collapse", run_collapse, NULL},
    {"ffn_collapse", run_collapse, NULL},
    {"attn_norm", run_norm, "attn_norm.weight"},
    {"ffn_norm", run_norm, "ffn_norm.weight"},
    {"attn_expand", run_expand, NULL},
    {"ffn_expand", run_expand, NULL},
    {"stream_mean", run_stream_mean, NULL},
    {"wq_a", run_quantized, "attn.wq_a.weight"},
    {"q_norm", run_norm, "attn.q_norm.weight"},
    {"wq_b", run_quantized, "attn.wq_b.weight"},
    {"q_rope", run_rope, NULL},
    {"wkv", run_quantized, "attn.wkv.weight"},
    {"kv_norm", run_norm, "attn.kv_norm.weight"},
    {"kv_rope", run_rope, NULL},
    {"kv_quant", run_q8, NULL},
    {"ring_wkv", run_quantized, "attn.wkv.weight"},
    {"ring_kv_norm", run_norm, "attn.kv_norm.weight"},
    {"ring_kv_rope", run_rope, NULL},
    {"ring_kv_quant", run_q8, NULL},
    {"attend", run_attend, NULL},
    {"o_rope", run_rope_inverse, NULL},
    {"wo_a", run_wo_a, "attn.wo_a.weight"},
    {"wo_b", run_quantized, "attn.wo_b.weight"},
    {"compressor_wkv", run_product, "attn.compressor.wkv.weight"},
    {"compressor_wkv32", run_product32, "attn.compressor.wkv.weight"},
    {"compressor_wgate", run_product32, "attn.compressor.wgate.weight"},
    {"compressor_pool", run_pool, NULL},
    {"compressor_norm", run_norm, "attn.compressor.norm.weight"},
    {"compressor_rope", run_rope_compress, NULL},
    {"compressor_quant", run_q4c, NULL},
    {"index_wk", run_product, "attn.indexer.wk.weight"},
    {"index_k_norm", run_norm, "attn.indexer.k_norm.weight"},
    {"index_k_rope", run_rope_compress, NULL},
    {"index_k_quant", run_q4i, NULL},
    {"index_wq_b", run_quantized, "attn.indexer.wq_b.weight"},
    {"index_q_rope", run_rope_compress, NULL},
    {"index_q_quant", run_q4i, NULL},
    {"index_weights", run_index_weights, NULL},
    {"index_scores", run_index_scores, NULL},
    {"candidates", run_candidates, NULL},
    {"topk", run_top_k, NULL},
    {"router", run_router, NULL},
    {"expert_w1", run_quantized, "w1.weight"},
    {"expert_w3", run_quantized, "w3.weight"},
    {"expert_h", run_swiglu, NULL},
    {"expert_w2", run_quantized, "w2.weight"},
    {"shared_w1", run_quantized, "ffn.shared_experts.w1.weight"},
    {"shared_w3", run_quantized, "ffn.shared_experts.w3.weight"},
    {"shared_h", run_swiglu, NULL},
    {"shared_w2", run_quantized, "ffn.shared_experts.w2.weight"},
    {"moe_sum", run_combine, NULL},
    {"main_proj", run_quantized, "main_proj.weight"},
    {"main_norm", run_norm, "main_norm.weight"},
    {"draft_collapse", run_collapse, NULL},
    {"draft_norm", run_norm, "norm.weight"}, /* of the last draft layer */
    {"base_logits", run_product32, "/head.weight"},
    {"markov", run_markov, NULL},
    {"confidence", run_confidence, NULL},
    {"quant_fp8", run_q8, NULL},
    {"quant_mxfp4", run_q4i, NULL},
    {"quant_kv_fp4", run_q4c, NULL},
};

bool release_run(const release_file *file, const release_op *op, device *dev,
                 release_score *score) {
    rr r = rr_open(file, op, dev, score);
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (strcmp(entries[i].op, op->op) != 0) continue;
        r.tensor = entries[i].tensor;
        entries[i].run(&r);
        return true;
    }
    return false;
}
