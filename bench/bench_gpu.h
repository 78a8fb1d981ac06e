/* What the parts of bench_gpu share: bench_gpu.c (order), bench_gpu_options.c, bench_gpu_model.c (layers,
 * weights), bench_gpu_crowd.c (sequences), bench_gpu_work.c (floors), bench_gpu_profile.c (time by
 * operation), bench_gpu_decode.c, bench_gpu_idle.c, bench_gpu_prefill.c, bench_gpu_verify.c (sections),
 * bench_gpu_graph.cu (kernels of a step).
 */
#ifndef DI_BENCH_GPU_H
#define DI_BENCH_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "bench_gpu_graph.h"
#include "engine/engine.h"

/* Section start has two prompts of FIRST_PROMPT tokens at most. */
enum { FIRST_PROMPT = 128, START_ROOM = 2 * FIRST_PROMPT };
enum { MAX_SIZES = 8, MAX_SET = 16, MAX_REPEATS = 200, MAX_BATCH = 512, WARM_STEPS = 4 };

typedef enum weights_mode { WEIGHTS_COPIED, WEIGHTS_UPLOADED, WEIGHTS_OWN } weights_mode;

typedef struct bench {
    /* options, see bench_gpu_options.c */
    const char *config_name, *sections;
    bool cuda;
    di_numerics numerics;
    weights_mode weights;
    int32_t layers;                /* 0: as many as fit */
    int32_t listed[DI_MAX_LAYERS]; /* which ones, when n_listed = layers > 0; else a run */
    int32_t n_listed;
    int32_t draft_layers, experts, threads, device;
    int32_t chunk, repeats;
    int32_t context_tokens, prompt_tokens; /* not given: 0 until options_settle() */
    int32_t n_sizes, sizes[MAX_SIZES];     /* rows of decode steps */
    int64_t engram_rows;
    uint64_t seed;
    const char *set[MAX_SET];
    int n_set;

    di_backend *backend;
    di_buffer json;      /* config.json of the layers that are there */
    int32_t first_layer; /* of the full config; -1: all of them, or a list */
    di_model *model;
    const di_config *config;
    double bytes_per_s, flop_per_s; /* measured */
    double empty_s;                 /* an empty kernel inside a graph; 0 where there are none */
    double cublas_flop_per_s;       /* its product of matrices; 0 where there is no cuBLAS */
    double backend_s, made_s, bound_s;
    di_error error;
} bench;

/* Stops the program with the bench's error unless the status is DI_OK. */
void must(const bench *b, di_status status);
_Noreturn void stop(const char *why);
/* The same for what is asked for and cannot be had: exit status 2. */
_Noreturn void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
double now_s(void); /* of the host */

typedef struct quartiles {
    double low, median, high;
} quartiles;
quartiles quartiles_of(const double *values, int32_t n); /* 1 <= n <= MAX_REPEATS */

/* ---- bench_gpu_options.c ---- */

/* Defaults, and what the command says; stops the program where that is wrong. */
void options_read(bench *b, int argc, char **argv);
/* Lengths that were not given: the usual ones, or what the config has room for. */
void options_settle(bench *b, const di_config *config);
bool wants(const bench *b, const char *section);

/* ---- bench_gpu_model.c, bench_gpu_weights.c ---- */

/* The backend, and the config of as many layers as fit. */
void model_choose(bench *b);
/* Weights are made and bound; b->made_s and b->bound_s say how long that took. */
void model_open(bench *b);
void model_close(bench *b);

/* The shared weights: see bench_gpu_weights.c. */
void weights_make(bench *b, uint64_t host_from);
void weights_share(bench *b);  /* from now on bind() gives them */
void weights_settle(bench *b); /* the model is open */
void weights_report(const bench *b);
void weights_free(void);

/* ---- bench_gpu_crowd.c ---- */

/* Sequences of equal length but different tokens, which decode. */
typedef struct crowd {
    di_context *context;
    int32_t n_slots, pages_per_slot;
    int64_t room; /* tokens that each may grow by */
    uint64_t drawn;
} crowd;

/* What a context for n_slots sequences of `tokens` tokens that grow by `room` is created with. */
di_context_options crowd_options(const bench *b, int32_t n_slots, int64_t tokens, int64_t room,
                                 bool drafts);
/* The context, and n_slots sequences of b->context_tokens tokens, each with a token sampled. */
void crowd_open(bench *b, crowd *c, int32_t n_slots, int64_t room, bool drafts);
void crowd_close(crowd *c);
int32_t crowd_some_id(const bench *b, crowd *c);
/* Tokens that decode are drawn at temperature 1, so that sequences stay apart. */
di_sample_params crowd_params(const bench *b, int32_t slot);

/* Keeps the device busy for a few milliseconds, in which the host can enqueue what is measured
 * then. Nothing on a CPU, where operations take longer than enqueueing them. */
void stall(bench *b);
void stall_longer(void); /* from now on twice as long, within reason */

/* ---- bench_gpu_work.c ---- */

enum { PART_DENSE, PART_EXPERTS, PART_ATTENTION, PART_INDEX, PART_HEAD, N_PARTS };
typedef struct work {
    double bytes[N_PARTS], flops[N_PARTS];
} work;

double work_bytes(const work *w);
double work_flops(const work *w);
double work_seconds(const bench *b, const work *w);
/* Dense weights once, products of n_rows rows. */
void work_add_dense(const bench *b, work *w, double n_rows);
/* The experts that were read, in all layers together. */
void work_add_experts(const bench *b, work *w, double n_rows, double n_experts);
/* One row at a position: keys and indexer's keys of its sequence, read for it alone. */
void work_add_attention(const bench *b, work *w, int64_t position);
void work_add_head(const bench *b, work *w, double n_out);
void work_explain(void);

/* Counts, by a tap on the router, the experts that steps of a context read. */
typedef struct expert_count {
    bench *b;
    int32_t *picks; /* [layers][rows][k] of the last step */
    int32_t n_rows;
} expert_count;
void experts_watch(bench *b, expert_count *count, di_context *context, int32_t max_rows);
/* Of the last step, which was waited for: summed over layers. */
double experts_read(const expert_count *count);
void experts_unwatch(expert_count *count, di_context *context);

/* ---- bench_gpu_profile.c ---- */

/* From begin to end every operation that is called is measured by the device's clock, in pieces of
 * so many calls that the host stays ahead of the device: `run` does the same work again for each
 * piece. `pieces` false: all calls in one run, for work whose operations take long. */
typedef void (*profile_run)(void *user);
enum { MAX_COLUMNS = MAX_SIZES };
void profile_measure(bench *b, int32_t column, profile_run run, void *user, int32_t repeats,
                     bool pieces);
/* Microseconds and share of each operation, for columns 0 .. n - 1 with these headings. */
void profile_print(const char *const headings[], int32_t n);

/* ---- sections ---- */

void section_decode(bench *b);
void section_idle(bench *b);
di_core_options idle_options(const bench *b); /* its engine's */
void section_prefill(bench *b);
void section_verify(bench *b);
int64_t decode_room(const bench *b);
int64_t verify_room(const bench *b);
int32_t verify_slots(const bench *b);

#endif
