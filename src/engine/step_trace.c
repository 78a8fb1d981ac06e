#include "engine/step_trace.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

di_status di_trace_init(di_trace *trace, int32_t n_max, di_error *error) {
    *trace = (di_trace){.n_max = n_max};
    trace->steps = calloc((size_t)n_max, sizeof *trace->steps);
    return trace->steps ? DI_OK : di_fail(error, DI_ERR_MEMORY, "out of memory: a trace");
}

void di_trace_deinit(di_trace *trace) {
    free(trace->steps);
    *trace = (di_trace){0};
}

void di_trace_add(di_trace *trace, const di_step_trace *step) {
    trace->steps[trace->n++ % (uint64_t)trace->n_max] = *step;
}

int32_t di_trace_count(const di_trace *trace) {
    return trace->n < (uint64_t)trace->n_max ? (int32_t)trace->n : trace->n_max;
}

const di_step_trace *di_trace_at(const di_trace *trace, int32_t i) {
    uint64_t first = trace->n - (uint64_t)di_trace_count(trace);
    return &trace->steps[(first + (uint64_t)i) % (uint64_t)trace->n_max];
}

double di_trace_shift(const di_trace *trace) {
    double least = -INFINITY, most = INFINITY;
    bool waited = false;
    for (int32_t i = 0; i < di_trace_count(trace); i++) {
        const di_step_trace *s = di_trace_at(trace, i);
        least = fmax(least, s->enqueue - s->begin);
        most = fmin(most, s->deliver - s->end);
        waited |= !s->ahead;
    }
    if (!isfinite(most)) return 0;
    return waited && least < most ? least + (most - least) / 2 : most;
}

const char *di_gap_part_name(di_gap_part part) {
    static const char *const names[DI_GAP_PARTS] =
        {[DI_GAP_CALLER] = "caller",   [DI_GAP_SCHEDULE] = "schedule", [DI_GAP_BUILD] = "build",
         [DI_GAP_ENQUEUE] = "enqueue", [DI_GAP_WAKE] = "wake",         [DI_GAP_DELIVER] = "deliver",
         [DI_GAP_STREAM] = "stream"};
    return names[part];
}

/* Seconds of begin .. end that fall into from .. to. */
static double overlap(double begin, double end, double from, double to) {
    double seconds = fmin(end, to) - fmax(begin, from);
    return seconds > 0 ? seconds : 0;
}

static void add_host(di_gap *gap, const di_step_trace *s, double from, double to) {
    gap->parts[DI_GAP_SCHEDULE] += overlap(s->schedule, s->build, from, to);
    gap->parts[DI_GAP_BUILD] += overlap(s->build, s->enqueue, from, to);
    gap->parts[DI_GAP_ENQUEUE] += overlap(s->enqueue, s->enqueued, from, to);
    gap->parts[DI_GAP_WAKE] += overlap(s->wait, s->deliver, from, to);
    gap->parts[DI_GAP_DELIVER] += overlap(s->deliver, s->delivered, from, to);
}

di_gap di_trace_gap(const di_trace *trace, int32_t i, double shift) {
    di_gap gap = {0};
    if (i == 0) return gap;
    const di_step_trace *before = di_trace_at(trace, i - 1), *s = di_trace_at(trace, i);
    if (!s->follows || !(s->begin > before->end)) return gap;
    double from = before->end + shift, to = s->begin + shift, known = 0;
    gap.seconds = to - from;
    if (s->enqueued <= from) {
        gap.parts[DI_GAP_STREAM] = gap.seconds;
        return gap;
    }
    /* With steps ahead the results of the step before the last are given out meanwhile. */
    if (i > 1) add_host(&gap, di_trace_at(trace, i - 2), from, to);
    add_host(&gap, before, from, to);
    add_host(&gap, s, from, to);
    for (int part = DI_GAP_SCHEDULE; part <= DI_GAP_DELIVER; part++) known += gap.parts[part];
    gap.parts[DI_GAP_CALLER] = gap.seconds > known ? gap.seconds - known : 0;
    if (!s->ahead)
        gap.enqueue_s = fmin(overlap(s->enqueue, s->enqueued, to, INFINITY), s->end - s->begin);
    return gap;
}
