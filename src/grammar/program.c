#include "grammar/program.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/program_share.h"

static void *grow(program *p, void *array, int32_t n, int32_t *capacity, size_t size,
                  int32_t limit) {
    if (n < *capacity) return array;
    if (n >= limit) {
        if (p->status == DI_OK) p->status = DI_ERR_LIMIT;
        return NULL;
    }
    int32_t wanted = *capacity ? *capacity * 2 : 64;
    void *larger = realloc(array, (size_t)wanted * size);
    if (!larger) {
        p->status = DI_ERR_MEMORY;
        return NULL;
    }
    *capacity = wanted;
    return larger;
}

static int32_t add_node(program *p, node_kind kind, int lo, int hi, int32_t next, int32_t other) {
    if (p->status != DI_OK) return PROGRAM_FAIL;
    program_node *larger =
        grow(p, p->nodes, p->n_nodes, &p->node_capacity, sizeof *p->nodes, PROGRAM_MAX_NODES);
    if (!larger) return PROGRAM_FAIL;
    p->nodes = larger;
    p->nodes[p->n_nodes] =
        (program_node){(uint8_t)kind, false, (uint16_t)lo, (uint16_t)hi, next, other};
    return p->n_nodes++;
}

void program__init(program *p) {
    memset(p, 0, sizeof *p);
    add_node(p, NODE_ACCEPT, 0, 0, PROGRAM_FAIL, PROGRAM_FAIL);
    add_node(p, NODE_FAIL, 0, 0, PROGRAM_FAIL, PROGRAM_FAIL);
}

void program__deinit(program *p) {
    free(p->nodes);
    free(p->rules);
    free(p->loops);
    memset(p, 0, sizeof *p);
}

int32_t program__bytes(program *p, int lo, int hi, int32_t next) {
    if (next == PROGRAM_FAIL) return PROGRAM_FAIL;
    return add_node(p, NODE_BYTES, lo, hi, next, PROGRAM_FAIL);
}

int32_t program__split(program *p, int32_t one, int32_t other) {
    if (one == PROGRAM_FAIL) return other;
    if (other == PROGRAM_FAIL || other == one) return one;
    return add_node(p, NODE_SPLIT, 0, 0, one, other);
}

int32_t program__literal(program *p, const char *bytes, size_t n, int32_t next) {
    while (n > 0) {
        int byte = (unsigned char)bytes[--n];
        next = program__bytes(p, byte, byte, next);
    }
    return next;
}

int32_t program__marker(program *p, const char *marker, int32_t next) {
    int32_t k = 0;
    while (k < p->n_markers && strcmp(p->markers[k], marker) != 0) k++;
    if (k == PROGRAM_MAX_MARKERS) {
        p->status = DI_ERR_LIMIT;
        return PROGRAM_FAIL;
    }
    if (k == p->n_markers) p->markers[p->n_markers++] = marker;
    return program__bytes(p, 256 + k, 256 + k, next);
}

int32_t program__call(program *p, int32_t rule, int32_t next) {
    if (next == PROGRAM_FAIL || rule < 0) return PROGRAM_FAIL;
    return add_node(p, NODE_CALL, 0, 0, next, rule);
}

int32_t program__repeat(program *p, int32_t rule, int32_t min, int32_t max, int32_t next) {
    if (next == PROGRAM_FAIL || rule < 0 || min > max) return PROGRAM_FAIL;
    if (max == 0) return next;
    if (min == 1 && max == 1) return program__call(p, rule, next);
    if (p->status != DI_OK) return PROGRAM_FAIL;
    program_loop *larger =
        grow(p, p->loops, p->n_loops, &p->loop_capacity, sizeof *p->loops, PROGRAM_MAX_NODES);
    if (!larger) return PROGRAM_FAIL;
    p->loops = larger;
    p->loops[p->n_loops] = (program_loop){rule, min, max};
    return add_node(p, NODE_LOOP, 0, 0, next, p->n_loops++);
}

