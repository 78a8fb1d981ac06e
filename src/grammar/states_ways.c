/* Looking ahead for places where more calls begin alike than there may be readings. */
#include <stdlib.h>

#include "grammar/readings.h"
#include "grammar/states.h"

enum { MAX_EXPLORED = 20000 }; /* states; what is shared by many alternatives comes first */

/* ---- Rules that could have such a place ---- */

typedef struct counter {
    const program *p;
    int32_t *met;           /* [n_nodes]: the last rule that reached the node, + 1 */
    int32_t *rules, *loops; /* the same of what is called */
    int32_t *work;          /* [2 n_nodes + 2] */
} counter;

/* The rule calls more than `limit` different rules or loops. */
static bool calls_many(counter *k, int32_t rule, int32_t limit) {
    const program *p = k->p;
    int32_t n_work = 0, n = 0;
    k->work[n_work++] = p->rules[rule].start;
    while (n_work > 0 && n <= limit) {
        int32_t at = k->work[--n_work];
        const program_node *node = &p->nodes[at];
        if (!node->live || k->met[at] == rule + 1) continue;
        k->met[at] = rule + 1;
        if (node->kind >= NODE_BYTES) k->work[n_work++] = node->next;
        if (node->kind == NODE_SPLIT) k->work[n_work++] = node->other;
        if (node->kind < NODE_CALL) continue;
        int32_t *last = node->kind == NODE_CALL ? &k->rules[node->other] : &k->loops[node->other];
        n += *last != rule + 1;
        *last = rule + 1;
    }
    return n > limit;
}

/* ---- Their states ---- */

/* Of the state's calls more than `limit` may begin with the same symbol. */
static bool opens_many(const states *s, int32_t state, int32_t limit) {
    const grammar_state *st = &s->list[state];
    if (st->n_calls <= limit) return false;
    for (int32_t class = 0; class < s->p->n_classes; class ++) {
        int32_t n = 0;
        for (int32_t i = 0; i < st->n_calls; i++) {
            n += program__begins(&s->p->rules[st->calls[i].rule], s->p->class_symbol[class]);
        }
        if (n > limit) return true;
    }
    return false;
}

static void visit(int32_t state, bool *seen, int32_t *queue, int32_t *n) {
    if (state <= STATE_DEAD || state >= MAX_EXPLORED || seen[state]) return;
    seen[state] = true;
    queue[(*n)++] = state;
}

static bool explore(states *s, int32_t rule, int32_t limit, bool *seen, int32_t *queue) {
    int32_t n = 0;
    visit(states__start(s, rule), seen, queue, &n);
    for (int32_t i = 0; i < n && s->status == DI_OK; i++) {
        int32_t at = queue[i];
        if (opens_many(s, at, limit)) return false;
        for (int32_t class = 0; class < s->p->n_classes && s->n < MAX_EXPLORED; class ++) {
            visit(states__next(s, at, s->p->class_symbol[class]), seen, queue, &n);
        }
        for (int32_t k = 0; k < s->list[at].n_calls && s->n < MAX_EXPLORED; k++) {
            visit(states__return(s, at, k), seen, queue, &n);
        }
    }
    return true;
}

bool states__can_be_read(states *s) {
    const program *p = s->p;
    if (p->n_rules + p->n_loops <= READINGS_MAX) return true;
    counter k = {p, calloc((size_t)p->n_nodes, sizeof *k.met),
                 calloc((size_t)p->n_rules, sizeof *k.rules),
                 calloc((size_t)p->n_loops + 1, sizeof *k.loops),
                 malloc((2 * (size_t)p->n_nodes + 2) * sizeof *k.work)};
    bool *seen = calloc(MAX_EXPLORED, sizeof *seen), ok = true;
    int32_t *queue = malloc(MAX_EXPLORED * sizeof *queue);
    if (!k.met || !k.rules || !k.loops || !k.work || !seen || !queue) {
        s->status = DI_ERR_MEMORY;
        ok = false;
    }
    for (int32_t rule = 0; rule < p->n_rules && ok; rule++) {
        if (calls_many(&k, rule, READINGS_MAX)) ok = explore(s, rule, READINGS_MAX, seen, queue);
    }
    free(k.met);
    free(k.rules);
    free(k.loops);
    free(k.work);
    free(seen);
    free(queue);
    return ok;
}
