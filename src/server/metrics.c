#include "server/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/lossy.h"

static const double second_bounds[DI_HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.0075, 0.01,
                                                           0.015, 0.025,  0.04,  0.06,   0.1,
                                                           0.15,  0.25,   0.5,   0.75,   1,
                                                           2.5,   5,      10,    30,     60,
                                                           300,   1200};
static const double token_bounds[DI_HISTOGRAM_BUCKETS] = {1,      2,      4,     8,      16,
                                                          32,     64,     128,   256,    512,
                                                          768,    1024,   2048,  4096,   8192,
                                                          16384,  32768,  65536, 131072, 262144,
                                                          524288, 1048576};

void di_histogram_add(di_histogram *h, double value) {
    const double *bounds = h->tokens ? token_bounds : second_bounds;
    int i = 0;
    while (i < DI_HISTOGRAM_BUCKETS && value > bounds[i]) i++;
    h->counts[i]++;
    h->sum += value;
}

/* Where the text goes, and what stands in every sample. */
typedef struct page {
    di_buffer *out;
    const char *prefix;
    di_buffer labels; /* model_name="...",engine="0" */
} page;

static void describe(page *p, const char *name, const char *type, const char *help) {
    di_buffer_printf(p->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", p->prefix, name, help, p->prefix,
                     name, type);
}

static void sample(page *p, const char *name, const char *more, double value) {
    di_buffer_printf(p->out, "%s%s{%s%s} %.17g\n", p->prefix, name, p->labels.data, more, value);
}

static void gauge(page *p, const char *name, const char *help, double value) {
    describe(p, name, "gauge", help);
    sample(p, name, "", value);
}

static void counter(page *p, const char *name, const char *help, double value) {
    describe(p, name, "counter", help);
    sample(p, name, "", value);
}

static void histogram(page *p, const char *name, const char *help, const di_histogram *h) {
    const double *bounds = h->tokens ? token_bounds : second_bounds;
    uint64_t sum = 0;
    describe(p, name, "histogram", help);
    for (int i = 0; i <= DI_HISTOGRAM_BUCKETS; i++) {
        sum += h->counts[i];
        di_buffer_printf(p->out, "%s%s_bucket{%s,le=\"", p->prefix, name, p->labels.data);
        if (i < DI_HISTOGRAM_BUCKETS) {
            di_buffer_printf(p->out, "%g", bounds[i]);
        } else {
            di_buffer_puts(p->out, "+Inf");
        }
        di_buffer_printf(p->out, "\"} %" PRIu64 "\n", sum);
    }
    di_buffer_printf(p->out, "%s%s_sum{%s} %.17g\n%s%s_count{%s} %" PRIu64 "\n", p->prefix, name,
                     p->labels.data, h->sum, p->prefix, name, p->labels.data, sum);
}

static void write_engine(page *p, const di_engine_stats *s, const di_engine_metrics *e) {
    double pages = s->pages > 0 ? (double)s->pages : 1;
    gauge(p, "num_requests_running", "Answers that are computed now.", (double)s->running);
    gauge(p, "num_requests_waiting", "Answers that wait for their turn.", (double)s->waiting);
    gauge(p, "kv_cache_usage_perc", "Part of the pages in use, 1 is all; cached ones count.",
          (double)s->pages_used / pages);
    counter(p, "prefix_cache_queries_total", "Tokens of prompts that were looked up in the cache.",
            (double)s->prompt_tokens);
    counter(p, "prefix_cache_hits_total", "Tokens of prompts that were found in the cache.",
            (double)s->cached_tokens);
    counter(p, "num_preemptions_total", "Answers that gave their place away and began again.",
            (double)s->preemptions);
    counter(p, "spec_decode_num_drafts_total", "Blocks of drafts that were verified.",
            (double)s->draft_blocks);
    counter(p, "spec_decode_num_draft_tokens_total", "Draft tokens that were verified.",
            (double)s->verified);
    counter(p, "spec_decode_num_accepted_tokens_total", "Draft tokens that were accepted.",
            (double)s->accepted);
    counter(p, "engine_steps_total", "Steps of the engine.", (double)s->steps);
    counter(p, "engine_step_seconds_total", "The device computed.", s->step_seconds);
    counter(p, "engine_gap_seconds_total", "The device waited between steps while there was work.",
            s->gap_seconds);
    histogram(p, "iteration_tokens_total", "Rows of a step.", &e->step_rows);
    histogram(p, "inter_token_latency_seconds", "From one token of an answer to the next.",
              &e->gaps);
}