int32_t program__open(program *p) {
    return add_node(p, NODE_SPLIT, 0, 0, PROGRAM_FAIL, PROGRAM_FAIL);
}

void program__close(program *p, int32_t open, int32_t one, int32_t other) {
    if (p->status != DI_OK) return;
    p->nodes[open].next = one;
    p->nodes[open].other = other;
}

int32_t program__rule(program *p, const char *name) {
    if (p->status != DI_OK) return -1;
    program_rule *larger =
        grow(p, p->rules, p->n_rules, &p->rule_capacity, sizeof *p->rules, PROGRAM_MAX_RULES);
    if (!larger) return -1;
    p->rules = larger;
    p->rules[p->n_rules] = (program_rule){.start = PROGRAM_FAIL, .name = name};
    return p->n_rules++;
}

void program__define(program *p, int32_t rule, int32_t start) {
    if (p->status == DI_OK) p->rules[rule].start = start;
}

/* ---- Finishing ---- */

/* Who leads to a node, and who calls a rule, as lists in arrays. */
typedef struct backward {
    int32_t *head, *link;             /* node -> edges; edge 2 n is n's next, 2 n + 1 its other */
    int32_t *rule_head, *rule_link;   /* rule -> nodes that call it or loop over it */
    int32_t *start_head, *start_link; /* node -> rules that start there */
    int32_t *queue;
    bool *rule_done;
    int32_t n_queue;
} backward;

static void backward_free(backward *b) {
    free(b->head);
    free(b->link);
    free(b->rule_head);
    free(b->rule_link);
    free(b->start_head);
    free(b->start_link);
    free(b->queue);
    free(b->rule_done);
}

static int32_t called_rule(const program *p, const program_node *node) {
    if (node->kind == NODE_CALL) return node->other;
    return node->kind == NODE_LOOP ? p->loops[node->other].rule : -1;
}

static int32_t *filled(int32_t n) {
    int32_t *array = malloc((size_t)n * sizeof *array);
    if (array) memset(array, 0xff, (size_t)n * sizeof *array);
    return array;
}

static bool backward_build(const program *p, backward *b) {
    int32_t n = p->n_nodes, r = p->n_rules;
    b->head = filled(n);
    b->link = filled(2 * n);
    b->rule_head = filled(r);
    b->rule_link = filled(n);
    b->start_head = filled(n);
    b->start_link = filled(r);
    b->queue = filled(n);
    b->rule_done = calloc((size_t)r, sizeof *b->rule_done);
    if (!b->head || !b->link || !b->rule_head || !b->rule_link || !b->start_head ||
        !b->start_link || !b->queue || !b->rule_done) {
        return false;
    }
    for (int32_t i = 0; i < n; i++) {
        const program_node *node = &p->nodes[i];
        if (node->kind < NODE_BYTES) continue;
        b->link[2 * i] = b->head[node->next];
        b->head[node->next] = 2 * i;
        if (node->kind == NODE_SPLIT) {
            b->link[2 * i + 1] = b->head[node->other];
            b->head[node->other] = 2 * i + 1;
        }
        int32_t rule = called_rule(p, node);
        if (rule >= 0) {
            b->rule_link[i] = b->rule_head[rule];
            b->rule_head[rule] = i;
        }
    }
    for (int32_t i = 0; i < r; i++) {
        b->start_link[i] = b->start_head[p->rules[i].start];
        b->start_head[p->rules[i].start] = i;
    }
    return true;
}

/* Spreads from ACCEPT backwards to every node that can reach it: over any edge (symbols true:
 * liveness), or only over edges that take no symbol (nullability). `marks` is one flag a node. */
