/* latency: what a client waits for while requests arrive at random. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/batch_line.h"
#include "cli/bench.h"
#include "cli/engine_args.h"
#include "cli/input.h"
#include "cli/lines.h"
#include "cli/terminal.h"

enum { USUAL_REQUESTS = 64, USUAL_ANSWER = 32, USUAL_PROMPT = 256 };

static const di_bench_column columns[] = {
    {"what", "what", -1, 1},      {"prompt_tokens", "prompt", 0, 1},
    {"rate", "requests/s", 2, 1}, {"load", "load %", 0, 100},
    {"requests", NULL, 0, 1},     {"tokens_per_second", "tokens/s", 0, 1},
    {"mean", "mean ms", 2, 1e3},  {"p50", "p50", 2, 1e3},
    {"p90", "p90", 2, 1e3},       {"p95", "p95", 2, 1e3},
    {"p99", "p99", 2, 1e3},
};

typedef struct load {
    int64_t prompt_tokens; /* 0: from a file */
    int64_t n;
    di_bench_request *requests;
    int32_t *ids;
    di_batch_line *lines; /* of a file, n of them; the prompts are theirs */
    double *values;       /* room for all tokens */
    size_t n_values;
    int64_t longest; /* prompt and answer */
    double seconds;  /* of a run */
} load;

/* ---- What is asked ---- */

static int64_t answer_of(const di_bench *b) {
    return di_args_given(b->args, DI_OPT_MAX_TOKENS) ? di_args_int(b->args, DI_OPT_MAX_TOKENS)
                                                     : USUAL_ANSWER;
}

static int64_t requests_of(const di_bench *b) {
    return di_args_given(b->args, DI_OPT_LIMIT) ? di_args_int(b->args, DI_OPT_LIMIT)
                                                : USUAL_REQUESTS;
}

static int64_t context_of(const di_bench *b) {
    int64_t most = b->config.max_position_embeddings;
    bool given = di_args_given(b->args, DI_OPT_CONTEXT);
    int64_t asked = given ? di_args_int(b->args, DI_OPT_CONTEXT) : most;
    return asked < most ? asked : most;
}

static di_status take_room(load *l, int64_t n, di_error *error) {
    l->n = n;
    l->requests = calloc((size_t)n, sizeof *l->requests);
    return l->requests ? DI_OK : di_fail(error, DI_ERR_MEMORY, "out of memory: requests");
}

static di_status take_times(load *l, di_error *error) {
    int64_t total = 0;
    for (int64_t i = 0; i < l->n; i++) {
        const di_bench_request *r = &l->requests[i];
        total += r->max_tokens;
        if (r->n_ids + r->max_tokens > l->longest) l->longest = r->n_ids + r->max_tokens;
    }
    l->values = calloc((size_t)total, sizeof *l->values);
    double *times = calloc((size_t)total, sizeof *times);
    if (!l->values || !times) {
        free(times);
        return di_fail(error, DI_ERR_MEMORY, "out of memory: times");
    }
    for (int64_t i = 0; i < l->n; i++) {
        l->requests[i].times = times; /* those of the first hold all */
        times += l->requests[i].max_tokens;
    }
    return DI_OK;
}

static di_status make_load(di_bench *b, int64_t prompt, load *l, di_error *error) {
    int64_t n = requests_of(b);
    l->prompt_tokens = prompt;
    DI_TRY(take_room(l, n, error));
    DI_TRY(di_bench_prompt_make(b, 3, n * prompt, &l->ids, error));
    for (int64_t i = 0; i < n; i++) {
        l->requests[i] = (di_bench_request){.ids = l->ids + i * prompt,
                                            .n_ids = prompt,
                                            .max_tokens = answer_of(b),
                                            .seed = (uint64_t)i};
    }
    return take_times(l, error);
}

/* One request of a file. What a server does with it is what is measured: so with the file's own
 * sampling; but bench reads no text, and a request is one answer. */
