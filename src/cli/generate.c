#include "cli/generate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/terminal.h"

/* ---- On the terminal ---- */

typedef struct printer {
    bool show, thoughts, style;
    bool in_thought, in_call;
    char last; /* character printed, 0: none */
} printer;

static void put(printer *p, const char *text, size_t size) {
    if (size == 0) return;
    fwrite(text, 1, size, stdout);
    p->last = text[size - 1];
}

static void end_thought(printer *p) {
    if (!p->in_thought) return;
    p->in_thought = false;
    if (p->style) fputs(DI_STYLE_OFF, stdout);
    put(p, "\n\n", p->last == '\n' ? 1 : 2);
}

static void show_part(printer *p, di_part part, const char *text, size_t size) {
    switch (part) {
    case DI_PART_THOUGHT:
        if (!p->thoughts) return;
        if (!p->in_thought && p->style) fputs(DI_STYLE_DIM, stdout);
        p->in_thought = true;
        put(p, text, size);
        break;
    case DI_PART_ANSWER:
        end_thought(p);
        put(p, text, size);
        break;
    case DI_PART_CALL_NAME:
        end_thought(p);
        if (p->last && p->last != '\n') put(p, "\n", 1);
        put(p, "call ", 5);
        put(p, text, size);
        put(p, " ", 1);
        break;
    case DI_PART_CALL_ARGUMENTS: put(p, text, size); break;
    case DI_PART_CALL_END:
    case DI_PART_CALL_BROKEN: put(p, "\n", 1); break;
    }
    fflush(stdout);
}

static void finish_line(printer *p) {
    if (!p->show) return;
    if (p->in_thought && p->style) fputs(DI_STYLE_OFF, stdout);
    if (p->last && p->last != '\n') fputc('\n', stdout);
    fflush(stdout);
}

/* ---- Collecting ---- */

typedef struct collector {
    di_answer *answer;
    printer printer;
    bool failed;
} collector;

static di_answer_call *add_call(collector *c) {
    di_answer *answer = c->answer;
    size_t bytes = (size_t)(answer->n_calls + 1) * sizeof *answer->calls;
    di_answer_call *calls = realloc(answer->calls, bytes);
    if (!calls) {
        c->failed = true;
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

static void on_part(void *user, di_part part, int index, const char *text, size_t size) {
    (void)index;
    collector *c = user;
    di_answer *answer = c->answer;
    di_answer_call *call = answer->n_calls > 0 ? &answer->calls[answer->n_calls - 1] : NULL;
    switch (part) {
    case DI_PART_THOUGHT: di_buffer_append(&answer->thought, text, size); break;
    case DI_PART_ANSWER: di_buffer_append(&answer->text, text, size); break;
    case DI_PART_CALL_NAME:
        call = add_call(c);
        if (call) di_buffer_append(&call->name, text, size);
        break;
    case DI_PART_CALL_ARGUMENTS:
        if (call) di_buffer_append(&call->arguments, text, size);
        break;
    case DI_PART_CALL_BROKEN: drop_call(answer); break;
    case DI_PART_CALL_END: break;
    }
    if (c->printer.show) show_part(&c->printer, part, text, size);
}

static di_status keep_token(di_answer *answer, di_token token, di_error *error) {
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
        DI_TRY(keep_token(answer, token, error));
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
    DI_TRY_DONE(di_reader_finish(reader, error));
    answer->ids.size = di_reader_kept(reader); /* the text is cut there too */
    if (c.failed || answer->text.failed || answer->thought.failed) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory: answer");
    }
    if (strcmp(answer->finish, "stop") == 0 && di_reader_has_calls(reader)) {
        answer->finish = "tool_calls";
    }
done:
    finish_line(&c.printer);
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

/* ---- Afterwards ---- */

static double per_second(size_t n, double seconds) { return seconds > 0 ? (double)n / seconds : 0; }

/* The first token comes with the prompt. */
static size_t decoded(const di_answer *answer) {
    return answer->n_steps > 0 ? answer->n_steps - 1 : 0;
}

void di_answer_print_speed(const di_answer *answer) {
    size_t n_read = answer->n_prompt - answer->n_reused;
    fprintf(stderr, "prompt: %zu tokens in %.2f s (%.1f tokens/s)", n_read, answer->prompt_s,
            per_second(n_read, answer->prompt_s));
    if (answer->n_reused > 0) fprintf(stderr, ", %zu kept", answer->n_reused);
    fprintf(stderr, "; answer: %zu tokens in %.2f s (%.1f tokens/s); seed %" PRIu64 "\n",
            answer->ids.size, answer->answer_s, per_second(decoded(answer), answer->answer_s),
            answer->seed);
}

static void write_string(di_buffer *out, const di_buffer *text) {
    di_json_write_string(out, text->data ? text->data : "", text->size);
}

static void write_tokens(const di_answer *answer, di_buffer *out) {
    di_buffer_puts(out, ", \"ids\": [");
    for (size_t i = 0; i < answer->ids.size; i++) {
        di_buffer_printf(out, "%s%d", i ? ", " : "", answer->ids.data[i]);
    }
    di_buffer_puts(out, "], \"logprobs\": [");
    for (size_t i = 0; i < answer->ids.size; i++) {
        di_buffer_puts(out, i ? ", " : "");
        if (isfinite(answer->logprobs[i])) {
            di_buffer_printf(out, "%.7g", (double)answer->logprobs[i]);
        } else {
            di_buffer_puts(out, "null");
        }
    }
    di_buffer_putc(out, ']');
}

void di_answer_write_json(const di_answer *answer, di_buffer *out) {
    di_buffer_puts(out, "{\"text\": ");
    write_string(out, &answer->text);
    di_buffer_puts(out, ", \"thinking\": ");
    write_string(out, &answer->thought);
    di_buffer_puts(out, ", \"tool_calls\": [");
    for (int i = 0; i < answer->n_calls; i++) {
        di_buffer_puts(out, i ? ", {\"name\": " : "{\"name\": ");
        write_string(out, &answer->calls[i].name);
        di_buffer_puts(out, ", \"arguments\": ");
        write_string(out, &answer->calls[i].arguments);
        di_buffer_putc(out, '}');
    }
    di_buffer_printf(out, "], \"finish_reason\": \"%s\"", answer->finish);
    write_tokens(answer, out);
    di_buffer_printf(out,
                     ", \"usage\": {\"prompt_tokens\": %zu, \"reused_tokens\": %zu, "
                     "\"completion_tokens\": %zu}",
                     answer->n_prompt, answer->n_reused, answer->ids.size);
    di_buffer_printf(out,
                     ", \"timings\": {\"prompt_s\": %.6f, \"prompt_tokens_per_s\": %.3f, "
                     "\"answer_s\": %.6f, \"answer_tokens_per_s\": %.3f}",
                     answer->prompt_s,
                     per_second(answer->n_prompt - answer->n_reused, answer->prompt_s),
                     answer->answer_s, per_second(decoded(answer), answer->answer_s));
    di_buffer_printf(out, ", \"seed\": %" PRIu64 "}\n", answer->seed);
}
