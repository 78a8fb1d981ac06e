/* Reading a schema: its keywords about the value at hand become a shape. */
#include <string.h>

#include "grammar/schema_internal.h"

#define NEW(s, type) ((type *)compiler__alloc((s)->c, 1, sizeof(type)))

/* ---- The keywords ---- */

typedef enum keyword_kind {
    KEY_NOTE,   /* says nothing about values */
    KEY_OWN,    /* about one type; read together, by base() */
    KEY_HELPER, /* belongs to another keyword, which reads it */
    KEY_APPLY   /* combines whole schemas; read by apply() */
} keyword_kind;

static const struct keyword {
    const char *name;
    keyword_kind kind;
} keywords[] = {
    {"$schema", KEY_NOTE},
    {"$comment", KEY_NOTE},
    {"$defs", KEY_NOTE},
    {"definitions", KEY_NOTE},
    {"$anchor", KEY_NOTE},
    {"$dynamicAnchor", KEY_NOTE},
    {"$recursiveAnchor", KEY_NOTE},
    {"title", KEY_NOTE},
    {"description", KEY_NOTE},
    {"default", KEY_NOTE},
    {"examples", KEY_NOTE},
    {"example", KEY_NOTE},
    {"deprecated", KEY_NOTE},
    {"readOnly", KEY_NOTE},
    {"writeOnly", KEY_NOTE},
    {"contentEncoding", KEY_NOTE},
    {"contentMediaType", KEY_NOTE},
    {"contentSchema", KEY_NOTE},
    {"type", KEY_OWN},
    {"minimum", KEY_OWN},
    {"maximum", KEY_OWN},
    {"exclusiveMinimum", KEY_OWN},
    {"exclusiveMaximum", KEY_OWN},
    {"multipleOf", KEY_OWN},
    {"minLength", KEY_OWN},
    {"maxLength", KEY_OWN},
    {"pattern", KEY_OWN},
    {"format", KEY_OWN},
    {"items", KEY_OWN},
    {"prefixItems", KEY_OWN},
    {"additionalItems", KEY_OWN},
    {"minItems", KEY_OWN},
    {"maxItems", KEY_OWN},
    {"uniqueItems", KEY_OWN},
    {"unevaluatedItems", KEY_OWN},
    {"properties", KEY_OWN},
    {"patternProperties", KEY_OWN},
    {"additionalProperties", KEY_OWN},
    {"unevaluatedProperties", KEY_OWN},
    {"propertyNames", KEY_OWN},
    {"required", KEY_OWN},
    {"minProperties", KEY_OWN},
    {"maxProperties", KEY_OWN},
    {"$ref", KEY_APPLY},
    {"$dynamicRef", KEY_APPLY},
    {"$recursiveRef", KEY_APPLY},
    {"const", KEY_APPLY},
    {"enum", KEY_APPLY},
    {"allOf", KEY_APPLY},
    {"anyOf", KEY_APPLY},
    {"oneOf", KEY_APPLY},
    {"not", KEY_APPLY},
    {"if", KEY_APPLY},
    {"then", KEY_HELPER},
    {"else", KEY_HELPER},
    {"dependentRequired", KEY_APPLY},
    {"dependentSchemas", KEY_APPLY},
    {"dependencies", KEY_APPLY},
    {"minContains", KEY_HELPER},
    {"maxContains", KEY_HELPER},
};

static const struct keyword *find_keyword(const di_json *item) {
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        size_t n = strlen(keywords[i].name);
        if (item->key_length == n && memcmp(item->key, keywords[i].name, n) == 0) {
            return &keywords[i];
        }
    }
    return NULL;
}

