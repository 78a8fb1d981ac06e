#include "server/constraint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "server/fields.h"

/* ---- Forms ---- */

void di_constraint_deinit(di_constraint *c) { di_arena_free(&c->arena); }

di_status di_constraint_form(di_constraint *c, di_form form, const di_json *source,
                             const char *field, di_error *error) {
    if (c->field) {
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "%s: the answer is held to another form already (%s); leave out one of them",
                       field, c->field);
    }
    c->form = (di_form_spec){.form = form, .source = source};
    c->field = field;
    return DI_OK;
}

/* A schema is an object, a bool, or a text of one. */
static di_status add_schema(di_constraint *c, const di_json *schema, const char *field,
                            di_error *error) {
    if (schema->type == DI_JSON_STRING) {
        DI_TRY(di_json_parse(schema->text, schema->length, field, &c->arena, &schema, error));
    }
    return di_constraint_form(c, DI_FORM_SCHEMA, schema, field, error);
}

static di_status add_text(di_constraint *c, di_form form, const di_json *text, const char *field,
                          di_error *error) {
    if (text->type != DI_JSON_STRING) return di_field_wrong(field, "a string", error);
    return di_constraint_form(c, form, text, field, error);
}

static di_status add_choices(di_constraint *c, const di_json *choices, const char *field,
                             di_error *error) {
    if (choices->type != DI_JSON_ARRAY) return di_field_wrong(field, "a list of strings", error);
    return di_constraint_form(c, DI_FORM_CHOICES, choices, field, error);
}

/* ---- Fields ---- */

/* {"type": "json_schema", "json_schema": {"schema": ...}}, or the schema beside the type, as Responses
 * have it. */
static di_status read_format(di_constraint *c, const di_json *format, const char *field,
                             di_error *error) {
    const di_json *type = di_field(format, "type");
    if (!format || di_json_is_string(type, "text")) return DI_OK;
    if (di_json_is_string(type, "json_object")) {
        return di_constraint_form(c, DI_FORM_JSON_OBJECT, NULL, field, error);
    }
    if (!di_json_is_string(type, "json_schema")) {
        return di_field_wrong(field, "a type of text, json_object or json_schema", error);
    }
    const di_json *inner = di_field(format, "json_schema");
    const di_json *schema = di_field(inner ? inner : format, "schema");
    if (!schema) return di_field_wrong(field, "a schema", error);
    return add_schema(c, schema, field, error);
}

/* vLLM: structured_outputs, its members also as guided_...; SGLang: regex, ebnf, json_schema. */
static di_status read_others(di_constraint *c, const di_json *body, const char *field,
                             const char *key, int kind, di_error *error) {
    const di_json *value = di_field(body, key);
    bool wanted = false;
    if (!value) return DI_OK;
    switch (kind) {
    case DI_FORM_SCHEMA: return add_schema(c, value, field, error);
    case DI_FORM_CHOICES: return add_choices(c, value, field, error);
    case DI_FORM_JSON_OBJECT:
        if (!di_json_bool(value, &wanted)) {
            return di_fail(error, DI_ERR_INVALID, "%s.%s: true or false is needed", field, key);
        }
        return wanted ? di_constraint_form(c, DI_FORM_JSON_OBJECT, NULL, field, error) : DI_OK;
    case DI_FORM_REGEX:
    case DI_FORM_EBNF: return add_text(c, (di_form)kind, value, field, error);
    default:
        return di_fail(error, DI_ERR_UNSUPPORTED, "%s: %s is not supported; leave it out", field,
                       key);
    }
}

