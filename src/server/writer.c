#include "server/writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/error.h"
#include "base/json.h"
#include "base/lossy.h"
#include "server/token_json.h"
#include "server/turns.h"

/* ---- Life ---- */

static const di_writer_ops *ops_of(di_dialect dialect) {
    switch (dialect) {
    case DI_DIALECT_CHAT: return &di_chat_writer;
    case DI_DIALECT_COMPLETION: return &di_completion_writer;
    case DI_DIALECT_RESPONSES: return &di_responses_writer;
    case DI_DIALECT_MESSAGES: return &di_messages_writer;
    }
    return NULL;
}

di_status di_writer_init(di_writer *w, const di_job *job, const di_tokenizer *tokenizer,
                         const char *model, di_error *error) {
    unsigned char random[16];
    memset(w, 0, sizeof *w);
    w->request = &job->request;
    w->ops = ops_of(w->request->dialect);
    w->tokenizer = tokenizer;
    w->created = (int64_t)time(NULL);
    w->model = w->request->model_size > 0 ? w->request->model : model;
    w->model_size = w->request->model_size > 0 ? w->request->model_size : strlen(model);
    w->whole = !w->request->stream || w->request->dialect == DI_DIALECT_RESPONSES;
    w->keep = w->whole || w->request->has_tools;
    w->builds = w->request->stream || w->request->dialect == DI_DIALECT_RESPONSES ||
                w->request->dialect == DI_DIALECT_MESSAGES;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        return di_fail(error, DI_ERR_IO, "cannot draw a random id");
    }
    for (size_t i = 0; i < sizeof random; i++) snprintf(w->id + 2 * i, 3, "%02x", random[i]);
    w->choices = calloc((size_t)job->n_choices, sizeof *w->choices);
    if (!w->choices) return di_fail(error, DI_ERR_MEMORY, "out of memory: the answer");
    w->n_choices = job->n_choices;
    return DI_OK;
}

static void free_kept(di_writer_choice *c) {
    di_buffer_free(&c->thought);
    di_buffer_free(&c->text);
    di_buffer_free(&c->all_tokens);
    di_buffer_free(&c->ids);
    for (int k = 0; c->calls && k < c->n_calls; k++) {
        free(c->calls[k].name);
        free(c->calls[k].arguments);
    }
    free(c->calls);
    c->calls = NULL;
}

void di_writer_deinit(di_writer *w) {
    for (int32_t i = 0; i < w->n_choices; i++) {
        di_buffer_free(&w->choices[i].piece);
        di_buffer_free(&w->choices[i].tokens);
        free_kept(&w->choices[i]);
    }
    free(w->choices);
    di_buffer_free(&w->items);
    memset(w, 0, sizeof *w);
}

/* ---- Events ---- */

static void fail(di_writer *w, const char *message, size_t size) {
    if (w->failed) return;
    w->failed = true;
    snprintf(w->failure, sizeof w->failure, "%.*s", size > 300 ? 300 : (int)size, message);
}

static void append(di_writer *w, di_buffer *to, const char *data, size_t size) {
    di_buffer_append(to, data, size);
    if (to->failed) fail(w, "out of memory", 13);
}

/* Counts what is kept until the end, whose JSON is up to twelve times as large. False: it is too much, and the
 * answer has failed if all of it is needed; otherwise it goes on, and will not be known when it comes back. */
static bool count_kept(di_writer *w, size_t size) {
    if (w->kept + size <= DI_WRITER_MAX_KEPT) {
        w->kept += size;
        return true;
    }
    if (!w->whole) {
        for (int32_t i = 0; i < w->n_choices; i++) free_kept(&w->choices[i]);
        w->kept = 0;
        w->keep = false;
        w->let_go = true;
        return false;
    }
    const char *why = w->request->stream
                          ? "the answer is too large to be kept until its end"
                          : "the answer is too large to come in one piece; ask for a stream";
    fail(w, why, strlen(why));
    return false;
}

static void keep(di_writer *w, di_buffer *to, const char *data, size_t size) {
    if (w->keep && count_kept(w, size)) append(w, to, data, size);
}

/* What waits goes out; tokens go along with text, and at the end by themselves. */
static void flush(di_writer *w, int32_t choice, bool tokens_too, di_buffer *out) {
    di_writer_choice *c = &w->choices[choice];
    if (c->piece.size == 0 && (!tokens_too || c->tokens.size == 0)) return;
    if (w->builds && !w->failed) w->ops->piece(w, choice, out);
    c->began = true;
    di_buffer_clear(&c->piece);
    di_buffer_clear(&c->tokens);
}

