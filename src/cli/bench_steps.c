/* prefill, decode, row, gap: what steps cost. */
#include <math.h>
#include <stdlib.h>

#include "cli/bench.h"

enum {
    DECODE_STEPS = 16,
    GROUP_STEPS = 8,
    GAP_STEPS = 64,
    GAP_WARM = 3,
    ROW_CHUNK = 256,
    ROW_CHUNKS = 4,
    ROW_REST = 64, /* of the context in front of the chunks, at least */
    ROW_LEAST = ROW_REST + ROW_CHUNK / 2
};

/* ---- prefill ---- */

static const di_bench_column prefill_columns[] = {
    {"tokens", "tokens", 0, 1},
    {"seconds", "time ms", 2, 1e3},
    {"low", NULL, 0, 1},
    {"high", NULL, 0, 1},
    {"coverage", NULL, 0, 1},
    {"tokens_per_second", "tokens/s", 0, 1},
    {"floor_seconds", "floor ms", 2, 1e3},
    {"floor_share", "of floor %", 1, 100},
    {"samples", NULL, 0, 1},
};

static void prefill_row(di_bench *b, int64_t n, double *samples) {
    double sorted[DI_BENCH_MAX_PAIRS];
    for (int i = 0; i < b->pairs; i++) sorted[i] = samples[i];
    di_stat_sort(sorted, (size_t)b->pairs);
    di_stat_interval t = di_stat_median(sorted, (size_t)b->pairs);
    double floor = di_bench_prefill_floor(b, n, di_args_int(b->args, DI_OPT_CHUNK));
    di_bench_row_of(b, (di_bench_cell[]){DI_CELL(n), DI_CELL(t.median), DI_CELL(t.low),
                                         DI_CELL(t.high), DI_CELL(t.coverage),
                                         DI_CELL((double)n / t.median), DI_CELL(floor),
                                         DI_CELL(floor / t.median),
                                         DI_CELL_SAMPLES(samples, b->pairs)});
}

static di_status prefill_length(di_bench *b, di_engine *engine, int64_t n, int32_t *ids,
                                di_error *error) {
    double samples[DI_BENCH_MAX_PAIRS];
    for (int i = 0; i < b->pairs; i++) {
        di_bench_note(b, "prefill: %lld tokens, run %d of %d", (long long)n, i + 1, b->pairs);
        di_bench_prompt(b, (uint64_t)i, n, ids);
        di_engine_forget(engine);
        DI_TRY(di_bench_first_token(b, engine, ids, n, &samples[i], NULL, error));
    }
    prefill_row(b, n, samples);
    return DI_OK;
}

static int64_t prefill_need(const di_bench *b, int64_t length, int64_t most) {
    (void)b;
    return length + most;
}

di_status di_bench_prefill(di_bench *b, di_error *error) {
    static const int64_t usual[] = {256, 1024, 4096};
    di_bench_list lengths;
    DI_TRY(di_bench_choose_lengths(b, "prefill", usual, 3, 1, 1, prefill_need, &lengths, error));
    int64_t longest = di_bench_largest(&lengths);
    di_bench_engine settings = di_bench_engine_defaults(1, longest + 1);
    di_engine *engine = NULL;
    int32_t *ids = NULL;
    double ignored;
    di_status status;
    DI_TRY_DONE(di_bench_prompt_make(b, 99, longest, &ids, error));
    DI_TRY_DONE(di_bench_open(b, &settings, &engine, error));
    DI_TRY_DONE(di_bench_first_token(b, engine, ids, longest < 64 ? longest : 64, &ignored, NULL,
                                     error)); /* brings the weights in */
    di_bench_table(b, "prefill", "a prompt, alone, from nothing to its first token",
                   prefill_columns, sizeof prefill_columns / sizeof *prefill_columns);
    for (int i = 0; i < lengths.n; i++) {
        DI_TRY_DONE(prefill_length(b, engine, lengths.values[i], ids, error));
    }
done:
    di_engine_close(engine);
    free(ids);
    return status;
}

/* ---- decode ---- */

