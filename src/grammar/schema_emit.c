/* Shapes as rules of a program. */
#include <string.h>

#include "grammar/schema_internal.h"

/* ---- Rules ---- */

int32_t schema__emit(schema *s, int32_t id, int32_t next) {
    if (id == ANY) return json__value(&s->rules, next);
    if (id == NONE || s->c->status != DI_OK) return PROGRAM_FAIL;
    conjunction *k = &s->conjunctions[id];
    if (k->rule < 0) {
        if (s->n_pending == s->pending_capacity) {
            int32_t wanted = s->pending_capacity ? s->pending_capacity * 2 : 64;
            int32_t *larger = compiler__alloc(s->c, (size_t)wanted, sizeof *larger);
            if (!larger) return PROGRAM_FAIL;
            if (s->n_pending) memcpy(larger, s->pending, (size_t)s->n_pending * sizeof *larger);
            s->pending = larger;
            s->pending_capacity = wanted;
        }
        k->rule = program__rule(&s->c->p, "schema");
        s->pending[s->n_pending++] = id;
    }
    return program__call(&s->c->p, k->rule, next);
}

/* ---- Numbers ---- */

static int32_t emit_number(schema *s, const number_alt *a, int32_t next) {
    compiler *c = s->c;
    bool free = !a->lo && !a->hi && a->n_multiples == 0 && !a->broken;
    if (free) return a->integer ? json__integer(&s->rules, next) : json__number(&s->rules, next);
    if (a->lo && a->hi && schema__compare(a->lo, a->hi) == 0) {
        const char *text = schema__decimal_text(s, a->lo);
        return program__literal(&c->p, text, strlen(text), next);
    }
    return chars__emit_dfa(c, schema__number_dfa(s, a), CHAR_RAW, next);
}

/* ---- Strings ---- */

static int32_t emit_literal(schema *s, const char *text, size_t size, char_form form,
                            int32_t next) {
    if (s->marker && chars__matches(s->marker->dfa, text, size)) return PROGRAM_FAIL;
    if (form == CHAR_RAW) return program__literal(&s->c->p, text, size, next);
    di_buffer quoted = DI_BUFFER_EMPTY;
    di_json_write_string(&quoted, text, size);
    if (quoted.failed)
        compiler__fail(s->c, DI_ERR_MEMORY, "out of memory while compiling a grammar");
    int32_t at =
        quoted.failed ? PROGRAM_FAIL : program__literal(&s->c->p, quoted.data, quoted.size, next);
    di_buffer_free(&quoted);
    return at;
}

static int32_t quote(schema *s, char_form form, int32_t next) {
    return form == CHAR_JSON ? program__bytes(&s->c->p, '"', '"', next) : next;
}

/* The one expression that says all about the string, or NULL. */
static const regex *only_test(const string_alt *a) {
    const string_test *t = a->tests;
    bool one = t && !t->next && !t->negated && a->min == 0 && a->max < 0;
    return one ? t->pattern->regex : NULL;
}

int32_t schema__emit_string(schema *s, const string_alt *a, char_form form, int32_t next) {
    compiler *c = s->c;
    if (a->has_literals) {
        int32_t all = PROGRAM_FAIL;
        for (size_t i = 0; i < a->n_literals; i++) {
            char_text t = a->literals[i];
            all = program__split(&c->p, emit_literal(s, t.text, t.size, form, next), all);
        }
        return all;
    }
    if (!a->tests && form == CHAR_JSON) return json__string(&s->rules, a->min, a->max, next);
    int32_t end = quote(s, form, next);
    const regex *only = s->marker ? NULL : only_test(a);
    int32_t text = only ? regex__emit(c, only, form, end)
                        : chars__emit_dfa(c, schema__string_dfa(s, a), form, end);
    return text == PROGRAM_FAIL ? text : quote(s, form, text);
}

/* ---- Arrays ---- */