/* Every keyword must be one that is enforced, or that says nothing about values. */
static bool check_keywords(schema *s, const di_json *json) {
    for (const di_json *k = json->first; k; k = k->next) {
        if (find_keyword(k) || (k->key_length > 2 && memcmp(k->key, "x-", 2) == 0)) continue;
        bool is_id = di_json_get(json, "$id") == k;
        if (is_id && json == s->root) continue;
        schema__fail(s, DI_ERR_UNSUPPORTED, k, NULL,
                     is_id ? "$id below the root is not supported"
                           : "this keyword is not supported");
        return false;
    }
    return s->c->status == DI_OK;
}

static const shape *one_shape(schema *s, part_kind kind, const di_json *json) {
    return schema__shape(s, schema__one(s, kind, json));
}

/* ---- Keywords of one type ---- */

/* A count that may not be negative; `otherwise` when it is absent. */
static int64_t read_count(schema *s, const di_json *json, const char *keyword, int64_t otherwise) {
    const di_json *value = di_json_get(json, keyword);
    int64_t n = 0;
    if (!value) return otherwise;
    double number;
    if (di_json_int64(value, &n) && n >= 0) return n;
    if (di_json_double(value, &number) && number > 1e15) return INT64_MAX / 4;
    schema__fail(s, DI_ERR_INVALID, json, keyword, "must be an integer, 0 or more");
    return otherwise;
}

static number_alt *read_number(schema *s, const di_json *json) {
    number_alt *a = NEW(s, number_alt);
    if (!a) return NULL;
    const di_json *lo = di_json_get(json, "minimum"), *hi = di_json_get(json, "maximum");
    const di_json *above = di_json_get(json, "exclusiveMinimum");
    const di_json *below = di_json_get(json, "exclusiveMaximum");
    const di_json *multiple = di_json_get(json, "multipleOf");
    if (lo) a->lo = schema__decimal(s, lo, "minimum");
    if (hi) a->hi = schema__decimal(s, hi, "maximum");
    const decimal *open = above ? schema__decimal(s, above, "exclusiveMinimum") : NULL;
    if (open && (!a->lo || schema__compare(open, a->lo) >= 0)) a->lo = open, a->lo_open = true;
    open = below ? schema__decimal(s, below, "exclusiveMaximum") : NULL;
    if (open && (!a->hi || schema__compare(open, a->hi) <= 0)) a->hi = open, a->hi_open = true;
    const di_json *format = di_json_get(json, "format");
    if (format) schema__number_format(s, format, a);
    if (multiple) {
        a->multiples = compiler__alloc(s->c, 1, sizeof *a->multiples);
        if (!a->multiples) return NULL;
        a->multiples[0] = schema__decimal(s, multiple, "multipleOf");
        a->n_multiples = a->multiples[0] != NULL;
    }
    return s->c->status == DI_OK && !schema__number_is_empty(s, a) ? a : NULL;
}

static void add_test(schema *s, string_alt *a, pattern *p) {
    string_test *t = p ? NEW(s, string_test) : NULL;
    if (!t) return;
    *t = (string_test){p, false, a->tests};
    a->tests = t;
}

static string_alt *read_string(schema *s, const di_json *json) {
    string_alt *a = schema__any_string(s);
    if (!a) return NULL;
    const di_json *text = di_json_get(json, "pattern"), *format = di_json_get(json, "format");
    a->min = read_count(s, json, "minLength", 0);
    a->max = read_count(s, json, "maxLength", -1);
    if (text && text->type != DI_JSON_STRING) {
        schema__fail(s, DI_ERR_INVALID, json, "pattern", "must be a string");
    } else if (text) {
        const char *what = schema__pointer(s, json, "pattern");
        add_test(s, a, schema__pattern(s, text->text, text->length, true, what));
    }
    if (format) add_test(s, a, schema__format(s, json, format));
    return a->max >= 0 && a->min > a->max ? NULL : a;
}

static bool has_applicator(const di_json *json) {
    for (const di_json *k = json->first; k; k = k->next) {
        const struct keyword *known = find_keyword(k);
        bool value = di_json_get(json, "const") == k || di_json_get(json, "enum") == k;
        if (known && known->kind == KEY_APPLY && !value) return true;
    }
    return false;
}

