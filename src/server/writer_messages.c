/* Messages: what Anthropic's clients read. An answer is a list of blocks: thinking, text, tool_use. */
#include <inttypes.h>
#include <string.h>

#include "base/json.h"
#include "base/lossy.h"
#include "server/writer.h"

static void event(di_buffer *out, const char *type) {
    di_buffer_printf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static const char *stop_reason(const di_writer_choice *c) {
    if (c->end.reason == DI_REASON_CALLS) return "tool_use";
    if (c->end.reason == DI_REASON_LENGTH) return "max_tokens";
    return c->end.stop >= 0 ? "stop_sequence" : "end_turn";
}

static void write_stop(const di_writer *w, di_buffer *out) {
    const di_writer_choice *c = &w->choices[0];
    const char *reason = stop_reason(c);
    const char *stop = strcmp(reason, "stop_sequence") == 0 ? w->request->stops[c->end.stop] : NULL;
    di_buffer_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (stop) {
        di_json_write_string(out, stop, strlen(stop));
    } else {
        di_buffer_puts(out, "null");
    }
}

/* Input is what was not found in the cache. */
static void write_usage(const di_writer *w, di_buffer *out) {
    di_writer_usage u = di_writer_get_usage(w);
    di_buffer_printf(out,
                     "\"usage\":{\"input_tokens\":%" PRId64
                     ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%" PRId64
                     ",\"output_tokens\":%" PRId64 "}",
                     u.n_prompt - u.n_cached, u.n_cached, u.n_answer);
}

static void write_head(const di_writer *w, di_buffer *out) {
    di_buffer_printf(out,
                     "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":",
                     w->id);
    di_json_write_string(out, w->model, w->model_size);
}

/* ---- Blocks ---- */

static void close_block(di_writer *w, di_buffer *out) {
    bool thought = w->open_kind == DI_EVENT_THOUGHT;
    if (!w->open) return;
    w->open = false;
    if (thought) {
        event(out, "content_block_delta");
        di_buffer_printf(
            out, ",\"index\":%d,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"\"}}\n\n",
            w->n_blocks - 1);
    }
    event(out, "content_block_stop");
    di_buffer_printf(out, ",\"index\":%d}\n\n", w->n_blocks - 1);
    if (!w->whole) return;
    const di_buffer *text = thought ? &w->choices[0].thought : &w->choices[0].text;
    di_buffer_puts(&w->items, w->n_blocks > 1 ? "," : "");
    di_buffer_puts(&w->items, thought ? "{\"type\":\"thinking\",\"thinking\":"
                                      : "{\"type\":\"text\",\"text\":");
    di_json_write_string(&w->items, text->data + w->block_begin, text->size - w->block_begin);
    di_buffer_puts(&w->items, thought ? ",\"signature\":\"\"}" : "}");
}

static void open_block(di_writer *w, di_event_kind kind, di_buffer *out) {
    const di_writer_choice *c = &w->choices[0];
    bool thought = kind == DI_EVENT_THOUGHT;
    if (w->open && w->open_kind == kind) return;
    close_block(w, out);
    w->open = true;
    w->open_kind = kind;
    /* What is kept has the piece that is about to go out already. */
    w->block_begin = w->whole ? (thought ? c->thought.size : c->text.size) - c->piece.size : 0;
    event(out, "content_block_start");
    di_buffer_printf(out, ",\"index\":%d,\"content_block\":%s}\n\n", w->n_blocks++,
                     thought ? "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"
                             : "{\"type\":\"text\",\"text\":\"\"}");
}

/* ---- Streams ---- */

static void begin(di_writer *w, di_buffer *out) {
    event(out, "message_start");
    di_buffer_puts(out, ",\"message\":");
    write_head(w, out);
    di_buffer_printf(out,
                     ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{"
                     "\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,"
                     "\"cache_read_input_tokens\":0,\"output_tokens\":0}}}\n\n",
                     w->request->prompts[0].size);
}

static void piece(di_writer *w, int32_t choice, di_buffer *out) {
    const di_writer_choice *c = &w->choices[choice];
    if (c->piece.size == 0) return;
    open_block(w, c->kind, out);
    event(out, "content_block_delta");
    di_buffer_printf(out, ",\"index\":%d,\"delta\":%s", w->n_blocks - 1,
                     c->kind == DI_EVENT_THOUGHT ? "{\"type\":\"thinking_delta\",\"thinking\":"
                                                 : "{\"type\":\"text_delta\",\"text\":");
    di_write_text(out, &c->piece);
    di_buffer_puts(out, "}}\n\n");
}

static void write_call(const di_writer *w, int32_t choice, const di_writer_call *call,
                       const char *input, size_t size, di_buffer *out) {
    di_buffer_printf(out, "{\"type\":\"tool_use\",\"id\":\"toolu_%.20s_0_%d\",\"name\":", w->id,
                     w->choices[choice].n_calls);
    di_json_write_string(out, call->name, call->name_size);
    di_buffer_puts(out, ",\"input\":");
    di_buffer_append(out, input, size);
    di_buffer_putc(out, '}');
}

static void call(di_writer *w, int32_t choice, const di_writer_call *one, di_buffer *out) {
    close_block(w, out);
    event(out, "content_block_start");
    di_buffer_printf(out, ",\"index\":%d,\"content_block\":", w->n_blocks);
    write_call(w, choice, one, "{}", 2, out);
    di_buffer_puts(out, "}\n\n");
    event(out, "content_block_delta");
    di_buffer_printf(out,
                     ",\"index\":%d,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":",
                     w->n_blocks);
    di_json_write_string(out, one->arguments, one->arguments_size);
    di_buffer_puts(out, "}}\n\n");
    event(out, "content_block_stop");
    di_buffer_printf(out, ",\"index\":%d}\n\n", w->n_blocks);
    if (w->whole) {
        di_buffer_puts(&w->items, w->n_blocks > 0 ? "," : "");
        write_call(w, choice, one, one->arguments, one->arguments_size, &w->items);
    }
    w->n_blocks++;
}

static void end(di_writer *w, int32_t choice, di_buffer *out) {
    (void)choice;
    close_block(w, out);
}

static void finish(di_writer *w, di_buffer *out) {
    event(out, "message_delta");
    di_buffer_puts(out, ",\"delta\":{");
    write_stop(w, out);
    di_buffer_puts(out, "},");
    write_usage(w, out);
    di_buffer_puts(out, "}\n\n");
    event(out, "message_stop");
    di_buffer_puts(out, "}\n\n");
}

static void failure(di_writer *w, di_buffer *out) {
    event(out, "error");
    di_buffer_puts(out, ",\"error\":{\"type\":\"api_error\",\"message\":");
    di_lossy_write(out, w->failure, strlen(w->failure));
    di_buffer_puts(out, "}}\n\n");
}

/* ---- The body ---- */

static void whole(di_writer *w, di_buffer *out) {
    write_head(w, out);
    di_buffer_puts(out, ",\"content\":[");
    if (w->items.size > 0) di_buffer_append(out, w->items.data, w->items.size);
    if (w->items.failed) out->failed = true;
    di_buffer_puts(out, "],");
    write_stop(w, out);
    di_buffer_putc(out, ',');
    write_usage(w, out);
    di_buffer_putc(out, '}');
}

const di_writer_ops di_messages_writer = {.begin = begin,
                                          .piece = piece,
                                          .call = call,
                                          .end = end,
                                          .finish = finish,
                                          .failure = failure,
                                          .whole = whole,
                                          .keep_alive =
                                              "event: ping\ndata: {\"type\":\"ping\"}\n\n"};