/* A comma and an item of the rest, as a rule that can be counted. */
static int32_t more_rule(schema *s, int32_t rest) {
    program *p = &s->c->p;
    int32_t rule = program__rule(p, "items");
    program__define(p, rule, json__comma(&s->rules, schema__emit(s, rest, PROGRAM_ACCEPT)));
    return rule;
}

/* The first item behind the prefix, and all that follow. `done` items stand before it. */
static int32_t emit_rest(schema *s, const array_alt *a, int32_t rest, int64_t done, int32_t close) {
    program *p = &s->c->p;
    int64_t owed = a->min > done ? a->min - done : 0, room = a->max < 0 ? -1 : a->max - done;
    if (rest == NONE || room == 0) return PROGRAM_FAIL;
    if (room < 0 && owed <= 1) {
        int32_t more = program__open(p);
        int32_t item = schema__emit(s, rest, more);
        program__close(p, more, json__comma(&s->rules, item), close);
        return item;
    }
    if (owed >= PROGRAM_FOREVER) return PROGRAM_FAIL;
    bool bounded = room >= 0 && room < PROGRAM_FOREVER;
    int32_t more = program__repeat(p, more_rule(s, rest), owed > 1 ? (int32_t)owed - 1 : 0,
                                   bounded ? (int32_t)room - 1 : PROGRAM_FOREVER, close);
    return schema__emit(s, rest, more);
}

static int32_t emit_array(schema *s, const array_alt *a, int32_t next) {
    program *p = &s->c->p;
    int32_t close = json__close(&s->rules, ']', next);
    int32_t rest = s->closed && a->rest_implicit && a->n_prefix > 0 ? NONE : a->rest;
    int32_t n = a->n_prefix;
    if (a->max >= 0 && a->max < n) n = (int32_t)a->max;
    bool one = (a->max >= 0 && a->max <= 1) || (rest == NONE && n <= 1);
    if (a->unique && !one) {
        int32_t inside = schema__emit_unique(s, a, close);
        if (a->min == 0) inside = program__split(p, inside, program__bytes(p, ']', ']', next));
        return inside == PROGRAM_FAIL ? inside : json__open(&s->rules, '[', inside);
    }
    int32_t item = emit_rest(s, a, rest, n, close);
    for (int32_t i = n; i-- > 0;) {
        int32_t end = i + 1 >= a->min ? close : PROGRAM_FAIL;
        int32_t behind = program__split(p, json__comma(&s->rules, item), end);
        item = behind == PROGRAM_FAIL ? behind : schema__emit(s, a->prefix[i], behind);
    }
    int32_t none = a->min == 0 ? program__bytes(p, ']', ']', next) : PROGRAM_FAIL;
    int32_t inside = program__split(p, item, none);
    return inside == PROGRAM_FAIL ? inside : json__open(&s->rules, '[', inside);
}

/* ---- Objects ----
 *
 * Members come in the order of the properties, then the others. Built from the end: key(i, k) is where
 * a member with property i or a later one must begin, after(i, k) what may follow a member before
 * them, when k members have been written. Members are counted only where a bound needs it.
 */

typedef struct object_plan {
    const object_alt *a;
    const name_class *classes; /* those in use */
    int32_t n_classes;
    int32_t n_counts; /* 1: not counted */
    int64_t min, max;
    int32_t close;        /* "}" and what follows */
    int32_t *key, *after; /* [n_counts] of property i + 1 while i is being made */
} object_plan;

static char_dfa *other_names(schema *s, const object_plan *o, const string_alt *names) {
    size_t n = (size_t)o->a->n_properties;
    char_text *known = compiler__alloc(s->c, n + 1, sizeof *known);
    if (!known) return NULL;
    for (size_t i = 0; i < n; i++) {
        known[i] = (char_text){o->a->properties[i].name, o->a->properties[i].size};
    }
    return chars__subtract(s->c, schema__string_dfa(s, names), chars__literals(s->c, known, n));
}

