/* Whether schemas exclude each other, told by looking at both at once. Nothing is made of the two, so that a
 * list of n alternatives can be compared in n * n pairs, and what contradicts itself is left out before
 * it multiplies. */
#include <string.h>

#include "grammar/schema_internal.h"

static bool values_apart(schema *s, int32_t a, int32_t b, int look) {
    if (a == NONE || b == NONE) return true;
    if (a == b || a == ANY || b == ANY || look <= 0) return false;
    if (s->conjunctions[a].reading || s->conjunctions[b].reading) return false;
    const shape *x = schema__try_shape(s, a), *y = x ? schema__try_shape(s, b) : NULL;
    return y && schema__apart(s, x, y, look);
}

static int32_t item_at(const array_alt *a, int64_t i) {
    return i < a->n_prefix ? a->prefix[i] : a->rest;
}

static bool arrays_apart(schema *s, const array_alt *a, const array_alt *b, int look) {
    int64_t min = a->min > b->min ? a->min : b->min;
    int64_t told = a->n_prefix > b->n_prefix ? a->n_prefix : b->n_prefix;
    if ((a->max >= 0 && a->max < min) || (b->max >= 0 && b->max < min)) return true;
    /* Behind both prefixes all items are alike. */
    for (int64_t i = 0; i < min && i <= told; i++) {
        if (values_apart(s, item_at(a, i), item_at(b, i), look - 1)) return true;
    }
    return false;
}

static bool objects_apart(schema *s, const object_alt *a, const object_alt *b, int look) {
    for (int side = 0; side < 2; side++) {
        const object_alt *x = side ? b : a, *y = side ? a : b;
        for (int32_t i = 0; i < x->n_properties && compiler__spend(s->c, 1); i++) {
            const property *p = &x->properties[i];
            if (!p->required) continue;
            property other = schema__view(s, y, p->name, p->size);
            if (values_apart(s, p->value, other.value, look - 1)) return true;
        }
    }
    return false;
}

/* ---- Simple schemas ---- */

/* Says nothing about what lies below the value: its shape is read without reading another's. */
static bool json_is_simple(schema *s, const di_json *json, int look) {
    static const char *const scalar[] = {"const",   "enum",      "type",      "minimum",
                                         "maximum", "minLength", "maxLength", "pattern",
                                         "format",  "title",     "default",   "description",
                                         "examples"};
    if (json->type != DI_JSON_OBJECT) return true;
    for (const di_json *k = json->first; k; k = k->next) {
        size_t i = 0, n = sizeof scalar / sizeof *scalar;
        while (i < n && strcmp(scalar[i], k->key) != 0) i++;
        if (i < n) continue;
        if (look <= 0) return false;
        if (strcmp(k->key, "not") == 0) {
            if (!json_is_simple(s, k, look - 1)) return false;
        } else if (strcmp(k->key, "anyOf") == 0 || strcmp(k->key, "oneOf") == 0 ||
                   strcmp(k->key, "allOf") == 0) {
            for (const di_json *one = k->first; one; one = one->next) {
                if (!json_is_simple(s, one, look - 1)) return false;
            }
        } else if (strcmp(k->key, "$ref") == 0) {
            const di_json *to = k->type == DI_JSON_STRING ? schema__find(s, k) : NULL;
            if (!to || !json_is_simple(s, to, look - 1)) return false;
        } else {
            return false;
        }
    }
    return true;
}

static bool is_simple(schema *s, int32_t id) {
    conjunction *k = &s->conjunctions[id];
    for (int32_t i = 0; i < k->n && k->simple == 0; i++) {
        const part *p = &k->parts[i];
        bool is_schema = p->kind == PART_SCHEMA || p->kind == PART_NOT;
        bool nested = p->json->type == DI_JSON_OBJECT || p->json->type == DI_JSON_ARRAY;
        if (is_schema ? !json_is_simple(s, p->json, SCHEMA_PRUNE_LOOK) : nested) k->simple = -1;
    }
    if (k->simple == 0) k->simple = 1;
    return k->simple > 0;
}

bool schema__values_apart(schema *s, int32_t a, int32_t b) {
    return s->c->status == DI_OK && a != ANY && b != ANY && is_simple(s, a) && is_simple(s, b) &&
           values_apart(s, a, b, 1);
}

/* All pairs of two lists are apart. */
#define LISTS_APART(type, first, second, apart)                                                    \
    for (const type *x = (first); x; x = x->next) {                                                \
        for (const type *y = (second); y; y = y->next) {                                           \
            if (!compiler__spend(s->c, 2) || !(apart)) return false;                               \
        }                                                                                          \
    }

bool schema__apart(schema *s, const shape *a, const shape *b, int look) {
    if ((a->null && b->null) || (a->yes && b->yes) || (a->no && b->no)) return false;
    LISTS_APART(number_alt, a->numbers, b->numbers, !schema__and_numbers(s, x, y))
    LISTS_APART(string_alt, a->strings, b->strings, !schema__and_strings(s, x, y))
    LISTS_APART(array_alt, a->arrays, b->arrays, arrays_apart(s, x, y, look))
    LISTS_APART(object_alt, a->objects, b->objects, objects_apart(s, x, y, look))
    return s->c->status == DI_OK;
}
