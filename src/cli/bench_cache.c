/* cache and cut: what a prompt costs when its beginning is known, and without the layers above the
 * cut.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "model/model.h"

enum { NEW_TOKENS = 64 };

/* ---- cache ---- */

static const di_bench_column cache_columns[] = {
    {"replay", "replay", -1, 1},
    {"start", "start", -1, 1},
    {"tokens", "tokens", 0, 1},
    {"cached_tokens", "cached", 0, 1},
    {"replayed_rows", "replayed", 0, 1},
    {"cold_seconds", "cold ms", 1, 1e3},
    {"warm_seconds", "warm ms", 1, 1e3},
    {"ratio", "warm/cold %", 2, 100},
    {"low", "low", 2, 100},
    {"high", "high", 2, 100},
    {"coverage", NULL, 0, 1},
    {"cold_samples", NULL, 0, 1},
    {"warm_samples", NULL, 0, 1},
};

typedef struct cache_run {
    const char *replay;
    bool snapshot; /* windows come from a snapshot, else by replay */
    int64_t n;
    int32_t *ids; /* [n + NEW_TOKENS] */
    di_engine *engine;
    double cold[DI_BENCH_MAX_PAIRS], warm[DI_BENCH_MAX_PAIRS];
    int64_t cached; /* of the last pair */
    uint64_t replayed;
} cache_run;

/* Cold: the prompt. Warm: the same and new tokens behind it, as a next turn has them. */
static di_status cache_pair(di_bench *b, cache_run *r, int pair, di_error *error) {
    di_bench_prompt(b, 2000 + (uint64_t)pair, NEW_TOKENS, r->ids + r->n);
    di_engine_forget(r->engine);
    DI_TRY(di_bench_first_token(b, r->engine, r->ids, r->n, &r->cold[pair], NULL, error));
    uint64_t before = di_engine_get_stats(r->engine).replayed_rows;
    DI_TRY(di_bench_first_token(b, r->engine, r->ids, r->n + NEW_TOKENS, &r->warm[pair], &r->cached,
                                error));
    r->replayed = di_engine_get_stats(r->engine).replayed_rows - before;
    if (!r->snapshot || (r->cached == r->n && r->replayed == 0)) return DI_OK;
    return di_fail(error, DI_ERR_USAGE,
                   "cache: with --replay %s, %lld of %lld tokens were found and %llu rows "
                   "replayed, so this was no start from a snapshot; it needs --prefix-cache on, a "
                   "--window-cache of some MB, and a longer prompt than a page",
                   r->replay, (long long)r->cached, (long long)r->n,
                   (unsigned long long)r->replayed);
}

static void cache_row(di_bench *b, const cache_run *r) {
    double scratch[DI_BENCH_MAX_PAIRS];
    di_stat_pairs p = di_stat_compare(r->warm, r->cold, (size_t)b->pairs, scratch);
    di_bench_row_of(b,
                    (di_bench_cell[]){DI_CELL_TEXT(r->replay),
                                      DI_CELL_TEXT(r->snapshot ? "snapshot" : "replay"),
                                      DI_CELL(r->n), DI_CELL(r->cached), DI_CELL(r->replayed),
                                      DI_CELL(p.b), DI_CELL(p.a), DI_CELL(p.ratio.median),
                                      DI_CELL(p.ratio.low), DI_CELL(p.ratio.high),
                                      DI_CELL(p.ratio.coverage), DI_CELL_SAMPLES(r->cold, b->pairs),
                                      DI_CELL_SAMPLES(r->warm, b->pairs)});
}

static di_status cache_mode(di_bench *b, cache_run *r, di_error *error) {
    di_bench_engine settings = di_bench_engine_defaults(1, r->n + NEW_TOKENS + 1);
    settings.replay = r->replay;
    settings.window = r->snapshot ? -1 : 0;
    DI_TRY(di_bench_prompt_make(b, 11, r->n + NEW_TOKENS, &r->ids, error));
    DI_TRY(di_bench_open(b, &settings, &r->engine, error));
    for (int pair = 0; pair < b->pairs; pair++) {
        di_bench_note(b, "cache: %s from %s, %lld tokens, pair %d of %d", r->replay,
                      r->snapshot ? "a snapshot" : "replay", (long long)r->n, pair + 1, b->pairs);
        DI_TRY(cache_pair(b, r, pair, error));
    }
    cache_row(b, r);
    return DI_OK;
}

static bool has_cut(const di_bench *b) {
    const di_config *c = &b->config;
    int32_t cut = di_model_cut_layer(c);
    for (int32_t i = 0; i < c->n_engram_layers; i++) {
        if (c->engram_layer_ids[i] >= cut) return false;
    }
    return cut >= 0 && cut < c->num_hidden_layers - 1;
}

/* In stable, a snapshot serves a prompt whose cut begins behind it alone (see the engine). */
static bool has_snapshot(const di_bench *b, const char *replay) {
    return strcmp(replay, "stable") != 0 || NEW_TOKENS >= b->config.sliding_window;
}

static int64_t cache_need(const di_bench *b, int64_t length, int64_t most) {
    (void)b;
    return length + NEW_TOKENS + most;
}

