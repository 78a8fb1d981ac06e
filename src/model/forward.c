/* The forward pass over one ragged step, in the order of the paper (model.md 3.4, 3.5).
 * Everything here enqueues; nothing waits and nothing looks into memory.
 */
#include <inttypes.h>
#include <string.h>

#include "model/network.h"

/* One step under way. */
typedef struct pass {
    di_context *context;
    const di_config *config;
    const di_context_buffers *at;
    const di_ops *ops;
    di_stream *stream;
    di_batch batch;
    int32_t published; /* layer whose compressed entries are written already, -1 */
} pass;

static void tap(const pass *p, const char *name, int32_t layer, di_ptr data, di_tap_type type,
                int64_t row_width) {
    di_context *context = p->context;
    if (context->tap) {
        context->tap(context->tap_user, name, layer, data, type, p->batch.n_rows, row_width);
    }
}

static di_rope rope(const pass *p, bool compressed) {
    const di_model *model = p->context->model;
    return (di_rope){p->config->qk_rope_head_dim,
                     compressed ? model->freq_compress : model->freq_main};
}

/* The window ring of a layer. */
static di_window window(const pass *p, int32_t layer) {
    uint64_t slots = (uint64_t)p->batch.n_slots * (uint64_t)p->context->ring_slots;
    uint64_t row = (uint64_t)p->config->head_dim, at = (uint64_t)layer * slots;
    return (di_window){di_ptr_at(p->at->window_codes, at * row),
                       di_ptr_at(p->at->window_scales, at * (row / 32)), p->context->ring_slots};
}

/* The compressed cache that a layer reads: that of its KV source. */
static di_pages pages(const pass *p, int32_t layer) {
    const struct di_layer_role *role = &p->config->roles[layer];
    if (role->ratio == 0) return (di_pages){0};
    const struct di_page_part *part = &p->context->page_part[role->kv_source];
    return (di_pages){.pool = p->at->page_pool,
                      .page_bytes = p->context->page_bytes,
                      .table = p->at->page_table,
                      .table_stride = p->context->pages_per_slot,
                      .ratio = role->ratio,
                      .d = p->config->head_dim,
                      .di = p->config->index_head_dim,
                      .codes = part->codes,
                      .scales = part->scales,
                      .key_codes = part->key_codes,
                      .key_scales = part->key_scales};
}

/* pre, post, comb of a site, from the streams as they are now. */
static void mix(const pass *p, const di_mix_weights *w, di_ptr pre) {
    const di_config *c = p->config;
    p->ops->mix(p->stream, &(di_mix_args){.n_rows = p->batch.n_rows,
                                          .hc = c->hc_mult,
                                          .width = c->hidden_size,
                                          .iters = c->hc_sinkhorn_iters,
                                          .rms_eps = c->rms_norm_eps,
                                          .hc_eps = c->hc_eps,
                                          .streams = p->at->streams,
                                          .fn = w->fn,
                                          .base = w->base,
                                          .scale = w->scale,
                                          .pre = pre,
                                          .post = p->at->post,
                                          .comb = p->at->comb});
}

/* u = norm(collapse(streams, pre)) */
static void sublayer_in(const pass *p, di_ptr pre, di_vector norm) {
    const di_config *c = p->config;
    p->ops->sublayer_in(p->stream, &(di_sublayer_in_args){.n_rows = p->batch.n_rows,
                                                          .hc = c->hc_mult,
                                                          .width = c->hidden_size,
                                                          .eps = c->rms_norm_eps,
                                                          .streams = p->at->streams,
                                                          .pre = pre,
                                                          .norm = norm,
                                                          .out = p->at->u});
}

/* streams = expand(y, streams, post, comb) */
static void sublayer_out(const pass *p) {
    p->ops->sublayer_out(p->stream, &(di_sublayer_out_args){.n_rows = p->batch.n_rows,
                                                            .hc = p->config->hc_mult,
                                                            .width = p->config->hidden_size,
                                                            .y = p->at->y,
                                                            .post = p->at->post,
                                                            .comb = p->at->comb,
                                                            .streams = p->at->streams});
}

