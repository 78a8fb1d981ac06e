/* The keywords of objects, and names. */
#include <string.h>

#include "grammar/schema_internal.h"

#define NEW(s, type) ((type *)compiler__alloc((s)->c, 1, sizeof(type)))

static bool expect(schema *s, const di_json *json, const char *keyword, const di_json *value,
                   di_json_type type, const char *reason) {
    if (!value || value->type == type) return s->c->status == DI_OK;
    schema__fail(s, DI_ERR_INVALID, json, keyword, reason);
    return false;
}

static bool has_applicator(const di_json *json) {
    static const char *const names[] = {"$ref",         "$dynamicRef",     "$recursiveRef", "allOf",
                                        "anyOf",        "oneOf",           "not",           "if",
                                        "dependencies", "dependentSchemas"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (di_json_get(json, names[i])) return true;
    }
    return false;
}

/* ---- Names by pattern ---- */

/* One class while patterns split it. `matched`: by a pattern; others get additionalProperties. */
typedef struct part_class {
    const string_alt *names;
    int32_t value;
    bool matched;
} part_class;

static const string_alt *tested(schema *s, pattern *p, bool negated) {
    string_alt *a = schema__any_string(s);
    string_test *t = NEW(s, string_test);
    if (!a || !t) return NULL;
    *t = (string_test){p, negated, NULL};
    a->tests = t;
    return a;
}

/* Those of "patternProperties", in their order; NULL: failed. An object is read once, but has many names. */
static pattern **read_patterns(schema *s, const di_json *patterns) {
    size_t n = 0;
    pattern **made =
        compiler__alloc(s->c, (patterns ? patterns->length : 0) + 1, sizeof(pattern *));
    for (const di_json *k = patterns && made ? patterns->first : NULL; k; k = k->next) {
        made[n] = schema__pattern(s, k->key, k->key_length, true, schema__pointer(s, k, NULL));
        if (!made[n++]) return NULL;
    }
    return made;
}

/* Splits every class by one pattern; names that match also satisfy `value`. */
static int32_t split_classes(schema *s, part_class *classes, int32_t n, pattern *p, int32_t value) {
    const string_alt *in = tested(s, p, false), *out = tested(s, p, true);
    int32_t n_before = n;
    if (!in || !out) return 0;
    for (int32_t i = 0; i < n_before; i++) {
        part_class whole = classes[i];
        const string_alt *inside = schema__and_strings(s, whole.names, in);
        const string_alt *outside = schema__and_strings(s, whole.names, out);
        if (s->c->status != DI_OK) return 0;
        if (n >= SCHEMA_MAX_NAME_CLASSES) {
            schema__fail(s, DI_ERR_LIMIT, s->at, "patternProperties",
                         "the patterns of names have more than 64 combinations");
            return 0;
        }
        part_class match = {inside, schema__both(s, whole.value, value), true};
        part_class rest = {outside, whole.value, whole.matched};
        /* A class without names stays, empty, until the end: `inside` or `outside` NULL. */
        classes[i] = outside ? rest : match;
        if (inside && outside) classes[n++] = match;
    }
    return n;
}

static void read_classes(schema *s, const di_json *json, pattern *const *made, object_alt *a) {
    const di_json *patterns = di_json_get(json, "patternProperties");
    const di_json *more = di_json_get(json, "additionalProperties");
    const di_json *left = di_json_get(json, "unevaluatedProperties");
    part_class classes[SCHEMA_MAX_NAME_CLASSES + 1] = {{schema__any_string(s), ANY, false}};
    int32_t n = 1;
    for (const di_json *k = patterns ? patterns->first : NULL; k && n; k = k->next) {
        n = split_classes(s, classes, n, *made++, schema__one(s, PART_SCHEMA, k));
    }
    if (left && left->type != DI_JSON_TRUE && has_applicator(json)) {
        schema__fail(s, DI_ERR_UNSUPPORTED, json, "unevaluatedProperties",
                     "is not supported beside $ref, allOf, anyOf, oneOf, not, if or dependent...");
    }
    if (!more && left) more = left;
    int32_t other = more ? schema__one(s, PART_SCHEMA, more) : ANY;
    a->classes = compiler__alloc(s->c, (size_t)n + 1, sizeof *a->classes);
    for (int32_t i = 0; i < n && a->classes; i++) {
        int32_t value = classes[i].matched ? classes[i].value : other;
        if (value == NONE || !classes[i].names) continue;
        a->classes[a->n_classes++] =
            (name_class){classes[i].names, value, !classes[i].matched && !more};
    }
}

