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

/* One form; `field` names it in messages. DI_ERR_INVALID, DI_ERR_UNSUPPORTED, DI_ERR_MEMORY. */
di_status di_constraint_form(di_gen_request *request, const di_form_spec *spec,
                             const di_request_env *env, const char *field, di_error *error);

/* Calls of these tools (OpenAI's objects, or the inner ones): none, as the model likes, or at least one,
 * of `name` if it is not NULL. Strict tools get the arguments of their schemas. request->one_call counts. */
di_status di_constraint_tools(di_gen_request *request, const di_json *tools,
                              di_grammar_tool_choice choice, const char *name,
                              const di_request_env *env, di_error *error);

#endif
