/* The engine's thread and the device are tracks of complete events, which nest by their times;
 * requests overlap as they like and are asynchronous events, whose phases nest by their id.
 */
#include "server/timeline.h"

#include <inttypes.h>
#include <math.h>

enum { HOST = 1, DEVICE = 2, REQUESTS = 3 };

void di_timeline_add(di_timeline *timeline, const di_timeline_request *request) {
    timeline->requests[timeline->n++ % DI_TIMELINE_REQUESTS] = *request;
}

typedef struct page {
    di_buffer *out;
    double zero; /* seconds */
    bool any;
} page;

static int32_t n_requests(const di_timeline *t) {
    return t->n < DI_TIMELINE_REQUESTS ? (int32_t)t->n : DI_TIMELINE_REQUESTS;
}

static double micros(const page *p, double at) { return (at - p->zero) * 1e6; }

static void next(page *p) {
    di_buffer_puts(p->out, p->any ? ",\n" : "\n");
    p->any = true;
}

static void name_track(page *p, int track, const char *name) {
    next(p);
    di_buffer_printf(
        p->out,
        "{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":"
        "\"%s\"}}",
        track, name);
}

/* A stretch of time on a track. What took none is left out. */
static bool span(page *p, int track, const char *name, uint64_t step, double begin, double end) {
    if (!(end > begin)) return false;
    next(p);
    di_buffer_printf(p->out,
                     "{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,"
                     "\"args\":{\"step\":%" PRIu64,
                     track, name, micros(p, begin), (end - begin) * 1e6, step);
    return true;
}

static void close_span(page *p) { di_buffer_puts(p->out, "}}"); }

static void plain_span(page *p, int track, const char *name, uint64_t step, double begin,
                       double end) {
    if (span(p, track, name, step, begin, end)) close_span(p);
}

static void write_step(page *p, const di_step_trace *s, double shift) {
    plain_span(p, HOST, "schedule", s->step, s->schedule, s->build);
    plain_span(p, HOST, "build", s->step, s->build, s->enqueue);
    plain_span(p, HOST, "enqueue", s->step, s->enqueue, s->enqueued);
    plain_span(p, HOST, "wait", s->step, s->wait, s->deliver);
    plain_span(p, HOST, "deliver", s->step, s->deliver, s->delivered);
    if (span(p, DEVICE, "step", s->step, s->begin + shift, s->end + shift)) {
        di_buffer_printf(p->out,
                         ",\"rows\":%d,\"prompt_rows\":%d,\"blocks\":%d,\"verified\":%d,"
                         "\"drafted\":%d,\"ahead\":%s",
                         s->rows, s->prompt_rows, s->blocks, s->verified, s->drafted,
                         s->ahead ? "true" : "false");
        close_span(p);
    }
    if (s->drafted > 0)
        plain_span(p, DEVICE, "draft", s->step, s->drafts + shift, s->forward + shift);
    plain_span(p, DEVICE, "forward", s->step, s->forward + shift, s->end + shift);
}

static void write_gap(page *p, const di_trace *trace, int32_t i, double shift) {
    const di_step_trace *s = di_trace_at(trace, i);
    di_gap gap = di_trace_gap(trace, i, shift);
    double to = s->begin + shift;
    if (!span(p, DEVICE, "idle", s->step, to - gap.seconds, to)) return;
    for (int part = 0; part < DI_GAP_PARTS; part++) {
        di_buffer_printf(p->out, ",\"%s_us\":%.3f", di_gap_part_name((di_gap_part)part),
                         gap.parts[part] * 1e6);
    }
    close_span(p);
}

static void async(page *p, const di_timeline_request *r, char phase, const char *name, double at) {
    next(p);
    di_buffer_printf(p->out,
                     "{\"ph\":\"%c\",\"pid\":1,\"tid\":%d,\"cat\":\"request\",\"id\":\"%s\","
                     "\"name\":\"%s\",\"ts\":%.3f",
                     phase, REQUESTS, r->id, name, micros(p, at));
    if (phase == 'b') di_buffer_printf(p->out, ",\"args\":{\"choices\":%d}", r->n_choices);
    di_buffer_putc(p->out, '}');
}

static void phase(page *p, const di_timeline_request *r, const char *name, double begin,
                  double end) {
    async(p, r, 'b', name, begin);
    async(p, r, 'e', name, end);
}

/* When the reading of a prompt began that took one step: that of the step which gave the first token. */
static double one_step_start(const di_trace *trace, double first) {
    for (int32_t i = di_trace_count(trace) - 1; i >= 0; i--) {
        const di_step_trace *s = di_trace_at(trace, i);
        if (s->deliver <= first && first <= s->delivered) return s->schedule;
    }
    return first;
}

/* Queued until its prompt is read, prefill until its first token, decode until its last one. One that
 * left before is in its phase until it ends. */
static void write_request(page *p, const di_timeline_request *r, const di_trace *trace) {
    double first = r->first > 0 ? r->first : r->ended, started = r->started;
    if (!(started > 0 && started < first)) started = fmax(r->arrived, one_step_start(trace, first));
    async(p, r, 'b', "request", r->arrived);
    phase(p, r, "queued", r->arrived, started);
    if (started < first) phase(p, r, "prefill", started, first);
    if (r->first > 0) phase(p, r, "decode", first, r->last);
    async(p, r, 'n', "finished", r->ended);
    async(p, r, 'e', "request", r->ended);
}

static double earliest(const di_timeline *timeline, const di_trace *trace, double shift) {
    double zero = INFINITY;
    for (int32_t i = 0; i < n_requests(timeline); i++) {
        zero = fmin(zero, timeline->requests[i].arrived);
    }
    for (int32_t i = 0; i < di_trace_count(trace); i++) {
        const di_step_trace *s = di_trace_at(trace, i);
        zero = fmin(zero, fmin(s->schedule, s->begin + shift));
    }
    return isfinite(zero) ? zero : 0;
}

void di_timeline_write(const di_timeline *timeline, const di_trace *trace, di_buffer *out) {
    double shift = di_trace_shift(trace);
    page p = {.out = out, .zero = earliest(timeline, trace, shift)};
    di_buffer_puts(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    name_track(&p, HOST, "engine thread");
    name_track(&p, DEVICE, "device");
    name_track(&p, REQUESTS, "requests");
    for (int32_t i = 0; i < di_trace_count(trace); i++) {
        write_gap(&p, trace, i, shift);
        write_step(&p, di_trace_at(trace, i), shift);
    }
    for (int32_t i = 0; i < n_requests(timeline); i++) {
        write_request(&p, &timeline->requests[i], trace);
    }
    di_buffer_puts(out, "\n]}\n");
}
