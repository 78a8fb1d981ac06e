/* Pieces of JSON put together by hand: a conversation in one dialect as text of another. */
#ifndef DI_SERVER_JSON_BUILD_H
#define DI_SERVER_JSON_BUILD_H

#include "base/json.h"

/* Behind an item a comma, unless it is the first: *n counts them. */
void di_build_next(di_buffer *out, int *n);
/* "key": and the value as it is, after a comma where needed. */
void di_build_member(di_buffer *out, int *n, const char *key, const di_json *value);
/* "key": "text" */
void di_build_text(di_buffer *out, int *n, const char *key, const char *text, size_t size);

/* What was built, as a tree; the buffer is freed. */
di_status di_build_parse(di_buffer *text, di_arena *arena, const di_json **out, di_error *error);

#endif
