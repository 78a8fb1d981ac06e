/* One step: scheduled, built, enqueued, consumed.
 *
 * Everything that is known about results is done in core_deliver.c, so that a step may once be
 * enqueued before the one before it was read.
 */
#include <float.h>
#include <string.h>

#include "engine/core_internal.h"

/* ---- Building ---- */

static di_sample_params scoring_params(const core__sequence *s) {
    return (di_sample_params){.top_p = 1.0f,
                              .repetition_penalty = 1.0f,
                              .slot = s->slot,
                              .mask = CORE__MASK_NOTHING};
}

static di_sample_params sampling_params(di_core *core, const core__sequence *s) {
    const di_core_request *given = &s->request->given;
    di_sample_params p = given->sampling;
    p.seed = s->seed;
    /* 0 would mean "no token at all"; the least positive value keeps the likeliest one. */
    if (!(p.top_p > 0.0f)) p.top_p = FLT_MIN;
    p.slot = s->slot;
    p.mask = CORE__MASK_ALLOWED;
    p.bias_begin = core->n_biases;
    p.n_bias = given->n_biases;
    if (p.n_bias > 0) {
        memcpy(core->biases + core->n_biases, given->biases,
               (size_t)p.n_bias * sizeof *core->biases);
        core->n_biases += p.n_bias;
    }
    return p;
}

static void ask_for_logits(di_core *core, core__sequence *s, int64_t position, bool samples) {
    assert(core->n_out < core->max_out);
    int32_t at = core->n_out++;
    core->out_rows[at] = core->n_rows;
    core->outs[at] = (core__out){s, position, samples};
    core->params[at] = samples ? sampling_params(core, s) : scoring_params(s);
    core->wants_logits |= core__scores(s) || s->request->given.top_logprobs > 0;
}

static void add_rows(di_core *core, core__sequence *s) {
    bool scores = core__scores(s);
    for (int32_t i = 0; i < s->n_rows; i++) {
        int64_t position = s->n_done + i, next = position + 1;
        bool samples = next == s->n_ids;
        bool is_scored = scores && next >= s->n_scored && next < s->request->n_prompt;
        if (samples || is_scored) ask_for_logits(core, s, position, samples);
        core->rows[core->n_rows++] = (di_row){s->ids[position], s->slot, i};
    }
    core->stats.rows += (uint64_t)s->n_rows;
    if (core__pending(core, s) > 1) core->stats.prompt_rows += (uint64_t)s->n_rows;
}

void core__build(di_core *core) {
    core->n_rows = core->n_out = core->n_biases = 0;
    core->wants_logits = false;
    for (int32_t i = 0; i < core->n_order; i++) add_rows(core, core->order[i]);
}

/* ---- Running ---- */

/* Pages whose tokens are final get their names. Nothing is rewound here: speculation would settle
 * what is behind its margin only. */
static di_status settle(di_core *core, core__sequence *s, di_error *error) {
    di_kv_sequence *pages = core__pages(core, s);
    di_kv_settled settled;
    while ((settled = di_kv_settle(core->kv, pages, s->ids, NULL, s->n_done)) != DI_KV_NOTHING) {
        if (settled == DI_KV_NAMED) continue;
        int32_t at = pages->n_named - 1;
        DI_TRY(di_context_set_pages(core->context, s->slot, at, pages->pages + at, 1, error));
    }
    return DI_OK;
}

static di_status enqueue(di_core *core, di_error *error) {
    di_step step = {.rows = core->rows,
                    .n_rows = core->n_rows,
                    .out_rows = core->out_rows,
                    .n_out = core->n_out,
                    .params = core->n_out ? core->params : NULL,
                    .biases = core->biases,
                    .n_biases = core->n_biases,
                    .masks = core->masks,
                    .n_masks = core->n_out ? 2 : 0};
    DI_TRY(di_forward(core->context, &step, error));
    core->stats.steps++;
    for (int32_t i = 0; i < core->n_order; i++) {
        core__sequence *s = core->order[i];
        if (s->n_rows == 0) continue;
        bool prompt_ends =
            s->n_done < s->request->n_prompt && s->n_done + s->n_rows == s->request->n_prompt;
        s->n_done += s->n_rows;
        if (s->n_done > s->n_high) s->n_high = s->n_done;
        DI_TRY(settle(core, s, error));
        if (prompt_ends && s->n_ids == s->request->n_prompt) core__snapshot_take(core, s);
    }
    return DI_OK;
}

static di_status run_step(di_core *core, di_error *error) {
    DI_TRY(core__schedule(core, error));
    core__build(core);
    if (core->n_rows == 0) return DI_OK;
    DI_TRY(enqueue(core, error));
    DI_TRY(core__deliver(core, error));
    return core__snapshots_wait(core, error);
}

/* The engine's own failure: nothing that it holds can be trusted any more. */
static void fail_all(di_core *core, di_status status, const di_error *error) {
    core->failed = status;
    core->failure = *error;
    for (core__request *r = core->first, *after; r; r = after) {
        after = r->after;
        core__end_request(core, r, DI_FINISH_ERROR, core->failure.message);
    }
    di_kv_forget(core->kv);
}

di_status di_core_step(di_core *core, bool *busy, di_error *error) {
    *busy = false;
    if (core->failed != DI_OK) {
        *error = core->failure;
        return core->failed;
    }
    di_status status = run_step(core, error);
    if (status != DI_OK) fail_all(core, status, error);
    core__sweep(core);
    *busy = core->first != NULL;
    return status;
}

di_status di_core_run(di_core *core, const volatile bool *stop, di_error *error) {
    for (bool busy = core->first != NULL; busy && !(stop && *stop);) {
        DI_TRY(di_core_step(core, &busy, error));
    }
    return DI_OK;
}