static void take_text(di_writer *w, const di_event *e, di_buffer *out) {
    di_writer_choice *c = &w->choices[e->choice];
    keep(w, e->kind == DI_EVENT_TEXT ? &c->text : &c->thought, e->data, e->size);
    if (!w->builds) return;
    if (c->piece.size > 0 && c->kind != e->kind) flush(w, e->choice, false, out);
    c->kind = e->kind;
    append(w, &c->piece, e->data, e->size);
}

/* Counts it too; the number is that of the next one's id. */
static void keep_call(di_writer *w, di_writer_choice *c, const di_writer_call *call) {
    size_t size = sizeof *call + call->name_size + call->arguments_size;
    if (!w->keep || !count_kept(w, size)) {
        if (!w->failed) c->n_calls++;
        return;
    }
    di_writer_call *more = realloc(c->calls, (size_t)(c->n_calls + 1) * sizeof *more);
    if (!more) {
        fail(w, "out of memory", 13);
        return;
    }
    c->calls = more;
    c->calls[c->n_calls] =
        (di_writer_call){.name = strndup(call->name, call->name_size),
                         .arguments = strndup(call->arguments, call->arguments_size),
                         .name_size = call->name_size,
                         .arguments_size = call->arguments_size};
    c->n_calls++;
    if (!c->calls[c->n_calls - 1].name || !c->calls[c->n_calls - 1].arguments) {
        fail(w, "out of memory", 13);
    }
}

static void take_call(di_writer *w, const di_event *e, di_buffer *out) {
    di_writer_choice *c = &w->choices[e->choice];
    size_t name_size = strnlen(e->data, e->size);
    size_t skipped = name_size < e->size ? name_size + 1 : e->size;
    di_buffer text = DI_BUFFER_EMPTY; /* a copy whose parts end in NUL */
    di_buffer_append(&text, e->data, e->size);
    if (text.failed) {
        fail(w, "out of memory", 13);
        di_buffer_free(&text);
        return;
    }
    di_writer_call call = {.name = text.data,
                           .name_size = name_size,
                           .arguments = text.data + skipped,
                           .arguments_size = e->size - skipped};
    if (w->builds) {
        flush(w, e->choice, false, out);
        w->ops->call(w, e->choice, &call, out);
        c->began = true;
    }
    keep_call(w, c, &call);
    di_buffer_free(&text);
}

static void take_end(di_writer *w, const di_event *e, di_buffer *out) {
    di_writer_choice *c = &w->choices[e->choice];
    memcpy(&c->end, e->data, sizeof c->end);
    c->ended = true;
    w->n_ended++;
    if (c->end.reason == DI_REASON_FAILED) {
        fail(w, e->data + sizeof c->end, e->size - sizeof c->end);
    }
    if (!w->builds || w->failed) return;
    flush(w, e->choice, true, out);
    w->ops->end(w, e->choice, out);
}

static void take(di_writer *w, const di_event *e, di_buffer *out) {
    di_writer_choice *c = &w->choices[e->choice];
    if (w->failed && e->kind != DI_EVENT_END) return; /* what is kept may lack something */
    switch (e->kind) {
    case DI_EVENT_THOUGHT:
    case DI_EVENT_TEXT: take_text(w, e, out); break;
    case DI_EVENT_CALL: take_call(w, e, out); break;
    case DI_EVENT_IDS: keep(w, &c->ids, e->data, e->size); break;
    case DI_EVENT_TOKENS:
        if (w->request->stream) append(w, &c->tokens, e->data, e->size);
        if (!w->request->stream) keep(w, &c->all_tokens, e->data, e->size);
        break;
    case DI_EVENT_END: take_end(w, e, out); break;
    }
}

void di_writer_begin(di_writer *w, di_buffer *out) {
    if (w->ops->begin) w->ops->begin(w, out);
}

void di_writer_events(di_writer *w, const di_buffer *events, bool done, di_buffer *out) {
    di_event e;
    for (size_t at = 0; di_event_next(events, &at, &e);) take(w, &e, out);
    for (int32_t i = 0; w->builds && i < w->n_choices; i++) flush(w, i, false, out);
    if (done && w->n_ended < w->n_choices) fail(w, "out of memory", 13); /* an end was lost */
    if (!done || !w->request->stream) return;
    if (w->failed) {
        w->ops->failure(w, out);
    } else {
        w->ops->finish(w, out);
    }
}

void di_writer_fail(di_writer *w, const char *message, di_buffer *out) {
    fail(w, message, strlen(message));
    w->ops->failure(w, out);
}

