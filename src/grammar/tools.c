/* Tool calls in the chat's format (spec chat.md 5):
 *
 *     NEWLINE NEWLINE <M calls> NEWLINE
 *     <M invoke name="NAME"> NEWLINE
 *     <M parameter name="KEY" string="true">raw text</M parameter> NEWLINE
 *     <M parameter name="KEY" string="false">JSON</M parameter> NEWLINE
 *     </M invoke> NEWLINE
 *     </M calls>
 *
 * M is the marker, one token. Raw text has no escapes and ends at "</M": it may hold anything but the
 * marker's spelling in other tokens, which the parser of the answer could not tell from the marker; nor may
 * strings in JSON, but for an escape.
 */
#include <stdio.h>
#include <string.h>

#include "grammar/grammar_internal.h"
#include "grammar/schema_internal.h"
#include "text/chat_format.h"

#define NEW(t, type) ((type *)compiler__alloc((t)->c, 1, sizeof(type)))

enum { BAR = 0xff5c }; /* the character that the marker begins with */

typedef struct builder {
    compiler *c;
    const di_grammar_options *options;
    json_rules rules;
    const pattern *marker; /* contains the marker's spelling */
    int32_t raw_char; /* rule: one character of raw text where they are counted; -1: not made */
    bool strict;      /* the tool at hand takes what it declares, though that be nothing */
} builder;

static int32_t text(builder *t, const char *literal, int32_t next) {
    return program__literal(&t->c->p, literal, strlen(literal), next);
}

/* BRACKET marker WORDS, then next. */
static int32_t tag(builder *t, const char *bracket, const char *words, int32_t next) {
    return text(t, bracket, program__marker(&t->c->p, CHAT_DSML, text(t, words, next)));
}

/* ---- Raw text ---- */

static bool begin(builder *t, const di_grammar_options *options) {
    t->options = options;
    t->raw_char = -1;
    json__init(&t->rules, t->c, options ? options->space : DI_GRAMMAR_SPACE_FREE);
    t->rules.in_call = true;
    pattern *p = NEW(t, pattern);
    if (!p) return false;
    p->regex = regex__parse(t->c, CHAT_DSML, strlen(CHAT_DSML), true, "marker");
    p->dfa = regex__determine(t->c, p->regex);
    t->marker = p;
    return t->c->status == DI_OK;
}

static int32_t any_raw(builder *t, int32_t next) {
    char_dfa *all = chars__any_text(t->c);
    if (!all) return PROGRAM_FAIL;
    return chars__emit_dfa(t->c, chars__subtract(t->c, all, t->marker->dfa), CHAR_RAW, next);
}

/* min to max characters. Counted by a rule, not by states; the bar is left out, so that no
 * marker can be spelled. */
static int32_t counted_raw(builder *t, const string_alt *a, int32_t next) {
    program *p = &t->c->p;
    if (t->raw_char < 0) {
        char_set bar = {0};
        chars__add(t->c, &bar, BAR, BAR);
        char_set others = chars__complement(t->c, &bar);
        t->raw_char = program__rule(p, "character");
        program__define(p, t->raw_char, chars__emit_set(t->c, &others, CHAR_RAW, PROGRAM_ACCEPT));
    }
    if (a->min >= PROGRAM_FOREVER) return PROGRAM_FAIL;
    bool bounded = a->max >= 0 && a->max < PROGRAM_FOREVER;
    return program__repeat(p, t->raw_char, (int32_t)a->min,
                           bounded ? (int32_t)a->max : PROGRAM_FOREVER, next);
}

static int32_t raw_string(builder *t, schema *s, const string_alt *a, int32_t next) {
    if (!a->has_literals && !a->tests) {
        bool free = a->min == 0 && a->max < 0;
        return free ? any_raw(t, next) : counted_raw(t, a, next);
    }
    char_dfa *all = schema__string_dfa(s, a);
    if (!all) return PROGRAM_FAIL;
    return chars__emit_dfa(t->c, chars__subtract(t->c, all, t->marker->dfa), CHAR_RAW, next);
}

/* ---- Parameters ---- */

