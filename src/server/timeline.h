/* GET /debug/timeline: the engine's last steps and requests in Chrome's trace format, for
 * chrome://tracing and ui.perfetto.dev. Kept only with --debug. The HTTP thread's.
 */
#ifndef DI_SERVER_TIMELINE_H
#define DI_SERVER_TIMELINE_H

#include "base/buffer.h"
#include "engine/step_trace.h"

enum { DI_TIMELINE_STEPS = 1024, DI_TIMELINE_REQUESTS = 1024 };

/* A request that has ended. Seconds of the monotonic clock; 0: it did not come to that. */
typedef struct di_timeline_request {
    char id[40];
    double arrived, started, first, last, ended;
    int32_t n_choices;
} di_timeline_request;

typedef struct di_timeline {
    di_timeline_request requests[DI_TIMELINE_REQUESTS]; /* request i at i % that */
    uint64_t n;                                         /* ever */
} di_timeline;

void di_timeline_add(di_timeline *timeline, const di_timeline_request *request);
/* Appends the document. Times are microseconds since the first event of it. */
void di_timeline_write(const di_timeline *timeline, const di_trace *trace, di_buffer *out);

#endif