static di_status read_forms(di_constraint *c, const di_json *body, di_error *error) {
    static const struct {
        const char *outer, *key;
        int kind; /* a di_form, or -1: not supported */
    } fields[] = {
        {"structured_outputs", "json", DI_FORM_SCHEMA},
        {"structured_outputs", "regex", DI_FORM_REGEX},
        {"structured_outputs", "choice", DI_FORM_CHOICES},
        {"structured_outputs", "grammar", DI_FORM_EBNF},
        {"structured_outputs", "json_object", DI_FORM_JSON_OBJECT},
        {"structured_outputs", "structural_tag", -1},
        {NULL, "guided_json", DI_FORM_SCHEMA},
        {NULL, "guided_regex", DI_FORM_REGEX},
        {NULL, "guided_choice", DI_FORM_CHOICES},
        {NULL, "guided_grammar", DI_FORM_EBNF},
        {NULL, "regex", DI_FORM_REGEX},
        {NULL, "ebnf", DI_FORM_EBNF},
        {NULL, "json_schema", DI_FORM_SCHEMA},
        {NULL, "structural_tag", -1},
    };
    const di_json *vllm = di_field(body, "structured_outputs");
    DI_TRY(read_format(c, di_field(body, "response_format"), "response_format", error));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const di_json *in = fields[i].outer ? di_field(body, fields[i].outer) : body;
        if (in && in->type != DI_JSON_OBJECT) {
            return di_field_wrong(fields[i].outer, "an object", error);
        }
        DI_TRY(read_others(c, in, fields[i].outer ? fields[i].outer : fields[i].key, fields[i].key,
                           fields[i].kind, error));
    }
    bool said = c->field && strcmp(c->field, "structured_outputs") == 0;
    if (vllm && !said && !di_field(vllm, "json_object")) { /* which may be false */
        return di_field_wrong("structured_outputs",
                              "one of json, regex, choice, grammar and json_object", error);
    }
    return read_format(c, di_field(di_field(body, "text"), "format"), "text", error);
}

/* ---- Tools ---- */

di_status di_constraint_forbid(di_gen_request *request, const char *token,
                               const di_request_env *env, di_error *error) {
    di_sampling *s = &request->sampling;
    int32_t id = di_tokenizer_added_id(env->tokenizer, token);
    if (id < 0) return DI_OK; /* such a model does not say it */
    di_token_bias *biases =
        di_arena_calloc(&request->arena, (size_t)s->n_biases + 1, sizeof *biases);
    if (!biases) return di_fail(error, DI_ERR_MEMORY, "out of memory: logit biases");
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_biases; i++) {
        if (s->biases[i].token != id) biases[n++] = s->biases[i];
    }
    biases[n++] = (di_token_bias){id, -1000};
    s->biases = biases;
    s->n_biases = n;
    return di_sampling_check(s, env->vocab_size, error);
}

static di_status any_strict(const di_json *tools, bool *any, di_error *error) {
    int index = 0;
    *any = false;
    for (const di_json *t = tools->type == DI_JSON_ARRAY ? tools->first : NULL; t;
         t = t->next, index++) {
        const di_json *function = di_field(t, "function");
        const di_json *strict = di_field(function ? function : t, "strict");
        bool on = false;
        if (strict && !di_json_bool(strict, &on)) {
            return di_fail(error, DI_ERR_INVALID, "tools[%d].strict: true or false is needed",
                           index);
        }
        *any = *any || on;
    }
    return DI_OK;
}

/* Whether a text of the grammar begins with what the prompt holds of the answer. */
static di_status try_begun(const di_gen_request *request, bool *fits, di_error *error) {
    const di_ids *prompt = &request->prompts[0];
    di_status status = DI_OK;
    di_grammar_matcher *m = di_grammar_matcher_create(request->grammar, -1);
    if (!m) return di_fail(error, DI_ERR_MEMORY, "out of memory: grammar");
    for (size_t i = prompt->size - request->n_begun; i < prompt->size && status == DI_OK; i++) {
        status = di_grammar_matcher_advance(m, prompt->data[i], error);
    }
    di_grammar_matcher_destroy(m);
    *fits = status == DI_OK;
    return status == DI_ERR_INVALID ? DI_OK : status;
}

/* In the model's own way of writing JSON, or, if the client began it in another one, with blanks wherever
 * JSON allows them. */
static di_status compile(di_gen_request *request, di_form_spec spec, const di_request_env *env,
                         di_error *error) {
    bool fits = true;
    for (int any = 0; any < 2; any++) {
        spec.any_space = any;
        DI_TRY(di_grammars_get(env->grammars, &spec, &request->grammar, error));
        if (request->n_begun > 0) DI_TRY(try_begun(request, &fits, error));
        if (fits) return DI_OK;
        di_grammar_release(request->grammar);
        request->grammar = NULL;
    }
    return di_fail(
        error, DI_ERR_INVALID,
        "messages: the form that is asked for has no text that begins as the last message "
        "does");
}

