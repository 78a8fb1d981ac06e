/* Bodies of OpenAI's Responses, rendered as the conversation of its older dialect. It comes whole with
 * every request, or goes on from a response that was kept (stored.h). */
#include <string.h>

#include "base/error.h"
#include "server/constraint.h"
#include "server/fields.h"
#include "server/json_build.h"
#include "server/openai_request.h"
#include "server/read_internal.h"

enum { MAX_REFERENCES = 4096 }; /* to items that were kept; each takes a search */

/* ---- The conversation ----
 *
 * What the model did stands in several items (reasoning, message, function_call); they become one
 * message of the assistant, which is open until something else comes. */
typedef struct builder {
    di_buffer *out;
    int n;     /* messages */
    bool open; /* one of the assistant is being gathered: */
    di_generation *g;
    di_arena *arena; /* of trees that are read on the way */
    int n_references;
    size_t reference_bytes; /* of what they stand for: a few bytes may name much, many times */
    di_buffer thought, text, calls;
    int n_calls;
} builder;

static void close_assistant(builder *b) {
    int n = 1;
    if (!b->open) return;
    b->open = false;
    di_build_next(b->out, &b->n);
    di_buffer_puts(b->out, "{\"role\":\"assistant\"");
    di_build_text(b->out, &n, "content", b->text.data ? b->text.data : "", b->text.size);
    if (b->thought.size > 0) {
        di_build_text(b->out, &n, "reasoning_content", b->thought.data, b->thought.size);
    }
    if (b->n_calls > 0) {
        di_buffer_puts(b->out, ",\"tool_calls\":[");
        di_buffer_append(b->out, b->calls.data, b->calls.size);
        di_buffer_putc(b->out, ']');
    }
    di_buffer_putc(b->out, '}');
    if (b->thought.failed || b->text.failed || b->calls.failed) b->out->failed = true;
    di_buffer_clear(&b->thought);
    di_buffer_clear(&b->text);
    di_buffer_clear(&b->calls);
    b->n_calls = 0;
}

static bool is_type(const di_json *item, const char *type) {
    return di_json_is_string(di_field(item, "type"), type);
}

static void join(const di_json *content, di_buffer *out) {
    if (!content) return;
    if (content->type == DI_JSON_STRING) di_buffer_append(out, content->text, content->length);
    for (const di_json *p = content->type == DI_JSON_ARRAY ? content->first : NULL; p;
         p = p->next) {
        const di_json *text = di_field(p, "text");
        if (text && text->type == DI_JSON_STRING) di_buffer_append(out, text->text, text->length);
    }
}

/* The parts of a user's or system's message: input_text is text, images stay what they are. */
static di_status build_content(const di_json *content, int index, const char *field, di_buffer *out,
                               di_error *error) {
    int n = 0;
    if (content && content->type == DI_JSON_STRING) {
        di_json_write(out, content);
        return DI_OK;
    }
    if (!content || content->type != DI_JSON_ARRAY) {
        return di_fail(error, DI_ERR_INVALID, "input[%d].%s: a text or a list of parts is needed",
                       index, field);
    }
    di_buffer_putc(out, '[');
    for (const di_json *p = content->first; p; p = p->next) {
        const di_json *text = di_field(p, "text");
        int members = 1;
        bool is_text = is_type(p, "input_text") || is_type(p, "output_text") || is_type(p, "text");
        if (!is_text || !text || text->type != DI_JSON_STRING) {
            return di_fail(error, DI_ERR_UNSUPPORTED,
                           "input[%d].%s: only parts of text are supported", index, field);
        }
        di_build_next(out, &n);
        di_buffer_puts(out, "{\"type\":\"text\"");
        di_build_member(out, &members, "text", text);
        di_buffer_putc(out, '}');
    }
    di_buffer_putc(out, ']');
    return DI_OK;
}

static di_status add_message(builder *b, const di_json *item, int index, di_error *error) {
    const di_json *role = di_field(item, "role");
    static const char *const names[] = {"user", "system", "developer"};
    int i = 0;
    if (di_json_is_string(role, "assistant")) {
        b->open = true;
        join(di_field(item, "content"), &b->text);
        return DI_OK;
    }
    while (i < 3 && !di_json_is_string(role, names[i])) i++;
    if (i == 3) {
        return di_fail(error, DI_ERR_INVALID,
                       "input[%d].role: user, assistant, system or developer is needed", index);
    }
    close_assistant(b);
    di_build_next(b->out, &b->n);
    di_buffer_printf(b->out, "{\"role\":\"%s\",\"content\":", i == 0 ? "user" : "system");
    DI_TRY(build_content(di_field(item, "content"), index, "content", b->out, error));
    di_buffer_putc(b->out, '}');
    return DI_OK;
}

