/* Responses: OpenAI's newer form. An answer is a list of items: reasoning, message, function_call. */
#include <inttypes.h>
#include <string.h>

#include "base/json.h"
#include "base/lossy.h"
#include "server/writer.h"

static void event(di_writer *w, const char *type, di_buffer *out) {
    di_buffer_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d", type, type,
                     w->sequence++);
}

/* What stands in an item of text, and what its events are called. */
typedef struct part_names {
    const char *item, *prefix, *begin; /* its type, that of its id, what stands before its parts */
    const char *type, *part_end;       /* of a part, what stands behind its text */
    const char *index, *part_added, *part_done, *delta, *done, *delta_end;
} part_names;

static const part_names message_names = {
    .item = "message",
    .type = "output_text",
    .begin = "\"role\":\"assistant\",\"content\":[",
    .prefix = "msg",
    .part_end = ",\"annotations\":[],\"logprobs\":[]}",
    .index = "content_index",
    .part_added = "response.content_part.added",
    .part_done = "response.content_part.done",
    .delta = "response.output_text.delta",
    .done = "response.output_text.done",
    .delta_end = ",\"logprobs\":[]}\n\n",
};
static const part_names thought_names = {
    .item = "reasoning",
    .type = "reasoning_text",
    .begin = "\"summary\":[],\"content\":[",
    .prefix = "rs",
    .part_end = "}",
    .index = "content_index",
    .part_added = "response.content_part.added",
    .part_done = "response.content_part.done",
    .delta = "response.reasoning_text.delta",
    .done = "response.reasoning_text.done",
    .delta_end = "}\n\n",
};
/* Who asks for summaries reads no thoughts elsewhere. */
static const part_names summary_names = {
    .item = "reasoning",
    .type = "summary_text",
    .begin = "\"summary\":[",
    .prefix = "rs",
    .part_end = "}",
    .index = "summary_index",
    .part_added = "response.reasoning_summary_part.added",
    .part_done = "response.reasoning_summary_part.done",
    .delta = "response.reasoning_summary_text.delta",
    .done = "response.reasoning_summary_text.done",
    .delta_end = "}\n\n",
};

static const part_names *names_of(const di_writer *w, di_event_kind kind) {
    if (kind != DI_EVENT_THOUGHT) return &message_names;
    return w->request->summary ? &summary_names : &thought_names;
}

/* ,"item_id":...,"output_index":...,"content_index":0 */
static void place(const di_writer *w, di_buffer *out) {
    const part_names *names = names_of(w, w->open_kind);
    di_buffer_printf(out, ",\"item_id\":\"%s_%.20s_%d\",\"output_index\":%d,\"%s\":0",
                     names->prefix, w->id, w->n_blocks - 1, w->n_blocks - 1, names->index);
}

static void write_part(const part_names *names, const char *text, size_t size, di_buffer *out) {
    di_buffer_printf(out, "{\"type\":\"%s\",\"text\":", names->type);
    di_json_write_string(out, text, size);
    di_buffer_puts(out, names->part_end);
}

/* The one that the length cut is not whole. */
static const char *item_status(const di_writer *w) {
    const di_writer_choice *c = &w->choices[0];
    return c->ended && c->end.reason == DI_REASON_LENGTH ? "incomplete" : "completed";
}

/* text NULL: it begins, and has no content yet. */
static void write_item(const di_writer *w, const part_names *names, const char *text, size_t size,
                       di_buffer *out) {
    di_buffer_printf(out, "{\"id\":\"%s_%.20s_%d\",\"type\":\"%s\",\"status\":\"%s\",",
                     names->prefix, w->id, w->n_blocks - 1, names->item,
                     text ? item_status(w) : "in_progress");
    di_buffer_puts(out, names->begin);
    if (text) write_part(names, text, size, out);
    di_buffer_puts(out, "]}");
}

/* ---- Items of text ---- */

