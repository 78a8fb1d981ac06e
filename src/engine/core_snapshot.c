/* Window snapshots: what a sequence has besides its pages, in host memory, by the tokens that made
 * it. Least recently used first out. A handful (3.2 MiB each at the released size), so they are
 * searched one by one.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/core_internal.h"

di_status core__snapshots_init(di_core *core, di_error *error) {
    enum { MOST = 4096 };
    core__snapshots *all = &core->snapshots;
    all->entry_bytes = di_context_snapshot_bytes(core->context);
    if (!core->options.prefix_cache) return DI_OK; /* without its pages a window is of no use */
    uint64_t n = core->options.window_cache_bytes / all->entry_bytes;
    all->n_max = n < MOST ? (int32_t)n : MOST;
    if (all->n_max == 0) return DI_OK;
    all->entries = calloc((size_t)all->n_max, sizeof *all->entries);
    all->bytes = malloc((size_t)((uint64_t)all->n_max * all->entry_bytes));
    if (all->entries && all->bytes) return DI_OK;
    return di_fail(error, DI_ERR_MEMORY, "out of memory: %llu MiB for window snapshots",
                   (unsigned long long)(core->options.window_cache_bytes >> 20));
}

void core__snapshots_deinit(core__snapshots *snapshots) {
    free(snapshots->entries);
    free(snapshots->bytes);
}

const void *core__snapshot_bytes(const di_core *core, const core__snapshot *snapshot) {
    const core__snapshots *all = &core->snapshots;
    return all->bytes + (uint64_t)(snapshot - all->entries) * all->entry_bytes;
}

di_status core__snapshots_wait(di_core *core, di_error *error) {
    if (!core->saving) return DI_OK;
    core->saving = false;
    return di_context_reach(core->context, core->saved_at, error);
}

static const di_kv_name *plain_name(const core__sequence *s, int32_t n_pages) {
    return n_pages ? &s->names[n_pages - 1] : &s->request->root;
}

/* How many of its tokens s begins with, of the same tenant; less than the snapshot's whole pages
 * when they are not all of these. */
static int64_t common_tokens(const core__snapshot *snapshot, const core__sequence *s) {
    int32_t pages = (int32_t)(snapshot->length / DI_PAGE_TOKENS);
    int64_t n = (int64_t)pages * DI_PAGE_TOKENS, first = n;
    if (!di_kv_name_equal(&snapshot->plain, plain_name(s, pages))) return 0;
    while (n < snapshot->length && n < s->n_ids && snapshot->ids[n - first] == s->ids[n]) n++;
    return n;
}

/* The place for a new snapshot of s; NULL when it is there already, or of no use. */
static core__snapshot *place_for(di_core *core, core__sequence *s) {
    core__snapshots *all = &core->snapshots;
    const di_kv_sequence *pages = core__pages(core, s);
    int32_t whole = (int32_t)(s->n_done / DI_PAGE_TOKENS);
    if (all->n_max == 0 || s->n_done < CORE__MIN_SNAPSHOT || pages->n_named != whole) return NULL;
    core__name_pages(s, whole);
    core__snapshot *place = NULL;
    for (int32_t i = 0; i < all->n; i++) {
        core__snapshot *entry = &all->entries[i];
        if (entry->length == s->n_done && entry->cut == s->request->cut &&
            common_tokens(entry, s) == entry->length &&
            di_kv_name_equal(&entry->lineage, &pages->tail)) {
            entry->used = ++all->clock;
            return NULL;
        }
        if (!place || entry->used < place->used) place = entry;
    }
    if (all->n < all->n_max) place = &all->entries[all->n++];
    *place = (core__snapshot){.plain = *plain_name(s, whole),
                              .lineage = pages->tail,
                              .length = s->n_done,
                              .cut = s->request->cut,
                              .used = ++all->clock,
                              .margin = di_context_margin(core->context, s->slot)};
    int64_t first = (int64_t)whole * DI_PAGE_TOKENS;
    memcpy(place->ids, s->ids + first, (size_t)(s->n_done - first) * sizeof *s->ids);
    core->stats.snapshots++;
    return place;
}

static void *writable(di_core *core, const core__snapshot *snapshot) {
    core__snapshots *all = &core->snapshots;
    return all->bytes + (uint64_t)(snapshot - all->entries) * all->entry_bytes;
}

void core__snapshot_take(di_core *core, core__sequence *s) {
    core__snapshot *place = place_for(core, s);
    if (!place) return;
    core__save(core, s, writable(core, place));
}

void core__save(di_core *core, const core__sequence *s, void *host) {
    di_context_save(core->context, s->slot, host);
    core->saved_at = di_context_mark(core->context);
    core->saving = true;
}

void core__snapshot_keep(di_core *core, core__sequence *s, const void *bytes) {
    core__snapshot *place = place_for(core, s);
    if (place) memcpy(writable(core, place), bytes, (size_t)core->snapshots.entry_bytes);
}

/* Whether going on from it gives the bits that a cold run gives, by the mode (design: a sequence's
 * state). Its windows below the cut are right in any case; those above it begin at its cut. */
static bool serves(const di_core *core, const core__snapshot *snapshot, const core__sequence *s) {
    int64_t cut = s->request->cut;
    bool same_windows = snapshot->cut == cut || snapshot->length <= cut;
    return same_windows || core->options.replay == DI_REPLAY_BOUNDED;
}

/* The tokens of s that need not run when it goes on from the snapshot; 0: it cannot. What they do
 * not share is taken back, as far as the margin of the rings goes, and never into a named page, for
 * that is not written again. The last token of s must run, for its logits. So a prompt's snapshot
 * serves the same prompt again, and a conversation whose thought was left out when it went on. */
static int64_t usable_tokens(const core__snapshot *snapshot, const core__sequence *s) {
    int64_t n = common_tokens(snapshot, s), most = core__skippable(s);
    if (n > most) n = most;
    bool in_reach = snapshot->length - n <= snapshot->margin;
    return in_reach && n >= snapshot->length / DI_PAGE_TOKENS * DI_PAGE_TOKENS ? n : 0;
}

core__snapshot *core__snapshot_find(di_core *core, const core__sequence *s, int32_t n_hits,
                                    int64_t *length) {
    core__snapshots *all = &core->snapshots;
    core__snapshot *best = NULL;
    *length = 0;
    for (int32_t i = 0; i < all->n; i++) {
        core__snapshot *entry = &all->entries[i];
        if (entry->length / DI_PAGE_TOKENS > n_hits || !serves(core, entry, s)) continue;
        int64_t n = usable_tokens(entry, s);
        if (n <= *length) continue;
        *length = n;
        best = entry;
    }
    return best;
}
