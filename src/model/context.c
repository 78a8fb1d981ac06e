/* The state of sequences: creation, slots, results. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "model/network.h"

di_context_options di_context_options_defaults(const di_config *config) {
    int64_t context = config->max_position_embeddings;
    return (di_context_options){.n_slots = 1,
                                .max_context = context < 32768 ? context : 32768,
                                .max_rows = 256,
                                .max_out = 32,
                                .penalties = true};
}

static int32_t largest(int32_t a, int32_t b) { return a > b ? a : b; }

static di_limits limits_of(const di_config *c, const di_context_options *o) {
    int32_t columns = (c->engram_max_ngram_size - 1) * c->engram_n_heads;
    if (c->n_engram_layers == 0) columns = 0;
    di_limits l = {
        .max_rows = o->max_rows,
        .max_out = o->max_out,
        .width = c->hidden_size,
        .hc = c->hc_mult,
        .vocab = c->vocab_size,
        .n_heads = c->num_attention_heads,
        .head_dim = c->head_dim,
        .q_rank = c->q_lora_rank,
        .o_low = c->o_groups * c->o_lora_rank,
        .n_experts = largest(c->n_routed_experts, c->dspark_n_routed_experts),
        .top_k = largest(c->num_experts_per_tok, c->dspark_num_experts_per_tok),
        .inner = c->moe_intermediate_size,
        .index_heads = c->index_n_heads,
        .index_dim = c->index_head_dim,
        .index_top_k = c->index_topk,
        .top_blocks = c->candidate_topk_blocks,
        .block_size = c->candidate_block_size,
        .max_entries = o->max_context,
        .engram_columns = columns,
        .engram_width = c->engram_head_dim,
    };
    int32_t ks[] = {c->hc_mult * c->hidden_size,
                    c->q_lora_rank,
                    l.o_low,
                    c->head_dim,
                    c->num_attention_heads * c->head_dim,
                    columns * c->engram_head_dim,
                    c->moe_intermediate_size,
                    c->n_dspark_targets * c->hidden_size,
                    c->hidden_size + c->dspark_markov_rank};
    l.max_k = c->hidden_size;
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) l.max_k = largest(l.max_k, ks[i]);
    return l;
}

di_context_bytes di_context_plan(const di_config *config, const di_backend *backend,
                                 const di_context_options *options) {
    di_context_bytes bytes;
    di_limits limits = limits_of(config, options);
    uint64_t memory = di_context_lay_out(config, backend, options, NULL, &bytes);
    bytes.workspace = backend->workspace_bytes(backend, &limits);
    bool fits = memory <= UINT64_MAX - bytes.workspace;
    bytes.total = fits ? memory + bytes.workspace : UINT64_MAX;
    return bytes;
}

static di_status check_options(const di_config *config, const di_context_options *o,
                               di_error *error) {
    if (o->n_slots < 1 || o->max_rows < 1 || o->max_out < 1 || o->max_out > o->max_rows) {
        return di_fail(
            error, DI_ERR_USAGE,
            "context: n_slots %d, max_rows %d and max_out %d must be positive, max_out at "
            "most max_rows",
            o->n_slots, o->max_rows, o->max_out);
    }
    if (o->max_context < 1 || o->max_context > config->max_position_embeddings) {
        return di_fail(error, DI_ERR_USAGE,
                       "context of %" PRId64 " tokens: the model takes 1 to %" PRId64,
                       o->max_context, config->max_position_embeddings);
    }
    if (o->n_pages < 0) {
        return di_fail(error, DI_ERR_USAGE, "context: a pool of %d pages", o->n_pages);
    }
    if (o->drafts && config->num_nextn_predict_layers == 0) {
        return di_fail(error, DI_ERR_USAGE, "this model has no draft layers");
    }
    if (o->reject && !o->drafts) {
        return di_fail(error, DI_ERR_USAGE, "context: rejection sampling needs drafts");
    }
    return DI_OK;
}

/* Offsets become addresses; every slot gets its own pages. */
static void place(di_context *context) {
    di_ptr *members = (di_ptr *)&context->at;
    for (size_t i = 0; i < sizeof context->at / sizeof *members; i++) {
        members[i].address += context->memory.address;
    }
    const di_config *c = &context->model->config;
    for (int32_t i = 0; i < c->num_hidden_layers; i++) {
        bool has_ring = c->roles[i].is_kv_source && c->roles[i].ratio > 1;
        if (has_ring) context->compress_ring[i].address += context->memory.address;
    }
}

/* The page table: each slot's own pages, or none yet where pages are shared. Every row may be live.
 */
