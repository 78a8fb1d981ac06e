/* The pool: pages, their states, references and counts. Every function here is O(1) but create and
 * forget.
 *
 * Eviction takes the oldest cached page and nothing else is asked, because the oldest never has a
 * descendant in the index: whoever holds a page holds all pages before it, and gives them back from
 * the last to the first (di_kv_release), so a cached page is older in the list than its parent.
 */
#include <stdlib.h>

#include "kv/kv_internal.h"

enum { MAX_PAGES = 1 << 28 };

di_status di_kv_create(int32_t n_pages, bool prefix_cache, di_kv **out, di_error *error) {
    *out = NULL;
    if (n_pages < 1 || n_pages > MAX_PAGES) {
        return di_fail(error, DI_ERR_USAGE, "a pool of %d pages: it takes 1 to %d", (int)n_pages,
                       (int)MAX_PAGES);
    }
    di_kv *kv = calloc(1, sizeof *kv);
    if (!kv) return di_fail(error, DI_ERR_MEMORY, "out of memory: page pool");
    size_t n = (size_t)n_pages;
    kv->prefix_cache = prefix_cache;
    kv->pages = calloc(n, sizeof *kv->pages);
    kv->names = calloc(n, sizeof *kv->names);
    kv->free = malloc(n * sizeof *kv->free);
    kv->links = malloc((n + 1) * sizeof *kv->links);
    if (!kv->pages || !kv->names || !kv->free || !kv->links ||
        !kv__table_init(&kv->index, kv->names, n_pages)) {
        di_kv_destroy(kv);
        return di_fail(error, DI_ERR_MEMORY, "out of memory: the account of %d pages",
                       (int)n_pages);
    }
    kv__lru_init(kv->links, n_pages);
    for (int32_t i = 0; i < n_pages; i++) kv->free[i] = n_pages - 1 - i; /* page 0 goes first */
    kv->stats.n_pages = kv->stats.n_free = n_pages;
    *out = kv;
    return DI_OK;
}

void di_kv_destroy(di_kv *kv) {
    if (!kv) return;
    kv__table_deinit(&kv->index);
    free(kv->links);
    free(kv->free);
    free(kv->names);
    free(kv->pages);
    free(kv);
}

di_kv_stats di_kv_get_stats(const di_kv *kv) { return kv->stats; }

int32_t di_kv_spare(const di_kv *kv) {
    return kv->stats.n_free + kv->stats.n_cached - kv->stats.n_reserved;
}

static int32_t *count_of(di_kv *kv, kv__state state) {
    switch (state) {
    case KV__PRIVATE: return &kv->stats.n_private;
    case KV__NAMED: return &kv->stats.n_named;
    case KV__CACHED: return &kv->stats.n_cached;
    case KV__FREE: break;
    }
    return &kv->stats.n_free;
}

/* Leaves the list of the old state and enters that of the new one. */
static void set_state(di_kv *kv, int32_t page, kv__state state) {
    kv__page *p = &kv->pages[page];
    --*count_of(kv, p->state);
    if (p->state == KV__CACHED) kv__lru_remove(kv->links, page);
    if (state == KV__FREE) kv->free[kv->stats.n_free] = page;
    if (state == KV__CACHED) kv__lru_add_newest(kv->links, kv->stats.n_pages, page);
    ++*count_of(kv, state);
    p->state = state;
}

static void forget_oldest(di_kv *kv) {
    int32_t page = kv__lru_oldest(kv->links, kv->stats.n_pages);
    kv__table_remove(&kv->index, page);
    set_state(kv, page, KV__FREE);
}

int32_t kv__page_take(di_kv *kv) {
    if (kv->stats.n_free == 0) {
        assert(kv->stats.n_cached > 0);
        forget_oldest(kv);
        kv->stats.evicted++;
    }
    int32_t page = kv->free[kv->stats.n_free - 1];
    set_state(kv, page, KV__PRIVATE);
    kv->pages[page].refs = 1;
    return page;
}

void kv__page_acquire(di_kv *kv, int32_t page) {
    kv__page *p = &kv->pages[page];
    assert(p->state == KV__NAMED || p->state == KV__CACHED);
    if (p->state == KV__CACHED) set_state(kv, page, KV__NAMED);
    p->refs++;
}

void kv__page_release(di_kv *kv, int32_t page) {
    kv__page *p = &kv->pages[page];
    assert(p->refs > 0);
    if (--p->refs > 0) return;
    set_state(kv, page, p->state == KV__NAMED && kv->prefix_cache ? KV__CACHED : KV__FREE);
}

void kv__page_name(di_kv *kv, int32_t page, int32_t parent, const di_kv_name *name) {
    assert(kv->pages[page].state == KV__PRIVATE);
    kv->names[page] = *name;
    kv->pages[page].parent = parent;
    set_state(kv, page, KV__NAMED);
    if (!kv->prefix_cache) return;
    kv__table_insert(&kv->index, page);
    kv->stats.named++;
}

void di_kv_forget(di_kv *kv) {
    while (kv->stats.n_cached > 0) forget_oldest(kv);
}
