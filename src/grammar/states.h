/* The states of a program, made deterministic as they are met.
 *
 * A state is a set of nodes of one rule that no byte can tell apart so far. Making all of them at
 * once can take exponential time; making one when a matcher first comes there takes microseconds, and
 * only what is met is made. State 0 is the empty set. Not thread-safe: the grammar's lock is held.
 */
#ifndef DI_GRAMMAR_STATES_H
#define DI_GRAMMAR_STATES_H

#include "grammar/program.h"

enum {
    STATE_DEAD = 0,
    STATE_UNKNOWN = -1,
    STATES_MAX_BYTES = 128 << 20 /* per grammar; a document-sized schema needs a few MB */
};

/* From a state another rule may be entered; behind it the rule goes on in state `ret`. */
typedef struct state_call {
    int32_t rule;
    int32_t loop;                /* or -1 */
    int32_t ret;                 /* STATE_UNKNOWN: not made yet */
    int32_t n_nodes, first_node; /* the nodes behind it, in the state's list */
} state_call;

typedef struct grammar_state {
    int32_t *to; /* [n_classes] */
    state_call *calls;
    int32_t *nodes;         /* [n_nodes] sorted: the identity; behind them the nodes after calls */
    int32_t n_calls, n_own; /* n_own: ACCEPT and BYTES nodes */
    int32_t n_nodes;
    uint32_t hash;
    bool accepting; /* the rule may end here */
    bool plain;     /* neither accepting nor calls: a byte leads to one state, or nowhere */
    bool tail;      /* nothing but the end of the rule */
    uint8_t kinds;  /* what mask_slice.c knows */
} grammar_state;

typedef struct states {
    const program *p;
    grammar_state *list;
    int32_t n, capacity;
    int32_t *table; /* open addressing: state ids, -1 free */
    uint32_t table_mask;
    uint32_t *stamps; /* [n_nodes] of the closure in progress */
    uint32_t stamp;
    int32_t *work, *found; /* [2 n_nodes + 2], [n_nodes] */
    int32_t *alone; /* [n_nodes]: the state of a node and what it reaches, or STATE_UNKNOWN */
    size_t bytes;
    di_status status; /* sticky: DI_ERR_MEMORY or DI_ERR_LIMIT */
} states;

bool states__init(states *s, const program *p); /* false: no memory */
void states__deinit(states *s);

/* states_ways.c: false where more calls than there may be readings begin alike, as far as a bounded look
 * shows; and when memory is short (status is set then). To be asked once, after init. */
bool states__can_be_read(states *s);

/* All three return STATE_DEAD and set status when they fail. */
int32_t states__start(states *s, int32_t rule);
int32_t states__make_next(states *s, int32_t from, int32_t class);
int32_t states__make_return(states *s, int32_t from, int32_t call);

static inline int32_t states__next(states *s, int32_t from, int symbol) {
    int32_t class = s->p->class_of[symbol];
    int32_t to = s->list[from].to[class];
    return to == STATE_UNKNOWN ? states__make_next(s, from, class) : to;
}

static inline int32_t states__return(states *s, int32_t from, int32_t call) {
    int32_t ret = s->list[from].calls[call].ret;
    return ret == STATE_UNKNOWN ? states__make_return(s, from, call) : ret;
}

#endif
