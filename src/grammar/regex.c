/* The automaton of an expression. regex_parse.c makes a tree of it; here the tree becomes nodes.
 *
 * Assertions are worked in on the way: every node exists in up to four contexts, by whether nothing
 * has been taken yet, and by whether nothing may be taken any more. "^" passes in the first only, "$"
 * leads to the last, where a character fails.
 */
#include "grammar/regex.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/regex_tree.h"

typedef enum nfa_kind { NFA_FAIL, NFA_MATCH, NFA_SET, NFA_SPLIT } nfa_kind;

typedef struct nfa_node {
    nfa_kind kind;
    const char_set *set;
    int32_t next, other;
} nfa_node;

struct regex {
    nfa_node *nodes;
    int32_t n, capacity, start;
};

enum { FAIL = 0, MATCH = 1 };

/* ---- A tree as nodes with assertions ---- */

typedef enum raw_kind { RAW_MATCH, RAW_SET, RAW_SPLIT, RAW_BEGIN, RAW_END } raw_kind;

typedef struct raw_node {
    raw_kind kind;
    const char_set *set;
    int32_t next, other;
} raw_node;

typedef struct raw {
    compiler *c;
    raw_node *nodes;
    int32_t n, capacity;
    const char *what;
} raw;

static int32_t raw_add(raw *r, raw_kind kind, const char_set *set, int32_t next, int32_t other) {
    if (r->c->status != DI_OK) return 0;
    if (r->n == REGEX_MAX_NODES) {
        compiler__fail(r->c, DI_ERR_LIMIT, "%s: the expression is too large: more than %d nodes",
                       r->what, REGEX_MAX_NODES);
        return 0;
    }
    if (r->n == r->capacity) {
        int32_t wanted = r->capacity ? r->capacity * 2 : 64;
        raw_node *larger = compiler__alloc(r->c, (size_t)wanted, sizeof *larger);
        if (!larger) return 0;
        if (r->n) memcpy(larger, r->nodes, (size_t)r->n * sizeof *larger);
        r->nodes = larger;
        r->capacity = wanted;
    }
    r->nodes[r->n] = (raw_node){kind, set, next, other};
    return r->n++;
}

static int32_t raw_tree(raw *r, const regex_tree *t, int32_t next);

static int32_t raw_star(raw *r, const regex_tree *t, int32_t next) {
    int32_t loop = raw_add(r, RAW_SPLIT, NULL, next, next);
    int32_t body = raw_tree(r, t, loop);
    if (r->c->status == DI_OK) r->nodes[loop].next = body;
    return loop;
}

static int32_t raw_repeat(raw *r, const regex_tree *t, int32_t next) {
    int32_t at = t->max < 0 ? raw_star(r, t->first, next) : next;
    for (int32_t i = t->min; i < t->max && r->c->status == DI_OK; i++) {
        int32_t body = raw_tree(r, t->first, at);
        at = raw_add(r, RAW_SPLIT, NULL, body, next);
    }
    for (int32_t i = 0; i < t->min && r->c->status == DI_OK; i++) at = raw_tree(r, t->first, at);
    return at;
}

/* Children of a sequence stand in reverse order, as nodes are made from the end. */
static int32_t raw_tree(raw *r, const regex_tree *t, int32_t next) {
    int32_t at = next;
    if (!compiler__spend(r->c, 1)) return next; /* groups that hold nothing add no node */
    switch (t->kind) {
    case TREE_EMPTY: return next;
    case TREE_SET: return raw_add(r, RAW_SET, &t->set, next, 0);
    case TREE_BEGIN: return raw_add(r, RAW_BEGIN, NULL, next, 0);
    case TREE_END: return raw_add(r, RAW_END, NULL, next, 0);
    case TREE_REPEAT: return raw_repeat(r, t, next);
    case TREE_SEQUENCE:
        for (const regex_tree *k = t->first; k; k = k->sibling) at = raw_tree(r, k, at);
        return at;
    case TREE_CHOICE:
        at = raw_tree(r, t->first, next);
        for (const regex_tree *k = t->first->sibling; k; k = k->sibling) {
            at = raw_add(r, RAW_SPLIT, NULL, raw_tree(r, k, next), at);
        }
        return at;
    }
    return at;
}

/* ---- Without assertions ---- */

