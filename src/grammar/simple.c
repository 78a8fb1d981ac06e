/* The front ends that need no more than a few lines: expressions, choices, any JSON object. */
#include "base/utf8.h"
#include "grammar/grammar_internal.h"
#include "grammar/json_rules.h"
#include "grammar/regex.h"

di_status di_grammar_compile_regex(const di_vocabulary *vocabulary, const char *text, size_t size,
                                   di_grammar **out, di_error *error) {
    compiler c;
    compiler__init(&c, error);
    int32_t root = program__rule(&c.p, "expression");
    const regex *r = regex__parse(&c, text, size, false, "regex");
    program__define(&c.p, root, regex__emit(&c, r, CHAR_RAW, PROGRAM_ACCEPT));
    return grammar__finish(vocabulary, &c, out);
}

di_status di_grammar_compile_json_object(const di_vocabulary *vocabulary,
                                         const di_grammar_options *options, di_grammar **out,
                                         di_error *error) {
    di_grammar_options o = options ? *options : di_grammar_options_defaults();
    compiler c;
    json_rules j;
    compiler__init(&c, error);
    json__init(&j, &c, o.space);
    int32_t root = program__rule(&c.p, "answer");
    program__define(&c.p, root, json__object(&j, PROGRAM_ACCEPT));
    return grammar__finish(vocabulary, &c, out);
}

di_status di_grammar_compile_choices(const di_vocabulary *vocabulary, const di_json *choices,
                                     di_grammar **out, di_error *error) {
    compiler c;
    *out = NULL;
    if (!choices || choices->type != DI_JSON_ARRAY || !choices->first) {
        return di_fail(error, DI_ERR_INVALID, "choices: must be a non-empty array of strings");
    }
    compiler__init(&c, error);
    int32_t root = program__rule(&c.p, "choices"), all = PROGRAM_FAIL;
    size_t i = 0;
    for (const di_json *k = choices->first; k; k = k->next, i++) {
        if (k->type != DI_JSON_STRING) {
            compiler__fail(&c, DI_ERR_INVALID, "/%zu: a choice must be a string", i);
            break;
        }
        all = program__split(&c.p, program__literal(&c.p, k->text, k->length, PROGRAM_ACCEPT), all);
    }
    program__define(&c.p, root, all);
    return grammar__finish(vocabulary, &c, out);
}
