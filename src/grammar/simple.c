/* The front ends that need no more than a few lines, expressions, choices, any JSON object, and forms as
 * parts of a larger grammar. */
#include "base/utf8.h"
#include "grammar/grammar_internal.h"
#include "grammar/json_rules.h"
#include "grammar/regex.h"

static int32_t emit_regex(compiler *c, const char *text, size_t size, int32_t next) {
    return regex__emit(c, regex__parse(c, text, size, false, "regex"), CHAR_RAW, next);
}

static int32_t emit_object(compiler *c, const di_grammar_options *options, int32_t next) {
    di_grammar_options o = options ? *options : di_grammar_options_defaults();
    json_rules j;
    json__init(&j, c, o.space);
    return json__object(&j, next);
}

static int32_t emit_choices(compiler *c, const di_json *choices, int32_t next) {
    int32_t all = PROGRAM_FAIL;
    size_t i = 0;
    if (!choices || choices->type != DI_JSON_ARRAY || !choices->first) {
        compiler__fail(c, DI_ERR_INVALID, "choices: must be a non-empty array of strings");
        return PROGRAM_FAIL;
    }
    for (const di_json *k = choices->first; k; k = k->next, i++) {
        if (k->type != DI_JSON_STRING) {
            compiler__fail(c, DI_ERR_INVALID, "/%zu: a choice must be a string", i);
            return PROGRAM_FAIL;
        }
        all = program__split(&c->p, program__literal(&c->p, k->text, k->length, next), all);
    }
    return all;
}

int32_t form__emit(compiler *c, const di_grammar_options *options, const di_grammar_form *form,
                   int32_t next) {
    const di_json *source = form->source;
    switch (form->kind) {
    case DI_GRAMMAR_SCHEMA: return schema__emit_whole(c, options, source, next);
    case DI_GRAMMAR_JSON_OBJECT: return emit_object(c, options, next);
    case DI_GRAMMAR_REGEX: return emit_regex(c, source->text, source->length, next);
    case DI_GRAMMAR_EBNF: return ebnf__emit(c, source->text, source->length, next);
    case DI_GRAMMAR_CHOICES: return emit_choices(c, source, next);
    }
    return PROGRAM_FAIL;
}

/* ---- Front ends ---- */

di_status di_grammar_compile_regex(const di_vocabulary *vocabulary, const char *text, size_t size,
                                   di_grammar **out, di_error *error) {
    compiler c;
    compiler__init(&c, error);
    int32_t root = program__rule(&c.p, "expression");
    program__define(&c.p, root, emit_regex(&c, text, size, PROGRAM_ACCEPT));
    return grammar__finish(vocabulary, &c, out);
}

di_status di_grammar_compile_form(const di_vocabulary *vocabulary,
                                  const di_grammar_options *options, const di_grammar_form *form,
                                  di_grammar **out, di_error *error) {
    const di_json *source = form->source;
    if (form->kind == DI_GRAMMAR_EBNF) { /* its own first rule is the answer */
        return di_grammar_compile_ebnf(vocabulary, source->text, source->length, out, error);
    }
    compiler c;
    compiler__init(&c, error);
    int32_t root = program__rule(&c.p, "answer");
    program__define(&c.p, root, form__emit(&c, options, form, PROGRAM_ACCEPT));
    return grammar__finish(vocabulary, &c, out);
}

di_status di_grammar_compile_schema(const di_vocabulary *vocabulary,
                                    const di_grammar_options *options, const di_json *schema,
                                    di_grammar **out, di_error *error) {
    const di_grammar_form form = {DI_GRAMMAR_SCHEMA, schema};
    return di_grammar_compile_form(vocabulary, options, &form, out, error);
}

di_status di_grammar_compile_json_object(const di_vocabulary *vocabulary,
                                         const di_grammar_options *options, di_grammar **out,
                                         di_error *error) {
    const di_grammar_form form = {.kind = DI_GRAMMAR_JSON_OBJECT};
    return di_grammar_compile_form(vocabulary, options, &form, out, error);
}

di_status di_grammar_compile_choices(const di_vocabulary *vocabulary, const di_json *choices,
                                     di_grammar **out, di_error *error) {
    const di_grammar_form form = {DI_GRAMMAR_CHOICES, choices};
    return di_grammar_compile_form(vocabulary, NULL, &form, out, error);
}