/* ` string="true">RAW</M parameter>` or ` string="false">JSON</M parameter>`, then next. */
static int32_t parameter_value(builder *t, schema *s, int32_t id, int32_t next) {
    program *p = &t->c->p;
    int32_t end = tag(t, "</", DSML_PARAMETER ">", next), raw = PROGRAM_FAIL, json;
    if (id == ANY) {
        raw = any_raw(t, end);
        json = json__value(&t->rules, end);
    } else {
        const shape *a = schema__shape(s, id);
        if (!a) return PROGRAM_FAIL;
        for (const string_alt *k = a->strings; k; k = k->next) {
            raw = program__split(p, raw_string(t, s, k, end), raw);
        }
        json = schema__emit_others(s, a, end);
    }
    if (raw != PROGRAM_FAIL) raw = text(t, " string=\"true\">", raw);
    if (json != PROGRAM_FAIL) json = text(t, " string=\"false\">", json);
    return program__split(p, raw, json);
}

/* `<M parameter name="KEY"`, then next. */
static int32_t parameter_head(builder *t, const property *name, int32_t next) {
    if (next == PROGRAM_FAIL) return next;
    int32_t quote = text(t, "\"", next);
    return tag(t, "<", DSML_PARAMETER " name=\"",
               program__literal(&t->c->p, name->name, name->size, quote));
}

/* A parameter with another name than those of `known`, from a class of names. */
static int32_t other_parameter(builder *t, schema *s, const object_alt *known, const name_class *k,
                               int32_t next) {
    static const char plain[] = "[^\"\\x00-\\x1f\uff5c]+";
    compiler *c = t->c;
    int32_t value = parameter_value(t, s, k->value, next);
    char_dfa *names = regex__determine(c, regex__parse(c, plain, strlen(plain), false, "name"));
    if (known) {
        size_t n = (size_t)known->n_properties;
        char_text *taken = compiler__alloc(c, n + 1, sizeof *taken);
        for (size_t i = 0; i < n && taken; i++) {
            taken[i] = (char_text){known->properties[i].name, known->properties[i].size};
        }
        if (!taken) return PROGRAM_FAIL;
        names = chars__intersect(c, names, schema__string_dfa(s, k->names));
        if (names) names = chars__subtract(c, names, chars__literals(c, taken, n));
        if (names) names = chars__endless(c, names);
        if (names && chars__is_empty(names)) {
            schema__fail(s, DI_ERR_UNSUPPORTED, s->root, NULL,
                         "names of parameters that a pattern allows must be without end, since no "
                         "two may be the same; name those that there are in properties");
        }
    }
    if (value == PROGRAM_FAIL || c->status != DI_OK) return PROGRAM_FAIL;
    int32_t name = chars__emit_dfa(c, names, CHAR_RAW, text(t, "\"", value));
    return name == PROGRAM_FAIL ? name : tag(t, "<", DSML_PARAMETER " name=\"", name);
}

/* Any parameters at all, or none, then `end`. */
static int32_t free_parameters(builder *t, int32_t end) {
    program *p = &t->c->p;
    name_class any = {NULL, ANY, false};
    int32_t more = program__open(p);
    int32_t one = other_parameter(t, NULL, NULL, &any, more);
    program__close(p, more, text(t, "\n", one), end);
    return program__split(p, one, end);
}

static bool fits_a_tag(const char *name, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (name[i] == '"' || (unsigned char)name[i] < 0x20) return false;
    }
    return !memmem(name, size, CHAT_DSML, strlen(CHAT_DSML));
}

/* The parameters of one alternative in order, joined by newlines, then `end`. */
static int32_t ordered_parameters(builder *t, schema *s, const object_alt *a, int32_t end) {
    program *p = &t->c->p;
    if (a->min > 0 || a->max >= 0) {
        schema__fail(s, DI_ERR_UNSUPPORTED, s->root, a->min > 0 ? "minProperties" : "maxProperties",
                     "is not supported for the parameters of a tool");
    }
    int32_t key = PROGRAM_FAIL, after = end;
    bool owed = false;
    object_alt said = *a; /* without names that nobody spoke of */
    said.n_classes = 0;
    said.classes = compiler__alloc(t->c, (size_t)a->n_classes + 1, sizeof *said.classes);
    if (!said.classes) return PROGRAM_FAIL;
    for (int32_t i = 0; i < a->n_classes; i++) {
        bool dropped = a->classes[i].implicit && (t->strict || a->declares);
        if (!dropped) said.classes[said.n_classes++] = a->classes[i];
    }
    a = schema__listed_names(s, &said);
    if (!a) return PROGRAM_FAIL;
    int32_t more = program__open(p);
    for (int32_t i = 0; i < a->n_classes; i++) {
        key = program__split(p, other_parameter(t, s, a, &a->classes[i], more), key);
    }
    program__close(p, more, text(t, "\n", key), end);
    if (key != PROGRAM_FAIL) after = more;
    for (int32_t i = a->n_properties; i-- > 0 && t->c->status == DI_OK;) {
        const property *k = &a->properties[i];
        if (!fits_a_tag(k->name, k->size)) {
            schema__fail(s, DI_ERR_UNSUPPORTED, s->root, "properties",
                         "a parameter's name with a quote, a control character or the marker "
                         "cannot be written in a call");
        }
        int32_t take = k->value == NONE
                           ? PROGRAM_FAIL
                           : parameter_head(t, k, parameter_value(t, s, k->value, after));
        key = k->required ? take : program__split(p, take, key);
        owed |= k->required;
        after = program__split(p, text(t, "\n", key), owed ? PROGRAM_FAIL : end);
    }
    return program__split(p, key, owed ? PROGRAM_FAIL : end);
}

