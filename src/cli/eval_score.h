/* From results to figures: of one run, and of a run against the first, item by item.
 *
 * `group` NULL: all task files together. Items that are not done, in either run where there are two,
 * are left out.
 */
#ifndef DI_CLI_EVAL_SCORE_H
#define DI_CLI_EVAL_SCORE_H

#include "cli/eval_run.h"
#include "cli/eval_stats.h"

typedef struct di_eval_score {
    int64_t n, right;           /* items; share and bounds are set when there are any */
    int64_t n_whole, whole;     /* whose completion is known; that came out so */
    int64_t n_cut;              /* answers that did not end by themselves */
    int64_t n_prompt, n_cached; /* tokens */
    double share;
    di_interval bounds; /* Wilson */
} di_eval_score;

typedef struct di_eval_pair {
    int64_t n, only_first, only_second;
    int64_t same;       /* answers of the same tokens */
    double difference;  /* of the shares, second minus first */
    di_interval bounds; /* Tango */
} di_eval_pair;

/* Logarithms are natural; rows count alike, whatever their length. */
typedef struct di_eval_text_score {
    int64_t n_rows, n_tokens; /* tokens that are scored */
    int64_t n_prompt, n_cached;
    double nats;        /* a token: the mean of minus its log-probability */
    bool has_bounds;    /* two rows at least */
    di_interval bounds; /* Student's t over rows */
} di_eval_text_score;

typedef struct di_eval_text_pair {
    int64_t n_rows, same; /* same: to the last bit of the sum */
    double difference;    /* of nats, second minus first */
    bool has_bounds;
    di_interval bounds; /* Student's t over the rows' differences */
} di_eval_text_pair;

di_eval_score di_eval_score_tasks(const di_eval_set *set, const di_eval_run *run,
                                  const di_eval_group *group);
di_eval_pair di_eval_pair_tasks(const di_eval_set *set, const di_eval_run *first,
                                const di_eval_run *second, const di_eval_group *group);
/* DI_ERR_MEMORY. */
di_status di_eval_score_text(const di_eval_run *run, const di_eval_group *group,
                             di_eval_text_score *out, di_error *error);
di_status di_eval_pair_text(const di_eval_run *first, const di_eval_run *second,
                            const di_eval_group *group, di_eval_text_pair *out, di_error *error);

#endif
