/* A conversation as messages of the OpenAI dialect, kept as JSON text. */
#ifndef DI_CLI_CONVERSATION_H
#define DI_CLI_CONVERSATION_H

#include "base/buffer.h"
#include "cli/generate.h"
#include "deepinfer.h"

typedef struct di_message {
    char *role;
    char *json; /* the whole message as a JSON object */
} di_message;

/* Start zeroed; free at the end. */
typedef struct di_conversation {
    char *system;         /* text, or NULL */
    di_message *messages; /* without the system message */
    size_t n_messages;
} di_conversation;

/* NULL or "": no system message. */
di_status di_conversation_set_system(di_conversation *conversation, const char *text,
                                     di_error *error);
/* DI_ERR_USAGE when text is empty or no UTF-8; `what` names it. */
di_status di_conversation_add_user(di_conversation *conversation, const char *text, size_t size,
                                   const char *what, di_error *error);
di_status di_conversation_add_answer(di_conversation *conversation, const di_answer *answer,
                                     di_error *error);
/* Takes away the last message; fine when there is none. */
void di_conversation_drop_last(di_conversation *conversation);
/* The same, but gives it to the caller, who gives it back or frees it. There must be one. */
di_message di_conversation_take_last(di_conversation *conversation);
void di_conversation_put_back(di_conversation *conversation, di_message message);
void di_message_free(di_message *message);
/* The role of the last message, or "". */
const char *di_conversation_last_role(const di_conversation *conversation);
/* All messages but the system message go. */
void di_conversation_clear(di_conversation *conversation);
void di_conversation_free(di_conversation *conversation);

/* The JSON array of all messages. */
void di_conversation_write(const di_conversation *conversation, di_buffer *out);
/* Replaces everything by a JSON array of messages; untouched when that fails. */
di_status di_conversation_read(di_conversation *conversation, const char *json, size_t size,
                               const char *what, di_error *error);

#endif
