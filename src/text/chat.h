/* Chat: messages to prompt, and the model's output back to message parts (spec chat.md).
 *
 * A conversation is JSON as the OpenAI dialect writes it, so that every source (terminal, batch
 * file, server) goes through one door and numbers keep their digits. The encoder gives a list of
 * pieces, text and markers, so that user text is tokenised without added-token matching and
 * markers are joined as ids; rendering them to one string is for tests and `--show-prompt`.
 */
#ifndef DI_TEXT_CHAT_H
#define DI_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/json.h"
#include "text/tokenizer.h"

typedef struct di_chat_options {
    bool thinking;        /* default true */
    int reasoning_effort; /* 1..100; default 75 (high) */
    bool drop_thinking;   /* default true */
    bool add_bos;         /* default true */
} di_chat_options;

di_chat_options di_chat_options_defaults(void);

/* low 50, high 75, max 100, and the API's other names (minimal, medium, xhigh, ultra); a decimal
 * 1..100. "none" gives *thinking false. DI_ERR_USAGE with the accepted names otherwise. */
di_status di_chat_effort(const char *name, di_chat_options *options, di_error *error);

typedef struct di_chat_piece {
    bool is_marker; /* an added token by its exact content; otherwise ordinary text */
    const char *text;
    size_t size;
} di_chat_piece;

typedef struct di_chat_prompt {
    di_chat_piece *pieces; /* in the arena given to di_chat_encode */
    size_t n_pieces;
    const di_json **images; /* image records in order of appearance */
    size_t n_images;
} di_chat_prompt;

/* `messages` is a JSON array; `tools` an array of OpenAI tool objects or NULL (request level: they
 * go to the first system message, or to a new empty one at index 0). Messages are not modified.
 * Errors name the message: "messages[3].role: unknown role 'x' ...". */
di_status di_chat_encode(const di_json *messages, const di_json *tools,
                         const di_chat_options *options, di_arena *arena, di_chat_prompt *out,
                         di_error *error);

/* The prompt as one string, markers spelled out. */
void di_chat_render(const di_chat_prompt *prompt, di_buffer *out);
/* The prompt as ids; a marker that the tokenizer does not have is DI_ERR_INVALID. */
di_status di_chat_tokenize(const di_chat_prompt *prompt, const di_tokenizer *tokenizer, di_ids *out,
                           di_error *error);

/* ---- Parsing output: the strict official parser (a whole text) ---- */

typedef struct di_chat_call {
    const char *name;      /* NUL-terminated, with namespace: "ns::name" is split */
    const char *name_space; /* or NULL */
    const char *arguments; /* JSON text of an object, as the official parser builds it */
} di_chat_call;

typedef struct di_chat_message {
    const char *reasoning; /* "" when none */
    const char *content;
    di_chat_call *calls;
    size_t n_calls;
} di_chat_message;

/* Strict: what the official parser refuses is DI_ERR_INVALID. Results are in the arena. */
di_status di_chat_parse(const char *text, size_t size, bool thinking, di_arena *arena,
                        di_chat_message *out, di_error *error);

/* ---- Parsing output: incremental and lenient, for streams ---- */

typedef enum di_chat_event_type {
    DI_CHAT_REASONING,      /* text: a piece of the thought */
    DI_CHAT_CONTENT,        /* text: a piece of the answer */
    DI_CHAT_CALL_BEGIN,     /* text: the function's name; index counts from 0 */
    DI_CHAT_CALL_ARGUMENTS, /* text: a piece of the arguments' JSON text */
    DI_CHAT_CALL_END
} di_chat_event_type;

typedef struct di_chat_event {
    di_chat_event_type type;
    int index; /* of the call */
    const char *text;
    size_t size;
} di_chat_event;

typedef void (*di_chat_event_fn)(void *user, const di_chat_event *event);

typedef struct di_chat_parser di_chat_parser;

/* thinking: the prompt ended with <think>. NULL when out of memory. Events come in order during
 * push and finish; their text is valid during the call. Any split of the input gives the same
 * concatenated texts. Malformed call markup comes back as text, nothing is lost. */
di_chat_parser *di_chat_parser_create(bool thinking, di_chat_event_fn on_event, void *user);
di_status di_chat_parser_push(di_chat_parser *parser, const char *text, size_t size,
                              di_error *error);
di_status di_chat_parser_finish(di_chat_parser *parser, di_error *error);
/* True when at least one call was completed (finish_reason tool_calls). */
bool di_chat_parser_has_calls(const di_chat_parser *parser);
void di_chat_parser_destroy(di_chat_parser *parser);

#endif