di_status di_bench_cache(di_bench *b, di_error *error) {
    const char *modes[] = {"exact", "stable", "bounded"};
    static const int64_t usual[] = {16000};
    di_bench_list lengths;
    int n_modes = has_cut(b) ? 3 : 1;
    if (di_args_given(b->args, DI_OPT_REPLAY)) {
        modes[0] = di_args_text(b->args, DI_OPT_REPLAY);
        n_modes = 1;
    }
    if (strcmp(di_args_text(b->args, DI_OPT_PREFIX_CACHE), "off") == 0) {
        return di_fail(error, DI_ERR_USAGE, "cache: it needs --prefix-cache on");
    }
    DI_TRY(di_bench_choose_lengths(b, "cache", usual, 1, 1, 1, cache_need, &lengths, error));
    di_bench_table(b, "cache",
                   "first token of a prompt: cold, and with 64 new tokens behind the cached prompt",
                   cache_columns, sizeof cache_columns / sizeof *cache_columns);
    for (int i = 0; i < lengths.n * n_modes * 2; i++) {
        if (i % 2 == 1 && !has_snapshot(b, modes[i / 2 % n_modes])) continue;
        cache_run *r = calloc(1, sizeof *r);
        if (!r) return di_fail(error, DI_ERR_MEMORY, "out of memory: cache");
        r->n = lengths.values[i / (2 * n_modes)];
        r->replay = modes[i / 2 % n_modes];
        r->snapshot = i % 2 == 1;
        di_status status = cache_mode(b, r, error);
        di_engine_close(r->engine);
        free(r->ids);
        free(r);
        if (status != DI_OK) return status;
    }
    return DI_OK;
}

/* ---- cut ---- */

static const di_bench_column cut_columns[] = {
    {"replay", "replay", -1, 1},
    {"tokens", "tokens", 0, 1},
    {"exact_seconds", "exact ms", 1, 1e3},
    {"seconds", "time ms", 1, 1e3},
    {"saved", "saved %", 1, 100},
    {"low", "low", 1, 100},
    {"high", "high", 1, 100},
    {"coverage", NULL, 0, 1},
    {"exact_samples", NULL, 0, 1},
    {"samples", NULL, 0, 1},
};

typedef struct cut_run {
    int64_t n;
    int32_t *ids;
    di_engine *engines[3];
    double seconds[3][DI_BENCH_MAX_PAIRS];
} cut_run;

static const char *const cut_modes[] = {"exact", "stable", "bounded"};

static di_status cut_measure(di_bench *b, cut_run *r, di_error *error) {
    di_bench_engine settings = di_bench_engine_defaults(1, r->n + 1);
    DI_TRY(di_bench_prompt_make(b, 13, r->n, &r->ids, error));
    for (int m = 0; m < 3; m++) {
        settings.replay = cut_modes[m];
        DI_TRY(di_bench_open(b, &settings, &r->engines[m], error));
    }
    for (int pair = 0; pair < b->pairs; pair++) {
        for (int m = 0; m < 3; m++) {
            di_bench_note(b, "cut: %s, %lld tokens, run %d of %d", cut_modes[m], (long long)r->n,
                          pair + 1, b->pairs);
            di_engine_forget(r->engines[m]);
            DI_TRY(di_bench_first_token(b, r->engines[m], r->ids, r->n, &r->seconds[m][pair], NULL,
                                        error));
        }
    }
    return DI_OK;
}

static void cut_rows(di_bench *b, const cut_run *r) {
    double scratch[DI_BENCH_MAX_PAIRS];
    for (int m = 1; m < 3; m++) {
        di_stat_pairs p = di_stat_compare(r->seconds[m], r->seconds[0], (size_t)b->pairs, scratch);
        di_bench_row_of(b, (di_bench_cell[]){DI_CELL_TEXT(cut_modes[m]), DI_CELL(r->n),
                                             DI_CELL(p.b), DI_CELL(p.a),
                                             DI_CELL(1 - p.ratio.median), DI_CELL(1 - p.ratio.high),
                                             DI_CELL(1 - p.ratio.low), DI_CELL(p.ratio.coverage),
                                             DI_CELL_SAMPLES(r->seconds[0], b->pairs),
                                             DI_CELL_SAMPLES(r->seconds[m], b->pairs)});
    }
}

static int64_t cut_need(const di_bench *b, int64_t length, int64_t most) {
    (void)b;
    return length + most;
}

di_status di_bench_cut(di_bench *b, di_error *error) {
    static const int64_t usual[] = {16000};
    di_bench_list lengths;
    if (!has_cut(b)) {
        return di_fail(error, DI_ERR_UNSUPPORTED, "cut: this model has no layers above a cut");
    }
    DI_TRY(di_bench_choose_lengths(b, "cut", usual, 1, 1, 1, cut_need, &lengths, error));
    di_bench_table(b, "cut", "a cold prompt with and without the layers above the cut", cut_columns,
                   sizeof cut_columns / sizeof *cut_columns);
    for (int i = 0; i < lengths.n; i++) {
        cut_run *r = calloc(1, sizeof *r);
        if (!r) return di_fail(error, DI_ERR_MEMORY, "out of memory: cut");
        r->n = lengths.values[i];
        di_status status = cut_measure(b, r, error);
        if (status == DI_OK) cut_rows(b, r);
        for (int m = 0; m < 3; m++) di_engine_close(r->engines[m]);
        free(r->ids);
        free(r);
        if (status != DI_OK) return status;
    }
    return DI_OK;
}