static int32_t schema_parameters(builder *t, const di_json *parameters, int32_t end) {
    schema s;
    if (!schema__init(&s, t->c, t->options, parameters)) return PROGRAM_FAIL;
    s.closed = true;
    s.rules = t->rules;
    s.marker = t->marker;
    const shape *a = schema__shape(&s, schema__one(&s, PART_SCHEMA, parameters));
    int32_t all = PROGRAM_FAIL;
    if (a && !a->objects) {
        schema__fail(&s, DI_ERR_INVALID, parameters, NULL, "parameters must be an object");
    }
    for (const object_alt *k = a ? a->objects : NULL; k; k = k->next) {
        all = program__split(&t->c->p, ordered_parameters(t, &s, k, end), all);
    }
    schema__emit_pending(&s);
    t->rules = s.rules;
    return all;
}

/* Whether the schema can be enforced: it is compiled for itself, with half of what is left of the budget, so
 * that as much is left to compile it once more. */
static bool can_follow(builder *t, const di_json *parameters) {
    di_error why;
    compiler c;
    builder trial = {.c = &c};
    compiler__init(&c, &why);
    int64_t given = t->c->steps_left / 2;
    c.steps_left = given;
    int32_t root = program__rule(&c.p, "parameters");
    if (begin(&trial, t->options)) {
        program__define(&c.p, root, schema_parameters(&trial, parameters, PROGRAM_ACCEPT));
    }
    di_status status = c.status == DI_OK ? program__finish(&c.p, &why) : c.status;
    t->c->steps_left -= c.steps_left > 0 ? given - c.steps_left : given;
    compiler__deinit(&c);
    /* That says nothing of the schema. */
    if (status == DI_ERR_MEMORY) compiler__fail(t->c, status, "%s", why.message);
    return status == DI_OK;
}

/* ---- Calls ---- */

typedef struct tool {
    const di_json *function;
    char *name; /* NAME or NAMESPACE::NAME */
    bool strict;
} tool;

static bool read_tool(builder *t, const di_json *json, tool *out) {
    const di_json *inner = di_json_get(json, "function"), *space = di_json_get(json, "namespace");
    out->function = inner ? inner : json;
    const di_json *name = di_json_get(out->function, "name");
    const di_json *strict = di_json_get(out->function, "strict");
    if (!space) space = di_json_get(out->function, "namespace");
    if (space && space->type == DI_JSON_OBJECT) space = di_json_get(space, "name");
    if (!strict) strict = di_json_get(json, "strict");
    out->strict = strict && strict->type == DI_JSON_TRUE;
    if (!name || name->type != DI_JSON_STRING || !fits_a_tag(name->text, name->length)) {
        compiler__fail(t->c, DI_ERR_INVALID, "a function needs a name, without quotes");
        return false;
    }
    bool joins = space && space->type == DI_JSON_STRING && !strstr(name->text, "::");
    size_t size = name->length + (joins ? space->length + 2 : 0) + 1;
    out->name = compiler__alloc(t->c, size, 1);
    if (!out->name) return false;
    snprintf(out->name, size, "%s%s%s", joins ? space->text : "", joins ? "::" : "", name->text);
    return true;
}

