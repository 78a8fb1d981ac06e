/* Blocks: sequences that decode, with drafts to verify (dspark.md 6, 8 and 9). How many drafts of
 * each are verified and how many stand is decided on the device, so that a step can be enqueued
 * before the one before it was read; here are the calls, and what the host may assume meanwhile.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/network.h"

/* ---- On the device ---- */

/* The rows of the blocks with drafts of the host, and how many each has: behind what allot makes. */
static void upload_own(const di_pass *p, const di_step *step) {
    di_context *context = p->context;
    int32_t first = di_step_allotted_blocks(step), n = 0;
    for (int32_t b = 0; b < step->n_own; b++) {
        const di_decode *d = &step->blocks[first + b];
        for (int32_t k = 0; k <= d->most; k++)
            context->upper[n++] = (di_row){k == 0 ? DI_TOKEN_NEXT : d->own[k - 1], d->slot, k};
        context->out_slots[b] = 1 + d->most;
    }
    uint64_t row = (uint64_t)di_step_allotted_rows(step);
    context->backend->upload(p->stream, di_ptr_at(p->at->rows, row * sizeof *context->upper),
                             context->upper, (uint64_t)n * sizeof *context->upper);
    context->backend->upload(p->stream, di_ptr_at(p->at->block_rows, (uint64_t)first * 4),
                             context->out_slots, (uint64_t)step->n_own * 4);
}

void di_pass_upload_blocks(const di_pass *p, const di_step *step) {
    di_context *context = p->context;
    if (step->n_blocks == 0) return;
    for (int32_t i = 0; i < step->n_blocks; i++) {
        const di_decode *d = &step->blocks[i];
        int32_t most = d->own ? 0 : d->most;
        context->blocks[i] = (di_block){d->slot, most, context->column[d->slot], d->law, d->reject};
    }
    context->backend->upload(p->stream, p->at->blocks, context->blocks,
                             (uint64_t)step->n_blocks * sizeof *context->blocks);
    if (step->n_own > 0) upload_own(p, step);
    if (step->n_drafts == 0) return;
    context->backend->upload(p->stream, p->at->temperatures, step->temperatures,
                             DI_LAWS * (uint64_t)p->config->dspark_block_size * sizeof(float));
}

void di_pass_allot(const di_pass *p, const di_step *step) {
    const di_context_buffers *at = p->at;
    if (di_step_allotted_blocks(step) == 0) return;
    p->ops->allot(p->stream,
                  &(di_allot_args){.n_blocks = di_step_allotted_blocks(step),
                                   .n_drafts = step->n_drafts,
                                   .block = p->config->dspark_block_size,
                                   .n_columns = step->n_drafts > 0 ? p->context->n_drafts : 0,
                                   .blocks = at->blocks,
                                   .next_token = at->next_token,
                                   .drafts = at->drafts,
                                   .confidence = at->draft_confidence,
                                   .temperatures = at->temperatures,
                                   .n_rows = at->block_rows,
                                   .rows = at->rows,
                                   .which = at->which,
                                   .slot = at->sampled_slot,
                                   .param_of = at->param_of,
                                   .extra_at = at->extra_at,
                                   .n_extra = at->n_extra});
}

void di_pass_accept(const di_pass *p, const di_step *step, const di_sample_args *sampled) {
    if (step->n_blocks == 0) return;
    di_sample_args rows = *sampled;
    rows.n_out = di_step_block_rows(step);
    p->ops->accept(p->stream,
                   &(di_accept_args){.sample = rows,
                                     .n_blocks = step->n_blocks,
                                     .block = p->config->dspark_block_size,
                                     .n_columns = step->n_drafts > 0 ? p->context->n_drafts : 0,
                                     .blocks = p->at->blocks,
                                     .n_rows = p->at->block_rows,
                                     .row_token = p->at->token,
                                     .draft_logits = p->at->draft_logits,
                                     .n_valid = p->at->n_valid});
}

/* ---- What the host knows ---- */

static int32_t *ahead_of(const di_context *context, int32_t slot) {
    return context->ahead + (int64_t)slot * DI_MAX_AHEAD;
}

