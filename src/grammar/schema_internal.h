/* JSON Schema on its way to a program.
 *
 * A *conjunction* is a set of schemas that all hold for one value. It is the unit of recursion: every
 * property, every item has one, conjunctions with the same parts are one, and each becomes one rule.
 *
 * A *shape* is what a conjunction allows, in a form that is closed under and, or and (mostly) not: for
 * every JSON type a list of alternatives. It is made by reading keywords of the value at hand;
 * what lies below it stays conjunctions, so recursion ends by itself.
 */
#ifndef DI_GRAMMAR_SCHEMA_INTERNAL_H
#define DI_GRAMMAR_SCHEMA_INTERNAL_H

#include "grammar/json_rules.h"
#include "grammar/regex.h"

enum {
    SCHEMA_MAX_CONJUNCTIONS = 20000,
    SCHEMA_MAX_DEPTH = 300, /* schemas in schemas about the same value, through $ref, allOf, ... */
    SCHEMA_MAX_ALTERNATIVES = 4096, /* of one type at one place */
    SCHEMA_MAX_NAME_CLASSES = 64,   /* kinds of names that patternProperties tell apart */
    SCHEMA_MAX_LOOK = 8,  /* levels looked down to find that alternatives exclude each other */
    SCHEMA_PRUNE_LOOK = 3 /* schemas in simple schemas (schema_apart.c) */
};

/* ---- Conjunctions ---- */

typedef enum part_kind { PART_SCHEMA, PART_NOT, PART_VALUE, PART_NOT_VALUE } part_kind;

typedef struct part {
    part_kind kind;
    const di_json *json; /* a schema, or the one value */
} part;

typedef struct shape shape;

typedef struct conjunction {
    part *parts; /* in the order they came, each once: it decides the order of properties */
    int32_t n;
    int32_t rule;       /* of the program, or -1 */
    const shape *shape; /* NULL: not made yet */
    bool reading;       /* its shape is being made: it refers to itself */
    int8_t simple;      /* 1: of schemas about scalars alone, -1: not, 0: not asked yet */
} conjunction;

enum { ANY = 0, NONE = 1 }; /* conjunctions that every schema has */

/* ---- Alternatives ---- */

/* value = (-1)^negative * whole.fraction, digits without needless zeros */
typedef struct decimal {
    bool negative;
    const char *whole, *fraction; /* digits; whole is "0" at least, fraction may be "" */
} decimal;

typedef struct number_alt {
    bool integer, broken; /* only integers; only others */
    const decimal *lo, *hi;
    bool lo_open, hi_open;
    const decimal **multiples; /* the value is a multiple of each */
    int32_t n_multiples;
    struct number_alt *next;
} number_alt;

typedef struct pattern {
    const regex *regex;
    char_dfa *dfa; /* made when asked for */
} pattern;

typedef struct string_test {
    pattern *pattern;
    bool negated;
    const struct string_test *next;
} string_test;

typedef struct string_alt {
    int64_t min, max; /* characters; max -1: no bound */
    const string_test *tests;
    bool has_literals; /* only these */
    char_text *literals;
    size_t n_literals;
    struct string_alt *next;
} string_alt;

typedef struct array_alt {
    int32_t *prefix; /* conjunctions */
    int32_t n_prefix;
    int32_t rest;
    bool rest_implicit; /* nobody said so */
    bool unique;        /* no two items are equal */
    int64_t min, max;
    struct array_alt *next;
} array_alt;

typedef struct property {
    const char *name;
    size_t size;
    int32_t value; /* conjunction; NONE: must be absent */
    bool required;
} property;

/* Names that are no property's and that `names` allows. The classes of an alternative are disjoint;
 * names in none of them are not allowed. */
typedef struct name_class {
    const string_alt *names;
    int32_t value;
    bool implicit; /* nobody said so */
} name_class;

typedef struct object_alt {
    property *properties;
    int32_t n_properties;
    name_class *classes;
    int32_t n_classes;
    bool declares; /* has "properties" */
    int64_t min, max;
    struct object_alt *next;
} object_alt;

struct shape {
    bool null, yes, no;
    number_alt *numbers;
    string_alt *strings;
    array_alt *arrays;
    object_alt *objects;
};

/* ---- The reader ---- */

typedef struct schema {
    compiler *c;
    json_rules rules;
    bool closed;
    const di_json *root;
    conjunction *conjunctions;
    int32_t n, capacity;
    int32_t *table;
    int32_t table_mask;
    int depth;
    const pattern *marker; /* no string may contain it: that of tool calls; or NULL */
    bool looped;           /* the failure at hand is that a shape needs itself */
    const di_json *at;     /* the schema being read, for messages */
    pattern **formats;     /* by format: made when asked for */
    int32_t *pending;      /* conjunctions whose rules have a number and wait for their body */
    int32_t n_pending, pending_capacity;
} schema;