static di_status need_text(const di_json *item, const char *key, int index, di_error *error) {
    const di_json *value = di_field(item, key);
    if (value && value->type == DI_JSON_STRING) return DI_OK;
    return di_fail(error, DI_ERR_INVALID, "input[%d].%s: a string is needed", index, key);
}

static di_status add_call(builder *b, const di_json *item, int index, di_error *error) {
    int n = 0, members = 1;
    DI_TRY(need_text(item, "name", index, error));
    if (di_field(item, "name")->length == 0) {
        return di_fail(error, DI_ERR_INVALID, "input[%d].name: it is empty", index);
    }
    DI_TRY(need_text(item, "arguments", index, error));
    DI_TRY(need_text(item, "call_id", index, error));
    b->open = true;
    di_build_next(&b->calls, &b->n_calls);
    di_buffer_puts(&b->calls, "{\"type\":\"function\",\"function\":{");
    di_build_member(&b->calls, &n, "name", di_field(item, "name"));
    di_build_member(&b->calls, &n, "arguments", di_field(item, "arguments"));
    di_buffer_putc(&b->calls, '}');
    di_build_member(&b->calls, &members, "id", di_field(item, "call_id"));
    di_buffer_putc(&b->calls, '}');
    return DI_OK;
}

static di_status add_result(builder *b, const di_json *item, int index, di_error *error) {
    int n = 1;
    DI_TRY(need_text(item, "call_id", index, error));
    close_assistant(b);
    di_build_next(b->out, &b->n);
    di_buffer_puts(b->out, "{\"role\":\"tool\"");
    di_build_member(b->out, &n, "tool_call_id", di_field(item, "call_id"));
    di_buffer_puts(b->out, ",\"content\":");
    DI_TRY(build_content(di_field(item, "output"), index, "output", b->out, error));
    di_buffer_putc(b->out, '}');
    return DI_OK;
}

static di_status add_item(builder *b, const di_json *item, int index, di_error *error);

/* An item of a response that was kept, by its id. */
static di_status add_reference(builder *b, const di_json *item, int index, di_error *error) {
    const di_json *found;
    di_buffer text = DI_BUFFER_EMPTY;
    DI_TRY(need_text(item, "id", index, error));
    if (b->n_references++ == MAX_REFERENCES) {
        return di_fail(error, DI_ERR_UNSUPPORTED, "input: there are more than %d references",
                       MAX_REFERENCES);
    }
    const char *id = di_field(item, "id")->text;
    di_status status = DI_OK;
    if (!di_stored_find(b->g->server->stored, id, b->g->owner, &text)) {
        status = di_fail(error, DI_ERR_INVALID,
                         "input[%d].id: there is no item '%.60s' here; send it itself", index, id);
    }
    b->reference_bytes += text.size;
    if (status == DI_OK && b->reference_bytes > b->g->server->options.max_body) {
        status = di_fail(error, DI_ERR_UNSUPPORTED,
                         "input: the items that are referred to have more than %zu bytes",
                         b->g->server->options.max_body);
    }
    if (status == DI_OK) status = di_build_parse(&text, b->arena, &found, error);
    di_buffer_free(&text);
    return status == DI_OK ? add_item(b, found, index, error) : status;
}

static di_status add_item(builder *b, const di_json *item, int index, di_error *error) {
    if (is_type(item, "item_reference")) return add_reference(b, item, index, error);
    if (is_type(item, "function_call")) return add_call(b, item, index, error);
    if (is_type(item, "function_call_output")) return add_result(b, item, index, error);
    if (is_type(item, "reasoning")) {
        const di_json *content = di_field(item, "content");
        b->open = true;
        join(content && content->length > 0 ? content : di_field(item, "summary"), &b->thought);
        return DI_OK;
    }
    if (item->type == DI_JSON_OBJECT && (!di_field(item, "type") || is_type(item, "message"))) {
        return add_message(b, item, index, error);
    }
    return di_fail(error, DI_ERR_UNSUPPORTED,
                   "input[%d].type: items of this type are not supported", index);
}