/* ---- Properties ---- */

static int32_t value_by_class(schema *s, const object_alt *a, const char *name, size_t size) {
    for (int32_t i = 0; i < a->n_classes; i++) {
        if (schema__string_matches(s, a->classes[i].names, name, size)) return a->classes[i].value;
    }
    return NONE;
}

/* A declared property also satisfies the patterns that its name matches. */
static int32_t value_by_patterns(schema *s, const di_json *json, pattern *const *made,
                                 const di_json *k) {
    int32_t value = schema__one(s, PART_SCHEMA, k);
    const di_json *patterns = di_json_get(json, "patternProperties");
    for (const di_json *p = patterns ? patterns->first : NULL; p; p = p->next) {
        const char_dfa *dfa = schema__pattern_dfa(s, *made++);
        if (!dfa || !compiler__spend(s->c, (int64_t)k->key_length + 1)) return NONE;
        if (chars__matches(dfa, k->key, k->key_length)) {
            value = schema__both(s, value, schema__one(s, PART_SCHEMA, p));
        }
    }
    return value;
}

static property *find(const object_alt *a, const char *name, size_t size) {
    for (int32_t i = 0; i < a->n_properties; i++) {
        property *p = &a->properties[i];
        if (p->size == size && memcmp(p->name, name, size) == 0) return p;
    }
    return NULL;
}

static void read_properties(schema *s, const di_json *json, pattern *const *made, object_alt *a) {
    const di_json *declared = di_json_get(json, "properties");
    const di_json *required = di_json_get(json, "required");
    if (!expect(s, json, "properties", declared, DI_JSON_OBJECT, "must be an object") ||
        !expect(s, json, "required", required, DI_JSON_ARRAY, "must be an array of names")) {
        return;
    }
    size_t n = (declared ? declared->length : 0) + (required ? required->length : 0);
    a->properties = compiler__alloc(s->c, n + 1, sizeof *a->properties);
    if (!a->properties) return;
    a->declares = declared && declared->first;
    for (const di_json *k = declared ? declared->first : NULL; k; k = k->next) {
        a->properties[a->n_properties++] =
            (property){k->key, k->key_length, value_by_patterns(s, json, made, k), false};
    }
    for (const di_json *k = required ? required->first : NULL; k; k = k->next) {
        if (k->type != DI_JSON_STRING || !compiler__spend(s->c, a->n_properties / 8 + 1)) {
            schema__fail(s, DI_ERR_INVALID, json, "required", "must be an array of names");
            return;
        }
        property *known = find(a, k->text, k->length);
        if (!known) {
            known = &a->properties[a->n_properties++];
            *known =
                (property){k->text, k->length, value_by_class(s, a, k->text, k->length), false};
        }
        known->required = true;
    }
}

/* ---- propertyNames ---- */

