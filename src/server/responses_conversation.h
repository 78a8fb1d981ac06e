/* The conversation of OpenAI's Responses as messages of its older dialect, which the encoder takes: what the model
 * did stands in several items there, and is one message here.
 */
#ifndef DI_SERVER_RESPONSES_CONVERSATION_H
#define DI_SERVER_RESPONSES_CONVERSATION_H

#include "base/buffer.h"
#include "base/json.h"
#include "server/stored.h"

typedef struct di_responses_conversation {
    /* Given. */
    const di_json *body;
    const di_json *past; /* items that it goes on from, or NULL */
    di_stored *stored; /* with `owner`'s items, that the input may refer to; of at most max_bytes */
    const char *owner;
    size_t max_bytes;
    di_arena *arena; /* of trees that are read on the way */
    /* Made; freed by di_responses_conversation_deinit. */
    di_buffer out;    /* the messages, a list of JSON */
    di_buffer places; /* of each message, and of calls: see name_place */
    di_buffer calls;
} di_responses_conversation;

/* Begin with what is given, the rest zero. Deinit in any case. Errors name items of the input, or the field
 * previous_response_id with the item. */
di_status di_responses_conversation_build(di_responses_conversation *c, di_error *error);
void di_responses_conversation_deinit(di_responses_conversation *c);
/* An error that names one of the messages names what it was made of. */
void di_responses_conversation_rename(const di_responses_conversation *c, di_error *error);

#endif
