#include "server/job.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"

double di_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- Events ---- */

typedef struct event_head {
    uint32_t kind;
    int32_t choice;
    uint64_t size;
} event_head;

/* An event is there whole, or not at all: then the job has failed. `more` is text that follows the data. */
static void put_event_and(di_job *job, di_event_kind kind, const di_job_choice *choice,
                          const void *data, size_t size, const char *more) {
    size_t n = strlen(more);
    event_head head = {(uint32_t)kind, (int32_t)(choice - job->choices), size + n};
    if (!di_buffer_reserve(&job->pending, sizeof head + size + n)) {
        job->failed = true;
        return;
    }
    di_buffer_append(&job->pending, &head, sizeof head);
    di_buffer_append(&job->pending, data, size);
    di_buffer_append(&job->pending, more, n);
}

static void put_event(di_job *job, di_event_kind kind, const di_job_choice *choice,
                      const void *data, size_t size) {
    put_event_and(job, kind, choice, data, size, "");
}

bool di_event_next(const di_buffer *events, size_t *at, di_event *out) {
    event_head head;
    if (*at >= events->size) return false;
    memcpy(&head, events->data + *at, sizeof head);
    *out = (di_event){.kind = (di_event_kind)head.kind,
                      .choice = head.choice,
                      .data = events->data + *at + sizeof head,
                      .size = (size_t)head.size};
    *at += sizeof head + (size_t)head.size;
    return true;
}

/* ---- What the reader says ---- */

static void on_part(void *user, di_part part, int index, const char *text, size_t size) {
    di_job_choice *c = user;
    (void)index;
    if (c->one_call_done) return;
    if (part != DI_PART_THOUGHT) c->thinking = false;
    switch (part) {
    case DI_PART_THOUGHT: put_event(c->job, DI_EVENT_THOUGHT, c, text, size); break;
    case DI_PART_ANSWER: put_event(c->job, DI_EVENT_TEXT, c, text, size); break;
    case DI_PART_CALL_NAME:
        /* The whole name, and it has no NUL: the parser takes none. */
        di_buffer_clear(&c->call);
        di_buffer_append(&c->call, text, size);
        di_buffer_putc(&c->call, '\0');
        break;
    case DI_PART_CALL_ARGUMENTS: di_buffer_append(&c->call, text, size); break;
    case DI_PART_CALL_END:
        if (c->call.failed) c->job->failed = true;
        put_event(c->job, DI_EVENT_CALL, c, c->call.data, c->call.size);
        c->one_call_done = c->job->request.one_call;
        di_buffer_clear(&c->call);
        break;
    case DI_PART_CALL_BROKEN: di_buffer_clear(&c->call); break;
    }
}

/* ---- What the engine says ---- */

static void keep_record(di_job_choice *c, const di_request_token *t) {
    di_token_record record = {t->token.id, t->token.logprob, t->n_top};
    if (!c->job->request.logprobs) return;
    di_buffer_append(&c->tokens, &record, sizeof record);
    di_buffer_append(&c->tokens, t->top, (size_t)t->n_top * sizeof *t->top);
    if (c->tokens.failed) c->job->failed = true;
}

/* Records of the first n tokens go out, as far as they have not. */
static void give_records(di_job_choice *c, size_t n) {
    size_t end = c->told_bytes;
    if (!c->job->request.logprobs || c->job->failed) return;
    for (; c->n_told < n && end < c->tokens.size; c->n_told++) {
        di_token_record record;
        memcpy(&record, c->tokens.data + end, sizeof record);
        end += sizeof record + (size_t)record.n_top * sizeof(di_top_token);
    }
    if (end == c->told_bytes) return;
    put_event(c->job, DI_EVENT_TOKENS, c, c->tokens.data + c->told_bytes, end - c->told_bytes);
    c->told_bytes = end;
    if (c->told_bytes == c->tokens.size) {
        di_buffer_clear(&c->tokens);
        c->told_bytes = 0;
    }
}

static di_job_choice *choice_of(const di_job_unit *unit, int32_t choice) {
    di_job *job = unit->job;
    return &job->choices[unit->index * job->request.n_choices + choice];
}