static void close_block(di_writer *w, di_buffer *out) {
    bool thought = w->open_kind == DI_EVENT_THOUGHT;
    const part_names *names = names_of(w, w->open_kind);
    if (!w->open) return;
    w->open = false;
    const di_buffer *all = thought ? &w->choices[0].thought : &w->choices[0].text;
    const char *text = all->data + w->block_begin;
    size_t size = all->size - w->block_begin;
    event(w, names->done, out);
    place(w, out);
    di_buffer_puts(out, ",\"text\":");
    di_json_write_string(out, text, size);
    di_buffer_puts(out, names->delta_end);
    event(w, names->part_done, out);
    place(w, out);
    di_buffer_puts(out, ",\"part\":");
    write_part(names, text, size, out);
    di_buffer_puts(out, "}\n\n");
    event(w, "response.output_item.done", out);
    di_buffer_printf(out, ",\"output_index\":%d,\"item\":", w->n_blocks - 1);
    write_item(w, names, text, size, out);
    di_buffer_puts(out, "}\n\n");
    if (w->n_blocks > 1) di_buffer_putc(&w->items, ',');
    write_item(w, names, text, size, &w->items);
}

static void open_block(di_writer *w, di_event_kind kind, di_buffer *out) {
    const di_writer_choice *c = &w->choices[0];
    const part_names *names = names_of(w, kind);
    if (w->open && w->open_kind == kind) return;
    close_block(w, out);
    w->open = true;
    w->open_kind = kind;
    w->n_blocks++;
    /* What is kept has the piece that is about to go out already. */
    w->block_begin = (kind == DI_EVENT_THOUGHT ? c->thought.size : c->text.size) - c->piece.size;
    event(w, "response.output_item.added", out);
    di_buffer_printf(out, ",\"output_index\":%d,\"item\":", w->n_blocks - 1);
    write_item(w, names, NULL, 0, out);
    di_buffer_puts(out, "}\n\n");
    event(w, names->part_added, out);
    place(w, out);
    di_buffer_puts(out, ",\"part\":");
    write_part(names, "", 0, out);
    di_buffer_puts(out, "}\n\n");
}

static void piece(di_writer *w, int32_t choice, di_buffer *out) {
    const di_writer_choice *c = &w->choices[choice];
    const part_names *names = names_of(w, c->kind);
    if (c->piece.size == 0) return;
    open_block(w, c->kind, out);
    event(w, names->delta, out);
    place(w, out);
    di_buffer_puts(out, ",\"delta\":");
    di_write_text(out, &c->piece);
    di_buffer_puts(out, names->delta_end);
}

/* ---- Calls ---- */

static void write_call(const di_writer *w, int32_t choice, const di_writer_call *call, bool done,
                       di_buffer *out) {
    int index = w->choices[choice].n_calls;
    di_buffer_printf(out,
                     "{\"id\":\"fc_%.20s_%d\",\"type\":\"function_call\",\"status\":\"%s\","
                     "\"call_id\":\"call_%.20s_0_%d\",\"name\":",
                     w->id, index, done ? "completed" : "in_progress", w->id, index);
    di_json_write_string(out, call->name, call->name_size);
    di_buffer_puts(out, ",\"arguments\":");
    di_json_write_string(out, call->arguments, done ? call->arguments_size : 0);
    di_buffer_putc(out, '}');
}

static void call_event(di_writer *w, const char *type, const char *field, int32_t choice,
                       const di_writer_call *call, di_buffer *out) {
    event(w, type, out);
    di_buffer_printf(out, ",\"item_id\":\"fc_%.20s_%d\",\"output_index\":%d,\"%s\":", w->id,
                     w->choices[choice].n_calls, w->n_blocks - 1, field);
    di_json_write_string(out, call->arguments, call->arguments_size);
}

static void item_event(di_writer *w, const char *type, int32_t choice, const di_writer_call *call,
                       bool done, di_buffer *out) {
    event(w, type, out);
    di_buffer_printf(out, ",\"output_index\":%d,\"item\":", w->n_blocks - 1);
    write_call(w, choice, call, done, out);
    di_buffer_puts(out, "}\n\n");
}

