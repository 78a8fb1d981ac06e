/* Whether the next step is enqueued before the results of one are read.
 *
 * Ahead, the device never waits for the host: that saves the gap between two steps. But a sequence
 * whose end is not known yet gets a block more, for nothing: rows that are computed and dropped. On a
 * device that many rows cost little more than few, ahead pays; where every row costs, and answers are
 * short or drafts make blocks wide, it may not. Both are measured:
 *
 *     gap    seconds between two steps when the second was enqueued after the first was read
 *     waste  share of blocks in which a sequence ends unforeseen, times blocks, times what a block
 *            costs in such a step
 *
 * Running means over about 32 steps. Now and then a step is read first all the same, to measure the
 * gap. Results do not depend on any of it, but for answers sampled by rejection, which depend on what
 * is verified when. No function fails or allocates.
 */
#ifndef DI_ENGINE_STEP_AHEAD_H
#define DI_ENGINE_STEP_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

enum { DI_AHEAD_LOOK_EVERY = 128 }; /* steps ahead between two that are read first */

typedef struct di_ahead {
    double gap_s; /* negative: not measured yet */
    double end_share;
    int32_t since_look;
} di_ahead;

void di_ahead_init(di_ahead *ahead);
/* A gap between two steps of which neither was ahead. What is no time (negative, NaN) is left out;
 * one above `step_s`, the step behind it, counts as that: somebody else had the processor. */
void di_ahead_gap(di_ahead *ahead, double gap_s, double step_s);
/* The results of n_blocks blocks were read; in n_ended of them a sequence ended before its
 * max_tokens. */
void di_ahead_ends(di_ahead *ahead, int32_t n_blocks, int32_t n_ended);
/* Whether to enqueue ahead of a step of n_blocks, each of which costs it block_s seconds. Counts. */
bool di_ahead_pays(di_ahead *ahead, int32_t n_blocks, double block_s);

#endif
