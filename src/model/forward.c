/* The forward pass over one ragged step, in the order of the paper (model.md 3.4, 5, 6, 8).
 * Everything here enqueues; nothing waits and nothing looks into memory. Blocks: block.c.
 */
#include "model/network.h"

static void engram_hash(const di_pass *p) {
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

/* The table's rows of every row. When layers are given back, so is what was mapped of the table,
 * after every few rows. */
static void engram_rows(const di_pass *p, int32_t layer, di_ptr table_rows) {
    const di_config *c = p->config;
    const di_model *model = p->context->model;
    const di_engram_weights *w = &model->blocks[layer].engram;
    int32_t columns = model->engram.n_columns, n = p->batch.n_rows;
    int32_t most = model->release_layers ? di_release_rows(n, columns) : n;
    uint64_t width = (uint64_t)c->engram_head_dim, cells = (uint64_t)columns;
    for (int32_t at = 0; at < n; at += most) {
        uint64_t first = (uint64_t)at;
        di_ptr out =
            di_ptr_at(p->at->engram_values, first * cells * width * p->context->backend->a_bytes);
        p->ops->engram_rows(p->stream,
                            &(di_engram_rows_args){.n_rows = n - at < most ? n - at : most,
                                                   .n_columns = columns,
                                                   .width = c->engram_head_dim,
                                                   .pos = di_ptr_at(p->at->pos, first * 4),
                                                   .table_rows =
                                                       di_ptr_at(table_rows, first * cells * 8),
                                                   .codes = w->codes,
                                                   .scales = w->scales,
                                                   .out = out});
        if (model->release_layers) di_pass_discard(p, &model->layer_ranges[layer]);
    }
}

/* Adds the gated n-gram value to every stream (model.md 5.4). */
static void engram(const di_pass *p, int32_t layer) {
    const di_config *c = p->config;
    const di_engram_weights *w = &p->context->model->blocks[layer].engram;
    int32_t columns = p->context->model->engram.n_columns, n = p->batch.n_rows;
    uint64_t table_bytes = (uint64_t)n * (uint64_t)columns * sizeof(int64_t);
    di_ptr rows = di_ptr_at(p->at->engram_rows, (uint64_t)c->roles[layer].engram * table_bytes);
    di_pass_tap(p, "engram_rows", layer, rows, DI_TAP_I64, columns);
    engram_rows(p, layer, rows);
    p->ops->linear(p->stream, &(di_linear_args){n, 1, true, false, p->at->engram_values, w->wkv,
                                                p->at->engram_kv});
    p->ops->engram_gate(p->stream,
                        &(di_engram_gate_args){n, c->hc_mult, c->hidden_size, c->rms_norm_eps,
                                               p->at->engram_kv, w->q_weight, w->k_weight,
                                               p->at->streams, DI_NONE});
}

/* What the drafter reads of the streams that enter a target layer. */
static void observe(const di_pass *p, int32_t layer) {
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
        di_pass_tap(p, "main_hidden", -1, p->at->main_hidden, DI_TAP_A, row);
    }
}

/* ---- The cut: from here on only the tail of a prompt runs ---- */

/* Lists the rows that run above the cut; returns their number. */
static int32_t find_upper(di_context *context, const di_step *step) {
    int32_t n = 0;
    for (int32_t i = 0; i < step->n_rows; i++) {
        if (!di_context_is_below_cut(context, &step->rows[i])) context->upper[n++] = step->rows[i];
    }
    return n;
}

