/* speculation and sampled: the speed of decoding with drafts and without, on texts of tasks.
 *
 * Every side has its engine. So many requests as are asked for run all the time: when one ends, the
 * next prompt begins, until the first end after the last prompt was begun. Every prompt has been
 * read before, so that its beginning is in the cache. Speed: of one request at a time, the tokens
 * behind each answer's first over the time from the first to the last of them; of several, all
 * tokens of the run over its time, what is left of their prompts to read included, for it is read
 * in the steps that decode. One run of each side that does not count goes before.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench_tasks.h"
#include "cli/terminal.h"

enum { USUAL_ANSWER = 128, USUAL_LINES = 32, LEAST_REQUESTS = 8, MAX_SIDES = 5 };

static const di_bench_column columns[] = {
    {"task", "task", -1, 1},
    {"requests", "requests", 0, 1},
    {"sampling", "sampling", -1, 1},
    {"spec", "drafts", -1, 1},
    {"same_tokens", "same", -1, 1},
    {"tokens_per_second", "tokens/s", 1, 1},
    {"speed_of", NULL, -1, 1}, /* "decoding" or "run": what tokens_per_second is */
    {"accepted_length", "length", 2, 1},
    {"drafted", NULL, 0, 1},
    {"verified", NULL, 0, 1},
    {"accepted", NULL, 0, 1},
    {"speed_up", "against off", 3, 1},
    {"low", "low", 3, 1},
    {"high", "high", 3, 1},
    {"of_best", "of the best", 3, 1},
    {"of_best_low", NULL, 0, 1},
    {"of_best_high", NULL, 0, 1},
    {"coverage", NULL, 0, 1},
    {"samples", NULL, 0, 1},
};

typedef struct side {
    const char *sampling, *spec; /* sampling: greedy, coupled, reject */
    di_engine *engine;
    di_bench_request *requests; /* [n_requests] */
    double speed[DI_BENCH_MAX_PAIRS];
    di_engine_stats stats; /* of the measured runs */
    bool same;             /* its whole answers are those of off */
} side;

typedef struct contest {
    const di_bench_task *task;
    int64_t at_once, n_requests, answer;
    side sides[MAX_SIDES];
    int n_sides;
} contest;

/* ---- A run ---- */

static di_status submit(di_bench *b, contest *c, side *s, int64_t i, di_error *error) {
    const di_ids *prompt = &c->task->prompts[i % c->task->n];
    s->requests[i] = (di_bench_request){.ids = prompt->data,
                                        .n_ids = (int64_t)prompt->size,
                                        .max_tokens = c->answer,
                                        .may_end = !c->task->text,
                                        .temperature = strcmp(s->sampling, "greedy") == 0 ? 0 : -1,
                                        .seed = (uint64_t)i};
    return di_bench_submit(b, s->engine, &s->requests[i], error);
}

/* Runs until so few are left that they are not `at_once` any more. */
static di_status run(di_bench *b, contest *c, side *s, double *seconds, di_error *error) {
    int64_t begun = 0, running = 0;
    bool busy;
    double begin = di_seconds();
    while (begun < c->n_requests || running >= c->at_once) {
        for (; running < c->at_once && begun < c->n_requests; begun++, running++) {
            DI_TRY(submit(b, c, s, begun, error));
        }
        DI_TRY(di_bench_step(s->engine, &busy, error));
        running = 0;
        for (int64_t i = 0; i < begun; i++) running += s->requests[i].running;
    }
    *seconds = di_seconds() - begin;
    return DI_OK;
}

/* What is left of a run that took run_seconds is dropped. */
static di_status finish(contest *c, side *s, double run_seconds, double *speed, di_error *error) {
    double tokens = 0, all_tokens = 0, seconds = 0;
    for (int64_t i = 0; i < c->n_requests; i++) {
        di_bench_request *r = &s->requests[i];
        DI_TRY(di_bench_check(r, error));
        all_tokens += (double)r->n_tokens;
        if (r->n_tokens > 1) {
            tokens += (double)(r->n_tokens - 1);
            seconds += r->last - r->first;
        }
        if (!r->running) continue;
        r->digest = 0; /* its answer is not whole */
        di_engine_cancel(s->engine, r->id);
    }
    *speed = c->at_once == 1 ? tokens / seconds : all_tokens / run_seconds;
    return di_bench_drain(s->engine, error);
}

