/* Tokens and their log-probabilities as JSON. */
#ifndef DI_SERVER_TOKEN_JSON_H
#define DI_SERVER_TOKEN_JSON_H

#include "base/buffer.h"
#include "deepinfer.h"

/* A number, or null where it is not finite. */
void di_write_logprob(di_buffer *out, float logprob);
/* The token as a string; bytes that are no UTF-8 are U+FFFD each. */
void di_write_token(di_buffer *out, const di_tokenizer *tokenizer, int32_t id);
/* {"token": ..., "logprob": ..., "bytes": [...] without the closing brace. */
void di_write_token_entry(di_buffer *out, const di_tokenizer *tokenizer, int32_t id, float logprob);

#endif
