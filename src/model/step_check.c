/* What is refused at the door: slots, rows, ids, parameters. Whatever passes here keeps every
 * operation inside its memory; the operations themselves cannot fail.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/network.h"

di_status di_slot_check(const di_context *context, int32_t slot, di_error *error) {
    int32_t n = context->options.n_slots;
    if (slot >= 0 && slot < n) return DI_OK;
    return di_fail(error, DI_ERR_USAGE, "slot %d, there are %d", slot, n);
}

di_status di_settled_check(const di_context *context, int32_t slot, di_error *error) {
    if (di_context_ahead(context, slot) == 0) return DI_OK;
    return di_fail(error, DI_ERR_USAGE, "slot %d has blocks that are not settled", slot);
}

void di_slot_require(const di_context *context, int32_t slot, const char *function) {
    di_error error;
    if (di_slot_check(context, slot, &error) == DI_OK) return;
    fprintf(stderr, "%s: %s; this is a bug of the caller\n", function, error.message);
    abort();
}

void di_slot_require_settled(const di_context *context, int32_t slot, const char *function) {
    di_error error;
    di_slot_require(context, slot, function);
    if (di_settled_check(context, slot, &error) == DI_OK) return;
    fprintf(stderr, "%s: %s; this is a bug of the caller\n", function, error.message);
    abort();
}

di_status di_ids_check(const di_context *context, const char *what, const int32_t *ids,
                       int64_t from, int64_t to, di_error *error) {
    int32_t vocab = context->model->config.vocab_size;
    for (int64_t i = from; i < to; i++) {
        if (ids[i] >= 0 && ids[i] < vocab) continue;
        return di_fail(error, DI_ERR_USAGE, "%s[%" PRId64 "]: token id %d, the vocabulary has %d",
                       what, i, ids[i], vocab);
    }
    return DI_OK;
}

bool di_context_is_below_cut(const di_context *context, const di_row *row) {
    return context->length[row->slot] + row->offset < context->cut_from[row->slot];
}

static di_status check_row(di_context *context, const di_step *step, int32_t i, di_error *error) {
    const di_context_options *o = &context->options;
    int32_t vocab = context->model->config.vocab_size;
    const di_row *row = &step->rows[i], *before = i ? &step->rows[i - 1] : NULL;
    if (row->slot < 0 || row->slot >= o->n_slots) {
        return di_fail(error, DI_ERR_USAGE, "row %d: slot %d, there are %d", i, row->slot,
                       o->n_slots);
    }
    if (row->token != DI_TOKEN_NEXT && (row->token < 0 || row->token >= vocab)) {
        return di_fail(error, DI_ERR_USAGE, "row %d: token id %d, the vocabulary has %d", i,
                       row->token, vocab);
    }
    DI_TRY(di_settled_check(context, row->slot, error));
    bool goes_on = before && before->slot == row->slot;
    bool again = !goes_on && context->seen[row->slot] == context->step_number;
    context->seen[row->slot] = context->step_number;
    if (again || row->offset != (goes_on ? before->offset + 1 : 0)) {
        return di_fail(error, DI_ERR_USAGE, "row %d: offset %d does not continue its sequence", i,
                       row->offset);
    }
    int64_t position = context->length[row->slot] + row->offset;
    if (position >= o->max_context) {
        return di_fail(error, DI_ERR_LIMIT,
                       "the sequence would be longer than the context of %" PRId64 " tokens",
                       o->max_context);
    }
    int64_t page = (int64_t)row->slot * context->pages_per_slot + position / DI_PAGE_TOKENS;
    if (context->page_of[page] >= 0) return DI_OK;
    return di_fail(error, DI_ERR_USAGE,
                   "row %d: no page is set for position %" PRId64 " of slot %d", i, position,
                   row->slot);
}

/* What params refer to, of a step or of drafts. */
typedef struct sampling {
    const di_sample_params *params; /* or NULL */
    const di_logit_bias *biases;
    int32_t n_biases, n_masks;
} sampling;

static di_status check_tables(const di_context *context, const sampling *s, di_error *error) {
    int32_t vocab = context->model->config.vocab_size;
    if (s->n_biases < 0 || s->n_biases > DI_MAX_BIASES || s->n_masks < 0 ||
        s->n_masks > DI_MAX_MASKS) {
        return di_fail(error, DI_ERR_LIMIT, "a step takes at most %d logit biases and %d masks",
                       DI_MAX_BIASES, DI_MAX_MASKS);
    }
    for (int32_t i = 0; i < s->n_biases; i++) {
        if (s->biases[i].id >= 0 && s->biases[i].id < vocab) continue;
        return di_fail(error, DI_ERR_USAGE, "biases[%d]: token id %d, the vocabulary has %d", i,
                       s->biases[i].id, vocab);
    }
    return DI_OK;
}