static void add_stats(di_engine_stats *sum, const di_engine_stats *before,
                      const di_engine_stats *after) {
    sum->drafted += after->drafted - before->drafted;
    sum->verified += after->verified - before->verified;
    sum->accepted += after->accepted - before->accepted;
    sum->draft_blocks += after->draft_blocks - before->draft_blocks;
}

/* Pair -1 warms up: costs of steps and the calibration are learned, and it does not count. */
static di_status measure(di_bench *b, contest *c, side *s, int pair, di_error *error) {
    double speed, seconds;
    di_engine_stats before = di_engine_get_stats(s->engine);
    di_status status = run(b, c, s, &seconds, error);
    if (status == DI_OK) status = finish(c, s, seconds, &speed, error);
    if (status != DI_OK || pair < 0) return status;
    s->speed[pair] = speed;
    di_engine_stats after = di_engine_get_stats(s->engine);
    add_stats(&s->stats, &before, &after);
    for (int64_t i = 0; i < c->n_requests; i++) {
        uint64_t mine = s->requests[i].digest, off = c->sides[0].requests[i].digest;
        if (mine != 0 && off != 0 && mine != off) s->same = false;
    }
    return DI_OK;
}

/* ---- A contest ---- */

static di_status open_side(di_bench *b, contest *c, side *s, di_error *error) {
    double ignored;
    di_bench_engine settings =
        di_bench_engine_defaults(c->at_once, c->task->longest + c->answer + 1);
    settings.spec = s->spec;
    settings.sampled = strcmp(s->sampling, "reject") == 0 ? "reject" : "coupled";
    s->same = true;
    s->requests = calloc((size_t)c->n_requests, sizeof *s->requests);
    if (!s->requests) return di_fail(error, DI_ERR_MEMORY, "out of memory: requests");
    DI_TRY(di_bench_open(b, &settings, &s->engine, error));
    for (int64_t i = 0; i < c->task->n && i < c->n_requests; i++) {
        const di_ids *prompt = &c->task->prompts[i];
        DI_TRY(di_bench_first_token(b, s->engine, prompt->data, (int64_t)prompt->size, &ignored,
                                    NULL, error));
    }
    return DI_OK;
}

static di_status run_contest(di_bench *b, contest *c, di_error *error) {
    for (int i = 0; i < c->n_sides; i++) DI_TRY(open_side(b, c, &c->sides[i], error));
    for (int pair = -1; pair < b->pairs; pair++) {
        for (int i = 0; i < c->n_sides; i++) {
            di_bench_note(b, "%s: %lld requests, %s %s, run %d of %d", c->task->name,
                          (long long)c->at_once, c->sides[i].sampling, c->sides[i].spec, pair + 1,
                          b->pairs);
            DI_TRY(measure(b, c, &c->sides[i], pair, error));
        }
    }
    return DI_OK;
}

/* Off or fixed, whichever is faster by its median: what scheduled is held against. (The faster one
 * of each pair would be a mark that noise raises.) */
static const side *best_of(const contest *c, size_t n, double *scratch) {
    const side *best = &c->sides[0];
    for (int s = 1; s < c->n_sides; s++) {
        if (strcmp(c->sides[s].spec, "fixed") != 0) continue;
        double mine = di_stat_median_of(c->sides[s].speed, n, scratch);
        if (mine > di_stat_median_of(best->speed, n, scratch)) best = &c->sides[s];
    }
    return best;
}

static void report(di_bench *b, const contest *c) {
    double scratch[DI_BENCH_MAX_PAIRS];
    size_t n = (size_t)b->pairs;
    const side *best = best_of(c, n, scratch);
    for (int i = 0; i < c->n_sides; i++) {
        const side *s = &c->sides[i];
        di_stat_pairs off = di_stat_compare(s->speed, c->sides[0].speed, n, scratch);
        di_stat_pairs top = di_stat_compare(s->speed, best->speed, n, scratch);
        double steps = (double)s->stats.draft_blocks;
        di_bench_row_of(b,
                        (di_bench_cell[]){DI_CELL_TEXT(c->task->name), DI_CELL(c->at_once),
                                          DI_CELL_TEXT(s->sampling), DI_CELL_TEXT(s->spec),
                                          DI_CELL_TEXT(s->same ? "yes" : "no"), DI_CELL(off.a),
                                          DI_CELL_TEXT(c->at_once == 1 ? "decoding" : "run"),
                                          DI_CELL(steps > 0 ? 1 + (double)s->stats.accepted / steps
                                                            : NAN),
                                          DI_CELL(s->stats.drafted), DI_CELL(s->stats.verified),
                                          DI_CELL(s->stats.accepted), DI_CELL(off.ratio.median),
                                          DI_CELL(off.ratio.low), DI_CELL(off.ratio.high),
                                          DI_CELL(top.ratio.median), DI_CELL(top.ratio.low),
                                          DI_CELL(top.ratio.high), DI_CELL(off.ratio.coverage),
                                          DI_CELL_SAMPLES(s->speed, b->pairs)});
    }
}

