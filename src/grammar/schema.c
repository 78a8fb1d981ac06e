#include "grammar/grammar_internal.h"
#include "grammar/schema_internal.h"

int32_t schema__emit_whole(compiler *c, const di_grammar_options *options, const di_json *json,
                           int32_t next) {
    schema s;
    if (!schema__init(&s, c, options, json)) return PROGRAM_FAIL;
    int32_t start = schema__emit(&s, schema__one(&s, PART_SCHEMA, json), next);
    schema__emit_pending(&s);
    return start;
}
