/* Who gets rows of the next step.
 *
 * 1. Every sequence that is decoding gets its row, unless its biases, its mask or what is unread leave no
 *    room. One whose masks hang on tokens that are not read yet may draft meanwhile.
 * 2. Drafts get what core_spec.c thinks they are worth, of the rest; beside prompts at most half.
 * 3. What is left of the row budget goes to prompts: half of it in equal parts, so that a short
 *    prompt is not kept behind a long one, the rest by rank, so that the first to come is the first
 *    to answer.
 * 4. Pages for all of it, by rank; for a block wherever it may come to stand. When there are none,
 *    drafts go first, then the last by rank must wait again; the first can always go on, since
 *    alone it fits, and so everybody gets his turn.
 */
#include "engine/core_internal.h"

static void sort_running(di_core *core) {
    core->n_order = 0;
    for (int32_t i = 0; i < core->options.max_batch; i++) {
        core__sequence *s = core->slots[i].sequence;
        if (!s) continue;
        int32_t at = core->n_order++;
        for (; at > 0 && core__goes_before(s, core->order[at - 1]); at--) {
            core->order[at] = core->order[at - 1];
        }
        core->order[at] = s;
        s->n_rows = s->most = s->n_sure = 0;
        s->block = s->drafts = false;
        /* Drafts of the step before are there; of older ones another draft pass took the place. */
        if (s->drafted_in != core->stats.steps) s->drafted_in = 0;
    }
}

/* Rows of known tokens that a sequence can use in a step. Before a fork the prompt's last row is
 * left out: each choice runs its own. So it is where nothing follows it. */
static int64_t usable_rows(const core__sequence *s) {
    int64_t pending = core__pending(s);
    bool last = s->request->forked && (!core__only_scores(s) || s->request->n_known == 1);
    return last || pending == 0 ? pending : pending - 1;
}

/* The step's biases and masks are bounded: those for whom there is no room sit this one out. So do those
 * whose mask depends on a token that was not read yet. */
static bool takes_part(const core__sequence *s, int32_t *biases, int32_t *masks) {
    const di_core_request *given = &s->request->given;
    if (given->n_biases > *biases) return false;
    if (given->mask && (*masks == 0 || s->n_unread > 0)) return false;
    *biases -= given->n_biases;
    *masks -= given->mask != NULL;
    return true;
}

/* ---- Blocks ---- */

/* Tokens that the pages promised to it hold. */
static int64_t capacity(const core__sequence *s) {
    return (int64_t)core__pages_for(s->max_ids - 1) * DI_PAGE_TOKENS;
}

/* Where a block of s would end at most; further than its pages go, it waits until more is read. */
static int64_t block_end(const di_core *core, const core__sequence *s, int32_t most) {
    return s->n_done + di_context_ahead(core->context, s->slot) + 1 + most;
}

/* Whether the draft pass has room for a sequence more. */
static bool can_draft(const di_core *core, int32_t n_drafted) {
    return ((int64_t)n_drafted + 1) * core->spec.block <= core->max_out;
}

/* A sequence with masks has its rows when the host has seen its drafts: those of the step before, or of
 * this one where the device has nothing else to do meanwhile; and what is known without. */
static void offer_own(di_core *core, core__sequence *s, int32_t most, int32_t *n_drafted) {
    core__masked_foresee(core, s, most);
    bool drafts =
        most > s->n_sure && s->drafted_in == 0 && !core->flying && can_draft(core, *n_drafted);
    s->most = drafts || s->drafted_in > 0 ? most : s->n_sure;
    *n_drafted += drafts;
}

/* Gives s a block unless it has all its tokens, read or not; with drafts for so many sequences as
 * a draft pass has room for. */
static bool give_block(di_core *core, core__sequence *s, int32_t *n_drafted) {
    int64_t sure = s->n_ids + s->n_unread;
    int64_t room = core__smaller(capacity(s), core->options.max_context) - block_end(core, s, 0);
    if (!s->decoding || sure >= s->max_ids || room < 0) return false;
    s->block = true;
    int32_t most = (int32_t)core__smaller(di_spec_limit(core->spec.block, s->max_ids - sure), room);
    if (core__has_own(core, s)) {
        offer_own(core, s, most, n_drafted);
    } else if (!s->request->given.mask && can_draft(core, *n_drafted)) {
        s->most = most;
        *n_drafted += s->most > 0;
    }
    return true;
}

/* Those that sit the step out because their tokens are not read draft in it, for the next one. */
static void draft_ahead(di_core *core, int32_t n_blocks, int32_t biases, int32_t n_drafted) {
    for (int32_t i = 0; i < core->n_order; i++) {
        core__sequence *s = core->order[i];
        int32_t n_biases = s->request->given.n_biases;
        if (s->takes || !s->decoding || s->n_unread != 1 || !core__has_own(core, s)) continue;
        if (s->n_ids + s->n_unread + 1 >= s->max_ids || n_biases > biases) continue;
        if (!can_draft(core, n_drafted) || !core__spec_ahead(core, s, n_blocks)) continue;
        s->drafts = true;
        biases -= n_biases;
        n_drafted++;
    }
}

/* Each row of a block with masks has one; the blocks were counted, not their drafts. Those that are known
 * have `rows` rows at most. Returns how many these are. */
