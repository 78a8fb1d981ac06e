#include "cli/eval_score.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static bool belongs(const di_eval_set *set, size_t item, const di_eval_group *group) {
    const di_eval_group *own = &set->groups[set->items[item].group];
    return group ? own == group : !own->is_text;
}

/* ---- Tasks ---- */

di_eval_score di_eval_score_tasks(const di_eval_set *set, const di_eval_run *run,
                                  const di_eval_group *group) {
    di_eval_score s = {0};
    for (size_t i = 0; i < run->n_items; i++) {
        const di_eval_result *r = &run->results[i];
        if (!r->done || !belongs(set, i, group)) continue;
        s.n++;
        s.right += r->right;
        s.n_whole += set->items[i].want.completion != NULL;
        s.whole += r->whole;
        s.n_cut += r->cut;
        s.n_prompt += r->n_prompt;
        s.n_cached += r->n_cached;
    }
    if (s.n == 0) return s;
    s.share = (double)s.right / (double)s.n;
    s.bounds = di_eval_stats_proportion(s.right, s.n);
    return s;
}

static bool same_ids(const di_ids *a, const di_ids *b) {
    return a->size == b->size &&
           (a->size == 0 || memcmp(a->data, b->data, a->size * sizeof *a->data) == 0);
}

di_eval_pair di_eval_pair_tasks(const di_eval_set *set, const di_eval_run *first,
                                const di_eval_run *second, const di_eval_group *group) {
    di_eval_pair p = {0};
    for (size_t i = 0; i < first->n_items && i < second->n_items; i++) {
        const di_eval_result *a = &first->results[i], *b = &second->results[i];
        if (!a->done || !b->done || !belongs(set, i, group)) continue;
        p.n++;
        p.only_first += a->right && !b->right;
        p.only_second += b->right && !a->right;
        p.same += same_ids(&a->answer, &b->answer);
    }
    if (p.n == 0) return p;
    p.difference = (double)(p.only_second - p.only_first) / (double)p.n;
    p.bounds = di_eval_stats_paired(p.only_first, p.only_second, p.n);
    return p;
}

/* ---- Texts ---- */

static double nats_of(const di_eval_result *r) { return -r->logprobs / (double)r->n_scored; }

static bool is_scored(const di_eval_result *r) { return r->done && r->n_scored > 0; }

/* A value for each row of the group; `add` gives false for one that is left out. */
typedef bool (*row_fn)(void *user, size_t item, double *value);

typedef struct rows {
    const di_eval_run *first, *second;
    di_eval_text_score score;
    int64_t same;
} rows;

static di_status mean_of_rows(const di_eval_group *group, row_fn value_of, rows *user, int64_t *n,
                              double *mean, di_interval *bounds, di_error *error) {
    double *values = malloc((group->n_items + 1) * sizeof *values);
    if (!values) return di_fail(error, DI_ERR_MEMORY, "out of memory: rows of a text");
    *n = 0;
    for (size_t i = group->first; i < group->first + group->n_items; i++) {
        if (value_of(user, i, &values[*n])) ++*n;
    }
    if (*n > 0) *mean = di_eval_stats_average(values, *n);
    if (*n > 1) *bounds = di_eval_stats_mean(values, *n);
    free(values);
    return DI_OK;
}

static bool row_score(void *user, size_t item, double *value) {
    rows *r = user;
    if (item >= r->first->n_items || !is_scored(&r->first->results[item])) return false;
    const di_eval_result *result = &r->first->results[item];
    r->score.n_tokens += result->n_scored;
    r->score.n_prompt += result->n_prompt;
    r->score.n_cached += result->n_cached;
    *value = nats_of(result);
    return true;
}

static bool row_difference(void *user, size_t item, double *value) {
    rows *r = user;
    if (item >= r->first->n_items || item >= r->second->n_items) return false;
    const di_eval_result *a = &r->first->results[item], *b = &r->second->results[item];
    if (!is_scored(a) || !is_scored(b)) return false;
    r->same += !(a->logprobs < b->logprobs || a->logprobs > b->logprobs);
    *value = nats_of(b) - nats_of(a);
    return true;
}

di_status di_eval_score_text(const di_eval_run *run, const di_eval_group *group,
                             di_eval_text_score *out, di_error *error) {
    rows r = {.first = run};
    DI_TRY(
        mean_of_rows(group, row_score, &r, &r.score.n_rows, &r.score.nats, &r.score.bounds, error));
    r.score.has_bounds = r.score.n_rows > 1;
    *out = r.score;
    return DI_OK;
}

di_status di_eval_pair_text(const di_eval_run *first, const di_eval_run *second,
                            const di_eval_group *group, di_eval_text_pair *out, di_error *error) {
    rows r = {.first = first, .second = second};
    *out = (di_eval_text_pair){0};
    DI_TRY(mean_of_rows(group, row_difference, &r, &out->n_rows, &out->difference, &out->bounds,
                        error));
    out->same = r.same;
    out->has_bounds = out->n_rows > 1;
    return DI_OK;
}
