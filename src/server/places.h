/* Where in the client's request it is what an error names by the conversation that the encoder was given.
 *
 * Dialects other than OpenAI's older one are rendered as its messages, of which there may be more or fewer than
 * the client sent: a system prompt becomes one, several items of an answer become one together. Errors must name
 * what the client sent.
 */
#ifndef DI_SERVER_PLACES_H
#define DI_SERVER_PLACES_H

#include "base/error.h"

typedef struct di_place {
    size_t message;
    bool content; /* its content, or what is in it; otherwise all of it, or another member */
    int64_t call; /* of its tool calls that one, or -1 */
} di_place;

/* Writes the client's name of a place, as "input[3].content", with a NUL. */
typedef void (*di_place_name)(const void *user, const di_place *place, char *out, size_t size);

/* An error that begins with messages[...] begins with the client's name of that; others stay as they are. */
void di_places_rename(di_place_name name, const void *user, di_error *error);

#endif
