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

/* Lists the rows that run above the cut, those of blocks left out; returns their number. */
static int32_t find_upper(di_context *context, const di_step *step) {
    int32_t n = 0;
    for (int32_t i = 0; i < step->n_rows; i++) {
        if (!di_context_is_below_cut(context, &step->rows[i])) context->upper[n++] = step->rows[i];
    }
    return n;
}

/* n rows of the step, from row `from` on, are rows `to` ... of the pass above the cut. */
static void move_rows(const di_pass *p, uint64_t to, uint64_t from, uint64_t n) {
    di_backend *backend = p->context->backend;
    uint64_t hc = (uint64_t)p->config->hc_mult;
    uint64_t stream_row = hc * (uint64_t)p->config->hidden_size * backend->a_bytes;
    uint64_t pre_row = hc * backend->f_bytes;
    if (n == 0) return;
    backend->copy(p->stream, di_ptr_at(p->at->upper_streams, to * stream_row),
                  di_ptr_at(p->at->streams, from * stream_row), n * stream_row);
    backend->copy(p->stream, di_ptr_at(p->at->upper_pre, to * pre_row),
                  di_ptr_at(p->at->pre, from * pre_row), n * pre_row);
}

/* Copies the streams and pre of the upper rows together: the blocks, then runs of rows, one a slot.
 */
static void gather_upper(const di_pass *p, const di_step *step) {
    const di_context *context = p->context;
    int32_t to = di_step_block_rows(step), first = to;
    move_rows(p, 0, 0, (uint64_t)first);
    for (int32_t i = 0, n; i < step->n_rows; i += n) {
        n = 1;
        if (di_context_is_below_cut(context, &step->rows[i])) continue;
        while (i + n < step->n_rows && !di_context_is_below_cut(context, &step->rows[i + n])) n++;
        move_rows(p, (uint64_t)to, (uint64_t)first + (uint64_t)i, (uint64_t)n);
        to += n;
    }
}

/* At the cut layer: every row publishes its entries; then the pass goes on with the upper rows
 * alone, the n_listed in context->upper and those of blocks, in buffers of their own. */
static void cut(di_pass *p, di_context_buffers *upper, const di_step *step, int32_t n_listed,
                int32_t layer) {
    di_backend *backend = p->context->backend;
    int32_t n_first = di_step_block_rows(step), n_upper = n_first + n_listed;
    uint64_t first_bytes = (uint64_t)n_first * sizeof(di_row);
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
    if (n_first > 0) backend->copy(p->stream, upper->rows, p->at->rows, first_bytes);
    p->at = upper;
    p->batch.n_rows = n_upper;
    p->batch.rows = upper->rows;
    p->batch.pos = upper->pos;
    p->batch.first = upper->first;
    p->batch.token = upper->token;
    if (n_listed > 0) {
        backend->upload(p->stream, di_ptr_at(upper->rows, first_bytes), p->context->upper,
                        (uint64_t)n_listed * sizeof *p->context->upper);
    }
    p->ops->step_begin(p->stream, &(di_step_begin_args){p->batch});
}

/* Leaves p with the rows that went through all layers; upper: room for their buffers. */
static void backbone(di_pass *p, di_context_buffers *upper, const di_step *step, bool put_aside) {
    int32_t n_listed = find_upper(p->context, step);
    int32_t n_upper = di_step_block_rows(step) + n_listed;
    const di_config *c = p->config;
    bool observed = p->context->options.drafts || p->context->tap;
    int32_t cut_layer = di_model_cut_layer(c);
    p->ops->step_begin(p->stream, &(di_step_begin_args){p->batch});
    di_pass_embed(p);
    di_pass_tap(p, "embed", -1, p->at->streams, DI_TAP_A, (int64_t)c->hc_mult * c->hidden_size);
    engram_hash(p);
    for (int32_t layer = 0; layer < c->num_hidden_layers; layer++) {
        if (layer == cut_layer && p->context->options.replay) {
            if (n_listed < step->n_rows) cut(p, upper, step, n_listed, layer);
            if (n_upper == 0) break;
            p->batch.floor = p->at->floor_upper;
        }
        if (c->roles[layer].engram >= 0) engram(p, layer);
        if (observed && c->roles[layer].dspark_target >= 0) observe(p, layer);
        di_pass_block(p, layer);
    }
    if (p->context->options.drafts && n_upper > 0 && !put_aside) di_pass_observe(p);
}

