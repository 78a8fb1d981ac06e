/* Grammars by what they were compiled from: the next request with the same schema gets the same one, with
 * the masks that it has learnt. A few are kept, as far as all they hold fits max_bytes; the least recently
 * used goes first. Any thread.
 */
#ifndef DI_SERVER_GRAMMARS_H
#define DI_SERVER_GRAMMARS_H

#include "base/json.h"
#include "grammar/grammar.h"

typedef struct di_grammars di_grammars;

typedef enum di_form {
    DI_FORM_SCHEMA,      /* JSON under a schema */
    DI_FORM_JSON_OBJECT, /* any JSON object; source: NULL */
    DI_FORM_REGEX,       /* source: a string */
    DI_FORM_EBNF,        /* source: a string */
    DI_FORM_CHOICES,     /* source: an array of strings */
    DI_FORM_TOOLS        /* tool calls; source: the array of tools, and what is below */
} di_form;

typedef struct di_form_spec {
    di_form form;
    const di_json *source;
    di_grammar_tool_choice choice; /* DI_FORM_TOOLS */
    const char *name;              /* only this tool, or NULL */
    int32_t max_calls;
} di_form_spec;

enum {
    DI_GRAMMARS_BYTES = 256 << 20
}; /* the server's max_bytes: a full set of masks takes 48 MiB */

/* The tokenizer outlives it. end_token: what ends an answer. max_bytes: looked at whenever a grammar is
 * asked for, since they learn while answers are made; the one that was asked for last is always kept. */
di_status di_grammars_create(const di_tokenizer *tokenizer, int32_t vocab_size, int32_t end_token,
                             size_t max_bytes, di_grammars **out, di_error *error);
/* Bytes of those that are kept, now. */
size_t di_grammars_memory(di_grammars *grammars);
void di_grammars_destroy(di_grammars *grammars); /* NULL is fine; grammars in use stay */

/* The caller releases *out. Objects that say nothing about other members take none: what a schema for an
 * answer usually means. Failures are those of the compiler (grammar.h). */
di_status di_grammars_get(di_grammars *grammars, const di_form_spec *spec, di_grammar **out,
                          di_error *error);

#endif