static const di_bench_column decode_columns[] = {
    {"context", "context", 0, 1},
    {"requests", "requests", 0, 1},
    {"step_seconds", "step ms", 3, 1e3},
    {"low", NULL, 0, 1},
    {"high", NULL, 0, 1},
    {"coverage", NULL, 0, 1},
    {"row_seconds", "a row ms", 3, 1e3},
    {"tokens_per_second", "tokens/s", 0, 1},
    {"floor_seconds", "floor ms", 3, 1e3},
    {"floor_share", "of floor %", 1, 100},
    {"samples", NULL, 0, 1},
};

static void decode_row(di_bench *b, int64_t context, int64_t n, const double *samples,
                       const double *tokens) {
    double sorted[DI_BENCH_MAX_PAIRS];
    for (int i = 0; i < b->pairs; i++) sorted[i] = samples[i];
    di_stat_sort(sorted, (size_t)b->pairs);
    di_stat_interval t = di_stat_median(sorted, (size_t)b->pairs);
    double floor = di_bench_floor(b, (double)n, (double)n);
    di_bench_row_of(b, (di_bench_cell[]){DI_CELL(context), DI_CELL(n), DI_CELL(t.median),
                                         DI_CELL(t.low), DI_CELL(t.high), DI_CELL(t.coverage),
                                         DI_CELL(t.median / (double)n),
                                         DI_CELL(di_stat_mean(tokens, (size_t)b->pairs) / t.median),
                                         DI_CELL(floor), DI_CELL(floor / t.median),
                                         DI_CELL_SAMPLES(samples, b->pairs)});
}

static di_status decode_batch(di_bench *b, di_engine *engine, int64_t context, int64_t n,
                              di_error *error) {
    double samples[DI_BENCH_MAX_PAIRS], tokens[DI_BENCH_MAX_PAIRS];
    di_bench_crowd crowd;
    di_bench_note(b, "decode: %lld requests at %lld tokens", (long long)n, (long long)context);
    di_status status = di_bench_crowd_start(b, &crowd, engine, n, context, error);
    for (int i = 0; i < b->pairs && status == DI_OK; i++) {
        status = di_bench_crowd_steps(&crowd, DECODE_STEPS, &samples[i], &tokens[i], error);
    }
    di_bench_crowd_end(&crowd);
    if (status == DI_OK) decode_row(b, context, n, samples, tokens);
    return status;
}

/* Drafts would make a step one of more rows than requests, which is what speculation measures. */
static di_bench_engine crowd_engine(int64_t n, int64_t context) {
    di_bench_engine settings = di_bench_engine_defaults(n, context);
    settings.spec = "off";
    return settings;
}

static int64_t decode_need(const di_bench *b, int64_t context, int64_t most) {
    int64_t steps = (int64_t)b->pairs * (DECODE_STEPS + 1);
    return context + di_bench_crowd_room(b, most, context, steps);
}

static di_status decode_context(di_bench *b, int64_t context, const di_bench_list *batches,
                                di_error *error) {
    int64_t most = di_bench_largest(batches);
    di_bench_engine settings = crowd_engine(most, decode_need(b, context, most));
    di_engine *engine;
    DI_TRY(di_bench_open(b, &settings, &engine, error));
    di_status status = DI_OK;
    for (int i = 0; i < batches->n && status == DI_OK; i++) {
        status = decode_batch(b, engine, context, batches->values[i], error);
    }
    di_engine_close(engine);
    return status;
}

di_status di_bench_decode(di_bench *b, di_error *error) {
    static const int64_t usual[] = {1, 2, 4, 8, 16, 32, 64}, usual_context[] = {512};
    di_bench_list batches = di_bench_choose(&b->batches, usual, 7);
    di_bench_list contexts;
    DI_TRY(di_bench_choose_lengths(b, "decode", usual_context, 1, 1, di_bench_largest(&batches),
                                   decode_need, &contexts, error));
    di_bench_table(b, "decode", "a step in which every request gets one token", decode_columns,
                   sizeof decode_columns / sizeof *decode_columns);
    for (int i = 0; i < contexts.n; i++) {
        DI_TRY(decode_context(b, contexts.values[i], &batches, error));
    }
    return DI_OK;
}

/* ---- row ---- */

