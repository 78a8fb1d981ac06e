#include "cli/batch_job.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* ---- Callbacks: they run inside of a step ---- */

static void on_part(void *user, di_part part, int index, const char *text, size_t size) {
    (void)index;
    di_answer_add_part(user, part, text, size);
}

static di_status keep_top(const di_batch_job *job, di_batch_choice *choice,
                          const di_request_token *t, di_error *error) {
    size_t n = (size_t)job->n_top, used = choice->answer.ids.size * n;
    if (n == 0) return DI_OK;
    if (used + n > choice->top_capacity) {
        size_t capacity = 2 * (used + n);
        di_top_token *more = realloc(choice->top, capacity * sizeof *more);
        if (!more) return di_fail(error, DI_ERR_MEMORY, "out of memory: log-probabilities");
        choice->top = more;
        choice->top_capacity = capacity;
    }
    memcpy(choice->top + used, t->top, n * sizeof *t->top);
    return DI_OK;
}

static bool on_token(void *user, const di_request_token *t) {
    di_batch_job *job = user;
    di_batch_choice *choice = &job->choices[t->choice];
    bool stopped = false;
    if (t->token.id == job->eos_token) return true; /* ends by itself */
    di_status status = keep_top(job, choice, t, &job->failure);
    if (status == DI_OK) status = di_answer_add_token(&choice->answer, t->token, &job->failure);
    if (status == DI_OK) {
        status = di_reader_push(choice->reader, t->token.id, &stopped, &job->failure);
    }
    return status == DI_OK && !stopped;
}

static void on_end(void *user, const di_request_end *end) {
    di_batch_job *job = user;
    di_batch_choice *choice = &job->choices[end->choice];
    job->n_open--;
    choice->answer.n_prompt = (size_t)end->n_prompt;
    choice->answer.n_reused = (size_t)end->n_cached;
    choice->answer.finish = end->end == DI_END_LENGTH ? "length" : "stop";
    if (job->failure.status != DI_OK) return;
    if (end->end == DI_END_FAILED) {
        (void)di_fail(&job->failure, DI_ERR_INVALID, "%s", end->message);
    } else {
        (void)di_answer_finish(&choice->answer, choice->reader, &job->failure);
    }
}

/* ---- The job ---- */

di_status di_batch_job_prepare(di_batch_job *job, const di_engine *engine, di_error *error) {
    di_batch_line *line = &job->line;
    di_engine_info info = di_engine_get_info(engine);
    job->eos_token = info.eos_token;
    job->n_top =
        line->request.top_logprobs < info.vocab_size ? line->request.top_logprobs : info.vocab_size;
    job->choices = calloc((size_t)line->request.n_choices, sizeof *job->choices);
    if (!job->choices) return di_fail(error, DI_ERR_MEMORY, "out of memory: request");
    for (int32_t i = 0; i < line->request.n_choices; i++) {
        di_reader_options options = di_reader_options_defaults();
        options.raw = !line->chat;
        options.thinking = line->request.thinking;
        options.stops = line->request.stops;
        options.n_stops = line->request.n_stops;
        options.on_part = on_part;
        options.user = &job->choices[i].answer;
        DI_TRY(di_reader_create(di_engine_tokenizer(engine), &options, &job->choices[i].reader,
                                error));
    }
    return DI_OK;
}

di_status di_batch_job_submit(di_batch_job *job, di_engine *engine, di_error *error) {
    const di_batch_line *line = &job->line;
    job->n_open = line->request.n_choices;
    di_request request = {.ids = line->request.prompts[0].data,
                          .n_ids = line->request.prompts[0].size,
                          .max_tokens = line->request.max_tokens,
                          .sampling = line->request.sampling,
                          .n_choices = line->request.n_choices,
                          .top_logprobs = line->request.top_logprobs,
                          .user = job,
                          .on_token = on_token,
                          .on_end = on_end};
    return di_engine_submit(engine, &request, NULL, error);
}

void di_batch_job_destroy(di_batch_job *job) {
    if (!job) return;
    for (int32_t i = 0; job->choices && i < job->line.request.n_choices; i++) {
        di_answer_free(&job->choices[i].answer);
        di_reader_destroy(job->choices[i].reader);
        free(job->choices[i].top);
    }
    free(job->choices);
    di_batch_line_free(&job->line);
    free(job);
}
