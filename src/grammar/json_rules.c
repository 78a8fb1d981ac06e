#include "grammar/json_rules.h"

#include <string.h>

void json__init(json_rules *j, compiler *c, di_grammar_space space) {
    *j = (json_rules){c, space, false, -1, -1, -1, -1, -1, -1, -1, -1};
}

/* ---- Blanks ---- */

static int32_t blank(program *p, int32_t next) {
    int32_t space = program__bytes(p, ' ', ' ', next);
    int32_t line =
        program__split(p, program__bytes(p, '\t', '\n', next), program__bytes(p, '\r', '\r', next));
    return program__split(p, space, line);
}

static int32_t space_rule(json_rules *j) {
    program *p = &j->c->p;
    if (j->space_rule < 0) {
        j->space_rule = program__rule(p, "blanks");
        int32_t at = PROGRAM_ACCEPT;
        for (int i = 0; i < JSON_MAX_SPACE; i++)
            at = program__split(p, blank(p, at), PROGRAM_ACCEPT);
        program__define(p, j->space_rule, at);
    }
    return j->space_rule;
}

int32_t json__space(json_rules *j, bool after, int32_t next) {
    program *p = &j->c->p;
    switch (j->space) {
    case DI_GRAMMAR_SPACE_FREE: return program__call(p, space_rule(j), next);
    case DI_GRAMMAR_SPACE_PYTHON: return after ? program__bytes(p, ' ', ' ', next) : next;
    case DI_GRAMMAR_SPACE_NONE: break;
    }
    return next;
}

static int32_t sign(json_rules *j, char c, int32_t next) {
    return program__bytes(&j->c->p, c, c, next);
}

int32_t json__comma(json_rules *j, int32_t next) {
    return json__space(j, false, sign(j, ',', json__space(j, true, next)));
}

int32_t json__colon(json_rules *j, int32_t next) {
    return json__space(j, false, sign(j, ':', json__space(j, true, next)));
}

int32_t json__open(json_rules *j, char bracket, int32_t next) {
    return sign(j, bracket, json__space(j, false, next));
}

int32_t json__close(json_rules *j, char bracket, int32_t next) {
    return json__space(j, false, sign(j, bracket, next));
}

/* ---- Strings ---- */

static int32_t hex(program *p, int n, int32_t next) {
    for (; n > 0; n--) {
        int32_t letters =
            program__split(p, program__bytes(p, 'a', 'f', next), program__bytes(p, 'A', 'F', next));
        next = program__split(p, program__bytes(p, '0', '9', next), letters);
    }
    return next;
}

static int32_t either_case(program *p, char lo, char hi, int32_t next) {
    return program__split(p, program__bytes(p, lo, hi, next),
                          program__bytes(p, lo - 32, hi - 32, next));
}

/* Behind \u: a character that is no surrogate, or a pair. */
static int32_t unicode_escape(program *p, int32_t next) {
    int32_t low = either_case(p, 'd', 'd', either_case(p, 'c', 'f', hex(p, 2, next)));
    int32_t second = program__literal(p, "\\u", 2, low);
    int32_t two = hex(p, 2, second);
    int32_t high =
        program__split(p, program__bytes(p, '8', '9', two), either_case(p, 'a', 'b', two));
    int32_t below = program__bytes(p, '0', '7', hex(p, 2, next)); /* d000 to d7ff */
    int32_t d = either_case(p, 'd', 'd', program__split(p, below, high));
    int32_t three = hex(p, 3, next);
    int32_t others =
        program__split(p, program__bytes(p, '0', '9', three), either_case(p, 'a', 'c', three));
    others = program__split(p, others, either_case(p, 'e', 'f', three));
    return program__split(p, d, others);
}

/* An escaped character in any spelling. */
static int32_t string_escape(program *p, int32_t next) {
    int32_t escape = program__bytes(p, 'u', 'u', unicode_escape(p, next));
    for (const char *s = "\"\\/bfnrt"; *s; s++) {
        escape = program__split(p, program__bytes(p, *s, *s, next), escape);
    }
    return program__bytes(p, '\\', '\\', escape);
}

