/* "cpu", or "cpu" behind a queue, with a hand in what speculation sees: drafts that are known to be
 * right (or wrong now and then) although the host does not know yet where a sequence stands,
 * confidences as a test wants them, and a clock whose steps cost what a test says.
 *
 * Drafts are forged where the next step's rows are made of them (allot), so the model's own drafting
 * and everything behind it is the real thing. Whose drafts they are is told by what stands before
 * them: the sequence that the slot holds, as far as the device remembers it. Only for laws that
 * compare tokens: the logits of forged drafts are not theirs.
 */
#ifndef DI_TESTS_SUPPORT_FORGE_BACKEND_H
#define DI_TESTS_SUPPORT_FORGE_BACKEND_H

#include "support/golden.h"

typedef struct forge_text {
    const int32_t *ids; /* a prompt and the answer that it will have */
    int64_t n;
} forge_text;

typedef struct forge_control {
    const forge_text *texts; /* n_texts; none: drafts stay the model's own */
    int32_t n_texts;
    uint32_t wrong_in; /* one draft in so many is wrong all the same; 0: none */
    bool sets_confidence;
    float (*confidence)(int32_t k); /* of draft k, before the sigmoid */
    bool sets_clock;
    double step_s, row_s; /* what a step with blocks takes, and each of its rows more */
    double draft_s;       /* what a draft pass takes, for each sequence */
    /* Out: */
    int64_t n_forged; /* drafts */
    int64_t passes;   /* draft passes */
    double clock;
} forge_control;

/* One for the program. Read by the stream's thread: changed only while nothing is enqueued. */
extern forge_control forge;

/* Opens a model, without a context, on a backend of this kind, and makes `forge` all zero. */
void forge_open_model(test_model *m, const char *directory, di_numerics numerics, int32_t n_threads,
                      bool queue);

#endif