/* Fails with "POINTER/KEYWORD: REASON"; keyword may be NULL. */
void schema__fail(schema *s, di_status status, const di_json *at, const char *keyword,
                  const char *reason);
/* "POINTER/KEYWORD" in the arena. */
const char *schema__pointer(schema *s, const di_json *at, const char *keyword);

/* schema_conjunction.c */
bool schema__init(schema *s, compiler *c, const di_grammar_options *options, const di_json *root);
int32_t schema__conjunction(schema *s, const part *parts, int32_t n);
int32_t schema__one(schema *s, part_kind kind, const di_json *json);
int32_t schema__both(schema *s, int32_t a, int32_t b);
/* NULL: failed. */
const shape *schema__shape(schema *s, int32_t conjunction);
/* No value satisfies it, as far as that shows within `look` levels. */
bool schema__is_empty(schema *s, int32_t conjunction, int look);
bool schema__shape_is_empty(schema *s, const shape *a, int look);
/* Like schema__shape; that the shape needs itself is no failure, and NULL too. */
const shape *schema__try_shape(schema *s, int32_t conjunction);

/* schema_apart.c: no value satisfies both, as far as that shows; false: some may. */
bool schema__apart(schema *s, const shape *a, const shape *b, int look);
/* The same of two conjunctions about scalars; others are not looked at, since that would read the whole
 * document wherever two objects are joined. */
bool schema__values_apart(schema *s, int32_t a, int32_t b);

/* schema_read.c: of one part. */
const shape *schema__read(schema *s, const part *p);
/* schema_object.c: what the keywords of objects say. */
object_alt *schema__read_object(schema *s, const di_json *json);
/* The same objects, where names that classes list as constants are properties: these come once. NULL:
 * failed. */
const object_alt *schema__listed_names(schema *s, const object_alt *a);
/* schema_ref.c: the schema that a $ref names, or NULL: failed. */
const di_json *schema__resolve(schema *s, const di_json *ref);
/* The same, without a failure. */
const di_json *schema__find(schema *s, const di_json *ref);
/* schema_format.c. NULL: failed, or the format says nothing about strings. */
pattern *schema__format(schema *s, const di_json *at, const di_json *name);
/* A format of numbers: narrows `a`, which may be NULL; false when it is none. */
bool schema__number_format(schema *s, const di_json *name, number_alt *a);
pattern *schema__pattern(schema *s, const char *text, size_t size, bool search, const char *what);

/* schema_combine.c */
shape *schema__any(schema *s);
shape *schema__nothing(schema *s);
const shape *schema__and(schema *s, const shape *a, const shape *b);
const shape *schema__or(schema *s, const shape *a, const shape *b);
const shape *schema__not(schema *s, const shape *a);
string_alt *schema__and_strings(schema *s, const string_alt *a,
                                const string_alt *b); /* NULL: none */
number_alt *schema__and_numbers(schema *s, const number_alt *a,
                                const number_alt *b); /* NULL: none */
property schema__view(schema *s, const object_alt *a, const char *name,
                      size_t size); /* what it says about a name */
bool schema__string_matches(schema *s, const string_alt *a, const char *text, size_t size);
char_dfa *schema__string_dfa(schema *s, const string_alt *a);
char_dfa *schema__pattern_dfa(schema *s, pattern *p);
string_alt *schema__any_string(schema *s);

/* schema_decimal.c */
const decimal *schema__decimal(schema *s, const di_json *number, const char *keyword);
int schema__compare(const decimal *a, const decimal *b);
/* The number as text, in the arena. */
const char *schema__decimal_text(schema *s, const decimal *d);
/* An integer lies between the two bounds. By arithmetic: an automaton for each of thousands of pairs of
 * ranges would take a second. Those of more than 64 digits count too, though none is written. */
bool schema__holds_an_integer(schema *s, const number_alt *a);
/* An open bound (lower: `up`) of more digits than a double keeps apart: a number may lie behind it and be
 * read as the bound itself. What lies behind the result, the middle between the bound as a double and the
 * next double, cannot. */
const decimal *schema__open_bound(schema *s, const decimal *bound, bool up);

/* schema_number.c */
bool schema__number_is_empty(schema *s, const number_alt *a);
char_dfa *schema__number_dfa(schema *s, const number_alt *a);

/* schema_emit.c: a value of the conjunction, then next. */
int32_t schema__emit(schema *s, int32_t conjunction, int32_t next);
/* Gives every rule that was asked for its body. */
void schema__emit_pending(schema *s);
int32_t schema__emit_string(schema *s, const string_alt *a, char_form form, int32_t next);
/* schema_unique.c: an array whose items all differ, behind its bracket; then `close`. */
int32_t schema__emit_unique(schema *s, const array_alt *a, int32_t close);
/* All alternatives but strings. */
int32_t schema__emit_others(schema *s, const shape *a, int32_t next);

#endif
