/* One step: scheduled, built, enqueued; and one that was enqueued before is read.
 *
 * With steps_ahead 1 the device has the next step before the results of the last are known: blocks
 * take their tokens from the device, and what runs past an end is dropped when the end is read. That
 * is done where it pays (step_ahead.h).
 */
#include <math.h>
#include <string.h>

#include "engine/core_internal.h"

/* ---- Enqueued ---- */

/* The test's drafts in place of those that were just made. */
static di_status force_drafts(di_core *core, const core__step *step, di_error *error) {
    int32_t block = core->spec.block;
    if (!core->force) return DI_OK;
    DI_TRY(di_context_read_drafts(core->context, core->forced, NULL, error));
    for (int32_t b = 0; b < step->n_blocks; b++) {
        const core__sequence *s = step->blocks[b].sequence;
        if (step->columns[b] < 0) continue;
        core->force(core->force_user, s->request->id, s->choice, s->ids, s->n_ids,
                    core->forced + (int64_t)step->columns[b] * block);
    }
    return di_context_put_drafts(core->context, core->forced, error);
}

static di_status enqueue_draft(di_core *core, core__step *step, di_error *error) {
    if (step->n_drafted == 0) return DI_OK;
    di_draft_step draft = {.slots = core->draft_slots,
                           .n = step->n_drafted,
                           .params = core->draft_params,
                           .biases = core->biases,
                           .n_biases = core->n_biases,
                           .masks = core->masks,
                           .n_masks = 2};
    DI_TRY(di_draft(core->context, &draft, error));
    DI_TRY(force_drafts(core, step, error));
    di_context_fetch_drafts(core->context, step->seen ? step->drafts : NULL, step->confidence);
    if (step->seen) step->draft_mark = di_context_mark(core->context);
    return DI_OK;
}

static di_status enqueue_forward(di_core *core, core__step *step, di_error *error) {
    di_step rows = {.blocks = core->blocks,
                    .n_blocks = step->n_blocks,
                    .n_own = step->n_own,
                    .n_drafts = core->n_verified,
                    .temperatures = core->n_verified ? core__spec_temperatures(core) : NULL,
                    .rows = core->rows,
                    .n_rows = step->n_rows,
                    .out_rows = core->out_rows,
                    .n_out = step->n_outs,
                    .params = step->n_blocks + step->n_outs ? core->params : NULL,
                    .biases = core->biases,
                    .n_biases = core->n_biases,
                    .masks = core->masks,
                    .n_masks = 2 + core->n_masks};
    if (!rows.params) rows.n_masks = 0;
    DI_TRY(di_forward(core->context, &rows, error));
    di_context_stamp(core->context, &step->end);
    di_fetch results = step->results;
    results.logits = step->wants_logits ? core->logits : NULL;
    di_context_fetch(core->context, &results);
    return DI_OK;
}

/* What the rows of known tokens came to needs no results. */
static di_status advance(di_core *core, core__sequence *s, di_error *error) {
    const core__request *r = s->request;
    bool prompt_ends = s->n_done < r->n_prompt && s->n_done + s->n_rows == r->n_prompt;
    s->n_done += s->n_rows;
    if (s->n_done > s->n_high) s->n_high = s->n_done;
    s->decoding = s->n_done == s->n_ids;
    DI_TRY(core__settle(core, s, error));
    if (prompt_ends && s->n_ids == r->n_prompt) core__snapshot_take(core, s);
    return DI_OK;
}

static void count(di_core *core, const core__step *step) {
    di_core_stats *stats = &core->stats;
    stats->steps++;
    stats->rows += (uint64_t)(step->n_blocks + step->n_verified + step->n_rows);
    stats->prompt_rows += (uint64_t)step->n_prompt_rows;
    stats->drafted += (uint64_t)step->n_drafted * (uint64_t)core->spec.block;
    stats->verified += (uint64_t)step->n_verified;
}

static di_status enqueue(di_core *core, core__step *step, di_error *error) {
    di_context_stamp(core->context, &step->begin);
    /* What earlier steps left to do is no cost of these drafts. */
    if (step->n_drafted > 0) di_context_catch_up(core->context);
    di_context_stamp(core->context, &step->ready);
    DI_TRY(enqueue_draft(core, step, error));
    DI_TRY(core__masked_finish(core, step, error));
    di_context_stamp(core->context, &step->middle);
    DI_TRY(enqueue_forward(core, step, error));
    step->mark = di_context_mark(core->context);
    count(core, step);
    for (int32_t i = 0; i < core->n_order; i++) {
        core__sequence *s = core->order[i];
        if (s->n_rows > 0) DI_TRY(advance(core, s, error));
    }
    return DI_OK;
}

/* ---- One after the other ---- */

static di_status read_flying(di_core *core, di_error *error) {
    core__step *step = core->flying;
    core->flying = NULL;
    return step ? core__deliver(core, step, error) : DI_OK;
}

/* Whether the step behind this one is enqueued before this one is read. */
static bool goes_ahead(di_core *core, const core__step *step) {
    if (core->options.steps_ahead == 0 || step->wants_logits) return false;
    if (core->force_ahead) return true;
    return di_ahead_pays(&core->ahead, step->n_blocks, core__spec_block_seconds(core, step));
}

static di_status run_step(di_core *core, di_error *error) {
    bool again;
    double schedule = core__now(core);
    DI_TRY(core__schedule(core, &again, error));
    if (again) {
        DI_TRY(read_flying(core, error));
        core__sweep(core); /* who was cancelled by a callback has blocks that were not settled */
        schedule = core__now(core);
        DI_TRY(core__schedule(core, &again, error));
        assert(!again);
    }
    core__step *step = &core->steps[core->stats.steps % CORE__STEPS];
    assert(step != core->flying);
    core->building = step;
    double build = core__now(core);
    core__build(core);
    if (step->n_blocks + step->n_rows == 0) return read_flying(core, error);
    step->alone = core->flying == NULL;
    step->trace = (di_step_trace){.step = core->stats.steps,
                                  .schedule = schedule,
                                  .build = build,
                                  .enqueue = core__now(core)};
    DI_TRY(enqueue(core, step, error));
    step->trace.enqueued = core__now(core);
    DI_TRY(read_flying(core, error));
    core->flying = step;
    return goes_ahead(core, step) ? DI_OK : read_flying(core, error);
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
    if (core->telling) {
        return di_fail(error, DI_ERR_USAGE, "a callback asked for a step: only the owner may");
    }
    if (core->failed != DI_OK) {
        *error = core->failure;
        return core->failed;
    }
    di_status status = run_step(core, error);
    core__sweep(core);
    /* What ran past the last end is waited for: a core with nothing to do has an idle device. */
    if (status == DI_OK && !core->first) {
        status = read_flying(core, error);
        core->last_end = NAN;
        core__sweep(core);
    }
    if (status != DI_OK) {
        fail_all(core, status, error);
        core__sweep(core);
    }
    *busy = core->first != NULL;
    return status;
}

di_status di_core_run(di_core *core, const volatile bool *stop, di_error *error) {
    for (bool busy = core->first != NULL; busy && !(stop && *stop);) {
        DI_TRY(di_core_step(core, &busy, error));
    }
    return DI_OK;
}
