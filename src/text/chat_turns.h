/* Messages to turns: everything that happens to a conversation before it is rendered.
 *
 * Checks the messages, takes their contents apart, merges tool results and users into user turns,
 * puts results into the order of their calls, and decides about dropping old thoughts (spec chat.md
 * 3). Turns and parts live in the arena and point into the messages, which are not modified.
 */
#ifndef DI_TEXT_CHAT_TURNS_H
#define DI_TEXT_CHAT_TURNS_H

#include "text/chat.h"

typedef enum chat_role {
    CHAT_ROLE_SYSTEM,
    CHAT_ROLE_USER, /* also tool results */
    CHAT_ROLE_ASSISTANT,
    CHAT_ROLE_REMINDER,
    CHAT_ROLE_UNKNOWN
} chat_role;

typedef enum chat_part_kind {
    CHAT_PART_TEXT,
    CHAT_PART_IMAGE,
    CHAT_PART_RESULT,
    CHAT_PART_UNSUPPORTED
} chat_part_kind;

/* A block of a turn's content. */
typedef struct chat_part {
    chat_part_kind kind;
    const char *text; /* TEXT: itself; RESULT: the call's id; UNSUPPORTED: the block's type */
    size_t size;
    const di_json *record;   /* IMAGE: the block */
    struct chat_part *parts; /* RESULT: its content */
    struct chat_part *next;
} chat_part;

typedef struct chat_turn {
    chat_role role;
    size_t source; /* index of the (first) message */
    chat_part *parts, **tail;
    const di_json *reasoning;       /* a string, or NULL */
    const di_json *tools[2];        /* of the message, of the request; NULL when there are none */
    const di_json *response_format; /* NULL when there is none */
    const di_json *calls;           /* a non-empty array, or NULL */
    const di_json *task;            /* a string, or NULL */
    bool open;                      /* wo_eos: the turn is to be continued */
} chat_turn;

typedef struct chat_turns {
    chat_turn *items;
    size_t n;
    bool drop_thinking;  /* in force: asked for, and no message carries tools */
    ptrdiff_t last_user; /* index of the last user turn (or later system turn); -1 when none */
} chat_turns;

di_status chat__read_turns(const di_json *messages, const di_json *tools,
                           const di_chat_options *options, di_arena *arena, chat_turns *out,
                           di_error *error);

#endif
