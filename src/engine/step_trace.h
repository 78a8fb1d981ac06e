/* The last steps of an engine, and what the device did between them.
 *
 * A ring of what di_engine_trace tells. The device's clock has a zero of its own: `shift` is what must be
 * added to it. No step begins before its enqueueing does, and none is read before its end: that bounds it
 * from both sides, as closely as the quickest start and the quickest wake-up, and the middle is taken. A
 * ring in which no step was waited for has no close lower bound: there it is the upper one.
 *
 * A gap is the time between the ends of two steps' work, begin of the second less end of the first, where
 * there was work all the time. Which part of the host's work fell into it says what the device waited
 * for. A step's begin is when the stream came to it: for one that was not enqueued ahead the device also
 * waits while it is enqueued, piece by piece, so that its `enqueue` is an upper bound of what is not in
 * the gap. No thread of its own: one caller at a time.
 */
#ifndef DI_ENGINE_STEP_TRACE_H
#define DI_ENGINE_STEP_TRACE_H

#include "base/error.h"

typedef struct di_trace {
    di_step_trace *steps; /* [n_max], step i at i % n_max */
    int32_t n_max;
    uint64_t n; /* ever */
} di_trace;

di_status di_trace_init(di_trace *trace, int32_t n_max, di_error *error); /* DI_ERR_MEMORY */
void di_trace_deinit(di_trace *trace);
void di_trace_add(di_trace *trace, const di_step_trace *step);
int32_t di_trace_count(const di_trace *trace);
/* 0 is the oldest. */
const di_step_trace *di_trace_at(const di_trace *trace, int32_t i);
/* The host's clock less the device's; 0 for an empty ring. */
double di_trace_shift(const di_trace *trace);

typedef enum di_gap_part {
    DI_GAP_CALLER, /* outside of the engine: between two calls of di_engine_step */
    DI_GAP_SCHEDULE,
    DI_GAP_BUILD,
    DI_GAP_ENQUEUE, /* until the stream came to the step */
    DI_GAP_WAKE,    /* the host did not know yet that the step before had ended */
    DI_GAP_DELIVER,
    DI_GAP_STREAM, /* the step was enqueued already: copies of results and pages, marks */
    DI_GAP_PARTS
} di_gap_part;
const char *di_gap_part_name(di_gap_part part);

typedef struct di_gap {
    double seconds;             /* 0 where the step did not follow another one */
    double parts[DI_GAP_PARTS]; /* of it; what adds up to it */
    double enqueue_s;           /* behind it, while which the device may have waited too */
} di_gap;

/* In front of step i; the oldest has none. */
di_gap di_trace_gap(const di_trace *trace, int32_t i, double shift);

#endif