static int32_t nfa_add(compiler *c, regex *r, nfa_node node) {
    if (r->n == r->capacity) {
        int32_t wanted = r->capacity ? r->capacity * 2 : 64;
        nfa_node *larger = compiler__alloc(c, (size_t)wanted, sizeof *larger);
        if (!larger) return FAIL;
        if (r->n) memcpy(larger, r->nodes, (size_t)r->n * sizeof *larger);
        r->nodes = larger;
        r->capacity = wanted;
    }
    r->nodes[r->n] = node;
    return r->n++;
}

enum { AT_BEGIN = 1, AT_END = 2, CONTEXTS = 4 };

typedef struct resolver {
    compiler *c;
    const raw *from;
    regex *to;
    int32_t *made;  /* [n][CONTEXTS]: node + 1, 0: not met */
    int32_t *queue; /* raw node * CONTEXTS + context */
    int32_t n_queue;
} resolver;

static int32_t resolved(resolver *v, int32_t node, int context) {
    int32_t at = node * CONTEXTS + context;
    if (v->made[at] == 0) {
        int32_t made = nfa_add(v->c, v->to, (nfa_node){NFA_FAIL, NULL, FAIL, FAIL});
        v->made[at] = made + 1;
        v->queue[v->n_queue++] = at;
    }
    return v->made[at] - 1;
}

static void resolve_one(resolver *v, int32_t at, int32_t end) {
    const raw_node *node = &v->from->nodes[at / CONTEXTS];
    int context = at % CONTEXTS;
    nfa_node n = {NFA_SPLIT, NULL, FAIL, FAIL};
    switch (node->kind) {
    case RAW_MATCH: n.next = context & AT_END ? MATCH : end; break;
    case RAW_SET:
        if (!(context & AT_END)) {
            n = (nfa_node){NFA_SET, node->set, resolved(v, node->next, 0), FAIL};
        }
        break;
    case RAW_SPLIT:
        n.next = resolved(v, node->next, context);
        n.other = resolved(v, node->other, context);
        break;
    case RAW_BEGIN:
        if (context & AT_BEGIN) n.next = resolved(v, node->next, context);
        break;
    case RAW_END: n.next = resolved(v, node->next, context | AT_END); break;
    }
    if (v->c->status == DI_OK) v->to->nodes[v->made[at] - 1] = n;
}

/* Any text, then `next`; `next` may be set later through the returned node's `other`. */
static int32_t any_then(compiler *c, regex *r, int32_t next) {
    char_set *any = compiler__alloc(c, 1, sizeof *any);
    if (!any) return FAIL;
    chars__add(c, any, 0, CHARS_LAST);
    int32_t loop = nfa_add(c, r, (nfa_node){NFA_SPLIT, NULL, FAIL, next});
    int32_t step = nfa_add(c, r, (nfa_node){NFA_SET, any, loop, FAIL});
    if (c->status == DI_OK) r->nodes[loop].next = step;
    return loop;
}

static regex *resolve(compiler *c, const raw *from, int32_t start, bool search) {
    regex *r = compiler__alloc(c, 1, sizeof *r);
    size_t n = (size_t)from->n * CONTEXTS;
    resolver v = {.c = c, .from = from, .to = r};
    v.made = compiler__alloc(c, n + 1, sizeof *v.made);
    v.queue = compiler__alloc(c, n + 1, sizeof *v.queue);
    if (!r || !v.made || !v.queue) return NULL;
    nfa_add(c, r, (nfa_node){NFA_FAIL, NULL, FAIL, FAIL});
    nfa_add(c, r, (nfa_node){NFA_MATCH, NULL, FAIL, FAIL});
    int32_t end = search ? any_then(c, r, MATCH) : MATCH;
    r->start = resolved(&v, start, AT_BEGIN);
    if (search) {
        /* At the beginning, or behind any character. */
        int32_t later = any_then(c, r, resolved(&v, start, 0));
        if (c->status != DI_OK) return NULL;
        int32_t step = r->nodes[later].next;
        r->start = nfa_add(c, r, (nfa_node){NFA_SPLIT, NULL, r->start, step});
    }
    for (int32_t i = 0; i < v.n_queue && compiler__spend(c, 1); i++)
        resolve_one(&v, v.queue[i], end);
    return c->status == DI_OK ? r : NULL;
}

