#include "grammar/grammar_internal.h"
#include "grammar/schema_internal.h"

di_status di_grammar_compile_schema(const di_vocabulary *vocabulary,
                                    const di_grammar_options *options, const di_json *json,
                                    di_grammar **out, di_error *error) {
    compiler c;
    schema s;
    compiler__init(&c, error);
    int32_t root = program__rule(&c.p, "answer");
    if (schema__init(&s, &c, options, json)) {
        int32_t id = schema__one(&s, PART_SCHEMA, json);
        program__define(&c.p, root, schema__emit(&s, id, PROGRAM_ACCEPT));
        schema__emit_pending(&s);
    }
    return grammar__finish(vocabulary, &c, out);
}