/* One call of a tool, then next. */
static int32_t invoke(builder *t, const tool *k, const di_grammar_tools *spec, int32_t next) {
    int32_t end = text(t, "\n", tag(t, "</", DSML_INVOKE ">", next));
    const di_json *parameters = di_json_get(k->function, "parameters");
    bool given = parameters && parameters->type != DI_JSON_NULL;
    int32_t inside;
    t->strict = k->strict || spec->strict;
    bool follows = given && (t->strict || (spec->follow && can_follow(t, parameters)));
    if (t->c->status != DI_OK) return PROGRAM_FAIL;
    if (follows) {
        inside = schema_parameters(t, parameters, end);
    } else {
        inside = t->strict ? end : free_parameters(t, end);
    }
    if (inside == PROGRAM_FAIL) return inside;
    int32_t head = text(t, k->name, text(t, "\">\n", inside));
    return tag(t, "<", DSML_INVOKE " name=\"", head);
}

/* Puts which tool it was in front of what went wrong. */
static void name_the_tool(builder *t, size_t index, const char *name) {
    char reason[sizeof t->c->error->message];
    memcpy(reason, t->c->error->message, sizeof reason);
    snprintf(t->c->error->message, sizeof t->c->error->message, "tools[%zu]: %.100s%s%.400s", index,
             name ? name : "", name ? ": " : "", reason);
}

/* Any of the tools. */
static int32_t any_call(builder *t, const di_grammar_tools *spec) {
    int32_t all = PROGRAM_FAIL;
    size_t i = 0;
    bool found = false;
    for (const di_json *k = spec->tools ? spec->tools->first : NULL; k; k = k->next, i++) {
        tool one = {0};
        if (read_tool(t, k, &one) && (!spec->name || strcmp(spec->name, one.name) == 0)) {
            found = true;
            int32_t call = invoke(t, &one, spec, PROGRAM_ACCEPT);
            all = program__split(&t->c->p, call, all);
        }
        if (t->c->status != DI_OK) {
            name_the_tool(t, i, one.name);
            return PROGRAM_FAIL;
        }
    }
    if (!found) {
        compiler__fail(t->c, DI_ERR_INVALID, "there is no tool %s",
                       spec->name ? spec->name : "to call");
    }
    return all;
}

/* The block, with the newlines before it, then the end. */
static int32_t calls_block(builder *t, const di_grammar_tools *spec) {
    program *p = &t->c->p;
    int32_t call = program__rule(p, "call"), more = program__rule(p, "calls");
    program__define(p, call, any_call(t, spec));
    program__define(p, more, text(t, "\n", program__call(p, call, PROGRAM_ACCEPT)));
    int32_t end = text(t, "\n", tag(t, "</", DSML_CALLS ">", PROGRAM_ACCEPT));
    int32_t max = spec->max_calls > 0 ? spec->max_calls - 1 : PROGRAM_FOREVER;
    int32_t first = program__call(p, call, program__repeat(p, more, 0, max, end));
    return text(t, "\n\n", tag(t, "<", DSML_CALLS ">\n", first));
}

/* The whole answer. */
static int32_t answer(builder *t, const di_grammar_tools *spec) {
    program *p = &t->c->p;
    if (spec->choice == DI_GRAMMAR_TOOLS_NONE) return any_raw(t, PROGRAM_ACCEPT);
    int32_t calls = calls_block(t, spec);
    if (spec->choice == DI_GRAMMAR_TOOLS_REQUIRED) return calls;
    if (!spec->form) return any_raw(t, program__split(p, calls, PROGRAM_ACCEPT));
    return program__split(p, form__emit(t->c, t->options, spec->form, PROGRAM_ACCEPT), calls);
}

static di_status compile(const di_vocabulary *vocabulary, const di_grammar_options *options,
                         const di_grammar_tools *spec, di_grammar **out, di_error *error) {
    compiler c;
    builder t = {.c = &c};
    compiler__init(&c, error);
    int32_t root = program__rule(&c.p, "answer");
    if (begin(&t, options)) program__define(&c.p, root, answer(&t, spec));
    di_status status = grammar__finish(vocabulary, &c, out);
    if (status == DI_OK) (*out)->has_calls = true;
    return status;
}

di_status di_grammar_compile_tools(const di_vocabulary *vocabulary,
                                   const di_grammar_options *options, const di_grammar_tools *spec,
                                   di_grammar **out, di_error *error) {
    di_status status = compile(vocabulary, options, spec, out, error);
    if (status != DI_ERR_LIMIT || !spec->follow) return status;
    /* What is left over for strict tools is not enough. */
    di_grammar_tools free = *spec;
    free.follow = false;
    return compile(vocabulary, options, &free, out, error);
}