static di_status fill_tables(di_context *context, di_error *error) {
    const di_context_options *o = &context->options;
    size_t n = (size_t)o->n_slots * (size_t)context->pages_per_slot;
    int32_t *valid = malloc((size_t)o->n_slots * sizeof *valid);
    context->page_of = malloc((n + 1) * sizeof *context->page_of);
    if (!valid || !context->page_of) {
        free(valid);
        return di_fail(error, DI_ERR_MEMORY, "out of memory: page table");
    }
    di_backend *backend = context->backend;
    for (size_t i = 0; i < n; i++) context->page_of[i] = o->n_pages ? -1 : (int32_t)i;
    for (int32_t i = 0; i < o->n_slots; i++) valid[i] = INT32_MAX;
    if (!o->n_pages) {
        backend->upload(backend->stream, context->at.page_table, context->page_of,
                        n * sizeof *context->page_of);
    }
    backend->upload(backend->stream, context->at.n_valid, valid,
                    (uint64_t)o->n_slots * sizeof *valid);
    free(valid);
    return DI_OK;
}

static di_status take_memory(di_context *context, di_error *error) {
    const di_config *config = &context->model->config;
    di_context_bytes need = di_context_plan(config, context->backend, &context->options);
    uint64_t allowed = context->options.max_bytes;
    if (need.total == UINT64_MAX) {
        return di_fail(error, DI_ERR_MEMORY,
                       "not enough memory: the bytes of a context of %" PRId64
                       " tokens in %d slots cannot be counted",
                       context->options.max_context, context->options.n_slots);
    }
    if (allowed && need.total > allowed) {
        return di_fail(error, DI_ERR_MEMORY,
                       "not enough memory: a context of %" PRId64
                       " tokens in %d slots needs %" PRIu64 " MiB, %" PRIu64
                       " MiB are left of what is allowed; ask for a smaller context "
                       "or allow more",
                       context->options.max_context, context->options.n_slots,
                       (need.total >> 20) + 1, allowed >> 20);
    }
    DI_TRY(context->backend->prepare(context->backend, &context->limits, error));
    uint64_t bytes = need.total - need.workspace;
    DI_TRY(context->backend->alloc(context->backend, bytes, "context", &context->memory, error));
    /* Under a bound the memory is taken now, not when a long sequence first comes to it. */
    if (allowed) context->backend->fill(context->backend->stream, context->memory, 0, bytes);
    return DI_OK;
}

di_status di_context_create(di_model *model, const di_context_options *options, di_context **out,
                            di_error *error) {
    *out = NULL;
    DI_TRY(check_options(&model->config, options, error));
    di_context *context = calloc(1, sizeof *context);
    if (!context) return di_fail(error, DI_ERR_MEMORY, "out of memory: context");
    di_status status;
    context->model = model;
    context->backend = model->backend;
    context->options = *options;
    context->limits = limits_of(&model->config, options);
    context->length = calloc((size_t)options->n_slots, sizeof *context->length);
    context->margin = calloc((size_t)options->n_slots, sizeof *context->margin);
    context->cut_from = calloc((size_t)options->n_slots, sizeof *context->cut_from);
    context->upper = calloc((size_t)options->max_rows, sizeof *context->upper);
    static _Atomic uint64_t made;
    context->serial = atomic_fetch_add(&made, 1);
    context->draft_params = calloc((size_t)options->n_slots, sizeof *context->draft_params);
    context->floor_lower = calloc((size_t)options->n_slots, sizeof *context->floor_lower);
    context->floor_upper = calloc((size_t)options->n_slots, sizeof *context->floor_upper);
    context->closed = calloc((size_t)options->n_slots, sizeof *context->closed);
    context->seen = calloc((size_t)options->n_slots, sizeof *context->seen);
    context->out_slots = calloc((size_t)options->max_out, sizeof *context->out_slots);
    context->ahead = calloc((size_t)options->n_slots, DI_MAX_AHEAD * sizeof *context->ahead);
    context->column = calloc((size_t)options->n_slots, sizeof *context->column);
    context->blocks = calloc((size_t)options->n_slots, sizeof *context->blocks);
    if (!context->length || !context->margin || !context->seen || !context->out_slots ||
        !context->cut_from || !context->upper || !context->draft_params || !context->floor_lower ||
        !context->floor_upper || !context->closed || !context->ahead || !context->column ||
        !context->blocks) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory: slots");
        goto done;
    }
    for (int32_t i = 0; i < options->n_slots; i++) context->column[i] = -1;
    if (options->drafts) {
        size_t outs = (size_t)options->max_out;
        context->draft_tokens = calloc(outs, sizeof *context->draft_tokens);
        context->draft_confidence = calloc(outs, sizeof *context->draft_confidence);
        context->aside_slot = calloc((size_t)options->max_rows, sizeof *context->aside_slot);
        context->n_aside_of = calloc((size_t)options->n_slots, sizeof *context->n_aside_of);
        if (!context->draft_tokens || !context->draft_confidence || !context->aside_slot ||
            !context->n_aside_of) {
            status = di_fail(error, DI_ERR_MEMORY, "out of memory: drafts");
            goto done;
        }
    }
    DI_TRY_DONE(take_memory(context, error));
    di_context_bytes bytes;
    di_context_lay_out(&model->config, model->backend, options, context, &bytes);
    place(context);
    DI_TRY_DONE(fill_tables(context, error));
    status = di_crossing_create(context, error);
