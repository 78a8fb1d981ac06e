/* Not. The complement of one alternative is what breaks at least one of its conditions; of several,
 * what breaks one of each. What cannot be said as alternatives again is refused: "some item is not
 * ..." and "some other member is not ...". */
#include <string.h>

#include "grammar/schema_internal.h"

#define NEW(s, type) ((type *)compiler__alloc((s)->c, 1, sizeof(type)))

static void refuse(schema *s, const char *what) {
    if (s->c->status != DI_OK) return;
    compiler__fail(s->c, DI_ERR_UNSUPPORTED,
                   "%s: 'not' of %s is not supported (also needed for 'if', and for 'oneOf' where "
                   "its schemas overlap)",
                   schema__pointer(s, s->at, NULL), what);
}

/* ---- Numbers ---- */

static void add_number(schema *s, number_alt **list, number_alt value) {
    number_alt *a = NEW(s, number_alt);
    if (!a) return;
    *a = value;
    a->next = *list;
    *list = a;
}

static number_alt *not_number(schema *s, const number_alt *a) {
    number_alt *list = NULL;
    if (a->n_multiples) refuse(s, "multipleOf");
    if (a->integer) add_number(s, &list, (number_alt){.broken = true});
    if (a->broken) add_number(s, &list, (number_alt){.integer = true});
    if (a->lo) add_number(s, &list, (number_alt){.hi = a->lo, .hi_open = !a->lo_open});
    if (a->hi) add_number(s, &list, (number_alt){.lo = a->hi, .lo_open = !a->hi_open});
    return list;
}

/* ---- Strings ---- */

static string_alt *add_string(schema *s, string_alt **list) {
    string_alt *a = schema__any_string(s);
    if (!a) return NULL;
    a->next = *list;
    return *list = a;
}

static void add_test(schema *s, string_alt **list, pattern *p, bool negated) {
    string_alt *a = add_string(s, list);
    string_test *t = NEW(s, string_test);
    if (!a || !t) return;
    *t = (string_test){p, negated, NULL};
    a->tests = t;
}

static string_alt *not_string(schema *s, const string_alt *a) {
    string_alt *list = NULL, *made;
    if (a->min > 0 && (made = add_string(s, &list))) made->max = a->min - 1;
    if (a->max >= 0 && (made = add_string(s, &list))) made->min = a->max + 1;
    for (const string_test *t = a->tests; t; t = t->next) {
        add_test(s, &list, t->pattern, !t->negated);
    }
    if (a->has_literals) {
        pattern *p = NEW(s, pattern);
        if (p) p->dfa = chars__literals(s->c, a->literals, a->n_literals);
        if (p && p->dfa) add_test(s, &list, p, true);
    }
    return list;
}

/* ---- Arrays and objects ---- */

/* For each part of a conjunction, what breaks it: as many conjunctions as it has parts. */
static int32_t broken_part(schema *s, int32_t id, int32_t i) {
    part p = s->conjunctions[id].parts[i];
    static const part_kind opposite[] = {
        [PART_SCHEMA] = PART_NOT,
        [PART_NOT] = PART_SCHEMA,
        [PART_VALUE] = PART_NOT_VALUE,
        [PART_NOT_VALUE] = PART_VALUE,
    };
    return schema__one(s, opposite[p.kind], p.json);
}

static array_alt *add_array(schema *s, array_alt **list, int64_t min, int64_t max) {
    array_alt *a = NEW(s, array_alt);
    if (!a) return NULL;
    *a = (array_alt){.rest = ANY, .rest_implicit = true, .min = min, .max = max, .next = *list};
    return *list = a;
}

static array_alt *not_array(schema *s, const array_alt *a) {
    array_alt *list = NULL;
    if (a->min > 0) add_array(s, &list, 0, a->min - 1);
    if (a->max >= 0) add_array(s, &list, a->max + 1, -1);
    if (a->unique) refuse(s, "uniqueItems");
    for (int32_t i = 0; i < a->n_prefix; i++) {
        if (a->prefix[i] == NONE) {
            add_array(s, &list, i + 1, -1);
            continue;
        }
        for (int32_t k = 0; k < s->conjunctions[a->prefix[i]].n; k++) {
            array_alt *made = add_array(s, &list, i + 1, -1);
            int32_t *prefix = compiler__alloc(s->c, (size_t)i + 1, sizeof *prefix);
            if (!made || !prefix) return NULL;
            prefix[i] = broken_part(s, a->prefix[i], k); /* those before it: ANY, which is 0 */
            made->prefix = prefix;
            made->n_prefix = i + 1;
        }
    }
    if (a->rest == NONE) {
        add_array(s, &list, a->n_prefix + 1, -1);
    } else if (a->rest != ANY) {
        refuse(s, "a schema with 'items'");
    }
    return list;
}

static object_alt *add_object(schema *s, object_alt **list, int64_t min, int64_t max) {
    object_alt *a = NEW(s, object_alt);
    name_class *classes = NEW(s, name_class);
    if (!a || !classes) return NULL;
    *classes = (name_class){schema__any_string(s), ANY, true};
    *a = (object_alt){.classes = classes, .n_classes = 1, .min = min, .max = max, .next = *list};
    return *list = a;
}

static void add_property(schema *s, object_alt **list, const property *p, int32_t value,
                         bool required) {
    object_alt *a = add_object(s, list, 0, -1);
    property *made = NEW(s, property);
    if (!a || !made) return;
    *made = (property){p->name, p->size, value, required};
    a->properties = made;
    a->n_properties = 1;
}

/* Whether every name may come with any value. */
static bool is_open(const object_alt *a) {
    if (a->n_classes != 1 || a->classes[0].value != ANY) return false;
    const string_alt *names = a->classes[0].names;
    return !names->has_literals && !names->tests && names->min == 0 && names->max < 0;
}

static object_alt *not_object(schema *s, const object_alt *a) {
    object_alt *list = NULL;
    if (a->min > 0) add_object(s, &list, 0, a->min - 1);
    if (a->max >= 0) add_object(s, &list, a->max + 1, -1);
    for (int32_t i = 0; i < a->n_properties; i++) {
        const property *p = &a->properties[i];
        if (p->required) add_property(s, &list, p, NONE, false);
        if (p->value == NONE) {
            add_property(s, &list, p, ANY, true);
            continue;
        }
        for (int32_t k = 0; k < s->conjunctions[p->value].n; k++) {
            add_property(s, &list, p, broken_part(s, p->value, k), true);
        }
    }
    if (!is_open(a)) refuse(s, "additionalProperties, patternProperties or propertyNames");
    return list;
}

/* ---- All types ---- */

/* The complement of a list: begun with anything of the type, each alternative's complement and-ed. */
#define NOT_LIST(field, not_one)                                                                   \
    for (; one.field && rest; one.field = one.field->next) {                                       \
        shape broken = *any;                                                                       \
        broken.field = not_one(s, one.field);                                                      \
        rest = schema__and(s, rest, &broken);                                                      \
    }

const shape *schema__not(schema *s, const shape *a) {
    const shape *any = schema__any(s), *rest = any;
    shape one = *a;
    if (!any) return NULL;
    NOT_LIST(numbers, not_number)
    NOT_LIST(strings, not_string)
    NOT_LIST(arrays, not_array)
    NOT_LIST(objects, not_object)
    shape *result = rest ? schema__nothing(s) : NULL;
    if (!result) return NULL;
    *result = *rest;
    result->null = !a->null;
    result->yes = !a->yes;
    result->no = !a->no;
    return s->c->status == DI_OK ? result : NULL;
}