static void engram_hash(const pass *p) {
    const di_config *c = p->config;
    const di_model *model = p->context->model;
    if (c->n_engram_layers == 0) return;
    p->ops->engram_hash(p->stream,
                        &(di_engram_hash_args){.batch = p->batch,
                                               .history = p->at->history,
                                               .history_slots = p->context->history_slots,
                                               .token_map = model->token_map,
                                               .pad_class = model->engram.pad_class,
                                               .n_layers = c->n_engram_layers,
                                               .max_ngram = c->engram_max_ngram_size,
                                               .n_heads = c->engram_n_heads,
                                               .multipliers = model->multipliers,
                                               .primes = model->primes,
                                               .offsets = model->hash_offsets,
                                               .table_rows = p->at->engram_rows});
}

/* Adds the gated n-gram value to every stream (model.md 5.4). */
static void engram(const pass *p, int32_t layer) {
    const di_config *c = p->config;
    const di_engram_weights *w = &p->context->model->blocks[layer].engram;
    int32_t columns = p->context->model->engram.n_columns, n = p->batch.n_rows;
    uint64_t table_bytes = (uint64_t)n * (uint64_t)columns * sizeof(int64_t);
    di_ptr rows = di_ptr_at(p->at->engram_rows, (uint64_t)c->roles[layer].engram * table_bytes);
    tap(p, "engram_rows", layer, rows, DI_TAP_I64, columns);
    p->ops->engram_rows(p->stream,
                        &(di_engram_rows_args){n, columns, c->engram_head_dim, p->at->pos, rows,
                                               w->codes, w->scales, p->at->engram_values});
    p->ops->linear(p->stream, &(di_linear_args){n, 1, true, false, p->at->engram_values, w->wkv,
                                                p->at->engram_kv});
    p->ops->engram_gate(p->stream,
                        &(di_engram_gate_args){n, c->hc_mult, c->hidden_size, c->rms_norm_eps,
                                               p->at->engram_kv, w->q_weight, w->k_weight,
                                               p->at->streams, DI_NONE});
}

/* A KV source takes its new tokens into the compressed cache. */
static void compress(const pass *p, int32_t layer) {
    const di_compressor_weights *w = &p->context->model->blocks[layer].compressor;
    bool replay = p->context->options.replay;
    p->ops->compress(p->stream, &(di_compress_args){.batch = p->batch,
                                                    .eps = p->config->rms_norm_eps,
                                                    .rope = rope(p, true),
                                                    .u = p->at->u,
                                                    .wkv = w->wkv,
                                                    .wgate = w->wgate,
                                                    .norm = w->norm,
                                                    .wk = w->wk,
                                                    .k_norm = w->k_norm,
                                                    .ring = p->context->compress_ring[layer],
                                                    .ring_slots = p->context->compress_slots,
                                                    .pages = pages(p, layer),
                                                    .closed = replay ? p->at->closed : DI_NONE});
}

/* An index source chooses the compressed entries for itself and the layers that follow. */
static void select_entries(const pass *p, int32_t layer) {
    const di_config *c = p->config;
    const struct di_layer_role *role = &c->roles[layer];
    const di_indexer_weights *w = &p->context->model->blocks[layer].indexer;
    di_candidate_mode mode = role->is_candidate_source ? DI_CANDIDATES_SOURCE
                             : role->uses_candidates   ? DI_CANDIDATES_USE
                                                       : DI_CANDIDATES_NONE;
    p->ops->index_select(p->stream, &(di_index_select_args){.batch = p->batch,
                                                            .n_heads = c->index_n_heads,
                                                            .top_k = c->index_topk,
                                                            .candidate_mode = mode,
                                                            .top_blocks = c->candidate_topk_blocks,
                                                            .block_size = c->candidate_block_size,
                                                            .rope = rope(p, true),
                                                            .qr = p->at->qr,
                                                            .u = p->at->u,
                                                            .wq_b = w->wq_b,
                                                            .weights_proj = w->weights_proj,
                                                            .pages = pages(p, layer),
                                                            .candidates = p->at->candidates,
                                                            .picks = p->at->picks});
    tap(p, "topk", layer, p->at->picks, DI_TAP_I32, c->index_topk);
    if (role->is_candidate_source) {
        tap(p, "candidates", layer, p->at->candidates, DI_TAP_I32, c->candidate_topk_blocks);
    }
}