/* A member that is no property, then next. */
static int32_t emit_other(schema *s, const object_plan *o, int32_t next) {
    int32_t all = PROGRAM_FAIL;
    for (int32_t i = 0; i < o->n_classes; i++) {
        const name_class *k = &o->classes[i];
        int32_t value = schema__emit(s, k->value, next);
        if (value == PROGRAM_FAIL) continue;
        int32_t colon = json__colon(&s->rules, value), name;
        if (o->a->n_properties == 0) {
            name = schema__emit_string(s, k->names, CHAR_JSON, colon);
        } else {
            name = chars__emit_dfa(s->c, other_names(s, o, k->names), CHAR_JSON,
                                   quote(s, CHAR_JSON, colon));
            if (name != PROGRAM_FAIL) name = quote(s, CHAR_JSON, name);
        }
        all = program__split(&s->c->p, name, all);
    }
    return all;
}

/* One other member and perhaps more, when `count` members stand before. */
static int32_t emit_others(schema *s, const object_plan *o, int32_t count) {
    program *p = &s->c->p;
    if (o->n_classes == 0 || (o->max >= 0 && count >= o->max) || count + 1 < o->min) {
        return PROGRAM_FAIL;
    }
    int64_t room = o->max < 0 ? -1 : o->max - count;
    if (room < 0 || room >= PROGRAM_FOREVER) {
        int32_t more = program__open(p);
        int32_t member = emit_other(s, o, more);
        program__close(p, more, json__comma(&s->rules, member), o->close);
        return member;
    }
    int32_t rule = program__rule(p, "members");
    program__define(p, rule, json__comma(&s->rules, emit_other(s, o, PROGRAM_ACCEPT)));
    return emit_other(s, o, program__repeat(p, rule, 0, (int32_t)room - 1, o->close));
}

static int32_t emit_property(schema *s, const property *p, int32_t next) {
    int32_t value = schema__emit(s, p->value, next);
    if (value == PROGRAM_FAIL) return value;
    return emit_literal(s, p->name, p->size, CHAR_JSON, json__colon(&s->rules, value));
}

static void plan_counts(schema *s, object_plan *o) {
    int64_t n_required = 0, n_possible = 0;
    for (int32_t i = 0; i < o->a->n_properties; i++) {
        n_required += o->a->properties[i].required;
        n_possible += o->a->properties[i].value != NONE;
    }
    o->min = o->a->min > n_required ? o->a->min : 0;
    o->max = o->n_classes > 0 || o->a->max < n_possible ? o->a->max : -1;
    o->n_counts = o->min > 0 || o->max >= 0 ? o->a->n_properties + 1 : 1;
    if (o->n_classes > 0 && o->min > n_required + 1) {
        schema__fail(s, DI_ERR_UNSUPPORTED, s->at, "minProperties",
                     "above the number of required properties plus one it is not supported where "
                     "other names may come, since these may repeat");
    }
}

static void plan_classes(schema *s, object_plan *o) {
    name_class *classes = compiler__alloc(s->c, (size_t)o->a->n_classes + 1, sizeof *classes);
    for (int32_t i = 0; i < o->a->n_classes && classes; i++) {
        bool dropped = s->closed && o->a->declares && o->a->classes[i].implicit;
        if (!dropped) classes[o->n_classes++] = o->a->classes[i];
    }
    o->classes = classes;
}

