/* Turns of the model that called tools, as they were sampled, by the ids of their calls.
 *
 * Agents send a conversation back with every request, rendered from what they understood of it: the
 * thoughts may be gone, the arguments written in another way, and the tokens that spell the same text
 * others. Then nothing behind the first such turn is found in the cache. But a call has an id that only
 * we know, so what stood there can be put back, token by token, if the message still says the same.
 *
 * Bounded by bytes; what was not asked for longest goes first. Any thread.
 */
#ifndef DI_SERVER_TURNS_H
#define DI_SERVER_TURNS_H

#include "base/json.h"
#include "deepinfer.h"

typedef struct di_turns di_turns;

enum { DI_TURN_KEY = 32 }; /* characters of a key, its NUL included */

/* NULL when out of memory. */
di_turns *di_turns_create(size_t max_bytes);
void di_turns_destroy(di_turns *turns);

typedef struct di_turn_call {
    const char *name, *arguments; /* arguments: JSON of an object */
    size_t name_size, arguments_size;
} di_turn_call;

/* One turn; everything is copied. */
typedef struct di_turn {
    const char *key; /* call ids are PREFIX_KEY_NUMBER */
    bool thinking;   /* the ids begin in a thought */
    const int32_t *ids;
    size_t n_ids;
    const char *thought, *text;
    size_t thought_size, text_size;
    const di_turn_call *calls;
    size_t n_calls;
} di_turn;

/* False: it is too large to be kept, or there is no memory for it. */
bool di_turns_put(di_turns *turns, const di_turn *turn);

/* Whether a message of the assistant, in the form of chat completions, is one of them and says the same:
 * its text, its calls in their order, and its thought where it brings one. Then its ids are appended
 * to *ids. turns may be NULL. DI_ERR_MEMORY. */
di_status di_turns_find(di_turns *turns, const di_json *message, bool *found, bool *thinking,
                        di_ids *ids, di_error *error);

#endif
