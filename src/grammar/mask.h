/* Which tokens may follow a reading, remembered.
 *
 * A mask depends on the state, and on as much of the stack as tokens can close: the cache is a tree,
 * by state, then by frame after frame from the top, exactly as deep as the computation looked. Counts
 * of repetitions enter it as far as a token can tell them apart. The grammar's lock is held.
 */
#ifndef DI_GRAMMAR_MASK_H
#define DI_GRAMMAR_MASK_H

#include "grammar/readings.h"
#include "grammar/vocabulary_internal.h"

enum {
    MASK_CACHE_BYTES = 48 << 20, /* about 3,000 full masks; it begins anew when it is full */
    MASK_OTHERS = 64
};

typedef struct mask_entry {
    int32_t above; /* the entry one level up, or -1 */
    int32_t key[4];
    int32_t n;      /* MASK_DEEPER, MASK_DENSE, or the number of ids */
    uint32_t *data; /* words, or ids */
} mask_entry;

typedef struct mask_cache {
    const di_vocabulary *v; /* or NULL */
    mask_entry *entries;
    int32_t n, capacity;
    int32_t *table; /* open addressing: entries, -1 free */
    uint32_t table_mask;
    size_t bytes;
    /* Work of one walk: the readings after each byte of the path, one list after another. */
    reading_list path;
    int32_t *first, *count, *frames; /* [longest + 1]: of each depth */
    uint32_t *words;                 /* [n_words] */
    struct other_ways {              /* of readings met on this walk */
        reading at;
        uint64_t epoch; /* frames above the base are known by this number too */
        uint64_t symbols[5];
    } others[MASK_OTHERS];
    uint64_t epoch; /* counts walks, and places where frames were cut back */
    uint64_t n_hits, n_misses;
} mask_cache;

/* All of it is often what a mask costs. */
static inline void mask__or(uint32_t *restrict to, const uint32_t *restrict from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] |= from[i];
}

bool mask__init(mask_cache *c, const di_vocabulary *v); /* false: no memory */
void mask__deinit(mask_cache *c);
size_t mask__memory(const mask_cache *c);

/* Ors into words the tokens that may follow `at`, but for end tokens. marker_ids: [n_markers]. The
 * reader's frames are as before, its status says what failed. */
void mask__add(mask_cache *c, reader *r, reading at, const int32_t *marker_ids, uint32_t *words);

/* mask_slice.c: the slices of which any number of characters may come from the state on, a bit each. */
uint8_t mask__kinds(const mask_cache *c, reader *r, int32_t state);
/* Allows what slices tell at once and returns the trie of the tokens that are left to
 * be looked at. */
const trie *mask__slices(mask_cache *c, reader *r, reading at, uint32_t *words);

#endif