static void write_requests(page *p, const di_metrics *m) {
    static const char *const names[] = {[DI_OUTCOME_STOP] = "stop",
                                        [DI_OUTCOME_LENGTH] = "length",
                                        [DI_OUTCOME_CALLS] = "tool_calls",
                                        [DI_OUTCOME_ABORT] = "abort",
                                        [DI_OUTCOME_ERROR] = "error"};
    counter(p, "prompt_tokens_total", "Tokens of prompts.", (double)m->prompt_tokens);
    counter(p, "generation_tokens_total", "Tokens of answers.", (double)m->answer_tokens);
    counter(p, "reasoning_tokens_total", "Tokens of thoughts, which are part of answers.",
            (double)m->reasoning_tokens);
    describe(p, "request_success_total", "counter", "Answers by how they ended.");
    for (int i = 0; i < DI_N_OUTCOMES; i++) {
        char more[60];
        snprintf(more, sizeof more, ",finished_reason=\"%s\"", names[i]);
        sample(p, "request_success_total", more, (double)m->outcomes[i]);
    }
    histogram(p, "time_to_first_token_seconds", "From a request's arrival to its first token.",
              &m->first_token);
    histogram(p, "e2e_request_latency_seconds", "From a request's arrival to its end.", &m->whole);
    histogram(p, "request_queue_time_seconds", "From arrival until the prompt is read.", &m->queue);
    histogram(p, "request_prefill_time_seconds", "Reading the prompt.", &m->prefill);
    histogram(p, "request_decode_time_seconds", "From the first token to the last.", &m->decode);
    histogram(p, "request_inference_time_seconds", "Prompt and answer.", &m->inference);
    histogram(p, "request_time_per_output_token_seconds",
              "Mean over an answer, its first token "
              "left out.",
              &m->per_token);
    histogram(p, "request_prompt_tokens", "Tokens of a prompt.", &m->prompt_sizes);
    histogram(p, "request_generation_tokens", "Tokens of a request's answers.", &m->answer_sizes);
}

static void write_http(page *p, const di_metrics *m) {
    describe(p, "http_responses_total", "counter", "HTTP answers by the class of their status.");
    for (int i = 2; i < 6; i++) {
        char more[40];
        snprintf(more, sizeof more, ",status=\"%dxx\"", i);
        sample(p, "http_responses_total", more, (double)m->statuses[i]);
    }
    gauge(p, "http_connections", "Connections that are open.", (double)m->connections_open);
    counter(p, "http_connections_total", "Connections that were accepted.", (double)m->connections);
    counter(p, "http_requests_rejected_total", "Requests that were refused because of a limit.",
            (double)m->rejected);
    counter(p, "http_bytes_sent_total", "Bytes given to clients.", (double)m->bytes_sent);
}

void di_metrics_write(const di_metrics *m, const di_engine_metrics *e, const di_engine_stats *stats,
                      const char *prefix, const char *model, di_buffer *out) {
    page p = {out, prefix, DI_BUFFER_EMPTY};
    /* JSON's escapes of a valid text are a superset of those of a label, but for \u00XX. */
    di_buffer_puts(&p.labels, "model_name=");
    di_lossy_write(&p.labels, model, strlen(model));
    di_buffer_puts(&p.labels, ",engine=\"0\"");
    if (p.labels.failed) {
        out->failed = true;
    } else {
        write_engine(&p, stats, e);
        write_requests(&p, m);
        write_http(&p, m);
    }
    di_buffer_free(&p.labels);
}

static void process_sample(di_buffer *out, const char *name, const char *type, const char *help,
                           double value) {
    di_buffer_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name,
                     value);
}

void di_metrics_write_process(const di_process_stats *process, di_buffer *out) {
    process_sample(out, "process_cpu_seconds_total", "counter",
                   "Processor time of this process, user and system.", process->cpu_seconds);
    process_sample(out, "process_resident_memory_bytes", "gauge",
                   "Memory of this process that is resident.", (double)process->resident_bytes);
    process_sample(out, "process_open_fds", "gauge", "Files that are open, connections too.",
                   (double)process->open_files);
    process_sample(out, "process_max_fds", "gauge", "Files that may be open.",
                   (double)process->max_files);
    process_sample(out, "process_start_time_seconds", "gauge",
                   "When this process began, as Unix time.", process->started);
}