static di_status contest_of(di_bench *b, const di_bench_task *task, int64_t at_once,
                            const side *sides, int n_sides, di_error *error) {
    contest *c = calloc(1, sizeof *c);
    if (!c) return di_fail(error, DI_ERR_MEMORY, "out of memory: speculation");
    c->task = task;
    c->at_once = at_once;
    c->n_requests = 2 * at_once > LEAST_REQUESTS ? 2 * at_once : LEAST_REQUESTS;
    c->answer = di_args_given(b->args, DI_OPT_MAX_TOKENS) ? di_args_int(b->args, DI_OPT_MAX_TOKENS)
                                                          : USUAL_ANSWER;
    c->n_sides = n_sides;
    memcpy(c->sides, sides, (size_t)n_sides * sizeof *sides);
    di_status status = run_contest(b, c, error);
    if (status == DI_OK) report(b, c);
    for (int i = 0; i < n_sides; i++) {
        di_engine_close(c->sides[i].engine); /* before the requests that it calls back to */
        free(c->sides[i].requests);
    }
    free(c);
    return status;
}

/* ---- Tasks ---- */

static di_status each_task(di_bench *b, const di_tokenizer *tokenizer, const side *sides,
                           int n_sides, di_error *error) {
    static const int64_t usual[] = {1, 8, 32};
    di_bench_list batches = di_bench_choose(&b->batches, usual, 3);
    const char *given = di_args_text(b->args, DI_OPT_TASKS);
    int64_t limit =
        di_args_given(b->args, DI_OPT_LIMIT) ? di_args_int(b->args, DI_OPT_LIMIT) : USUAL_LINES;
    for (const char *at = given ? given : "tool_call,json,copy,add_think,prose"; *at;) {
        size_t size = strcspn(at, ",");
        di_bench_task task;
        di_status status = di_bench_task_read(b, tokenizer, at, size, limit, &task, error);
        for (int i = 0; i < batches.n && status == DI_OK; i++) {
            status = contest_of(b, &task, batches.values[i], sides, n_sides, error);
        }
        di_bench_task_free(&task);
        if (status != DI_OK) return status;
        at += size + (at[size] == ',');
    }
    return DI_OK;
}

static di_status run_all(di_bench *b, const char *name, const char *title, const side *sides,
                         int n_sides, di_error *error) {
    char path[4096];
    di_tokenizer *tokenizer;
    if (b->config.num_nextn_predict_layers == 0) {
        return di_fail(error, DI_ERR_UNSUPPORTED, "%s: this model has no draft layers", name);
    }
    int n = snprintf(path, sizeof path, "%s/tokenizer.json", b->directory);
    if (n >= (int)sizeof path || access(path, F_OK) != 0) {
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "%s: it needs text, and this model has no tokenizer.json", name);
    }
    DI_TRY(di_tokenizer_open(path, &tokenizer, error));
    di_bench_table(b, name, title, columns, sizeof columns / sizeof *columns);
    di_status status = each_task(b, tokenizer, sides, n_sides, error);
    di_tokenizer_destroy(tokenizer);
    return status;
}

di_status di_bench_speculation(di_bench *b, di_error *error) {
    static const side sides[] = {{.sampling = "greedy", .spec = "off"},
                                 {.sampling = "greedy", .spec = "fixed"},
                                 {.sampling = "greedy", .spec = "scheduled"}};
    return run_all(b, "speculation",
                   "drafts, greedy; tokens/s: 1 request: of decoding alone, more: of the run, "
                   "prompts included; length: tokens a verified step",
                   sides, 3, error);
}

di_status di_bench_sampled(di_bench *b, di_error *error) {
    static const side sides[] = {{.sampling = "coupled", .spec = "off"},
                                 {.sampling = "coupled", .spec = "fixed"},
                                 {.sampling = "coupled", .spec = "scheduled"},
                                 {.sampling = "reject", .spec = "fixed"},
                                 {.sampling = "reject", .spec = "scheduled"}};
    return run_all(b, "sampled",
                   "the same, sampled as the model says; tokens/s: 1 request: of decoding alone, "
                   "more: of the run, prompts included",
                   sides, 5, error);
}