static void read_prefix(schema *s, const di_json *list, const char *keyword, array_alt *a) {
    if (list->type != DI_JSON_ARRAY) {
        schema__fail(s, DI_ERR_INVALID, s->at, keyword, "must be an array of schemas");
        return;
    }
    a->prefix = compiler__alloc(s->c, list->length + 1, sizeof *a->prefix);
    for (const di_json *k = list->first; k && a->prefix; k = k->next) {
        a->prefix[a->n_prefix++] = schema__one(s, PART_SCHEMA, k);
    }
}

static array_alt *read_array(schema *s, const di_json *json) {
    array_alt *a = NEW(s, array_alt);
    if (!a) return NULL;
    const di_json *prefix = di_json_get(json, "prefixItems"), *items = di_json_get(json, "items");
    const di_json *more = di_json_get(json, "unevaluatedItems");
    if (prefix) read_prefix(s, prefix, "prefixItems", a);
    if (items && items->type == DI_JSON_ARRAY) { /* before 2020-12 */
        read_prefix(s, items, "items", a);
        items = di_json_get(json, "additionalItems");
    }
    if (!items && more && !has_applicator(json)) items = more;
    a->rest = items ? schema__one(s, PART_SCHEMA, items) : ANY;
    a->rest_implicit = !items;
    a->min = read_count(s, json, "minItems", 0);
    a->max = read_count(s, json, "maxItems", -1);
    bool is_true = !more || more->type == DI_JSON_TRUE;
    if (!is_true && has_applicator(json)) {
        schema__fail(s, DI_ERR_UNSUPPORTED, json, "unevaluatedItems",
                     "is not supported beside $ref, allOf, anyOf, oneOf, not, if or dependent...");
    }
    const di_json *unique = di_json_get(json, "uniqueItems");
    if (unique && !di_json_bool(unique, &a->unique)) {
        schema__fail(s, DI_ERR_INVALID, json, "uniqueItems", "must be true or false");
    }
    return a->max >= 0 && a->min > a->max ? NULL : a;
}

/* Leaves in `a` the types named by one word. */
static bool add_type(shape *a, const shape *all, const di_json *word) {
    if (di_json_is_string(word, "null")) {
        a->null = true;
    } else if (di_json_is_string(word, "boolean")) {
        a->yes = a->no = true;
    } else if (di_json_is_string(word, "number")) {
        a->numbers = all->numbers;
    } else if (di_json_is_string(word, "string")) {
        a->strings = all->strings;
    } else if (di_json_is_string(word, "array")) {
        a->arrays = all->arrays;
    } else if (di_json_is_string(word, "object")) {
        a->objects = all->objects;
    } else {
        return false;
    }
    return true;
}

static shape *read_types(schema *s, const di_json *json, const shape *all) {
    const di_json *type = di_json_get(json, "type");
    shape *a = schema__nothing(s);
    bool integer = false, number = false, ok = true;
    if (!a) return NULL;
    if (!type) {
        *a = *all;
        return a;
    }
    const di_json *word = type->type == DI_JSON_ARRAY ? type->first : type;
    for (; word && ok; word = type->type == DI_JSON_ARRAY ? word->next : NULL) {
        integer |= di_json_is_string(word, "integer");
        number |= di_json_is_string(word, "number");
        ok = di_json_is_string(word, "integer") || add_type(a, all, word);
    }
    if (!ok) {
        schema__fail(s, DI_ERR_INVALID, json, "type",
                     "must be null, boolean, integer, number, string, array or object, or a list "
                     "of these");
    }
    if (integer && !number && all->numbers) {
        number_alt *only = NEW(s, number_alt);
        if (!only) return NULL;
        *only = *all->numbers;
        only->integer = true;
        a->numbers = schema__number_is_empty(s, only) ? NULL : only;
    }
    return a;
}