done:
    if (status != DI_OK) {
        di_context_destroy(context);
        return status;
    }
    *out = context;
    return DI_OK;
}

void di_context_destroy(di_context *context) {
    if (!context) return;
    di_crossing_destroy(context);
    context->backend->free(context->backend, context->memory);
    free(context->length);
    free(context->margin);
    free(context->cut_from);
    free(context->upper);
    free(context->floor_lower);
    free(context->floor_upper);
    free(context->closed);
    free(context->page_of);
    free(context->draft_params);
    free(context->draft_tokens);
    free(context->draft_confidence);
    free(context->aside_slot);
    free(context->n_aside_of);
    free(context->seen);
    free(context->ahead);
    free(context->column);
    free(context->blocks);
    free(context->out_slots);
    free(context);
}

const di_context_options *di_context_get_options(const di_context *context) {
    return &context->options;
}

int64_t di_context_length(const di_context *context, int32_t slot) {
    di_slot_require(context, slot, __func__);
    return context->length[slot];
}

int32_t di_context_margin(const di_context *context, int32_t slot) {
    di_slot_require(context, slot, __func__);
    return context->margin[slot];
}

void di_context_reset(di_context *context, int32_t slot) {
    di_slot_require(context, slot, __func__);
    di_backend *backend = context->backend;
    uint64_t vocab_bytes = (uint64_t)context->model->config.vocab_size * 4;
    backend->fill(backend->stream, di_ptr_at(context->at.length, (uint64_t)slot * 4), 0, 4);
    if (context->options.penalties) {
        di_ptr counts = di_ptr_at(context->at.counts, (uint64_t)slot * vocab_bytes);
        backend->fill(backend->stream, counts, 0, vocab_bytes);
    }
    context->length[slot] = 0;
    context->margin[slot] = 0;
    context->column[slot] = -1;
    di_context_drop_aside(context, slot);
    for (int32_t i = 0; i < DI_MAX_AHEAD; i++) context->ahead[slot * DI_MAX_AHEAD + i] = 0;
    di_context_forget_replay(context, slot);
}

di_status di_context_rewind(di_context *context, int32_t slot, int32_t n, di_error *error) {
    DI_TRY(di_slot_check(context, slot, error));
    DI_TRY(di_settled_check(context, slot, error));
    if (n < 0 || n > context->margin[slot]) {
        return di_fail(error, DI_ERR_LIMIT,
                       "cannot take back %d tokens of slot %d: the margin is %d", n, slot,
                       context->margin[slot]);
    }
    di_backend *backend = context->backend;
    di_stream *stream = backend->stream;
    uint64_t slot_bytes = (uint64_t)context->options.n_slots * 4;
    if (n > 0) di_context_catch_up(context);
    backend->fill(stream, context->at.rewind, 0, slot_bytes);
    backend->upload(stream, di_ptr_at(context->at.rewind, (uint64_t)slot * 4), &n, 4);
    backend->ops->rewind(stream, &(di_rewind_args){context->options.n_slots, context->at.length,
                                                   context->at.rewind});
    context->length[slot] -= n;
    context->margin[slot] -= n;
    return DI_OK;
}

/* Through the row buffers of a step, which nothing else uses between steps. */
di_status di_context_count(di_context *context, int32_t slot, const int32_t *ids, int32_t n,
                           bool prompt, di_error *error) {
    if (!context->options.penalties) {
        return di_fail(error, DI_ERR_USAGE, "this context keeps no counts (penalties is off)");
    }
    DI_TRY(di_slot_check(context, slot, error));
    DI_TRY(di_ids_check(context, "ids", ids, 0, n, error));
    di_backend *backend = context->backend;
    int32_t chunk = context->options.max_rows, vocab = context->model->config.vocab_size;
    int32_t *slots = malloc((size_t)chunk * sizeof *slots);
    if (!slots) return di_fail(error, DI_ERR_MEMORY, "out of memory: counting ids");
    for (int32_t i = 0; i < chunk; i++) slots[i] = slot;
    for (int32_t at = 0, m; at < n; at += m) {
        m = n - at < chunk ? n - at : chunk;
        backend->upload(backend->stream, context->at.token, ids + at, (uint64_t)m * 4);
        backend->upload(backend->stream, context->at.pos, slots, (uint64_t)m * 4);
        backend->ops->tally(backend->stream,
                            &(di_tally_args){m, vocab, 1, prompt, context->at.token,
                                             context->at.pos, context->at.counts});
    }
    free(slots);
    return DI_OK;
}

void di_context_set_tap(di_context *context, di_tap_fn tap, void *user) {
    context->tap = tap;
    context->tap_user = user;
}
