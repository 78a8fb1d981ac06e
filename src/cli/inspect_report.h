/* The two ways in which `inspect` tells what it found. */
#ifndef DI_CLI_INSPECT_REPORT_H
#define DI_CLI_INSPECT_REPORT_H

#include "api/plan.h"
#include "base/buffer.h"
#include "model/inspect.h"

typedef struct di_inspect_subject {
    const char *name;
    di_config config;
    di_checkpoint *checkpoint; /* NULL: from the config alone */
    di_inspect found;
    di_context_options context; /* what is planned, on this backend */
    const char *backend, *numerics;
    di_context_bytes state;
    bool has_gpu; /* and what it would take; else why there is none, "" where nobody asked */
    di_gpu_plan gpu;
    char no_gpu[256];
} di_inspect_subject;

/* Pages of the pool; each has di_config_page_bytes. */
int64_t di_inspect_pool_pages(const di_inspect_subject *subject);

void di_inspect_text(const di_inspect_subject *subject, di_buffer *out);
void di_inspect_json(const di_inspect_subject *subject, di_buffer *out);

#endif