/* One character that needs no escape, but for two (0: none), then next. */
static int32_t plain_char(compiler *c, uint32_t one, uint32_t other, int32_t next) {
    char_set special = {0};
    chars__add(c, &special, 0, 0x1f);
    chars__add(c, &special, '"', '"');
    chars__add(c, &special, '\\', '\\');
    if (one) chars__add(c, &special, one, one);
    if (other) chars__add(c, &special, other, other);
    chars__normalize(&special);
    char_set plain = chars__complement(c, &special);
    return chars__emit_set(c, &plain, CHAR_RAW, next);
}

static int32_t one_char(compiler *c, uint32_t code, int32_t next) {
    char_set one = {0};
    chars__add(c, &one, code, code);
    chars__normalize(&one);
    return chars__emit_set(c, &one, CHAR_RAW, next);
}

static const uint32_t marker[] = {0xff5c, 'D', 'S', 'M', 'L', 0xff5c}; /* CHAT_DSML */
enum { MARKER_LENGTH = sizeof marker / sizeof *marker };

static int32_t char_rule(json_rules *j) {
    program *p = &j->c->p;
    if (j->char_rule < 0) {
        /* Counted characters have no memory of those before: of a marker the first is escaped. */
        uint32_t never = j->in_call ? marker[0] : 0;
        j->char_rule = program__rule(p, "character");
        program__define(p, j->char_rule,
                        program__split(p, plain_char(j->c, never, 0, PROGRAM_ACCEPT),
                                       string_escape(p, PROGRAM_ACCEPT)));
    }
    return j->char_rule;
}

/* Characters and the closing quote. In a call each place knows how much of the marker stands before it;
 * its last character, which is its first too, is not taken there. */
static int32_t string_rest(json_rules *j) {
    compiler *c = j->c;
    program *p = &c->p;
    int32_t at[MARKER_LENGTH];
    int n = j->in_call ? MARKER_LENGTH : 1;
    for (int k = 0; k < n; k++) at[k] = program__open(p);
    for (int k = 0; k < n; k++) {
        uint32_t first = j->in_call ? marker[0] : 0, wanted = j->in_call ? marker[k] : 0;
        int32_t all =
            program__split(p, plain_char(c, first, wanted, at[0]), string_escape(p, at[0]));
        if (k + 1 < n) {
            all = program__split(p, one_char(c, wanted, at[k + 1]), all);
            if (k > 0) all = program__split(p, one_char(c, first, at[1]), all);
        }
        program__close(p, at[k], all, sign(j, '"', PROGRAM_ACCEPT));
    }
    return at[0];
}

static int32_t string_rule(json_rules *j) {
    program *p = &j->c->p;
    if (j->string < 0) {
        j->string = program__rule(p, "string");
        program__define(p, j->string, sign(j, '"', string_rest(j)));
    }
    return j->string;
}

int32_t json__string(json_rules *j, int64_t min, int64_t max, int32_t next) {
    program *p = &j->c->p;
    if (min <= 0 && max < 0) return program__call(p, string_rule(j), next);
    if (max >= 0 && min > max) return PROGRAM_FAIL;
    if (min >= PROGRAM_FOREVER || max >= PROGRAM_FOREVER) {
        /* A maximum like this is none; a minimum like this no text reaches. */
        if (min >= PROGRAM_FOREVER) return PROGRAM_FAIL;
        max = -1;
    }
    int32_t end = sign(j, '"', next);
    int32_t chars = program__repeat(p, char_rule(j), (int32_t)min,
                                    max < 0 ? PROGRAM_FOREVER : (int32_t)max, end);
    return sign(j, '"', chars);
}

/* ---- Numbers ---- */

/* [0-9]{0,n}, then next. */
static int32_t more_digits(program *p, int n, int32_t next) {
    int32_t at = next;
    for (int i = 0; i < n; i++) at = program__split(p, program__bytes(p, '0', '9', at), next);
    return at;
}

