/* DSpark (dspark.md 5 and 6): the draft pass, a small forward pass of its own behind the sequences
 * that it drafts for. What its layers see of the past: observe.c.
 */
#include "model/network.h"

/* Each sequence has the anchor and then noise, at positions length, length + 1, ... */
static void upload_rows(const di_pass *p, const di_draft_step *step) {
    di_row *rows = p->context->upper;
    for (int32_t i = 0; i < step->n; i++) {
        int32_t anchor = step->anchors ? step->anchors[i] : DI_TOKEN_NEXT;
        for (int32_t k = 0; k < p->block; k++) {
            int32_t token = k == 0 ? anchor : p->config->dspark_noise_token_id;
            rows[i * p->block + k] = (di_row){token, step->slots[i], k};
        }
    }
    p->context->backend->upload(p->stream, p->at->rows, rows,
                                (uint64_t)p->batch.n_rows * sizeof *rows);
}

static void upload_params(const di_pass *p, const di_draft_step *step) {
    di_step sampling = {.n_out = step->n,
                        .params = step->params,
                        .biases = step->biases,
                        .n_biases = step->n_biases,
                        .masks = step->masks,
                        .n_masks = step->n_masks};
    if (!step->params) {
        sampling.params = p->context->draft_params;
        for (int32_t i = 0; i < step->n; i++) {
            p->context->draft_params[i] = (di_sample_params){.top_p = 1,
                                                             .repetition_penalty = 1,
                                                             .slot = step->slots[i],
                                                             .mask = -1};
        }
    }
    di_pass_upload_sampling(p, &sampling, step->n);
}

/* The drafter's blocks and the base logits of all rows: first those of every sequence's first row,
 * then those of the second rows, as the token loop reads them. */
static void base_logits(const di_pass *p, int32_t n) {
    const di_config *c = p->config;
    const di_model *model = p->context->model;
    p->ops->step_begin(p->stream, &(di_step_begin_args){p->batch});
    di_pass_embed(p);
    for (int32_t stage = 0; stage < c->num_nextn_predict_layers; stage++) {
        di_pass_block(p, c->num_hidden_layers + stage);
    }
    p->ops->sublayer_in(p->stream, &(di_sublayer_in_args){.n_rows = p->batch.n_rows,
                                                          .hc = c->hc_mult,
                                                          .width = c->hidden_size,
                                                          .eps = c->rms_norm_eps,
                                                          .streams = p->at->streams,
                                                          .pre = p->at->pre,
                                                          .norm = model->draft.norm,
                                                          .collapsed = p->at->y,
                                                          .out = p->at->u});
    di_pass_head(p, n * p->block, model->draft.norm);
}

/* The rows by place in their blocks; and before token k of sequence i stand the drafts of its
 * column, k of them. */
static void upload_lists(const di_pass *p, int32_t n) {
    di_backend *backend = p->context->backend;
    int32_t *list = p->context->out_slots, all = n * p->block;
    for (int32_t i = 0; i < all; i++) list[i] = i % n * p->block + i / n;
    backend->upload(p->stream, p->at->which, list, (uint64_t)all * 4);
    for (int32_t i = 0; i < all; i++) list[i] = i / n;
    backend->upload(p->stream, p->at->n_extra, list, (uint64_t)all * 4);
    for (int32_t i = 0; i < n; i++) list[i] = i;
    backend->upload(p->stream, p->at->extra_at, list, (uint64_t)n * 4);
}

/* Where the logits of step k of the token loop are: kept for rejection, or each over the last. */
static di_ptr logits_of(const di_pass *p, int32_t n, int32_t k) {
    uint64_t step = (uint64_t)n * (uint64_t)p->config->vocab_size * p->context->backend->f_bytes;
    return di_ptr_at(p->at->draft_logits, p->context->options.reject ? (uint64_t)k * step : 0);
}

/* Token k of every sequence, from token k - 1. */
static void pick_tokens(const di_pass *p, int32_t n, int32_t k) {
    const di_config *c = p->config;
    const di_context_buffers *at = p->at;
    const di_draft_weights *w = &p->context->model->draft;
    uint64_t a = p->context->backend->a_bytes, f = p->context->backend->f_bytes;
    uint64_t vocab = (uint64_t)c->vocab_size, done = (uint64_t)k * (uint64_t)n;
    di_ptr before = k == 0 ? at->token : di_ptr_at(at->drafts, (done - (uint64_t)n) * 4);
    di_ptr counts = p->context->options.penalties ? at->counts : DI_NONE;
    p->ops->markov(p->stream,
                   &(di_markov_args){.n = n,
                                     .vocab = c->vocab_size,
                                     .width = c->hidden_size,
                                     .prev_stride = k == 0 ? p->block : 1,
                                     .hidden_stride = p->block,
                                     .prev = before,
                                     .embed = w->markov_embed,
                                     .head = w->markov_head,
                                     .proj = w->confidence,
                                     .base = di_ptr_at(at->logits, done * vocab * f),
                                     .hidden = di_ptr_at(at->y, (uint64_t)k *
                                                                    (uint64_t)c->hidden_size * a),
                                     .logits = logits_of(p, n, k),
                                     .confidence = di_ptr_at(at->draft_confidence, done * f)});
    p->ops->sample(p->stream, &(di_sample_args){.n_out = n,
                                                .vocab = c->vocab_size,
                                                .which = di_ptr_at(at->which, done * 4),
                                                .pos = at->pos,
                                                .first = at->first,
                                                .logits = logits_of(p, n, k),
                                                .params = at->params,
                                                .counts = counts,
                                                .extra = at->drafts,
                                                .extra_at = at->extra_at,
                                                .n_extra = di_ptr_at(at->n_extra, done * 4),
                                                .extra_stride = n,
                                                .biases = at->biases,
                                                .masks = at->masks,
                                                .next_token = at->draft_next,
                                                .token = di_ptr_at(at->drafts, done * 4),
                                                .logprob = DI_NONE});
}