static di_status check_params(const sampling *s, int32_t i, int32_t slot, di_error *error) {
    if (!s->params) return DI_OK;
    const di_sample_params *p = &s->params[i];
    bool bias_ok = p->n_bias >= 0 && p->bias_begin >= 0 && p->n_bias <= s->n_biases - p->bias_begin;
    if (p->slot == slot && bias_ok && p->mask >= -1 && p->mask < s->n_masks) return DI_OK;
    return di_fail(error, DI_ERR_USAGE, "params[%d]: slot, bias range or mask out of range", i);
}

static di_status check_output(const di_context *context, const di_step *step, int32_t i,
                              di_error *error) {
    int32_t row = step->out_rows[i];
    if (row < 0 || row >= step->n_rows || (i && row <= step->out_rows[i - 1])) {
        return di_fail(error, DI_ERR_USAGE, "out_rows[%d] = %d: not an ascending row of the step",
                       i, row);
    }
    if (!di_context_is_below_cut(context, &step->rows[row])) return DI_OK;
    return di_fail(error, DI_ERR_USAGE, "out_rows[%d]: row %d lies below the cut and has no logits",
                   i, row);
}

di_status di_step_check(di_context *context, const di_step *step, di_error *error) {
    const di_context_options *o = &context->options;
    context->step_number++;
    DI_TRY(di_blocks_check(context, step, error));
    int64_t block_rows = di_step_block_rows(step), rows = block_rows + step->n_rows;
    if (step->n_rows < 0 || rows < 1 || rows > o->max_rows) {
        return di_fail(error, DI_ERR_LIMIT,
                       "a step of %" PRId64 " rows, the context allows 1 to %d", rows, o->max_rows);
    }
    for (int32_t i = 0; i < step->n_rows; i++) DI_TRY(check_row(context, step, i, error));
    if (step->n_out < 0 || block_rows + step->n_out > o->max_out) {
        return di_fail(error, DI_ERR_LIMIT,
                       "%" PRId64 " rows ask for logits, the context allows %d",
                       block_rows + step->n_out, o->max_out);
    }
    const sampling s = {step->params, step->biases, step->n_biases, step->n_masks};
    DI_TRY(check_tables(context, &s, error));
    int32_t param = 0;
    for (int32_t i = 0; i < step->n_blocks; i++) {
        int32_t n = step->blocks[i].own ? 1 + step->blocks[i].most : 1;
        for (; n > 0; n--) DI_TRY(check_params(&s, param++, step->blocks[i].slot, error));
    }
    for (int32_t i = 0; i < step->n_out; i++) {
        DI_TRY(check_output(context, step, i, error));
        int32_t slot = step->rows[step->out_rows[i]].slot;
        DI_TRY(check_params(&s, param++, slot, error));
    }
    return DI_OK;
}

di_status di_draft_check(di_context *context, const di_draft_step *step, di_error *error) {
    const di_context_options *o = &context->options;
    int32_t block = context->model->config.dspark_block_size;
    if (!o->drafts) return di_fail(error, DI_ERR_USAGE, "this context was made without drafts");
    int32_t most = (o->max_out < o->max_rows ? o->max_out : o->max_rows) / block;
    if (step->n < 1 || step->n > most) {
        return di_fail(error, DI_ERR_LIMIT, "drafts for %d sequences, the context allows 1 to %d",
                       step->n, most);
    }
    const sampling s = {step->params, step->biases, step->n_biases, step->n_masks};
    DI_TRY(check_tables(context, &s, error));
    context->step_number++;
    for (int32_t i = 0; i < step->n; i++) {
        int32_t slot = step->slots[i];
        if (slot < 0 || slot >= o->n_slots || context->seen[slot] == context->step_number) {
            return di_fail(error, DI_ERR_USAGE, "slots[%d] = %d: not a slot, or twice", i, slot);
        }
        context->seen[slot] = context->step_number;
        if (step->anchors) {
            DI_TRY(di_ids_check(context, "anchors", step->anchors, i, (int64_t)i + 1, error));
        }
        DI_TRY(check_params(&s, i, slot, error));
    }
    return DI_OK;
}
