/* What the readers of bodies share; they run on libuv's threads (generation.c). */
#ifndef DI_SERVER_READ_INTERNAL_H
#define DI_SERVER_READ_INTERNAL_H

#include "server/server_internal.h"

di_status read_chat(di_generation *g, const di_json *body, di_error *error);
di_status read_completion(di_generation *g, const di_json *body, di_error *error);
di_status read_responses(di_generation *g, const di_json *body, di_error *error);
di_status read_messages(di_generation *g, const di_json *body, di_error *error);
di_status read_count_tokens(di_generation *g, const di_json *body, di_error *error);
di_status read_tokenize(di_generation *g, const di_json *body, di_error *error);
di_status read_detokenize(di_generation *g, const di_json *body, di_error *error);

/* JSON that came from a client, or was kept for one, with a bound of its values. */
di_status read_json(const di_buffer *text, const char *what, di_arena *arena, const di_json **out,
                    di_error *error);

/* DI_ERR_UNSUPPORTED where a field asks for what other services and engines have and this one has not. */
di_status read_unsupported(const di_json *body, di_dialect dialect, di_error *error);

/* Of what was read: the ranges of the public service, which are narrower than what can be computed, and
 * DI_ERR_LIMIT where prompt and answer do not fit the context. */
di_status read_check(const di_gen_request *r, const di_request_env *env, di_error *error);

#endif