/* What the keywords of single types say. */
static const shape *base(schema *s, const di_json *json) {
    shape all = {true, true, true, NULL, NULL, NULL, NULL};
    all.numbers = read_number(s, json);
    all.strings = read_string(s, json);
    all.arrays = read_array(s, json);
    all.objects = schema__read_object(s, json);
    return s->c->status == DI_OK ? read_types(s, json, &all) : NULL;
}

/* ---- Values ---- */

static const shape *value_shape(schema *s, const di_json *v) {
    shape *a = schema__nothing(s);
    if (!a) return NULL;
    switch (v->type) {
    case DI_JSON_NULL: a->null = true; break;
    case DI_JSON_TRUE: a->yes = true; break;
    case DI_JSON_FALSE: a->no = true; break;
    case DI_JSON_NUMBER:
        if ((a->numbers = NEW(s, number_alt))) {
            a->numbers->lo = a->numbers->hi = schema__decimal(s, v, NULL);
        }
        break;
    case DI_JSON_STRING:
        if ((a->strings = schema__any_string(s))) {
            a->strings->has_literals = true;
            a->strings->n_literals = 1;
            a->strings->literals = NEW(s, char_text);
            if (a->strings->literals) *a->strings->literals = (char_text){v->text, v->length};
        }
        break;
    case DI_JSON_ARRAY:
        if (!(a->arrays = NEW(s, array_alt))) return NULL;
        a->arrays->prefix = compiler__alloc(s->c, v->length + 1, sizeof(int32_t));
        for (const di_json *k = v->first; k && a->arrays->prefix; k = k->next) {
            a->arrays->prefix[a->arrays->n_prefix++] = schema__one(s, PART_VALUE, k);
        }
        a->arrays->rest = NONE;
        a->arrays->min = a->arrays->max = (int64_t)v->length;
        break;
    case DI_JSON_OBJECT:
        if (!(a->objects = NEW(s, object_alt))) return NULL;
        a->objects->properties = compiler__alloc(s->c, v->length + 1, sizeof(property));
        a->objects->max = -1;
        a->objects->declares = true;
        for (const di_json *k = v->first; k && a->objects->properties; k = k->next) {
            a->objects->properties[a->objects->n_properties++] =
                (property){k->key, k->key_length, schema__one(s, PART_VALUE, k), true};
        }
        break;
    }
    return s->c->status == DI_OK ? a : NULL;
}

/* One of a list of values; strings together, since there may be thousands. */
static const shape *enum_shape(schema *s, const di_json *list) {
    const shape *all = schema__nothing(s);
    string_alt *strings = schema__any_string(s);
    if (!all || !strings) return NULL;
    if (list->type != DI_JSON_ARRAY) {
        schema__fail(s, DI_ERR_INVALID, list, NULL, "must be an array");
        return NULL;
    }
    strings->has_literals = true;
    strings->literals = compiler__alloc(s->c, list->length + 1, sizeof *strings->literals);
    number_alt *numbers = NULL;
    for (const di_json *k = list->first; k && all && strings->literals; k = k->next) {
        if (k->type == DI_JSON_STRING) {
            strings->literals[strings->n_literals++] = (char_text){k->text, k->length};
        } else if (k->type == DI_JSON_NUMBER) {
            number_alt *a = NEW(s, number_alt);
            if (!a) return NULL;
            a->lo = a->hi = schema__decimal(s, k, NULL);
            a->next = numbers;
            numbers = a;
        } else {
            const shape *one = one_shape(s, PART_VALUE, k);
            all = one ? schema__or(s, all, one) : NULL;
        }
    }
    shape scalars = {.numbers = numbers, .strings = strings->n_literals ? strings : NULL};
    return all && s->c->status == DI_OK ? schema__or(s, all, &scalars) : NULL;
}

/* ---- Keywords that combine schemas ---- */