/* y = attention(u) (model.md 3.6) */
static void attention(const pass *p, int32_t layer) {
    const di_config *c = p->config;
    const struct di_layer_role *role = &c->roles[layer];
    const di_block_weights *w = &p->context->model->blocks[layer];
    p->ops->qkv(p->stream, &(di_qkv_args){.batch = p->batch,
                                          .n_heads = c->num_attention_heads,
                                          .head_dim = c->head_dim,
                                          .eps = c->rms_norm_eps,
                                          .rope = rope(p, role->ratio > 0),
                                          .u = p->at->u,
                                          .wq_a = w->wq_a,
                                          .wq_b = w->wq_b,
                                          .wkv = w->wkv,
                                          .q_norm = w->q_norm,
                                          .kv_norm = w->kv_norm,
                                          .qr = p->at->qr,
                                          .q = p->at->q,
                                          .kv_codes = p->at->kv_codes,
                                          .kv_scales = p->at->kv_scales});
    if (role->is_kv_source && layer != p->published) compress(p, layer);
    if (role->is_index_source) select_entries(p, layer);
    p->ops->attend(p->stream, &(di_attend_args){.batch = p->batch,
                                                .n_heads = c->num_attention_heads,
                                                .head_dim = c->head_dim,
                                                .window = c->sliding_window,
                                                .rope = rope(p, role->ratio > 0),
                                                .q = p->at->q,
                                                .kv_codes = p->at->kv_codes,
                                                .kv_scales = p->at->kv_scales,
                                                .ring = window(p, layer),
                                                .pages = pages(p, layer),
                                                .top_k = role->ratio ? c->index_topk : 0,
                                                .picks = p->at->picks,
                                                .sink = w->sink,
                                                .out = p->at->o});
    p->ops->window_store(p->stream, &(di_window_store_args){p->batch, c->head_dim, p->at->kv_codes,
                                                            p->at->kv_scales, window(p, layer)});
    p->ops->attn_out(p->stream, &(di_attn_out_args){p->batch.n_rows, c->o_groups, p->at->o, w->wo_a,
                                                    w->wo_b, p->at->y});
}

static di_score scoring(const di_config *c) {
    switch (c->scoring_func) {
    case DI_SCORE_SIGMOID: return DI_SCORING_SIGMOID;
    case DI_SCORE_SOFTMAX: return DI_SCORING_SOFTMAX;
    case DI_SCORE_SQRTSOFTPLUS: break;
    }
    return DI_SCORING_SQRTSOFTPLUS;
}

