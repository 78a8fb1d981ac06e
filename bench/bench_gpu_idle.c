/* bench_gpu: what the device waits for between the steps of the engine.
 *
 * The whole engine, not the network alone: BATCH answers that decode, scheduled, built, enqueued and
 * delivered step by step, with steps ahead as `serve` has them, and without drafts. What a caller does with
 * the tokens is not in it: they are counted. Gaps inside a step are none of these: section decode sets a
 * step's empty kernels apart.
 *
 * Of BLOCKS blocks of --repeats steps every second one is traced, so that the same run says what tracing
 * costs.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench_gpu.h"
#include "engine/step_trace.h"

enum { BATCH = 32, PROMPT = 1024, BLOCKS = 32, QUIET = 4, LARGEST = 5 };

typedef struct idle {
    bench *b;
    di_core *core;
    di_trace trace;
    int64_t n_tokens;
    int32_t n_ended;
} idle;

static bool on_token(void *user, const di_core_token *token) {
    (void)token;
    ((idle *)user)->n_tokens++;
    return true;
}

static void on_end(void *user, const di_core_result *result) {
    if (result->finish == DI_FINISH_ERROR) stop(result->message);
    ((idle *)user)->n_ended++;
}

static void on_step(void *user, const di_step_trace *step) {
    di_trace_add(&((idle *)user)->trace, step);
}

static int32_t prompt_tokens(const bench *b) {
    return b->context_tokens < PROMPT ? b->context_tokens : PROMPT;
}

/* Tokens that an answer may have: while the prompts of others are read, until it is warm, and then. */
static int32_t room(const bench *b) {
    int32_t rows = b->chunk > BATCH ? b->chunk : BATCH;
    return 2 * BATCH * prompt_tokens(b) / rows + BATCH + 2 * QUIET + (BLOCKS + 1) * b->repeats + 1;
}

di_core_options idle_options(const bench *b) {
    di_core_options o = di_core_options_defaults(b->config);
    o.max_batch = BATCH;
    o.max_rows = b->chunk > BATCH ? b->chunk : BATCH;
    o.max_context = prompt_tokens(b) + room(b);
    o.n_pages = BATCH * (int32_t)((o.max_context + DI_PAGE_TOKENS - 1) / DI_PAGE_TOKENS);
    o.spec = DI_SPEC_OFF;
    o.steps_ahead = 1;
    o.prefix_cache = false;
    return o;
}

static void submit(idle *d) {
    crowd some = {0};
    int32_t n = prompt_tokens(d->b);
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    if (!ids) stop("no memory for prompts");
    for (int32_t i = 0; i < BATCH; i++) {
        uint64_t id;
        for (int32_t k = 0; k < n; k++) ids[k] = crowd_some_id(d->b, &some);
        const di_core_request request = {.ids = ids,
                                         .n_ids = n,
                                         .max_tokens = room(d->b),
                                         .sampling = crowd_params(d->b, i),
                                         .n = 1,
                                         .ignore_end_token = true,
                                         .user = d,
                                         .on_token = on_token,
                                         .on_end = on_end};
        must(d->b, di_core_submit(d->core, &request, &id, &d->b->error));
    }
    free(ids);
}

static void step(idle *d) {
    bool busy;
    must(d->b, di_core_step(d->core, &busy, &d->b->error));
    if (d->n_ended > 0) stop("an answer ended before the measurement did");
}

/* Until all of them decode, and a block more: then it is known what a gap costs. */
static void warm_up(idle *d) {
    uint64_t prompt_rows;
    do {
        prompt_rows = di_core_get_stats(d->core).prompt_rows;
        for (int32_t i = 0; i < QUIET; i++) step(d);
    } while (di_core_get_stats(d->core).prompt_rows > prompt_rows);
    for (int32_t i = 0; i < d->b->repeats; i++) step(d);
}

/* Seconds of a step, the median over blocks with the trace and without. */
static void measure(idle *d, double *with, double *without) {
    double seconds[2][BLOCKS / 2];
    for (int32_t i = 0; i < BLOCKS; i++) {
        di_core_trace(d->core, i % 2 ? on_step : NULL, d);
        double begin = now_s();
        for (int32_t k = 0; k < d->b->repeats; k++) step(d);
        seconds[i % 2][i / 2] = (now_s() - begin) / d->b->repeats;
    }
    di_core_trace(d->core, NULL, NULL);
    *without = quartiles_of(seconds[0], BLOCKS / 2).median;
    *with = quartiles_of(seconds[1], BLOCKS / 2).median;
}

