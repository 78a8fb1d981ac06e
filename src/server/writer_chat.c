/* Chat completions: what OpenAI's clients read, with DeepSeek's reasoning_content. */
#include <inttypes.h>
#include <string.h>

#include "base/json.h"
#include "server/writer.h"

static const char *finish_name(const di_writer_choice *c) {
    switch (c->end.reason) {
    case DI_REASON_LENGTH: return "length";
    case DI_REASON_CALLS: return "tool_calls";
    default: return "stop";
    }
}

/* ---- Streams ---- */

static void chunk_head(const di_writer *w, di_buffer *out) {
    di_buffer_printf(out,
                     "data: {\"id\":\"chatcmpl-%s\",\"object\":\"chat.completion.chunk\","
                     "\"created\":%" PRId64 ",\"model\":",
                     w->id, w->created);
    di_json_write_string(out, w->model, w->model_size);
    di_buffer_puts(out, ",\"choices\":[");
}

/* What the answer was made with, so that it can be made again. */
static void write_origin(const di_writer *w, di_buffer *out) {
    di_buffer_printf(out, ",\"system_fingerprint\":\"deepinfer-%s\",\"seed\":%" PRIu64,
                     di_version(), w->request->sampling.seed);
}

static void chunk_tail(const di_writer *w, bool last, di_buffer *out) {
    di_buffer_putc(out, ']');
    if (last) write_origin(w, out);
    di_buffer_puts(out, w->request->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void delta_head(const di_writer *w, int32_t choice, di_buffer *out) {
    chunk_head(w, out);
    di_buffer_printf(out, "{\"index\":%d,\"delta\":{", choice);
}

static void delta_tail(const di_writer *w, int32_t choice, const char *finish, di_buffer *out) {
    const di_writer_choice *c = &w->choices[choice];
    di_buffer_puts(out, "},\"logprobs\":");
    if (c->tokens.size > 0) {
        di_buffer_puts(out, "{\"content\":");
        di_write_chat_tokens(w, &c->tokens, out);
        di_buffer_puts(out, ",\"refusal\":null}");
    } else {
        di_buffer_puts(out, "null");
    }
    if (finish) {
        di_buffer_printf(out, ",\"finish_reason\":\"%s\"}", finish);
    } else {
        di_buffer_puts(out, ",\"finish_reason\":null}");
    }
    chunk_tail(w, finish != NULL, out);
}

/* The role stands in a chunk of its own, the first. */
static void tell_role(di_writer *w, int32_t choice, di_buffer *out) {
    if (w->choices[choice].began) return;
    w->choices[choice].began = true;
    delta_head(w, choice, out);
    di_buffer_puts(out, "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                        "\"finish_reason\":null}");
    chunk_tail(w, false, out);
}

static void piece(di_writer *w, int32_t choice, di_buffer *out) {
    const di_writer_choice *c = &w->choices[choice];
    tell_role(w, choice, out);
    delta_head(w, choice, out);
    if (c->piece.size > 0) {
        di_buffer_puts(out, c->kind == DI_EVENT_TEXT ? "\"content\":" : "\"reasoning_content\":");
        di_write_text(out, &c->piece);
    }
    delta_tail(w, choice, NULL, out);
}

static void write_call(const di_writer *w, int32_t choice, int index, const di_writer_call *call,
                       di_buffer *out) {
    di_buffer_printf(out, "\"id\":\"call_%.20s_%d_%d\",\"type\":\"function\",\"function\":{", w->id,
                     choice, index);
    di_buffer_puts(out, "\"name\":");
    di_json_write_string(out, call->name, call->name_size);
    di_buffer_puts(out, ",\"arguments\":");
    di_json_write_string(out, call->arguments, call->arguments_size);
    di_buffer_putc(out, '}');
}

static void call_chunk(di_writer *w, int32_t choice, const di_writer_call *call, di_buffer *out) {
    int index = w->choices[choice].n_calls;
    tell_role(w, choice, out);
    delta_head(w, choice, out);
    di_buffer_printf(out, "\"tool_calls\":[{\"index\":%d,", index);
    write_call(w, choice, index, call, out);
    di_buffer_puts(out, "}]");
    delta_tail(w, choice, NULL, out);
    di_buffer_clear(&w->choices[choice].tokens);
}

static void end(di_writer *w, int32_t choice, di_buffer *out) {
    tell_role(w, choice, out);
    delta_head(w, choice, out);
    delta_tail(w, choice, finish_name(&w->choices[choice]), out);
}

static void finish(di_writer *w, di_buffer *out) {
    if (w->request->include_usage) {
        chunk_head(w, out);
        di_buffer_puts(out, "],");
        di_write_openai_usage(w, out);
        di_buffer_puts(out, "}\n\n");
    }
    di_buffer_puts(out, "data: [DONE]\n\n");
}

/* ---- The body ---- */

static void write_message(const di_writer *w, int32_t choice, di_buffer *out) {
    const di_writer_choice *c = &w->choices[choice];
    di_buffer_puts(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->n_calls > 0 && c->text.size == 0) {
        di_buffer_puts(out, "null");
    } else {
        di_write_text(out, &c->text);
    }
    if (c->thought.size > 0) {
        di_buffer_puts(out, ",\"reasoning_content\":");
        di_write_text(out, &c->thought);
    }
    for (int i = 0; i < c->n_calls; i++) {
        di_buffer_puts(out, i == 0 ? ",\"tool_calls\":[{" : ",{");
        write_call(w, choice, i, &c->calls[i], out);
        di_buffer_puts(out, i + 1 < c->n_calls ? "}" : "}]");
    }
    di_buffer_putc(out, '}');
}

static void whole(di_writer *w, di_buffer *out) {
    di_buffer_printf(out,
                     "{\"id\":\"chatcmpl-%s\",\"object\":\"chat.completion\",\"created\":%" PRId64
                     ",\"model\":",
                     w->id, w->created);
    di_json_write_string(out, w->model, w->model_size);
    di_buffer_puts(out, ",\"choices\":[");
    for (int32_t i = 0; i < w->n_choices; i++) {
        di_buffer_printf(out, "%s{\"index\":%d,", i ? "," : "", i);
        write_message(w, i, out);
        di_buffer_puts(out, ",\"logprobs\":");
        if (w->request->logprobs) {
            di_buffer_puts(out, "{\"content\":");
            di_write_chat_tokens(w, &w->choices[i].all_tokens, out);
            di_buffer_puts(out, ",\"refusal\":null}");
        } else {
            di_buffer_puts(out, "null");
        }
        di_buffer_printf(out, ",\"finish_reason\":\"%s\"}", finish_name(&w->choices[i]));
    }
    di_buffer_puts(out, "],");
    di_write_openai_usage(w, out);
    write_origin(w, out);
    di_buffer_putc(out, '}');
}

const di_writer_ops di_chat_writer = {.begin = NULL,
                                      .piece = piece,
                                      .call = call_chunk,
                                      .end = end,
                                      .finish = finish,
                                      .failure = di_write_openai_failure,
                                      .whole = whole,
                                      .keep_alive = ": keep-alive\n\n"};