/* -0 is a number, as in -0.5, but no integer that anybody would write. */
static int32_t integer_part(program *p, bool integer, int32_t next) {
    int32_t digits = program__bytes(p, '1', '9', more_digits(p, JSON_MAX_DIGITS - 1, next));
    int32_t part = program__split(p, program__bytes(p, '0', '0', next), digits);
    return program__split(p, program__bytes(p, '-', '-', integer ? digits : part), part);
}

int32_t json__integer(json_rules *j, int32_t next) {
    program *p = &j->c->p;
    if (j->integer < 0) {
        j->integer = program__rule(p, "integer");
        program__define(p, j->integer, integer_part(p, true, PROGRAM_ACCEPT));
    }
    return program__call(p, j->integer, next);
}

int32_t json__number(json_rules *j, int32_t next) {
    program *p = &j->c->p;
    if (j->number < 0) {
        j->number = program__rule(p, "number");
        /* Two digits of exponent: with the digits above, a double always holds it. */
        int32_t power = program__bytes(p, '0', '9', more_digits(p, 1, PROGRAM_ACCEPT));
        int32_t signs = program__split(p, program__bytes(p, '+', '+', power),
                                       program__bytes(p, '-', '-', power));
        int32_t exponent = either_case(p, 'e', 'e', program__split(p, signs, power));
        exponent = program__split(p, exponent, PROGRAM_ACCEPT);
        int32_t digits = program__bytes(p, '0', '9', more_digits(p, JSON_MAX_DIGITS - 1, exponent));
        int32_t rest = program__split(p, program__bytes(p, '.', '.', digits), exponent);
        program__define(p, j->number, integer_part(p, false, rest));
    }
    return program__call(p, j->number, next);
}

/* ---- Any value ---- */

static int32_t value_rule(json_rules *j);

/* OPEN (item (, item)*)? CLOSE */
static int32_t sequence(json_rules *j, const char brackets[2], bool members) {
    program *p = &j->c->p;
    int32_t end = json__close(j, brackets[1], PROGRAM_ACCEPT);
    int32_t more = program__open(p);
    int32_t item = program__call(p, value_rule(j), more);
    if (members) item = json__string(j, 0, -1, json__colon(j, item));
    program__close(p, more, json__comma(j, item), end);
    int32_t none = sign(j, brackets[1], PROGRAM_ACCEPT);
    return json__open(j, brackets[0], program__split(p, item, none));
}

static int32_t object_rule(json_rules *j) {
    if (j->object < 0) {
        j->object = program__rule(&j->c->p, "object");
        program__define(&j->c->p, j->object, sequence(j, "{}", true));
    }
    return j->object;
}

static int32_t array_rule(json_rules *j) {
    if (j->array < 0) {
        j->array = program__rule(&j->c->p, "array");
        program__define(&j->c->p, j->array, sequence(j, "[]", false));
    }
    return j->array;
}

static int32_t value_rule(json_rules *j) {
    program *p = &j->c->p;
    if (j->value >= 0) return j->value;
    j->value = program__rule(p, "value");
    int32_t all = program__call(p, object_rule(j), PROGRAM_ACCEPT);
    all = program__split(p, all, program__call(p, array_rule(j), PROGRAM_ACCEPT));
    all = program__split(p, all, json__string(j, 0, -1, PROGRAM_ACCEPT));
    all = program__split(p, all, json__number(j, PROGRAM_ACCEPT));
    all = program__split(p, all, program__literal(p, "true", 4, PROGRAM_ACCEPT));
    all = program__split(p, all, program__literal(p, "false", 5, PROGRAM_ACCEPT));
    all = program__split(p, all, program__literal(p, "null", 4, PROGRAM_ACCEPT));
    program__define(p, j->value, all);
    return j->value;
}

int32_t json__value(json_rules *j, int32_t next) {
    return program__call(&j->c->p, value_rule(j), next);
}

int32_t json__object(json_rules *j, int32_t next) {
    return program__call(&j->c->p, object_rule(j), next);
}

int32_t json__array(json_rules *j, int32_t next) {
    return program__call(&j->c->p, array_rule(j), next);
}