/* All (or any) of the schemas of a list, each negated or not. */
static const shape *join(schema *s, const di_json *list, part_kind kind, bool all) {
    if (list->type != DI_JSON_ARRAY || !list->first) {
        schema__fail(s, DI_ERR_INVALID, list, NULL, "must be a non-empty array of schemas");
        return NULL;
    }
    const shape *joined = all ? schema__any(s) : schema__nothing(s);
    for (const di_json *k = list->first; k && joined; k = k->next) {
        const shape *one = one_shape(s, kind, k);
        if (!one) return NULL;
        joined = all ? schema__and(s, joined, one) : schema__or(s, joined, one);
    }
    return joined;
}

static bool overlap(schema *s, const shape *a, const shape *b) {
    if (schema__apart(s, a, b, SCHEMA_MAX_LOOK)) return false;
    const shape *both = schema__and(s, a, b);
    return both && !schema__shape_is_empty(s, both, SCHEMA_MAX_LOOK);
}

/* Each schema without what another one of them allows too. */
static const shape *one_of(schema *s, const di_json *list) {
    if (list->type != DI_JSON_ARRAY || !list->first) {
        schema__fail(s, DI_ERR_INVALID, list, NULL, "must be a non-empty array of schemas");
        return NULL;
    }
    const shape *any = schema__nothing(s);
    for (const di_json *k = list->first; k && any; k = k->next) {
        const shape *one = one_shape(s, PART_SCHEMA, k), *alone = one;
        for (const di_json *other = list->first; other && alone; other = other->next) {
            const shape *two = other == k ? NULL : one_shape(s, PART_SCHEMA, other);
            if (!two || !overlap(s, one, two)) continue;
            const shape *others = one_shape(s, PART_NOT, other);
            alone = others ? schema__and(s, alone, others) : NULL;
        }
        any = alone && s->c->status == DI_OK ? schema__or(s, any, alone) : NULL;
    }
    return any;
}

/* if / then / else. Negated: what satisfies `if` and breaks `then`, or the other two. */
static const shape *conditional(schema *s, const di_json *json, bool negated) {
    static const di_json anything = {.type = DI_JSON_TRUE};
    const di_json *test = di_json_get(json, "if"), *then = di_json_get(json, "then");
    const di_json *otherwise = di_json_get(json, "else");
    if (!then && !otherwise) return negated ? schema__nothing(s) : schema__any(s);
    part_kind kind = negated ? PART_NOT : PART_SCHEMA;
    part yes[2] = {{PART_SCHEMA, test}, {kind, then ? then : &anything}};
    part no[2] = {{PART_NOT, test}, {kind, otherwise ? otherwise : &anything}};
    const shape *a = schema__shape(s, schema__conjunction(s, yes, 2));
    const shape *b = a ? schema__shape(s, schema__conjunction(s, no, 2)) : NULL;
    return b ? schema__or(s, a, b) : NULL;
}

/* An object with, or anything without, one property. */
static shape *with_property(schema *s, const di_json *name, bool with) {
    shape *a = schema__any(s);
    property *p = NEW(s, property);
    if (!a || !p) return NULL;
    *p = (property){name->key, name->key_length, with ? ANY : NONE, with};
    a->objects->properties = p;
    a->objects->n_properties = 1;
    if (!with) return a;
    shape *objects = schema__nothing(s);
    if (objects) objects->objects = a->objects;
    return objects;
}

static const shape *with_names(schema *s, const di_json *names) {
    const shape *all = schema__any(s);
    for (const di_json *k = names->first; k && all; k = k->next) {
        if (k->type != DI_JSON_STRING) {
            schema__fail(s, DI_ERR_INVALID, names, NULL, "must be an array of names");
            return NULL;
        }
        di_json name = {.key = k->text, .key_length = k->length};
        const shape *one = with_property(s, &name, true);
        all = one ? schema__and(s, all, one) : NULL;
    }
    return all;
}

