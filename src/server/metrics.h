/* What a dashboard asks for: counters and histograms in Prometheus' text form, under the names that
 * vLLM's dashboards know, with a prefix of ours or theirs.
 */
#ifndef DI_SERVER_METRICS_H
#define DI_SERVER_METRICS_H

#include "base/buffer.h"
#include "deepinfer.h"
#include "server/process_stats.h"

enum { DI_HISTOGRAM_BUCKETS = 22 };

/* Upper bounds are one of two lists, by `tokens`. Start zeroed. */
typedef struct di_histogram {
    bool tokens; /* of tokens; else of seconds */
    uint64_t counts[DI_HISTOGRAM_BUCKETS + 1];
    double sum;
} di_histogram;

void di_histogram_add(di_histogram *histogram, double value);

/* How requests ended. */
typedef enum di_outcome {
    DI_OUTCOME_STOP,
    DI_OUTCOME_LENGTH,
    DI_OUTCOME_CALLS,
    DI_OUTCOME_ABORT,
    DI_OUTCOME_ERROR,
    DI_N_OUTCOMES
} di_outcome;

/* What the HTTP thread counts. */
typedef struct di_metrics {
    uint64_t outcomes[DI_N_OUTCOMES];
    uint64_t prompt_tokens, cached_tokens, answer_tokens, reasoning_tokens;
    uint64_t statuses[6]; /* of HTTP answers: 1xx .. 5xx, by their first digit */
    uint64_t connections, connections_open, rejected, bytes_sent;
    di_histogram first_token, whole, queue, prefill, decode, inference, per_token;
    di_histogram prompt_sizes, answer_sizes;
} di_metrics;

/* What the engine's thread counts. */
typedef struct di_engine_metrics {
    di_histogram gaps;      /* between two tokens of an answer */
    di_histogram step_rows; /* of a step */
} di_engine_metrics;

void di_metrics_write(const di_metrics *m, const di_engine_metrics *e, const di_engine_stats *stats,
                      const char *prefix, const char *model, di_buffer *out);
/* Under the names that every Prometheus client library gives them: without prefix and labels. */
void di_metrics_write_process(const di_process_stats *process, di_buffer *out);

#endif