/* y = experts(u) (model.md 4) */
static void moe(const pass *p, int32_t layer) {
    const di_config *c = p->config;
    const di_moe_weights *w = &p->context->model->blocks[layer].moe;
    int32_t n = p->batch.n_rows;
    p->ops->route(p->stream, &(di_route_args){.n_rows = n,
                                              .top_k = w->top_k,
                                              .scoring = scoring(c),
                                              .normalize = c->norm_topk_prob,
                                              .temperature = c->gate_temp,
                                              .scale = c->routed_scaling_factor,
                                              .u = p->at->u,
                                              .gate = w->gate,
                                              .bias = w->bias,
                                              .picks = p->at->router_picks,
                                              .weights = p->at->router_weights});
    tap(p, "router_picks", layer, p->at->router_picks, DI_TAP_I32, w->top_k);
    tap(p, "router_weights", layer, p->at->router_weights, DI_TAP_F, w->top_k);
    p->ops->experts(p->stream, &(di_experts_args){.n_rows = n,
                                                  .top_k = w->top_k,
                                                  .n_experts = w->n_experts,
                                                  .limit = c->swiglu_limit,
                                                  .pos = p->at->pos,
                                                  .u = p->at->u,
                                                  .picks = p->at->router_picks,
                                                  .weights = p->at->router_weights,
                                                  .dtype = w->expert_dtype,
                                                  .width = c->hidden_size,
                                                  .inner = c->moe_intermediate_size,
                                                  .experts = w->experts,
                                                  .rows = p->at->expert_rows});
    p->ops->shared_expert(p->stream,
                          &(di_shared_expert_args){n, c->swiglu_limit, p->at->u, w->shared_w1,
                                                   w->shared_w3, w->shared_w2, p->at->shared});
    p->ops->combine(p->stream, &(di_combine_args){n, w->top_k, c->hidden_size, p->at->expert_rows,
                                                  p->at->shared, p->at->y});
}

/* A sublayer collapses with the pre of the sublayer before it, and expands with its own post and
 * comb. The FFN's pre ends up in at->pre, for the next block or the head. */
static void block(const pass *p, int32_t layer) {
    const di_block_weights *w = &p->context->model->blocks[layer];
    int64_t width = p->config->hidden_size;
    mix(p, &w->attn_mix, p->at->pre_attn);
    sublayer_in(p, p->at->pre, w->attn_norm);
    tap(p, "attn_input", layer, p->at->u, DI_TAP_A, width);
    attention(p, layer);
    tap(p, "attn_output", layer, p->at->y, DI_TAP_A, width);
    sublayer_out(p);
    mix(p, &w->ffn_mix, p->at->pre);
    sublayer_in(p, p->at->pre_attn, w->ffn_norm);
    tap(p, "ffn_input", layer, p->at->u, DI_TAP_A, width);
    moe(p, layer);
    tap(p, "ffn_output", layer, p->at->y, DI_TAP_A, width);
    sublayer_out(p);
    tap(p, "streams", layer, p->at->streams, DI_TAP_A, p->config->hc_mult * width);
}

/* What the drafter reads of the streams that enter a target layer. */
static void observe(const pass *p, int32_t layer) {
    const di_config *c = p->config;
    int64_t width = c->hidden_size, row = width * c->n_dspark_targets;
    uint64_t at = (uint64_t)c->roles[layer].dspark_target * (uint64_t)width;
    p->ops->stream_mean(p->stream,
                        &(di_stream_mean_args){p->batch.n_rows, c->hc_mult, c->hidden_size,
                                               p->at->streams,
                                               di_ptr_at(p->at->main_hidden,
                                                         at * p->context->backend->a_bytes),
                                               row});
    if (c->roles[layer].dspark_target == c->n_dspark_targets - 1) {
        tap(p, "main_hidden", -1, p->at->main_hidden, DI_TAP_A, row);
    }
}

static void discard(const pass *p, const di_layer_ranges *list) {
    for (int64_t i = 0; i < list->n; i++) {
        p->context->backend->discard(p->stream, list->ranges[i].begin, list->ranges[i].size);
    }
}

/* ---- The cut: from here on only the tail of a prompt runs ---- */

static bool is_below_cut(const di_context *context, const di_row *row) {
    return context->length[row->slot] + row->offset < context->cut_from[row->slot];
}

/* Lists the rows that run above the cut; returns their number. */
static int32_t find_upper(di_context *context, const di_step *step) {
    int32_t n = 0;
    for (int32_t i = 0; i < step->n_rows; i++) {
        if (!is_below_cut(context, &step->rows[i])) context->upper[n++] = step->rows[i];
    }
    return n;
}

