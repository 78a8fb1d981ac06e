/* The state of `chat`, and its / commands. */
#ifndef DI_CLI_CHAT_SESSION_H
#define DI_CLI_CHAT_SESSION_H

#include "cli/cli.h"
#include "cli/conversation.h"
#include "cli/engine_args.h"

typedef struct di_chat_session {
    di_args *args; /* options as given, changed by /set */
    di_progress progress;
    di_engine *engine;
    const di_tokenizer *tokenizer;
    di_conversation conversation;
    di_prompt_options prompt;
    char effort[16]; /* what prompt.effort points to after /effort */
    uint32_t turn;   /* changes the seed of every answer */
    bool leave;
    int n_failed; /* messages and commands that came to nothing */
} di_chat_session;

typedef enum di_chat_next { DI_CHAT_WAIT, DI_CHAT_AGAIN } di_chat_next;

/* The prompt of a conversation, for this session's tokenizer and prompt options. */
di_status di_chat_make_prompt(const di_chat_session *session, const di_conversation *conversation,
                              di_ids *ids, bool *thinking, di_error *error);

/* Carries out a line that begins with '/'. DI_CHAT_AGAIN: the model is to answer the last message
 * once more. A failure is told to the user by the caller; the session goes on. */
di_status di_chat_command(di_chat_session *session, const char *line, di_chat_next *next,
                          di_error *error);

#endif
