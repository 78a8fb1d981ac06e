#include "grammar/program_share.h"

#include <stdlib.h>
#include <string.h>

enum {
    SMALL_RULE = 48, /* nodes: a constant, a few of them; those call nothing */
    SPARE_NODES = 4096
};

/* What is known of a rule: its nodes as numbers in the order of a walk, which is the same for rules with
 * the same body. */
typedef struct body {
    size_t from, n; /* in `words` */
    uint32_t hash;
    int32_t n_nodes, n_sites; /* n_sites: nodes that call it; a loop counts as two */
    bool leaf, seen, done;
} body;

typedef struct sharer {
    program *p;
    body *bodies;   /* [n_rules] */
    int32_t *same;  /* [n_rules]: the rule that stands for it */
    int32_t *order; /* [n_rules] in use, those called first as far as they are not recursive */
    int32_t n_order;
    int32_t *stamp, *number, *walk; /* [limit]: of the walk at hand */
    int32_t *work;                  /* [2 limit] */
    int32_t stamped, limit;
    int32_t *words;
    size_t n_words, capacity;
    bool failed;
} sharer;

static int32_t called(const program *p, const program_node *node) {
    if (node->kind == NODE_CALL) return node->other;
    return node->kind == NODE_LOOP ? p->loops[node->other].rule : -1;
}

/* Numbers the live nodes that the rule reaches by itself, in s->walk; returns how many. */
static int32_t walk_rule(sharer *s, int32_t rule) {
    const program *p = s->p;
    int32_t n = 0, n_work = 0;
    s->stamped++;
    s->work[n_work++] = p->rules[rule].start;
    while (n_work > 0) {
        int32_t at = s->work[--n_work];
        const program_node *node = &p->nodes[at];
        if (!node->live || s->stamp[at] == s->stamped) continue;
        s->stamp[at] = s->stamped;
        s->number[at] = n;
        s->walk[n++] = at;
        if (node->kind == NODE_SPLIT) s->work[n_work++] = node->other;
        if (node->kind >= NODE_BYTES) s->work[n_work++] = node->next;
    }
    return n;
}

/* ---- Rules with the same body ---- */

/* The rules in use, each behind those that it calls but for recursion. `open`: [n_nodes + 1]; a rule stands
 * there once for every call until its turn has come. */
static void order_rules(sharer *s, int32_t *open) {
    int32_t n_open = 0;
    open[n_open++] = 0;
    while (n_open > 0) {
        int32_t rule = open[n_open - 1];
        body *b = &s->bodies[rule];
        if (b->seen) {
            n_open--;
            if (!b->done)
                s->order[s->n_order++] = rule; /* all that it calls stands in front of it */
            b->done = true;
            continue;
        }
        b->seen = true;
        int32_t n = walk_rule(s, rule);
        for (int32_t i = 0; i < n; i++) {
            int32_t other = called(s->p, &s->p->nodes[s->walk[i]]);
            if (other >= 0 && !s->bodies[other].seen) open[n_open++] = other;
        }
    }
}

static void word(sharer *s, int32_t value) {
    if (s->n_words == s->capacity) {
        size_t wanted = s->capacity ? s->capacity * 2 : 4096;
        int32_t *larger = realloc(s->words, wanted * sizeof *larger);
        if (!larger) {
            s->failed = true;
            return;
        }
        s->words = larger;
        s->capacity = wanted;
    }
    s->words[s->n_words++] = value;
}

static int32_t number_of(const sharer *s, int32_t node) {
    return s->p->nodes[node].live ? s->number[node] : -1;
}

/* Lets the calls of a rule be those of the rules that stand for others, and writes its body down. */
static void write_body(sharer *s, int32_t rule) {
    program *p = s->p;
    body *b = &s->bodies[rule];
    b->n_nodes = walk_rule(s, rule);
    b->from = s->n_words;
    b->leaf = true;
    for (int32_t i = 0; i < b->n_nodes; i++) {
        program_node *node = &p->nodes[s->walk[i]];
        word(s, node->kind | node->lo << 3 | node->hi << 17);
        if (node->kind >= NODE_BYTES) word(s, number_of(s, node->next));
        if (node->kind == NODE_SPLIT) word(s, number_of(s, node->other));
        if (node->kind == NODE_CALL) word(s, node->other = s->same[node->other]);
        if (node->kind == NODE_LOOP) {
            program_loop *loop = &p->loops[node->other];
            word(s, loop->rule = s->same[loop->rule]);
            word(s, loop->min);
            word(s, loop->max);
        }
        if (node->kind >= NODE_CALL) b->leaf = false;
    }
    b->n = s->n_words - b->from;
    b->hash = 2166136261u;
    for (size_t i = b->from; i < s->n_words; i++) {
        b->hash = (b->hash ^ (uint32_t)s->words[i]) * 16777619u;
        b->hash ^= b->hash >> 15;
    }
}

