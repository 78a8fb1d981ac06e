/* All that a sequence's future hangs on, as bytes: what two contexts must agree on when they hold the
 * same tokens, however these got there.
 *
 * Left out is what rejected rows and freed pages leave behind, since no operation reads it before it
 * is written again: window rows and raw rows of open groups at positions from the length on, or
 * older than a window (and the tokens that may be taken back) reaches; entries of groups that are not
 * whole; the history of such positions; counts of ids, which are the sampler's.
 */
#ifndef DI_TESTS_SUPPORT_LIVE_STATE_H
#define DI_TESTS_SUPPORT_LIVE_STATE_H

#include "support/golden.h"

typedef struct live_state {
    uint8_t *bytes;
    uint64_t n;
    uint64_t windows, rings, history, pages; /* where each part ends */
} live_state;

/* Of the first `length` tokens of slot, of which `margin` may still be taken back. drafts: with the
 * draft layers' windows. Waits for everything that is enqueued. */
live_state live_state_read(di_context *context, int32_t slot, int64_t length, int32_t margin,
                           bool drafts);
void live_state_free(live_state *state);
/* Fails the test, naming `what` and the part that differs. */
void live_state_expect_same(const live_state *got, const live_state *want, const char *what);

/* The bytes of a page of the pool; malloc'ed. Waits. */
uint8_t *live_state_page(di_context *context, int32_t page);

#endif