/* Copies the streams and pre of the upper rows together: runs of rows, one a slot. */
static void gather_upper(const di_pass *p, const di_step *step) {
    const di_context *context = p->context;
    di_backend *backend = context->backend;
    uint64_t hc = (uint64_t)p->config->hc_mult;
    uint64_t stream_row = hc * (uint64_t)p->config->hidden_size * backend->a_bytes;
    uint64_t pre_row = hc * backend->f_bytes, to = 0;
    for (int32_t i = 0, n; i < step->n_rows; i += n) {
        n = 1;
        if (di_context_is_below_cut(context, &step->rows[i])) continue;
        while (i + n < step->n_rows && !di_context_is_below_cut(context, &step->rows[i + n])) n++;
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
static void cut(di_pass *p, di_context_buffers *upper, const di_step *step, int32_t n_upper,
                int32_t layer) {
    di_pass_sublayer_in(p, p->at->pre, p->context->model->blocks[layer].attn_norm);
    di_pass_compress(p, layer);
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
static void backbone(di_pass *p, di_context_buffers *upper, const di_step *step, int32_t n_upper) {
    const di_config *c = p->config;
    bool observed = p->context->options.drafts || p->context->tap;
    int32_t cut_layer = di_model_cut_layer(c);
    p->ops->step_begin(p->stream, &(di_step_begin_args){p->batch});
    di_pass_embed(p);
    di_pass_tap(p, "embed", -1, p->at->streams, DI_TAP_A, (int64_t)c->hc_mult * c->hidden_size);
    engram_hash(p);
    for (int32_t layer = 0; layer < c->num_hidden_layers; layer++) {
        if (layer == cut_layer && p->context->options.replay) {
            if (n_upper < step->n_rows) cut(p, upper, step, n_upper, layer);
            if (n_upper == 0) break;
            p->batch.floor = p->at->floor_upper;
        }
        if (c->roles[layer].engram >= 0) engram(p, layer);
        if (observed && c->roles[layer].dspark_target >= 0) observe(p, layer);
        di_pass_block(p, layer);
    }
    if (p->context->options.drafts && n_upper > 0) di_pass_observe(p);
}

/* Logits of the rows that asked for them. */
void di_pass_head(const di_pass *p, const int32_t *which, int32_t n_out, di_vector norm) {
    const di_config *c = p->config;
    const di_model *model = p->context->model;
    di_backend *backend = p->context->backend;
    backend->upload(p->stream, p->at->which, which, (uint64_t)n_out * 4);
    p->ops->head(p->stream, &(di_head_args){.n_out = n_out,
                                            .hc = c->hc_mult,
                                            .width = c->hidden_size,
                                            .eps = c->rms_norm_eps,
                                            .which = p->at->which,
                                            .streams = p->at->streams,
                                            .pre = p->at->pre,
                                            .norm = norm,
                                            .head = model->head,
                                            .normed = p->at->normed,
                                            .logits = p->at->logits});
    if (p->context->tap) {
        p->context->tap(p->context->tap_user, "final_norm", -1, p->at->normed, DI_TAP_A, n_out,
                        c->hidden_size);
    }
    di_pass_discard(p, &model->head_range);
}

void di_pass_upload_sampling(const di_pass *p, const di_step *step) {
    di_backend *backend = p->context->backend;
    const di_context_buffers *at = p->at;
    uint64_t words = ((uint64_t)p->config->vocab_size + 31) / 32;
    backend->upload(p->stream, at->params, step->params,
                    (uint64_t)step->n_out * sizeof *step->params);
    if (step->n_biases) {
        backend->upload(p->stream, at->biases, step->biases,
                        (uint64_t)step->n_biases * sizeof *step->biases);
    }
    if (step->n_masks) {
        backend->upload(p->stream, at->masks, step->masks, (uint64_t)step->n_masks * words * 4);
    }
}

static void sample(const di_pass *p, const di_step *step) {
    di_context *context = p->context;
    di_backend *backend = context->backend;
    const di_context_buffers *at = p->at;
    int32_t vocab = p->config->vocab_size, n = step->n_out;
    di_pass_upload_sampling(p, step);
    di_ptr counts = context->options.penalties ? at->counts : DI_NONE;
    p->ops->sample(p->stream, &(di_sample_args){.n_out = n,
                                                .vocab = vocab,
                                                .which = at->which,
                                                .pos = at->pos,
                                                .first = at->first,
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

/* The rows that asked for logits, as rows of the pass above the cut. */
static const int32_t *out_rows(di_context *context, const di_step *step) {
    int32_t below = 0, next = 0;
    for (int32_t i = 0; i < step->n_out; i++) {
        for (; next < step->out_rows[i]; next++)
            below += di_context_is_below_cut(context, &step->rows[next]);
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

di_batch di_pass_batch(const di_context *context, int32_t n_rows, di_ptr floor) {
    const di_context_buffers *at = &context->at;
    return (di_batch){n_rows,      context->options.n_slots,
                      at->rows,    at->length,
                      at->n_valid, at->next_token,
                      at->pos,     at->first,
                      at->token,   floor};
}

di_status di_forward(di_context *context, const di_step *step, di_error *error) {
    DI_TRY(di_step_check(context, step, error));
    const di_context_buffers *at = &context->at;
    di_backend *backend = context->backend;
    di_context_buffers upper;
    int32_t n_upper = find_upper(context, step);
    di_pass p = {context, &context->model->config, at, backend->ops, backend->stream, {0}, -1, 0};
    const di_batch all =
        di_pass_batch(context, step->n_rows, context->options.replay ? at->floor_lower : DI_NONE);
    p.batch = all;
    backend->upload(p.stream, at->rows, step->rows, (uint64_t)step->n_rows * sizeof *step->rows);
    backbone(&p, &upper, step, n_upper);
    context->n_out = step->n_out;
    context->sampled = step->n_out > 0 && step->params;
    if (step->n_out > 0)
        di_pass_head(&p, out_rows(context, step), step->n_out, context->model->norm);
    if (context->sampled) sample(&p, step);
    p.ops->step_end(p.stream, &(di_step_end_args){all, at->history, context->history_slots});
    advance(context, step);
    return DI_OK;
}