/* The request's grammar; what cannot be enforced is told by the field it came in, where what is wrong does not
 * say it: tools by their place in the list, others by a word that may be the field's. */
static di_status take(di_gen_request *request, const di_form_spec *spec, const di_request_env *env,
                      const char *field, di_error *error) {
    di_error why;
    di_status status = compile(request, *spec, env, &why);
    if (status == DI_OK) return DI_OK;
    /* A bound of the compiler is none of the context. */
    if (status == DI_ERR_LIMIT) status = DI_ERR_UNSUPPORTED;
    size_t n = strlen(field);
    bool told = strncmp(why.message, "tools[", 6) == 0 ||
                strncmp(why.message, "messages:", 9) == 0 ||
                (strncmp(why.message, field, n) == 0 && why.message[n] == ':');
    return di_fail(error, status, "%s%s%s", told ? "" : field, told ? "" : ": ", why.message);
}

static const di_json *name_of(const di_json *tool) {
    const di_json *function = di_field(tool, "function");
    return di_field(function ? function : tool, "name");
}

static bool same_text(const di_json *a, const di_json *b) {
    return a && b && a->type == DI_JSON_STRING && b->type == DI_JSON_STRING &&
           a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
}

static const di_json *find_tool(const di_json *tools, const di_json *name) {
    for (const di_json *t = tools->first; t; t = t->next) {
        if (same_text(name_of(t), name)) return t;
    }
    return NULL;
}

/* Those of the tools that are named, in their own order. The others stay in the prompt, which is found in
 * the cache then. */
static di_status only_allowed(di_constraint *c, const di_json *allowed, const di_json **tools,
                              di_error *error) {
    size_t index = 0;
    di_json *list = di_arena_calloc(&c->arena, (*tools)->length + 1, sizeof *list);
    if (!list) return di_fail(error, DI_ERR_MEMORY, "out of memory: tool_choice");
    for (const di_json *a = allowed->first; a; a = a->next, index++) {
        if (find_tool(*tools, name_of(a))) continue;
        return di_fail(error, DI_ERR_INVALID,
                       "tool_choice: item %zu of allowed_tools is none of the tools", index);
    }
    di_json *last = NULL;
    *list = (di_json){.type = DI_JSON_ARRAY};
    for (const di_json *t = (*tools)->first; t; t = t->next) {
        if (!find_tool(allowed, name_of(t))) continue;
        di_json *copy = &list[++list->length];
        *copy = *t;
        copy->next = NULL;
        if (last) last->next = copy;
        if (!last) list->first = copy;
        last = copy;
    }
    *tools = list;
    return DI_OK;
}

/* An error that names one of some tools names its place among all. */
static void place_in_all(const di_json *all, const di_json *some, di_error *error) {
    static const char list[] = "tools[";
    char rest[sizeof error->message], *end;
    if (strncmp(error->message, list, sizeof list - 1) != 0) return;
    size_t index = strtoul(error->message + sizeof list - 1, &end, 10), place = 0;
    const di_json *one = some->first;
    while (one && index-- > 0) one = one->next;
    /* A copy has the members of what it is a copy of. */
    for (const di_json *t = all->first; t && one && t->first != one->first; t = t->next) place++;
    snprintf(rest, sizeof rest, "%s", end);
    snprintf(error->message, sizeof error->message, "%s%zu%.400s", list, place, rest);
}

/* What comes of the tools that may be called. */
static di_status hold(const di_constraint *c, di_gen_request *request, const di_json *tools,
                      const di_tool_choice *choice, const di_request_env *env, di_error *error) {
    bool strict = false, some = tools && tools->length > 0;
    bool must = choice->kind == DI_GRAMMAR_TOOLS_REQUIRED;
    if (some) DI_TRY(any_strict(tools, &strict, error));
    if (some && choice->kind == DI_GRAMMAR_TOOLS_NONE) {
        DI_TRY(di_constraint_forbid(request, "｜DSML｜", env, error)); /* it begins a call */
    }
    if (!some || choice->kind == DI_GRAMMAR_TOOLS_NONE) {
        return c->field ? take(request, &c->form, env, c->field, error) : DI_OK;
    }
    if (!must && !strict && !c->field && !choice->allowed) return DI_OK;
    const di_form_spec spec = {.form = DI_FORM_TOOLS,
                               .source = tools,
                               .choice = choice->kind,
                               .name = choice->name,
                               .max_calls = request->one_call ? 1 : 0,
                               .beside = c->field && !must ? &c->form : NULL};
    const char *field = spec.beside ? c->field : must || !strict ? "tool_choice" : "tools";
    return take(request, &spec, env, field, error);
}