static const di_bench_column row_columns[] = {
    {"context", "context", 0, 1},
    {"requests", "requests", 0, 1},
    {"decode_row_seconds", "decode row ms", 4, 1e3},
    {"chunk_row_seconds", "chunk row ms", 4, 1e3},
    {"ratio", "ratio", 3, 1},
    {"low", "low", 3, 1},
    {"high", "high", 3, 1},
    {"coverage", NULL, 0, 1},
    {"decode_samples", NULL, 0, 1},
    {"chunk_samples", NULL, 0, 1},
};

/* One context: crowds of every size on engines of their own, and one engine that reads chunks. */
typedef struct rows {
    int64_t context, prefix, new_tokens; /* chunks of 256 around the context */
    di_bench_list batches;
    di_engine *reader;
    int32_t *ids; /* [prefix + new_tokens] */
    struct {
        di_engine *engine;
        di_bench_crowd crowd;
        double samples[DI_BENCH_MAX_PAIRS];
    } sides[DI_BENCH_MAX_LIST];
    double chunk[DI_BENCH_MAX_PAIRS];
} rows;

static int64_t row_new_tokens(int64_t context) {
    int64_t chunks = 2 * (context - ROW_REST) / ROW_CHUNK;
    return (chunks < ROW_CHUNKS ? chunks : ROW_CHUNKS) * ROW_CHUNK;
}

static int64_t crowd_need(const di_bench *b, int64_t context, int64_t n) {
    return context + di_bench_crowd_room(b, n, context, (int64_t)b->pairs * (GROUP_STEPS + 1));
}

static int64_t row_need(const di_bench *b, int64_t context, int64_t most) {
    int64_t reader = context + row_new_tokens(context) / 2 + 1;
    int64_t crowd = crowd_need(b, context, most);
    return reader > crowd ? reader : crowd;
}

static di_status open_rows(di_bench *b, rows *r, di_error *error) {
    double ignored;
    di_bench_engine settings = crowd_engine(1, r->prefix + r->new_tokens + 1);
    settings.chunk = ROW_CHUNK;
    DI_TRY(di_bench_prompt_make(b, 7, r->prefix + r->new_tokens, &r->ids, error));
    DI_TRY(di_bench_open(b, &settings, &r->reader, error));
    DI_TRY(di_bench_first_token(b, r->reader, r->ids, r->prefix, &ignored, NULL, error));
    for (int i = 0; i < r->batches.n; i++) {
        int64_t n = r->batches.values[i];
        settings = crowd_engine(n, crowd_need(b, r->context, n));
        di_bench_note(b, "row: %lld requests at %lld tokens", (long long)n, (long long)r->context);
        DI_TRY(di_bench_open(b, &settings, &r->sides[i].engine, error));
        DI_TRY(
            di_bench_crowd_start(b, &r->sides[i].crowd, r->sides[i].engine, n, r->context, error));
    }
    return DI_OK;
}

/* The chunks behind the prefix, whose pages and windows are kept, so that nothing else is read. */
static di_status read_chunks(di_bench *b, rows *r, int pair, di_error *error) {
    double seconds;
    int64_t cached;
    di_bench_prompt(b, 1000 + (uint64_t)pair, r->new_tokens, r->ids + r->prefix);
    DI_TRY(di_bench_first_token(b, r->reader, r->ids, r->prefix + r->new_tokens, &seconds, &cached,
                                error));
    if (cached != r->prefix) {
        return di_fail(error, DI_ERR_USAGE,
                       "row: %lld of %lld tokens were found in the cache; it needs prefix-cache "
                       "and window-cache",
                       (long long)cached, (long long)r->prefix);
    }
    r->chunk[pair] = seconds / (double)r->new_tokens;
    return DI_OK;
}

static di_status measure_rows(di_bench *b, rows *r, di_error *error) {
    for (int pair = 0; pair < b->pairs; pair++) {
        di_bench_note(b, "row: pair %d of %d", pair + 1, b->pairs);
        DI_TRY(read_chunks(b, r, pair, error));
        for (int i = 0; i < r->batches.n; i++) {
            double seconds;
            DI_TRY(di_bench_crowd_steps(&r->sides[i].crowd, GROUP_STEPS, &seconds, NULL, error));
            di_bench_settle(seconds);
            r->sides[i].samples[pair] = seconds / (double)r->batches.values[i];
        }
    }
    return DI_OK;
}

