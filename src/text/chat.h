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
 * 1..100. "none" gives *thinking false. DI_ERR_USAGE with the accepted names otherwise: what they are
 * names of the caller says in front, for fields and options of several names lead here. */
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

/* Text must not spell the image marker, for the count of markers is the count of images: DI_ERR_INVALID, by
 * `where`, which di_chat_encode would find too. For whoever joins texts before they get there. */
di_status di_chat_check_text(const char *where, const char *text, size_t size, di_error *error);

/* The prompt as one string, markers spelled out. */
void di_chat_render(const di_chat_prompt *prompt, di_buffer *out);
/* The prompt as ids; a marker that the tokenizer does not have is DI_ERR_INVALID. */
di_status di_chat_tokenize(const di_chat_prompt *prompt, const di_tokenizer *tokenizer, di_ids *out,
                           di_error *error);

/* ---- Parsing output: the strict official parser (a whole text) ---- */

typedef struct di_chat_call {
    const char *name;       /* NUL-terminated, without its namespace: "ns::name" is split */
    const char *name_space; /* or NULL */
    const char *arguments;  /* JSON text of an object, as the official parser builds it: values of
                               string="false" verbatim, so valid only as far as the model was */
} di_chat_call;

typedef struct di_chat_message {
    const char *reasoning; /* "" when none; NUL-terminated, but may hold NUL bytes itself */
    size_t reasoning_size;
    const char *content;
    size_t content_size;
    di_chat_call *calls;
    size_t n_calls;
} di_chat_message;

/* "ns::name" in its parts; without "::" name_space is NULL. Copies are in the arena. False when a
 * part is empty, there are two "::" or a NUL byte (*name is then the whole), or when out of memory
 * (*name is NULL). */
bool di_chat_split_name(const char *qualified, size_t size, di_arena *arena, const char **name,
                        const char **name_space);

/* Strict: what the official parser refuses is DI_ERR_INVALID, an empty name too. The text is
 * detokenised with its markers spelled; EOS must stand at its end, but may be missing behind a
 * calls block. Results are in the arena. */
di_status di_chat_parse(const char *text, size_t size, bool thinking, di_arena *arena,
                        di_chat_message *out, di_error *error);

/* ---- Parsing output: incremental and lenient, for streams ----
 *
 * Text comes out as soon as it cannot be the beginning of a marker any more.
 * - Thought: everything up to </think>, exactly. A calls block may begin in it; its first completed
 *   call closes the thought.
 * - Answer: newlines at its start are dropped, and so is any further </think>. EOS at the very end
 *   is dropped.
 * - Newlines right before a calls block belong to it, and newlines between it and the end.
 * - Calls: both spellings of the tags (" calls", " invoke", " parameter" and V4's "tool_calls",
 *   "invoke", "parameter"), the block tags may be missing around a call, blanks and newlines
 *   between and in tags may be more or fewer than the format's. A value ends only at its own
 *   closing tag, so it may hold any other. Behind the block, text is answer again.
 * - Arguments are always a valid JSON object once the call has ended, as long as the input is valid
 *   UTF-8: string values stream, others are held until they are whole, and what is no JSON becomes
 *   a string. The object has the official form: {"key": value, "key": value}.
 * - What is no well-formed call comes back as text of the state it began in (of the answer, once a
 *   call was completed): nothing is lost. So does a call that the end of the input cuts off. If
 *   its CALL_BEGIN has been given, CALL_BROKEN follows, and then its markup as text: take the call
 *   back. Only the block's end may be missing, in whole or in part, at the end of the input.
 */

typedef enum di_chat_event_type {
    DI_CHAT_REASONING,      /* text: a piece of the thought */
    DI_CHAT_CONTENT,        /* text: a piece of the answer */
    DI_CHAT_CALL_BEGIN,     /* text: the function's name as written ("ns::name"); index from 0 */
    DI_CHAT_CALL_ARGUMENTS, /* text: a piece of the arguments' JSON text */
    DI_CHAT_CALL_END,
    DI_CHAT_CALL_BROKEN /* in place of CALL_END: malformed or cut off; its index is used up */
} di_chat_event_type;

typedef struct di_chat_event {
    di_chat_event_type type;
    int index; /* of the call; 0 for text */
    const char *text;
    size_t size;
} di_chat_event;

typedef void (*di_chat_event_fn)(void *user, const di_chat_event *event);

typedef struct di_chat_parser di_chat_parser;

/* thinking: the prompt ended with <think>. NULL when out of memory. Events come in order during
 * push and finish; their text is valid during the call, is never empty but for CALL_END and
 * CALL_BROKEN, and holds whole characters wherever the input is valid UTF-8. Any split of the input
 * gives the same concatenated texts. Time is linear in the input. */
di_chat_parser *di_chat_parser_create(bool thinking, di_chat_event_fn on_event, void *user);
/* DI_ERR_MEMORY, after which the parser can only be destroyed; DI_ERR_USAGE after finish. */
di_status di_chat_parser_push(di_chat_parser *parser, const char *text, size_t size,
                              di_error *error);
/* The end of the output. Once. */
di_status di_chat_parser_finish(di_chat_parser *parser, di_error *error);
/* True when at least one call was completed (finish_reason tool_calls). */
bool di_chat_parser_has_calls(const di_chat_parser *parser);
/* Bytes of text pushed that are still waiting to come out, or to be found part of a marker. */
size_t di_chat_parser_held(const di_chat_parser *parser);
void di_chat_parser_destroy(di_chat_parser *parser); /* NULL is fine */

#endif
