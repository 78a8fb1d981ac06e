/* The names of a call's parameters: none may come twice, which no automaton can tell where any name may come.
 *
 * It follows the text behind each marker of the chat format: ` parameter name="NAME"` is a name,
 * ` invoke name="` begins a call. Where a name has been used in the call, its closing quote may not
 * come; some other character always may, since names that come from a grammar can always be longer
 * (tools.c sees to that).
 */
#ifndef DI_GRAMMAR_CALL_NAMES_H
#define DI_GRAMMAR_CALL_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "grammar/vocabulary.h"

/* Small, so that a matcher can go back to it. */
typedef struct call_place {
    size_t call; /* where this call's names begin in `used`: "a"b"c" */
    size_t size; /* of `used`; an open name is its end */
    int8_t n;    /* bytes of a head that the text behind the last marker is, or -1: of neither */
    int8_t head; /* 0: of either */
    bool in_name;
} call_place;

typedef struct call_names {
    di_buffer used; /* what lies behind the place's size counts no more */
    call_place at;
} call_names;

#define CALL_NAMES_EMPTY                                                                           \
    {                                                                                              \
        DI_BUFFER_EMPTY, { 0, 0, -1, 0, false }                                                    \
    }

/* The byte would end a name that has been used. */
bool call_names__forbids(const call_names *names, int byte);
/* Takes one byte that is not forbidden, or the marker. used.failed: no memory. */
void call_names__take(call_names *names, int byte);
void call_names__marker(call_names *names);
/* Takes the tokens that would end a used name out of a mask. */
void call_names__mask(const call_names *names, const di_vocabulary *vocabulary, uint32_t *words);

#endif
