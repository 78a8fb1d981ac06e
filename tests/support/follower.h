/* The twins in the steps of a float32 path, for where both may be right and yet differ.
 *
 * Caches store rounded values, and where a value lies within the noise of float32 of the middle
 * between two codes, the order of a sum decides which one is stored. Either is right; what comes
 * after is not the same. So the twins are fed what the path was fed, every code and scale that the
 * path's caches hold is compared with the twins' value before it was rounded, and where it is one
 * that the value may be rounded to, the twins go on with it. Then their logits are what the path's
 * must be close to, without an allowance, wherever the path had such a choice.
 *
 * What is selected (experts, compressed entries) is not followed.
 */
#ifndef DI_TESTS_SUPPORT_FOLLOWER_H
#define DI_TESTS_SUPPORT_FOLLOWER_H

#include "support/golden.h"

/* How far a value that is rounded may be off in float32, over the largest of its block (or, for a
 * scale, over itself). The CPU's path is off by up to 1.4e-6. */
#define FOLLOWER_NOISE 1e-5

typedef struct follower {
    test_model twins;
    const test_model *leader;
    /* Out, since follower_restart: stored values that are not the twins' own but may be, and were
     * taken; blocks of values that may not be what they are, and were not. */
    int64_t n_taken, n_wrong;
    /* Of the step that runs: */
    int32_t layer;                  /* -1 outside layers */
    int64_t first;                  /* position of its first row */
    uint8_t *pool, *codes, *scales; /* copies of the leader's pages and windows */
} follower;

/* Twins of the model that leader runs, with a context of the same sizes; one slot, float. */
void follower_open(follower *f, const char *directory, const test_model *leader);
void follower_close(follower *f);
/* Slot 0 becomes empty. */
void follower_restart(follower *f);
/* Slot 0 of leader has been fed these tokens in one step; slot 0 of the twins is. No more rows than
 * a window has places. Logits of every row, [n][V], malloc'ed. */
float *follower_feed(follower *f, const int32_t *ids, int32_t n);

#endif
