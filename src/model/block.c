/* A block: a backbone layer or a draft layer, in the order of the paper (model.md 3.5 to 3.8, 4;
 * dspark.md 5). Everything here enqueues; nothing waits and nothing looks into memory.
 */
#include "model/network.h"

void di_pass_discard(const di_pass *p, const di_layer_ranges *list) {
    for (int64_t i = 0; i < list->n; i++) {
        p->context->backend->discard(p->stream, list->ranges[i].begin, list->ranges[i].size);
    }
}

void di_pass_discard_layer(const di_pass *p, int32_t layer) {
    const di_model *model = p->context->model;
    if (!model->release_layers) return;
    if (layer > 0) di_pass_discard(p, &model->layer_ranges[layer - 1]);
    di_pass_discard(p, &model->layer_ranges[layer]);
}

void di_pass_embed(const di_pass *p) {
    const di_model *model = p->context->model;
    int32_t hc = p->config->hc_mult, n = p->batch.n_rows;
    int32_t most = model->release_layers ? di_release_rows(n, 1) : n;
    uint64_t stream_row =
        (uint64_t)hc * (uint64_t)p->config->hidden_size * p->context->backend->a_bytes;
    for (int32_t at = 0; at < n; at += most) {
        uint64_t first = (uint64_t)at;
        di_batch part = p->batch; /* rows and first are not read */
        part.n_rows = n - at < most ? n - at : most;
        part.pos = di_ptr_at(p->batch.pos, first * 4);
        part.token = di_ptr_at(p->batch.token, first * 4);
        p->ops->embed(p->stream,
                      &(di_embed_args){part, model->embed, hc,
                                       di_ptr_at(p->at->streams, first * stream_row),
                                       di_ptr_at(p->at->pre, first * (uint64_t)hc *
                                                                 p->context->backend->f_bytes)});
        di_pass_discard(p, &model->embed_range);
    }
}

void di_pass_tap(const di_pass *p, const char *name, int32_t layer, di_ptr data, di_tap_type type,
                 int64_t row_width) {
    di_context *context = p->context;
    if (context->tap) {
        context->tap(context->tap_user, name, layer, data, type, p->batch.n_rows, row_width);
    }
}

di_rope di_pass_rope(const di_pass *p, bool compressed) {
    const di_model *model = p->context->model;
    return (di_rope){p->config->qk_rope_head_dim,
                     compressed ? model->freq_compress : model->freq_main};
}

/* The window ring of a layer. */
di_window di_pass_window(const di_pass *p, int32_t layer) {
    uint64_t slots = (uint64_t)p->batch.n_slots * (uint64_t)p->context->ring_slots;
    uint64_t row = (uint64_t)p->config->head_dim, at = (uint64_t)layer * slots;
    return (di_window){di_ptr_at(p->at->window_codes, at * row),
                       di_ptr_at(p->at->window_scales, at * (row / 32)), p->context->ring_slots};
}

/* Draft layers see windows only (model.md 1). */
static const struct di_layer_role *role_of(const di_pass *p, int32_t layer) {
    static const struct di_layer_role draft = {.kv_source = -1,
                                               .index_source = -1,
                                               .engram = -1,
                                               .dspark_target = -1};
    return layer < p->config->num_hidden_layers ? &p->config->roles[layer] : &draft;
}