const regex *regex__parse(compiler *c, const char *text, size_t size, bool search,
                          const char *what) {
    const regex_tree *tree = regex__tree(c, text, size, what);
    raw r = {.c = c, .what = what};
    if (!tree) return NULL;
    int32_t match = raw_add(&r, RAW_MATCH, NULL, 0, 0);
    int32_t start = raw_tree(&r, tree, match);
    return c->status == DI_OK ? resolve(c, &r, start, search) : NULL;
}

/* ---- Bytes ---- */

int32_t regex__emit(compiler *c, const regex *r, char_form form, int32_t next) {
    if (!r || next == PROGRAM_FAIL) return PROGRAM_FAIL;
    program *p = &c->p;
    int32_t *nodes = compiler__alloc(c, (size_t)r->n, sizeof *nodes);
    if (!nodes) return PROGRAM_FAIL;
    for (int32_t i = 0; i < r->n; i++) nodes[i] = program__open(p);
    for (int32_t i = 0; i < r->n && c->status == DI_OK && p->status == DI_OK; i++) {
        const nfa_node *n = &r->nodes[i];
        switch (n->kind) {
        case NFA_FAIL: break;
        case NFA_MATCH: program__close(p, nodes[i], next, PROGRAM_FAIL); break;
        case NFA_SPLIT: program__close(p, nodes[i], nodes[n->next], nodes[n->other]); break;
        case NFA_SET:
            program__close(p, nodes[i], chars__emit_set(c, n->set, form, nodes[n->next]),
                           PROGRAM_FAIL);
            break;
        }
    }
    return nodes[r->start];
}

/* ---- Determinism: subset construction over intervals ---- */

typedef struct subset {
    int32_t *nodes; /* sorted: MATCH and SET nodes */
    int32_t n;
    uint32_t hash;
} subset;

typedef struct determiner {
    compiler *c;
    const regex *r;
    char_dfa *out;
    subset *subsets; /* by state of `out` */
    int32_t capacity;
    int32_t *table;
    int32_t mask;
    int32_t *stamps, stamp, *work, *found; /* a closure in progress */
} determiner;

static void closure(determiner *d, int32_t node, int32_t *n) {
    int32_t n_work = 0;
    d->work[n_work++] = node;
    while (n_work > 0 && compiler__spend(d->c, 1)) {
        int32_t at = d->work[--n_work];
        if (d->stamps[at] == d->stamp) continue;
        d->stamps[at] = d->stamp;
        const nfa_node *it = &d->r->nodes[at];
        if (it->kind == NFA_MATCH || it->kind == NFA_SET) d->found[(*n)++] = at;
        if (it->kind != NFA_SPLIT) continue;
        d->work[n_work++] = it->other;
        d->work[n_work++] = it->next;
    }
}

