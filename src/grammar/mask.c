#include "grammar/mask.h"

#include <stdlib.h>
#include <string.h>

enum {
    MASK_DENSE = -1,
    MASK_DEEPER = -2,
    MASK_SPARSE_IDS = 1024, /* at most so many ids are kept as a list */
    SMALL_SUBTREE = 4,      /* nodes that are walked as soon as asked about */
    NO_ENTRY = -1
};

bool mask__init(mask_cache *c, const di_vocabulary *v) {
    memset(c, 0, sizeof *c);
    c->v = v;
    if (!v) return true;
    size_t depths = (size_t)v->longest + 1;
    c->table_mask = 255;
    c->table = malloc(256 * sizeof *c->table);
    c->first = malloc(depths * sizeof *c->first);
    c->count = malloc(depths * sizeof *c->count);
    c->frames = malloc(depths * sizeof *c->frames);
    c->words = malloc((v->n_words + 1) * sizeof *c->words);
    if (c->table) memset(c->table, 0xff, 256 * sizeof *c->table);
    return c->table && c->first && c->count && c->frames && c->words;
}

static void forget(mask_cache *c) {
    for (int32_t i = 0; i < c->n; i++) free(c->entries[i].data);
    c->n = 0;
    c->bytes = 0;
    if (c->table) memset(c->table, 0xff, ((size_t)c->table_mask + 1) * sizeof *c->table);
}

void mask__deinit(mask_cache *c) {
    forget(c);
    free(c->entries);
    free(c->table);
    free(c->path.items);
    free(c->first);
    free(c->count);
    free(c->frames);
    free(c->words);
    memset(c, 0, sizeof *c);
}

size_t mask__memory(const mask_cache *c) {
    return c->bytes + ((size_t)c->table_mask + 1) * sizeof *c->table +
           (size_t)c->capacity * sizeof *c->entries;
}

/* ---- The cache ---- */