static di_status read_line(di_batch_line *line, const di_request_env *env, const char *text,
                           size_t size, const char *what, di_error *error) {
    di_error why;
    DI_TRY(di_batch_line_open(line, text, size, what, error));
    di_status status = di_batch_line_read(line, env, &why);
    if (status != DI_OK) return di_fail(error, status, "%s: %s", what, why.message);
    if (line->request.n_choices > 1 || line->request.n_stops > 0) {
        return di_fail(error, DI_ERR_UNSUPPORTED, "%s: %s: bench does not support it; leave it out",
                       what, line->request.n_stops > 0 ? "stop" : "n above 1");
    }
    return DI_OK;
}

/* l->n of the lines at most; then l->n is how many there were. Reading them needs an engine: a
 * small one is opened for it. */
static di_status read_lines(di_bench *b, const di_buffer *in, const char *path, load *l,
                            di_error *error) {
    di_bench_engine settings = di_bench_engine_defaults(1, context_of(b));
    if (settings.context > 32768) settings.context = 32768;
    di_lines lines = {.data = in->data, .size = in->size};
    const di_tokenizer *tokenizer;
    di_engine *engine;
    const char *text;
    size_t size;
    int64_t n = 0;
    DI_TRY(di_bench_open(b, &settings, &engine, error));
    di_status status = di_engine_need_tokenizer(engine, b->directory, &tokenizer, error);
    di_request_env env = di_request_env_of(engine);
    while (status == DI_OK && n < l->n && di_lines_next(&lines, &text, &size)) {
        char what[60];
        snprintf(what, sizeof what, "line %lld of %.30s", (long long)lines.number, path);
        status = read_line(&l->lines[n++], &env, text, size, what, error);
    }
    di_engine_close(engine);
    l->n = n;
    return status;
}

/* As a batch runs it, but that an answer without a length has bench's. */
static di_bench_request request_of(const di_bench *b, di_batch_line *line, int64_t i) {
    int64_t n = (int64_t)line->request.prompts[0].size, room = context_of(b) - n;
    int64_t answer = line->request.max_tokens > 0 ? line->request.max_tokens : answer_of(b);
    if (!line->request.has_seed) line->request.sampling.seed = (uint64_t)i;
    return (di_bench_request){.ids = line->request.prompts[0].data,
                              .n_ids = n,
                              .max_tokens = answer < room ? answer : room,
                              .may_end = true,
                              .sampling = &line->request.sampling,
                              .top_logprobs = line->request.top_logprobs};
}

static int64_t count_lines(const di_buffer *in) {
    di_lines lines = {.data = in->data, .size = in->size};
    const char *text;
    size_t size;
    int64_t n = 0;
    while (di_lines_next(&lines, &text, &size)) n++;
    return n;
}

static di_status read_load(di_bench *b, const char *path, load *l, di_error *error) {
    di_buffer in = DI_BUFFER_EMPTY;
    di_status status;
    DI_TRY_DONE(di_input_file(path, &in, error));
    int64_t n = count_lines(&in);
    if (di_args_given(b->args, DI_OPT_LIMIT) && n > requests_of(b)) n = requests_of(b);
    if (n == 0) {
        status = di_fail(error, DI_ERR_INVALID, "%s holds no requests", path);
        goto done;
    }
    DI_TRY_DONE(take_room(l, n, error));
    l->lines = calloc((size_t)n, sizeof *l->lines);
    if (!l->lines) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory: requests");
        goto done;
    }
    DI_TRY_DONE(read_lines(b, &in, path, l, error));
    for (int64_t i = 0; i < l->n; i++) l->requests[i] = request_of(b, &l->lines[i], i);
    status = take_times(l, error);
done:
    di_buffer_free(&in);
    return status;
}

