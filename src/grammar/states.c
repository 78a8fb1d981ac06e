#include "grammar/states.h"

#include <stdlib.h>
#include <string.h>

bool states__init(states *s, const program *p) {
    size_t n = (size_t)p->n_nodes;
    memset(s, 0, sizeof *s);
    s->p = p;
    s->table_mask = 255;
    s->table = malloc(256 * sizeof *s->table);
    s->stamps = calloc(n, sizeof *s->stamps);
    s->work = malloc((2 * n + 2) * sizeof *s->work);
    s->found = malloc(n * sizeof *s->found);
    s->alone = malloc(n * sizeof *s->alone);
    s->bytes = n * 5 * sizeof(int32_t);
    s->list = calloc(64, sizeof *s->list);
    if (!s->table || !s->stamps || !s->work || !s->found || !s->alone || !s->list) {
        states__deinit(s);
        return false;
    }
    s->capacity = 64;
    memset(s->table, 0xff, 256 * sizeof *s->table);
    memset(s->alone, 0xff, n * sizeof *s->alone);
    s->n = 1; /* the dead state, which nobody enters */
    return true;
}

void states__deinit(states *s) {
    for (int32_t i = 0; i < s->n; i++) {
        free(s->list[i].to);
        free(s->list[i].calls);
        free(s->list[i].nodes);
    }
    free(s->list);
    free(s->table);
    free(s->stamps);
    free(s->work);
    free(s->found);
    free(s->alone);
    memset(s, 0, sizeof *s);
}

/* ---- Closures ---- */

static void closure_begin(states *s) {
    if (++s->stamp == 0) {
        memset(s->stamps, 0, (size_t)s->p->n_nodes * sizeof *s->stamps);
        s->stamp = 1;
    }
}

/* Adds to found[n..] the nodes that stand for something and are reached from `node` without a
 * symbol; returns the new n. */
static int32_t closure_add(states *s, int32_t node, int32_t n) {
    const program *p = s->p;
    int32_t n_work = 0;
    s->work[n_work++] = node;
    while (n_work > 0) {
        int32_t at = s->work[--n_work];
        const program_node *it = &p->nodes[at];
        if (!it->live || s->stamps[at] == s->stamp) continue;
        s->stamps[at] = s->stamp;
        switch ((node_kind)it->kind) {
        case NODE_FAIL: break;
        case NODE_SPLIT:
            s->work[n_work++] = it->other;
            s->work[n_work++] = it->next;
            break;
        case NODE_CALL:
            s->found[n++] = at;
            if (p->rules[it->other].nullable) s->work[n_work++] = it->next;
            break;
        case NODE_LOOP:
            s->found[n++] = at;
            if (p->loops[it->other].min == 0) s->work[n_work++] = it->next;
            break;
        case NODE_ACCEPT:
        case NODE_BYTES: s->found[n++] = at; break;
        }
    }
    return n;
}

