/* And, or and not of shapes. */
#include <string.h>

#include "base/utf8.h"
#include "grammar/schema_internal.h"

#define NEW(s, type) ((type *)compiler__alloc((s)->c, 1, sizeof(type)))

string_alt *schema__any_string(schema *s) {
    string_alt *a = NEW(s, string_alt);
    if (a) a->max = -1;
    return a;
}

static array_alt *any_array(schema *s) {
    array_alt *a = NEW(s, array_alt);
    if (a) *a = (array_alt){.rest = ANY, .rest_implicit = true, .max = -1};
    return a;
}

static object_alt *any_object(schema *s) {
    object_alt *a = NEW(s, object_alt);
    name_class *classes = NEW(s, name_class);
    if (!a || !classes) return NULL;
    *classes = (name_class){schema__any_string(s), ANY, true};
    *a = (object_alt){.classes = classes, .n_classes = 1, .max = -1};
    return classes->names ? a : NULL;
}

shape *schema__nothing(schema *s) { return NEW(s, shape); }

shape *schema__any(schema *s) {
    shape *a = NEW(s, shape);
    if (!a) return NULL;
    *a = (shape){true,         true,         true, NEW(s, number_alt), schema__any_string(s),
                 any_array(s), any_object(s)};
    return s->c->status == DI_OK ? a : NULL;
}

/* ---- Patterns ---- */

char_dfa *schema__pattern_dfa(schema *s, pattern *p) {
    if (!p->dfa) p->dfa = regex__determine(s->c, p->regex);
    return p->dfa;
}

