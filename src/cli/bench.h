/* What the scenarios of bench share: settings, tables, engines, requests with a stopwatch.
 *
 * A scenario is one function. It opens the engines that it needs, measures, and gives rows to a
 * table; each row is printed at once, so that Ctrl-C loses only what was being measured, and kept
 * for the JSON document. Times are seconds throughout, shown in ms. What is compared runs in turn
 * (A, B, A, B, ...), because the speed of a machine drifts.
 */
#ifndef DI_CLI_BENCH_H
#define DI_CLI_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/bench_stat.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "model/config.h"
#include "model/synth_memory.h"

/* ---- Settings ---- */

enum { DI_BENCH_MAX_LIST = 32, DI_BENCH_MAX_PAIRS = 1000, DI_BENCH_MAX_BATCH = 1024 };

typedef struct di_bench_list {
    int64_t values[DI_BENCH_MAX_LIST];
    int n;
} di_bench_list;

typedef struct di_bench_column {
    const char *key;  /* in JSON */
    const char *head; /* of the table; NULL: in JSON alone */
    int decimals;     /* of a number; -1: text, shown to the left */
    double scale;     /* what a number is multiplied with to be shown */
} di_bench_column;

/* Of what computes: NAN where it is not known. */
typedef struct di_bench_peak {
    double bytes_per_s; /* read from memory; of a GPU: copied, reads and writes together */
    double flop_per_s;  /* float32 FMA; of a GPU: bf16 matrix products */
} di_bench_peak;

typedef struct di_bench {
    const di_args *args;
    const char *directory; /* of the model */
    di_synth_memory *random;
    di_config config;
    const char *backend; /* that computes, "auto" no more */
    char gpu[160];       /* its name; "": none computes */
    di_bench_peak peak;
    di_progress loading;
    uint64_t seed;
    int pairs;
    bool json, quiet, noted;
    double last_note;
    di_bench_list lengths, batches; /* n 0: not given */
    di_buffer tables, left_out;     /* of the JSON document */
    const di_bench_column *columns; /* of the table that is open */
    int n_columns, n_rows, n_tables;
} di_bench;

/* "1,2,4": whole numbers of [min, max], into *list; `option` names them in messages. */
di_status di_bench_read_list(const char *option, const char *text, int64_t min, int64_t max,
                             di_bench_list *list, di_error *error);
/* The list given, else the defaults. */
di_bench_list di_bench_choose(const di_bench_list *given, const int64_t *defaults, int n);
int64_t di_bench_largest(const di_bench_list *list);

/* Tokens of context that a scenario needs for prompts of `length` and `most` requests at once. */
typedef int64_t (*di_bench_need)(const di_bench *b, int64_t length, int64_t most);
/* --prompt-tokens, else the scenario's usual lengths, cut to what the model, or --context, takes.
 * DI_ERR_UNSUPPORTED with the scenario's name when that is less than `least`. */
di_status di_bench_choose_lengths(const di_bench *b, const char *scenario, const int64_t *usual,
                                  int n, int64_t least, int64_t most, di_bench_need need,
                                  di_bench_list *out, di_error *error);

/* ---- Scenarios: bench_*.c ---- */

di_status di_bench_prefill(di_bench *b, di_error *error);
di_status di_bench_decode(di_bench *b, di_error *error);
di_status di_bench_row(di_bench *b, di_error *error);
di_status di_bench_gap(di_bench *b, di_error *error);
di_status di_bench_latency(di_bench *b, di_error *error);
di_status di_bench_cache(di_bench *b, di_error *error);
di_status di_bench_cut(di_bench *b, di_error *error);
di_status di_bench_speculation(di_bench *b, di_error *error);
di_status di_bench_sampled(di_bench *b, di_error *error);

/* Whether --rates is what latency takes: before anything is measured. */
di_status di_bench_check_rates(const di_bench *b, di_error *error);

/* ---- Tables: bench_table.c ---- */

typedef struct di_bench_cell {
    const char *text; /* or a number, or n samples (JSON alone) */
    double number;
    const double *samples;
    int n;
} di_bench_cell;

#define DI_CELL(x)                                                                                 \
    { .number = (double)(x) }
#define DI_CELL_TEXT(x)                                                                            \
    { .text = (x) }
#define DI_CELL_SAMPLES(x, count)                                                                  \
    { .samples = (x), .n = (count) }

/* `title` says in a line what the numbers are. Columns must live as long as the table is open. */
void di_bench_table(di_bench *b, const char *name, const char *title,
                    const di_bench_column *columns, int n_columns);
