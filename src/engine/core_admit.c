/* Sequences come into slots and leave them: admission with its hits, forks, pre-emption.
 *
 * A sequence is admitted when the pages of all tokens it has are to be had and one page more for
 * each running sequence that may need it. What its answer needs beyond is taken as it grows, and
 * when there is none left the last by rank must wait again (core_schedule.c).
 */
#include "engine/core_internal.h"

static core__slot *free_slot(di_core *core) {
    for (int32_t i = 0; i < core->options.max_batch; i++) {
        if (!core->slots[i].sequence) return &core->slots[i];
    }
    return NULL;
}

static void take_slot(di_core *core, core__slot *slot, core__sequence *s) {
    slot->sequence = s;
    s->slot = (int32_t)(slot - core->slots);
    s->state = CORE__RUNNING;
    s->stay++;
    s->decoding = false;
    s->n_unread = 0;
    s->drafted_in = 0;
    core__spec_forget(core, s);
    core->n_running++;
}

void core__give_back(di_core *core, core__sequence *s) {
    di_kv_release(core->kv, core__pages(core, s));
    core->slots[s->slot].sequence = NULL;
    core->n_running--;
    s->slot = -1;
    s->n_done = 0;
    s->n_rows = 0;
}

void core__preempt(di_core *core, core__sequence *s) {
    core__snapshot_take(core, s);
    core__give_back(core, s);
    core__waiting_insert(core, s);
    core->stats.preemptions++;
}

di_status core__extend(di_core *core, core__sequence *s, int64_t n_tokens, bool *ok,
                       di_error *error) {
    di_kv_sequence *pages = core__pages(core, s);
    int32_t before = pages->n_pages;
    *ok = di_kv_extend(core->kv, pages, n_tokens);
    if (!*ok) return DI_OK;
    return di_context_set_pages(core->context, s->slot, before, pages->pages + before,
                                pages->n_pages - before, error);
}

/* ---- A sequence comes in ---- */

/* What was found for a waiting sequence. */
typedef struct hits {
    int32_t n_pages;          /* to be taken */
    int64_t start;            /* first token whose row must run */
    core__snapshot *snapshot; /* or NULL: windows are replayed */
} hits;

static di_kv_prompt prompt_of(const di_core *core, core__sequence *s) {
    int32_t n_pages = (int32_t)(core__skippable(s) / DI_PAGE_TOKENS);
    core__name_pages(s, n_pages);
    return (di_kv_prompt){.root = s->request->root,
                          .names = s->names,
                          .n_pages = n_pages,
                          .follow_replays = core->options.replay == DI_REPLAY_BOUNDED,
                          .ids = s->ids};
}

/* The way that begins latest: replay behind all pages that are there, or a snapshot. */
static hits find_hits(di_core *core, const core__sequence *s, const di_kv_prompt *prompt) {
    hits found = {di_kv_find(core->kv, prompt, prompt->n_pages).n_pages, 0, NULL};
    int64_t hit = (int64_t)found.n_pages * DI_PAGE_TOKENS;
    found.start = core__replay_start(core, hit, s->request->cut);
    int64_t length;
    core__snapshot *snapshot = core__snapshot_find(core, s, found.n_pages, &length);
    if (!snapshot || length <= found.start) return found;
    return (hits){(int32_t)(snapshot->length / DI_PAGE_TOKENS), length, snapshot};
}

/* Pages that are left to running sequences: one for each whose answer may need another. */
static int32_t headroom(const di_core *core) {
    int32_t n = 0;
    for (int32_t i = 0; i < core->options.max_batch; i++) {
        const core__sequence *s = core->slots[i].sequence;
        const di_kv_sequence *pages = &core->slots[i].pages;
        n += s && core__pages_for(s->max_ids - 1) > pages->n_pages + pages->n_reserved;
    }
    return n;
}

