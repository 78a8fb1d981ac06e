/* Rules that every grammar of JSON shares: blanks, strings, numbers, any value. Made when first asked
 * for. */
#ifndef DI_GRAMMAR_JSON_RULES_H
#define DI_GRAMMAR_JSON_RULES_H

#include "grammar/chars.h"
#include "grammar/grammar.h"

enum {
    JSON_MAX_SPACE = 32,
    JSON_MAX_DIGITS = 64 /* before the point, and behind it; keeps any number within a double */
};

typedef struct json_rules {
    compiler *c;
    di_grammar_space space;
    bool in_call; /* strings do not spell the marker of tool calls: it would end their parameter */
    int32_t space_rule, char_rule, string, number, integer, value, object, array; /* -1: not made */
} json_rules;

void json__init(json_rules *j, compiler *c, di_grammar_space space);

/* Blanks, then next. `after`: behind "," or ":". */
int32_t json__space(json_rules *j, bool after, int32_t next);
/* A punctuation character with the blanks around it: before "," ":" "]" "}", behind "," ":" "[" "{". */
int32_t json__comma(json_rules *j, int32_t next);
int32_t json__colon(json_rules *j, int32_t next);
int32_t json__open(json_rules *j, char bracket, int32_t next);
int32_t json__close(json_rules *j, char bracket, int32_t next);

/* A quoted string of any characters, in any spelling; of min to max characters (max -1: any number). */
int32_t json__string(json_rules *j, int64_t min, int64_t max, int32_t next);
int32_t json__number(json_rules *j, int32_t next);
int32_t json__integer(json_rules *j, int32_t next);
int32_t json__value(json_rules *j, int32_t next);
int32_t json__object(json_rules *j, int32_t next);
int32_t json__array(json_rules *j, int32_t next);

#endif
