#include "grammar/readings.h"

#include <stdlib.h>

bool readings__push(reading_list *list, reading item) {
    if (list->n == list->capacity) {
        int32_t wanted = list->capacity ? list->capacity * 2 : 16;
        reading *larger = realloc(list->items, (size_t)wanted * sizeof *larger);
        if (!larger) return false;
        list->items = larger;
        list->capacity = wanted;
    }
    list->items[list->n++] = item;
    return true;
}

bool readings__same_stack(const reader *r, int32_t a, int32_t b) {
    while (a != b) {
        if (a == STACK_EMPTY || b == STACK_EMPTY) return false;
        const frame *x = &r->frames[a], *y = &r->frames[b];
        if (x->hash != y->hash || x->depth != y->depth || x->ret != y->ret || x->loop != y->loop ||
            x->count != y->count) {
            return false;
        }
        a = x->parent;
        b = y->parent;
    }
    return true;
}

static void emit(reader *r, reading_list *out, int32_t first, int32_t state, int32_t stack) {
    for (int32_t i = first; i < out->n; i++) {
        if (out->items[i].state == state && readings__same_stack(r, out->items[i].stack, stack))
            return;
    }
    if (out->n - first >= READINGS_MAX) {
        r->status = DI_ERR_LIMIT;
    } else if (!readings__push(out, (reading){state, stack})) {
        r->status = DI_ERR_MEMORY;
    }
}

/* The stack with one more frame; the stack itself when nothing is left to do after the call. */
static int32_t push(reader *r, int32_t ret, int32_t parent, int32_t loop, int32_t count) {
    if (loop < 0 && r->s->list[ret].tail) return parent;
    if (++r->pushes > READINGS_MAX_PUSHES) {
        r->status = DI_ERR_LIMIT;
        return STACK_EMPTY;
    }
    if (r->n_frames == r->capacity) {
        int32_t wanted = r->capacity ? r->capacity * 2 : 64;
        frame *larger = realloc(r->frames, (size_t)wanted * sizeof *larger);
        if (!larger) {
            r->status = DI_ERR_MEMORY;
            return STACK_EMPTY;
        }
        r->frames = larger;
        r->capacity = wanted;
    }
    const frame *below = parent == STACK_EMPTY ? NULL : &r->frames[parent];
    uint64_t h = below ? below->hash : 0x243f6a8885a308d3;
    h = (h ^ (uint64_t)(uint32_t)ret) * 0x9e3779b97f4a7c15;
    h = (h ^ (h >> 29) ^ ((uint64_t)(uint32_t)loop << 32 | (uint32_t)count)) * 0xbf58476d1ce4e5b9;
    r->frames[r->n_frames] =
        (frame){ret, parent, loop, count, h ^ (h >> 32), below ? below->depth + 1 : 1};
    return r->n_frames++;
}

static void look(reader *r, int32_t stack) {
    if (stack >= r->base) return;
    int32_t depth = stack == STACK_EMPTY ? 0 : r->frames[stack].depth;
    if (depth < r->touched) r->touched = depth;
}

/* One symbol from a state. `ends`: the rule may end before the symbol; not so for a rule that has only
 * just been entered, since its caller's state holds what follows an empty one already. Recursion is
 * as deep as rules may open at one place (PROGRAM_MAX_CHAIN). */
static void step(reader *r, int32_t state, int32_t stack, int symbol, bool ends, reading_list *out,
                 int32_t first) {
    states *s = r->s;
    const program *p = s->p;
    for (;;) {
        int32_t to = states__next(s, state, symbol);
        if (to > STATE_DEAD) emit(r, out, first, to, stack);
        for (int32_t i = 0; i < s->list[state].n_calls; i++) {
            const state_call *call = &s->list[state].calls[i];
            int32_t rule = call->rule, loop = call->loop;
            if (!program__begins(&p->rules[rule], symbol)) continue;
            int32_t ret = states__return(s, state, i), start = states__start(s, rule);
            if (s->status != DI_OK || r->status != DI_OK) return;
            int32_t inner = push(r, ret, stack, loop, 0);
            if (r->status == DI_OK) step(r, start, inner, symbol, false, out, first);
        }
        if (s->status != DI_OK) r->status = s->status;
        if (!ends || r->status != DI_OK || !s->list[state].accepting) return;
        look(r, stack);
        if (stack == STACK_EMPTY) return;
        frame f = r->frames[stack];
        if (f.loop >= 0) {
            const program_loop *loop = &p->loops[f.loop];
            bool more = loop->max == PROGRAM_FOREVER || f.count + 1 < loop->max;
            if (more && program__begins(&p->rules[loop->rule], symbol)) {
                /* Past a minimum without a maximum the count says nothing: states stay few. */
                int32_t count = f.count + 1;
                if (loop->max == PROGRAM_FOREVER && count > loop->min) count = loop->min;
                int32_t inner = push(r, f.ret, f.parent, f.loop, count);
                if (r->status != DI_OK) return;
                step(r, states__start(s, loop->rule), inner, symbol, false, out, first);
            }
            if (f.count + 1 < loop->min) return;
        }
        state = f.ret;
        stack = f.parent;
    }
}

void readings__step(reader *r, reading from, int symbol, reading_list *out, int32_t first) {
    r->pushes = 0;
    step(r, from.state, from.stack, symbol, true, out, first);
}

bool readings__may_end(const reader *r, reading at) {
    while (r->s->list[at.state].accepting) {
        if (at.stack == STACK_EMPTY) return true;
        const frame *f = &r->frames[at.stack];
        if (f->loop >= 0 && f->count + 1 < r->s->p->loops[f->loop].min) return false;
        at = (reading){f->ret, f->parent};
    }
    return false;
}

static void add_rule(const program *p, int32_t rule, uint64_t symbols[5]) {
    for (int k = 0; k < 5; k++) symbols[k] |= p->rules[rule].first[k];
}

static void add_own(const program *p, const grammar_state *st, uint64_t symbols[5]) {
    for (int32_t i = 0; i < st->n_nodes; i++) {
        const program_node *node = &p->nodes[st->nodes[i]];
        if (node->kind != NODE_BYTES) continue;
        for (int c = node->lo; c <= node->hi; c++) symbols[c >> 6] |= UINT64_C(1) << (c & 63);
    }
}

/* Follows ends as far as they go; `own`: with the bytes of the state itself. */
static void add_symbols(reader *r, reading at, bool own, uint64_t symbols[5]) {
    const program *p = r->s->p;
    for (;; own = true) {
        const grammar_state *st = &r->s->list[at.state];
        if (own) add_own(p, st, symbols);
        for (int32_t i = 0; i < st->n_calls; i++) add_rule(p, st->calls[i].rule, symbols);
        if (!st->accepting) return;
        look(r, at.stack);
        if (at.stack == STACK_EMPTY) return;
        const frame *f = &r->frames[at.stack];
        if (f->loop >= 0) {
            const program_loop *loop = &p->loops[f->loop];
            if (loop->max == PROGRAM_FOREVER || f->count + 1 < loop->max) {
                add_rule(p, loop->rule, symbols);
            }
            if (f->count + 1 < loop->min) return;
        }
        at = (reading){f->ret, f->parent};
    }
}

void readings__symbols(reader *r, reading at, uint64_t symbols[5]) {
    add_symbols(r, at, true, symbols);
}

void readings__other_symbols(reader *r, reading at, uint64_t symbols[5]) {
    add_symbols(r, at, false, symbols);
}
