/* Regular expressions: the common ground of ECMAScript, RE2 and Python.
 *
 * Taken: literals, `.` (all but line ends), classes with ranges, \d \D \w \W \s \S (ASCII digits and
 * words; Unicode blanks), \n \r \t \f \v \0, \xHH, \uHHHH (pairs of surrogates are one character),
 * \u{H}, \cX, escaped punctuation, \p{L} \p{M} \p{N} and their negations, groups ( ) (?: ) (?<name> )
 * (?P<name> ), |, * + ? {n} {n,} {n,m} also lazy (which matches the same texts), ^ and $ as the ends of
 * the text. Refused by name: lookaround, backreferences, \b \B, inline flags, possessive and atomic
 * forms, other properties.
 */
#ifndef DI_GRAMMAR_REGEX_H
#define DI_GRAMMAR_REGEX_H

#include "grammar/chars.h"

enum {
    REGEX_MAX_NODES = 200000,
    REGEX_MAX_DEPTH = 200, /* nested groups */
    REGEX_MAX_COUNT = 10000
};

/* A nondeterministic automaton over characters, without assertions. */
typedef struct regex regex;

/* `search`: the expression may match anywhere in the text (JSON Schema); otherwise all of it. Messages
 * begin with `what`. NULL: the compiler has failed. */
const regex *regex__parse(compiler *c, const char *text, size_t size, bool search,
                          const char *what);
char_dfa *regex__determine(compiler *c, const regex *r);
/* A text of the expression, then next. */
int32_t regex__emit(compiler *c, const regex *r, char_form form, int32_t next);

/* For GBNF, which has classes and escapes of the same form: from behind "[" to behind "]", and from
 * behind a backslash. */
uint32_t regex__read_escape(compiler *c, const char *text, size_t size, size_t *at,
                            const char *what);
size_t regex__read_class(compiler *c, const char *text, size_t size, size_t at, char_set *set,
                         const char *what);

#endif