/* The compressed cache that a layer reads: that of its KV source. */
static di_pages pages(const di_pass *p, int32_t layer) {
    const struct di_layer_role *role = role_of(p, layer);
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
static void mix(const di_pass *p, const di_mix_weights *w, di_ptr pre) {
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
void di_pass_sublayer_in(const di_pass *p, di_ptr pre, di_vector norm) {
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
static void sublayer_out(const di_pass *p) {
    p->ops->sublayer_out(p->stream, &(di_sublayer_out_args){.n_rows = p->batch.n_rows,
                                                            .hc = p->config->hc_mult,
                                                            .width = p->config->hidden_size,
                                                            .y = p->at->y,
                                                            .post = p->at->post,
                                                            .comb = p->at->comb,
                                                            .streams = p->at->streams});
}

/* A KV source takes its new tokens into the compressed cache. */
void di_pass_compress(const di_pass *p, int32_t layer) {
    const di_compressor_weights *w = &p->context->model->blocks[layer].compressor;
    bool replay = p->context->options.replay;
    p->ops->compress(p->stream, &(di_compress_args){.batch = p->batch,
                                                    .eps = p->config->rms_norm_eps,
                                                    .rope = di_pass_rope(p, true),
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
static void select_entries(const di_pass *p, int32_t layer) {
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
                                                            .rope = di_pass_rope(p, true),
                                                            .qr = p->at->qr,
                                                            .u = p->at->u,
                                                            .wq_b = w->wq_b,
                                                            .weights_proj = w->weights_proj,
                                                            .pages = pages(p, layer),
                                                            .candidates = p->at->candidates,
                                                            .picks = p->at->picks});
    di_pass_tap(p, "topk", layer, p->at->picks, DI_TAP_I32, c->index_topk);
    if (role->is_candidate_source) {
        di_pass_tap(p, "candidates", layer, p->at->candidates, DI_TAP_I32,
                    c->candidate_topk_blocks);
    }
}

/* y = attention(u) (model.md 3.6) */
static void attention(const di_pass *p, int32_t layer) {
    const di_config *c = p->config;
    const struct di_layer_role *role = role_of(p, layer);
    const di_block_weights *w = &p->context->model->blocks[layer];
    p->ops->qkv(p->stream, &(di_qkv_args){.batch = p->batch,
                                          .n_heads = c->num_attention_heads,
                                          .head_dim = c->head_dim,
                                          .eps = c->rms_norm_eps,
                                          .rope = di_pass_rope(p, role->ratio > 0),
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
    if (role->is_kv_source && layer != p->published) di_pass_compress(p, layer);
    if (role->is_index_source) select_entries(p, layer);
    p->ops->attend(p->stream, &(di_attend_args){.batch = p->batch,
                                                .n_heads = c->num_attention_heads,
                                                .head_dim = c->head_dim,
                                                .window = c->sliding_window,
                                                .rope = di_pass_rope(p, role->ratio > 0),
                                                .q = p->at->q,
                                                .kv_codes = p->at->kv_codes,
                                                .kv_scales = p->at->kv_scales,
                                                .ring = di_pass_window(p, layer),
                                                .pages = pages(p, layer),
                                                .top_k = role->ratio ? c->index_topk : 0,
                                                .picks = p->at->picks,
                                                .sink = w->sink,
                                                .out = p->at->o,
                                                .block = p->block});
    /* Drafts leave no rows behind: the ring of a draft layer is filled from the backbone (draft.c).
     */
    if (!p->block)
        p->ops->window_store(p->stream,
                             &(di_window_store_args){p->batch, c->head_dim, p->at->kv_codes,
                                                     p->at->kv_scales, di_pass_window(p, layer)});
    p->ops->attn_out(p->stream, &(di_attn_out_args){p->batch.n_rows, c->o_groups, p->at->o, w->wo_a,
                                                    w->wo_b, p->at->y});
}

/* y = experts(u) (model.md 4) */
static void moe(const di_pass *p, int32_t layer) {
    const di_config *c = p->config;
    const di_moe_weights *w = &p->context->model->blocks[layer].moe;
    int32_t n = p->batch.n_rows;
    p->ops->route(p->stream, &(di_route_args){.n_rows = n,
                                              .top_k = w->top_k,
                                              .scoring = c->scoring_func,
                                              .normalize = c->norm_topk_prob,
                                              .temperature = c->gate_temp,
                                              .scale = c->routed_scaling_factor,
                                              .u = p->at->u,
                                              .gate = w->gate,
                                              .bias = w->bias,
                                              .picks = p->at->router_picks,
                                              .weights = p->at->router_weights});
    di_pass_tap(p, "router_picks", layer, p->at->router_picks, DI_TAP_I32, w->top_k);
    di_pass_tap(p, "router_weights", layer, p->at->router_weights, DI_TAP_F, w->top_k);
    /* Before the experts: it does not wait for the router, and a backend may know that. */
    p->ops->shared_expert(p->stream,
                          &(di_shared_expert_args){n, c->swiglu_limit, p->at->u, w->shared_w1,
                                                   w->shared_w3, w->shared_w2, p->at->shared});
    if (di_on_host(p->context->model, layer)) {
        di_pass_host_experts(p, layer);
        return;
    }
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
    p->ops->combine(p->stream, &(di_combine_args){n, w->top_k, c->hidden_size, p->at->expert_rows,
                                                  p->at->shared, p->at->y});
}

/* A sublayer collapses with the pre of the sublayer before it, and expands with its own post and
 * comb. The FFN's pre ends up in at->pre, for the next block or the head. */
void di_pass_block(const di_pass *p, int32_t layer) {
    const di_block_weights *w = &p->context->model->blocks[layer];
    int64_t width = p->config->hidden_size;
    mix(p, &w->attn_mix, p->at->pre_attn);
    di_pass_sublayer_in(p, p->at->pre, w->attn_norm);
    di_pass_tap(p, "attn_input", layer, p->at->u, DI_TAP_A, width);
    attention(p, layer);
    di_pass_tap(p, "attn_output", layer, p->at->y, DI_TAP_A, width);
    sublayer_out(p);
    mix(p, &w->ffn_mix, p->at->pre);
    di_pass_sublayer_in(p, p->at->pre_attn, w->ffn_norm);
    di_pass_tap(p, "ffn_input", layer, p->at->u, DI_TAP_A, width);
    moe(p, layer);
    di_pass_tap(p, "ffn_output", layer, p->at->y, DI_TAP_A, width);
    sublayer_out(p);
    di_pass_discard_layer(p, layer);
    di_pass_tap(p, "streams", layer, p->at->streams, DI_TAP_A, p->config->hc_mult * width);
}