/* Copies the streams and pre of the upper rows together: runs of rows, one a slot. */
static void gather_upper(const pass *p, const di_step *step) {
    const di_context *context = p->context;
    di_backend *backend = context->backend;
    uint64_t hc = (uint64_t)p->config->hc_mult;
    uint64_t stream_row = hc * (uint64_t)p->config->hidden_size * backend->a_bytes;
    uint64_t pre_row = hc * backend->f_bytes, to = 0;
    for (int32_t i = 0, n; i < step->n_rows; i += n) {
        n = 1;
        if (is_below_cut(context, &step->rows[i])) continue;
        while (i + n < step->n_rows && !is_below_cut(context, &step->rows[i + n])) n++;
        uint64_t from = (uint64_t)i, rows = (uint64_t)n;
        backend->copy(p->stream, di_ptr_at(p->at->upper_streams, to * stream_row),
                      di_ptr_at(p->at->streams, from * stream_row), rows * stream_row);
        backend->copy(p->stream, di_ptr_at(p->at->upper_pre, to * pre_row),
                      di_ptr_at(p->at->pre, from * pre_row), rows * pre_row);
        to += rows;
    }
}

/* At the cut layer: every row publishes its entries; then the pass goes on with the upper rows
 * alone, in buffers of their own. */
static void cut(pass *p, di_context_buffers *upper, const di_step *step, int32_t n_upper,
                int32_t layer) {
    sublayer_in(p, p->at->pre, p->context->model->blocks[layer].attn_norm);
    compress(p, layer);
    p->published = layer;
    if (n_upper == 0) return;
    gather_upper(p, step);
    *upper = *p->at;
    upper->rows = p->at->upper_rows;
    upper->pos = p->at->upper_pos;
    upper->first = p->at->upper_first;
    upper->token = p->at->upper_token;
    upper->streams = p->at->upper_streams;
    upper->pre = p->at->upper_pre;
    p->at = upper;
    p->batch.n_rows = n_upper;
    p->batch.rows = upper->rows;
    p->batch.pos = upper->pos;
    p->batch.first = upper->first;
    p->batch.token = upper->token;
    p->context->backend->upload(p->stream, upper->rows, p->context->upper,
                                (uint64_t)n_upper * sizeof *p->context->upper);
    p->ops->step_begin(p->stream, &(di_step_begin_args){p->batch});
}

/* Leaves p with the rows that went through all layers; upper: room for their buffers. */
static void backbone(pass *p, di_context_buffers *upper, const di_step *step, int32_t n_upper) {
    const di_config *c = p->config;
    const di_model *model = p->context->model;
    int32_t cut_layer = di_model_cut_layer(c);
    p->ops->step_begin(p->stream, &(di_step_begin_args){p->batch});
    p->ops->embed(p->stream,
                  &(di_embed_args){p->batch, model->embed, c->hc_mult, p->at->streams, p->at->pre});
    tap(p, "embed", -1, p->at->streams, DI_TAP_A, (int64_t)c->hc_mult * c->hidden_size);
    engram_hash(p);
    for (int32_t layer = 0; layer < c->num_hidden_layers; layer++) {
        if (layer == cut_layer && p->context->options.replay) {
            if (n_upper < step->n_rows) cut(p, upper, step, n_upper, layer);
            if (n_upper == 0) break;
            p->batch.floor = p->at->floor_upper;
        }
        if (c->roles[layer].engram >= 0) engram(p, layer);
        if (c->roles[layer].dspark_target >= 0) observe(p, layer);
        block(p, layer);
        if (model->release_layers) discard(p, &model->layer_ranges[layer]);
    }
}