static void merge_rules(sharer *s, int32_t *table, uint32_t mask) {
    for (int32_t i = 0; i < s->n_order && !s->failed; i++) {
        int32_t rule = s->order[i];
        write_body(s, rule);
        const body *b = &s->bodies[rule];
        uint32_t slot = b->hash & mask;
        for (; table[slot] >= 0; slot = (slot + 1) & mask) {
            const body *other = &s->bodies[table[slot]];
            if (other->hash == b->hash && other->n == b->n && !s->failed &&
                memcmp(s->words + other->from, s->words + b->from, b->n * sizeof *s->words) == 0) {
                break;
            }
        }
        if (table[slot] >= 0) {
            s->same[rule] = table[slot];
            s->n_words = b->from;
        } else {
            table[slot] = rule;
        }
    }
}

/* ---- Loops over the same rule ---- */

typedef struct numbered_loop {
    program_loop loop;
    int32_t id;
} numbered_loop;

static int by_loop(const void *a, const void *b) {
    const numbered_loop *x = a, *y = b;
    int order = memcmp(&x->loop, &y->loop, sizeof x->loop);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static bool merge_loops(program *p) {
    size_t n = (size_t)p->n_loops;
    numbered_loop *all = malloc((n + 1) * sizeof *all);
    int32_t *first = malloc((n + 1) * sizeof *first);
    for (size_t i = 0; i < n && all; i++) all[i] = (numbered_loop){p->loops[i], (int32_t)i};
    if (all && first) {
        qsort(all, n, sizeof *all, by_loop);
        for (size_t i = 0; i < n; i++) {
            bool same = i > 0 && memcmp(&all[i].loop, &all[i - 1].loop, sizeof all->loop) == 0;
            first[all[i].id] = same ? first[all[i - 1].id] : all[i].id;
        }
        for (int32_t i = 0; i < p->n_nodes; i++) {
            if (p->nodes[i].kind == NODE_LOOP) p->nodes[i].other = first[p->nodes[i].other];
        }
    }
    bool ok = all && first;
    free(all);
    free(first);
    return ok;
}

/* ---- Rules where they are called ---- */

static void count_sites(sharer *s) {
    for (int32_t i = 0; i < s->n_order; i++) {
        if (s->same[s->order[i]] != s->order[i]) continue;
        int32_t n = walk_rule(s, s->order[i]);
        for (int32_t k = 0; k < n; k++) {
            const program_node *node = &s->p->nodes[s->walk[k]];
            int32_t other = called(s->p, node);
            if (other >= 0) s->bodies[other].n_sites += node->kind == NODE_LOOP ? 2 : 1;
        }
    }
}

static bool make_room(sharer *s, int32_t n) {
    program *p = s->p;
    if (p->n_nodes + n <= p->node_capacity) return true;
    program_node *larger = realloc(p->nodes, (size_t)s->limit * sizeof *larger);
    if (!larger) {
        s->failed = true;
        return false;
    }
    p->nodes = larger;
    p->node_capacity = s->limit;
    return true;
}

/* Copies the rule's body, with `next` for its end; returns the copy's start, or -1. */
static int32_t copy_body(sharer *s, int32_t rule, int32_t next) {
    program *p = s->p;
    int32_t n = walk_rule(s, rule), base = p->n_nodes;
    if (n > s->limit - base || !make_room(s, n)) return -1;
    for (int32_t i = 0; i < n; i++) {
        program_node copy = p->nodes[s->walk[i]];
        int32_t *const to[] = {&copy.next, copy.kind == NODE_SPLIT ? &copy.other : NULL};
        for (int k = 0; k < 2 && copy.kind >= NODE_BYTES; k++) {
            if (!to[k]) continue;
            bool ends = *to[k] == PROGRAM_ACCEPT, live = p->nodes[*to[k]].live;
            *to[k] = ends ? next : live ? base + s->number[*to[k]] : PROGRAM_FAIL;
        }
        p->nodes[base + i] = copy;
    }
    p->n_nodes = base + n;
    return s->walk[0] == PROGRAM_ACCEPT ? next : base;
}

static bool goes_in(const sharer *s, int32_t rule) {
    const body *b = &s->bodies[rule];
    return rule != 0 && (b->n_sites == 1 || (b->leaf && b->n_nodes <= SMALL_RULE));
}

/* Puts rules into one rule, and into what was put there; a rule that stays one is to be looked at in its
 * turn. Marks of its own, since copying walks too. `open`: [2 limit], `met`: [limit]. */
static void inline_into(sharer *s, int32_t rule, int32_t *open, bool *met) {
    program *p = s->p;
    int32_t n_open = 0;
    open[n_open++] = p->rules[rule].start;
    while (n_open > 0 && !s->failed) {
        int32_t at = open[--n_open];
        if (!p->nodes[at].live || met[at]) continue;
        met[at] = true;
        if (p->nodes[at].kind == NODE_CALL && goes_in(s, p->nodes[at].other)) {
            int32_t start = copy_body(s, p->nodes[at].other, p->nodes[at].next);
            if (start >= 0)
                p->nodes[at] = (program_node){NODE_SPLIT, true, 0, 0, start, PROGRAM_FAIL};
        }
        const program_node *node = &p->nodes[at];
        int32_t other = called(p, node);
        if (other >= 0 && s->bodies[other].done) {
            s->bodies[other].done = false; /* its turn comes */
            s->order[s->n_order++] = other;
        }
        if (node->kind == NODE_SPLIT) open[n_open++] = node->other;
        if (node->kind >= NODE_BYTES) open[n_open++] = node->next;
    }
}

static void inline_rules(sharer *s, int32_t *open, bool *met) {
    count_sites(s);
    s->n_order = 0;
    s->order[s->n_order++] = 0;
    s->bodies[0].done = false;
    for (int32_t i = 0; i < s->n_order && !s->failed; i++) inline_into(s, s->order[i], open, met);
    for (int32_t i = 0; i < s->p->n_rules; i++) { /* nobody calls these any more */
        if (s->bodies[i].done || !s->bodies[i].seen) s->p->rules[i].start = PROGRAM_FAIL;
    }
}

static int32_t *numbers(int32_t n) { return calloc((size_t)n + 1, sizeof(int32_t)); }

bool program__share(program *p) {
    int32_t room = PROGRAM_MAX_NODES - SPARE_NODES, rules = p->n_rules;
    sharer s = {.p = p, .limit = p->n_nodes < room / 2 ? 2 * p->n_nodes + SPARE_NODES : room};
    if (s.limit < p->n_nodes) s.limit = p->n_nodes;
    uint32_t mask = 255;
    while (mask < 2 * (uint32_t)rules) mask = 2 * mask + 1;
    s.bodies = calloc((size_t)rules, sizeof *s.bodies);
    s.same = numbers(rules);
    s.order = numbers(rules);
    s.stamp = numbers(s.limit);
    s.number = numbers(s.limit);
    s.walk = numbers(s.limit);
    s.work = numbers(2 * s.limit);
    int32_t *open = numbers(2 * (s.limit > rules ? s.limit : rules));
    int32_t *table = malloc(((size_t)mask + 1) * sizeof *table);
    bool *met = calloc((size_t)s.limit, sizeof *met);
    s.failed = !s.bodies || !s.same || !s.order || !s.stamp || !s.number || !s.walk || !s.work ||
               !open || !table || !met;
    if (!s.failed) {
        for (int32_t i = 0; i < rules; i++) s.same[i] = i;
        memset(table, 0xff, ((size_t)mask + 1) * sizeof *table);
        order_rules(&s, open);
        merge_rules(&s, table, mask);
        s.failed = s.failed || !merge_loops(p);
    }
    if (!s.failed) inline_rules(&s, open, met);
    free(s.bodies);
    free(s.same);
    free(s.order);
    free(s.stamp);
    free(s.number);
    free(s.walk);
    free(s.work);
    free(s.words);
    free(open);
    free(table);
    free(met);
    return !s.failed;
}
