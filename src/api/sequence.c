/* Sequences: prompts read in chunks, tokens sampled one by one, and what is kept between prompts.
 *
 * A sequence is a list of ids of which the first `done` are computed. The last id is never computed
 * ahead: the step that computes it is the one that samples what follows.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"

di_status di_sequence_create(di_engine *engine, di_sequence **out, di_error *error) {
    int32_t slot = 0, n = engine->options.n_sequences;
    while (slot < n && engine->taken[slot]) slot++;
    if (slot == n) {
        return di_fail(error, DI_ERR_LIMIT, "all %d sequences of the engine are in use", n);
    }
    di_sequence *sequence = calloc(1, sizeof *sequence);
    if (!sequence) return di_fail(error, DI_ERR_MEMORY, "out of memory: sequence");
    sequence->engine = engine;
    sequence->slot = slot;
    engine->taken[slot] = true;
    di_sequence_clear(sequence);
    *out = sequence;
    return DI_OK;
}

void di_sequence_destroy(di_sequence *sequence) {
    if (!sequence) return;
    sequence->engine->taken[sequence->slot] = false;
    di_ids_free(&sequence->ids);
    free(sequence);
}

const int32_t *di_sequence_ids(const di_sequence *sequence, size_t *n) {
    *n = sequence->ids.size;
    return sequence->ids.data;
}

void di_sequence_clear(di_sequence *sequence) {
    di_context_reset(sequence->engine->context, sequence->slot);
    sequence->ids.size = 0;
    sequence->n_prompt = 0;
    sequence->prompt_counted = false;
    sequence->counts_foreign = false;
}

void di_sequence_cut(di_sequence *sequence) {
    sequence->ids.size = sequence->n_prompt = di_sequence_done(sequence);
}

void di_sequence_rows(di_sequence *sequence, int32_t n) {
    size_t done = di_sequence_done(sequence);
    di_row *rows = sequence->engine->rows;
    for (int32_t i = 0; i < n; i++) {
        rows[i] = (di_row){sequence->ids.data[done + (size_t)i], sequence->slot, i};
    }
}

static di_status check_ids(const di_engine *engine, const int32_t *ids, size_t n, di_error *error) {
    int32_t vocab_size = di_model_config(engine->model)->vocab_size;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab_size) {
            return di_fail(error, DI_ERR_INVALID,
                           "token %zu has the id %d, the vocabulary has 0 to %d", i, ids[i],
                           vocab_size - 1);
        }
    }
    return DI_OK;
}

di_status di_sequence_check(const di_engine *engine, const int32_t *ids, size_t n,
                            di_error *error) {
    int64_t context = di_context_get_options(engine->context)->max_context;
    if (n == 0) return di_fail(error, DI_ERR_USAGE, "the prompt is empty");
    if (n > (size_t)context) {
        return di_fail(error, DI_ERR_LIMIT,
                       "the prompt has %zu tokens, the context takes %" PRId64
                       "; shorten it or ask for a larger context",
                       n, context);
    }
    return check_ids(engine, ids, n, error);
}

/* Computes ids [done, end) without asking for logits. */
static di_status compute(di_sequence *sequence, size_t end, di_error *error) {
    di_engine *engine = sequence->engine;
    size_t begin = di_sequence_done(sequence), total = end - begin;
    for (;;) {
        size_t done = di_sequence_done(sequence), left = end - done;
        if (total > 0) {
            DI_TRY(di_engine_report(engine, DI_PHASE_PROMPT, (int64_t)(done - begin),
                                    (int64_t)total, error));
        }
        if (left == 0) return DI_OK;
        int32_t chunk = engine->options.chunk;
        int32_t n = left < (size_t)chunk ? (int32_t)left : chunk;
        di_sequence_rows(sequence, n);
        di_step step = {.rows = engine->rows, .n_rows = n};
        DI_TRY(di_forward(engine->context, &step, error));
        DI_TRY(di_backend_sync(engine->backend, error));
    }
}

/* Takes computed state back to what both share, at most `n` ids. Returns how many stayed. */
static di_status keep_common(di_sequence *sequence, const int32_t *ids, size_t n, size_t *kept,
                             di_error *error) {
    di_context *context = sequence->engine->context;
    size_t done = di_sequence_done(sequence), common = 0;
    size_t most = done < n ? done : n;
    while (common < most && ids[common] == sequence->ids.data[common]) common++;
    size_t back = done - common;
    if (back > (size_t)di_context_margin(context, sequence->slot)) {
        di_sequence_clear(sequence);
        common = 0;
    } else if (back > 0) {
        DI_TRY(di_context_rewind(context, sequence->slot, (int32_t)back, error));
    }
    *kept = common;
    return DI_OK;
}

