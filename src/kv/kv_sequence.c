/* Sequences: what they hold, what they are promised, and the prefix index as they see it.
 *
 * The account that makes promises good: free + cached >= reserved, always. Whatever takes a page
 * out of the left side either uses up a promise with it or checks di_kv_spare first; nobody can be
 * in the way of a promise, since cached pages are given up at once.
 */
#include <stdlib.h>

#include "kv/kv_internal.h"

di_status di_kv_sequence_init(di_kv_sequence *sequence, int32_t max_pages, di_error *error) {
    *sequence = (di_kv_sequence){.max_pages = max_pages};
    if (max_pages < 1) {
        return di_fail(error, DI_ERR_USAGE, "a sequence of %d pages: it takes 1 or more",
                       (int)max_pages);
    }
    sequence->pages = malloc((size_t)max_pages * sizeof *sequence->pages);
    if (sequence->pages) return DI_OK;
    return di_fail(error, DI_ERR_MEMORY, "out of memory: the page list of a sequence (%d pages)",
                   (int)max_pages);
}

void di_kv_sequence_deinit(di_kv_sequence *sequence) {
    assert(sequence->n_pages == 0 && sequence->n_reserved == 0);
    free(sequence->pages);
    *sequence = (di_kv_sequence){0};
}

static int64_t pages_for(int64_t n_tokens) {
    return n_tokens / DI_PAGE_TOKENS + (n_tokens % DI_PAGE_TOKENS > 0); /* any int64 */
}

static void promise(di_kv *kv, di_kv_sequence *sequence, int32_t n) {
    sequence->n_reserved += n;
    kv->stats.n_reserved += n;
}

/* ---- Finding ---- */

/* Walks the prompt's chain as far as it is there; fills pages (or NULL) and the last name. */
static di_kv_match walk(const di_kv *kv, const di_kv_prompt *prompt, int32_t max_hits,
                        int32_t *pages, di_kv_name *tail) {
    di_kv_match match = {0, 0};
    *tail = prompt->root;
    if (!kv->prefix_cache) return match;
    int32_t limit = max_hits < prompt->n_pages ? max_hits : prompt->n_pages;
    bool plain = true; /* no replay so far: the names are those of the prompt */
    for (int32_t i = 0; i < limit; i++) {
        int64_t first = (int64_t)i * DI_PAGE_TOKENS;
        const uint64_t *content = prompt->content ? prompt->content + first : NULL;
        di_kv_name name =
            plain ? prompt->names[i] : di_kv_name_page(tail, prompt->ids + first, content);
        int32_t page = kv__table_find(&kv->index, &name);
        if (page < 0 && prompt->follow_replays && i > 0) {
            di_kv_name after = di_kv_name_replay(tail, first);
            name = di_kv_name_page(&after, prompt->ids + first, content);
            page = kv__table_find(&kv->index, &name);
            plain = false;
        }
        if (page < 0) break;
        if (pages) pages[i] = page;
        match.n_pages++;
        match.n_cached += kv->pages[page].state == KV__CACHED;
        *tail = name;
    }
    return match;
}

di_kv_match di_kv_find(const di_kv *kv, const di_kv_prompt *prompt, int32_t max_hits) {
    di_kv_name tail;
    return walk(kv, prompt, max_hits, NULL, &tail);
}

bool di_kv_admit(di_kv *kv, di_kv_sequence *sequence, const di_kv_prompt *prompt, int32_t max_hits,
                 int32_t n_total) {
    assert(sequence->n_pages == 0 && sequence->n_reserved == 0);
    if (n_total > sequence->max_pages || n_total > kv->stats.n_pages) return false;
    if (max_hits > sequence->max_pages) max_hits = sequence->max_pages;
    di_kv_match match = walk(kv, prompt, max_hits, sequence->pages, &sequence->tail);
    int32_t fresh = n_total > match.n_pages ? n_total - match.n_pages : 0;
    if (match.n_cached + fresh > di_kv_spare(kv)) return false;
    for (int32_t i = 0; i < match.n_pages; i++) kv__page_acquire(kv, sequence->pages[i]);
    sequence->n_pages = sequence->n_named = match.n_pages;
    promise(kv, sequence, fresh);

    int32_t wanted = max_hits < prompt->n_pages ? max_hits : prompt->n_pages;
    kv->stats.admissions++;
    kv->stats.hit_pages += (uint64_t)match.n_pages;
    if (wanted > match.n_pages) kv->stats.miss_pages += (uint64_t)(wanted - match.n_pages);
    return true;
}

