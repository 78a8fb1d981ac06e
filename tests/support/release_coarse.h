/* Runs the operations that the model calls, which fuse several stored ones, from the stored inputs
 * of the first to the stored outputs of the last. */
#ifndef DI_TESTS_SUPPORT_RELEASE_COARSE_H
#define DI_TESTS_SUPPORT_RELEASE_COARSE_H

#include "support/device.h"
#include "support/release_vectors.h"

/* Every coarse operation that begins with this stored operation; returns how many. Memory is taken
 * from the device and not given back: the caller resets it. */
int release_run_coarse(const release_file *file, const release_op *op, device *dev,
                       release_score *score);

/* Ways to draft wrongly, each of which the rule must see. */
typedef enum release_mistake {
    RELEASE_RIGHT,
    RELEASE_CONFIDENCE_NORMED, /* confidence of the vector behind the norm */
    RELEASE_MARKOV_OF_TOKEN,   /* the Markov row of the token itself, not of the one before */
    RELEASE_MARKOV_OF_ANCHOR,  /* the anchor's at every place */
    RELEASE_RING_UNNORMED,     /* window rows of main_proj's output, before main_norm */
    RELEASE_POSITIONS_LATE,    /* the block begins one position behind its anchor */
    RELEASE_BLOCK_CAUSAL,      /* rows that do not see the later rows of their block */
    RELEASE_WINDOW_SHORT,      /* the oldest row of the window is left out */
    RELEASE_BACKBONE_NORM,     /* the backbone's last norm before the head */
    RELEASE_N_MISTAKES
} release_mistake;

/* release_run_coarse with a mistake in the operations of drafts that it is about. */
int release_run_planted(const release_file *file, const release_op *op, device *dev,
                        release_score *score, release_mistake mistake);

#endif
