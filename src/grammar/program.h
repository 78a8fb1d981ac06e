/* The internal form of every grammar: rules, each a nondeterministic automaton over bytes.
 *
 * A rule's automaton may call other rules (also itself, but not before it has taken a byte), and may
 * repeat a rule a counted number of times without being copied that often. Symbols 0..255 are bytes,
 * 256 + k is marker k: a token of its own.
 *
 * Built backwards: every constructor takes the node that follows and returns the node to begin with.
 * What goes wrong (memory, too many nodes) sticks in `status`; constructors then return
 * PROGRAM_FAIL, and program__finish reports it.
 */
#ifndef DI_GRAMMAR_PROGRAM_H
#define DI_GRAMMAR_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    PROGRAM_MAX_NODES = 600000,
    PROGRAM_MAX_RULES = 50000,
    PROGRAM_MAX_MARKERS = 8,
    PROGRAM_SYMBOLS = 256 + PROGRAM_MAX_MARKERS,
    PROGRAM_MAX_CHAIN = 400, /* rules that may open at one place; bounds recursion */
    PROGRAM_FOREVER = INT32_MAX
};

typedef enum node_kind {
    NODE_ACCEPT, /* the end of the rule */
    NODE_FAIL,   /* nothing */
    NODE_BYTES,  /* a symbol lo..hi, then next */
    NODE_SPLIT,  /* next or other, without a symbol */
    NODE_CALL,   /* rule `other`, then next */
    NODE_LOOP    /* loop `other`, then next */
} node_kind;

typedef struct program_node {
    uint8_t kind;
    bool live; /* after finish: an accept can be reached */
    uint16_t lo, hi;
    int32_t next, other;
} program_node;

/* The two nodes that every program has. */
enum { PROGRAM_ACCEPT = 0, PROGRAM_FAIL = 1 };

typedef struct program_rule {
    int32_t start;     /* node */
    bool nullable;     /* after finish: matches without a symbol */
    uint64_t first[5]; /* after finish: symbols that it can begin with, bit s % 64 of word s / 64 */
    const char *name;  /* for messages; owned by the caller until finish */
} program_rule;

typedef struct program_loop {
    int32_t rule, min, max; /* max PROGRAM_FOREVER: no bound */
} program_loop;

typedef struct program {
    program_node *nodes;
    int32_t n_nodes, node_capacity;
    program_rule *rules; /* rule 0 is the answer */
    int32_t n_rules, rule_capacity;
    program_loop *loops;
    int32_t n_loops, loop_capacity;
    const char *markers[PROGRAM_MAX_MARKERS]; /* literals: the added token's content */
    int32_t n_markers;
    int32_t n_classes;                      /* after finish */
    uint16_t class_of[PROGRAM_SYMBOLS];     /* symbols that no node tells apart share a class */
    uint16_t class_symbol[PROGRAM_SYMBOLS]; /* one symbol of each class */
    di_status status;
} program;

void program__init(program *p);
void program__deinit(program *p);

int32_t program__bytes(program *p, int lo, int hi, int32_t next);
int32_t program__split(program *p, int32_t one, int32_t other);
int32_t program__literal(program *p, const char *bytes, size_t n, int32_t next);
int32_t program__marker(program *p, const char *marker, int32_t next);
int32_t program__call(program *p, int32_t rule, int32_t next);
/* rule{min,max}, then next. */
int32_t program__repeat(program *p, int32_t rule, int32_t min, int32_t max, int32_t next);
/* A split to be filled in later by program__close: for loops. */
int32_t program__open(program *p);
void program__close(program *p, int32_t open, int32_t one, int32_t other);

/* A new rule, to be given its start later; -1 on failure. */
int32_t program__rule(program *p, const char *name);
void program__define(program *p, int32_t rule, int32_t start);

/* Works out liveness, emptiness, first symbols and classes. Refuses left recursion (naming the rule)
 * and a program without any text. */
di_status program__finish(program *p, di_error *error);

static inline bool program__begins(const program_rule *rule, int symbol) {
    return rule->first[symbol >> 6] >> (symbol & 63) & 1;
}

#endif
