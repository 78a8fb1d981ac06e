/* Runs requests on an engine core and records everything that it says about them. Every helper
 * fails the test (cmocka) instead of returning an error. */
#ifndef DI_TESTS_SUPPORT_CORE_RUN_H
#define DI_TESTS_SUPPORT_CORE_RUN_H

#include "engine/engine.h"
#include "support/golden.h"

enum { RUN_MAX_PROMPT = 512, RUN_MAX_ANSWER = 96, RUN_MAX_CHOICES = 4, RUN_MAX_TOP = 5 };

typedef struct run_choice {
    int64_t n; /* tokens of the answer, what is given of it included */
    int32_t ids[RUN_MAX_ANSWER];
    float logprobs[RUN_MAX_ANSWER];
    int64_t n_scores; /* log-probabilities of the prompt */
    float scores[RUN_MAX_PROMPT];
    int32_t n_top;
    di_top_logprob top[RUN_MAX_ANSWER][RUN_MAX_TOP];
    bool ended;
    di_core_result result;
    char message[256];
} run_choice;

/* One request and what came of it. Filled by run_make, submitted by run_submit; it must stay where
 * it is until it has ended. */
typedef struct run {
    di_core_request request;
    int32_t prompt[RUN_MAX_PROMPT];
    di_logit_bias biases[8];
    uint64_t id;
    run_choice choices[RUN_MAX_CHOICES];
    /* What the callbacks do: */
    int64_t stop_at;   /* on_token says false at this index of an answer; -1: never */
    int64_t cancel_at; /* on_token cancels the request at this index; -1: never */
    di_core *core;     /* set by run_submit */
} run;

/* Greedy, one choice, no end token, of these ids. */
void run_make(run *r, const int32_t *ids, int64_t n, int64_t max_tokens);
void run_submit(run *r, di_core *core);
/* Prompt and answer so far of a choice, to ids [RUN_MAX_PROMPT + RUN_MAX_ANSWER]; how many. */
int64_t run_text(const run *r, int32_t choice, int32_t *ids);
/* Steps until nothing is left; invariants are checked after every step. */
void run_to_end(di_core *core);
bool run_ended(const run *r);

/* Opens a model without a context of its own. */
void run_open_model(test_model *m, const char *directory, test_backend backend,
                    di_numerics numerics, int32_t n_threads);
/* Token ids that repeat nowhere soon, within a vocabulary of 303: RUN_MAX_PROMPT of them. */
void run_fill_text(int32_t *text);
/* Small defaults for tests: 4 sequences, 32 rows, a context of 448 tokens, 64 pages. */
di_core_options run_options(void);
di_core *run_core(const test_model *m, const di_core_options *options);
/* Checks that nothing is held any more, and destroys. */
void run_core_destroy(di_core *core);

/* Bits: tokens, log-probabilities, alternatives, scores, finish. `what` names it in the message. */
void run_expect_same(const run_choice *got, const run_choice *want, const char *what);

#endif
