#include "grammar/chars.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* ---- A compilation ---- */

void compiler__init(compiler *c, di_error *error) {
    memset(c, 0, sizeof *c);
    program__init(&c->p);
    c->steps_left = COMPILE_STEPS;
    c->error = error;
}

void compiler__deinit(compiler *c) {
    di_arena_free(&c->arena);
    program__deinit(&c->p);
}

void *compiler__alloc(compiler *c, size_t count, size_t size) {
    /* 16 bytes are a step, so the budget bounds memory too: half a gigabyte. */
    if (c->status != DI_OK || !compiler__spend(c, (int64_t)(count * size / 16 + 1))) return NULL;
    void *memory = di_arena_calloc(&c->arena, count, size);
    if (!memory) compiler__fail(c, DI_ERR_MEMORY, "out of memory while compiling a grammar");
    return memory;
}

bool compiler__spend(compiler *c, int64_t steps) {
    if (c->status != DI_OK) return false;
    c->steps_left -= steps;
    if (c->steps_left >= 0) return true;
    compiler__fail(c, DI_ERR_LIMIT,
                   "the grammar is too complicated: compiling it takes more than %d steps",
                   COMPILE_STEPS);
    return false;
}

/* Room for one more of n elements in an arena: a copy of twice the size when full. */
static void *grow(compiler *c, void *array, int32_t n, int32_t *capacity, size_t size) {
    if (n < *capacity) return array;
    int32_t wanted = *capacity ? *capacity * 2 : 4;
    void *larger = compiler__alloc(c, (size_t)wanted, size);
    if (!larger) return NULL;
    if (n) memcpy(larger, array, (size_t)n * size);
    *capacity = wanted;
    return larger;
}

/* ---- Sets ---- */

void chars__add(compiler *c, char_set *set, uint32_t lo, uint32_t hi) {
    char_range *ranges = grow(c, set->ranges, set->n, &set->capacity, sizeof *ranges);
    if (!ranges) return;
    set->ranges = ranges;
    ranges[set->n++] = (char_range){lo, hi};
}