/* ---- The report ---- */

typedef struct totals {
    double device_s, gap_s, enqueue_s, parts[DI_GAP_PARTS];
    int32_t n, n_ahead;
    int32_t largest[LARGEST], n_largest; /* by their gaps, in falling order */
} totals;

static void keep_largest(const idle *d, totals *t, int32_t i, double shift) {
    double seconds = di_trace_gap(&d->trace, i, shift).seconds;
    int32_t at = t->n_largest;
    while (at > 0 && di_trace_gap(&d->trace, t->largest[at - 1], shift).seconds < seconds) at--;
    if (at == LARGEST) return;
    if (t->n_largest < LARGEST) t->n_largest++;
    for (int32_t k = t->n_largest - 1; k > at; k--) t->largest[k] = t->largest[k - 1];
    t->largest[at] = i;
}

/* The first step of a block followed one that was not traced. */
static totals add_up(const idle *d, double shift) {
    totals t = {0};
    for (int32_t i = 1; i < di_trace_count(&d->trace); i++) {
        const di_step_trace *s = di_trace_at(&d->trace, i);
        if (s->step != di_trace_at(&d->trace, i - 1)->step + 1) continue;
        if (s->blocks != BATCH || s->rows != BATCH) stop("a step that does not decode them all");
        di_gap gap = di_trace_gap(&d->trace, i, shift);
        t.n++;
        t.n_ahead += s->ahead;
        t.device_s += s->end - s->begin;
        t.gap_s += gap.seconds;
        t.enqueue_s += gap.enqueue_s;
        for (int part = 0; part < DI_GAP_PARTS; part++) t.parts[part] += gap.parts[part];
        if (gap.seconds > 0) keep_largest(d, &t, i, shift);
    }
    return t;
}

static void print_parts(const double parts[DI_GAP_PARTS]) {
    for (int part = 0; part < DI_GAP_PARTS; part++) {
        printf("%s %s %.1f", part ? "," : "", di_gap_part_name((di_gap_part)part),
               parts[part] * 1e6);
    }
    printf("\n");
}

static void report(const idle *d) {
    double shift = di_trace_shift(&d->trace);
    totals t = add_up(d, shift);
    double all = t.device_s + t.gap_s;
    printf(
        "  %d steps, %d of them ahead, of %.3f ms on the device; between them it was idle for "
        "%.2f %% of the time, and, while a step that was not ahead was enqueued, for %.2f %% more "
        "at most\n",
        (int)t.n, (int)t.n_ahead, t.device_s / t.n * 1e3, 100 * t.gap_s / all,
        100 * t.enqueue_s / all);
    printf("  what it waited for, us in all:");
    print_parts(t.parts);
    for (int32_t k = 0; k < t.n_largest; k++) {
        const di_step_trace *s = di_trace_at(&d->trace, t.largest[k]);
        di_gap gap = di_trace_gap(&d->trace, t.largest[k], shift);
        printf("  gap of %.1f us before step %llu, %s:", gap.seconds * 1e6,
               (unsigned long long)s->step, s->ahead ? "ahead" : "not ahead");
        print_parts(gap.parts);
    }
}

void section_idle(bench *b) {
    idle d = {.b = b};
    const di_kv_name fingerprint = {{0}};
    const di_core_options options = idle_options(b);
    double with, without, begin = now_s();
    printf("\nidle: the engine, %d answers that decode\n", BATCH);
    must(b, di_trace_init(&d.trace, BLOCKS / 2 * b->repeats, &b->error));
    must(b, di_core_create(b->model, &options, &fingerprint, "bench", b->backend->name, &d.core,
                           &b->error));
    submit(&d);
    warm_up(&d);
    printf("  contexts of %d tokens, filled and warmed up in %.1f s\n", (int)prompt_tokens(b),
           now_s() - begin);
    measure(&d, &with, &without);
    report(&d);
    printf("  a step takes %.4f ms with the trace, %.4f ms without: ratio %.4f\n", with * 1e3,
           without * 1e3, with / without);
    fflush(stdout);
    di_core_destroy(d.core);
    di_trace_deinit(&d.trace);
}