/* past: items of the conversation so far, or NULL. */
static di_status add_input(builder *b, const di_json *body, const di_json *past, di_error *error) {
    const di_json *input = di_field(body, "input"), *system = di_field(body, "instructions");
    int index = 0, n = 1;
    if (system && system->type != DI_JSON_STRING) {
        return di_field_wrong("instructions", "a string", error);
    }
    if (system) {
        di_build_next(b->out, &b->n);
        di_buffer_puts(b->out, "{\"role\":\"system\"");
        di_build_member(b->out, &n, "content", system);
        di_buffer_putc(b->out, '}');
    }
    if (!input || input->length == 0) return di_field_wrong("input", "a text or a list", error);
    for (const di_json *i = past ? past->first : NULL; i; i = i->next) {
        DI_TRY(add_item(b, i, index, error));
    }
    if (input->type == DI_JSON_STRING) {
        close_assistant(b);
        n = 1;
        di_build_next(b->out, &b->n);
        di_buffer_puts(b->out, "{\"role\":\"user\"");
        di_build_member(b->out, &n, "content", input);
        di_buffer_putc(b->out, '}');
        return DI_OK;
    }
    if (input->type != DI_JSON_ARRAY) return di_field_wrong("input", "a text or a list", error);
    for (const di_json *i = input->first; i; i = i->next, index++) {
        DI_TRY(add_item(b, i, index, error));
    }
    close_assistant(b);
    return DI_OK;
}

static di_status build_messages(di_generation *g, const di_json *body, const di_json *past,
                                di_arena *arena, di_buffer *out, di_error *error) {
    builder b = {.out = out, .g = g, .arena = arena};
    di_buffer_putc(out, '[');
    di_status status = add_input(&b, body, past, error);
    di_buffer_putc(out, ']');
    di_buffer_free(&b.thought);
    di_buffer_free(&b.text);
    di_buffer_free(&b.calls);
    return status;
}

/* ---- Tools ---- */

static di_status build_tools(const di_json *tools, di_buffer *out, di_error *error) {
    static const char *const keys[] = {"name", "description", "parameters", "strict"};
    int n = 0, index = 0;
    if (tools->type != DI_JSON_ARRAY) return di_field_wrong("tools", "a list", error);
    di_buffer_putc(out, '[');
    for (const di_json *t = tools->first; t; t = t->next, index++) {
        int members = 0;
        if (!is_type(t, "function")) {
            return di_fail(error, DI_ERR_UNSUPPORTED,
                           "tools[%d].type: only functions are supported", index);
        }
        di_build_next(out, &n);
        di_buffer_puts(out, "{\"type\":\"function\",\"function\":{");
        for (int i = 0; i < 4; i++) {
            const di_json *value = di_field(t, keys[i]);
            if (value) di_build_member(out, &members, keys[i], value);
        }
        di_buffer_puts(out, "}}");
    }
    di_buffer_putc(out, ']');
    return DI_OK;
}

/* ---- The body ---- */

/* What would change the answer and is not here. */
static di_status check_supported(const di_json *body, di_error *error) {
    static const char *const stateful[] = {"conversation", "prompt"};
    bool background = false;
    for (int i = 0; i < 2; i++) {
        if (!di_field(body, stateful[i])) continue;
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "%s: there are none here; send the whole conversation in input, or go on "
                       "by previous_response_id",
                       stateful[i]);
    }
    const di_json *include = di_field(body, "include");
    for (const di_json *i = include && include->type == DI_JSON_ARRAY ? include->first : NULL; i;
         i = i->next) {
        if (!di_json_is_string(i, "message.output_text.logprobs")) continue;
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "include: log-probabilities are told in chat completions only");
    }
    const di_json *text = di_field(body, "text");
    if (text && text->type != DI_JSON_OBJECT) return di_field_wrong("text", "an object", error);
    DI_TRY(di_field_bool(body, "background", &background, error));
    if (background) {
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "background: an answer is made while its client waits");
    }
    return DI_OK;
}

/* *past: the items of the conversation that it goes on from, or NULL. */
static di_status read_past(di_generation *g, const di_json *body, di_arena *arena,
                           const di_json **past, di_error *error) {
    const char *id = NULL;
    di_buffer text = DI_BUFFER_EMPTY;
    *past = NULL;
    g->work_request.previous = "";
    DI_TRY(di_field_text(body, "previous_response_id", &id, error));
    if (!id) return DI_OK;
    di_buffer_putc(&text, '[');
    di_status status =
        di_stored_items(g->server->stored, id, g->owner, g->server->options.max_body, &text, error);
    if (status == DI_ERR_INVALID) g->work_code = "previous_response_not_found";
    di_buffer_putc(&text, ']');
    if (status == DI_OK) status = read_json(&text, "previous_response_id: it", arena, past, error);
    di_buffer_free(&text);
    if (status != DI_OK) return status;
    return di_gen_request_copy(&g->work_request, id, strlen(id), &g->work_request.previous, error);
}

