/* An answer: one request, its tokens through the reader into what di_answer holds. */
#include "cli/generate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/answer_printer.h"
#include "cli/terminal.h"

/* ---- Collecting ---- */

static di_answer_call *add_call(di_answer *answer) {
    size_t bytes = (size_t)(answer->n_calls + 1) * sizeof *answer->calls;
    di_answer_call *calls = realloc(answer->calls, bytes);
    if (!calls) {
        answer->failed = true;
        return NULL;
    }
    answer->calls = calls;
    calls[answer->n_calls] = (di_answer_call){DI_BUFFER_EMPTY, DI_BUFFER_EMPTY};
    return &calls[answer->n_calls++];
}

static void drop_call(di_answer *answer) {
    if (answer->n_calls == 0) return;
    di_answer_call *call = &answer->calls[--answer->n_calls];
    di_buffer_free(&call->name);
    di_buffer_free(&call->arguments);
}

void di_answer_add_part(di_answer *answer, di_part part, const char *text, size_t size) {
    di_answer_call *call = answer->n_calls > 0 ? &answer->calls[answer->n_calls - 1] : NULL;
    switch (part) {
    case DI_PART_THOUGHT: di_buffer_append(&answer->thought, text, size); break;
    case DI_PART_ANSWER: di_buffer_append(&answer->text, text, size); break;
    case DI_PART_CALL_NAME:
        call = add_call(answer);
        if (call) di_buffer_append(&call->name, text, size);
        break;
    case DI_PART_CALL_ARGUMENTS:
        if (call) di_buffer_append(&call->arguments, text, size);
        break;
    case DI_PART_CALL_BROKEN: drop_call(answer); break;
    case DI_PART_CALL_END: break;
    }
}

di_status di_answer_add_token(di_answer *answer, di_token token, di_error *error) {
    if (answer->ids.size == answer->logprob_capacity) {
        size_t capacity = answer->logprob_capacity ? 2 * answer->logprob_capacity : 256;
        float *more = realloc(answer->logprobs, capacity * sizeof *more);
        if (!more) return di_fail(error, DI_ERR_MEMORY, "out of memory: answer");
        answer->logprobs = more;
        answer->logprob_capacity = capacity;
    }
    answer->logprobs[answer->ids.size] = token.logprob;
    return di_ids_append(&answer->ids, &token.id, 1, error);
}

di_status di_answer_finish(di_answer *answer, di_reader *reader, di_error *error) {
    DI_TRY(di_reader_finish(reader, error));
    size_t kept = di_reader_kept(reader); /* the text is cut there too */
    /* A stop string in what was held back until the end ends the answer like any other. */
    if (kept < answer->ids.size && strcmp(answer->finish, "length") == 0) answer->finish = "stop";
    answer->ids.size = kept;
    if (answer->failed || answer->text.failed || answer->thought.failed) {
        return di_fail(error, DI_ERR_MEMORY, "out of memory: answer");
    }
    if (strcmp(answer->finish, "stop") == 0 && di_reader_has_calls(reader)) {
        answer->finish = "tool_calls";
    }
    return DI_OK;
}

/* ---- The request ---- */

typedef struct collector {
    const di_generation *generation;
    di_answer *answer;
    di_reader *reader;
    di_answer_printer printer;
    int32_t eos;
    double begin; /* seconds of the clock: of the request, */
    double first; /* and of its first token */
    bool in_step; /* the step in progress has given a token */
    di_status status;
    di_error error; /* when status says so */
} collector;

static void on_part(void *user, di_part part, int index, const char *text, size_t size) {
    (void)index;
    collector *c = user;
    di_answer_add_part(c->answer, part, text, size);
    di_answer_printer_part(&c->printer, part, text, size);
}

static bool on_prompt(void *user, int64_t done, int64_t total) {
    const collector *c = user;
    return di_progress_report(c->generation->progress, DI_PHASE_PROMPT, done, total);
}

static void count_token(collector *c) {
    di_answer *answer = c->answer;
    double now = di_seconds();
    if (answer->n_sampled++ == 0) {
        di_progress_end(c->generation->progress);
        c->first = now;
        answer->prompt_s = now - c->begin;
    }
    if (!c->in_step) answer->n_steps++;
    c->in_step = true;
    answer->answer_s = now - c->first;
}

