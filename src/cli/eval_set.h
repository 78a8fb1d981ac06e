/* What is evaluated: items from task files and from a text, read and turned into token ids before
 * anything is computed.
 *
 * A task file is JSONL, an item a line (docs/eval.md). A line that is wrong is left out; what is
 * wrong with it goes to `complaints`, a line each, and the rest goes on. A text becomes rows of a
 * fixed length whose tokens are given to the model.
 */
#ifndef DI_CLI_EVAL_SET_H
#define DI_CLI_EVAL_SET_H

#include "cli/eval_judge.h"
#include "deepinfer.h"

enum {
    DI_EVAL_ROW_TOKENS = 1024, /* of a row of text */
    DI_EVAL_MAX_TOKENS = 512   /* of an answer, unless it is said otherwise */
};

/* The items of one file are consecutive. */
typedef struct di_eval_group {
    const char *name; /* without folder; a task file's also without .jsonl */
    const char *path;
    bool is_text;
    size_t first, n_items;
} di_eval_group;

typedef struct di_eval_item {
    size_t group;
    int64_t line; /* in its file, from 1; of a text: the row */
    di_ids ids; /* prompt and what is given; of a text without the begin token, which comes first */
    size_t n_given;
    bool thinking; /* as in di_reader_options */
    int64_t max_tokens;
    di_eval_want want; /* of a task */
    bool refused;      /* it turned out impossible when it was run */
} di_eval_item;

/* Start zeroed. */
typedef struct di_eval_set {
    di_arena arena; /* what pointers in groups and items point into */
    di_eval_group *groups;
    size_t n_groups;
    di_eval_item *items;
    size_t n_items, capacity;
    di_buffer complaints; /* "FILE: line N: ...\n", one a refusal */
    int64_t n_refused;
} di_eval_set;

typedef struct di_eval_limits {
    int64_t lines;      /* that are read of a file, and rows of a text; 0: all */
    int64_t max_tokens; /* of an answer whose line does not say */
    size_t row_prompt;  /* of a text's row, the tokens that are prompt; the others are given */
} di_eval_limits;

/* Both append a group. A failure here is one of the whole file: it cannot be read, or (text) is
 * shorter than two tokens. */
di_status di_eval_read_tasks(di_eval_set *set, const char *path, const di_tokenizer *tokenizer,
                             const di_eval_limits *limits, di_error *error);
di_status di_eval_read_text(di_eval_set *set, const char *path, const di_tokenizer *tokenizer,
                            const di_eval_limits *limits, di_error *error);

/* For the two: a new group, a new item of the last group (zeroed but for its group). */
di_status di_eval_add_group(di_eval_set *set, const char *path, bool is_text, di_error *error);
di_status di_eval_add_item(di_eval_set *set, di_eval_item **out, di_error *error);

/* "FILE: line N: WHY", or row N of a text, for an item of the group that cannot be run. One line of
 * text without control characters, whatever the file had in it. */
void di_eval_complain(di_eval_set *set, const di_eval_group *group, int64_t line, const char *why);
void di_eval_set_free(di_eval_set *set);

#endif
