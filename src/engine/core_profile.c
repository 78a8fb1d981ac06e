/* --profile-steps: what steps and draft passes of many sizes cost here, measured before there are
 * requests, on sequences of a few tokens that are thrown away.
 */
#include <stdlib.h>

#include "engine/core_internal.h"

enum {
    PROMPT = 8, /* tokens of a sequence; with what the repeats add, all fit one page */
    REPEATS = 4 /* the first of a size is cold; the table takes medians */
};

/* Slots 0 .. n - 1 hold PROMPT tokens each, in pages of their own. */
static di_status fill_slots(di_core *core, int32_t n, di_error *error) {
    for (int32_t slot = 0; slot < n; slot++) {
        di_context_reset(core->context, slot);
        DI_TRY(di_context_set_pages(core->context, slot, 0, &slot, 1, error));
        for (int32_t i = 0; i < PROMPT; i += core->options.max_rows) {
            int32_t rows =
                PROMPT - i < core->options.max_rows ? PROMPT - i : core->options.max_rows;
            for (int32_t k = 0; k < rows; k++) core->rows[k] = (di_row){i + k, slot, k};
            DI_TRY(
                di_forward(core->context, &(di_step){.rows = core->rows, .n_rows = rows}, error));
        }
        core->draft_slots[slot] = slot;
        core->draft_params[slot] =
            (di_sample_params){.top_p = 1, .repetition_penalty = 1, .slot = slot, .mask = -1};
        core->blocks[slot] = (di_decode){.slot = slot};
    }
    return DI_OK;
}

/* One draft pass and one step that verifies n_verified of its drafts. */
static di_status time_step(di_core *core, int32_t n, int32_t n_verified, di_error *error) {
    core__step *step = &core->steps[0];
    di_step rows = {.blocks = core->blocks,
                    .n_blocks = n,
                    .n_drafts = n_verified,
                    .temperatures = core__spec_temperatures(core),
                    .params = core->draft_params};
    for (int32_t i = 0; i < n; i++) core->blocks[i].most = core->spec.block;
    di_context_stamp(core->context, &step->begin);
    DI_TRY(
        di_draft(core->context,
                 &(di_draft_step){.slots = core->draft_slots, .n = n, .params = core->draft_params},
                 error));
    di_context_stamp(core->context, &step->middle);
    DI_TRY(di_forward(core->context, &rows, error));
    di_context_stamp(core->context, &step->end);
    di_context_fetch(core->context, &step->results);
    DI_TRY(di_context_wait(core->context, error));
    for (int32_t i = 0, at = 0; i < n; at += step->results.block_rows[i++]) {
        int32_t kept = 0, of = step->results.block_rows[i];
        while (kept < of && step->results.tokens[at + kept] != -1) kept++;
        di_context_settle(core->context, i, of, kept);
    }
    di_spec_cost_record(core->spec.verify, (int64_t)n + n_verified, 0, step->end - step->middle);
    di_spec_cost_record(core->spec.draft, n, 0, step->middle - step->begin);
    return DI_OK;
}

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

static di_status time_sizes(di_core *core, int32_t n, di_error *error) {
    int32_t room = smaller(core->max_out, core->options.max_rows), block = core->spec.block;
    for (int32_t each = 0; each <= block; each++) {
        int32_t n_verified = smaller(n * each, room - n);
        DI_TRY(fill_slots(core, n, error));
        for (int32_t i = 0; i < REPEATS; i++) DI_TRY(time_step(core, n, n_verified, error));
        if (n_verified < n * each) break;
    }
    return DI_OK;
}

di_status core__spec_profile(di_core *core, di_error *error) {
    int32_t room = smaller(core->max_out, core->options.max_rows);
    if (core->spec.block == 0) return DI_OK;
    int32_t most =
        smaller(core->options.max_batch, smaller(core->options.n_pages, room / core->spec.block));
    /* Sequences of one page must hold what the repeats may add. */
    int64_t room_tokens =
        core->options.max_context < DI_PAGE_TOKENS ? core->options.max_context : DI_PAGE_TOKENS;
    if (room_tokens < PROMPT + REPEATS * (core->spec.block + 1)) {
        return di_fail(
            error, DI_ERR_UNSUPPORTED,
            "profile_steps: steps of %d drafts are measured on sequences of %d tokens, and there is "
            "room for %lld",
            core->spec.block, PROMPT + REPEATS * (core->spec.block + 1), (long long)room_tokens);
    }
    for (int32_t n = 1; n <= most; n = n < most && 2 * n > most ? most : 2 * n) {
        DI_TRY(time_sizes(core, n, error));
    }
    for (int32_t slot = 0; slot < most; slot++) di_context_reset(core->context, slot);
    return di_context_wait(core->context, error);
}