static bool on_token(void *user, const di_request_token *t) {
    collector *c = user;
    di_answer *answer = c->answer;
    bool stopped = false;
    count_token(c);
    if (t->token.id == c->eos) return true; /* ends by itself */
    c->status = di_answer_add_token(answer, t->token, &c->error);
    if (c->status == DI_OK) {
        c->status = di_reader_push(c->reader, t->token.id, &stopped, &c->error);
    }
    /* Not di_engine_cancel: what was computed stays in the cache, for the next turn of a chat. */
    if (!stopped && di_interrupt_seen()) answer->finish = "cancelled";
    return c->status == DI_OK && !stopped && !answer->finish;
}

static void on_end(void *user, const di_request_end *end) {
    static const char *const reasons[] = {[DI_END_STOP] = "stop",
                                          [DI_END_LENGTH] = "length",
                                          [DI_END_CANCELLED] = "cancelled",
                                          [DI_END_FAILED] = "stop"};
    collector *c = user;
    c->answer->n_reused = (size_t)end->n_cached;
    if (!c->answer->finish) c->answer->finish = reasons[end->end];
    if (end->end == DI_END_FAILED && c->status == DI_OK) {
        c->status = di_fail(&c->error, DI_ERR_INVALID, "%s", end->message);
    }
}

static di_status check_length(const di_generation *g, di_error *error) {
    int64_t context = di_engine_get_info(g->engine).context;
    if ((int64_t)g->prompt->size < context) return DI_OK;
    return di_fail(error, DI_ERR_LIMIT,
                   "the prompt has %zu tokens, the context takes %" PRId64
                   " with the answer; shorten it or ask for a larger context",
                   g->prompt->size, context);
}

static di_status submit(collector *c, uint64_t *id, di_error *error) {
    const di_generation *g = c->generation;
    DI_TRY(check_length(g, error));
    di_request request = {.ids = g->prompt->data,
                          .n_ids = g->prompt->size,
                          .max_tokens = g->max_tokens,
                          .sampling = g->sampling,
                          .n_choices = 1,
                          .user = c,
                          .on_prompt = on_prompt,
                          .on_token = on_token,
                          .on_end = on_end};
    return di_engine_submit(g->engine, &request, id, error);
}

static di_status serve(collector *c, di_error *error) {
    di_engine *engine = c->generation->engine;
    uint64_t drafted = di_engine_get_stats(engine).drafted;
    uint64_t id;
    c->begin = di_seconds();
    DI_TRY(submit(c, &id, error));
    if (!on_prompt(c, 0, (int64_t)c->generation->prompt->size)) (void)di_engine_cancel(engine, id);
    for (bool busy = true; busy;) {
        c->in_step = false;
        DI_TRY(di_engine_step(engine, &busy, error));
    }
    c->answer->drafted = di_engine_get_stats(engine).drafted > drafted;
    if (c->status != DI_OK) *error = c->error;
    return c->status;
}

di_status di_generate(const di_generation *generation, di_answer *answer, di_error *error) {
    memset(answer, 0, sizeof *answer);
    answer->seed = generation->sampling.seed;
    answer->n_prompt = generation->prompt->size;
    collector c = {.generation = generation,
                   .answer = answer,
                   .printer = {.show = generation->show,
                               .thoughts = di_terminal_is(stdout),
                               .style = di_terminal_has_style(stdout)},
                   .eos = di_engine_get_info(generation->engine).eos_token};
    di_reader_options options = di_reader_options_defaults();
    options.raw = generation->raw;
    options.thinking = generation->thinking;
    options.stops = generation->stops;
    options.n_stops = generation->n_stops;
    options.on_part = on_part;
    options.user = &c;
    DI_TRY(di_reader_create(di_engine_tokenizer(generation->engine), &options, &c.reader, error));
    di_status status = serve(&c, error);
    di_progress_end(generation->progress);
    if (status == DI_OK) status = di_answer_finish(answer, c.reader, error);
    di_answer_printer_end(&c.printer);
    di_reader_destroy(c.reader);
    return status;
}

void di_answer_free(di_answer *answer) {
    while (answer->n_calls > 0) drop_call(answer);
    free(answer->calls);
    free(answer->logprobs);
    di_buffer_free(&answer->thought);
    di_buffer_free(&answer->text);
    di_ids_free(&answer->ids);
    memset(answer, 0, sizeof *answer);
}