di_status di_constraint_end(di_constraint *c, di_gen_request *request, const di_json *tools,
                            const di_tool_choice *choice, const di_request_env *env,
                            di_error *error) {
    const di_json *some = tools;
    bool must = choice->kind == DI_GRAMMAR_TOOLS_REQUIRED;
    if ((!tools || tools->length == 0) && (must || choice->allowed)) {
        return di_fail(error, DI_ERR_INVALID, "tool_choice: there are no tools to choose from");
    }
    if (!choice->allowed) return hold(c, request, tools, choice, env, error);
    DI_TRY(only_allowed(c, choice->allowed, &some, error));
    di_status status = hold(c, request, some, choice, env, error);
    if (status != DI_OK) place_in_all(tools, some, error);
    return status;
}

static di_status wrong_choice(di_error *error) {
    return di_field_wrong("tool_choice",
                          "\"auto\", \"none\", \"required\", a function's name or allowed_tools",
                          error);
}

/* {"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}, or these beside the type, as
 * Responses have them. */
static di_status read_allowed(const di_json *object, di_tool_choice *out, di_error *error) {
    const di_json *inner = di_field(object, "allowed_tools");
    const di_json *from = inner ? inner : object;
    const di_json *mode = di_field(from, "mode"), *tools = di_field(from, "tools");
    bool required = di_json_is_string(mode, "required");
    if ((!required && !di_json_is_string(mode, "auto")) || !tools || tools->type != DI_JSON_ARRAY ||
        tools->length == 0) {
        return di_field_wrong("tool_choice",
                              "for allowed_tools a mode, auto or required, and a list of tools",
                              error);
    }
    out->kind = required ? DI_GRAMMAR_TOOLS_REQUIRED : DI_GRAMMAR_TOOLS_AUTO;
    out->allowed = tools;
    return DI_OK;
}

/* "auto", "none", "required", or an object that names one, or some. */
static di_status read_choice(const di_json *choice, di_tool_choice *out, di_error *error) {
    *out = (di_tool_choice){.kind = DI_GRAMMAR_TOOLS_AUTO};
    if (!choice || di_json_is_string(choice, "auto")) return DI_OK;
    if (di_json_is_string(choice, "none")) {
        out->kind = DI_GRAMMAR_TOOLS_NONE;
        return DI_OK;
    }
    out->kind = DI_GRAMMAR_TOOLS_REQUIRED;
    if (di_json_is_string(choice, "required")) return DI_OK;
    if (choice->type != DI_JSON_OBJECT) return wrong_choice(error);
    if (di_json_is_string(di_field(choice, "type"), "allowed_tools")) {
        return read_allowed(choice, out, error);
    }
    const di_json *given = name_of(choice);
    if (!di_json_is_string(di_field(choice, "type"), "function") || !given ||
        given->type != DI_JSON_STRING || strlen(given->text) != given->length) {
        return wrong_choice(error);
    }
    out->name = given->text;
    return DI_OK;
}

static di_status read_all(di_constraint *c, di_gen_request *request, const di_json *body,
                          const di_request_env *env, di_error *error) {
    const di_json *tools = di_field(body, "tools");
    di_tool_choice choice;
    bool parallel = true;
    DI_TRY(di_field_bool(body, "parallel_tool_calls", &parallel, error));
    request->one_call = !parallel;
    DI_TRY(read_forms(c, body, error));
    if (tools && tools->type != DI_JSON_ARRAY) return di_field_wrong("tools", "a list", error);
    DI_TRY(read_choice(di_field(body, "tool_choice"), &choice, error));
    return di_constraint_end(c, request, tools, &choice, env, error);
}

di_status di_constraint_read(di_gen_request *request, const di_json *body,
                             const di_request_env *env, di_error *error) {
    di_constraint c = DI_CONSTRAINT_NONE;
    di_status status = read_all(&c, request, body, env, error);
    di_constraint_deinit(&c);
    return status;
}