int32_t di_context_ahead(const di_context *context, int32_t slot) {
    di_slot_require(context, slot, __func__);
    int32_t sum = 0;
    for (int32_t i = 0; i < DI_MAX_AHEAD; i++) sum += ahead_of(context, slot)[i];
    return sum;
}

void di_blocks_advance(di_context *context, const di_step *step) {
    /* Drafts are for the step behind them; later they stand behind another token. */
    for (int32_t i = 0; i < context->options.n_slots; i++) context->column[i] = -1;
    for (int32_t i = 0; i < step->n_blocks; i++) {
        int32_t *ahead = ahead_of(context, step->blocks[i].slot), at = 0;
        while (ahead[at] > 0) at++; /* there is a place: di_blocks_check */
        const di_decode *d = &step->blocks[i];
        ahead[at] = 1 + (d->own || d->most < step->n_drafts ? d->most : step->n_drafts);
    }
}

/* Rows were stored behind what stayed: they took the place of as many that could be rewound to. */
static void spend_margin(di_context *context, int32_t slot, int32_t rows, int32_t kept) {
    int32_t rollback = di_config_rollback(&context->model->config);
    int32_t margin = context->margin[slot] + rows;
    context->margin[slot] = (margin < rollback ? margin : rollback) - (rows - kept);
}

void di_context_settle(di_context *context, int32_t slot, int32_t rows, int32_t kept) {
    di_slot_require(context, slot, __func__);
    int32_t *ahead = ahead_of(context, slot);
    if (kept < 1 || kept > rows || rows > ahead[0]) {
        fprintf(stderr,
                "%s: %d of %d rows in slot %d, whose block has %d at most; this is a bug of "
                "the caller\n",
                __func__, kept, rows, slot, ahead[0]);
        abort();
    }
    for (int32_t i = 1; i < DI_MAX_AHEAD; i++) ahead[i - 1] = ahead[i];
    ahead[DI_MAX_AHEAD - 1] = 0;
    context->length[slot] += kept;
    spend_margin(context, slot, rows, kept);
}

void di_context_drop(di_context *context, int32_t slot) {
    int32_t rows = di_context_ahead(context, slot);
    int32_t *ahead = ahead_of(context, slot);
    if (rows == 0) return;
    di_context_catch_up(context); /* while the slot has the rows that are dropped */
    for (int32_t i = 0; i < DI_MAX_AHEAD; i++) ahead[i] = 0;
    spend_margin(context, slot, rows, 0); /* as if it had been all that it may */
    di_context_put_length(context, slot);
}

/* ---- What is refused ---- */

static di_status check_block(di_context *context, const di_step *step, int32_t i, di_error *error) {
    const di_context_options *o = &context->options;
    const di_config *c = &context->model->config;
    const di_decode *d = &step->blocks[i];
    DI_TRY(di_slot_check(context, d->slot, error));
    if (context->seen[d->slot] == context->step_number) {
        return di_fail(error, DI_ERR_USAGE, "blocks[%d]: slot %d has rows already", i, d->slot);
    }
    context->seen[d->slot] = context->step_number;
    bool own = i >= di_step_allotted_blocks(step);
    if (own != (d->own != NULL) || (own && d->reject)) {
        return di_fail(error, DI_ERR_USAGE,
                       "blocks[%d]: those with drafts of their own are the last, and do not reject",
                       i);
    }
    if (own) DI_TRY(di_ids_check(context, "drafts", d->own, 0, d->most, error));
    bool drafted = own || d->most == 0 || (o->drafts && context->column[d->slot] >= 0);
    if (d->most < 0 || d->most > c->dspark_block_size || !drafted || d->law < 0 ||
        d->law >= DI_LAWS || (d->reject && !o->reject)) {
        return di_fail(error, DI_ERR_USAGE,
                       "blocks[%d]: %d drafts of slot %d by law %d: not drafted, or out of range",
                       i, d->most, d->slot, d->law);
    }
    if (ahead_of(context, d->slot)[DI_MAX_AHEAD - 1] > 0) {
        return di_fail(error, DI_ERR_USAGE, "blocks[%d]: %d blocks of slot %d are not settled", i,
                       DI_MAX_AHEAD, d->slot);
    }
    int64_t length = context->length[d->slot];
    int64_t end = length + di_context_ahead(context, d->slot) + 1 + d->most;
    if (length < 1 || end > o->max_context || length < context->cut_from[d->slot]) {
        return di_fail(error, DI_ERR_LIMIT,
                       "blocks[%d]: rows %" PRId64 " to %" PRId64 " of slot %d: empty, below its "
                       "cut, or behind the context of %" PRId64 " tokens",
                       i, length, end - 1, d->slot, o->max_context);
    }
    const int32_t *pages = context->page_of + (int64_t)d->slot * context->pages_per_slot;
    for (int64_t page = length / DI_PAGE_TOKENS; page <= (end - 1) / DI_PAGE_TOKENS; page++) {
        if (pages[page] >= 0) continue;
        return di_fail(error, DI_ERR_USAGE, "blocks[%d]: page %" PRId64 " of slot %d is not set", i,
                       page, d->slot);
    }
    return DI_OK;
}