/* Logits of the rows that asked for them. */
static void head(const pass *p, const di_step *step, const int32_t *which) {
    const di_config *c = p->config;
    const di_model *model = p->context->model;
    di_backend *backend = p->context->backend;
    backend->upload(p->stream, p->at->which, which, (uint64_t)step->n_out * 4);
    p->ops->head(p->stream, &(di_head_args){.n_out = step->n_out,
                                            .hc = c->hc_mult,
                                            .width = c->hidden_size,
                                            .eps = c->rms_norm_eps,
                                            .which = p->at->which,
                                            .streams = p->at->streams,
                                            .pre = p->at->pre,
                                            .norm = model->norm,
                                            .head = model->head,
                                            .normed = p->at->normed,
                                            .logits = p->at->logits});
    if (p->context->tap) {
        p->context->tap(p->context->tap_user, "final_norm", -1, p->at->normed, DI_TAP_A,
                        step->n_out, c->hidden_size);
    }
    if (model->release_layers) discard(p, &model->head_range);
}

static void sample(const pass *p, const di_step *step) {
    di_context *context = p->context;
    di_backend *backend = context->backend;
    const di_context_buffers *at = p->at;
    int32_t vocab = p->config->vocab_size, n = step->n_out;
    uint64_t mask_bytes = (uint64_t)step->n_masks * (((uint64_t)vocab + 31) / 32) * 4;
    backend->upload(p->stream, at->params, step->params, (uint64_t)n * sizeof *step->params);
    if (step->n_biases) {
        backend->upload(p->stream, at->biases, step->biases,
                        (uint64_t)step->n_biases * sizeof *step->biases);
    }
    if (step->n_masks) backend->upload(p->stream, at->masks, step->masks, mask_bytes);
    di_ptr counts = context->options.penalties ? at->counts : DI_NONE;
    p->ops->sample(p->stream, &(di_sample_args){.n_out = n,
                                                .vocab = vocab,
                                                .which = at->which,
                                                .pos = at->pos,
                                                .logits = at->logits,
                                                .params = at->params,
                                                .counts = counts,
                                                .biases = at->biases,
                                                .masks = at->masks,
                                                .next_token = at->next_token,
                                                .token = at->sampled,
                                                .logprob = at->logprob});
    if (!context->options.penalties) return;
    for (int32_t i = 0; i < n; i++) context->out_slots[i] = step->params[i].slot;
    backend->upload(p->stream, at->sampled_slot, context->out_slots, (uint64_t)n * 4);
    p->ops->tally(p->stream,
                  &(di_tally_args){n, vocab, 1, false, at->sampled, at->sampled_slot, counts});
}

static di_status check_rows(di_context *context, const di_step *step, di_error *error) {
    const di_context_options *o = &context->options;
    int32_t vocab = context->model->config.vocab_size;
    context->step_number++;
    for (int32_t i = 0; i < step->n_rows; i++) {
        const di_row *row = &step->rows[i], *before = i ? &step->rows[i - 1] : NULL;
        if (row->slot < 0 || row->slot >= o->n_slots) {
            return di_fail(error, DI_ERR_USAGE, "row %d: slot %d, there are %d", i, row->slot,
                           o->n_slots);
        }
        if (row->token != DI_TOKEN_NEXT && (row->token < 0 || row->token >= vocab)) {
            return di_fail(error, DI_ERR_USAGE, "row %d: token id %d, the vocabulary has %d", i,
                           row->token, vocab);
        }
        bool goes_on = before && before->slot == row->slot;
        bool again = !goes_on && context->seen[row->slot] == context->step_number;
        context->seen[row->slot] = context->step_number;
        if (again || row->offset != (goes_on ? before->offset + 1 : 0)) {
            return di_fail(error, DI_ERR_USAGE, "row %d: offset %d does not continue its sequence",
                           i, row->offset);
        }
        if (context->length[row->slot] + row->offset >= o->max_context) {
            return di_fail(error, DI_ERR_LIMIT,
                           "the sequence would be longer than the context of %" PRId64 " tokens",
                           o->max_context);
        }
    }
    return DI_OK;
}