di_status di_sequence_prompt(di_sequence *sequence, const int32_t *ids, size_t n, size_t *n_reused,
                             di_error *error) {
    DI_TRY(di_sequence_check(sequence->engine, ids, n, error));
    size_t kept;
    bool counted = sequence->prompt_counted || sequence->ids.size > sequence->n_prompt;
    DI_TRY(keep_common(sequence, ids, n - 1, &kept, error));
    /* Old answers are prompt now, and what was taken back is gone: the counts do not say so. */
    sequence->counts_foreign = kept > 0 && (counted || sequence->counts_foreign);
    sequence->prompt_counted = false;
    sequence->ids.size = kept;
    sequence->n_prompt = n;
    di_status status = di_ids_append(&sequence->ids, ids + kept, n - kept, error);
    if (status == DI_OK) status = compute(sequence, n - 1, error);
    if (status != DI_OK) {
        di_sequence_cut(sequence);
        return status;
    }
    if (n_reused) *n_reused = kept;
    return DI_OK;
}

/* Brings the counts on the device to prompt and answer as they are. Foreign counts can only be
 * cleared with everything else, and then all is computed again. */
static di_status prepare_counts(di_sequence *sequence, di_error *error) {
    di_engine *engine = sequence->engine;
    const int32_t *ids = sequence->ids.data;
    int32_t n_prompt = (int32_t)sequence->n_prompt;
    if (!engine->options.penalties) {
        return di_fail(error, DI_ERR_USAGE,
                       "penalties are asked for, but the engine was opened without them");
    }
    if (sequence->counts_foreign) {
        di_context_reset(engine->context, sequence->slot);
        sequence->prompt_counted = false;
        DI_TRY(compute(sequence, sequence->ids.size - 1, error));
        int32_t n_answer = (int32_t)(sequence->ids.size - sequence->n_prompt);
        DI_TRY(di_context_count(engine->context, sequence->slot, ids + n_prompt, n_answer, false,
                                error));
        sequence->counts_foreign = false;
    }
    if (sequence->prompt_counted) return DI_OK;
    sequence->prompt_counted = true;
    return di_context_count(engine->context, sequence->slot, ids, n_prompt, true, error);
}

static di_status copy_biases(di_engine *engine, const di_sampling *sampling, di_error *error) {
    if (sampling->n_biases > engine->bias_capacity) {
        size_t bytes = (size_t)sampling->n_biases * sizeof *engine->biases;
        di_logit_bias *more = realloc(engine->biases, bytes);
        if (!more) return di_fail(error, DI_ERR_MEMORY, "out of memory: logit biases");
        engine->biases = more;
        engine->bias_capacity = sampling->n_biases;
    }
    for (int32_t i = 0; i < sampling->n_biases; i++) {
        engine->biases[i] = (di_logit_bias){sampling->biases[i].token, sampling->biases[i].value};
    }
    return DI_OK;
}

/* All is computed: the last id must be computed once more, for its logits. */
static di_status reopen_last(di_sequence *sequence, di_error *error) {
    if (di_sequence_done(sequence) < sequence->ids.size) return DI_OK;
    return di_context_rewind(sequence->engine->context, sequence->slot, 1, error);
}

di_status di_sequence_next(di_sequence *sequence, const di_sampling *sampling, di_token *out,
                           di_error *error) {
    di_engine *engine = sequence->engine;
    int64_t context = di_context_get_options(engine->context)->max_context;
    size_t n = sequence->ids.size;
    if (n == 0) return di_fail(error, DI_ERR_USAGE, "the sequence has no prompt yet");
    if (n > (size_t)context) {
        return di_fail(error, DI_ERR_LIMIT, "the context of %" PRId64 " tokens is full", context);
    }
    DI_TRY(di_sampling_check(sampling, di_model_config(engine->model)->vocab_size, error));
    DI_TRY(copy_biases(engine, sampling, error));
    if (di_sampling_has_penalties(sampling)) DI_TRY(prepare_counts(sequence, error));
    DI_TRY(reopen_last(sequence, error));
    DI_TRY(compute(sequence, n - 1, error));
    di_sample_params params = di_sampling_params(sampling, sequence->slot);
    static const int32_t first_row = 0;
    di_sequence_rows(sequence, 1);
    di_step step = {.rows = engine->rows,
                    .n_rows = 1,
                    .out_rows = &first_row,
                    .n_out = 1,
                    .params = &params,
                    .biases = engine->biases,
                    .n_biases = sampling->n_biases,
                    .masks = engine->mask,
                    .n_masks = 1};
    DI_TRY(di_forward(engine->context, &step, error));
    di_token token;
    DI_TRY(di_context_read_samples(engine->context, &token.id, &token.logprob, error));
    if (token.id < 0) {
        return di_fail(
            error, DI_ERR_INVALID,
            "no token can be sampled at position %zu: the logits are not finite numbers; "
            "the weights may be damaged",
            n);
    }
    DI_TRY(di_ids_append(&sequence->ids, &token.id, 1, error));
    *out = token;
    return DI_OK;
}
