/* DSML: how tools are declared to the model and how its calls are written (spec chat.md 5).
 *
 * Rendering for the encoder, and the pieces that both output parsers share.
 */
#ifndef DI_TEXT_DSML_H
#define DI_TEXT_DSML_H

#include <stdint.h>

#include "text/chat_pieces.h"

/* The tool block of a system turn: the preamble with one line of JSON a tool. `lists` are arrays of
 * OpenAI tool objects ({"type": "function", "function": {...}}) or of the inner function objects;
 * a NULL list is empty. `where` names them in messages ("messages[0].tools"). */
di_status dsml__write_tools(chat_pieces *pieces, const di_json *const lists[2],
                            const char *const where[2], di_error *error);

/* The calls block of an assistant turn, without the newlines in front. `calls` is a non-empty array
 * of OpenAI calls ({"id", "function": {"name", "arguments"}}) or of the inner objects. */
di_status dsml__write_calls(chat_pieces *pieces, const di_json *calls, const char *where,
                            di_arena *arena, di_error *error);

/* The keys seen in one call, to find a duplicate in constant time. Keys may hold any byte. */
typedef struct dsml_keys {
    di_buffer bytes;
    struct dsml_key *slots;
    size_t n_slots, n_used;
    uint64_t secret[2]; /* of the hash */
} dsml_keys;

#define DSML_KEYS_EMPTY                                                                            \
    {                                                                                              \
        DI_BUFFER_EMPTY, NULL, 0, 0, { 0, 0 }                                                      \
    }

typedef enum dsml_added { DSML_ADDED, DSML_DUPLICATE, DSML_NO_MEMORY } dsml_added;

dsml_added dsml__keys_add(dsml_keys *keys, const char *key, size_t size);
void dsml__keys_clear(dsml_keys *keys); /* keeps the memory */
void dsml__keys_free(dsml_keys *keys);

#endif
