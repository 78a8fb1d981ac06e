/* One pass over what is evaluated, under one setting: an engine of its own, many items at a time.
 */
#ifndef DI_CLI_EVAL_RUN_H
#define DI_CLI_EVAL_RUN_H

#include "cli/batch_progress.h"
#include "cli/eval_set.h"
#include "cli/eval_setting.h"

/* What one item came to. */
typedef struct di_eval_result {
    bool done;
    /* of a task */
    bool right, whole; /* whole: all of the model's text is the item's completion */
    bool cut;          /* at max_tokens, or by the context */
    di_ids answer;     /* its tokens, the end token included */
    /* of a text */
    double logprobs; /* their sum, over n_scored tokens */
    int64_t n_scored;
    int64_t n_prompt, n_cached; /* tokens; n_cached: of the prompt, not computed again */
} di_eval_result;

/* Start zeroed but for the setting. */
typedef struct di_eval_run {
    const di_eval_setting *setting;
    di_eval_result *results; /* [set->n_items]; NULL: the run was not begun */
    size_t n_items, n_done;
    int64_t context;                      /* tokens of the longest sequence, as the engine has it */
    const char *backend;                  /* what computed */
    double seconds;                       /* of the work, without loading */
    int64_t n_prompt, n_cached, n_answer; /* tokens of what is done; of a text none is an answer */
    int64_t n_tokens;                     /* sampled or scored so far */
} di_eval_run;

typedef struct di_eval_pass {
    di_eval_set *set; /* items that turn out impossible are complained about there, once */
    const char *model;
    float temperature; /* 0: the most likely tokens */
    uint64_t seed;
    bool warm; /* every prompt is read before by a request of its own: it is found cached */
    di_batch_progress *progress;       /* of all runs */
    int64_t n_before, n_tokens_before; /* items and tokens of the runs before this one */
} di_eval_pass;

/* DI_ERR_CANCELLED after Ctrl-C, with what is done in *run. Free in any case. */
di_status di_eval_run_all(di_eval_run *run, const di_eval_pass *pass, di_error *error);
void di_eval_run_free(di_eval_run *run);

#endif