/* From the nodes of property i + 1 to those of property i; *owed: a required one is i or later. */
static void plan_property(schema *s, object_plan *o, int32_t i, bool *owed) {
    program *p = &s->c->p;
    const property *prop = &o->a->properties[i];
    for (int32_t k = 0; k < o->n_counts && s->c->status == DI_OK; k++) {
        bool counted = o->n_counts > 1, room = !counted || o->max < 0 || k < o->max;
        int32_t behind = counted ? k + 1 : k;
        int32_t take = PROGRAM_FAIL;
        if (prop->value != NONE && room && behind < o->n_counts) {
            take = emit_property(s, prop, o->after[behind]);
        }
        if (!prop->required) take = program__split(p, take, o->key[k]);
        o->key[k] = take; /* key[k + 1] is still that of property i + 1, but is not read again */
    }
    *owed |= prop->required;
    for (int32_t k = 0; k < o->n_counts; k++) {
        bool may_close = !*owed && (o->n_counts == 1 || k >= o->min);
        o->after[k] = program__split(p, json__comma(&s->rules, o->key[k]),
                                     may_close ? o->close : PROGRAM_FAIL);
    }
}

static int32_t emit_object(schema *s, const object_alt *a, int32_t next) {
    program *p = &s->c->p;
    a = schema__listed_names(s, a);
    if (!a) return PROGRAM_FAIL;
    object_plan o = {.a = a, .close = json__close(&s->rules, '}', next)};
    plan_classes(s, &o);
    plan_counts(s, &o);
    o.key = compiler__alloc(s->c, (size_t)o.n_counts, sizeof *o.key);
    o.after = compiler__alloc(s->c, (size_t)o.n_counts, sizeof *o.after);
    if (!o.key || !o.after) return PROGRAM_FAIL;
    bool uncounted = o.n_counts == 1;
    for (int32_t k = 0; k < o.n_counts; k++) {
        o.key[k] = o.max < 0 && k > 0 && o.key[k - 1] != PROGRAM_FAIL ? o.key[k - 1]
                                                                      : emit_others(s, &o, k);
        o.after[k] = program__split(p, json__comma(&s->rules, o.key[k]),
                                    uncounted || k >= o.min ? o.close : PROGRAM_FAIL);
    }
    bool owed = false;
    for (int32_t i = a->n_properties; i-- > 0;) plan_property(s, &o, i, &owed);
    int32_t none = !owed && o.min == 0 ? program__bytes(p, '}', '}', next) : PROGRAM_FAIL;
    int32_t inside = program__split(p, o.key[0], none);
    return inside == PROGRAM_FAIL ? inside : json__open(&s->rules, '{', inside);
}

/* ---- All alternatives ---- */

int32_t schema__emit_others(schema *s, const shape *a, int32_t next) {
    program *p = &s->c->p;
    int32_t all = PROGRAM_FAIL;
    if (a->null) all = program__split(p, program__literal(p, "null", 4, next), all);
    if (a->yes) all = program__split(p, program__literal(p, "true", 4, next), all);
    if (a->no) all = program__split(p, program__literal(p, "false", 5, next), all);
    for (const number_alt *k = a->numbers; k && p->status == DI_OK; k = k->next) {
        all = program__split(p, emit_number(s, k, next), all);
    }
    for (const array_alt *k = a->arrays; k && p->status == DI_OK; k = k->next) {
        all = program__split(p, emit_array(s, k, next), all);
    }
    for (const object_alt *k = a->objects; k && p->status == DI_OK; k = k->next) {
        all = program__split(p, emit_object(s, k, next), all);
    }
    return all;
}

void schema__emit_pending(schema *s) {
    program *p = &s->c->p;
    /* A program that has become too large takes nothing more: program__finish will say so. */
    while (s->n_pending > 0 && s->c->status == DI_OK && p->status == DI_OK) {
        int32_t id = s->pending[--s->n_pending];
        const shape *a = schema__shape(s, id);
        if (!a) return;
        if (s->conjunctions[id].n) s->at = s->conjunctions[id].parts[0].json;
        int32_t all = schema__emit_others(s, a, PROGRAM_ACCEPT);
        for (const string_alt *k = a->strings; k; k = k->next) {
            all = program__split(p, schema__emit_string(s, k, CHAR_JSON, PROGRAM_ACCEPT), all);
        }
        program__define(p, s->conjunctions[id].rule, all);
    }
}
