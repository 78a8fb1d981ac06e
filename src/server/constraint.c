#include "server/constraint.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "server/fields.h"

/* ---- Forms ---- */

di_status di_constraint_form(di_gen_request *request, const di_form_spec *spec,
                             const di_request_env *env, const char *field, di_error *error) {
    di_error why;
    if (request->grammar) {
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "%s: the answer is held to another form already (tools with a choice or "
                       "strict are one); leave out one of them",
                       field);
    }
    di_status status = di_grammars_get(env->grammars, spec, &request->grammar, &why);
    if (status == DI_OK) return DI_OK;
    /* A bound of the compiler is none of the context. */
    if (status == DI_ERR_LIMIT) status = DI_ERR_UNSUPPORTED;
    return di_fail(error, status, "%s: %s", field, why.message);
}

/* A schema is an object, a bool, or a text of one. */
static di_status add_schema(di_gen_request *request, const di_json *schema,
                            const di_request_env *env, const char *field, di_error *error) {
    di_arena arena = DI_ARENA_EMPTY;
    di_status status = DI_OK;
    if (schema->type == DI_JSON_STRING) {
        status = di_json_parse(schema->text, schema->length, field, &arena, &schema, error);
    }
    if (status == DI_OK) {
        status =
            di_constraint_form(request, &(di_form_spec){.form = DI_FORM_SCHEMA, .source = schema},
                               env, field, error);
    }
    di_arena_free(&arena);
    return status;
}

static di_status add_text(di_gen_request *request, di_form form, const di_json *text,
                          const di_request_env *env, const char *field, di_error *error) {
    if (text->type != DI_JSON_STRING) return di_field_wrong(field, "a string", error);
    return di_constraint_form(request, &(di_form_spec){.form = form, .source = text}, env, field,
                              error);
}

static di_status add_choices(di_gen_request *request, const di_json *choices,
                             const di_request_env *env, const char *field, di_error *error) {
    if (choices->type != DI_JSON_ARRAY) return di_field_wrong(field, "a list of strings", error);
    return di_constraint_form(request, &(di_form_spec){.form = DI_FORM_CHOICES, .source = choices},
                              env, field, error);
}

static di_status add_object(di_gen_request *request, const di_request_env *env, const char *field,
                            di_error *error) {
    return di_constraint_form(request, &(di_form_spec){.form = DI_FORM_JSON_OBJECT}, env, field,
                              error);
}

/* ---- Fields ---- */

/* {"type": "json_schema", "json_schema": {"schema": ...}}, or the schema beside the type, as Responses
 * have it. */
static di_status read_format(di_gen_request *request, const di_json *format, const char *field,
                             const di_request_env *env, di_error *error) {
    const di_json *type = di_field(format, "type");
    if (!format || di_json_is_string(type, "text")) return DI_OK;
    if (di_json_is_string(type, "json_object")) return add_object(request, env, field, error);
    if (!di_json_is_string(type, "json_schema")) {
        return di_field_wrong(field, "a type of text, json_object or json_schema", error);
    }
    const di_json *inner = di_field(format, "json_schema");
    const di_json *schema = di_field(inner ? inner : format, "schema");
    if (!schema) return di_field_wrong(field, "a schema", error);
    return add_schema(request, schema, env, field, error);
}

/* vLLM: structured_outputs, its members also as guided_...; SGLang: regex, ebnf, json_schema. */
static di_status read_others(di_gen_request *request, const di_json *body, const char *field,
                             const char *key, int kind, const di_request_env *env,
                             di_error *error) {
    const di_json *value = di_field(body, key);
    bool wanted = false;
    if (!value) return DI_OK;
    switch (kind) {
    case DI_FORM_SCHEMA: return add_schema(request, value, env, field, error);
    case DI_FORM_CHOICES: return add_choices(request, value, env, field, error);
    case DI_FORM_JSON_OBJECT:
        DI_TRY(di_field_bool(body, key, &wanted, error));
        return wanted ? add_object(request, env, field, error) : DI_OK;
    case DI_FORM_REGEX:
    case DI_FORM_EBNF: return add_text(request, (di_form)kind, value, env, field, error);
    default:
        return di_fail(error, DI_ERR_UNSUPPORTED, "%s: %s is not supported; leave it out", field,
                       key);
    }
}