static void spread(program *p, backward *b, bool symbols, bool *marks) {
    memset(b->rule_done, 0, (size_t)p->n_rules * sizeof *b->rule_done);
    memset(marks, 0, (size_t)p->n_nodes * sizeof *marks);
    b->n_queue = 0;
    marks[PROGRAM_ACCEPT] = true;
    b->queue[b->n_queue++] = PROGRAM_ACCEPT;
    for (int32_t at = 0; at < b->n_queue; at++) {
        int32_t node = b->queue[at];
        for (int32_t edge = b->head[node]; edge >= 0; edge = b->link[edge]) {
            int32_t from = edge / 2;
            const program_node *f = &p->nodes[from];
            int32_t rule = called_rule(p, f);
            bool skip = f->kind == NODE_LOOP && p->loops[f->other].min == 0;
            if (marks[from] || (f->kind == NODE_BYTES && !symbols) ||
                (rule >= 0 && !b->rule_done[rule] && !skip)) {
                continue;
            }
            marks[from] = true;
            b->queue[b->n_queue++] = from;
        }
        for (int32_t rule = b->start_head[node]; rule >= 0; rule = b->start_link[rule]) {
            if (b->rule_done[rule]) continue;
            b->rule_done[rule] = true;
            for (int32_t from = b->rule_head[rule]; from >= 0; from = b->rule_link[from]) {
                if (marks[from] || !marks[p->nodes[from].next]) continue;
                marks[from] = true;
                b->queue[b->n_queue++] = from;
            }
        }
    }
}

static void set_first(program_rule *rule, int lo, int hi) {
    for (int s = lo; s <= hi; s++) rule->first[s >> 6] |= UINT64_C(1) << (s & 63);
}

/* Depth-first over "may begin with a call of": finds left recursion, and gives first sets and the
 * length of chains on the way back. */
typedef struct firsts {
    program *p;
    int32_t *depth; /* of a rule: 0 not seen, -1 in progress, else the length of its chain + 1 */
    int32_t *stamp; /* of a node: the last rule whose closure holds it, + 1 */
    int32_t *stack; /* nodes to look at; every rule in progress has its part */
    size_t n, capacity;
    di_error *error;
} firsts;

static di_status first_of(firsts *f, int32_t rule, int32_t level);

static di_status push_node(firsts *f, int32_t node) {
    if (f->n == f->capacity) {
        size_t wanted = f->capacity ? f->capacity * 2 : 256;
        int32_t *larger = realloc(f->stack, wanted * sizeof *larger);
        if (!larger) {
            return di_fail(f->error, DI_ERR_MEMORY, "out of memory while compiling a grammar");
        }
        f->stack = larger;
        f->capacity = wanted;
    }
    f->stack[f->n++] = node;
    return DI_OK;
}

/* The nodes that are reached from the rule's start without a symbol. */
static di_status first_closure(firsts *f, int32_t rule, int32_t level) {
    program *p = f->p;
    size_t base = f->n;
    int32_t longest = 0;
    DI_TRY(push_node(f, p->rules[rule].start));
    while (f->n > base) {
        int32_t at = f->stack[--f->n];
        const program_node *node = &p->nodes[at];
        if (f->stamp[at] == rule + 1 || !node->live) continue;
        f->stamp[at] = rule + 1;
        if (node->kind == NODE_BYTES) set_first(&p->rules[rule], node->lo, node->hi);
        if (node->kind == NODE_SPLIT) {
            DI_TRY(push_node(f, node->other));
            DI_TRY(push_node(f, node->next));
        }
        int32_t called = called_rule(p, node);
        if (called < 0) continue;
        DI_TRY(first_of(f, called, level + 1));
        for (int k = 0; k < 5; k++) p->rules[rule].first[k] |= p->rules[called].first[k];
        if (f->depth[called] > longest) longest = f->depth[called];
        bool skip = node->kind == NODE_LOOP && p->loops[node->other].min == 0;
        if (p->rules[called].nullable || skip) DI_TRY(push_node(f, node->next));
    }
    f->depth[rule] = longest + 1;
    return DI_OK;
}