/* What is kept of the request, if it is to be. */
static di_status read_store(di_generation *g, const di_json *body, di_error *error) {
    di_gen_request *r = &g->work_request;
    const di_json *input = di_field(body, "input");
    int n = 0;
    r->stores = true;
    DI_TRY(di_field_bool(body, "store", &r->stores, error));
    r->stores = r->stores && g->server->options.response_store > 0;
    if (!r->stores) return DI_OK;
    if (input->type == DI_JSON_STRING) {
        di_buffer_puts(&r->items, "{\"role\":\"user\"");
        n = 1;
        di_build_member(&r->items, &n, "content", input);
        di_buffer_putc(&r->items, '}');
    }
    for (const di_json *i = input->type == DI_JSON_ARRAY ? input->first : NULL; i; i = i->next) {
        di_build_next(&r->items, &n);
        di_json_write(&r->items, i);
    }
    return r->items.failed ? di_fail(error, DI_ERR_MEMORY, "out of memory: input") : DI_OK;
}

static di_status read_prompt(di_generation *g, const di_json *body, di_arena *arena,
                             di_error *error) {
    di_gen_request *r = &g->work_request;
    const di_json *past, *messages = NULL, *tools = NULL, *given = di_field(body, "tools");
    const di_json *reasoning = di_field(body, "reasoning");
    di_prompt_options options = di_prompt_options_defaults();
    di_buffer text = DI_BUFFER_EMPTY;
    const char *effort = NULL, *summary = NULL;
    if (reasoning && reasoning->type != DI_JSON_OBJECT) {
        return di_field_wrong("reasoning", "an object", error);
    }
    DI_TRY(di_field_text(reasoning, "effort", &effort, error));
    DI_TRY(di_field_text(reasoning, "summary", &summary, error));
    r->summary = summary != NULL;
    if (effort) DI_TRY(di_gen_request_copy(r, effort, strlen(effort), &options.effort, error));
    DI_TRY(read_past(g, body, arena, &past, error));
    di_status status = build_messages(g, body, past, arena, &text, error);
    if (status == DI_OK) status = di_build_parse(&text, arena, &messages, error);
    if (status == DI_OK && given && given->length > 0) {
        status = build_tools(given, &text, error);
        if (status == DI_OK) status = di_build_parse(&text, arena, &tools, error);
    }
    di_buffer_free(&text);
    if (status != DI_OK) return status;
    return di_openai_read_messages(r, messages, tools, &options, &g->server->env, error);
}

/* Members that the response repeats, as they came or as they count without. */
static di_status repeat(di_gen_request *r, const di_json *body, di_error *error) {
    static const char *const fields[][2] = {
        {"instructions", "null"},
        {"max_output_tokens", "null"},
        {"metadata", "{}"},
        {"parallel_tool_calls", "true"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"},
        {"text", "{\"format\":{\"type\":\"text\"}}"},
        {"tool_choice", "\"auto\""},
        {"tools", "[]"},
        {"truncation", "\"disabled\""},
        {"user", "null"},
    };
    di_buffer out = DI_BUFFER_EMPTY;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const di_json *value = di_field(body, fields[i][0]);
        di_buffer_printf(&out, "\"%s\":", fields[i][0]);
        if (value) {
            di_json_write(&out, value);
        } else {
            di_buffer_puts(&out, fields[i][1]);
        }
        di_buffer_putc(&out, ',');
    }
    di_buffer_printf(&out, "\"temperature\":%g,\"top_p\":%g", (double)r->sampling.temperature,
                     (double)r->sampling.top_p);
    di_status status = out.failed ? di_fail(error, DI_ERR_MEMORY, "out of memory: response")
                                  : di_gen_request_copy(r, out.data, out.size, &r->given, error);
    di_buffer_free(&out);
    return status;
}

di_status read_responses(di_generation *g, const di_json *body, di_error *error) {
    di_gen_request *r = &g->work_request;
    const di_request_env *env = &g->server->env;
    di_arena arena = DI_ARENA_EMPTY;
    r->dialect = DI_DIALECT_RESPONSES;
    r->n_choices = 1;
    DI_TRY(di_openai_read_model(r, body, error));
    DI_TRY(di_field_int(body, "max_output_tokens", 1, 1 << 30, &r->max_tokens, error));
    DI_TRY(di_openai_read_sampling(r, body, env, error));
    DI_TRY(di_openai_read_stops(r, body, "stop", error));
    DI_TRY(di_field_bool(body, "stream", &r->stream, error));
    DI_TRY(read_unsupported(body, DI_DIALECT_RESPONSES, error));
    DI_TRY(check_supported(body, error));
    DI_TRY(di_constraint_read(r, body, env, error));
    di_status status = read_prompt(g, body, &arena, error);
    di_arena_free(&arena);
    if (status != DI_OK) return status;
    DI_TRY(read_store(g, body, error));
    DI_TRY(repeat(r, body, error));
    return read_check(r, env, error);
}