static void keep_names(schema *s, object_alt *a, const string_alt *allowed) {
    for (int32_t i = 0; i < a->n_properties; i++) {
        property *p = &a->properties[i];
        bool ok = false;
        for (const string_alt *k = allowed; k && !ok; k = k->next) {
            ok = schema__string_matches(s, k, p->name, p->size);
        }
        if (!ok) p->value = NONE;
    }
    name_class *kept = compiler__alloc(s->c, SCHEMA_MAX_NAME_CLASSES + 1, sizeof *kept);
    int32_t n = 0;
    for (int32_t i = 0; i < a->n_classes && kept; i++) {
        const string_alt *before = NULL; /* alternatives may overlap: classes must not */
        for (const string_alt *k = allowed; k; k = k->next) {
            const string_alt *names = schema__and_strings(s, a->classes[i].names, k);
            if (before && names) {
                schema__fail(s, DI_ERR_UNSUPPORTED, s->at, "propertyNames",
                             "alternatives of names are not supported; use one pattern");
                return;
            }
            if (!names) continue;
            if (n == SCHEMA_MAX_NAME_CLASSES) return;
            before = names;
            kept[n++] = (name_class){names, a->classes[i].value, a->classes[i].implicit};
        }
    }
    a->classes = kept;
    a->n_classes = n;
}

static void read_names(schema *s, const di_json *json, object_alt *a) {
    const di_json *names = di_json_get(json, "propertyNames");
    if (!names || s->c->status != DI_OK) return;
    const shape *allowed = schema__shape(s, schema__one(s, PART_SCHEMA, names));
    if (allowed) keep_names(s, a, allowed->strings);
}

static int64_t read_count(schema *s, const di_json *json, const char *keyword, int64_t otherwise) {
    const di_json *value = di_json_get(json, keyword);
    int64_t n = 0;
    if (!value) return otherwise;
    if (di_json_int64(value, &n) && n >= 0) return n;
    schema__fail(s, DI_ERR_INVALID, json, keyword, "must be an integer, 0 or more");
    return otherwise;
}

/* NULL also when no object satisfies the keywords. */
object_alt *schema__read_object(schema *s, const di_json *json) {
    object_alt *a = NEW(s, object_alt);
    const di_json *patterns = di_json_get(json, "patternProperties");
    if (!a ||
        !expect(s, json, "patternProperties", patterns, DI_JSON_OBJECT, "must be an object")) {
        return NULL;
    }
    pattern *const *made = read_patterns(s, patterns);
    if (!made) return NULL;
    read_classes(s, json, made, a);
    if (s->c->status == DI_OK) read_properties(s, json, made, a);
    read_names(s, json, a);
    a->min = read_count(s, json, "minProperties", 0);
    a->max = read_count(s, json, "maxProperties", -1);
    if (s->c->status != DI_OK || (a->max >= 0 && a->min > a->max)) return NULL;
    for (int32_t i = 0; i < a->n_properties; i++) {
        if (a->properties[i].required && a->properties[i].value == NONE) return NULL;
    }
    return a;
}

static bool is_list(const schema *s, const object_alt *a, const name_class *k) {
    return k->names->has_literals && !(k->implicit && s->closed && a->declares);
}

const object_alt *schema__listed_names(schema *s, const object_alt *a) {
    size_t n = (size_t)a->n_properties;
    bool any = false;
    for (int32_t i = 0; i < a->n_classes; i++) {
        any |= is_list(s, a, &a->classes[i]);
        n += a->classes[i].names->n_literals;
    }
    if (!any) return a;
    object_alt *listed = NEW(s, object_alt);
    property *properties = compiler__alloc(s->c, n + 1, sizeof *properties);
    name_class *classes = compiler__alloc(s->c, (size_t)a->n_classes, sizeof *classes);
    if (!listed || !properties || !classes) return NULL;
    *listed = *a;
    for (int32_t i = 0; i < a->n_properties; i++) properties[i] = a->properties[i];
    listed->properties = properties;
    listed->classes = classes;
    listed->n_classes = 0;
    for (int32_t i = 0; i < a->n_classes; i++) {
        const name_class *k = &a->classes[i];
        if (!is_list(s, a, k)) {
            classes[listed->n_classes++] = *k;
            continue;
        }
        for (size_t j = 0; j < k->names->n_literals; j++) {
            char_text t = k->names->literals[j];
            if (!compiler__spend(s->c, listed->n_properties)) return NULL;
            if (find(listed, t.text, t.size)) continue;
            properties[listed->n_properties++] = (property){t.text, t.size, k->value, false};
        }
    }
    return listed;
}
