/* Sets of characters (code points), automata over them, and their bytes in a program.
 *
 * Regular expressions, formats, lengths, names and constants of JSON Schema all become automata over
 * characters, where they can be combined; only then are they written as bytes, plainly or as the
 * inside of a JSON string. Everything lives in the arena of one compilation, and every operation
 * takes its steps from that compilation's budget, so that no input can take more than its time.
 */
#ifndef DI_GRAMMAR_CHARS_H
#define DI_GRAMMAR_CHARS_H

#include "base/arena.h"
#include "base/error.h"
#include "grammar/program.h"

enum {
    CHARS_LAST = 0x10ffff,
    CHARS_MAX_STATES = 20000,
    COMPILE_STEPS = 30000000 /* about a quarter of a second */
};

/* One compilation. Failures stick: functions then return NULL, 0 or PROGRAM_FAIL, and whoever began
 * the compilation reports. */
typedef struct compiler {
    di_arena arena;
    program p;
    int64_t steps_left;
    di_status status;
    di_error *error;
    struct made_bytes *made; /* chars_emit.c: byte sequences made lately, to be used again */
} compiler;

void compiler__init(compiler *c, di_error *error);
void compiler__deinit(compiler *c);
void *compiler__alloc(compiler *c, size_t count, size_t size); /* zeroed; NULL: failed */
bool compiler__spend(compiler *c, int64_t steps);              /* false: the budget is gone */
/* Keeps the first failure. */
#define compiler__fail(c, code, ...)                                                               \
    ((c)->status == DI_OK ? (void)((c)->status = di_fail((c)->error, code, __VA_ARGS__)) : (void)0)

/* ---- Sets ---- */

typedef struct char_range {
    uint32_t lo, hi;
} char_range;

/* Ranges in order, neither touching nor overlapping. */
typedef struct char_set {
    char_range *ranges;
    int32_t n, capacity;
} char_set;

/* Adds a range anywhere; call set_normalize before any other use. */
void chars__add(compiler *c, char_set *set, uint32_t lo, uint32_t hi);
void chars__normalize(char_set *set);
/* All other characters; surrogates are none. */
char_set chars__complement(compiler *c, const char_set *set);

/* ---- Deterministic automata ---- */

typedef struct char_edge {
    uint32_t lo, hi;
    int32_t to;
} char_edge;

typedef struct char_state {
    char_edge *edges; /* in order, disjoint; a character without an edge is refused */
    int32_t n_edges;
    bool accepting;
} char_state;

/* Every state but perhaps the first can reach an end. n == 0: nothing matches. */
typedef struct char_dfa {
    char_state *states;
    int32_t n, capacity;
} char_dfa;

char_dfa *chars__any_text(compiler *c);
/* Texts: [n], each UTF-8. */
typedef struct char_text {
    const char *text;
    size_t size;
} char_text;
char_dfa *chars__literals(compiler *c, const char_text *texts, size_t n);
char_dfa *chars__intersect(compiler *c, const char_dfa *a, const char_dfa *b);
char_dfa *chars__subtract(compiler *c, const char_dfa *a, const char_dfa *b);
/* Those of min to max characters; max -1: any number. */
char_dfa *chars__of_length(compiler *c, const char_dfa *a, int64_t min, int64_t max);
bool chars__matches(const char_dfa *a, const char *text, size_t size);
bool chars__is_empty(const char_dfa *a);
/* Those texts whose every beginning is one of texts without end. */
char_dfa *chars__endless(compiler *c, const char_dfa *a);

/* For those that build automata: a state more (-1: failed), an edge behind the last; then trim. */
int32_t chars__add_state(compiler *c, char_dfa *a, bool accepting);
void chars__add_edge(compiler *c, char_dfa *a, int32_t from, uint32_t lo, uint32_t hi, int32_t to);
void chars__trim(compiler *c, char_dfa *a);

/* ---- Bytes ---- */

typedef enum char_form {
    CHAR_RAW, /* UTF-8 */
    CHAR_JSON /* inside the quotes of JSON: escapes where they must be, and only there */
} char_form;

/* One character of the set, then next. */
int32_t chars__emit_set(compiler *c, const char_set *set, char_form form, int32_t next);
/* A text of the automaton, then next. */
int32_t chars__emit_dfa(compiler *c, const char_dfa *a, char_form form, int32_t next);

#endif
