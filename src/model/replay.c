/* Replay: sequences whose windows begin in the middle, and prompts of which only the tail runs
 * above the cut (model.md 8). The forward pass does the work; here are the marks that it goes by.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/network.h"

int32_t di_model_cut_layer(const di_config *config) {
    int32_t n = config->n_kv_sources;
    return n > 0 ? config->kv_source_layer_ids[n - 1] : config->num_hidden_layers;
}

static di_status check_allowed(const di_context *context, int32_t slot, di_error *error) {
    if (!context->options.replay) {
        return di_fail(error, DI_ERR_USAGE, "this context was made without replay");
    }
    return di_slot_check(context, slot, error);
}

static void put(di_context *context, di_ptr array, int32_t slot, int64_t value) {
    int32_t number = (int32_t)value;
    context->backend->upload(context->backend->stream, di_ptr_at(array, (uint64_t)slot * 4),
                             &number, 4);
}

void di_context_put_floors(di_context *context, int32_t slot, int64_t lower, int64_t upper,
                           int64_t closed) {
    context->floor_lower[slot] = lower;
    context->floor_upper[slot] = upper;
    context->closed[slot] = closed;
    if (!context->options.replay) return;
    put(context, context->at.floor_lower, slot, lower);
    put(context, context->at.floor_upper, slot, upper);
    put(context, context->at.closed, slot, closed);
}

void di_context_put_length(di_context *context, int32_t slot) {
    put(context, context->at.length, slot, context->length[slot]);
}

void di_context_forget_replay(di_context *context, int32_t slot) {
    context->cut_from[slot] = 0;
    di_context_put_floors(context, slot, 0, 0, 0);
}

di_status di_context_cut(di_context *context, int32_t slot, int64_t from, di_error *error) {
    const di_config *c = &context->model->config;
    DI_TRY(check_allowed(context, slot, error));
    for (int32_t i = 0; i < c->n_engram_layers; i++) {
        if (c->engram_layer_ids[i] >= di_model_cut_layer(c)) {
            return di_fail(error, DI_ERR_UNSUPPORTED,
                           "Engram layer %d lies above the cut at layer %d: this model has no "
                           "decoder-side replay",
                           c->engram_layer_ids[i], di_model_cut_layer(c));
        }
    }
    if (from < context->length[slot]) {
        return di_fail(error, DI_ERR_USAGE,
                       "a cut at %" PRId64 " in slot %d, which has %" PRId64 " tokens already",
                       from, slot, context->length[slot]);
    }
    context->cut_from[slot] = from;
    /* Also below an earlier cut that no row has reached yet: a snapshot may bring one. */
    di_context_put_floors(context, slot, context->floor_lower[slot], from, context->closed[slot]);
    return DI_OK;
}

/* Entries that are not written again must be whole groups, and must be somewhere. */
static di_status check_closed(const di_context *context, int32_t slot, int64_t closed,
                              di_error *error) {
    const di_config *c = &context->model->config;
    for (int32_t i = 0; i < c->n_kv_sources; i++) {
        int32_t layer = c->kv_source_layer_ids[i], ratio = c->roles[layer].ratio;
        if (closed % ratio == 0) continue;
        return di_fail(error, DI_ERR_USAGE,
                       "resume with entries up to %" PRId64
                       ": no multiple of the ratio %d of layer "
                       "%d",
                       closed, ratio, layer);
    }
    const int32_t *pages = context->page_of + (int64_t)slot * context->pages_per_slot;
    for (int64_t p = 0; p * DI_PAGE_TOKENS < closed; p++) {
        if (pages[p] >= 0) continue;
        return di_fail(error, DI_ERR_USAGE,
                       "resume with entries up to %" PRId64 ": page %" PRId64 " of slot %d is not "
                       "set",
                       closed, p, slot);
    }
    return DI_OK;
}

di_status di_context_resume(di_context *context, int32_t slot, const int32_t *ids, int64_t position,
                            int64_t closed, di_error *error) {
    DI_TRY(check_allowed(context, slot, error));
    if (position < 0 || position > closed || closed > context->options.max_context) {
        return di_fail(error, DI_ERR_USAGE,
                       "resume at %" PRId64 " with entries up to %" PRId64
                       " in a context of %" PRId64,
                       position, closed, context->options.max_context);
    }
    int32_t n = context->history_slots;
    int64_t first = position > n ? position - n : 0;
    DI_TRY(check_closed(context, slot, closed, error));
    DI_TRY(di_ids_check(context, "ids", ids, first, position, error));
    int32_t *history = calloc((size_t)n, sizeof *history);
    if (!history) return di_fail(error, DI_ERR_MEMORY, "out of memory: token history");
    for (int64_t p = first; p < position; p++) history[p % n] = ids[p];
    di_context_reset(context, slot);
    uint64_t bytes = (uint64_t)n * sizeof *history;
    context->backend->upload(context->backend->stream,
                             di_ptr_at(context->at.history, (uint64_t)slot * bytes), history,
                             bytes);
    free(history);
    context->length[slot] = position;
    di_context_put_length(context, slot);
    di_context_put_floors(context, slot, position, position, closed);
    return DI_OK;
}
