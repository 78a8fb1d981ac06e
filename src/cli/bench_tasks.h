/* Prompts of task files, for speculation: what drafts are worth depends on the text. */
#ifndef DI_CLI_BENCH_TASKS_H
#define DI_CLI_BENCH_TASKS_H

#include "cli/bench.h"

typedef struct di_bench_task {
    char name[80];
    bool text; /* passages of a text, which go on for ever; else lines with answers that end */
    di_ids *prompts;
    int64_t n;
    int64_t longest; /* tokens */
} di_bench_task;

/* `given` is the path of a file, or the name of one in the folder eval of the model: NAME.jsonl,
 * whose lines have "prompt", rendered; or NAME.txt, whose passages of 256 tokens are prompts. At
 * most `limit` prompts. Free in any case. */
di_status di_bench_task_read(const di_bench *b, const di_tokenizer *tokenizer, const char *given,
                             size_t size, int64_t limit, di_bench_task *task, di_error *error);
void di_bench_task_free(di_bench_task *task);

#endif
