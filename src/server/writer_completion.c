/* Completions: text behind a prompt, in OpenAI's older form. */
#include <inttypes.h>
#include <string.h>

#include "base/json.h"
#include "server/token_json.h"
#include "server/writer.h"

/* A member of an object of top tokens, unless there is one of its name. names: of those before, each
 * between newlines, which cannot stand in a JSON string. */
static void put_top(const di_writer *w, int32_t id, float logprob, di_buffer *names,
                    di_buffer *out) {
    di_buffer name = DI_BUFFER_EMPTY;
    if (names->size == 0) di_buffer_putc(names, '\n');
    di_buffer_putc(&name, '\n');
    di_write_token(&name, w->tokenizer, id);
    di_buffer_putc(&name, '\n');
    if (name.failed || names->failed) {
        out->failed = true;
    } else if (!memmem(names->data, names->size, name.data, name.size)) {
        if (names->size > 1) di_buffer_putc(out, ',');
        di_buffer_append(names, name.data + 1, name.size - 1);
        di_buffer_append(out, name.data + 1, name.size - 2);
        di_buffer_putc(out, ':');
        di_write_logprob(out, logprob);
    }
    di_buffer_free(&name);
}

/* Tokens in the older form. Top tokens are members of an object by their text: where two have the
 * same, as parts of characters do, the likelier one stands. The token itself is always among them; what
 * was not predicted, the first of a prompt, has none. */
static void write_top(const di_writer *w, const di_token_record *t, const char *records,
                      di_buffer *out) {
    di_buffer names = DI_BUFFER_EMPTY;
    if (t->n_top == 0) {
        di_buffer_puts(out, "null");
        return;
    }
    di_buffer_putc(out, '{');
    for (int32_t i = 0; i < t->n_top; i++) {
        di_top_token top;
        memcpy(&top, records + (size_t)i * sizeof top, sizeof top);
        put_top(w, top.id, top.logprob, &names, out);
    }
    put_top(w, t->id, t->logprob, &names, out);
    di_buffer_putc(out, '}');
    di_buffer_free(&names);
}

typedef enum column { COLUMN_TOKENS, COLUMN_LOGPROBS, COLUMN_TOP } column;

static void write_column(const di_writer *w, const di_buffer *tokens, column which,
                         di_buffer *out) {
    di_buffer_putc(out, '[');
    for (size_t at = 0; at < tokens->size;) {
        di_token_record t;
        memcpy(&t, tokens->data + at, sizeof t);
        if (at > 0) di_buffer_putc(out, ',');
        at += sizeof t;
        if (which == COLUMN_TOKENS) di_write_token(out, w->tokenizer, t.id);
        if (which == COLUMN_LOGPROBS) di_write_logprob(out, t.logprob);
        if (which == COLUMN_TOP) write_top(w, &t, tokens->data + at, out);
        at += (size_t)t.n_top * sizeof(di_top_token);
    }
    di_buffer_putc(out, ']');
}

/* The begin token that was put in front of a prompt is told, the first one, but stands in no text. */
static bool is_silent(const di_writer *w, int32_t choice, const char *bytes, size_t size) {
    int32_t prompt = choice / w->request->n_choices;
    if (!w->request->scores_prompt || w->choices[choice].told) return false;
    return size > w->request->echo_sizes[prompt] ||
           memcmp(bytes, w->request->echoes[prompt], size) != 0;
}

/* Where each token begins in the text, in characters, as far as tokens were told before; what ends a
 * character begins behind it. */
static void write_offsets(di_writer *w, int32_t choice, const di_buffer *tokens, di_buffer *out) {
    di_writer_choice *c = &w->choices[choice];
    bool any = false;
    for (size_t at = 0; at < tokens->size; any = true) {
        di_token_record t;
        size_t size = 0;
        memcpy(&t, tokens->data + at, sizeof t);
        at += sizeof t + (size_t)t.n_top * sizeof(di_top_token);
        const char *bytes = di_tokenizer_bytes(w->tokenizer, t.id, &size);
        di_buffer_printf(out, "%s%" PRId64, any ? "," : "", c->n_characters);
        bool silent = !bytes || is_silent(w, choice, bytes, size);
        c->told = true;
        if (silent) continue;
        for (size_t i = 0; i < size; i++) {
            c->n_characters += ((unsigned char)bytes[i] & 0xC0) != 0x80;
        }
    }
}

