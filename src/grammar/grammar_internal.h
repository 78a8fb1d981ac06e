/* What a compiled grammar holds, and how its parts are reached. */
#ifndef DI_GRAMMAR_GRAMMAR_INTERNAL_H
#define DI_GRAMMAR_GRAMMAR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "grammar/chars.h"
#include "grammar/grammar.h"
#include "grammar/mask.h"
#include "grammar/program.h"
#include "grammar/readings.h"
#include "grammar/states.h"

struct di_grammar {
    atomic_int n_holders;
    const di_vocabulary *vocabulary; /* or NULL */
    program p;                       /* never changes */
    int32_t marker_ids[PROGRAM_MAX_MARKERS];
    int64_t n_steps;      /* of COMPILE_STEPS, what compiling took */
    bool has_calls;       /* of which no parameter may come twice: call_names.h */
    pthread_mutex_t lock; /* of what follows */
    states s;
    mask_cache masks;
};

/* Front ends as parts of a program: a text of the form, then next. What fails is in the compiler. */
int32_t form__emit(compiler *c, const di_grammar_options *options, const di_grammar_form *form,
                   int32_t next);
int32_t schema__emit_whole(compiler *c, const di_grammar_options *options, const di_json *json,
                           int32_t next);
int32_t ebnf__emit(compiler *c, const char *text, size_t size, int32_t next);

/* The end of every front end: makes the grammar of the compiler's program, or passes on what failed;
 * the compiler is gone afterwards. */
di_status grammar__finish(const di_vocabulary *vocabulary, compiler *c, di_grammar **out);

#endif
