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
    /* As di_grammar_form has them. */
    DI_FORM_SCHEMA = DI_GRAMMAR_SCHEMA,
    DI_FORM_JSON_OBJECT = DI_GRAMMAR_JSON_OBJECT,
    DI_FORM_REGEX = DI_GRAMMAR_REGEX,
    DI_FORM_EBNF = DI_GRAMMAR_EBNF,
    DI_FORM_CHOICES = DI_GRAMMAR_CHOICES,
    DI_FORM_TOOLS /* tool calls; source: the array of tools, and what is below */
} di_form;

typedef struct di_form_spec {
    di_form form;
    const di_json *source;
    bool any_space; /* JSON takes blanks wherever it allows them: somebody else began to write it */
    /* DI_FORM_TOOLS. Calls that must come follow their schemas where these can be enforced. */
    di_grammar_tool_choice choice;
    const char *name; /* only this tool, or NULL */
    int32_t max_calls;
    const struct di_form_spec *beside; /* AUTO: the form of an answer without calls, or NULL */
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
