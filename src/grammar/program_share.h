/* Sharing the beginnings of alternatives.
 *
 * Nodes of one rule that no byte tells apart are one state, but calls of different rules are different
 * readings: 300 alternatives that each call a rule of their own would be 300 readings of one text. So, once
 * a program is otherwise finished, rules with the same body become one rule, loops over the same rule
 * one loop, and a rule that is called at one place only, or is small, is put where it is called.
 */
#ifndef DI_GRAMMAR_PROGRAM_SHARE_H
#define DI_GRAMMAR_PROGRAM_SHARE_H

#include "grammar/program.h"

/* The language stays as it is, and so does what program__finish has worked out. Where the program would
 * become too large calls stay calls. False: no memory. */
bool program__share(program *p);

#endif