static di_status check_outputs(const di_context *context, const di_step *step, di_error *error) {
    if (step->n_out < 0 || step->n_out > context->options.max_out) {
        return di_fail(error, DI_ERR_LIMIT, "%d rows ask for logits, the context allows %d",
                       step->n_out, context->options.max_out);
    }
    for (int32_t i = 0; i < step->n_out; i++) {
        int32_t row = step->out_rows[i];
        if (row < 0 || row >= step->n_rows || (i && row <= step->out_rows[i - 1])) {
            return di_fail(error, DI_ERR_USAGE,
                           "out_rows[%d] = %d: not an ascending row of the step", i, row);
        }
        if (is_below_cut(context, &step->rows[row])) {
            return di_fail(error, DI_ERR_USAGE,
                           "out_rows[%d]: row %d lies below the cut and has no logits", i, row);
        }
        const di_sample_params *s = step->params ? &step->params[i] : NULL;
        if (!s) continue;
        bool bias_ok =
            s->n_bias >= 0 && s->bias_begin >= 0 && s->n_bias <= step->n_biases - s->bias_begin;
        if (s->slot != step->rows[row].slot || !bias_ok || s->mask >= step->n_masks) {
            return di_fail(error, DI_ERR_USAGE, "params[%d]: slot, bias range or mask out of range",
                           i);
        }
    }
    if (step->n_biases < 0 || step->n_biases > DI_MAX_BIASES || step->n_masks < 0 ||
        step->n_masks > DI_MAX_MASKS) {
        return di_fail(error, DI_ERR_LIMIT, "a step takes at most %d logit biases and %d masks",
                       DI_MAX_BIASES, DI_MAX_MASKS);
    }
    return DI_OK;
}

/* The rows that asked for logits, as rows of the pass above the cut. */
static const int32_t *out_rows(di_context *context, const di_step *step) {
    int32_t below = 0, next = 0;
    for (int32_t i = 0; i < step->n_out; i++) {
        for (; next < step->out_rows[i]; next++) below += is_below_cut(context, &step->rows[next]);
        context->out_slots[i] = step->out_rows[i] - below;
    }
    return context->out_slots;
}

/* The host's view of the slots after the step. */
static void advance(di_context *context, const di_step *step) {
    int32_t rollback = di_config_rollback(&context->model->config);
    for (int32_t i = 0; i < step->n_rows; i++) {
        int32_t slot = step->rows[i].slot;
        context->length[slot]++;
        if (context->margin[slot] < rollback) context->margin[slot]++;
    }
}

di_status di_forward(di_context *context, const di_step *step, di_error *error) {
    if (step->n_rows < 1 || step->n_rows > context->options.max_rows) {
        return di_fail(error, DI_ERR_LIMIT, "a step of %d rows, the context allows 1 to %d",
                       step->n_rows, context->options.max_rows);
    }
    DI_TRY(check_rows(context, step, error));
    DI_TRY(check_outputs(context, step, error));
    const di_context_buffers *at = &context->at;
    di_backend *backend = context->backend;
    di_context_buffers upper;
    int32_t n_upper = find_upper(context, step);
    pass p = {context, &context->model->config, at, backend->ops, backend->stream, {0}, -1};
    const di_batch all = {step->n_rows, context->options.n_slots,
                          at->rows,     at->length,
                          at->n_valid,  at->next_token,
                          at->pos,      at->first,
                          at->token,    context->options.replay ? at->floor_lower : DI_NONE};
    p.batch = all;
    backend->upload(p.stream, at->rows, step->rows, (uint64_t)step->n_rows * sizeof *step->rows);
    backbone(&p, &upper, step, n_upper);
    context->n_out = step->n_out;
    context->sampled = step->n_out > 0 && step->params;
    if (step->n_out > 0) head(&p, step, out_rows(context, step));
    if (context->sampled) sample(&p, step);
    p.ops->step_end(p.stream, &(di_step_end_args){all, at->history, context->history_slots});
    advance(context, step);
    return DI_OK;
}
