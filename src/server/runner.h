/* The engine's own thread: takes jobs in, steps the engine while there is work, and gives events
 * back, once a step.
 *
 * Everything here is called by the HTTP thread, but for `wake`, which comes from the engine's. One
 * lock guards what crosses; it is held for a few pointers at a time, never during a step.
 */
#ifndef DI_SERVER_RUNNER_H
#define DI_SERVER_RUNNER_H

#include "engine/step_trace.h"
#include "server/job.h"

typedef struct di_runner di_runner;

/* From here until destroy the engine belongs to the thread. `wake` is called when di_runner_take
 * has something, from that thread. max_batch: that of the engine; some more choices wait inside of
 * it so that a place is never empty, the others here. trace_steps: how many of the last steps are
 * kept, 0: none. slow_s: steps that took longer are told of, 0: none. */
typedef struct di_runner_options {
    int32_t max_batch, trace_steps;
    double slow_s;
    void (*wake)(void *user);
    void *user;
} di_runner_options;
di_status di_runner_create(di_engine *engine, const di_runner_options *options, di_runner **out,
                           di_error *error);
/* Ends the thread after its step; jobs that are still open are forgotten, and the caller's. */
void di_runner_destroy(di_runner *runner);

void di_runner_submit(di_runner *runner, di_job *job);
/* Its choices end as cancelled, soon; `done` comes all the same. Again is fine. */
void di_runner_cancel(di_runner *runner, di_job *job);

/* A job with events that were not taken yet, which are appended to *events; NULL: none. *done: they
 * are the last ones, and the job is the caller's alone again. */
di_job *di_runner_take(di_runner *runner, di_buffer *events, bool *done);

/* A copy of the steps that are kept, oldest first, to be deinitialised. */
di_status di_runner_trace(di_runner *runner, di_trace *out, di_error *error);

/* A step that took longer than slow_s, from the end of the step before it where there was work all the
 * time, else from its own beginning. */
typedef struct di_slow_step {
    double seconds;
    uint64_t n_lost; /* others before it that there was no room for */
    di_step_trace step;
} di_slow_step;
bool di_runner_take_slow(di_runner *runner, di_slow_step *out);

typedef struct di_runner_stats {
    di_engine_stats engine; /* after the last step; waiting includes what waits here */
    di_engine_metrics metrics;
    bool failed; /* the engine is lost: every job ends in failure */
    char message[300];
} di_runner_stats;
di_runner_stats di_runner_get_stats(di_runner *runner);

#endif
