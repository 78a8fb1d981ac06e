#include "cli/eval_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/philox.h"
#include "cli/engine_args.h"
#include "cli/terminal.h"

typedef enum stage { STAGE_FREE, STAGE_WARMING, STAGE_MEASURED } stage;

/* A place for an item that is under way. */
typedef struct job {
    struct pass *pass;
    stage stage;
    size_t item;
    bool ended;
    di_ids ids;       /* begin token and text, for an item that is a text */
    di_answer answer; /* of a task: its parts */
    di_reader *reader;
    di_eval_result result;
    di_error failure; /* status DI_OK: none */
} job;

typedef struct pass {
    const di_eval_pass *options;
    di_eval_run *run;
    di_eval_set *set;
    di_engine *engine;
    const di_tokenizer *tokenizer;
    int32_t bos_token, eos_token;
    di_sampling sampling; /* but for the seed */
    size_t next;          /* item */
    job *jobs;            /* n_jobs places */
    size_t n_jobs, n_busy;
} pass;

static const di_eval_item *item_of(const job *j) { return &j->pass->set->items[j->item]; }

static bool is_text(const job *j) { return j->pass->set->groups[item_of(j)->group].is_text; }

/* ---- Callbacks: they run inside of a step ---- */

static void on_part(void *user, di_part part, int index, const char *text, size_t size) {
    (void)index;
    di_answer_add_part(user, part, text, size);
}

static bool on_token(void *user, const di_request_token *t) {
    job *j = user;
    bool stopped = false;
    j->pass->run->n_tokens++;
    di_status status = di_ids_append(&j->result.answer, &t->token.id, 1, &j->failure);
    if (status == DI_OK && t->token.id != j->pass->eos_token) {
        status = di_reader_push(j->reader, t->token.id, &stopped, &j->failure);
    }
    return status == DI_OK;
}

static bool on_given(void *user, const di_request_token *t) {
    job *j = user;
    j->pass->run->n_tokens++;
    if (isnan(t->token.logprob)) return true; /* nothing precedes it */
    j->result.logprobs += (double)t->token.logprob;
    j->result.n_scored++;
    return true;
}

static void on_end(void *user, const di_request_end *end) {
    job *j = user;
    j->ended = true;
    j->result.cut = end->end == DI_END_LENGTH;
    j->result.n_prompt = end->n_prompt;
    j->result.n_cached = end->n_cached;
    if (end->end == DI_END_FAILED && j->failure.status == DI_OK) {
        (void)di_fail(&j->failure, DI_ERR_INVALID, "%s", end->message);
    }
}

/* ---- Stages of a job ---- */

static void clear_job(job *j) {
    di_reader_destroy(j->reader);
    di_answer_free(&j->answer);
    di_ids_free(&j->ids);
    di_ids_free(&j->result.answer);
    *j = (job){.pass = j->pass};
}

/* The ids to submit: of a text, behind the begin token where the model has one. */
static di_status find_ids(job *j, const int32_t **ids, size_t *n, di_error *error) {
    const di_eval_item *item = item_of(j);
    *ids = item->ids.data;
    *n = item->ids.size;
    if (!is_text(j) || j->pass->bos_token < 0) return DI_OK;
    if (j->ids.size == 0) {
        DI_TRY(di_ids_append(&j->ids, &j->pass->bos_token, 1, error));
        DI_TRY(di_ids_append(&j->ids, item->ids.data, item->ids.size, error));
    }
    *ids = j->ids.data;
    *n = j->ids.size;
    return DI_OK;
}

/* Its own for every item, and the same whatever else is evaluated. */
static di_sampling sampling_of(const job *j) {
    const di_eval_item *item = item_of(j);
    uint64_t name = 14695981039346656037u; /* FNV-1a */
    for (const char *c = j->pass->set->groups[item->group].name; *c; c++) {
        name = (name ^ (uint8_t)*c) * 1099511628211u;
    }
    uint32_t words[4];
    di_sampling sampling = j->pass->sampling;
    di_philox(j->pass->options->seed, (uint64_t)item->line, name, words);
    sampling.seed = (uint64_t)words[0] << 32 | words[1];
    return sampling;
}