void di_kv_mark_replay(di_kv_sequence *sequence) {
    assert(sequence->n_pages == sequence->n_named);
    if (sequence->n_named == 0) return;
    int64_t position = (int64_t)sequence->n_named * DI_PAGE_TOKENS;
    sequence->tail = di_kv_name_replay(&sequence->tail, position);
}

/* ---- Growing ---- */

bool di_kv_reserve(di_kv *kv, di_kv_sequence *sequence, int32_t n_more) {
    assert(n_more >= 0);
    if (n_more > sequence->max_pages - sequence->n_pages - sequence->n_reserved) return false;
    if (n_more > di_kv_spare(kv)) return false;
    promise(kv, sequence, n_more);
    return true;
}

bool di_kv_extend(di_kv *kv, di_kv_sequence *sequence, int64_t n_tokens) {
    int64_t wanted = pages_for(n_tokens);
    if (wanted <= sequence->n_pages) return true;
    if (wanted > sequence->max_pages) return false;
    int32_t n = (int32_t)wanted - sequence->n_pages;
    int32_t promised = n < sequence->n_reserved ? n : sequence->n_reserved;
    if (n - promised > di_kv_spare(kv)) return false;
    promise(kv, sequence, -promised);
    while (sequence->n_pages < wanted) sequence->pages[sequence->n_pages++] = kv__page_take(kv);
    return true;
}

di_kv_settled di_kv_settle(di_kv *kv, di_kv_sequence *sequence, const int32_t *ids,
                           const uint64_t *content, int64_t n_settled) {
    int32_t i = sequence->n_named;
    int64_t first = (int64_t)i * DI_PAGE_TOKENS;
    if (i >= sequence->n_pages || first + DI_PAGE_TOKENS > n_settled) return DI_KV_NOTHING;
    int32_t own = sequence->pages[i], parent = i ? sequence->pages[i - 1] : -1;
    sequence->n_named++;
    if (!kv->prefix_cache) { /* shared by forks, found by nobody: the name is not needed */
        kv__page_name(kv, own, parent, &sequence->tail);
        return DI_KV_NAMED;
    }
    sequence->tail =
        di_kv_name_page(&sequence->tail, ids + first, content ? content + first : NULL);
    int32_t other = kv__table_find(&kv->index, &sequence->tail);
    if (other < 0) {
        kv__page_name(kv, own, parent, &sequence->tail);
        return DI_KV_NAMED;
    }
    kv__page_release(kv, own); /* first, so that no promise is uncovered in between */
    kv__page_acquire(kv, other);
    sequence->pages[i] = other;
    kv->stats.adopted++;
    return DI_KV_ADOPTED;
}

/* ---- Sharing and giving back ---- */

bool di_kv_fork(di_kv *kv, const di_kv_sequence *from, di_kv_sequence *to, int64_t n_tokens,
                int32_t n_total) {
    assert(to->n_pages == 0 && to->n_reserved == 0);
    int64_t held = pages_for(n_tokens);
    assert(held >= from->n_named && held <= from->n_pages);
    if (held > to->max_pages || n_total > to->max_pages || n_total > kv->stats.n_pages) {
        return false;
    }
    int32_t copies = (int32_t)held - from->n_named;
    int32_t later = n_total > held ? n_total - (int32_t)held : 0;
    if (copies + later > di_kv_spare(kv)) return false;
    for (int32_t i = 0; i < from->n_named; i++) {
        to->pages[i] = from->pages[i];
        kv__page_acquire(kv, to->pages[i]);
    }
    to->n_pages = to->n_named = from->n_named;
    to->tail = from->tail;
    while (to->n_pages < held) to->pages[to->n_pages++] = kv__page_take(kv);
    promise(kv, to, later);
    return true;
}

void di_kv_release(di_kv *kv, di_kv_sequence *sequence) {
    /* From the last page: a cached page must be older than its parent (kv_pool.c). */
    for (int32_t i = sequence->n_pages; i-- > 0;) kv__page_release(kv, sequence->pages[i]);
    promise(kv, sequence, -sequence->n_reserved);
    sequence->n_pages = sequence->n_named = 0;
}
