/* An evaluation as tables for people, and as one JSON object for programs.
 */
#ifndef DI_CLI_EVAL_REPORT_H
#define DI_CLI_EVAL_REPORT_H

#include "cli/eval_score.h"

typedef struct di_eval_report {
    const char *model;
    const di_args *args; /* the command line's */
    int64_t max_tokens;  /* of an answer whose line does not say */
    const di_eval_set *set;
    const di_eval_run *runs; /* n_runs that were begun, in order; the others are compared with the
                                first */
    size_t n_runs;
    bool compared;     /* settings have names, and prompts were read before */
    bool partial;      /* stopped before its end */
    size_t row_prompt; /* as in di_eval_limits */
} di_eval_report;

/* Both append; DI_ERR_MEMORY. */
di_status di_eval_write_tables(const di_eval_report *report, di_buffer *out, di_error *error);
di_status di_eval_write_json(const di_eval_report *report, di_buffer *out, di_error *error);

#endif
