/* The invariants of README.md, one function each. Slow and thorough; for tests and debug builds. */
#include <stdlib.h>

#include "kv/kv_internal.h"

typedef struct checker {
    const di_kv *kv;
    const di_kv_sequence *const *sequences;
    int32_t n;
    int32_t *refs; /* [n_pages] as the sequences have it */
    int32_t
        *rank; /* [n_pages] place in the list of cached pages or in the free stack, -1: neither */
    di_error *error;
} checker;

#define BROKEN(c, ...) di_fail((c)->error, DI_ERR_INVALID, "kv: " __VA_ARGS__)

static di_status check_counts(const checker *c) {
    const di_kv_stats *s = &c->kv->stats;
    int32_t by_state[4] = {0}, promised = 0;
    for (int32_t i = 0; i < s->n_pages; i++) by_state[c->kv->pages[i].state]++;
    for (int32_t i = 0; i < c->n; i++) promised += c->sequences[i]->n_reserved;
    if (by_state[KV__FREE] != s->n_free || by_state[KV__PRIVATE] != s->n_private ||
        by_state[KV__NAMED] != s->n_named || by_state[KV__CACHED] != s->n_cached) {
        return BROKEN(c,
                      "%d free, %d private, %d named, %d cached pages are counted as %d %d %d %d",
                      by_state[KV__FREE], by_state[KV__PRIVATE], by_state[KV__NAMED],
                      by_state[KV__CACHED], s->n_free, s->n_private, s->n_named, s->n_cached);
    }
    if (promised != s->n_reserved || promised > s->n_free + s->n_cached) {
        return BROKEN(c, "%d pages promised to sequences, %d in the account, %d to be had",
                      promised, s->n_reserved, s->n_free + s->n_cached);
    }
    return DI_OK;
}

/* Each sequence: what it holds is in the right state, and follows its parent. */
static di_status check_sequence(const checker *c, int32_t which) {
    const di_kv_sequence *q = c->sequences[which];
    if (q->n_named < 0 || q->n_named > q->n_pages || q->n_pages > q->max_pages ||
        q->n_reserved < 0) {
        return BROKEN(c, "sequence %d: %d named of %d pages of at most %d, %d promised", which,
                      q->n_named, q->n_pages, q->max_pages, q->n_reserved);
    }
    for (int32_t i = 0; i < q->n_pages; i++) {
        int32_t page = q->pages[i];
        const kv__page *p = &c->kv->pages[page];
        kv__state want = i < q->n_named ? KV__NAMED : KV__PRIVATE;
        if (p->state != want) {
            return BROKEN(c, "sequence %d: its page %d (number %d) is in state %d, not %d", which,
                          i, page, (int)p->state, (int)want);
        }
        if (i < q->n_named && p->parent != (i ? q->pages[i - 1] : -1)) {
            return BROKEN(c, "sequence %d: its page %d does not follow the one before", which, i);
        }
        c->refs[page]++;
    }
    return DI_OK;
}

static di_status check_references(const checker *c) {
    for (int32_t i = 0; i < c->n; i++) DI_TRY(check_sequence(c, i));
    for (int32_t i = 0; i < c->kv->stats.n_pages; i++) {
        const kv__page *p = &c->kv->pages[i];
        bool wrong = p->refs != c->refs[i] || (p->state == KV__PRIVATE && p->refs != 1);
        if (wrong) {
            return BROKEN(c, "page %d in state %d has %d references, %d sequences hold it", i,
                          (int)p->state, p->refs, c->refs[i]);
        }
    }
    return DI_OK;
}

/* The free stack and the list of cached pages hold each page of their state once. */
static di_status check_lists(const checker *c) {
    const di_kv *kv = c->kv;
    int32_t n = kv->stats.n_pages, n_cached = 0;
    for (int32_t i = 0; i < kv->stats.n_free; i++) {
        int32_t page = kv->free[i];
        if (kv->pages[page].state != KV__FREE || c->rank[page] >= 0) {
            return BROKEN(c, "page %d is in the free stack, not free or twice", page);
        }
        c->rank[page] = i;
    }
    for (int32_t page = kv__lru_oldest(kv->links, n); page != n; page = kv->links[page].newer) {
        bool wrong = kv->pages[page].state != KV__CACHED || c->rank[page] >= 0 ||
                     kv->links[kv->links[page].older].newer != page;
        if (wrong) return BROKEN(c, "page %d is in the list, not cached or twice", page);
        c->rank[page] = n_cached++;
    }
    if (n_cached == kv->stats.n_cached) return DI_OK;
    return BROKEN(c, "%d cached pages in the list of %d", n_cached, kv->stats.n_cached);
}

/* The index holds the named and the cached, and a child leaves before its parent. */
static di_status check_index(const checker *c) {
    const di_kv *kv = c->kv;
    int32_t entries = 0, want = 0;
    for (uint32_t i = 0; i <= kv->index.mask; i++) entries += kv->index.slots[i] >= 0;
    for (int32_t i = 0; i < kv->stats.n_pages; i++) {
        const kv__page *p = &kv->pages[i];
        if (p->state != KV__NAMED && p->state != KV__CACHED) continue;
        if (kv->prefix_cache) want++;
        if (kv->prefix_cache && kv__table_find(&kv->index, &kv->names[i]) != i) {
            return BROKEN(c, "page %d is not found by its name", i);
        }
        if (p->parent < 0) continue;
        kv__state parent = kv->pages[p->parent].state;
        bool stays = parent == KV__NAMED || (parent == KV__CACHED && p->state == KV__CACHED &&
                                             c->rank[p->parent] > c->rank[i]);
        if (!stays) return BROKEN(c, "page %d may outlive its parent %d", i, p->parent);
    }
    if (entries == want) return DI_OK;
    return BROKEN(c, "%d entries in the index for %d pages", entries, want);
}

di_status di_kv_check(const di_kv *kv, const di_kv_sequence *const *sequences, int32_t n,
                      di_error *error) {
    size_t n_pages = (size_t)kv->stats.n_pages;
    checker c = {kv, sequences, n, calloc(n_pages, 4), malloc(n_pages * 4), error};
    di_status status = DI_OK;
    if (!c.refs || !c.rank) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory: check of a page pool");
        goto done;
    }
    for (size_t i = 0; i < n_pages; i++) c.rank[i] = -1;
    DI_TRY_DONE(check_counts(&c));
    DI_TRY_DONE(check_references(&c));
    DI_TRY_DONE(check_lists(&c));
    status = check_index(&c);
done:
    free(c.refs);
    free(c.rank);
    return status;
}