static bool on_token(void *user, const di_request_token *t) {
    di_job_unit *unit = user;
    di_job *job = unit->job;
    di_job_choice *c = choice_of(unit, t->choice);
    di_error error;
    double now = di_clock();
    if (job->request.scores_prompt && c->n_prompt < job->request.prompts[unit->index].size) {
        c->n_prompt++;
        keep_record(c, t);
        give_records(c, c->n_prompt);
        job->dirty = true;
        return !job->failed;
    }
    if (job->first == 0) job->first = now;
    job->last = now;
    if (c->last > 0) di_histogram_add(&job->metrics->gaps, now - c->last);
    if (c->first == 0) c->first = now;
    c->last = now;
    if (t->token.id == job->eos_token) return true; /* ends by itself */
    c->n_tokens++;
    if (c->matcher && di_grammar_matcher_advance(c->matcher, t->token.id, &job->failure) != DI_OK) {
        job->failed = true;
    }
    keep_record(c, t);
    if (job->request.has_tools && di_ids_append(&c->ids, &t->token.id, 1, &error) != DI_OK) {
        job->failed = true;
    }
    if (di_reader_push(c->reader, t->token.id, &c->stopped, &error) != DI_OK) job->failed = true;
    if (c->thinking) c->n_reasoning = c->n_tokens; /* the marker that closes it included */
    if (t->token.id == job->think_end) c->thinking = false;
    give_records(c, c->n_prompt + di_reader_certain(c->reader));
    job->dirty = true;
    return !job->failed && !c->stopped && !c->one_call_done;
}

static void end_choice(di_job_choice *c, di_end_record *end, const char *message) {
    di_job *job = c->job;
    if (c->ended) return;
    c->ended = true;
    job->n_open--;
    *job->n_served -= c->fed;
    job->dirty = true;
    put_event_and(job, DI_EVENT_END, c, end, sizeof *end, message ? message : "");
}

static void on_end(void *user, const di_request_end *e) {
    static const di_finish_reason reasons[] = {[DI_END_STOP] = DI_REASON_STOP,
                                               [DI_END_LENGTH] = DI_REASON_LENGTH,
                                               [DI_END_CANCELLED] = DI_REASON_CANCELLED,
                                               [DI_END_FAILED] = DI_REASON_FAILED};
    di_job_unit *unit = user;
    di_job *job = unit->job;
    di_job_choice *c = choice_of(unit, e->choice);
    di_error error;
    const char *message = e->message;
    di_end_record end = {.reason = reasons[e->end],
                         .stop = di_reader_stop(c->reader),
                         .n_prompt = e->n_prompt + (int64_t)c->n_prompt,
                         .n_cached = e->n_cached,
                         .n_found = e->n_found,
                         .n_accepted = e->n_accepted,
                         .seconds = c->last - c->first};
    if (!job->failed && di_reader_finish(c->reader, &error) != DI_OK) job->failed = true;
    if (job->failed) {
        end.reason = DI_REASON_FAILED;
        message = job->failure.status != DI_OK ? job->failure.message : "out of memory";
    }
    end.n_answer = (int64_t)di_reader_kept(c->reader);
    end.n_reasoning = c->n_reasoning < end.n_answer ? c->n_reasoning : end.n_answer;
    if (end.n_accepted > end.n_answer) end.n_accepted = end.n_answer; /* the end token, held back */
    give_records(c, c->n_prompt + di_reader_kept(c->reader));
    if (end.reason == DI_REASON_STOP && di_reader_has_calls(c->reader)) {
        end.reason = DI_REASON_CALLS;
    }
    bool by_itself = !c->stopped && !c->one_call_done;
    if (end.reason == DI_REASON_CALLS && by_itself && c->ids.size > 0) {
        put_event(job, DI_EVENT_IDS, c, c->ids.data, c->ids.size * sizeof *c->ids.data);
    }
    end_choice(c, &end, message);
}

/* The mask before the first of n drafts, and those behind each that may come; returns how many do. A mask
 * that cannot be made lets everything pass: the answer ends with its next token, as failed. */
static int32_t mask_drafts(void *user, int32_t choice, const int32_t *drafts, int32_t n,
                           uint32_t *words) {
    di_job_choice *c = choice_of(user, choice);
    di_job *job = c->job;
    size_t n_rows;
    if (!job->failed && di_grammar_matcher_masks(c->matcher, drafts, (size_t)n, words,
                                                 job->mask_words, &n_rows, &job->failure) == DI_OK)
        return (int32_t)n_rows - 1;
    job->failed = true;
    memset(words, 0xFF, job->mask_words * sizeof *words);
    return 0;
}

static void mask(void *user, int32_t choice, uint32_t *words) {
    (void)mask_drafts(user, choice, NULL, 0, words);
}

/* Punctuation, names of members, what is left of a constant. Without memory nothing is known. */
static int32_t foresee(void *user, int32_t choice, int32_t *ids, int32_t most) {
    di_job_choice *c = choice_of(user, choice);
    di_error error;
    di_ids known = {0};
    if (di_grammar_matcher_forced_ids(c->matcher, (size_t)most, &known, &error) != DI_OK)
        known.size = 0;
    if (known.size > 0) memcpy(ids, known.data, known.size * sizeof *ids);
    int32_t n = (int32_t)known.size;
    di_ids_free(&known);
    return n;
}

static bool on_prompt(void *user, int64_t done, int64_t total) {
    di_job_unit *unit = user;
    (void)done;
    (void)total;
    if (unit->job->started == 0) unit->job->started = di_clock();
    return true;
}