/* Takes the pages; false when they are not to be had now. */
static bool take_pages(di_core *core, core__sequence *s, di_kv_sequence *pages,
                       const di_kv_prompt *prompt, int32_t max_hits) {
    int32_t n_total = core__pages_for(s->n_ids);
    di_kv_match match = di_kv_find(core->kv, prompt, max_hits);
    int32_t taken = n_total - match.n_pages + match.n_cached;
    if (taken > di_kv_spare(core->kv) - headroom(core)) return false;
    return di_kv_admit(core->kv, pages, prompt, max_hits, n_total);
}

/* Windows from the snapshot. *ok false: its pages are of another lineage than those found. */
static di_status restore(di_core *core, core__sequence *s, const hits *found, bool *ok,
                         di_error *error) {
    core__snapshot *snapshot = found->snapshot;
    di_kv_sequence *pages = core__pages(core, s);
    di_kv_name replayed =
        di_kv_name_replay(&pages->tail, snapshot->length / DI_PAGE_TOKENS * DI_PAGE_TOKENS);
    *ok = di_kv_name_equal(&snapshot->lineage, &pages->tail);
    if (!*ok && pages->n_named > 0 && di_kv_name_equal(&snapshot->lineage, &replayed)) {
        di_kv_mark_replay(pages);
        *ok = true;
    }
    if (!*ok) return DI_OK;
    bool extended;
    DI_TRY(core__extend(core, s, snapshot->length, &extended, error));
    assert(extended); /* promised */
    DI_TRY(core__snapshots_wait(core, error));
    di_context_restore(core->context, s->slot, core__snapshot_bytes(core, snapshot));
    int32_t back = (int32_t)(snapshot->length - found->start);
    if (back > 0) DI_TRY(di_context_rewind(core->context, s->slot, back, error));
    s->n_done = found->start;
    snapshot->used = ++core->snapshots.clock;
    core->stats.snapshot_hits++;
    return DI_OK;
}

/* Windows by running rows again from `start`. */
static di_status replay(di_core *core, core__sequence *s, int64_t start, di_error *error) {
    di_kv_sequence *pages = core__pages(core, s);
    if (pages->n_named > 0) {
        int64_t closed = (int64_t)pages->n_named * DI_PAGE_TOKENS;
        DI_TRY(di_context_resume(core->context, s->slot, s->ids, start, closed, error));
        /* Windows that begin at 0 are those of a cold run. */
        if (core->options.replay == DI_REPLAY_BOUNDED && start > 0) di_kv_mark_replay(pages);
    }
    s->n_done = start;
    return DI_OK;
}

static di_status count_ids(di_core *core, const core__sequence *s, di_error *error) {
    const di_sample_params *p = &s->request->given.sampling;
    int32_t n_prompt = (int32_t)s->request->n_prompt;
    if (p->repetition_penalty == 1.0f && p->presence_penalty == 0.0f &&
        p->frequency_penalty == 0.0f)
        return DI_OK;
    DI_TRY(di_context_count(core->context, s->slot, s->ids, n_prompt, true, error));
    return di_context_count(core->context, s->slot, s->ids + n_prompt, (int32_t)s->n_ids - n_prompt,
                            false, error);
}

