/* How far a batch is, on stderr: a bar with rate and time left on a terminal, a line now and then
 * elsewhere. Nothing in the first second.
 */
#ifndef DI_CLI_BATCH_PROGRESS_H
#define DI_CLI_BATCH_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct di_batch_progress {
    bool quiet, drawn;
    const char *what;      /* that is counted; NULL: "requests" */
    int64_t total, before; /* of them; before: done by former runs */
    double begin, last;    /* seconds */
} di_batch_progress;

void di_batch_progress_begin(di_batch_progress *progress, int64_t total, int64_t before);
/* done: requests, those of former runs included; n_tokens: of answers, of this run. */
void di_batch_progress_show(di_batch_progress *progress, int64_t done, int64_t n_tokens);
void di_batch_progress_end(di_batch_progress *progress);

#endif
