/* What a request wants its answer to be held to: JSON, a schema, an expression, a tool call.
 *
 * The grammar engine is joined here: what this refuses now it will compile then. Until that, what
 * cannot be enforced is refused by the name of its field, never passed over.
 */
#ifndef DI_SERVER_CONSTRAINT_H
#define DI_SERVER_CONSTRAINT_H

#include "server/request.h"

/* Of a body in the OpenAI dialects. DI_ERR_UNSUPPORTED names the field. Deals with tool_choice none
 * and parallel_tool_calls false, which need no grammar. */
di_status di_constraint_read(di_gen_request *request, const di_json *body,
                             const di_request_env *env, di_error *error);

/* No tool call in the answer: the token that begins one is never sampled. */
di_status di_constraint_forbid_calls(di_gen_request *request, const di_request_env *env,
                                     di_error *error);

#endif