static int64_t count_chars(const char *text, size_t size) {
    int64_t n = 0;
    for (size_t i = 0; i < size; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static bool has_literal(const string_alt *a, const char *text, size_t size) {
    for (size_t i = 0; i < a->n_literals; i++) {
        if (a->literals[i].size == size && memcmp(a->literals[i].text, text, size) == 0)
            return true;
    }
    return false;
}

/* Length and tests. */
static bool keeps_tests(schema *s, const string_alt *a, const char *text, size_t size) {
    int64_t n = count_chars(text, size);
    if (n < a->min || (a->max >= 0 && n > a->max)) return false;
    for (const string_test *t = a->tests; t; t = t->next) {
        const char_dfa *dfa = schema__pattern_dfa(s, t->pattern);
        if (!compiler__spend(s->c, n + 1)) return false;
        if (!dfa || chars__matches(dfa, text, size) == t->negated) return false;
    }
    return true;
}

bool schema__string_matches(schema *s, const string_alt *a, const char *text, size_t size) {
    if (!compiler__spend(s->c, (int64_t)(a->n_literals + size) / 8 + 1)) return false;
    if (a->has_literals && !has_literal(a, text, size)) return false;
    return keeps_tests(s, a, text, size);
}

char_dfa *schema__string_dfa(schema *s, const string_alt *a) {
    compiler *c = s->c;
    char_dfa *all = a->has_literals ? chars__literals(c, a->literals, a->n_literals) : NULL;
    for (const string_test *t = a->tests; t; t = t->next) {
        if (t->negated) continue;
        char_dfa *one = schema__pattern_dfa(s, t->pattern);
        all = all ? chars__intersect(c, all, one) : one;
    }
    if (!all) all = chars__any_text(c);
    for (const string_test *t = a->tests; t; t = t->next) {
        if (t->negated) all = chars__subtract(c, all, schema__pattern_dfa(s, t->pattern));
    }
    if (s->marker) all = chars__subtract(c, all, s->marker->dfa);
    if (a->min > 0 || a->max >= 0) all = chars__of_length(c, all, a->min, a->max);
    return all;
}

/* ---- And ---- */

/* NULL also when no string is left. */
string_alt *schema__and_strings(schema *s, const string_alt *a, const string_alt *b) {
    string_alt *both = NEW(s, string_alt);
    if (!both) return NULL;
    both->min = a->min > b->min ? a->min : b->min;
    both->max = a->max < 0 || (b->max >= 0 && b->max < a->max) ? b->max : a->max;
    both->tests = a->tests;
    for (const string_test *t = b->tests; t; t = t->next) {
        string_test *copy = NEW(s, string_test);
        if (!copy) return NULL;
        *copy = (string_test){t->pattern, t->negated, both->tests};
        both->tests = copy;
    }
    if (both->max >= 0 && both->min > both->max) return NULL;
    both->has_literals = a->has_literals || b->has_literals;
    if (!both->has_literals) {
        if (!both->tests || !(a->tests && b->tests)) return both;
        const char_dfa *dfa = schema__string_dfa(s, both);
        return dfa && !chars__is_empty(dfa) ? both : NULL;
    }
    const string_alt *from = a->has_literals ? a : b, *other = from == a ? b : a;
    both->literals = compiler__alloc(s->c, from->n_literals + 1, sizeof *both->literals);
    for (size_t i = 0; i < from->n_literals && both->literals; i++) {
        char_text t = from->literals[i];
        if (!compiler__spend(s->c, other->has_literals ? (int64_t)other->n_literals : 1))
            return NULL;
        if (schema__string_matches(s, other, t.text, t.size))
            both->literals[both->n_literals++] = t;
    }
    /* The literals have passed all tests that either had. */
    both->min = 0;
    both->max = -1;
    both->tests = NULL;
    return both->n_literals ? both : NULL;
}

number_alt *schema__and_numbers(schema *s, const number_alt *a, const number_alt *b) {
    number_alt *both = NEW(s, number_alt);
    if (!both) return NULL;
    *both = *a;
    both->next = NULL;
    both->integer |= b->integer;
    both->broken |= b->broken;
    int order = a->lo && b->lo ? schema__compare(a->lo, b->lo) : b->lo ? -1 : 1;
    if (order < 0 || (order == 0 && b->lo_open)) both->lo = b->lo, both->lo_open = b->lo_open;
    order = a->hi && b->hi ? schema__compare(a->hi, b->hi) : b->hi ? 1 : -1;
    if (order > 0 || (order == 0 && b->hi_open)) both->hi = b->hi, both->hi_open = b->hi_open;
    both->n_multiples = a->n_multiples + b->n_multiples;
    both->multiples = compiler__alloc(s->c, (size_t)both->n_multiples + 1, sizeof *both->multiples);
    if (!both->multiples) return NULL;
    for (int32_t i = 0; i < both->n_multiples; i++) {
        both->multiples[i] =
            i < a->n_multiples ? a->multiples[i] : b->multiples[i - a->n_multiples];
    }
    return schema__number_is_empty(s, both) ? NULL : both;
}

static array_alt *and_arrays(schema *s, const array_alt *a, const array_alt *b) {
    array_alt *both = NEW(s, array_alt);
    if (!both) return NULL;
    both->n_prefix = a->n_prefix > b->n_prefix ? a->n_prefix : b->n_prefix;
    both->prefix = compiler__alloc(s->c, (size_t)both->n_prefix + 1, sizeof *both->prefix);
    for (int32_t i = 0; i < both->n_prefix && both->prefix; i++) {
        both->prefix[i] = schema__both(s, i < a->n_prefix ? a->prefix[i] : a->rest,
                                       i < b->n_prefix ? b->prefix[i] : b->rest);
    }
    both->rest = schema__both(s, a->rest, b->rest);
    both->rest_implicit = a->rest_implicit && b->rest_implicit;
    both->unique = a->unique || b->unique;
    both->min = a->min > b->min ? a->min : b->min;
    both->max = a->max < 0 || (b->max >= 0 && b->max < a->max) ? b->max : a->max;
    return both->max >= 0 && both->min > both->max ? NULL : both;
}

static const property *find_property(const object_alt *a, const char *name, size_t size) {
    for (int32_t i = 0; i < a->n_properties; i++) {
        const property *p = &a->properties[i];
        if (p->size == size && memcmp(p->name, name, size) == 0) return p;
    }
    return NULL;
}

property schema__view(schema *s, const object_alt *a, const char *name, size_t size) {
    const property *known = find_property(a, name, size);
    if (known) return *known;
    property p = {name, size, NONE, false};
    for (int32_t i = 0; i < a->n_classes; i++) {
        if (schema__string_matches(s, a->classes[i].names, name, size)) {
            p.value = a->classes[i].value;
            break;
        }
    }
    return p;
}

static bool and_properties(schema *s, const object_alt *a, const object_alt *b, object_alt *both) {
    size_t n = (size_t)a->n_properties + (size_t)b->n_properties;
    both->properties = compiler__alloc(s->c, n + 1, sizeof *both->properties);
    if (!both->properties) return false;
    for (size_t i = 0; i < n; i++) {
        bool first = i < (size_t)a->n_properties;
        const property *p = first ? &a->properties[i] : &b->properties[i - (size_t)a->n_properties];
        if (!compiler__spend(s->c, (int64_t)n / 8 + 1)) return false;
        if (!first && find_property(a, p->name, p->size)) continue;
        property other = schema__view(s, first ? b : a, p->name, p->size);
        property made = *p;
        bool none = schema__values_apart(s, p->value, other.value);
        made.value = none    ? NONE
                     : first ? schema__both(s, p->value, other.value)
                             : schema__both(s, other.value, p->value);
        made.required = p->required || other.required;
        if (made.required && made.value == NONE) return false;
        both->properties[both->n_properties++] = made;
    }
    return true;
}

static bool and_classes(schema *s, const object_alt *a, const object_alt *b, object_alt *both) {
    size_t n = (size_t)a->n_classes * (size_t)b->n_classes;
    both->classes = compiler__alloc(s->c, n + 1, sizeof *both->classes);
    for (int32_t i = 0; i < a->n_classes && both->classes; i++) {
        for (int32_t k = 0; k < b->n_classes; k++) {
            const name_class *x = &a->classes[i], *y = &b->classes[k];
            int32_t value = schema__both(s, x->value, y->value);
            const string_alt *names =
                value == NONE ? NULL : schema__and_strings(s, x->names, y->names);
            if (names) {
                both->classes[both->n_classes++] =
                    (name_class){names, value, x->implicit && y->implicit};
            }
        }
    }
    if (both->n_classes > SCHEMA_MAX_NAME_CLASSES) {
        schema__fail(s, DI_ERR_LIMIT, s->at, "patternProperties",
                     "the patterns of names have more than 64 combinations");
    }
    return s->c->status == DI_OK;
}

static object_alt *and_objects(schema *s, const object_alt *a, const object_alt *b) {
    object_alt *both = NEW(s, object_alt);
    if (!both || !and_properties(s, a, b, both) || !and_classes(s, a, b, both)) return NULL;
    both->declares = a->declares || b->declares;
    both->min = a->min > b->min ? a->min : b->min;
    both->max = a->max < 0 || (b->max >= 0 && b->max < a->max) ? b->max : a->max;
    return both->max >= 0 && both->min > both->max ? NULL : both;
}

/* The alternatives of both lists in all pairs, those without a value left out. */
#define AND_LISTS(s, type, first, second, and_two)                                                 \
    type *all = NULL, **last = &all;                                                               \
    int32_t n = 0;                                                                                 \
    for (const type *x = (first); x; x = x->next) {                                                \
        for (const type *y = (second); y; y = y->next) {                                           \
            if (!compiler__spend(s->c, 10)) return NULL;                                           \
            type *both = and_two(s, x, y);                                                         \
            if (!both) continue;                                                                   \
            if (++n > SCHEMA_MAX_ALTERNATIVES) return too_many(s);                                 \
            *last = both;                                                                          \
            last = &both->next;                                                                    \
        }                                                                                          \
    }                                                                                              \
    return all;

static void *too_many(schema *s) {
    schema__fail(s, DI_ERR_LIMIT, s->at, NULL,
                 "the schema is too complicated: more than 4096 alternatives at one place");
    return NULL;
}

static number_alt *all_numbers(schema *s, const number_alt *a, const number_alt *b) {
    AND_LISTS(s, number_alt, a, b, schema__and_numbers)
}

static string_alt *all_strings(schema *s, const string_alt *a, const string_alt *b) {
    AND_LISTS(s, string_alt, a, b, schema__and_strings)
}

static array_alt *all_arrays(schema *s, const array_alt *a, const array_alt *b) {
    AND_LISTS(s, array_alt, a, b, and_arrays)
}

static object_alt *all_objects(schema *s, const object_alt *a, const object_alt *b) {
    AND_LISTS(s, object_alt, a, b, and_objects)
}

const shape *schema__and(schema *s, const shape *a, const shape *b) {
    shape *both = NEW(s, shape);
    if (!both) return NULL;
    both->null = a->null && b->null;
    both->yes = a->yes && b->yes;
    both->no = a->no && b->no;
    both->numbers = all_numbers(s, a->numbers, b->numbers);
    both->strings = all_strings(s, a->strings, b->strings);
    both->arrays = all_arrays(s, a->arrays, b->arrays);
    both->objects = all_objects(s, a->objects, b->objects);
    return s->c->status == DI_OK ? both : NULL;
}

/* ---- Or ---- */

#define OR_LISTS(s, type, first, second)                                                           \
    type *all = NULL, **last = &all;                                                               \
    int32_t n = 0;                                                                                 \
    for (int k = 0; k < 2; k++) {                                                                  \
        for (const type *x = k ? (second) : (first); x; x = x->next) {                             \
            type *copy = NEW(s, type);                                                             \
            if (!copy) return NULL;                                                                \
            if (++n > SCHEMA_MAX_ALTERNATIVES) return too_many(s);                                 \
            *copy = *x;                                                                            \
            copy->next = NULL;                                                                     \
            *last = copy;                                                                          \
            last = &copy->next;                                                                    \
        }                                                                                          \
    }                                                                                              \
    return all;

static number_alt *any_numbers(schema *s, const number_alt *a, const number_alt *b) {
    OR_LISTS(s, number_alt, a, b)
}

static string_alt *any_strings(schema *s, const string_alt *a, const string_alt *b) {
    OR_LISTS(s, string_alt, a, b)
}

static array_alt *any_arrays(schema *s, const array_alt *a, const array_alt *b) {
    OR_LISTS(s, array_alt, a, b)
}

static object_alt *any_objects(schema *s, const object_alt *a, const object_alt *b) {
    OR_LISTS(s, object_alt, a, b)
}

const shape *schema__or(schema *s, const shape *a, const shape *b) {
    shape *both = NEW(s, shape);
    if (!both) return NULL;
    both->null = a->null || b->null;
    both->yes = a->yes || b->yes;
    both->no = a->no || b->no;
    both->numbers = any_numbers(s, a->numbers, b->numbers);
    both->strings = any_strings(s, a->strings, b->strings);
    both->arrays = any_arrays(s, a->arrays, b->arrays);
    both->objects = any_objects(s, a->objects, b->objects);
    return s->c->status == DI_OK ? both : NULL;
}
