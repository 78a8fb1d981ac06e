/* What the queue of a host backend costs: bench_queue [MODEL_DIR]
 *
 * Every number is a median over rounds in which the backend itself and the same behind a queue take
 * turns. First operations that do next to nothing, then decode steps of a model (models/demo without
 * an argument): waited for one by one, which is the queue's worst case, and enqueued one behind the
 * other, which is what it is for. `gap`: time in which the workers were done and had no next step.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/queue.h"
#include "model/model.h"

enum { ROUNDS = 61, OPS = 4000, STEPS = 8, MAX_BATCH = 16 };

typedef struct side {
    di_backend *backend;
    di_model *model;
    di_context *context;
} side;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(di_status status, const di_error *error) {
    if (status == DI_OK) return;
    fprintf(stderr, "bench_queue: %s\n", error->message);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

static void open_side(side *s, bool queue, const char *directory) {
    di_error error;
    const di_cpu_options cpu = {0, -1, ~0u};
    must(di_backend_create_cpu(DI_NUMERICS_RELEASE, &cpu, &s->backend, &error), &error);
    if (queue) must(di_backend_create_queue(s->backend, &s->backend, &error), &error);
    di_model_options load = di_model_options_defaults();
    must(di_model_open(directory, s->backend, &load, &s->model, &error), &error);
    const di_context_options options = {.n_slots = MAX_BATCH,
                                        .max_context = 2048,
                                        .max_rows = MAX_BATCH,
                                        .max_out = MAX_BATCH};
    must(di_context_create(s->model, &options, &s->context, &error), &error);
}

static void close_side(side *s) {
    di_context_destroy(s->context);
    di_model_close(s->model);
    s->backend->destroy(s->backend);
}

static void sync_side(side *s) {
    di_error error;
    must(di_backend_sync(s->backend, &error), &error);
}

/* Seconds until n calls returned and until they are done. */
static void run_ops(side *s, int n, double *called, double *done) {
    const di_tally_args nothing = {0};
    double begin = now_s();
    for (int i = 0; i < n; i++) s->backend->ops->tally(s->backend->stream, &nothing);
    *called = now_s() - begin;
    sync_side(s);
    *done = now_s() - begin;
}

static void bench_ops(side sides[2]) {
    double called[2][ROUNDS], done[2][ROUNDS], one[2][ROUNDS], unused;
    for (int r = 0; r < ROUNDS; r++) {
        for (int i = 0; i < 2; i++) {
            run_ops(&sides[i], OPS, &called[i][r], &done[i][r]);
            run_ops(&sides[i], 1, &unused, &one[i][r]);
        }
    }
    double call = 1e9 / OPS * (median(called[1]) - median(called[0]));
    double through = 1e9 / OPS * (median(done[1]) - median(done[0]));
    printf("an operation: %+.1f ns to enqueue, %+.1f ns to its end; one alone and waited for: "
           "%+.1f us\n",
           call, through, 1e6 * (median(one[1]) - median(one[0])));
}

typedef struct timing {
    double called, done, gap; /* seconds a step */
} timing;

/* STEPS decode steps of n sequences. Gaps count from the second step on, when the stream runs. */
static timing run_steps(side *s, int32_t n, bool ahead) {
    di_error error;
    di_row rows[MAX_BATCH];
    int32_t outs[MAX_BATCH];
    for (int32_t i = 0; i < n; i++) {
        rows[i] = (di_row){100 + i, i, 0};
        outs[i] = i;
    }
    di_step step = {.rows = rows, .n_rows = n, .out_rows = outs, .n_out = n};
    timing t = {0};
    double begin = now_s(), idle = 0;
    uint64_t first = 0;
    for (int i = 0; i < STEPS; i++) {
        double before = now_s();
        must(di_forward(s->context, &step, &error), &error);
        t.called += (now_s() - before) / STEPS;
        if (i == 0) first = s->backend->mark(s->backend->stream);
        if (!ahead) sync_side(s);
        if (i == 1) {
            must(s->backend->wait(s->backend->stream, first, &error), &error);
            idle = di_backend_queue_stats(s->backend).idle_s;
        }
    }
    sync_side(s);
    t.done = (now_s() - begin) / STEPS;
    t.gap = (di_backend_queue_stats(s->backend).idle_s - idle) / (STEPS - 2);
    return t;
}

static void bench_steps(side sides[2], int32_t n, bool ahead) {
    double done[2][ROUNDS], called[ROUNDS], gap[ROUNDS], ratio[ROUNDS];
    for (int r = -1; r < ROUNDS; r++) { /* one round brings the weights in */
        int at = r < 0 ? 0 : r;
        for (int i = 0; i < 2; i++) {
            for (int32_t slot = 0; slot < n; slot++) di_context_reset(sides[i].context, slot);
            timing t = run_steps(&sides[i], n, ahead);
            done[i][at] = t.done;
            called[at] = t.called;
            gap[at] = t.gap;
        }
        ratio[at] = done[1][at] / done[0][at];
    }
    printf(
        "decode, %2d sequences, %-11s %7.1f us a step, queued %7.1f (ratio %.3f); enqueuing takes "
        "%5.1f us, gap %5.2f us\n",
        n, ahead ? "ahead:" : "one by one:", 1e6 * median(done[0]), 1e6 * median(done[1]),
        median(ratio), 1e6 * median(called), 1e6 * median(gap));
}

int main(int argc, char **argv) {
    const char *directory = argc > 1 ? argv[1] : "models/demo";
    side sides[2];
    for (int i = 0; i < 2; i++) open_side(&sides[i], i == 1, directory);
    bench_ops(sides);
    for (int32_t n = 1; n <= MAX_BATCH; n *= 4) {
        bench_steps(sides, n, false);
        bench_steps(sides, n, true);
    }
    for (int i = 0; i < 2; i++) close_side(&sides[i]);
    return 0;
}