static void write_tokens(di_writer *w, int32_t choice, const di_buffer *tokens, di_buffer *out) {
    di_buffer_puts(out, "{\"text_offset\":[");
    write_offsets(w, choice, tokens, out);
    di_buffer_puts(out, "],\"tokens\":");
    write_column(w, tokens, COLUMN_TOKENS, out);
    di_buffer_puts(out, ",\"token_logprobs\":");
    write_column(w, tokens, COLUMN_LOGPROBS, out);
    di_buffer_puts(out, ",\"top_logprobs\":");
    if (w->request->top_logprobs > 0) {
        write_column(w, tokens, COLUMN_TOP, out);
    } else {
        di_buffer_puts(out, "null");
    }
    di_buffer_putc(out, '}');
}

static const char *finish_name(const di_writer_choice *c) {
    return c->end.reason == DI_REASON_LENGTH ? "length" : "stop";
}

static void head(const di_writer *w, di_buffer *out) {
    di_buffer_printf(out,
                     "{\"id\":\"cmpl-%s\",\"object\":\"text_completion\",\"created\":%" PRId64
                     ",\"model\":",
                     w->id, w->created);
    di_json_write_string(out, w->model, w->model_size);
    di_buffer_puts(out, ",\"choices\":[");
}

/* ---- Streams ---- */

static void chunk(di_writer *w, int32_t choice, const char *text, size_t size, const char *finish,
                  di_buffer *out) {
    const di_writer_choice *c = &w->choices[choice];
    di_buffer_puts(out, "data: ");
    head(w, out);
    di_buffer_printf(out, "{\"index\":%d,\"text\":", choice);
    di_json_write_string(out, text, size);
    di_buffer_puts(out, ",\"logprobs\":");
    if (c->tokens.size > 0) {
        write_tokens(w, choice, &c->tokens, out);
    } else {
        di_buffer_puts(out, "null");
    }
    if (finish) {
        di_buffer_printf(out, ",\"finish_reason\":\"%s\"}],\"seed\":%" PRIu64, finish,
                         w->request->sampling.seed);
    } else {
        di_buffer_puts(out, ",\"finish_reason\":null}]");
    }
    di_buffer_puts(out, w->request->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void begin(di_writer *w, di_buffer *out) {
    if (!w->request->echo) return;
    for (int32_t i = 0; i < w->n_choices; i++) {
        int32_t prompt = i / w->request->n_choices;
        chunk(w, i, w->request->echoes[prompt], w->request->echo_sizes[prompt], NULL, out);
    }
}

static void piece(di_writer *w, int32_t choice, di_buffer *out) {
    const di_buffer *text = &w->choices[choice].piece;
    chunk(w, choice, text->data ? text->data : "", text->size, NULL, out);
}

static void call(di_writer *w, int32_t choice, const di_writer_call *c, di_buffer *out) {
    (void)w;
    (void)choice;
    (void)c;
    (void)out; /* a reader of raw text finds none */
}

static void end(di_writer *w, int32_t choice, di_buffer *out) {
    chunk(w, choice, "", 0, finish_name(&w->choices[choice]), out);
}

static void finish(di_writer *w, di_buffer *out) {
    if (w->request->include_usage) {
        di_buffer_puts(out, "data: ");
        head(w, out);
        di_buffer_puts(out, "],");
        di_write_openai_usage(w, out);
        di_buffer_puts(out, "}\n\n");
    }
    di_buffer_puts(out, "data: [DONE]\n\n");
}

/* ---- The body ---- */

static void whole(di_writer *w, di_buffer *out) {
    head(w, out);
    for (int32_t i = 0; i < w->n_choices; i++) {
        const di_writer_choice *c = &w->choices[i];
        int32_t prompt = i / w->request->n_choices;
        di_buffer text = DI_BUFFER_EMPTY;
        if (w->request->echo) {
            di_buffer_append(&text, w->request->echoes[prompt], w->request->echo_sizes[prompt]);
        }
        di_buffer_append(&text, c->text.data ? c->text.data : "", c->text.size);
        if (text.failed) out->failed = true;
        di_buffer_printf(out, "%s{\"index\":%d,\"text\":", i ? "," : "", i);
        di_write_text(out, &text);
        di_buffer_free(&text);
        di_buffer_puts(out, ",\"logprobs\":");
        if (w->request->logprobs) {
            write_tokens(w, i, &c->all_tokens, out);
        } else {
            di_buffer_puts(out, "null");
        }
        di_buffer_printf(out, ",\"finish_reason\":\"%s\"}", finish_name(c));
    }
    di_buffer_puts(out, "],");
    di_write_openai_usage(w, out);
    di_buffer_printf(out, ",\"seed\":%" PRIu64 "}", w->request->sampling.seed);
}

const di_writer_ops di_completion_writer = {.begin = begin,
                                            .piece = piece,
                                            .call = call,
                                            .end = end,
                                            .finish = finish,
                                            .failure = di_write_openai_failure,
                                            .whole = whole,
                                            .keep_alive = ": keep-alive\n\n"};
