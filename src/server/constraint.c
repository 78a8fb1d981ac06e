#include "server/constraint.h"

#include <stdio.h>

#include <string.h>

#include "base/error.h"
#include "server/fields.h"

static di_status refuse(const char *field, di_error *error) {
    return di_fail(error, DI_ERR_UNSUPPORTED,
                   "%s: answers cannot be held to a form yet; leave it out", field);
}

di_status di_constraint_forbid_calls(di_gen_request *request, const di_request_env *env,
                                     di_error *error) {
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

/* "auto", "none", "required", or an object that names one. */
static di_status read_choice(di_gen_request *request, const di_json *body,
                             const di_request_env *env, di_error *error) {
    const di_json *choice = di_field(body, "tool_choice"), *tools = di_field(body, "tools");
    bool none = di_json_is_string(choice, "none");
    if (!choice || di_json_is_string(choice, "auto")) return DI_OK;
    if (none) return tools ? di_constraint_forbid_calls(request, env, error) : DI_OK;
    if (di_json_is_string(choice, "required") || choice->type == DI_JSON_OBJECT) {
        return refuse("tool_choice", error);
    }
    return di_field_wrong("tool_choice", "\"auto\", \"none\", \"required\" or a function's name",
                          error);
}

static di_status check_strict(const di_json *body, di_error *error) {
    const di_json *tools = di_field(body, "tools");
    bool is_list = tools && tools->type == DI_JSON_ARRAY;
    int index = 0;
    for (const di_json *t = is_list ? tools->first : NULL; t; t = t->next, index++) {
        char name[60];
        bool strict = false;
        const di_json *function = di_field(t, "function");
        snprintf(name, sizeof name, "tools[%d].strict", index);
        DI_TRY(di_field_bool(function ? function : t, "strict", &strict, error));
        if (strict) return refuse(name, error);
    }
    return DI_OK;
}

di_status di_constraint_read(di_gen_request *request, const di_json *body,
                             const di_request_env *env, di_error *error) {
    static const char *const fields[] =
        {"structured_outputs", "guided_json", "guided_regex", "guided_choice",
         "guided_grammar",     "regex",       "ebnf",         "json_schema",
         "structural_tag",     "grammar"};
    const di_json *format = di_field(body, "response_format");
    bool parallel = true;
    if (format && !di_json_is_string(di_field(format, "type"), "text")) {
        return refuse("response_format", error);
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (di_field(body, fields[i])) return refuse(fields[i], error);
    }
    DI_TRY(di_field_bool(body, "parallel_tool_calls", &parallel, error));
    request->one_call = !parallel;
    DI_TRY(check_strict(body, error));
    return read_choice(request, body, env, error);
}
