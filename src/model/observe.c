/* The draft layers' windows, filled from what the backbone saw (dspark.md 3 and 4): at once, or later.
 *
 * Nobody reads them until drafts are made or a slot is saved. So steps that only decode, without
 * drafts, put what they saw aside. It goes through the draft layers' projections, all rows together,
 * which costs a fraction of one at a time, before the next step that does more than that, before
 * drafts are made, and before a slot's tokens are taken back or saved. The bits are the same: a row's
 * do not depend on its company.
 */
#include "model/network.h"

/* main_x = norm(main_proj . main_hidden); every stage keeps its own window row of it. */
void di_pass_observe(const di_pass *p) {
    const di_config *c = p->config;
    const di_model *model = p->context->model;
    int32_t n = p->batch.n_rows;
    di_ptr x = p->at->y;
    p->ops->linear(p->stream, &(di_linear_args){n, 1, true, false, p->at->main_hidden,
                                                model->draft.main_proj, x});
    p->ops->rms_norm(p->stream, &(di_rms_norm_args){n, c->hidden_size, c->rms_norm_eps, x,
                                                    model->draft.main_norm, x});
    for (int32_t stage = 0; stage < c->num_nextn_predict_layers; stage++) {
        int32_t layer = c->num_hidden_layers + stage;
        const di_block_weights *w = &model->blocks[layer];
        p->ops->window_kv(p->stream, &(di_window_kv_args){.batch = p->batch,
                                                          .head_dim = c->head_dim,
                                                          .eps = c->rms_norm_eps,
                                                          .rope = di_pass_rope(p, false),
                                                          .u = x,
                                                          .wkv = w->wkv,
                                                          .kv_norm = w->kv_norm,
                                                          .kv_codes = p->at->kv_codes,
                                                          .kv_scales = p->at->kv_scales});
        p->ops->window_store(p->stream,
                             &(di_window_store_args){p->batch, c->head_dim, p->at->kv_codes,
                                                     p->at->kv_scales, di_pass_window(p, layer)});
        di_pass_discard_layer(p, layer);
    }
}

/* ---- Later ---- */

/* Row `row` of main_hidden: what is put aside stays there until it is read, for no other step writes
 * there before. */
static di_ptr aside(const di_context *context, int32_t row) {
    const di_config *c = &context->model->config;
    uint64_t width = (uint64_t)c->n_dspark_targets * (uint64_t)c->hidden_size;
    return di_ptr_at(context->at.main_hidden, (uint64_t)row * width * context->backend->a_bytes);
}

bool di_context_put_aside(di_context *context, const di_step *step, di_ptr *where) {
    const di_context_options *o = &context->options;
    bool decodes = step->n_rows == 0 && di_step_block_rows(step) == step->n_blocks;
    if (!o->drafts || context->backend->record) return false; /* every step the same calls */
    if (!decodes || context->n_aside + step->n_blocks > o->max_rows) di_context_catch_up(context);
    if (!decodes) return false;
    *where = aside(context, context->n_aside);
    for (int32_t i = 0; i < step->n_blocks; i++) {
        int32_t slot = step->blocks[i].slot;
        context->aside_slot[context->n_aside++] = slot;
        context->n_aside_of[slot]++;
    }
    return true;
}

/* Rows from..from + n - 1 of those that were put aside, as rows before the end of their slots. What a
 * slot's ring has no place for any more is dead. */
static void list_rows(di_context *context, int32_t from, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        int32_t slot = context->aside_slot[from + i];
        di_row row = {0, 0, DI_OFFSET_DEAD};
        if (slot >= 0) {
            int32_t before_end = context->n_aside_of[slot]--;
            if (before_end <= context->ring_slots) row = (di_row){0, slot, -before_end};
        }
        context->upper[i] = row;
    }
}

/* Rows at the front that nobody wants. */
static int32_t skip_lost(di_context *context) {
    int32_t from = 0;
    for (; from < context->n_aside; from++) {
        int32_t slot = context->aside_slot[from];
        if (slot < 0) continue;
        if (context->n_aside_of[slot] <= context->ring_slots) break;
        context->n_aside_of[slot]--;
    }
    return from;
}

void di_context_catch_up(di_context *context) {
    di_backend *backend = context->backend;
    di_context_buffers at = context->at;
    int32_t from = skip_lost(context), n = context->n_aside - from;
    context->n_aside = 0;
    if (n == 0) return;
    di_pass p = {context,
                 &context->model->config,
                 &at,
                 backend->ops,
                 backend->stream,
                 di_pass_batch(context, n, DI_NONE),
                 -1,
                 0};
    list_rows(context, from, n);
    backend->upload(p.stream, at.rows, context->upper, (uint64_t)n * sizeof(di_row));
    p.ops->step_begin(p.stream, &(di_step_begin_args){p.batch});
    at.main_hidden = aside(context, from);
    di_pass_observe(&p);
}

void di_context_drop_aside(di_context *context, int32_t slot) {
    for (int32_t i = 0; i < context->n_aside; i++) {
        if (context->aside_slot[i] == slot) context->aside_slot[i] = -1;
    }
    if (context->n_aside_of) context->n_aside_of[slot] = 0;
}