static di_status read_forms(di_gen_request *request, const di_json *body, const di_request_env *env,
                            di_error *error) {
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
    DI_TRY(read_format(request, di_field(body, "response_format"), "response_format", env, error));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const di_json *in = fields[i].outer ? di_field(body, fields[i].outer) : body;
        if (in && in->type != DI_JSON_OBJECT) {
            return di_field_wrong(fields[i].outer, "an object", error);
        }
        DI_TRY(read_others(request, in, fields[i].outer ? fields[i].outer : fields[i].key,
                           fields[i].key, fields[i].kind, env, error));
    }
    return read_format(request, di_field(di_field(body, "text"), "format"), "text", env, error);
}

/* ---- Tools ---- */

/* The token that begins a call is never sampled. */
static di_status forbid_calls(di_gen_request *request, const di_request_env *env, di_error *error) {
    di_sampling *s = &request->sampling;
    int32_t marker = di_tokenizer_added_id(env->tokenizer, "｜DSML｜");
    if (marker < 0) return DI_OK; /* such a model has no calls */
    di_token_bias *biases =
        di_arena_calloc(&request->arena, (size_t)s->n_biases + 1, sizeof *biases);
    if (!biases) return di_fail(error, DI_ERR_MEMORY, "out of memory: logit biases");
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_biases; i++) {
        if (s->biases[i].token != marker) biases[n++] = s->biases[i];
    }
    biases[n++] = (di_token_bias){marker, -1000};
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

di_status di_constraint_tools(di_gen_request *request, const di_json *tools,
                              di_grammar_tool_choice choice, const char *name,
                              const di_request_env *env, di_error *error) {
    bool strict = false, some = tools && tools->length > 0;
    if (!some && choice == DI_GRAMMAR_TOOLS_REQUIRED) {
        return di_fail(error, DI_ERR_INVALID, "tool_choice: there are no tools to choose from");
    }
    if (!some) return DI_OK;
    DI_TRY(any_strict(tools, &strict, error));
    if (choice == DI_GRAMMAR_TOOLS_NONE) return forbid_calls(request, env, error);
    if (choice == DI_GRAMMAR_TOOLS_AUTO && !strict) {
        if (!request->grammar) return DI_OK;
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "tools: an answer that is held to a form has no calls; leave out one of "
                       "them, or set tool_choice none");
    }
    const di_form_spec spec = {.form = DI_FORM_TOOLS,
                               .source = tools,
                               .choice = choice,
                               .name = name,
                               .max_calls = request->one_call ? 1 : 0};
    bool chosen = choice == DI_GRAMMAR_TOOLS_REQUIRED && !strict;
    return di_constraint_form(request, &spec, env, chosen ? "tool_choice" : "tools", error);
}

static di_status wrong_choice(di_error *error) {
    return di_field_wrong("tool_choice", "\"auto\", \"none\", \"required\" or a function's name",
                          error);
}

/* "auto", "none", "required", or an object that names one. */
static di_status read_tools(di_gen_request *request, const di_json *body, const di_request_env *env,
                            di_error *error) {
    const di_json *choice = di_field(body, "tool_choice"), *tools = di_field(body, "tools");
    di_grammar_tool_choice kind = DI_GRAMMAR_TOOLS_AUTO;
    const char *name = NULL;
    if (tools && tools->type != DI_JSON_ARRAY) return di_field_wrong("tools", "a list", error);
    if (di_json_is_string(choice, "none")) kind = DI_GRAMMAR_TOOLS_NONE;
    if (di_json_is_string(choice, "required")) kind = DI_GRAMMAR_TOOLS_REQUIRED;
    if (choice && choice->type == DI_JSON_OBJECT) {
        const di_json *function = di_field(choice, "function");
        const di_json *given = di_field(function ? function : choice, "name");
        if (!di_json_is_string(di_field(choice, "type"), "function") || !given ||
            given->type != DI_JSON_STRING || strlen(given->text) != given->length) {
            return wrong_choice(error);
        }
        kind = DI_GRAMMAR_TOOLS_REQUIRED;
        name = given->text;
    } else if (choice && kind == DI_GRAMMAR_TOOLS_AUTO && !di_json_is_string(choice, "auto")) {
        return wrong_choice(error);
    }
    return di_constraint_tools(request, tools, kind, name, env, error);
}

di_status di_constraint_read(di_gen_request *request, const di_json *body,
                             const di_request_env *env, di_error *error) {
    bool parallel = true;
    DI_TRY(di_field_bool(body, "parallel_tool_calls", &parallel, error));
    request->one_call = !parallel;
    DI_TRY(read_forms(request, body, env, error));
    return read_tools(request, body, env, error);
}