/* One cell a column. A number that is not finite is null, and "-" in the table. */
void di_bench_row_of(di_bench *b, const di_bench_cell *cells);
void di_bench_table_end(di_bench *b);
/* What is being measured, on a terminal as a line that the next output replaces. */
void di_bench_note(di_bench *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void di_bench_note_end(di_bench *b);

/* ---- What computes: bench_device.c ---- */

/* Chooses the backend for all engines of the run, so that none of them computes elsewhere, and
 * measures what it can do: a CPU only where `floors` are to be printed. Needs b->config. */
di_status di_bench_device(di_bench *b, bool floors, di_error *error);

/* ---- Machine and model: bench_facts.c ---- */

/* Appends the members command, model, machine and options of the document. */
void di_bench_facts(const di_bench *b, di_buffer *out);
/* The same for people: two lines. */
void di_bench_facts_text(const di_bench *b, di_buffer *out);

/* ---- Floors: bench_floor.c ---- */

/* The least time of one step of `rows` rows, logits for `outs` of them: every weight that it needs
 * read once at the measured bandwidth, or two operations a weight and row at the measured peak,
 * whichever takes longer. Experts: as many as rows would pick at random. Attention and caches are
 * left out. NAN when the machine's speed is not known. */
double di_bench_floor(const di_bench *b, double rows, double outs);
/* The same of a prompt of n tokens in chunks: the last chunk's last row alone has logits. */
double di_bench_prefill_floor(const di_bench *b, int64_t n, int64_t chunk);
double di_bench_weight_bytes(const di_bench *b); /* of all tensors */

/* ---- Engines and requests: bench_load.c ---- */

typedef struct di_bench_engine {
    int64_t max_batch;
    int64_t context;     /* tokens that are needed; cut to the model's by the library's own check */
    const char *replay;  /* NULL: the option's */
    int64_t window;      /* bytes of the window cache; -1: the option's */
    const char *spec;    /* NULL: the option's; when it is not given: off, or with default_spec */
    bool default_spec;   /* what the library chooses */
    const char *sampled; /* spec_sampling; NULL: the option's */
    int steps_ahead;     /* -1: the library's */
    int64_t chunk;       /* 0: the option's */
} di_bench_engine;

/* The options for the rest. */
di_bench_engine di_bench_engine_defaults(int64_t max_batch, int64_t context);
di_status di_bench_open(di_bench *b, const di_bench_engine *settings, di_engine **out,
                        di_error *error);

/* n ids that look like text to an engine: a function of the seed and `key`. */
void di_bench_prompt(const di_bench *b, uint64_t key, int64_t n, int32_t *ids);
/* The same in memory of its own, which the caller frees. */
di_status di_bench_prompt_make(const di_bench *b, uint64_t key, int64_t n, int32_t **ids,
                               di_error *error);

typedef struct di_bench_request {
    const int32_t *ids; /* must stay until it has ended */
    int64_t n_ids, max_tokens;
    bool may_end;      /* at the end token; else that is never sampled */
    float temperature; /* 0: greedy; negative: the model's own sampling */
    uint64_t seed;
    const di_sampling *sampling; /* NULL: the model's, with temperature and seed of above */
    int32_t top_logprobs;
    double *times; /* of each token, room for max_tokens; may be NULL */
    /* measured */
    uint64_t id;
    double begin, first, last; /* submission; tokens */
    int64_t n_tokens, n_cached;
    uint64_t digest; /* of the tokens */
    bool running, failed;
    char message[200];
} di_bench_request;

di_status di_bench_submit(di_bench *b, di_engine *engine, di_bench_request *request,
                          di_error *error);
/* One step; DI_ERR_CANCELLED after Ctrl-C. */
di_status di_bench_step(di_engine *engine, bool *busy, di_error *error);
/* Steps until nothing runs. */
di_status di_bench_drain(di_engine *engine, di_error *error);
/* One prompt alone: seconds from its submission to its first token, which is its only one. */
di_status di_bench_first_token(di_bench *b, di_engine *engine, const int32_t *ids, int64_t n,
                               double *seconds, int64_t *n_cached, di_error *error);
/* DI_ERR_INVALID with its message when the request failed. */
di_status di_bench_check(const di_bench_request *request, di_error *error);

/* Requests that decode together, for as long as they are asked to. */
typedef struct di_bench_crowd {
    di_engine *engine;
    di_bench_request *requests;
    int32_t *ids;
    int64_t n;
} di_bench_crowd;

/* Tokens of context that a crowd of n needs beyond its prompts for `steps` measured steps. */
int64_t di_bench_crowd_room(const di_bench *b, int64_t n, int64_t prompt, int64_t steps);
/* Submits n prompts of `length` tokens and steps until all decode. End it in any case. */
di_status di_bench_crowd_start(di_bench *b, di_bench_crowd *crowd, di_engine *engine, int64_t n,
                               int64_t length, di_error *error);
/* Seconds and tokens (may be NULL) of one of n_steps steps, after one that is not measured. */
di_status di_bench_crowd_steps(di_bench_crowd *crowd, int n_steps, double *seconds, double *tokens,
                               di_error *error);
/* Lets a step that is in flight end, before another engine is measured. */
void di_bench_settle(double step_seconds);
void di_bench_crowd_end(di_bench_crowd *crowd);

#endif
