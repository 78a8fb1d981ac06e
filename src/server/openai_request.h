/* Bodies of the OpenAI dialect: /v1/chat/completions and /v1/completions, as DeepSeek's service and
 * vLLM extend them. Used by the server and by `batch`, which each add what is theirs: the server
 * streaming, `batch` its refusal of fields that it does not know.
 */
#ifndef DI_SERVER_OPENAI_REQUEST_H
#define DI_SERVER_OPENAI_REQUEST_H

#include "server/request.h"

/* Reads a body into a zeroed request; *body may be freed afterwards. The prompts fit the context. */
di_status di_openai_read(di_gen_request *request, const di_json *body, di_dialect dialect,
                         const di_request_env *env, di_error *error);

/* Parts that other dialects share. */

/* The model's name; none is "". */
di_status di_openai_read_model(di_gen_request *request, const di_json *body, di_error *error);
/* temperature, top_p, ..., seed, logit_bias */
di_status di_openai_read_sampling(di_gen_request *request, const di_json *body,
                                  const di_request_env *env, di_error *error);
/* A string or a list of them under `key`. */
di_status di_openai_read_stops(di_gen_request *request, const di_json *body, const char *key,
                               di_error *error);
/* How it thinks where the request says nothing of that; the model's name has been read. */
di_prompt_options di_openai_prompt_options(const di_gen_request *request);
/* An effort under `key`, which may lead through objects (fields.h). */
di_status di_openai_read_effort(di_gen_request *request, const di_json *body, const char *key,
                                di_prompt_options *out, di_error *error);
/* The prompt of a conversation: messages and tools (or NULL) in the OpenAI form. Understands
 * "prefix": true (or "wo_eos") in the last message. */
di_status di_openai_read_messages(di_gen_request *request, const di_json *messages,
                                  const di_json *tools, const di_prompt_options *options,
                                  const di_request_env *env, di_error *error);

#endif
