/* Progress of loading and of long prompts on stderr: a bar on a terminal, a line now and then
 * elsewhere. Only work that takes longer than a second is shown.
 */
#ifndef DI_CLI_PROGRESS_H
#define DI_CLI_PROGRESS_H

#include "deepinfer.h"

typedef struct di_progress {
    bool quiet;
    bool active; /* a phase has begun */
    bool drawn;  /* a bar is on the terminal */
    di_phase phase;
    double begin, last; /* seconds: of the phase, of the last output */
} di_progress;

/* A di_progress_fn; user is the di_progress (zeroed, `quiet` set). Returns false after Ctrl-C. */
bool di_progress_report(void *user, di_phase phase, int64_t done, int64_t total);
/* Takes a bar off the terminal, if there is one. */
void di_progress_end(di_progress *progress);

#endif
