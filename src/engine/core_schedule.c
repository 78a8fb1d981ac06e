/* Who gets rows of the next step.
 *
 * 1. Every sequence that is decoding gets its row.
 * 2. What is left of the row budget goes to prompts: half of it in equal parts, so that a short
 *    prompt is not kept behind a long one, the rest by rank, so that the first to come is the first
 *    to answer.
 * 3. Pages for all of it, by rank. When there are none, the last by rank must wait again; the first
 *    can always go on, since alone it fits, and so everybody gets his turn.
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
        s->n_rows = 0;
    }
}

/* Rows that a sequence can use in a step. Before a fork the prompt's last row is left out: each
 * choice runs its own. */
static int64_t usable_rows(const di_core *core, const core__sequence *s) {
    int64_t pending = core__pending(core, s);
    return s->request->forked ? pending : pending - 1;
}

static bool is_decoding(const di_core *core, const core__sequence *s) {
    return core__pending(core, s) == 1;
}

/* The step's biases are bounded: those for whom there is no room sit this one out. */
static bool takes_biases(const core__sequence *s, int32_t *left) {
    if (s->request->given.n_biases > *left) return false;
    *left -= s->request->given.n_biases;
    return true;
}

typedef struct budget {
    int64_t rows;    /* of the step */
    int64_t scoring; /* rows that ask for logits beside one for each sequence */
} budget;

/* Up to `most` rows more for a prompt. */
static void give(di_core *core, core__sequence *s, int64_t most, budget *left) {
    int64_t n = usable_rows(core, s) - s->n_rows;
    if (n > most) n = most;
    if (n > left->rows) n = left->rows;
    if (core__scores(s)) {
        if (n > left->scoring) n = left->scoring;
        left->scoring -= n;
    }
    s->n_rows += (int32_t)n;
    left->rows -= n;
}

static void share_rows(di_core *core) {
    budget left = {core->options.max_rows, core->max_out - core->n_order};
    int32_t biases = CORE__MAX_BIASES, n_prompts = 0;
    for (int32_t i = 0; i < core->n_order; i++) {
        core__sequence *s = core->order[i];
        left.scoring += core__scores(s); /* its own row is one of its scoring rows */
        if (!takes_biases(s, &biases)) continue;
        if (is_decoding(core, s))
            give(core, s, 1, &left);
        else
            n_prompts++;
    }
    if (n_prompts == 0) return;
    int64_t share = left.rows / (2 * n_prompts);
    for (int32_t round = 0; round < 2; round++) {
        biases = CORE__MAX_BIASES;
        for (int32_t i = 0; i < core->n_order; i++) {
            core__sequence *s = core->order[i];
            if (!takes_biases(s, &biases) || is_decoding(core, s)) continue;
            give(core, s, round == 0 ? share : left.rows, &left);
        }
    }
}

static di_status take_pages(di_core *core, di_error *error) {
    for (int32_t i = 0; i < core->n_order; i++) {
        core__sequence *s = core->order[i];
        bool ok = s->n_rows == 0;
        while (!ok) {
            DI_TRY(core__extend(core, s, s->n_done + s->n_rows, &ok, error));
            if (ok) break;
            core__sequence *last = core->order[--core->n_order];
            core__preempt(core, last);
            if (last == s) return DI_OK;
        }
    }
    return DI_OK;
}

di_status core__schedule(di_core *core, di_error *error) {
    sort_running(core);
    if (core->preempt_asked && core->n_order > 0) {
        core__preempt(core, core->order[core->n_order - 1]);
    }
    core->preempt_asked = false;
    DI_TRY(core__admit_all(core, error));
    DI_TRY(core__fork_all(core, error));
    sort_running(core);
    share_rows(core);
    return take_pages(core, error);
}