di_status di_job_feed(di_job *job, di_engine *engine, di_error *error) {
    const di_gen_request *r = &job->request;
    di_job_unit *unit = &job->units[job->n_fed++];
    di_request request = {.ids = r->prompts[unit->index].data,
                          .n_ids = r->prompts[unit->index].size,
                          .n_given = r->scores_prompt ? r->prompts[unit->index].size : 0,
                          .max_tokens = r->max_tokens,
                          .sampling = r->sampling,
                          .n_choices = r->n_choices,
                          .top_logprobs = r->top_logprobs,
                          .user = unit,
                          .on_prompt = on_prompt,
                          .mask = r->grammar ? mask : NULL,
                          .mask_drafts = r->grammar ? mask_drafts : NULL,
                          .foresee = r->grammar ? foresee : NULL,
                          .on_token = on_token,
                          .on_end = on_end};
    if (job->submitted == 0) job->submitted = di_clock();
    for (int32_t i = 0; i < r->n_choices; i++) {
        job->choices[unit->index * r->n_choices + i].fed = true;
    }
    *job->n_served += r->n_choices;
    return di_engine_submit(engine, &request, &unit->id, error);
}

void di_job_end_rest(di_job *job, di_finish_reason reason, const char *message) {
    for (int32_t i = 0; i < job->n_choices; i++) {
        di_end_record end = {.reason = reason, .stop = -1};
        end.n_prompt = (int64_t)job->request.prompts[i / job->request.n_choices].size;
        end_choice(&job->choices[i], &end, message);
    }
}

/* ---- Life ---- */

/* A form holds for what the prompt begins of it and for the answer together. */
static di_status make_matcher(const di_job *job, di_grammar_matcher **out, di_error *error) {
    const di_gen_request *r = &job->request;
    const di_ids *prompt = &r->prompts[0];
    *out = di_grammar_matcher_create(r->grammar, r->thinking ? job->think_end : -1);
    if (!*out) return di_fail(error, DI_ERR_MEMORY, "out of memory: grammar");
    for (size_t i = prompt->size - r->n_begun; i < prompt->size; i++) {
        DI_TRY(di_grammar_matcher_advance(*out, prompt->data[i], error));
    }
    return DI_OK;
}

static di_status prepare(di_job *job, const di_tokenizer *tokenizer, di_error *error) {
    const di_gen_request *r = &job->request;
    job->n_choices = r->n_prompts * r->n_choices;
    job->n_open = job->n_choices;
    job->units = calloc((size_t)r->n_prompts, sizeof *job->units);
    job->choices = calloc((size_t)job->n_choices, sizeof *job->choices);
    if (!job->units || !job->choices) return di_fail(error, DI_ERR_MEMORY, "out of memory");
    for (int32_t i = 0; i < r->n_prompts; i++) {
        job->units[i] = (di_job_unit){.job = job, .index = i};
    }
    di_reader_options options = di_reader_options_defaults();
    options.raw = r->dialect == DI_DIALECT_COMPLETION;
    options.thinking = r->thinking;
    options.stops = r->stops;
    options.n_stops = r->n_stops;
    options.on_part = on_part;
    for (int32_t i = 0; i < job->n_choices; i++) {
        di_job_choice *c = &job->choices[i];
        *c = (di_job_choice){.job = job, .thinking = r->thinking};
        options.user = c;
        DI_TRY(di_reader_create(tokenizer, &options, &c->reader, error));
        if (r->grammar) DI_TRY(make_matcher(job, &c->matcher, error));
    }
    return DI_OK;
}

di_job *di_job_create(di_gen_request *request, const di_request_env *env, int32_t eos_token,
                      di_error *error) {
    di_job *job = calloc(1, sizeof *job);
    if (!job) {
        (void)di_fail(error, DI_ERR_MEMORY, "out of memory");
        return NULL;
    }
    job->request = *request;
    memset(request, 0, sizeof *request);
    job->eos_token = eos_token;
    job->think_end = di_tokenizer_added_id(env->tokenizer, "</think>");
    job->mask_words = ((size_t)env->vocab_size + 31) / 32;
    if (prepare(job, env->tokenizer, error) == DI_OK) return job;
    di_job_destroy(job);
    return NULL;
}

void di_job_destroy(di_job *job) {
    if (!job) return;
    for (int32_t i = 0; job->choices && i < job->n_choices; i++) {
        di_reader_destroy(job->choices[i].reader);
        di_grammar_matcher_destroy(job->choices[i].matcher);
        di_buffer_free(&job->choices[i].call);
        di_buffer_free(&job->choices[i].tokens);
        di_ids_free(&job->choices[i].ids);
    }
    free(job->units);
    free(job->choices);
    di_buffer_free(&job->pending);
    di_buffer_free(&job->inbox);
    di_gen_request_free(&job->request);
    free(job);
}
