/* bench_gpu: steps that decode, a row of each of n sequences.
 *
 * As the engine runs them: a step is enqueued before the one ahead of it is read. A step's time is
 * from the end of the one before it to its own end, by the device's clock.
 */
#include <stdio.h>
#include <string.h>

#include "bench_gpu.h"

enum { PROFILE_REPEATS = 3, MAX_PIECES = 30, FLIGHTS = 2 }; /* MAX_PIECES: of a step's profile */

typedef struct flight {
    int32_t rows[MAX_BATCH], tokens[MAX_BATCH];
    float logprobs[MAX_BATCH];
    double end;
    uint64_t mark;
} flight;

typedef struct decode {
    bench *b;
    crowd c;
    int32_t n;        /* sequences that take part: the first ones */
    int64_t position; /* of slot 0's newest row */
    flight flights[FLIGHTS];
} decode;

/* Steps before those that are timed, until clocks have settled: what ran before, a prompt or a larger
 * size, leaves them lower than a row by itself does. */
enum { MOST_WARM = 100 };
static const double WARM_S = 0.25;

int64_t decode_room(const bench *b) {
    int64_t timed = 2 * (MOST_WARM + WARM_STEPS + (int64_t)b->repeats);
    return b->n_sizes * (timed + 4 + MAX_PIECES * PROFILE_REPEATS);
}

static void enqueue(decode *d, flight *f) {
    di_decode blocks[MAX_BATCH];
    di_sample_params params[MAX_BATCH];
    bench *b = d->b;
    for (int32_t i = 0; i < d->n; i++) {
        blocks[i] = (di_decode){.slot = i};
        params[i] = crowd_params(b, i);
    }
    const di_step step = {.blocks = blocks, .n_blocks = d->n, .params = params};
    const di_fetch to = {f->rows, f->tokens, f->logprobs, NULL};
    must(b, di_forward(d->c.context, &step, &b->error));
    di_context_stamp(d->c.context, &f->end);
    di_context_fetch(d->c.context, &to);
    f->mark = di_context_mark(d->c.context);
}

static void read_back(decode *d, flight *f) {
    must(d->b, di_context_reach(d->c.context, f->mark, &d->b->error));
    for (int32_t i = 0; i < d->n; i++) {
        if (f->tokens[i] < 0) stop("a decode step's logits are not finite");
        di_context_settle(d->c.context, i, 1, 1);
    }
}

static void one_step(void *user) {
    decode *d = user;
    enqueue(d, &d->flights[0]);
    read_back(d, &d->flights[0]);
}

/* Seconds of each of b->repeats steps. */
static quartiles measure(decode *d) {
    double seconds[MAX_REPEATS], before = 0, begin = now_s();
    int32_t n = d->b->repeats, all = WARM_STEPS + n;
    for (int32_t i = 0; i < MOST_WARM && now_s() - begin < WARM_S; i++) one_step(d);
    enqueue(d, &d->flights[0]);
    for (int32_t i = 0; i < all; i++) {
        flight *f = &d->flights[i % FLIGHTS];
        if (i + 1 < all) enqueue(d, &d->flights[(i + 1) % FLIGHTS]);
        read_back(d, f);
        if (i >= WARM_STEPS) seconds[i - WARM_STEPS] = f->end - before;
        before = f->end;
    }
    return quartiles_of(seconds, n);
}

typedef struct figures {
    quartiles graphs, plain;
    work useful;
    double experts; /* a layer */
    int32_t kernels, others;
} figures;

static work useful_work(decode *d, double *experts) {
    expert_count count;
    work w = {0};
    experts_watch(d->b, &count, d->c.context, d->n);
    one_step(d);
    double read = experts_read(&count);
    experts_unwatch(&count, d->c.context);
    work_add_dense(d->b, &w, d->n);
    work_add_experts(d->b, &w, d->n, read);
    for (int32_t i = 0; i < d->n; i++)
        work_add_attention(d->b, &w, di_context_length(d->c.context, i) - 1);
    work_add_head(d->b, &w, d->n);
    *experts = read / d->b->config->num_hidden_layers;
    return w;
}