static void row_rows(di_bench *b, rows *r) {
    double scratch[DI_BENCH_MAX_PAIRS];
    for (int i = 0; i < r->batches.n; i++) {
        double *samples = r->sides[i].samples;
        di_stat_pairs p = di_stat_compare(samples, r->chunk, (size_t)b->pairs, scratch);
        di_bench_row_of(b, (di_bench_cell[]){DI_CELL(r->context), DI_CELL(r->batches.values[i]),
                                             DI_CELL(p.a), DI_CELL(p.b), DI_CELL(p.ratio.median),
                                             DI_CELL(p.ratio.low), DI_CELL(p.ratio.high),
                                             DI_CELL(p.ratio.coverage),
                                             DI_CELL_SAMPLES(samples, b->pairs),
                                             DI_CELL_SAMPLES(r->chunk, b->pairs)});
    }
}

static void free_rows(rows *r) {
    for (int i = 0; i < r->batches.n; i++) {
        di_bench_crowd_end(&r->sides[i].crowd);
        di_engine_close(r->sides[i].engine);
    }
    di_engine_close(r->reader);
    free(r->ids);
    free(r);
}

static di_status row_context(di_bench *b, int64_t context, const di_bench_list *batches,
                             di_error *error) {
    if (context < ROW_LEAST) {
        return di_fail(error, DI_ERR_USAGE, "row: a context of %d tokens at least is needed",
                       ROW_LEAST);
    }
    rows *r = calloc(1, sizeof *r);
    if (!r) return di_fail(error, DI_ERR_MEMORY, "out of memory: row");
    r->batches = *batches;
    r->context = context;
    r->new_tokens = row_new_tokens(context);
    r->prefix = context - r->new_tokens / 2;
    di_status status = open_rows(b, r, error);
    if (status == DI_OK) status = measure_rows(b, r, error);
    if (status == DI_OK) row_rows(b, r);
    free_rows(r);
    return status;
}

di_status di_bench_row(di_bench *b, di_error *error) {
    static const int64_t usual[] = {1, 32}, usual_context[] = {1024};
    di_bench_list batches = di_bench_choose(&b->batches, usual, 2);
    di_bench_list contexts;
    DI_TRY(di_bench_choose_lengths(b, "row", usual_context, 1, ROW_LEAST,
                                   di_bench_largest(&batches), row_need, &contexts, error));
    di_bench_table(b, "row",
                   "a row of a decode step against one of a 256-row prefill chunk around the same "
                   "context",
                   row_columns, sizeof row_columns / sizeof *row_columns);
    for (int i = 0; i < contexts.n; i++) {
        DI_TRY(row_context(b, contexts.values[i], &batches, error));
    }
    return DI_OK;
}

/* ---- gap ---- */

static const di_bench_column gap_columns[] = {
    {"context", "context", 0, 1},    {"requests", "requests", 0, 1},
    {"steps_ahead", "ahead", 0, 1},  {"step_seconds", "step ms", 3, 1e3},
    {"gap_share", "gap %", 2, 100},  {"host_share", "host %", 2, 100},
    {"share", "together %", 2, 100}, {"low", "low", 2, 100},
    {"high", "high", 2, 100},        {"coverage", NULL, 0, 1},
    {"samples", NULL, 0, 1},
};

/* Two engines in turn: steps enqueued ahead, and not. */
typedef struct gaps {
    di_engine *engine;
    di_bench_crowd crowd;
    int ahead;
    double step[DI_BENCH_MAX_PAIRS], gap[DI_BENCH_MAX_PAIRS], host[DI_BENCH_MAX_PAIRS];
    double share[DI_BENCH_MAX_PAIRS];
} gaps;

static int64_t gap_need(const di_bench *b, int64_t context, int64_t n) {
    int64_t steps = (int64_t)b->pairs * (GAP_STEPS + GAP_WARM + 2);
    return context + di_bench_crowd_room(b, n, context, steps);
}