static int by_number(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void table_put(determiner *d, int32_t i) {
    uint32_t slot = d->subsets[i].hash & (uint32_t)d->mask;
    while (d->table[slot] >= 0) slot = (slot + 1) & (uint32_t)d->mask;
    d->table[slot] = i;
}

static bool make_room(determiner *d) {
    if (d->out->n == d->capacity) {
        int32_t wanted = d->capacity ? d->capacity * 2 : 16;
        subset *larger = compiler__alloc(d->c, (size_t)wanted, sizeof *larger);
        if (!larger) return false;
        if (d->capacity) memcpy(larger, d->subsets, (size_t)d->capacity * sizeof *larger);
        d->subsets = larger;
        d->capacity = wanted;
    }
    if (d->out->n * 2 >= d->mask) {
        d->mask = d->mask ? d->mask * 2 + 1 : 63;
        d->table = compiler__alloc(d->c, (size_t)d->mask + 1, sizeof *d->table);
        if (!d->table) return false;
        memset(d->table, 0xff, ((size_t)d->mask + 1) * sizeof *d->table);
        for (int32_t i = 0; i < d->out->n; i++) table_put(d, i);
    }
    return true;
}

/* The state of found[0..n); -1 on failure. */
static int32_t state_of(determiner *d, int32_t n) {
    if (!make_room(d)) return -1;
    qsort(d->found, (size_t)n, sizeof *d->found, by_number);
    uint32_t hash = 2166136261u;
    for (int32_t i = 0; i < n; i++) hash = (hash ^ (uint32_t)d->found[i]) * 16777619u;
    hash ^= hash >> 15;
    for (uint32_t slot = hash & (uint32_t)d->mask; d->table[slot] >= 0;
         slot = (slot + 1) & (uint32_t)d->mask) {
        const subset *s = &d->subsets[d->table[slot]];
        if (s->hash == hash && s->n == n &&
            memcmp(s->nodes, d->found, (size_t)n * sizeof *s->nodes) == 0) {
            return d->table[slot];
        }
    }
    subset s = {compiler__alloc(d->c, (size_t)n + 1, sizeof *s.nodes), n, hash};
    if (!s.nodes) return -1;
    memcpy(s.nodes, d->found, (size_t)n * sizeof *s.nodes);
    bool accepting = n > 0 && s.nodes[0] == MATCH; /* the smallest number but FAIL */
    int32_t made = chars__add_state(d->c, d->out, accepting);
    if (made < 0) return -1;
    d->subsets[made] = s;
    table_put(d, made);
    return made;
}

static int by_code(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Where the sets of a state's nodes begin, and end + 1: between two of these all characters are
 * alike. */
static uint32_t *cuts_of(determiner *d, const subset *s, int32_t *n_cuts) {
    size_t n = 0;
    for (int32_t i = 0; i < s->n; i++) {
        const nfa_node *it = &d->r->nodes[s->nodes[i]];
        if (it->kind == NFA_SET) n += 2 * (size_t)it->set->n;
    }
    uint32_t *cuts = compiler__alloc(d->c, n + 1, sizeof *cuts);
    if (!cuts || !compiler__spend(d->c, (int64_t)n)) return NULL;
    n = 0;
    for (int32_t i = 0; i < s->n; i++) {
        const nfa_node *it = &d->r->nodes[s->nodes[i]];
        if (it->kind != NFA_SET) continue;
        for (int32_t k = 0; k < it->set->n; k++) {
            cuts[n++] = it->set->ranges[k].lo;
            cuts[n++] = it->set->ranges[k].hi + 1;
        }
    }
    qsort(cuts, n, sizeof *cuts, by_code);
    int32_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (kept == 0 || cuts[i] != cuts[kept - 1]) cuts[kept++] = cuts[i];
    }
    *n_cuts = kept;
    return cuts;
}

static bool set_has(const char_set *set, uint32_t code) {
    int32_t lo = 0, hi = set->n;
    while (lo < hi) {
        int32_t mid = (lo + hi) / 2;
        if (set->ranges[mid].hi < code) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < set->n && set->ranges[lo].lo <= code;
}

static void determine_state(determiner *d, int32_t at) {
    subset s = d->subsets[at];
    int32_t n_cuts = 0;
    const uint32_t *cuts = cuts_of(d, &s, &n_cuts);
    if (!cuts) return;
    for (int32_t i = 0; i + 1 < n_cuts && d->c->status == DI_OK; i++) {
        int32_t n = 0;
        d->stamp++;
        for (int32_t k = 0; k < s.n; k++) {
            const nfa_node *it = &d->r->nodes[s.nodes[k]];
            if (it->kind == NFA_SET && set_has(it->set, cuts[i])) closure(d, it->next, &n);
        }
        if (!compiler__spend(d->c, s.n) || n == 0) continue;
        int32_t to = state_of(d, n);
        if (to >= 0) chars__add_edge(d->c, d->out, at, cuts[i], cuts[i + 1] - 1, to);
    }
}

char_dfa *regex__determine(compiler *c, const regex *r) {
    if (!r) return NULL;
    determiner d = {.c = c, .r = r, .out = compiler__alloc(c, 1, sizeof(char_dfa))};
    size_t n = (size_t)r->n;
    d.stamps = compiler__alloc(c, n, sizeof *d.stamps);
    d.work = compiler__alloc(c, 2 * n + 2, sizeof *d.work);
    d.found = compiler__alloc(c, n + 1, sizeof *d.found);
    if (!d.out || !d.stamps || !d.work || !d.found) return NULL;
    int32_t n_found = 0;
    d.stamp = 1;
    closure(&d, r->start, &n_found);
    if (state_of(&d, n_found) < 0) return NULL;
    for (int32_t i = 0; i < d.out->n && c->status == DI_OK; i++) determine_state(&d, i);
    chars__trim(c, d.out);
    return c->status == DI_OK ? d.out : NULL;
}