static void free_load(load *l) {
    for (int64_t i = 0; l->lines && i < l->n; i++) di_batch_line_free(&l->lines[i]);
    if (l->requests) free(l->requests[0].times);
    free(l->lines);
    free(l->requests);
    free(l->ids);
    free(l->values);
}

/* ---- A run ---- */

static void sleep_until(double when) {
    double wait = when - di_seconds();
    if (wait <= 0) return;
    if (wait > 0.05) wait = 0.05; /* Ctrl-C is looked at */
    struct timespec t = {.tv_nsec = (long)(wait * 1e9)};
    nanosleep(&t, NULL);
}

/* Submits request i at due[i]; the wait of a late submission counts, as a client would see it. rate
 * INFINITY: all at once. */
static di_status run_load(di_bench *b, load *l, di_engine *engine, double rate, di_error *error) {
    bool busy = false;
    int64_t next = 0;
    double begin = di_seconds(), due = begin;
    di_engine_forget(engine);
    while (next < l->n || busy) {
        double now = di_seconds();
        while (next < l->n && due <= now) {
            DI_TRY(di_bench_submit(b, engine, &l->requests[next], error));
            l->requests[next].begin = due;
            busy = true;
            if (++next < l->n) due += di_stat_gap(b->seed, (uint64_t)next, rate);
        }
        if (busy) {
            DI_TRY(di_bench_step(engine, &busy, error));
        } else {
            if (di_interrupt_seen()) return di_fail(error, DI_ERR_CANCELLED, "interrupted");
            sleep_until(due);
        }
        di_bench_note(b, "latency: %lld of %lld requests have come", (long long)next,
                      (long long)l->n);
    }
    l->seconds = di_seconds() - begin;
    for (int64_t i = 0; i < l->n; i++) DI_TRY(di_bench_check(&l->requests[i], error));
    return DI_OK;
}

/* ---- What came of it ---- */

typedef enum figure { FIRST_TOKEN, A_TOKEN, BETWEEN_TOKENS, WHOLE, N_FIGURES } figure;

static void collect(load *l, figure f) {
    l->n_values = 0;
    for (int64_t i = 0; i < l->n; i++) {
        const di_bench_request *r = &l->requests[i];
        double decoding = r->last - r->first;
        if (f == FIRST_TOKEN) l->values[l->n_values++] = r->first - r->begin;
        if (f == WHOLE) l->values[l->n_values++] = r->last - r->begin;
        if (f == A_TOKEN && r->n_tokens > 1) {
            l->values[l->n_values++] = decoding / (double)(r->n_tokens - 1);
        }
        for (int64_t t = 1; f == BETWEEN_TOKENS && t < r->n_tokens; t++) {
            l->values[l->n_values++] = r->times[t] - r->times[t - 1];
        }
    }
    di_stat_sort(l->values, l->n_values);
}

static void report(di_bench *b, load *l, double rate, double share) {
    static const char *const names[] = {[FIRST_TOKEN] = "first token",
                                        [A_TOKEN] = "each token",
                                        [BETWEEN_TOKENS] = "between",
                                        [WHOLE] = "whole"};
    double tokens = 0;
    for (int64_t i = 0; i < l->n; i++) tokens += (double)l->requests[i].n_tokens;
    for (int f = 0; f < N_FIGURES; f++) {
        collect(l, (figure)f);
        const double *v = l->values;
        size_t n = l->n_values;
        di_bench_row_of(b,
                        (di_bench_cell[]){DI_CELL_TEXT(names[f]),
                                          DI_CELL(l->prompt_tokens ? (double)l->prompt_tokens
                                                                   : NAN),
                                          DI_CELL(rate), DI_CELL(share), DI_CELL(l->n),
                                          DI_CELL(tokens / l->seconds), DI_CELL(di_stat_mean(v, n)),
                                          DI_CELL(di_stat_quantile(v, n, 0.50)),
                                          DI_CELL(di_stat_quantile(v, n, 0.90)),
                                          DI_CELL(di_stat_quantile(v, n, 0.95)),
                                          DI_CELL(di_stat_quantile(v, n, 0.99))});
    }
}