di_status di_blocks_check(di_context *context, const di_step *step, di_error *error) {
    int64_t most = 0;
    if (step->n_blocks < 0 || step->n_blocks > context->options.n_slots) {
        return di_fail(error, DI_ERR_USAGE, "a step of %d blocks, there are %d slots",
                       step->n_blocks, context->options.n_slots);
    }
    if (step->n_own < 0 || step->n_own > step->n_blocks) {
        return di_fail(error, DI_ERR_USAGE, "%d of %d blocks have drafts of their own", step->n_own,
                       step->n_blocks);
    }
    for (int32_t i = 0; i < step->n_blocks; i++) {
        DI_TRY(check_block(context, step, i, error));
        if (!step->blocks[i].own) most += step->blocks[i].most;
    }
    if (step->n_drafts < 0 || step->n_drafts > most) {
        return di_fail(error, DI_ERR_USAGE, "%d drafts to verify, the blocks allow %" PRId64,
                       step->n_drafts, most);
    }
    if (step->n_blocks == 0 || (step->params && (step->n_drafts == 0 || step->temperatures))) {
        return DI_OK;
    }
    return di_fail(error, DI_ERR_USAGE, "blocks need params, and drafts temperatures");
}

/* ---- Reading later ---- */

static void fetch_logits(di_context *context, float *logits) {
    di_backend *backend = context->backend;
    int64_t n = (int64_t)context->n_out * context->model->config.vocab_size;
    di_ptr from = context->at.logits;
    if (backend->f_bytes != 4) {
        backend->ops->to_f32(backend->stream, &(di_to_f32_args){n, true, from, context->at.export});
        from = context->at.export;
    }
    backend->download(backend->stream, logits, from, (uint64_t)n * 4);
}

void di_context_fetch(di_context *context, const di_fetch *to) {
    di_backend *backend = context->backend;
    di_stream *stream = backend->stream;
    uint64_t bytes = (uint64_t)context->n_out * 4;
    if (!context->sampled) return;
    if (context->n_blocks > 0) {
        backend->download(stream, to->block_rows, context->at.block_rows,
                          (uint64_t)context->n_blocks * 4);
    }
    backend->download(stream, to->tokens, context->at.sampled, bytes);
    backend->download(stream, to->logprobs, context->at.logprob, bytes);
    if (to->logits) fetch_logits(context, to->logits);
}

di_status di_context_read_samples(di_context *context, int32_t *tokens, float *logprobs,
                                  di_error *error) {
    if (!context->sampled) return di_fail(error, DI_ERR_USAGE, "the last step sampled nothing");
    di_backend *backend = context->backend;
    uint64_t bytes = (uint64_t)context->n_out * 4;
    backend->download(backend->stream, tokens, context->at.sampled, bytes);
    if (logprobs) backend->download(backend->stream, logprobs, context->at.logprob, bytes);
    return di_backend_sync(backend, error);
}

di_status di_context_read_logits(di_context *context, float *logits, di_error *error) {
    fetch_logits(context, logits);
    return di_backend_sync(context->backend, error);
}

uint64_t di_context_mark(di_context *context) {
    return context->backend->mark(context->backend->stream);
}

di_status di_context_reach(di_context *context, uint64_t mark, di_error *error) {
    return context->backend->wait(context->backend->stream, mark, error);
}

void di_context_stamp(di_context *context, double *host) {
    context->backend->stamp(context->backend->stream, host);
}