static uint32_t hash_key(int32_t above, const int32_t key[4]) {
    uint64_t h = (uint32_t)above + UINT64_C(0x9e3779b97f4a7c15);
    for (int k = 0; k < 4; k++) {
        h = (h ^ (uint32_t)key[k]) * 0xff51afd7ed558ccd;
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

static int32_t find(const mask_cache *c, int32_t above, const int32_t key[4]) {
    for (uint32_t slot = hash_key(above, key) & c->table_mask; c->table[slot] >= 0;
         slot = (slot + 1) & c->table_mask) {
        const mask_entry *e = &c->entries[c->table[slot]];
        if (e->above == above && memcmp(e->key, key, sizeof e->key) == 0) return c->table[slot];
    }
    return NO_ENTRY;
}

static void table_put(mask_cache *c, int32_t index) {
    const mask_entry *e = &c->entries[index];
    uint32_t slot = hash_key(e->above, e->key) & c->table_mask;
    while (c->table[slot] >= 0) slot = (slot + 1) & c->table_mask;
    c->table[slot] = index;
}

/* NO_ENTRY when out of memory: then the mask is simply not remembered. */
static int32_t add(mask_cache *c, int32_t above, const int32_t key[4], int32_t n, uint32_t *data) {
    if (c->n == c->capacity) {
        int32_t wanted = c->capacity ? c->capacity * 2 : 64;
        mask_entry *larger = realloc(c->entries, (size_t)wanted * sizeof *larger);
        if (!larger) return NO_ENTRY;
        c->entries = larger;
        c->capacity = wanted;
    }
    if ((uint32_t)c->n * 2 > c->table_mask) {
        uint32_t mask = c->table_mask * 2 + 1;
        int32_t *larger = realloc(c->table, ((size_t)mask + 1) * sizeof *larger);
        if (!larger) return NO_ENTRY;
        c->table = larger;
        c->table_mask = mask;
        memset(c->table, 0xff, ((size_t)mask + 1) * sizeof *c->table);
        for (int32_t i = 0; i < c->n; i++) table_put(c, i);
    }
    mask_entry *e = &c->entries[c->n];
    *e = (mask_entry){.above = above, .n = n, .data = data};
    memcpy(e->key, key, sizeof e->key);
    table_put(c, c->n);
    return c->n++;
}

static void state_key(reading at, int32_t key[4]) {
    key[0] = at.state;
    key[1] = key[2] = key[3] = -1;
}

/* A token repeats a rule at most once a byte: counts further than that from both bounds are alike. */
static void frame_key(const mask_cache *c, const reader *r, int32_t stack, int32_t key[4]) {
    if (stack == STACK_EMPTY) {
        key[0] = key[1] = key[2] = key[3] = -2;
        return;
    }
    const frame *f = &r->frames[stack];
    key[0] = f->ret;
    key[1] = f->loop;
    key[2] = key[3] = -1;
    if (f->loop < 0) return;
    const program_loop *loop = &r->s->p->loops[f->loop];
    int32_t far = c->v->longest + 2, left = loop->max - f->count, owed = loop->min - f->count;
    key[2] = left < far ? left : far;
    key[3] = owed < 0 ? 0 : owed < far ? owed : far;
}

/* The entry with the mask, or NO_ENTRY. */
static int32_t lookup(const mask_cache *c, const reader *r, reading at) {
    int32_t key[4], stack = at.stack;
    state_key(at, key);
    int32_t e = find(c, NO_ENTRY, key);
    while (e != NO_ENTRY && c->entries[e].n == MASK_DEEPER) {
        frame_key(c, r, stack, key);
        stack = stack == STACK_EMPTY ? STACK_EMPTY : r->frames[stack].parent;
        e = find(c, e, key);
    }
    return e;
}

/* The mask in c->words, as an entry's data. */
static uint32_t *pack(const mask_cache *c, int32_t *n, size_t *size) {
    size_t n_words = c->v->n_words;
    int32_t count = 0;
    for (size_t i = 0; i < n_words && count <= MASK_SPARSE_IDS; i++) {
        if (c->words[i]) count += __builtin_popcount(c->words[i]);
    }
    *n = count <= MASK_SPARSE_IDS ? count : MASK_DENSE;
    *size = (*n == MASK_DENSE ? n_words : (size_t)count + 1) * sizeof(uint32_t);
    uint32_t *data = malloc(*size);
    if (!data) return NULL;
    if (*n == MASK_DENSE) {
        memcpy(data, c->words, *size);
        return data;
    }
    count = 0;
    for (size_t i = 0; i < n_words; i++) {
        for (uint32_t bits = c->words[i]; bits; bits &= bits - 1) {
            data[count++] = (uint32_t)(i * 32) + (uint32_t)__builtin_ctz(bits);
        }
    }
    return data;
}

static void remember(mask_cache *c, const reader *r, reading at) {
    if (c->bytes > MASK_CACHE_BYTES) forget(c);
    int32_t n, key[4], stack = at.stack, above = NO_ENTRY;
    int32_t depth = stack == STACK_EMPTY ? 0 : r->frames[stack].depth;
    size_t size;
    uint32_t *data = pack(c, &n, &size);
    if (!data) return;
    state_key(at, key);
    /* One level for the state, one for each frame that was looked at, from the top down. */
    for (; depth >= r->touched; depth--) {
        int32_t next = find(c, above, key);
        if (next == NO_ENTRY) next = add(c, above, key, MASK_DEEPER, NULL);
        if (next == NO_ENTRY) break;
        above = next;
        frame_key(c, r, stack, key);
        stack = stack == STACK_EMPTY ? STACK_EMPTY : r->frames[stack].parent;
    }
    if (depth >= r->touched || add(c, above, key, n, data) == NO_ENTRY) {
        free(data);
    } else {
        c->bytes += size + sizeof(mask_entry);
    }
}

static void apply(const mask_cache *c, const mask_entry *e, uint32_t *words) {
    if (e->n == MASK_DENSE) {
        mask__or(words, e->data, c->v->n_words);
    } else {
        for (int32_t i = 0; i < e->n; i++) words[e->data[i] / 32] |= 1u << (e->data[i] % 32);
    }
}

/* ---- Walking a trie ---- */

static void allow(const mask_cache *c, int32_t token, uint32_t *words) {
    if (!c->v->has_twins) { /* the chains are another array, and rare */
        words[token / 32] |= UINT32_C(1) << (token % 32);
        return;
    }
    for (; token >= 0; token = c->v->twin[token]) words[token / 32] |= UINT32_C(1) << (token % 32);
}

/* Nothing but a step within the reading's own rule can take the byte: so no stack moves, and the one
 * reading stays one. What else it could be is remembered as long as the stack is the same. */
static bool is_plain(mask_cache *c, reader *r, reading at, int byte) {
    if (r->s->list[at.state].plain) return true;
    struct other_ways *o = &c->others[((uint32_t)at.state * 31 + (uint32_t)at.stack) % MASK_OTHERS];
    if (o->epoch != c->epoch || o->at.state != at.state || o->at.stack != at.stack) {
        *o = (struct other_ways){.at = at, .epoch = c->epoch};
        readings__other_symbols(r, at, o->symbols);
    }
    return !(o->symbols[byte >> 6] >> (byte & 63) & 1);
}

/* Readings behind the byte of `node`, from those behind the byte before it; false when none. */
static bool advance(mask_cache *c, reader *r, const trie_node *node) {
    int32_t d = node->depth, in = c->first[d - 1], n = c->count[d - 1], at = in + n;
    if (n == 1 && is_plain(c, r, c->path.items[in], node->byte)) {
        int32_t to = states__next(r->s, c->path.items[in].state, node->byte);
        if (r->s->status != DI_OK) r->status = r->s->status;
        if (to <= STATE_DEAD) return false;
        reading item = {to, c->path.items[in].stack};
        c->path.n = at;
        if (!readings__push(&c->path, item)) r->status = DI_ERR_MEMORY;
        c->frames[d] = c->frames[d - 1];
    } else {
        if (r->n_frames > c->frames[d - 1]) c->epoch++;
        r->n_frames = c->frames[d - 1];
        c->path.n = at;
        for (int32_t i = 0; i < n; i++) {
            readings__step(r, c->path.items[in + i], node->byte, &c->path, at);
        }
        c->frames[d] = r->n_frames;
    }
    c->first[d] = at;
    c->count[d] = c->path.n - at;
    return c->count[d] > 0;
}

/* All that is below the node is of a kind of which any number of characters may come. */
static bool takes_below(const mask_cache *c, reader *r, const trie_node *node) {
    if (!node->kinds) return false;
    const reading *at = &c->path.items[c->first[node->depth]];
    for (int32_t i = 0; i < c->count[node->depth]; i++) {
        if (node->kinds & mask__kinds(c, r, at[i].state)) return true;
    }
    return false;
}

static void walk(mask_cache *c, reader *r, const trie *t, reading at, uint32_t *words) {
    c->path.n = 0;
    if (!readings__push(&c->path, at)) r->status = DI_ERR_MEMORY;
    c->first[0] = 0;
    c->count[0] = 1;
    c->frames[0] = r->n_frames;
    c->epoch++;
    for (int32_t i = 0; i < t->n && r->status == DI_OK;) {
        const trie_node *node = &t->nodes[i];
        if (!advance(c, r, node)) {
            i = node->end;
            continue;
        }
        int32_t end = node->end - i > SMALL_SUBTREE && takes_below(c, r, node) ? node->end : i + 1;
        for (int32_t k = node->first; k < t->nodes[end].first; k++) allow(c, t->tokens[k], words);
        i = end;
    }
}

static void add_markers(mask_cache *c, reader *r, reading at, const int32_t *marker_ids) {
    for (int32_t k = 0; k < r->s->p->n_markers; k++) {
        c->path.n = 0;
        readings__step(r, at, 256 + k, &c->path, 0);
        if (c->path.n > 0) c->words[marker_ids[k] / 32] |= 1u << (marker_ids[k] % 32);
    }
}

void mask__add(mask_cache *c, reader *r, reading at, const int32_t *marker_ids, uint32_t *words) {
    int32_t known = lookup(c, r, at);
    if (known != NO_ENTRY) {
        c->n_hits++;
        apply(c, &c->entries[known], words);
        return;
    }
    c->n_misses++;
    int32_t n_frames = r->n_frames;
    r->base = n_frames;
    r->touched = INT32_MAX;
    memset(c->words, 0, c->v->n_words * sizeof *c->words);
    const trie *left = mask__slices(c, r, at, c->words);
    r->n_frames = n_frames;
    walk(c, r, left, at, c->words);
    r->n_frames = n_frames;
    add_markers(c, r, at, marker_ids);
    r->n_frames = n_frames;
    r->base = 0;
    if (r->status != DI_OK) return;
    mask__or(words, c->words, c->v->n_words);
    remember(c, r, at);
}