/* ---- Rates ---- */

/* One rate of --rates: requests a second, or a share of `capacity`. */
static di_status read_rate(const char **at, double capacity, double *rate, di_error *error) {
    char *end;
    errno = 0;
    double value = strtod(*at, &end);
    bool percent = end != *at && *end == '%';
    const char *behind = end + percent;
    bool digit = (**at >= '0' && **at <= '9') || **at == '.';
    if (!digit || errno != 0 || !isfinite(value) || value <= 0 ||
        (*behind != ',' && *behind != '\0')) {
        return di_fail(error, DI_ERR_USAGE,
                       "--rates: '%.40s' is no list of rates above 0, such as 0.5,50%%,80%%", *at);
    }
    *rate = percent ? value / 100 * capacity : value;
    if (!(*rate >= 1e-3 && *rate <= 1e6)) {
        return di_fail(error, DI_ERR_USAGE,
                       "--rates: %g requests a second; 0.001 to 1000000 are accepted", *rate);
    }
    *at = *behind == ',' ? behind + 1 : behind;
    return *behind == ',' && **at == '\0' ? di_fail(error, DI_ERR_USAGE, "--rates ends in a comma")
                                          : DI_OK;
}

static di_status run_rates(di_bench *b, load *l, di_engine *engine, di_error *error) {
    double rate;
    DI_TRY(run_load(b, l, engine, INFINITY, error)); /* brings the weights in */
    DI_TRY(run_load(b, l, engine, INFINITY, error));
    double capacity = (double)l->n / l->seconds;
    report(b, l, capacity, INFINITY);
    for (const char *at = di_args_text(b->args, DI_OPT_RATES); *at;) {
        DI_TRY(read_rate(&at, capacity, &rate, error));
        DI_TRY(run_load(b, l, engine, rate, error));
        report(b, l, rate, rate / capacity);
    }
    return DI_OK;
}

di_status di_bench_check_rates(const di_bench *b, di_error *error) {
    double rate;
    const char *at = di_args_text(b->args, DI_OPT_RATES);
    if (*at == '\0') return di_fail(error, DI_ERR_USAGE, "--rates is empty");
    while (*at) DI_TRY(read_rate(&at, 100, &rate, error));
    return DI_OK;
}

static di_status run_prompts(di_bench *b, int64_t prompt, const char *path, di_error *error) {
    load l = {0};
    di_engine *engine = NULL;
    di_status status = path ? read_load(b, path, &l, error) : make_load(b, prompt, &l, error);
    if (status == DI_OK) {
        di_bench_engine settings =
            di_bench_engine_defaults(di_args_int(b->args, DI_OPT_MAX_BATCH), l.longest);
        settings.default_spec = true;
        status = di_bench_open(b, &settings, &engine, error);
    }
    if (status == DI_OK) status = run_rates(b, &l, engine, error);
    di_engine_close(engine); /* before the requests that it calls back to */
    free_load(&l);
    return status;
}

static int64_t latency_need(const di_bench *b, int64_t length, int64_t most) {
    (void)most;
    return length + answer_of(b);
}

di_status di_bench_latency(di_bench *b, di_error *error) {
    static const int64_t usual[] = {USUAL_PROMPT};
    di_bench_list lengths = {.n = 1}; /* of a file: its own */
    const char *path = di_args_text(b->args, DI_OPT_INPUT);
    if (!path) {
        DI_TRY(
            di_bench_choose_lengths(b, "latency", usual, 1, 1, 1, latency_need, &lengths, error));
    }
    di_bench_table(b, "latency",
                   "requests that arrive at random; the first rows: all at once, which gives 100 % "
                   "load",
                   columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < lengths.n; i++) {
        DI_TRY(run_prompts(b, lengths.values[i], path, error));
    }
    return DI_OK;
}
