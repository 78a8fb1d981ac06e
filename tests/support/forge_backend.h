/* "cpu", or "cpu" behind a queue, with a hand in what speculation sees: drafts that are known to be
 * right (or wrong now and then) although the host does not know yet where a sequence stands,
 * confidences as a test wants them, and a clock whose steps cost what a test says.
 *
 * Drafts are forged where the next step's rows are made of them (allot), so the model's own drafting
 * and everything behind it is the real thing. Whose drafts they are is told by what stands before
 * them: the sequence that the slot holds, as far as the device remembers it. Only for laws that
 * compare tokens: the logits of forged drafts are not theirs.
 *
 * Or the whole network is a toy, of which every probability is known: target and draft know the token
 * before, and nothing else is computed. What samples, accepts and schedules is the real thing.
 */
#ifndef DI_TESTS_SUPPORT_FORGE_BACKEND_H
#define DI_TESTS_SUPPORT_FORGE_BACKEND_H

#include "support/golden.h"

typedef struct forge_text {
    const int32_t *ids; /* a prompt and the answer that it will have */
    int64_t n;
} forge_text;

enum { FORGE_VOCAB = 4, FORGE_BLOCK = 8 };

/* Logits by the token before; tokens from FORGE_VOCAB on count as 0, and have no chance. */
typedef struct forge_toy {
    int32_t vocab;
    double p[FORGE_VOCAB][FORGE_VOCAB], q[FORGE_VOCAB][FORGE_VOCAB];
    double confidence[FORGE_BLOCK][FORGE_VOCAB]; /* of draft k, by the token before it; in (0, 1) */
} forge_toy;

/* Faults of rejection sampling that a test must find. */
typedef enum forge_plant {
    FORGE_NOTHING,
    FORGE_ACCEPT_ALL,
    FORGE_NO_SUBTRACTION /* what takes a rejected draft's place is drawn from p itself */
} forge_plant;

typedef struct forge_control {
    const forge_text *texts; /* n_texts; none: drafts stay the model's own */
    int32_t n_texts;
    uint32_t wrong_in;    /* one draft in so many is wrong all the same; 0: none */
    const forge_toy *toy; /* or NULL */
    forge_plant plant;
    float (*confidence)(int32_t k); /* of draft k, before the sigmoid; NULL: the model's own */
    bool sets_clock;
    double step_s, row_s; /* what a step with blocks takes, and each of its rows more, */
    double (*step_seconds)(int32_t n_rows); /* or this */
    double draft_s;                         /* what a draft pass takes, for each sequence */
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