static void call(di_writer *w, int32_t choice, const di_writer_call *one, di_buffer *out) {
    close_block(w, out);
    w->n_blocks++;
    item_event(w, "response.output_item.added", choice, one, false, out);
    call_event(w, "response.function_call_arguments.delta", "delta", choice, one, out);
    di_buffer_puts(out, "}\n\n");
    call_event(w, "response.function_call_arguments.done", "arguments", choice, one, out);
    di_buffer_puts(out, ",\"name\":");
    di_json_write_string(out, one->name, one->name_size);
    di_buffer_puts(out, "}\n\n");
    item_event(w, "response.output_item.done", choice, one, true, out);
    if (w->n_blocks > 1) di_buffer_putc(&w->items, ',');
    write_call(w, choice, one, true, &w->items);
}

/* ---- The response ---- */

static void write_usage(const di_writer *w, di_buffer *out) {
    di_writer_usage u = di_writer_get_usage(w);
    di_buffer_printf(out,
                     "\"usage\":{\"input_tokens\":%" PRId64
                     ",\"input_tokens_details\":{\"cached_tokens\":%" PRId64
                     "},\"output_tokens\":%" PRId64
                     ",\"output_tokens_details\":{\"reasoning_tokens\":%" PRId64
                     "},\"total_tokens\":%" PRId64 "}",
                     u.n_prompt, u.n_cached, u.n_answer, u.n_reasoning, u.n_prompt + u.n_answer);
}

static void write_response(const di_writer *w, const char *status, di_buffer *out) {
    bool over = strcmp(status, "in_progress") != 0, failed = strcmp(status, "failed") == 0;
    di_buffer_printf(out,
                     "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%" PRId64
                     ",\"status\":\"%s\",\"error\":",
                     w->id, w->created, status);
    if (failed) {
        di_buffer_puts(out, "{\"code\":\"server_error\",\"message\":");
        di_lossy_write(out, w->failure, strlen(w->failure));
        di_buffer_putc(out, '}');
    } else {
        di_buffer_puts(out, "null");
    }
    di_buffer_printf(out, ",\"incomplete_details\":%s,\"model\":",
                     strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}"
                                                       : "null");
    di_json_write_string(out, w->model, w->model_size);
    di_buffer_puts(out, ",\"output\":[");
    if (w->items.size > 0) di_buffer_append(out, w->items.data, w->items.size);
    if (w->items.failed) out->failed = true;
    di_buffer_puts(out, "],\"previous_response_id\":");
    if (w->request->previous[0]) {
        di_json_write_string(out, w->request->previous, strlen(w->request->previous));
    } else {
        di_buffer_puts(out, "null");
    }
    di_buffer_printf(out, ",\"store\":%s,%s,", w->request->stores ? "true" : "false",
                     w->request->given);
    if (over && !failed) {
        write_usage(w, out);
    } else {
        di_buffer_puts(out, "\"usage\":null");
    }
    di_buffer_putc(out, '}');
}

static void response_event(di_writer *w, const char *type, const char *status, di_buffer *out) {
    event(w, type, out);
    di_buffer_puts(out, ",\"response\":");
    write_response(w, status, out);
    di_buffer_puts(out, "}\n\n");
}

static const char *final_status(const di_writer *w) {
    return w->choices[0].end.reason == DI_REASON_LENGTH ? "incomplete" : "completed";
}

static void begin(di_writer *w, di_buffer *out) {
    response_event(w, "response.created", "in_progress", out);
    response_event(w, "response.in_progress", "in_progress", out);
}

static void end(di_writer *w, int32_t choice, di_buffer *out) {
    (void)choice;
    close_block(w, out);
}

static void finish(di_writer *w, di_buffer *out) {
    bool cut = w->choices[0].end.reason == DI_REASON_LENGTH;
    response_event(w, cut ? "response.incomplete" : "response.completed", final_status(w), out);
}

static void failure(di_writer *w, di_buffer *out) {
    response_event(w, "response.failed", "failed", out);
}

static void whole(di_writer *w, di_buffer *out) { write_response(w, final_status(w), out); }

const di_writer_ops di_responses_writer = {.begin = begin,
                                           .piece = piece,
                                           .call = call,
                                           .end = end,
                                           .finish = finish,
                                           .failure = failure,
                                           .whole = whole,
                                           .keep_alive = ": keep-alive\n\n"};