/* Each member NAME: DEMAND means: without NAME, or with it and the demand. */
static const shape *dependent(schema *s, const di_json *members, bool negated) {
    const shape *all = negated ? schema__nothing(s) : schema__any(s);
    for (const di_json *k = members->first; k && all; k = k->next) {
        const shape *demand = k->type == DI_JSON_ARRAY ? with_names(s, k)
                              : negated                ? one_shape(s, PART_NOT, k)
                                                       : one_shape(s, PART_SCHEMA, k);
        if (negated && demand && k->type == DI_JSON_ARRAY) demand = schema__not(s, demand);
        const shape *with = with_property(s, k, true), *without = with_property(s, k, false);
        if (!demand || !with || !without) return NULL;
        with = schema__and(s, with, demand);
        if (!with) return NULL;
        all =
            negated ? schema__or(s, all, with) : schema__and(s, all, schema__or(s, without, with));
    }
    return all;
}

/* What one combining keyword allows; negated: what it forbids. */
static const shape *apply(schema *s, const di_json *json, const di_json *item, bool negated) {
    part_kind kind = negated ? PART_NOT : PART_SCHEMA;
    const char *key = item->key;
    if (*key == '$') { /* references */
        const di_json *target = schema__resolve(s, item);
        return target ? one_shape(s, kind, target) : NULL;
    }
    if (strcmp(key, "const") == 0) {
        return one_shape(s, negated ? PART_NOT_VALUE : PART_VALUE, item);
    }
    if (strcmp(key, "enum") == 0) {
        const shape *values = enum_shape(s, item);
        return values && negated ? schema__not(s, values) : values;
    }
    if (strcmp(key, "allOf") == 0) return join(s, item, kind, !negated);
    if (strcmp(key, "anyOf") == 0) return join(s, item, kind, negated);
    if (strcmp(key, "not") == 0) return one_shape(s, negated ? PART_SCHEMA : PART_NOT, item);
    if (strcmp(key, "if") == 0) return conditional(s, json, negated);
    if (strcmp(key, "oneOf") == 0) {
        if (!negated) return one_of(s, item);
        schema__fail(s, DI_ERR_UNSUPPORTED, item, NULL, "'not' of 'oneOf' is not supported");
        return NULL;
    }
    if (item->type != DI_JSON_OBJECT) {
        schema__fail(s, DI_ERR_INVALID, item, NULL, "must be an object");
        return NULL;
    }
    return dependent(s, item, negated);
}

/* ---- A part ---- */

static const shape *read_schema(schema *s, const di_json *json, bool negated) {
    if (json->type == DI_JSON_TRUE || json->type == DI_JSON_FALSE) {
        bool all = (json->type == DI_JSON_TRUE) != negated;
        return all ? schema__any(s) : schema__nothing(s);
    }
    if (json->type != DI_JSON_OBJECT) {
        schema__fail(s, DI_ERR_INVALID, json, NULL, "a schema must be an object or a boolean");
        return NULL;
    }
    s->at = json;
    if (!check_keywords(s, json)) return NULL;
    const shape *all = base(s, json);
    if (all && negated) all = schema__not(s, all);
    for (const di_json *k = json->first; k && all; k = k->next) {
        const struct keyword *known = find_keyword(k);
        if (!known || known->kind != KEY_APPLY) continue;
        const shape *one = apply(s, json, k, negated);
        s->at = json;
        if (!one) return NULL;
        all = negated ? schema__or(s, all, one) : schema__and(s, all, one);
    }
    return all;
}

const shape *schema__read(schema *s, const part *p) {
    const di_json *before = s->at;
    const shape *a = NULL;
    switch (p->kind) {
    case PART_SCHEMA: a = read_schema(s, p->json, false); break;
    case PART_NOT: a = read_schema(s, p->json, true); break;
    case PART_VALUE: a = value_shape(s, p->json); break;
    case PART_NOT_VALUE:
        a = value_shape(s, p->json);
        if (a) a = schema__not(s, a);
        break;
    }
    s->at = before;
    return s->c->status == DI_OK ? a : NULL;
}
