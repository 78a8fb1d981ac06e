/* Bodies of OpenAI's Responses. A conversation comes whole with every request, or goes on from a response that was
 * kept (stored.h). */
#include <string.h>

#include "base/error.h"
#include "server/constraint.h"
#include "server/fields.h"
#include "server/json_build.h"
#include "server/openai_request.h"
#include "server/read_internal.h"
#include "server/responses_conversation.h"

/* ---- Tools ---- */

static di_status build_tools(const di_json *tools, di_buffer *out, di_error *error) {
    static const char *const keys[] = {"name", "description", "parameters", "strict"};
    int n = 0, index = 0;
    if (tools->type != DI_JSON_ARRAY) return di_field_wrong("tools", "a list", error);
    di_buffer_putc(out, '[');
    for (const di_json *t = tools->first; t; t = t->next, index++) {
        int members = 0;
        if (!di_json_is_string(di_field(t, "type"), "function")) {
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

static di_status check_include(const di_json *body, di_error *error) {
    const di_json *include = di_field(body, "include");
    for (const di_json *i = include && include->type == DI_JSON_ARRAY ? include->first : NULL; i;
         i = i->next) {
        if (!di_json_is_string(i, "message.output_text.logprobs")) continue;
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "include: log-probabilities are not told here; ask for a chat completion");
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
    di_prompt_options options = di_openai_prompt_options(r);
    di_buffer text = DI_BUFFER_EMPTY;
    const char *summary = NULL;
    DI_TRY(di_openai_read_effort(r, body, "reasoning.effort", &options, error));
    DI_TRY(di_field_text(body, "reasoning.summary", &summary, error));
    r->summary = summary != NULL;
    DI_TRY(read_past(g, body, arena, &past, error));
    di_responses_conversation talk = {.body = body,
                                      .past = past,
                                      .stored = g->server->stored,
                                      .owner = g->owner,
                                      .max_bytes = g->server->options.max_body,
                                      .arena = arena};
    di_status status = di_responses_conversation_build(&talk, error);
    if (status == DI_OK) status = di_build_parse(&talk.out, arena, &messages, error);
    if (status == DI_OK && given && given->length > 0) {
        status = build_tools(given, &text, error);
        if (status == DI_OK) status = di_build_parse(&text, arena, &tools, error);
    }
    di_buffer_free(&text);
    if (status == DI_OK) {
        status = di_openai_read_messages(r, messages, tools, &options, &g->server->env, error);
        if (status != DI_OK) di_responses_conversation_rename(&talk, error);
    }
    di_responses_conversation_deinit(&talk);
    return status;
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
    const di_json *text = di_field(body, "text");
    di_arena arena = DI_ARENA_EMPTY;
    r->dialect = DI_DIALECT_RESPONSES;
    r->n_choices = 1;
    DI_TRY(di_openai_read_model(r, body, error));
    DI_TRY(di_field_int(body, "max_output_tokens", 1, 1 << 30, &r->max_tokens, error));
    DI_TRY(di_openai_read_sampling(r, body, env, error));
    DI_TRY(di_openai_read_stops(r, body, "stop", error));
    DI_TRY(di_field_bool(body, "stream", &r->stream, error));
    DI_TRY(read_unsupported(body, DI_DIALECT_RESPONSES, error));
    DI_TRY(check_include(body, error));
    if (text && text->type != DI_JSON_OBJECT) return di_field_wrong("text", "an object", error);
    DI_TRY(di_constraint_read(r, body, env, error));
    di_status status = read_prompt(g, body, &arena, error);
    di_arena_free(&arena);
    if (status != DI_OK) return status;
    DI_TRY(read_store(g, body, error));
    DI_TRY(repeat(r, body, error));
    return read_check(r, env, error);
}