/* Logits of the rows that asked for them. */
void di_pass_head(const di_pass *p, int32_t n_out, di_vector norm) {
    const di_config *c = p->config;
    const di_model *model = p->context->model;
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

void di_pass_upload_sampling(const di_pass *p, const di_step *step, int32_t n_params) {
    di_backend *backend = p->context->backend;
    const di_context_buffers *at = p->at;
    uint64_t words = ((uint64_t)p->config->vocab_size + 31) / 32;
    backend->upload(p->stream, at->params, step->params, (uint64_t)n_params * sizeof *step->params);
    if (step->n_biases) {
        backend->upload(p->stream, at->biases, step->biases,
                        (uint64_t)step->n_biases * sizeof *step->biases);
    }
    if (step->n_masks) {
        backend->upload(p->stream, at->masks, step->masks, (uint64_t)step->n_masks * words * 4);
    }
}

/* ---- Results ---- */

/* An array of one int32 for each listed row, behind those that allot wrote for the blocks. */
static void upload_behind(const di_pass *p, const di_step *step, di_ptr array) {
    uint64_t first = (uint64_t)di_step_allotted_rows(step) * 4;
    p->context->backend->upload(p->stream, di_ptr_at(array, first), p->context->out_slots,
                                (uint64_t)(di_step_own_rows(step) + step->n_out) * 4);
}

/* What allot writes for other blocks, for those with drafts of the host. */
typedef enum own_list { OWN_WHICH, OWN_PARAM, OWN_SLOT, OWN_EXTRA_AT, OWN_N_EXTRA } own_list;

/* One of its arrays at the head of the list. Returns how long it is. */
static int32_t list_own(const di_step *step, own_list kind, int32_t *list) {
    int32_t begin = di_step_allotted_rows(step), n = 0;
    for (int32_t b = di_step_allotted_blocks(step); b < step->n_blocks; b++) {
        const di_decode *block = &step->blocks[b];
        int32_t first = begin + n;
        for (int32_t k = 0; k <= block->most; k++, n++) {
            const int32_t values[] = {[OWN_WHICH] = begin + n,
                                      [OWN_PARAM] = di_step_allotted_blocks(step) + n,
                                      [OWN_SLOT] = block->slot,
                                      [OWN_EXTRA_AT] = first + 1,
                                      [OWN_N_EXTRA] = k};
            list[n] = values[kind];
        }
    }
    return n;
}

/* Which rows have results, as rows of the pass above the cut, and what sample must know of them. */
static void list_results(const di_pass *p, const di_step *step) {
    di_context *context = p->context;
    int32_t *list = context->out_slots, first = di_step_block_rows(step), next = 0, below = 0;
    int32_t n = list_own(step, OWN_WHICH, list), params = di_step_params(step) - step->n_out;
    if (n + step->n_out == 0) return;
    for (int32_t i = 0; i < step->n_out; i++) {
        for (; next < step->out_rows[i]; next++)
            below += di_context_is_below_cut(context, &step->rows[next]);
        list[n + i] = first + step->out_rows[i] - below;
    }
    upload_behind(p, step, p->at->which);
    if (!step->params) return;
    list_own(step, OWN_PARAM, list);
    for (int32_t i = 0; i < step->n_out; i++) list[n + i] = params + i;
    upload_behind(p, step, p->at->param_of);
    list_own(step, OWN_SLOT, list);
    for (int32_t i = 0; i < step->n_out; i++) list[n + i] = step->rows[step->out_rows[i]].slot;
    upload_behind(p, step, p->at->sampled_slot);
    for (int32_t i = 0; i < step->n_out; i++) list[n + i] = 0;
    list_own(step, OWN_N_EXTRA, list);
    upload_behind(p, step, p->at->n_extra);
    list_own(step, OWN_EXTRA_AT, list);
    upload_behind(p, step, p->at->extra_at);
}

static void sample(const di_pass *p, const di_step *step, int32_t n) {
    const di_context *context = p->context;
    const di_context_buffers *at = p->at;
    int32_t vocab = p->config->vocab_size;
    di_ptr counts = context->options.penalties ? at->counts : DI_NONE;
    const di_sample_args args = {.n_out = n,
                                 .vocab = vocab,
                                 .which = at->which,
                                 .pos = at->pos,
                                 .first = at->first,
                                 .logits = at->logits,
                                 .params = at->params,
                                 .param_of = at->param_of,
                                 .counts = counts,
                                 .extra = at->token,
                                 .extra_at = at->extra_at,
                                 .n_extra = at->n_extra,
                                 .extra_stride = 1,
                                 .biases = at->biases,
                                 .masks = at->masks,
                                 .next_token = at->next_token,
                                 .token = at->sampled,
                                 .logprob = at->logprob};
    p->ops->sample(p->stream, &args);
    di_pass_accept(p, step, &args);
    if (!context->options.penalties) return;
    p->ops->tally(p->stream,
                  &(di_tally_args){n, vocab, 1, false, at->sampled, at->sampled_slot, counts});
}

/* The host's view of the slots after the step. */
static void advance(di_context *context, const di_step *step) {
    int32_t rollback = di_config_rollback(&context->model->config);
    for (int32_t i = 0; i < step->n_rows; i++) {
        int32_t slot = step->rows[i].slot;
        context->length[slot]++;
        if (context->margin[slot] < rollback) context->margin[slot]++;
    }
    di_blocks_advance(context, step);
    context->n_blocks = step->n_blocks;
    context->n_out = di_step_block_rows(step) + step->n_out;
    context->sampled = context->n_out > 0 && step->params;
}

di_batch di_pass_batch(const di_context *context, int32_t n_rows, di_ptr floor) {
    const di_context_buffers *at = &context->at;
    return (di_batch){n_rows,      context->options.n_slots,
                      at->rows,    at->length,
                      at->n_valid, at->next_token,
                      at->pos,     at->first,
                      at->token,   floor};
}

/* ---- The step ---- */

/* What a host is called with does not follow from a key. Draft passes never call it. */
static bool can_record(const di_pass *p) {
    return p->context->backend->record && !p->context->tap &&
           (!p->context->model->host || p->block > 0);
}

bool di_pass_record(const di_pass *p, di_pass_shape shape) {
    di_backend *backend = p->context->backend;
    if (!can_record(p)) return false;
    const uint64_t key[2] = {p->context->serial << 44 | (uint64_t)shape.own_rows << 23 |
                                 (uint64_t)shape.n_own << 2 | (uint64_t)shape.drafts << 1 |
                                 shape.samples,
                             (uint64_t)shape.n << 42 | (uint64_t)shape.n_verified << 21 |
                                 (uint64_t)shape.n_columns};
    return backend->record(p->stream, key);
}

void di_pass_recorded(const di_pass *p) {
    di_backend *backend = p->context->backend;
    if (can_record(p)) backend->recorded(p->stream);
}

/* What the step's operations read, but for what others of them write. */
static void upload_step(const di_pass *p, const di_step *step) {
    uint64_t first = (uint64_t)di_step_block_rows(step) * sizeof *step->rows;
    di_pass_upload_blocks(p, step);
    if (step->n_rows > 0) {
        p->context->backend->upload(p->stream, di_ptr_at(p->at->rows, first), step->rows,
                                    (uint64_t)step->n_rows * sizeof *step->rows);
    }
    list_results(p, step);
    if (step->params && step->n_blocks + step->n_out > 0)
        di_pass_upload_sampling(p, step, di_step_params(step));
}

static void run_step(di_pass *p, const di_step *step, bool put_aside) {
    const di_batch all = p->batch;
    di_context_buffers upper;
    int32_t n_results = di_step_block_rows(step) + step->n_out;
    di_pass_allot(p, step);
    backbone(p, &upper, step, put_aside);
    if (n_results > 0) di_pass_head(p, n_results, p->context->model->norm);
    if (n_results > 0 && step->params) sample(p, step, n_results);
    p->ops->step_end(p->stream,
                     &(di_step_end_args){all, p->context->at.history, p->context->history_slots});
}

di_status di_forward(di_context *context, const di_step *step, di_error *error) {
    DI_TRY(di_step_check(context, step, error));
    di_context_buffers buffers = context->at;
    di_backend *backend = context->backend;
    bool put_aside = di_context_put_aside(context, step, &buffers.main_hidden);
    bool decodes = step->n_rows == 0;
    const di_batch batch =
        di_pass_batch(context, di_step_block_rows(step) + step->n_rows,
                      context->options.replay ? context->at.floor_lower : DI_NONE);
    di_pass p =
        {context, &context->model->config, &buffers, backend->ops, backend->stream, batch, -1, 0};
    upload_step(&p, step);
    const di_pass_shape shape = {.samples = step->params != NULL,
                                 .n = step->n_blocks,
                                 .n_verified = step->n_drafts,
                                 .n_columns = step->n_drafts > 0 ? context->n_drafts : 0,
                                 .n_own = step->n_own,
                                 .own_rows = di_step_own_rows(step)};
    if (!decodes || !di_pass_record(&p, shape)) {
        run_step(&p, step, put_aside);
        if (decodes) di_pass_recorded(&p);
    }
    advance(context, step);
    return DI_OK;
}
