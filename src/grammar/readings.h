/* Readings: where in a grammar a text may stand. A reading is a state and a stack of rules that are
 * still open; a text that can be read in several ways has several.
 *
 * Stacks are linked lists of frames in a pool, grown at their tops only, so that readings share
 * their lower parts and a copy is two numbers. The pool is only ever appended to or cut back.
 */
#ifndef DI_GRAMMAR_READINGS_H
#define DI_GRAMMAR_READINGS_H

#include "grammar/states.h"

enum {
    READINGS_MAX = 256,         /* at once */
    READINGS_MAX_PUSHES = 4096, /* frames one symbol may push; more is a hostile grammar */
    STACK_EMPTY = -1
};

/* An open rule: where to go on when it ends. For a counted repetition also how many are done. */
typedef struct frame {
    int32_t ret;    /* state */
    int32_t parent; /* frame, or STACK_EMPTY */
    int32_t loop;   /* or -1 */
    int32_t count;
    uint64_t hash; /* of the stack from here down */
    int32_t depth; /* frames from here down, >= 1 */
} frame;

typedef struct reading {
    int32_t state, stack;
} reading;

typedef struct reading_list {
    reading *items;
    int32_t n, capacity;
} reading_list;

typedef struct reader {
    states *s;
    frame *frames;
    int32_t n_frames, capacity;
    /* The deepest look below frame `base`: the smallest depth of a frame read, 0: the bottom. */
    int32_t base, touched;
    int32_t pushes;   /* since the last readings__step */
    di_status status; /* sticky */
} reader;

/* Appends to `out` the readings after one symbol, without doubles among out->items[from..). */
void readings__step(reader *r, reading from, int symbol, reading_list *out, int32_t first);
/* The text may end here. Does not count as a look. */
bool readings__may_end(const reader *r, reading at);
/* Adds the symbols that may come next by another way than a step within the state's own rule: by entering
 * a rule, or by ending this one. Counts as a look, like the step itself. */
void readings__other_symbols(reader *r, reading at, uint64_t symbols[5]);
/* Adds the symbols that may come next, bit s % 64 of word s / 64. */
void readings__symbols(reader *r, reading at, uint64_t symbols[5]);

/* The same frames, though perhaps at different places in the pool. */
bool readings__same_stack(const reader *r, int32_t a, int32_t b);

bool readings__push(reading_list *list, reading item); /* false: no memory */

#endif
