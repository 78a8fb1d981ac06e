/* Where the time of a step goes, for whoever asked. */
#include <time.h>

#include "engine/core_internal.h"

void di_core_trace(di_core *core, void (*told)(void *user, const di_step_trace *step), void *user) {
    core->told = told;
    core->told_user = user;
}

double core__now(const di_core *core) {
    struct timespec t;
    if (!core->told) return 0;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void core__tell_trace(di_core *core, core__step *step, bool follows) {
    di_step_trace *trace = &step->trace;
    /* One that was enqueued before anybody asked has no times. */
    if (!core->told || trace->schedule == 0) return;
    trace->delivered = core__now(core);
    trace->rows = step->n_blocks + step->n_verified + step->n_rows;
    trace->prompt_rows = step->n_prompt_rows;
    trace->blocks = step->n_blocks;
    trace->verified = step->n_verified;
    trace->drafted = step->n_drafted;
    trace->ahead = !step->alone;
    trace->follows = follows;
    trace->begin = step->begin;
    trace->drafts = step->ready;
    trace->forward = step->middle;
    trace->end = step->end;
    core->told(core->told_user, trace);
}