static int by_lo(const void *a, const void *b) {
    const char_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

void chars__normalize(char_set *set) {
    if (set->n == 0) return;
    qsort(set->ranges, (size_t)set->n, sizeof *set->ranges, by_lo);
    int32_t n = 1;
    for (int32_t i = 1; i < set->n; i++) {
        char_range *last = &set->ranges[n - 1], r = set->ranges[i];
        if (r.lo <= last->hi + 1) {
            if (r.hi > last->hi) last->hi = r.hi;
        } else {
            set->ranges[n++] = r;
        }
    }
    set->n = n;
}

char_set chars__complement(compiler *c, const char_set *set) {
    char_set all = *set, result = {0};
    uint32_t from = 0;
    for (int32_t i = 0; i < all.n; i++) {
        if (all.ranges[i].lo > from) chars__add(c, &result, from, all.ranges[i].lo - 1);
        from = all.ranges[i].hi + 1;
    }
    if (from <= CHARS_LAST) chars__add(c, &result, from, CHARS_LAST);
    return result;
}

/* ---- Building automata ---- */

int32_t chars__add_state(compiler *c, char_dfa *a, bool accepting) {
    if (a->n >= CHARS_MAX_STATES) {
        compiler__fail(c, DI_ERR_LIMIT,
                       "a pattern or its combination with others needs more than %d states",
                       CHARS_MAX_STATES);
        return -1;
    }
    char_state *states = grow(c, a->states, a->n, &a->capacity, sizeof *states);
    if (!states) return -1;
    a->states = states;
    states[a->n] = (char_state){NULL, 0, accepting};
    return a->n++;
}

void chars__add_edge(compiler *c, char_dfa *a, int32_t from, uint32_t lo, uint32_t hi, int32_t to) {
    char_state *s = &a->states[from];
    if (s->n_edges > 0 && s->edges[s->n_edges - 1].to == to &&
        s->edges[s->n_edges - 1].hi + 1 == lo) {
        s->edges[s->n_edges - 1].hi = hi;
        return;
    }
    /* Capacity is the power of two at or above the count. */
    if ((s->n_edges & (s->n_edges - 1)) == 0) {
        int32_t wanted = s->n_edges ? s->n_edges * 2 : 1;
        char_edge *edges = compiler__alloc(c, (size_t)wanted, sizeof *edges);
        if (!edges) return;
        if (s->n_edges) memcpy(edges, s->edges, (size_t)s->n_edges * sizeof *edges);
        s->edges = edges;
    }
    s->edges[s->n_edges++] = (char_edge){lo, hi, to};
}

/* Marks the states from which an end is reached: backwards from the accepting ones, over edges sorted
 * by where they lead. */
static bool *find_live(compiler *c, const char_dfa *a) {
    size_t n = (size_t)a->n, n_edges = 0;
    for (int32_t i = 0; i < a->n; i++) n_edges += (size_t)a->states[i].n_edges;
    bool *live = compiler__alloc(c, n + 1, sizeof *live);
    int32_t *from = compiler__alloc(c, n + 2, sizeof *from);
    int32_t *sources = compiler__alloc(c, n_edges + 1, sizeof *sources);
    int32_t *queue = compiler__alloc(c, n + 1, sizeof *queue);
    if (!live || !from || !sources || !queue || !compiler__spend(c, (int64_t)n_edges)) return NULL;
    for (int32_t i = 0; i < a->n; i++) {
        for (int32_t k = 0; k < a->states[i].n_edges; k++) from[a->states[i].edges[k].to + 1]++;
    }
    for (size_t i = 0; i < n; i++) from[i + 1] += from[i];
    for (int32_t i = a->n - 1; i >= 0; i--) {
        for (int32_t k = 0; k < a->states[i].n_edges; k++) {
            sources[--from[a->states[i].edges[k].to + 1]] = i;
        }
    }
    /* from[t + 1] is now where the sources of t begin; those of t + 1 begin where they end. */
    int32_t n_queue = 0;
    for (int32_t i = 0; i < a->n; i++) {
        if (!a->states[i].accepting) continue;
        live[i] = true;
        queue[n_queue++] = i;
    }
    for (int32_t at = 0; at < n_queue; at++) {
        int32_t t = queue[at];
        int32_t end = t + 1 < a->n ? from[t + 2] : (int32_t)n_edges;
        for (int32_t k = from[t + 1]; k < end; k++) {
            if (live[sources[k]]) continue;
            live[sources[k]] = true;
            queue[n_queue++] = sources[k];
        }
    }
    return live;
}

void chars__trim(compiler *c, char_dfa *a) {
    if (c->status != DI_OK || a->n == 0) return;
    bool *live = find_live(c, a);
    int32_t *moved = compiler__alloc(c, (size_t)a->n, sizeof *moved);
    if (!live || !moved) return;
    if (!live[0]) {
        a->n = 0;
        return;
    }
    int32_t n = 0;
    for (int32_t i = 0; i < a->n; i++) moved[i] = live[i] ? n++ : -1;
    for (int32_t i = 0; i < a->n; i++) {
        if (!live[i]) continue;
        char_state s = a->states[i];
        int32_t kept = 0;
        for (int32_t k = 0; k < s.n_edges; k++) {
            char_edge e = s.edges[k];
            if (moved[e.to] < 0) continue;
            s.edges[kept++] = (char_edge){e.lo, e.hi, moved[e.to]};
        }
        s.n_edges = kept;
        a->states[moved[i]] = s;
    }
    a->n = n;
}

static char_dfa *new_dfa(compiler *c) { return compiler__alloc(c, 1, sizeof(char_dfa)); }

char_dfa *chars__any_text(compiler *c) {
    char_dfa *a = new_dfa(c);
    if (!a || chars__add_state(c, a, true) < 0) return NULL;
    chars__add_edge(c, a, 0, 0, CHARS_LAST, 0);
    return c->status == DI_OK ? a : NULL;
}

/* ---- Literals: a trie, from sorted texts ---- */

static int by_text(const void *a, const void *b) {
    const char_text *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->size < y->size ? x->size : y->size);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

static void add_literal(compiler *c, char_dfa *a, char_text t) {
    int32_t at = 0;
    for (size_t i = 0; i < t.size && c->status == DI_OK;) {
        uint32_t code = 0;
        size_t length = di_utf8_decode(t.text + i, t.size - i, &code);
        if (length == 0) return; /* no caller passes what is not UTF-8 */
        i += length;
        const char_state *s = &a->states[at];
        if (s->n_edges > 0 && s->edges[s->n_edges - 1].lo == code) {
            at = s->edges[s->n_edges - 1].to;
            continue;
        }
        int32_t to = chars__add_state(c, a, false);
        if (to < 0) return;
        chars__add_edge(c, a, at, code, code, to);
        at = to;
    }
    a->states[at].accepting = true;
}

char_dfa *chars__literals(compiler *c, const char_text *texts, size_t n) {
    char_dfa *a = new_dfa(c);
    char_text *sorted = compiler__alloc(c, n + 1, sizeof *sorted);
    if (!a || !sorted || chars__add_state(c, a, false) < 0) return NULL;
    if (n) memcpy(sorted, texts, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_text);
    /* UTF-8 sorts as code points do, so a shared beginning is always the last edge. */
    for (size_t i = 0; i < n; i++) add_literal(c, a, sorted[i]);
    if (n == 0) a->n = 0;
    return c->status == DI_OK ? a : NULL;
}

/* ---- Products ---- */

/* Pairs of states (of a and b, or of a and a count) that are states of the result, found by hashing. */
typedef struct pairs {
    uint64_t *keys; /* by state of the result */
    int32_t *table;
    int32_t capacity, mask;
} pairs;

static int32_t find_pair(compiler *c, pairs *p, char_dfa *out, uint64_t key) {
    if (out->n * 2 >= p->mask) { /* also the first time */
        int32_t mask = p->mask ? p->mask * 2 + 1 : 255;
        int32_t *table = compiler__alloc(c, (size_t)mask + 1, sizeof *table);
        if (!table) return -1;
        memset(table, 0xff, ((size_t)mask + 1) * sizeof *table);
        for (int32_t i = 0; i < out->n; i++) {
            uint32_t slot = (uint32_t)(p->keys[i] * 0x9e3779b97f4a7c15 >> 32) & (uint32_t)mask;
            while (table[slot] >= 0) slot = (slot + 1) & (uint32_t)mask;
            table[slot] = i;
        }
        p->table = table;
        p->mask = mask;
    }
    uint32_t slot = (uint32_t)(key * 0x9e3779b97f4a7c15 >> 32) & (uint32_t)p->mask;
    for (; p->table[slot] >= 0; slot = (slot + 1) & (uint32_t)p->mask) {
        if (p->keys[p->table[slot]] == key) return p->table[slot];
    }
    uint64_t *keys = grow(c, p->keys, out->n, &p->capacity, sizeof *keys);
    int32_t made = keys ? chars__add_state(c, out, false) : -1;
    if (made < 0) return -1;
    p->keys = keys;
    keys[made] = key;
    return p->table[slot] = made;
}

static uint64_t pair_key(int32_t x, int32_t y) { return (uint64_t)(uint32_t)x << 32 | (uint32_t)y; }

/* The edges of the pair's state. y -1: b is lost, which only a difference goes on with. */
static void product_edges(compiler *c, pairs *p, char_dfa *out, int32_t at, const char_state *x,
                          const char_state *y, bool subtract) {
    int32_t j = 0;
    for (int32_t i = 0; i < x->n_edges && c->status == DI_OK; i++) {
        uint32_t lo = x->edges[i].lo, hi = x->edges[i].hi;
        while (lo <= hi) {
            while (y && j < y->n_edges && y->edges[j].hi < lo) j++;
            const char_edge *e = y && j < y->n_edges ? &y->edges[j] : NULL;
            bool inside = e && e->lo <= lo;
            uint32_t end = hi;
            if (inside && e->hi < end) end = e->hi;
            if (!inside && e && e->lo <= hi) end = e->lo - 1;
            if (inside || subtract) {
                int32_t to = find_pair(c, p, out, pair_key(x->edges[i].to, inside ? e->to : -1));
                if (to < 0) return;
                chars__add_edge(c, out, at, lo, end, to);
            }
            if (!compiler__spend(c, 1)) return;
            lo = end + 1;
        }
    }
}

static char_dfa *product(compiler *c, const char_dfa *a, const char_dfa *b, bool subtract) {
    char_dfa *out = new_dfa(c);
    pairs p = {0};
    if (!out || !a || !b) return NULL;
    if (a->n == 0 || (b->n == 0 && !subtract)) return out;
    find_pair(c, &p, out, pair_key(0, b->n ? 0 : -1));
    for (int32_t i = 0; i < out->n && c->status == DI_OK; i++) {
        const char_state *x = &a->states[p.keys[i] >> 32];
        int32_t second = (int32_t)(uint32_t)p.keys[i];
        const char_state *y = second < 0 ? NULL : &b->states[second];
        out->states[i].accepting = x->accepting && (subtract ? !(y && y->accepting) : y->accepting);
        product_edges(c, &p, out, i, x, y, subtract);
    }
    chars__trim(c, out);
    return c->status == DI_OK ? out : NULL;
}

char_dfa *chars__intersect(compiler *c, const char_dfa *a, const char_dfa *b) {
    return product(c, a, b, false);
}

char_dfa *chars__subtract(compiler *c, const char_dfa *a, const char_dfa *b) {
    return product(c, a, b, true);
}

char_dfa *chars__of_length(compiler *c, const char_dfa *a, int64_t min, int64_t max) {
    char_dfa *out = new_dfa(c);
    pairs p = {0};
    if (!out || !a || a->n == 0) return out;
    int64_t top = max >= 0 ? max : min; /* counts above say nothing more */
    if (top > CHARS_MAX_STATES) {
        compiler__fail(c, DI_ERR_LIMIT, "a pattern with a length above %d", CHARS_MAX_STATES);
        return NULL;
    }
    find_pair(c, &p, out, pair_key(0, 0));
    for (int32_t i = 0; i < out->n && c->status == DI_OK; i++) {
        const char_state *x = &a->states[p.keys[i] >> 32];
        int64_t count = (int64_t)(uint32_t)p.keys[i];
        out->states[i].accepting = x->accepting && count >= min;
        if (max >= 0 && count == max) continue;
        int32_t next = (int32_t)(count < top ? count + 1 : top);
        for (int32_t k = 0; k < x->n_edges && compiler__spend(c, 1); k++) {
            int32_t to = find_pair(c, &p, out, pair_key(x->edges[k].to, next));
            if (to >= 0) chars__add_edge(c, out, i, x->edges[k].lo, x->edges[k].hi, to);
        }
    }
    chars__trim(c, out);
    return c->status == DI_OK ? out : NULL;
}

bool chars__matches(const char_dfa *a, const char *text, size_t size) {
    if (a->n == 0) return false;
    int32_t at = 0;
    for (size_t i = 0; i < size;) {
        uint32_t code = 0;
        size_t length = di_utf8_decode(text + i, size - i, &code);
        if (length == 0) return false;
        i += length;
        const char_state *s = &a->states[at];
        int32_t lo = 0, hi = s->n_edges;
        while (lo < hi) {
            int32_t mid = (lo + hi) / 2;
            if (s->edges[mid].hi < code) {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        if (lo == s->n_edges || s->edges[lo].lo > code) return false;
        at = s->edges[lo].to;
    }
    return a->states[at].accepting;
}

bool chars__is_empty(const char_dfa *a) { return a->n == 0; }

/* A state is finite when all that it leads to is: told in rounds, from the ends. */
static bool *find_endless(compiler *c, const char_dfa *a) {
    bool *endless = compiler__alloc(c, (size_t)a->n + 1, sizeof *endless);
    if (!endless) return NULL;
    memset(endless, true, (size_t)a->n);
    for (bool changed = true; changed;) {
        changed = false;
        for (int32_t i = 0; i < a->n; i++) {
            const char_state *s = &a->states[i];
            bool leads = false;
            for (int32_t k = 0; k < s->n_edges && !leads; k++) leads = endless[s->edges[k].to];
            if (!compiler__spend(c, s->n_edges + 1)) return NULL;
            changed |= endless[i] && !leads;
            endless[i] = leads;
        }
    }
    return endless;
}

char_dfa *chars__endless(compiler *c, const char_dfa *a) {
    const bool *endless = find_endless(c, a);
    char_dfa *out = compiler__alloc(c, 1, sizeof *out);
    if (!endless || !out) return NULL;
    for (int32_t i = 0; i < a->n; i++) {
        if (chars__add_state(c, out, a->states[i].accepting && endless[i]) < 0) return NULL;
    }
    for (int32_t i = 0; i < a->n; i++) {
        const char_state *s = &a->states[i];
        for (int32_t k = 0; k < s->n_edges; k++) {
            if (!endless[s->edges[k].to]) continue;
            chars__add_edge(c, out, i, s->edges[k].lo, s->edges[k].hi, s->edges[k].to);
        }
    }
    chars__trim(c, out);
    return c->status == DI_OK ? out : NULL;
}
