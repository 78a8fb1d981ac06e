/* The loop of an answer: tokens through the reader into what di_answer holds. */
#include "cli/generate.h"

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
    answer->ids.size = di_reader_kept(reader); /* the text is cut there too */
    if (answer->failed || answer->text.failed || answer->thought.failed) {
        return di_fail(error, DI_ERR_MEMORY, "out of memory: answer");
    }
    if (strcmp(answer->finish, "stop") == 0 && di_reader_has_calls(reader)) {
        answer->finish = "tool_calls";
    }
    return DI_OK;
}

typedef struct collector {
    di_answer *answer;
    di_answer_printer printer;
} collector;

static void on_part(void *user, di_part part, int index, const char *text, size_t size) {
    (void)index;
    collector *c = user;
    di_answer_add_part(c->answer, part, text, size);
    di_answer_printer_part(&c->printer, part, text, size);
}

/* ---- The loop ---- */

/* True when the answer goes on after what has happened so far; otherwise its finish is set. */
static bool goes_on(const di_generation *g, di_answer *answer) {
    size_t n;
    (void)di_sequence_ids(g->sequence, &n);
    if (di_interrupt_seen()) {
        answer->finish = "cancelled";
    } else if ((g->max_tokens > 0 && answer->ids.size >= (size_t)g->max_tokens) ||
               n > (size_t)di_engine_get_info(g->engine).context) {
        answer->finish = "length";
    }
    return !answer->finish;
}

static di_status decode(const di_generation *g, di_reader *reader, di_answer *answer, double begin,
                        di_error *error) {
    int32_t eos = di_engine_get_info(g->engine).eos_token;
    double first = begin;
    while (goes_on(g, answer)) {
        di_token token;
        DI_TRY(di_sequence_next(g->sequence, &g->sampling, &token, error));
        if (answer->n_steps++ == 0) {
            first = di_seconds();
            answer->prompt_s = first - begin;
        }
        if (token.id == eos) {
            answer->finish = "stop";
            break;
        }
        bool stopped;
        DI_TRY(di_answer_add_token(answer, token, error));
        DI_TRY(di_reader_push(reader, token.id, &stopped, error));
        if (stopped) answer->finish = "stop";
    }
    answer->answer_s = answer->n_steps > 0 ? di_seconds() - first : 0;
    return DI_OK;
}

static di_status read_prompt(const di_generation *g, di_answer *answer, di_error *error) {
    di_status status =
        di_sequence_prompt(g->sequence, g->prompt->data, g->prompt->size, &answer->n_reused, error);
    if (status != DI_ERR_CANCELLED) return status;
    answer->finish = "cancelled";
    return DI_OK;
}

di_status di_generate(const di_generation *generation, di_answer *answer, di_error *error) {
    memset(answer, 0, sizeof *answer);
    answer->seed = generation->sampling.seed;
    answer->n_prompt = generation->prompt->size;
    collector c = {.answer = answer,
                   .printer = {.show = generation->show,
                               .thoughts = di_terminal_is(stdout),
                               .style = di_terminal_has_style(stdout)}};
    di_reader_options options = di_reader_options_defaults();
    options.raw = generation->raw;
    options.thinking = generation->thinking;
    options.stops = generation->stops;
    options.n_stops = generation->n_stops;
    options.on_part = on_part;
    options.user = &c;
    di_reader *reader = NULL;
    DI_TRY(di_reader_create(di_engine_tokenizer(generation->engine), &options, &reader, error));
    double begin = di_seconds();
    di_status status;
    DI_TRY_DONE(read_prompt(generation, answer, error));
    DI_TRY_DONE(decode(generation, reader, answer, begin, error));
    status = di_answer_finish(answer, reader, error);
done:
    di_answer_printer_end(&c.printer);
    di_reader_destroy(reader);
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