static int32_t bound_own(di_core *core, int32_t masks, int64_t rows) {
    int32_t n_sure = 0;
    for (int32_t i = 0; i < core->n_order; i++) {
        core__sequence *s = core->order[i];
        if (!s->block || !core__has_own(core, s)) continue;
        s->most = (int32_t)core__smaller(s->most, masks);
        bool device = s->most > s->n_sure; /* some of them are */
        s->n_sure = (int32_t)core__smaller(s->n_sure, core__smaller(s->most, rows - n_sure));
        if (!device) s->most = s->n_sure;
        masks -= s->most;
        n_sure += s->n_sure;
    }
    return n_sure;
}

/* Drafts of the host in the step, at most. */
static int32_t count_own(const di_core *core) {
    int32_t n = 0;
    for (int32_t i = 0; i < core->n_order; i++)
        if (core__has_own(core, core->order[i])) n += core->order[i]->most;
    return n;
}

/* ---- Rows ---- */

typedef struct budget {
    int64_t rows;    /* of the step */
    int64_t scoring; /* rows that ask for logits beside one for each sequence */
} budget;

/* Up to `most` rows more for a prompt. */
static void give(core__sequence *s, int64_t most, budget *left) {
    int64_t n = usable_rows(s) - s->n_rows;
    if (n > most) n = most;
    if (n > left->rows) n = left->rows;
    if (core__scores(s)) {
        if (n > left->scoring) n = left->scoring;
        left->scoring -= n;
    }
    s->n_rows += (int32_t)n;
    left->rows -= n;
}

/* Rows for the prompts among the first of order, as far as biases go. */
static void share_rows(di_core *core, budget *left, int32_t n_prompts) {
    int64_t share = left->rows / (2 * n_prompts);
    for (int32_t round = 0; round < 2; round++) {
        for (int32_t i = 0; i < core->n_order; i++) {
            core__sequence *s = core->order[i];
            if (!s->takes || s->decoding) continue;
            give(s, round == 0 ? share : left->rows, left);
        }
    }
}

/* Without the drafts that are not to be verified no pages are wanted for them. */
static void forget_drafts(di_core *core) {
    for (int32_t i = 0; i < core->n_order; i++)
        if (!core__has_own(core, core->order[i])) core->order[i]->most = 0;
}

/* Drafts for the blocks. Returns the rows that the step's prompts can have. */
static int64_t divide_drafts(di_core *core, int32_t n_blocks, int32_t masks, int32_t n_prompts,
                             int64_t prompt_rows) {
    int64_t left = core->options.max_rows - n_blocks;
    int64_t room = core__smaller(left - core__smaller(prompt_rows, left / 2),
                                 core->max_out - n_blocks - n_prompts);
    if (room < 0) room = 0;
    int32_t n_sure = bound_own(core, masks, room);
    core->n_verified =
        core__spec_plan(core, n_blocks + n_sure, (int32_t)room - n_sure, prompt_rows);
    if (core->n_verified == 0) forget_drafts(core);
    return core->options.max_rows - n_blocks - count_own(core) - core->n_verified;
}

static void divide_rows(di_core *core) {
    int32_t biases = CORE__MAX_BIASES, masks = CORE__MAX_MASKS, n_blocks = 0, n_prompts = 0,
            n_drafted = 0;
    int64_t prompt_rows = 0;
    for (int32_t i = 0; i < core->n_order; i++) {
        core__sequence *s = core->order[i];
        s->takes = takes_part(s, &biases, &masks);
        if (!s->takes) continue;
        n_blocks += give_block(core, s, &n_drafted);
        n_prompts += !s->decoding;
        prompt_rows += usable_rows(s);
    }
    int64_t left = divide_drafts(core, n_blocks, masks, n_prompts, prompt_rows);
    draft_ahead(core, n_blocks, biases, n_drafted);
    budget rest = {left, left - core->options.max_rows + core->max_out - n_prompts};
    for (int32_t i = 0; i < core->n_order; i++) {
        const core__sequence *s = core->order[i];
        rest.scoring += s->takes && core__scores(s) && !s->decoding;
    }
    if (n_prompts > 0) share_rows(core, &rest, n_prompts);
}

/* ---- Pages ---- */

/* *ok false: there are none. A block does without drafts sooner than without pages. */
static di_status extend(di_core *core, core__sequence *s, bool *ok, di_error *error) {
    int64_t end = s->block ? block_end(core, s, s->most) : s->n_done + s->n_rows;
    DI_TRY(core__extend(core, s, end, ok, error));
    if (*ok || s->most == 0) return DI_OK;
    s->most = s->n_sure = 0;
    return core__extend(core, s, block_end(core, s, 0), ok, error);
}

static di_status take_pages(di_core *core, bool *again, di_error *error) {
    int32_t most = 0;
    for (int32_t i = 0; i < core->n_order; i++) {
        core__sequence *s = core->order[i];
        bool ok = s->n_rows == 0 && !s->block;
        while (!ok) {
            DI_TRY(extend(core, s, &ok, error));
            if (ok) break;
            *again = core->flying != NULL;
            if (*again) return DI_OK;
            core__sequence *last = core->order[--core->n_order];
            core__preempt(core, last);
            if (last == s) break;
        }
        if (ok && !core__has_own(core, s)) most += s->most;
    }
    if (core->n_verified > most) core->n_verified = most;
    return DI_OK;
}

di_status core__schedule(di_core *core, bool *again, di_error *error) {
    sort_running(core);
    *again = core->preempt_asked && core->n_order > 0 && core->flying;
    if (*again) return DI_OK;
    if (core->preempt_asked && core->n_order > 0) {
        core__preempt(core, core->order[core->n_order - 1]);
    }
    core->preempt_asked = false;
    DI_TRY(core__admit_all(core, error));
    DI_TRY(core__fork_all(core, error));
    sort_running(core);
    divide_rows(core);
    return take_pages(core, again, error);
}