static di_status submit_warming(job *j, di_error *error) {
    di_request request = {.max_tokens = 1,
                          .sampling = sampling_of(j),
                          .n_choices = 1,
                          .user = j,
                          .on_end = on_end};
    DI_TRY(find_ids(j, &request.ids, &request.n_ids, error));
    request.n_ids -= item_of(j)->n_given;
    j->stage = STAGE_WARMING;
    return di_engine_submit(j->pass->engine, &request, NULL, error);
}

static di_status create_reader(job *j, di_error *error) {
    di_reader_options options = di_reader_options_defaults();
    options.thinking = item_of(j)->thinking;
    options.on_part = on_part;
    options.user = &j->answer;
    return di_reader_create(j->pass->tokenizer, &options, &j->reader, error);
}

static di_status submit_measured(job *j, di_error *error) {
    const di_eval_item *item = item_of(j);
    bool text = is_text(j);
    di_request request = {.n_given = item->n_given,
                          .max_tokens = item->max_tokens,
                          .sampling = sampling_of(j),
                          .n_choices = 1,
                          .user = j,
                          .on_token = text ? on_given : on_token,
                          .on_end = on_end};
    DI_TRY(find_ids(j, &request.ids, &request.n_ids, error));
    if (!text) DI_TRY(create_reader(j, error));
    j->stage = STAGE_MEASURED;
    j->ended = false;
    return di_engine_submit(j->pass->engine, &request, NULL, error);
}

/* All of the model's text, markers spelled out, against the item's. */
static di_status judge_whole(job *j, const di_eval_want *want, di_error *error) {
    char *text;
    size_t size;
    const di_ids *ids = &j->result.answer;
    if (!want->completion) return DI_OK;
    DI_TRY(di_tokenizer_text(j->pass->tokenizer, ids->data, ids->size, false, &text, &size, error));
    j->result.whole = size == want->completion_size && memcmp(text, want->completion, size) == 0;
    di_free(text);
    return DI_OK;
}

static di_status judge(job *j, di_error *error) {
    const di_eval_want *want = &item_of(j)->want;
    DI_TRY(di_reader_finish(j->reader, error));
    DI_TRY(di_judge_answer(want, &j->answer, &j->result.right, error));
    return judge_whole(j, want, error);
}

static void keep_result(job *j) {
    di_eval_run *run = j->pass->run;
    di_eval_result *r = &j->result;
    r->done = true;
    run->n_done++;
    run->n_prompt += r->n_prompt;
    run->n_cached += r->n_cached;
    run->n_answer += (int64_t)r->answer.size;
    run->results[j->item] = *r;
    r->answer = (di_ids){0};
}

/* The item's own fault is complained about; the machine's ends the run. */
static di_status refuse(job *j, const di_error *why, di_error *error) {
    di_eval_set *set = j->pass->set;
    di_eval_item *item = &set->items[j->item];
    if (why->status == DI_ERR_MEMORY || why->status == DI_ERR_IO ||
        why->status == DI_ERR_UNSUPPORTED) {
        *error = *why;
        return why->status;
    }
    item->refused = true;
    di_eval_complain(set, &set->groups[item->group], item->line, why->message);
    return DI_OK;
}

/* What comes after a stage; the job is free when nothing does. */
static di_status advance(job *j, di_error *error) {
    di_error why = j->failure;
    di_status status = why.status;
    if (status == DI_OK && j->stage == STAGE_WARMING) {
        status = submit_measured(j, &why);
        if (status == DI_OK) return DI_OK;
    } else if (status == DI_OK) {
        if (!is_text(j)) status = judge(j, &why);
        if (status == DI_OK) keep_result(j);
    }
    status = status == DI_OK ? DI_OK : refuse(j, &why, error);
    clear_job(j);
    j->pass->n_busy--;
    return status;
}

