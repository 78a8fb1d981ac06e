/* What the files of kv share: the index by name, the list by last use, the pool. */
#ifndef DI_KV_KV_INTERNAL_H
#define DI_KV_KV_INTERNAL_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "kv/kv.h"

/* ---- Index: name -> entry number. Open addressing, at most half full (kv_table.c). ---- */

typedef struct kv__table {
    int32_t *slots;          /* [mask + 1]: entry, or -1 */
    uint32_t mask;           /* a power of two minus 1 */
    const di_kv_name *names; /* of the entries; the owner's */
} kv__table;

/* Bytes that init takes for n entries. */
uint64_t kv__table_bytes(int32_t n);
/* For entries 0..n-1 (n <= 2^28), none of them in it. False when out of memory. */
bool kv__table_init(kv__table *table, const di_kv_name *names, int32_t n);
void kv__table_deinit(kv__table *table);
int32_t kv__table_find(const kv__table *table, const di_kv_name *name); /* -1: not there */
/* names[entry] must not be there. */
void kv__table_insert(kv__table *table, int32_t entry);
/* Must be there. */
void kv__table_remove(kv__table *table, int32_t entry);

/* ---- Entries by last use: a ring through entry n, the head. Links are [n + 1]. ---- */

typedef struct kv__link {
    int32_t older, newer;
} kv__link;

static inline void kv__lru_init(kv__link *links, int32_t n) { links[n] = (kv__link){n, n}; }

static inline void kv__lru_remove(kv__link *links, int32_t i) {
    links[links[i].older].newer = links[i].newer;
    links[links[i].newer].older = links[i].older;
}

static inline void kv__lru_add_newest(kv__link *links, int32_t n, int32_t i) {
    links[i] = (kv__link){.older = links[n].older, .newer = n};
    links[links[n].older].newer = i;
    links[n].older = i;
}

/* n when the list is empty. */
static inline int32_t kv__lru_oldest(const kv__link *links, int32_t n) { return links[n].newer; }

/* ---- The pool (kv_pool.c) ---- */

typedef enum kv__state { KV__FREE, KV__PRIVATE, KV__NAMED, KV__CACHED } kv__state;

typedef struct kv__page {
    int32_t refs;   /* sequences that hold it; 1 when private */
    int32_t parent; /* page before it in the chain, -1: none. Of named and cached pages */
    kv__state state;
} kv__page;

struct di_kv {
    bool prefix_cache;
    kv__page *pages;   /* [n_pages] */
    di_kv_name *names; /* [n_pages], of named and cached pages */
    int32_t *free;     /* [n_pages], the first n_free: a stack */
    kv__link *links;   /* [n_pages + 1], cached pages by last use */
    kv__table index;   /* named and cached pages */
    di_kv_stats stats;
};

/* A free page, else the oldest cached one; now private. There must be one. */
int32_t kv__page_take(di_kv *kv);
/* One reference more to a named or cached page. */
void kv__page_acquire(di_kv *kv, int32_t page);
/* One less; private pages are free then, named ones without references cached. */
void kv__page_release(di_kv *kv, int32_t page);
/* A private page becomes named, after `parent`, and enters the index. */
void kv__page_name(di_kv *kv, int32_t page, int32_t parent, const di_kv_name *name);

#endif