static di_status open_gap(di_bench *b, gaps *g, int ahead, int64_t n, int64_t context,
                          di_error *error) {
    di_bench_engine settings = di_bench_engine_defaults(n, gap_need(b, context, n));
    settings.steps_ahead = g->ahead = ahead;
    DI_TRY(di_bench_open(b, &settings, &g->engine, error));
    return di_bench_crowd_start(b, &g->crowd, g->engine, n, context, error);
}

/* The pause since this side's last turn belongs to the first steps, which are not counted. */
static di_status measure_gap(gaps *g, int pair, di_error *error) {
    double seconds;
    DI_TRY(di_bench_crowd_steps(&g->crowd, GAP_WARM, &seconds, NULL, error));
    di_engine_stats before = di_engine_get_stats(g->engine);
    DI_TRY(di_bench_crowd_steps(&g->crowd, GAP_STEPS, &seconds, NULL, error));
    di_bench_settle(seconds);
    di_engine_stats after = di_engine_get_stats(g->engine);
    double step = after.step_seconds - before.step_seconds;
    g->step[pair] = step / (double)(after.steps - before.steps);
    g->gap[pair] = (after.gap_seconds - before.gap_seconds) / step;
    g->host[pair] = (after.host_seconds - before.host_seconds) / step;
    g->share[pair] = g->gap[pair] + g->host[pair];
    return DI_OK;
}

static void gap_row(di_bench *b, const gaps *g, int64_t n, int64_t context) {
    double sorted[DI_BENCH_MAX_PAIRS];
    size_t pairs = (size_t)b->pairs;
    double step = di_stat_median_of(g->step, pairs, sorted);
    double gap = di_stat_median_of(g->gap, pairs, sorted);
    double host = di_stat_median_of(g->host, pairs, sorted);
    for (int i = 0; i < b->pairs; i++) sorted[i] = g->share[i];
    di_stat_sort(sorted, (size_t)b->pairs);
    di_stat_interval share = di_stat_median(sorted, (size_t)b->pairs);
    di_bench_row_of(b, (di_bench_cell[]){DI_CELL(context), DI_CELL(n), DI_CELL(g->ahead),
                                         DI_CELL(step), DI_CELL(gap), DI_CELL(host),
                                         DI_CELL(share.median), DI_CELL(share.low),
                                         DI_CELL(share.high), DI_CELL(share.coverage),
                                         DI_CELL_SAMPLES(g->share, b->pairs)});
}

static di_status gap_batch(di_bench *b, gaps *sides, int n_sides, int64_t n, int64_t context,
                           di_error *error) {
    for (int i = 0; i < n_sides; i++) {
        di_bench_note(b, "gap: %lld requests", (long long)n);
        DI_TRY(open_gap(b, &sides[i], n_sides - 1 - i, n, context, error));
    }
    for (int pair = 0; pair < b->pairs; pair++) {
        for (int i = 0; i < n_sides; i++) DI_TRY(measure_gap(&sides[i], pair, error));
    }
    for (int i = 0; i < n_sides; i++) gap_row(b, &sides[i], n, context);
    return DI_OK;
}

di_status di_bench_gap(di_bench *b, di_error *error) {
    static const int64_t usual[] = {16}, usual_context[] = {512};
    di_bench_list batches = di_bench_choose(&b->batches, usual, 1);
    di_bench_list contexts;
    DI_TRY(di_bench_choose_lengths(b, "gap", usual_context, 1, 1, di_bench_largest(&batches),
                                   gap_need, &contexts, error));
    int n_sides = 1 + di_engine_options_defaults().steps_ahead;
    di_bench_table(b, "gap",
                   "of the time of a decode step: the device idle between steps, and the engine "
                   "thread's processor time",
                   gap_columns, sizeof gap_columns / sizeof *gap_columns);
    for (int i = 0; i < batches.n * contexts.n; i++) {
        gaps *sides = calloc(2, sizeof *sides);
        if (!sides) return di_fail(error, DI_ERR_MEMORY, "out of memory: gap");
        di_status status = gap_batch(b, sides, n_sides, batches.values[i / contexts.n],
                                     contexts.values[i % contexts.n], error);
        for (int j = 0; j < n_sides; j++) {
            di_bench_crowd_end(&sides[j].crowd);
            di_engine_close(sides[j].engine);
        }
        free(sides);
        if (status != DI_OK) return status;
    }
    return DI_OK;
}