static di_status start(job *j, size_t item, di_error *error) {
    di_error why;
    j->item = item;
    j->pass->n_busy++;
    /* A text that is given whole has no prompt to warm. */
    bool warm = j->pass->options->warm && item_of(j)->n_given < item_of(j)->ids.size;
    di_status status = warm ? submit_warming(j, &why) : submit_measured(j, &why);
    if (status == DI_OK) return DI_OK;
    status = refuse(j, &why, error);
    clear_job(j);
    j->pass->n_busy--;
    return status;
}

/* ---- The run ---- */

static di_status fill(pass *p, di_error *error) {
    for (size_t i = 0; i < p->n_jobs && p->next < p->set->n_items; i++) {
        if (p->jobs[i].stage != STAGE_FREE) continue;
        while (p->next < p->set->n_items && p->set->items[p->next].refused) p->next++;
        if (p->next < p->set->n_items) DI_TRY(start(&p->jobs[i], p->next++, error));
    }
    return DI_OK;
}

static di_status sweep(pass *p, di_error *error) {
    for (size_t i = 0; i < p->n_jobs; i++) {
        job *j = &p->jobs[i];
        if (j->stage != STAGE_FREE && j->ended) DI_TRY(advance(j, error));
    }
    return DI_OK;
}

static di_status work(pass *p, di_error *error) {
    bool busy;
    while (!di_interrupt_seen()) {
        DI_TRY(fill(p, error));
        if (p->n_busy == 0 && p->next >= p->set->n_items) return DI_OK;
        DI_TRY(di_engine_step(p->engine, &busy, error));
        DI_TRY(sweep(p, error));
        di_batch_progress_show(p->options->progress, p->options->n_before + (int64_t)p->run->n_done,
                               p->options->n_tokens_before + p->run->n_tokens);
    }
    return di_fail(error, DI_ERR_CANCELLED, "interrupted; what was done is printed");
}

static di_status open_pass(pass *p, di_progress *loading, di_error *error) {
    const di_args *args = &p->run->setting->args;
    /* Some wait beside those that run, so that a place is never empty. */
    p->n_jobs = 2 * (size_t)di_args_int(args, DI_OPT_MAX_BATCH) + 8;
    p->jobs = calloc(p->n_jobs, sizeof *p->jobs);
    p->run->results = calloc(p->set->n_items + 1, sizeof *p->run->results);
    if (!p->jobs || !p->run->results) return di_fail(error, DI_ERR_MEMORY, "out of memory: run");
    p->run->n_items = p->set->n_items;
    for (size_t i = 0; i < p->n_jobs; i++) p->jobs[i].pass = p;
    DI_TRY(di_args_open_engine(args, p->options->model, loading, &p->engine, error));
    DI_TRY(di_engine_need_tokenizer(p->engine, p->options->model, &p->tokenizer, error));
    di_engine_info info = di_engine_get_info(p->engine);
    p->bos_token = info.bos_token;
    p->eos_token = info.eos_token;
    p->run->context = info.context;
    p->run->backend = info.backend;
    /* The likeliest tokens are what they are; samples are the model's way of sampling. */
    bool greedy = p->options->temperature == 0;
    p->sampling = greedy ? di_sampling_defaults() : di_engine_sampling(p->engine);
    p->sampling.temperature = p->options->temperature;
    return DI_OK;
}

di_status di_eval_run_all(di_eval_run *run, const di_eval_pass *options, di_error *error) {
    pass p = {.options = options, .run = run, .set = options->set};
    di_progress loading = {0};
    di_status status = open_pass(&p, &loading, error);
    if (status == DI_OK) {
        double begin = di_seconds();
        status = work(&p, error);
        run->seconds = di_seconds() - begin;
    }
    di_engine_close(p.engine); /* before the jobs that it calls back to */
    for (size_t i = 0; p.jobs && i < p.n_jobs; i++) clear_job(&p.jobs[i]);
    free(p.jobs);
    return status;
}

void di_eval_run_free(di_eval_run *run) {
    for (size_t i = 0; i < run->n_items; i++) di_ids_free(&run->results[i].answer);
    free(run->results);
    *run = (di_eval_run){0};
}