static int by_id(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static uint32_t hash_nodes(const int32_t *nodes, int32_t n) {
    uint64_t h = 0x9e3779b97f4a7c15;
    for (int32_t i = 0; i < n; i++) {
        h = (h ^ (uint32_t)nodes[i]) * 0xff51afd7ed558ccd;
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

/* ---- Making states ---- */

static bool is_own(const program *p, int32_t node) {
    return p->nodes[node].kind == NODE_ACCEPT || p->nodes[node].kind == NODE_BYTES;
}

/* What is called by a node: two that call the same are one call, with both continuations. */
static int64_t call_key(const program *p, int32_t node) {
    const program_node *it = &p->nodes[node];
    if (it->kind == NODE_CALL) return it->other;
    return (int64_t)1 << 32 | it->other;
}

typedef struct keyed_node {
    int64_t key;
    int32_t node;
} keyed_node;

static int by_key(const void *a, const void *b) {
    const keyed_node *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

/* One call for each key, and behind the state's own nodes those that it leads to. */
static void add_calls(const program *p, grammar_state *st, const keyed_node *sorted, int32_t n) {
    int32_t behind = st->n_nodes;
    for (int32_t i = 0; i < n; i++) {
        const program_node *it = &p->nodes[sorted[i].node];
        if (i == 0 || sorted[i].key != sorted[i - 1].key) {
            state_call *call = &st->calls[st->n_calls++];
            call->loop = it->kind == NODE_LOOP ? it->other : -1;
            call->rule = it->kind == NODE_LOOP ? p->loops[it->other].rule : it->other;
            call->ret = STATE_UNKNOWN;
            call->first_node = behind;
            call->n_nodes = 0;
        }
        st->nodes[behind++] = it->next;
        st->calls[st->n_calls - 1].n_nodes++;
    }
}

/* Splits the sorted nodes of a new state into its own and its calls. */
static bool fill_calls(const program *p, grammar_state *st, const int32_t *found, int32_t n) {
    int32_t n_calls = 0;
    for (int32_t i = 0; i < n; i++) n_calls += !is_own(p, found[i]);
    st->nodes = malloc((size_t)(n ? n : 1) * 2 * sizeof *st->nodes);
    st->calls = n_calls ? malloc((size_t)n_calls * sizeof *st->calls) : NULL;
    keyed_node *sorted = malloc(((size_t)n_calls + 1) * sizeof *sorted);
    if (!st->nodes || (n_calls && !st->calls) || !sorted) {
        free(sorted);
        return false;
    }
    /* The identity first: all nodes, sorted; the parts behind calls follow. */
    memcpy(st->nodes, found, (size_t)n * sizeof *found);
    st->n_nodes = n;
    n_calls = 0;
    for (int32_t i = 0; i < n; i++) {
        if (is_own(p, found[i])) {
            st->n_own++;
            st->accepting |= p->nodes[found[i]].kind == NODE_ACCEPT;
        } else {
            sorted[n_calls++] = (keyed_node){call_key(p, found[i]), found[i]};
        }
    }
    qsort(sorted, (size_t)n_calls, sizeof *sorted, by_key);
    add_calls(p, st, sorted, n_calls);
    free(sorted);
    st->plain = !st->accepting && st->n_calls == 0;
    st->tail = st->accepting && st->n_own == 1 && st->n_calls == 0;
    return true;
}

static bool table_grow(states *s) {
    uint32_t mask = s->table_mask * 2 + 1;
    int32_t *table = malloc(((size_t)mask + 1) * sizeof *table);
    if (!table) return false;
    memset(table, 0xff, ((size_t)mask + 1) * sizeof *table);
    for (int32_t i = 1; i < s->n; i++) {
        uint32_t slot = s->list[i].hash & mask;
        while (table[slot] >= 0) slot = (slot + 1) & mask;
        table[slot] = i;
    }
    free(s->table);
    s->table = table;
    s->table_mask = mask;
    return true;
}

static int32_t fail(states *s, di_status status) {
    s->status = status;
    return STATE_DEAD;
}

static int32_t add_state(states *s, const int32_t *found, int32_t n, uint32_t hash) {
    const program *p = s->p;
    size_t classes = (size_t)p->n_classes;
    size_t size = sizeof(grammar_state) + (classes + 2 * (size_t)n) * sizeof(int32_t);
    if (s->bytes + size > STATES_MAX_BYTES) return fail(s, DI_ERR_LIMIT);
    if (s->n == s->capacity) {
        grammar_state *larger = realloc(s->list, (size_t)s->capacity * 2 * sizeof *larger);
        if (!larger) return fail(s, DI_ERR_MEMORY);
        s->list = larger;
        s->capacity *= 2;
    }
    if ((uint32_t)s->n * 2 > s->table_mask && !table_grow(s)) return fail(s, DI_ERR_MEMORY);
    grammar_state *st = &s->list[s->n];
    memset(st, 0, sizeof *st);
    st->hash = hash;
    st->to = malloc(classes * sizeof *st->to);
    if (!st->to || !fill_calls(p, st, found, n)) {
        free(st->to);
        free(st->nodes);
        free(st->calls);
        return fail(s, DI_ERR_MEMORY);
    }
    memset(st->to, 0xff, classes * sizeof *st->to);
    s->bytes += size + (size_t)st->n_calls * sizeof *st->calls;
    uint32_t slot = hash & s->table_mask;
    while (s->table[slot] >= 0) slot = (slot + 1) & s->table_mask;
    s->table[slot] = s->n;
    return s->n++;
}

/* The state of the nodes in found[0..n). */
static int32_t state_of(states *s, int32_t n) {
    if (n <= 0) return STATE_DEAD;
    qsort(s->found, (size_t)n, sizeof *s->found, by_id);
    uint32_t hash = hash_nodes(s->found, n);
    for (uint32_t slot = hash & s->table_mask; s->table[slot] >= 0;
         slot = (slot + 1) & s->table_mask) {
        const grammar_state *st = &s->list[s->table[slot]];
        if (st->hash == hash && st->n_nodes == n &&
            memcmp(st->nodes, s->found, (size_t)n * sizeof *s->found) == 0) {
            return s->table[slot];
        }
    }
    return add_state(s, s->found, n, hash);
}

/* The state of one node and what it reaches. */
static int32_t state_alone(states *s, int32_t node) {
    if (s->alone[node] == STATE_UNKNOWN) {
        closure_begin(s);
        int32_t made = state_of(s, closure_add(s, node, 0));
        if (s->status != DI_OK) return STATE_DEAD;
        s->alone[node] = made;
    }
    return s->alone[node];
}

int32_t states__start(states *s, int32_t rule) { return state_alone(s, s->p->rules[rule].start); }

static bool takes(const program_node *node, int symbol) {
    return node->kind == NODE_BYTES && symbol >= node->lo && symbol <= node->hi;
}

/* The one node behind all of the state's that take the symbol; -1 when there are several, or none.
 * The ranges of a set of characters lead to one: a state has dozens of them, and takes hundreds of
 * symbols to few places. */
static int32_t only_next(const program *p, const grammar_state *st, int symbol) {
    int32_t only = -1;
    for (int32_t i = 0; i < st->n_nodes; i++) {
        const program_node *node = &p->nodes[st->nodes[i]];
        if (!takes(node, symbol) || node->next == only) continue;
        if (only >= 0) return -1;
        only = node->next;
    }
    return only;
}

int32_t states__make_next(states *s, int32_t from, int32_t class) {
    const program *p = s->p;
    const grammar_state *st = &s->list[from];
    int symbol = p->class_symbol[class];
    int32_t made, only = only_next(p, st, symbol);
    if (only >= 0) {
        made = state_alone(s, only);
    } else {
        int32_t n = 0;
        closure_begin(s);
        for (int32_t i = 0; i < st->n_nodes; i++) {
            const program_node *node = &p->nodes[st->nodes[i]];
            if (takes(node, symbol)) n = closure_add(s, node->next, n);
        }
        made = state_of(s, n);
    }
    if (s->status != DI_OK) return STATE_DEAD;
    return s->list[from].to[class] = made;
}

int32_t states__make_return(states *s, int32_t from, int32_t call) {
    const grammar_state *st = &s->list[from];
    const state_call *it = &st->calls[call];
    int32_t n = 0;
    closure_begin(s);
    for (int32_t i = 0; i < it->n_nodes; i++) {
        n = closure_add(s, st->nodes[it->first_node + i], n);
    }
    int32_t made = state_of(s, n);
    if (s->status != DI_OK) return STATE_DEAD;
    return s->list[from].calls[call].ret = made;
}
