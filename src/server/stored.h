/* Responses that were kept, so that a conversation can go on from one by its id, or look at it again.
 *
 * Each has the items that came with its request and those of the answer, and the id of the response
 * that it went on from: a conversation is a chain, which shares its beginning with others. Only who
 * made one finds it. Kept in memory, bounded by bytes; what was not gone on from for longest goes first,
 * and the end of a conversation before its beginning. Any thread.
 */
#ifndef DI_SERVER_STORED_H
#define DI_SERVER_STORED_H

#include "base/buffer.h"
#include "base/error.h"

typedef struct di_stored di_stored;

enum { DI_STORED_ID = 48 }; /* characters of an id, its NUL included */

/* NULL when out of memory. max_bytes 0: nothing is kept. */
di_stored *di_stored_create(size_t max_bytes);
void di_stored_destroy(di_stored *stored);

typedef struct di_stored_response {
    const char *id, *owner;
    const char *previous;    /* the id that it went on from, or "" */
    const di_buffer *given;  /* the items of its request, JSON separated by commas; then */
    const di_buffer *answer; /* those of the answer */
    const di_buffer *body;   /* the whole response */
} di_stored_response;

/* Everything is copied. What does not fit is not kept. Does not depend on how long a conversation is, as looking at
 * one and forgetting it do not: they are for the loop. */
void di_stored_put(di_stored *stored, const di_stored_response *response);

/* Not for the loop. Appends the items of the conversation up to `id`, its beginning first. DI_ERR_INVALID
 * where any of it is not there (any more) or not the owner's; DI_ERR_UNSUPPORTED where they have more than max_bytes;
 * DI_ERR_MEMORY. stored may be NULL. */
di_status di_stored_items(di_stored *stored, const char *id, const char *owner, size_t max_bytes,
                          di_buffer *out, di_error *error);
/* Appends the item of an answer that has this id: what all items of a response have in common with its
 * own is what stands between the first two '_'. False: it is not there; stored may be NULL. */
bool di_stored_find(di_stored *stored, const char *item_id, const char *owner, di_buffer *out);
/* Appends the response, which is no use of it; false: it is not there. */
bool di_stored_body(di_stored *stored, const char *id, const char *owner, di_buffer *out);
/* Forgets it; what went on from it can still be looked at, but not be gone on from. False: it is not there. */
bool di_stored_remove(di_stored *stored, const char *id, const char *owner);

#endif