static void keep_logits(const di_pass *p, int32_t n, int32_t k) {
    di_backend *backend = p->context->backend;
    int64_t count = (int64_t)n * p->config->vocab_size;
    di_ptr from = logits_of(p, n, k);
    if (!p->context->draft_logits) return;
    if (backend->f_bytes != 4) {
        p->ops->to_f32(p->stream, &(di_to_f32_args){count, true, from, p->at->export});
        from = p->at->export;
    }
    backend->download(p->stream, p->context->draft_logits + k * count, from, (uint64_t)count * 4);
}

static void run_draft(const di_pass *p, int32_t n) {
    const di_config *c = p->config;
    base_logits(p, n);
    for (int32_t k = 0; k < p->block; k++) {
        pick_tokens(p, n, k);
        keep_logits(p, n, k);
    }
    /* the heads of the token loop are the last stage's */
    di_pass_discard_layer(p, c->num_hidden_layers + c->num_nextn_predict_layers - 1);
}

di_status di_draft(di_context *context, const di_draft_step *step, di_error *error) {
    DI_TRY(di_draft_check(context, step, error));
    const di_config *c = &context->model->config;
    int32_t block = c->dspark_block_size, rows = step->n * block;
    di_context_catch_up(context);
    di_ptr floor = context->options.replay ? context->at.floor_upper : DI_NONE;
    di_pass p = {context,
                 c,
                 &context->at,
                 context->backend->ops,
                 context->backend->stream,
                 di_pass_batch(context, rows, floor),
                 -1,
                 block};
    upload_rows(&p, step);
    upload_params(&p, step);
    upload_lists(&p, step->n);
    bool comes_again = !context->draft_logits;
    if (!comes_again || !di_pass_record(&p, (di_pass_shape){.drafts = true, .n = step->n})) {
        run_draft(&p, step->n);
        if (comes_again) di_pass_recorded(&p);
    }
    for (int32_t i = 0; i < context->options.n_slots; i++) context->column[i] = -1;
    for (int32_t i = 0; i < step->n; i++) context->column[step->slots[i]] = i;
    context->n_drafts = step->n;
    context->n_out = 0; /* the step's logits are gone */
    context->sampled = false;
    return DI_OK;
}

void di_context_keep_draft_logits(di_context *context, float *logits) {
    context->draft_logits = logits;
}

void di_context_fetch_drafts(di_context *context, int32_t *tokens, float *confidence) {
    di_backend *backend = context->backend;
    uint64_t count =
        (uint64_t)context->n_drafts * (uint64_t)context->model->config.dspark_block_size;
    di_ptr from = context->at.draft_confidence;
    if (tokens) backend->download(backend->stream, tokens, context->at.drafts, count * 4);
    if (!confidence) return;
    if (backend->f_bytes != 4) {
        backend->ops->to_f32(backend->stream, &(di_to_f32_args){(int64_t)count, true, from,
                                                                context->at.draft_export});
        from = context->at.draft_export;
    }
    backend->download(backend->stream, confidence, from, count * 4);
}

di_status di_context_read_drafts(di_context *context, int32_t *tokens, float *confidence,
                                 di_error *error) {
    int32_t n = context->n_drafts, block = context->model->config.dspark_block_size;
    if (n == 0) return di_fail(error, DI_ERR_USAGE, "nothing was drafted");
    /* Into the context's memory, which outlives the downloads also when waiting fails. */
    int32_t *by_step = context->draft_tokens;
    float *certain = context->draft_confidence;
    di_context_fetch_drafts(context, by_step, certain);
    DI_TRY(di_backend_sync(context->backend, error));
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < block; k++) {
            tokens[i * block + k] = by_step[k * n + i];
            if (confidence) confidence[i * block + k] = certain[k * n + i];
        }
    }
    return DI_OK;
}

di_status di_context_put_drafts(di_context *context, const int32_t *tokens, di_error *error) {
    int32_t n = context->n_drafts, block = context->model->config.dspark_block_size;
    if (n == 0) return di_fail(error, DI_ERR_USAGE, "nothing was drafted");
    DI_TRY(di_ids_check(context, "drafts", tokens, 0, (int64_t)n * block, error));
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < block; k++)
            context->draft_tokens[k * n + i] = tokens[i * block + k];
    }
    context->backend->upload(context->backend->stream, context->at.drafts, context->draft_tokens,
                             (uint64_t)n * (uint64_t)block * 4);
    return DI_OK;
}