/* The slot as the sequence needs it, up to n_done. */
static di_status begin(di_core *core, core__sequence *s, const hits *found, di_error *error) {
    core__request *r = s->request;
    const di_kv_sequence *pages = core__pages(core, s);
    bool restored = false;
    di_context_reset(core->context, s->slot);
    DI_TRY(di_context_set_pages(core->context, s->slot, 0, pages->pages, pages->n_pages, error));
    if (found->snapshot) DI_TRY(restore(core, s, found, &restored, error));
    if (!restored) {
        int64_t hit = (int64_t)pages->n_named * DI_PAGE_TOKENS;
        DI_TRY(replay(core, s, core__replay_start(core, hit, r->cut), error));
    }
    if (r->cut > 0 && r->cut >= s->n_done) {
        DI_TRY(di_context_cut(core->context, s->slot, r->cut, error));
    }
    int64_t again = s->n_high > (int64_t)pages->n_named * DI_PAGE_TOKENS
                        ? s->n_high
                        : (int64_t)pages->n_named * DI_PAGE_TOKENS;
    if (again > s->n_done) core->stats.replayed_rows += (uint64_t)(again - s->n_done);
    if (r->n_cached < 0) {
        r->n_cached = s->n_done < r->n_prompt ? s->n_done : r->n_prompt;
        r->n_found = (int64_t)pages->n_named * DI_PAGE_TOKENS;
        core->stats.prompt_tokens += (uint64_t)r->n_prompt;
        core->stats.cached_tokens += (uint64_t)r->n_cached;
    }
    return count_ids(core, s, error);
}

di_status core__admit_all(di_core *core, di_error *error) {
    for (core__sequence *s; (s = core->waiting.head) != NULL;) {
        core__slot *slot = free_slot(core);
        if (!slot) return DI_OK;
        di_kv_prompt prompt = prompt_of(core, s);
        hits found = find_hits(core, s, &prompt);
        /* The best by rank or nobody: what is passed over could wait for ever. */
        if (!take_pages(core, s, &slot->pages, &prompt, found.n_pages)) return DI_OK;
        core__waiting_remove(core, s);
        take_slot(core, slot, s);
        DI_TRY(begin(core, s, &found, error));
    }
    return DI_OK;
}

/* ---- n > 1: one prompt, several choices ---- */

/* `to` goes on from the state that is in fork_bytes. *ok false: no slot or no pages now. */
static di_status fork_one(di_core *core, const core__sequence *from, core__sequence *to, bool *ok,
                          di_error *error) {
    core__slot *slot = free_slot(core);
    di_kv_sequence *source = core__pages(core, from);
    int32_t n_total = core__pages_for(to->n_ids);
    int32_t taken = n_total - source->n_named;
    *ok = slot && taken <= di_kv_spare(core->kv) - headroom(core) &&
          di_kv_fork(core->kv, source, &slot->pages, from->n_done, n_total);
    if (!*ok) return DI_OK;
    take_slot(core, slot, to);
    const di_kv_sequence *pages = &slot->pages;
    /* All whole pages are named and shared; the bytes of the unfinished one are in fork_bytes. */
    assert(pages->n_named == from->n_done / DI_PAGE_TOKENS);
    DI_TRY(di_context_set_pages(core->context, to->slot, 0, pages->pages, pages->n_pages, error));
    di_context_restore(core->context, to->slot, core->fork_bytes);
    to->n_done = from->n_done;
    to->n_high = from->n_done;
    return count_ids(core, to, error);
}

/* All tokens but the last are computed: the row of that one each choice runs for itself. */
static di_status fork_request(di_core *core, core__sequence *first, di_error *error) {
    core__request *r = first->request;
    bool shared = first->n_done > 0;
    r->forked = true;
    if (shared) {
        core__save(core, first, core->fork_bytes);
        DI_TRY(core__snapshots_wait(core, error));
        core__snapshot_keep(core, first, core->fork_bytes);
    }
    for (int32_t i = 1; i < r->given.n; i++) {
        core__sequence *s = &r->sequences[i];
        bool ok = false;
        if (shared) DI_TRY(fork_one(core, first, s, &ok, error));
        if (!ok) core__waiting_insert(core, s); /* finds what the first one left */
    }
    return DI_OK;
}

di_status core__fork_all(di_core *core, di_error *error) {
    for (int32_t i = 0; i < core->options.max_batch; i++) {
        core__sequence *s = core->slots[i].sequence;
        if (!s || s->request->forked || s->n_done < s->request->n_known - 1) continue;
        DI_TRY(fork_request(core, s, error));
    }
    return DI_OK;
}
