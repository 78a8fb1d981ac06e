/* Helpers of the chat tests: encode JSON text to one string, collect the events of a stream. */
#ifndef DI_TESTS_CHAT_SUPPORT_H
#define DI_TESTS_CHAT_SUPPORT_H

#include "text/chat.h"

/* Encodes; fails the test on an error. The result is malloc'ed. tools may be NULL. */
char *chat_encode_text(const char *messages, const char *tools, const di_chat_options *options);
/* Encodes what must be refused, and returns the message (valid until the next call). */
const char *chat_encode_error(const char *messages, const char *tools,
                              const di_chat_options *options);

/* Everything a stream came to, in one form that does not depend on where pieces were cut. */
typedef struct chat_collected {
    di_buffer reasoning, content;
    di_buffer log;   /* R(thought) C(answer) B0(name) A0(arguments) E0 X0, neighbours joined */
    di_buffer calls; /* NAME ARGUMENTS newline, of the completed calls */
    bool has_calls;
    /* Inside. */
    di_buffer name, arguments;
    int last_type, last_index;
    bool bad_event; /* an event that breaks the contract */
} chat_collected;

void chat_collect_event(void *collected, const di_chat_event *event);
/* Feeds text in pieces of `step` bytes (0: whole) after a first piece of `first` bytes, to the end.
 * Starts from zeroed memory; free with chat_collected_free. False on an error. */
bool chat_collect(const char *text, size_t size, bool thinking, size_t first, size_t step,
                  chat_collected *out);
void chat_collected_free(chat_collected *collected);
/* The data or "". */
const char *chat_buffer_text(const di_buffer *buffer);

/* A small generator for property tests: the same numbers from the same seed everywhere. */
uint32_t chat_random(uint64_t *state, uint32_t below);

#endif