static di_status first_of(firsts *f, int32_t rule, int32_t level) {
    const program *p = f->p;
    if (f->depth[rule] > 0) return DI_OK;
    if (f->depth[rule] < 0) {
        return di_fail(f->error, DI_ERR_UNSUPPORTED,
                       "%s: left recursion (it calls itself before it takes a character) is not "
                       "supported; write it as a repetition",
                       p->rules[rule].name);
    }
    if (level > PROGRAM_MAX_CHAIN) {
        return di_fail(f->error, DI_ERR_LIMIT, "%s: more than %d rules open at one place",
                       p->rules[rule].name, PROGRAM_MAX_CHAIN);
    }
    f->depth[rule] = -1;
    return first_closure(f, rule, level);
}

static void find_classes(program *p) {
    bool cut[PROGRAM_SYMBOLS + 1] = {false};
    for (int32_t i = 0; i < p->n_nodes; i++) {
        const program_node *node = &p->nodes[i];
        if (node->kind != NODE_BYTES || !node->live) continue;
        cut[node->lo] = true;
        cut[node->hi + 1] = true;
    }
    p->n_classes = 0;
    for (int s = 0; s < PROGRAM_SYMBOLS; s++) {
        if (s == 0 || cut[s] || s == 256) p->class_symbol[p->n_classes++] = (uint16_t)s;
        p->class_of[s] = (uint16_t)(p->n_classes - 1);
    }
}

static di_status find_firsts(program *p, di_error *error) {
    firsts f = {.p = p,
                .depth = calloc((size_t)p->n_rules, sizeof(int32_t)),
                .stamp = calloc((size_t)p->n_nodes, sizeof(int32_t)),
                .error = error};
    di_status status = DI_OK;
    if (!f.depth || !f.stamp) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory while compiling a grammar");
    }
    for (int32_t rule = 0; rule < p->n_rules && status == DI_OK; rule++) {
        if (p->nodes[p->rules[rule].start].live) status = first_of(&f, rule, 0);
    }
    free(f.depth);
    free(f.stamp);
    free(f.stack);
    return status;
}

/* Nodes that cannot end go: what is left can always be completed. A loop over a rule without any
 * text is no loop; where its minimum is 0 it stands for nothing at all. */
static void prune(program *p, const bool *live) {
    for (int32_t i = 0; i < p->n_nodes; i++) {
        program_node *node = &p->nodes[i];
        node->live = live[i];
        int32_t rule = called_rule(p, node);
        if (node->live && rule >= 0 && !live[p->rules[rule].start]) {
            *node = (program_node){NODE_SPLIT, true, 0, 0, node->next, PROGRAM_FAIL};
        }
    }
}

di_status program__finish(program *p, di_error *error) {
    backward b = {0};
    bool *marks = NULL;
    di_status status = p->status;
    if (status == DI_ERR_LIMIT) {
        return di_fail(error, status, "the grammar is too large: more than %d nodes or %d rules",
                       PROGRAM_MAX_NODES, PROGRAM_MAX_RULES);
    }
    if (status == DI_OK) marks = malloc((size_t)p->n_nodes * sizeof *marks);
    if (!marks || !backward_build(p, &b)) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory while compiling a grammar");
        goto done;
    }
    spread(p, &b, true, marks);
    prune(p, marks);
    if (!p->nodes[p->rules[0].start].live) {
        status = di_fail(error, DI_ERR_INVALID, "no text satisfies the grammar");
        goto done;
    }
    backward_free(&b);
    memset(&b, 0, sizeof b);
    if (!backward_build(p, &b)) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory while compiling a grammar");
        goto done;
    }
    spread(p, &b, false, marks);
    for (int32_t i = 0; i < p->n_rules; i++) p->rules[i].nullable = marks[p->rules[i].start];
    for (int32_t i = 0; i < p->n_loops; i++) {
        if (p->rules[p->loops[i].rule].nullable) p->loops[i].min = 0;
    }
    DI_TRY_DONE(find_firsts(p, error));
    find_classes(p);
    if (!program__share(p)) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory while compiling a grammar");
    }
done:
    backward_free(&b);
    free(marks);
    return status;
}
