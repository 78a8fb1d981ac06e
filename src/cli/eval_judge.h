/* Whether an answer is right: pure functions of what a task line wants and what came.
 */
#ifndef DI_CLI_EVAL_JUDGE_H
#define DI_CLI_EVAL_JUDGE_H

#include <stdbool.h>

#include "base/json.h"
#include "cli/generate.h"

/* The field "judge" of a task line. White space around a text never counts. */
typedef enum di_judge {
    DI_JUDGE_EXACT,    /* the answer is the text */
    DI_JUDGE_CONTAINS, /* the text stands in the answer */
    DI_JUDGE_NUMBER,   /* the last number in the answer has the value */
    DI_JUDGE_JSON,     /* the answer is JSON of the same value */
    DI_JUDGE_CALLS,    /* the tool calls, in order; text beside them does not count */
    DI_N_JUDGES
} di_judge;

/* Pointers are the task file's (eval_set.h). */
typedef struct di_eval_want {
    di_judge judge;
    const di_json *answer;  /* a string, a list of strings of which one must fit, or any value that
                              the judge compares; NULL with DI_JUDGE_CALLS */
    const di_json *calls;   /* DI_JUDGE_CALLS: a list, checked by di_judge_check */
    const char *completion; /* all of the model's text, thought, markers and end; NULL: not known */
    size_t completion_size;
} di_eval_want;

const char *di_judge_name(di_judge judge);
bool di_judge_find(const char *name, size_t size, di_judge *out);

/* DI_ERR_INVALID naming the field when the judge cannot work with it. */
di_status di_judge_check(const di_eval_want *want, di_error *error);
/* *right: what was wanted. DI_ERR_MEMORY. */
di_status di_judge_answer(const di_eval_want *want, const di_answer *answer, bool *right,
                          di_error *error);

/* The same value: members in any order, numbers by value (1 is 1.0). */
bool di_judge_same_json(const di_json *a, const di_json *b);

#endif