/* False: it could not be. */
static bool keep_turn(const di_writer *w, int32_t choice, di_turns *turns) {
    const di_writer_choice *c = &w->choices[choice];
    char key[DI_TURN_KEY];
    di_turn_call *calls = calloc((size_t)c->n_calls, sizeof *calls);
    if (!calls) return false;
    for (int k = 0; k < c->n_calls; k++) {
        calls[k] = (di_turn_call){c->calls[k].name, c->calls[k].arguments, c->calls[k].name_size,
                                  c->calls[k].arguments_size};
    }
    snprintf(key, sizeof key, "%.20s_%d", w->id, choice);
    bool kept = di_turns_put(turns, &(di_turn){.key = key,
                                               .thinking = w->request->thinking,
                                               .ids = (const int32_t *)(const void *)c->ids.data,
                                               .n_ids = c->ids.size / sizeof(int32_t),
                                               .thought = c->thought.data ? c->thought.data : "",
                                               .thought_size = c->thought.size,
                                               .text = c->text.data ? c->text.data : "",
                                               .text_size = c->text.size,
                                               .calls = calls,
                                               .n_calls = (size_t)c->n_calls});
    free(calls);
    return kept;
}

void di_writer_keep_turns(di_writer *w, di_turns *turns) {
    for (int32_t i = 0; i < w->n_choices && !w->failed; i++) {
        if (w->choices[i].ids.size > 0 && !keep_turn(w, i, turns)) w->let_go = true;
    }
}

void di_writer_whole(di_writer *w, di_buffer *out) { w->ops->whole(w, out); }

/* ---- For the dialects ---- */

di_writer_usage di_writer_get_usage(const di_writer *w) {
    di_writer_usage sum = {0, 0, 0, 0, 0};
    for (int32_t i = 0; i < w->n_choices; i++) {
        const di_end_record *end = &w->choices[i].end;
        if (i % w->request->n_choices == 0) {
            sum.n_prompt += end->n_prompt;
            sum.n_cached += end->n_cached;
        }
        sum.n_answer += end->n_answer;
        sum.n_reasoning += end->n_reasoning;
        sum.n_accepted += end->n_accepted;
    }
    return sum;
}

void di_write_openai_usage(const di_writer *w, di_buffer *out) {
    di_writer_usage u = di_writer_get_usage(w);
    di_buffer_printf(out,
                     "\"usage\":{\"prompt_tokens\":%" PRId64 ",\"completion_tokens\":%" PRId64
                     ",\"total_tokens\":%" PRId64
                     ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRId64
                     "},\"completion_tokens_details\":{\"reasoning_tokens\":%" PRId64
                     ",\"accepted_prediction_tokens\":%" PRId64
                     "},\"prompt_cache_hit_tokens\":%" PRId64
                     ",\"prompt_cache_miss_tokens\":%" PRId64 "}",
                     u.n_prompt, u.n_answer, u.n_prompt + u.n_answer, u.n_cached, u.n_reasoning,
                     u.n_accepted, u.n_cached, u.n_prompt - u.n_cached);
}

void di_write_openai_failure(di_writer *w, di_buffer *out) {
    di_buffer_puts(out, "data: ");
    di_write_openai_error(out, w->failure, "server_error", NULL, 0, NULL);
    di_buffer_puts(out, "\n\ndata: [DONE]\n\n");
}

void di_write_text(di_buffer *out, const di_buffer *text) {
    di_json_write_string(out, text->data ? text->data : "", text->size);
}

void di_write_chat_tokens(const di_writer *w, const di_buffer *tokens, di_buffer *out) {
    di_buffer_putc(out, '[');
    for (size_t at = 0; at < tokens->size;) {
        di_token_record t;
        memcpy(&t, tokens->data + at, sizeof t);
        if (at > 0) di_buffer_putc(out, ',');
        at += sizeof t;
        di_write_token_entry(out, w->tokenizer, t.id, t.logprob);
        di_buffer_puts(out, ", \"top_logprobs\": [");
        for (int32_t i = 0; i < t.n_top; i++, at += sizeof(di_top_token)) {
            di_top_token top;
            memcpy(&top, tokens->data + at, sizeof top);
            if (i > 0) di_buffer_putc(out, ',');
            di_write_token_entry(out, w->tokenizer, top.id, top.logprob);
            di_buffer_putc(out, '}');
        }
        di_buffer_puts(out, "]}");
    }
    di_buffer_putc(out, ']');
}

void di_write_openai_error(di_buffer *out, const char *message, const char *type, const char *param,
                           size_t param_size, const char *code) {
    di_buffer_puts(out, "{\"error\":{\"message\":");
    di_lossy_write(out, message, strlen(message));
    di_buffer_printf(out, ",\"type\":\"%s\",\"param\":", type);
    if (param) {
        di_lossy_write(out, param, param_size);
    } else {
        di_buffer_puts(out, "null");
    }
    di_buffer_puts(out, ",\"code\":");
    if (code) {
        di_buffer_printf(out, "\"%s\"", code);
    } else {
        di_buffer_puts(out, "null");
    }
    di_buffer_puts(out, "}}");
}
