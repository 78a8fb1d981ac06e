/* What a request wants its answer to be held to: JSON, a schema, an expression, a tool call.
 *
 * It becomes a grammar of the request; what cannot be enforced is refused by the name of its field,
 * never passed over.
 */
#ifndef DI_SERVER_CONSTRAINT_H
#define DI_SERVER_CONSTRAINT_H

#include "server/grammars.h"
#include "server/request.h"

/* Of a body in the OpenAI dialects: response_format, vLLM's and SGLang's fields, text.format, tools with
 * tool_choice and parallel_tool_calls. */
di_status di_constraint_read(di_gen_request *request, const di_json *body,
                             const di_request_env *env, di_error *error);

/* For dialects with other names, the same in steps: the form, if there is one, then the tools. */
typedef struct di_constraint {
    di_form_spec form;
    const char *field; /* where the form was; NULL: there is none */
    di_arena arena;    /* of forms that came as texts, and of lists of tools */
} di_constraint;

#define DI_CONSTRAINT_NONE ((di_constraint){.field = NULL, .arena = DI_ARENA_EMPTY})
void di_constraint_deinit(di_constraint *constraint);

/* A form; `field`, a literal, names it in messages. The source outlives the constraint. A second one is
 * DI_ERR_UNSUPPORTED. */
di_status di_constraint_form(di_constraint *constraint, di_form form, const di_json *source,
                             const char *field, di_error *error);

/* Which tools may be called. */
typedef struct di_tool_choice {
    di_grammar_tool_choice kind;
    const char *name; /* with REQUIRED: only this one, or NULL */
    /* A list of {"name": ...}, also inside of "function": only these, or NULL. */
    const di_json *allowed;
} di_tool_choice;

/* What comes of it for the request. Calls of these tools (OpenAI's objects, or the inner ones; NULL: none)
 * are not made, made as the model likes, or at least one is; only of those that the choice names, if it
 * names any. Where the model may choose, the answer is of the form or calls tools; where it must call,
 * forms say nothing. Strict tools get the arguments of their schemas; request->one_call counts.
 * DI_ERR_INVALID, DI_ERR_UNSUPPORTED, DI_ERR_MEMORY. */
di_status di_constraint_end(di_constraint *constraint, di_gen_request *request,
                            const di_json *tools, const di_tool_choice *choice,
                            const di_request_env *env, di_error *error);

/* An added token, by its text, that is never sampled unless a form leaves no other. */
di_status di_constraint_forbid(di_gen_request *request, const char *token,
                               const di_request_env *env, di_error *error);

#endif