/* Kernels, copies and fills of a step, as its graph has them. */
static void count_nodes(decode *d, figures *f) {
    f->kernels = f->others = 0;
#ifdef BENCH_CUDA
    di_backend *backend = d->b->backend;
    bool (*record)(di_stream *, const uint64_t[2]) = backend->record;
    void (*recorded)(di_stream *) = backend->recorded;
    if (!d->b->cuda) return;
    (void)graph_counted();
    backend->record = graph_count_record;
    backend->recorded = graph_count_recorded;
    one_step(d);
    backend->record = record;
    backend->recorded = recorded;
    graph_nodes nodes = graph_counted();
    f->kernels = nodes.kernels;
    f->others = nodes.others;
#else
    (void)d;
#endif
}

static void measure_size(decode *d, figures *f) {
    di_backend *backend = d->b->backend;
    bool (*record)(di_stream *, const uint64_t[2]) = backend->record;
    f->graphs = measure(d);
    backend->record = NULL;
    f->plain = measure(d);
    backend->record = record;
    count_nodes(d, f);
    f->useful = useful_work(d, &f->experts);
}

static void print_figures(const bench *b, int32_t rows, const figures *f) {
    double work_s = work_seconds(b, &f->useful), empty_s = f->kernels * b->empty_s;
    double floor = work_s + empty_s;
    bool memory = work_bytes(&f->useful) / b->bytes_per_s > work_flops(&f->useful) / b->flop_per_s;
    printf("  %4d %9.3f (%.3f .. %.3f) %9.1f %8.3f = %7.3f + %6.3f (%d) %7.2f %9.3f  %s: %.3f GB, "
           "%.1f GFLOP, %.1f experts a layer; %d copies and fills\n",
           (int)rows, f->graphs.median * 1e3, f->graphs.low * 1e3, f->graphs.high * 1e3,
           rows / f->graphs.median, floor * 1e3, work_s * 1e3, empty_s * 1e3, (int)f->kernels,
           floor / f->graphs.median, f->plain.median * 1e3, memory ? "bytes" : "operations",
           work_bytes(&f->useful) * 1e-9, work_flops(&f->useful) * 1e-9, f->experts,
           (int)f->others);
    fflush(stdout);
}

/* Each part's own floor, to hold the operations' times against. */
static void print_parts(const bench *b, const figures f[]) {
    static const char *const names[N_PARTS] = {"dense weights", "experts", "attention", "index",
                                               "head"};
    printf("  floors by part, us:");
    for (int part = 0; part < N_PARTS; part++) {
        printf("%s %s", part ? ";" : "", names[part]);
        for (int32_t i = 0; i < b->n_sizes; i++) {
            work w = {0};
            w.bytes[part] = f[i].useful.bytes[part];
            w.flops[part] = f[i].useful.flops[part];
            printf(" %.1f", work_seconds(b, &w) * 1e6);
        }
    }
    printf("\n");
}

void section_decode(bench *b) {
    static decode d;
    static figures f[MAX_SIZES];
    char text[MAX_SIZES][24];
    const char *headings[MAX_SIZES];
    int32_t most = 0;
    d.b = b;
    for (int32_t i = 0; i < b->n_sizes; i++) most = b->sizes[i] > most ? b->sizes[i] : most;
    printf("\ndecode\n");
    crowd_open(b, &d.c, most, decode_room(b), false);
    work_explain();
    printf("  rows   step ms (quartiles)      tokens/s floor ms = work + empty kernels (number) "
           "ratio  without graphs ms\n");
    for (int32_t i = 0; i < b->n_sizes; i++) {
        d.n = b->sizes[i];
        measure_size(&d, &f[i]);
        print_figures(b, d.n, &f[i]);
    }
    for (int32_t i = 0; i < b->n_sizes; i++) {
        d.n = b->sizes[i];
        profile_measure(b, i, one_step, &d, PROFILE_REPEATS, true);
        snprintf(text[i], sizeof text[i], "%d rows", (int)b->sizes[i]);
        headings[i] = text[i];
    }
    profile_print(headings, b->n_sizes);
    print_parts(b, f);
    printf("  contexts grew from %d to at most %lld tokens\n", (int)b->context_tokens,
           (long long)di_context_length(d.c.context, 0));
    crowd_close(&d.c);
}
