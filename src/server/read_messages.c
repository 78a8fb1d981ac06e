/* Bodies of Anthropic's Messages, rendered as the conversation of the OpenAI dialect that the encoder
 * takes. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "server/constraint.h"
#include "server/fields.h"
#include "server/json_build.h"
#include "server/openai_request.h"
#include "server/places.h"
#include "server/read_internal.h"
#include "text/chat.h"

/* ---- The conversation ---- */

static bool is_type(const di_json *block, const char *type) {
    return di_json_is_string(di_field(block, "type"), type);
}

/* A text that may be a list of text blocks, as one. */
static void join_texts(const di_json *content, const char *type, const char *field,
                       di_buffer *out) {
    if (!content) return;
    if (content->type == DI_JSON_STRING) di_buffer_append(out, content->text, content->length);
    if (content->type != DI_JSON_ARRAY) return;
    for (const di_json *b = content->first; b; b = b->next) {
        const di_json *text = di_field(b, field);
        if (!is_type(b, type) || !text || text->type != DI_JSON_STRING) continue;
        di_buffer_append(out, text->text, text->length);
    }
}

static void build_call(const di_json *block, di_buffer *out) {
    const di_json *id = di_field(block, "id"), *name = di_field(block, "name");
    const di_json *input = di_field(block, "input");
    int n = 0;
    di_buffer_puts(out, "{\"type\":\"function\",\"function\":{");
    if (name) di_build_member(out, &n, "name", name);
    if (input) di_build_member(out, &n, "arguments", input);
    if (!input) di_build_text(out, &n, "arguments", "{}", 2);
    di_buffer_putc(out, '}');
    if (id) di_build_member(out, &n, "id", id);
    di_buffer_putc(out, '}');
}

static void build_assistant(const di_json *content, bool open, di_buffer *out) {
    di_buffer text = DI_BUFFER_EMPTY, thought = DI_BUFFER_EMPTY;
    bool list = content && content->type == DI_JSON_ARRAY;
    int n = 1, n_calls = 0;
    join_texts(content, "text", "text", &text);
    join_texts(content, "thinking", "thinking", &thought);
    di_buffer_puts(out, "{\"role\":\"assistant\"");
    di_build_text(out, &n, "content", text.data ? text.data : "", text.size);
    if (thought.size > 0) {
        di_build_text(out, &n, "reasoning_content", thought.data, thought.size);
    }
    for (const di_json *b = list ? content->first : NULL; b; b = b->next) {
        if (!is_type(b, "tool_use")) continue;
        if (n_calls == 0) di_buffer_puts(out, ",\"tool_calls\":[");
        di_build_next(out, &n_calls);
        build_call(b, out);
    }
    if (n_calls > 0) di_buffer_putc(out, ']');
    di_buffer_puts(out, open ? ",\"prefix\":true}" : "}");
    if (text.failed || thought.failed) out->failed = true;
    di_buffer_free(&text);
    di_buffer_free(&thought);
}

/* Which member of a call or a result is not there, by which the one belongs to the other; or NULL. */
static const char *missing_text(const di_json *block) {
    static const char *const needed[][2] = {{"tool_use", "id"},
                                            {"tool_use", "name"},
                                            {"tool_result", "tool_use_id"}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        const di_json *text = di_field(block, needed[i][1]);
        if (!is_type(block, needed[i][0])) continue;
        if (!text || text->type != DI_JSON_STRING || text->length == 0) return needed[i][1];
    }
    return NULL;
}

/* Blocks that would be lost in silence are refused, by their place: `where` is the list's. */
static di_status check_blocks(const char *where, const di_json *content, const char *const *known,
                              di_error *error);

static di_status check_block(const char *where, int at, const di_json *b, const char *const *known,
                             di_error *error) {
    static const char *const of_results[] = {"text", "image", NULL};
    static const char *const texts[] = {"text", "thinking"}; /* type and member */
    const di_json *type = di_field(b, "type"), *input = di_field(b, "input");
    const di_json *content = di_field(b, "content");
    while (*known && !is_type(b, *known)) known++;
    if (!*known) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s[%d].type: blocks of the type '%.40s' are not supported here", where, at,
                       type && type->type == DI_JSON_STRING ? type->text : "");
    }
    for (int i = 0; i < 2; i++) {
        const di_json *text = di_field(b, texts[i]);
        if (!is_type(b, texts[i])) continue;
        if (!text || text->type != DI_JSON_STRING) {
            return di_fail(error, DI_ERR_INVALID, "%s[%d].%s: a string is needed", where, at,
                           texts[i]);
        }
        /* Here, for those of an answer are joined. */
        char place[100];
        snprintf(place, sizeof place, "%s[%d].%s", where, at, texts[i]);
        DI_TRY(di_chat_check_text(place, text->text, text->length, error));
    }
    const char *missing = missing_text(b);
    if (missing) {
        return di_fail(error, DI_ERR_INVALID, "%s[%d].%s: a string, not empty, is needed", where,
                       at, missing);
    }
    if (is_type(b, "tool_use") && input && input->type != DI_JSON_OBJECT) {
        return di_fail(error, DI_ERR_INVALID, "%s[%d].input: an object is needed", where, at);
    }
    if (!is_type(b, "tool_result") || !content) return DI_OK;
    char inner[80];
    snprintf(inner, sizeof inner, "%s[%d].content", where, at);
    return check_blocks(inner, content, of_results, error);
}

static di_status check_blocks(const char *where, const di_json *content, const char *const *known,
                              di_error *error) {
    int at = 0;
    if (content && content->type == DI_JSON_STRING) return DI_OK;
    if (!content || content->type != DI_JSON_ARRAY) {
        return di_fail(error, DI_ERR_INVALID, "%s: a text or a list of blocks is needed", where);
    }
    for (const di_json *b = content->first; b; b = b->next, at++) {
        DI_TRY(check_block(where, at, b, known, error));
    }
    return DI_OK;
}

/* The user's blocks are understood as they are. */
static di_status build_message(const di_json *m, int index, di_buffer *out, di_error *error) {
    const di_json *role = di_field(m, "role"), *content = di_field(m, "content");
    static const char *const of_users[] = {"text", "tool_result", "image", NULL};
    static const char *const of_models[] = {"text", "thinking", "redacted_thinking", "tool_use",
                                            NULL};
    bool assistant = di_json_is_string(role, "assistant");
    char where[40];
    int n = 1;
    if (!assistant && !di_json_is_string(role, "user") && !di_json_is_string(role, "system")) {
        return di_fail(error, DI_ERR_INVALID,
                       "messages[%d].role: \"user\" or \"assistant\" is needed", index);
    }
    snprintf(where, sizeof where, "messages[%d].content", index);
    DI_TRY(check_blocks(where, content, assistant ? of_models : of_users, error));
    if (assistant) {
        build_assistant(content, m->next == NULL, out);
        return DI_OK;
    }
    di_buffer_puts(out,
                   di_json_is_string(role, "user") ? "{\"role\":\"user\"" : "{\"role\":\"system\"");
    di_build_member(out, &n, "content", content);
    di_buffer_putc(out, '}');
    return DI_OK;
}

static bool has_system(const di_json *body) {
    const di_json *system = di_field(body, "system");
    return system && system->length > 0;
}

static di_status build_messages(const di_json *body, di_buffer *out, di_error *error) {
    const di_json *messages = di_field(body, "messages"), *system = di_field(body, "system");
    static const char *const of_system[] = {"text", NULL};
    int n = 0, index = 0;
    if (!messages || messages->type != DI_JSON_ARRAY || messages->length == 0) {
        return di_field_wrong("messages", "a list, not empty,", error);
    }
    di_buffer_putc(out, '[');
    if (system) DI_TRY(check_blocks("system", system, of_system, error));
    if (has_system(body)) {
        int members = 1;
        di_build_next(out, &n);
        di_buffer_puts(out, "{\"role\":\"system\"");
        di_build_member(out, &members, "content", system);
        di_buffer_putc(out, '}');
    }
    for (const di_json *m = messages->first; m; m = m->next, index++) {
        di_build_next(out, &n);
        DI_TRY(build_message(m, index, out, error));
    }
    di_buffer_putc(out, ']');
    return DI_OK;
}

/* The system prompt is the first message where there is one; calls are blocks among others. user: the body. */
static void name_place(const void *user, const di_place *place, char *out, size_t size) {
    const di_json *body = user;
    if (place->message == 0 && has_system(body)) {
        snprintf(out, size, "system");
        return;
    }
    size_t index = place->message - has_system(body);
    const di_json *m = di_field(body, "messages")->first;
    int n = snprintf(out, size, "messages[%zu]%s", index, place->content ? ".content" : "");
    if (place->call < 0) return;
    for (size_t i = 0; i < index; i++) m = m->next;
    int64_t left = place->call;
    size_t at = 0;
    for (const di_json *b = di_field(m, "content")->first; b; b = b->next, at++) {
        if (is_type(b, "tool_use") && left-- == 0) break;
    }
    snprintf(out + n, size - (size_t)n, ".content[%zu]", at);
}

/* ---- Tools ---- */

static di_status build_tools(const di_json *tools, di_buffer *out, di_error *error) {
    int n = 0, index = 0;
    if (tools->type != DI_JSON_ARRAY) return di_field_wrong("tools", "a list", error);
    di_buffer_putc(out, '[');
    for (const di_json *t = tools->first; t; t = t->next, index++) {
        const di_json *type = di_field(t, "type"), *name = di_field(t, "name");
        const di_json *about = di_field(t, "description"), *schema = di_field(t, "input_schema");
        const di_json *strict = di_field(t, "strict");
        int members = 0;
        if (type && !di_json_is_string(type, "custom")) {
            return di_fail(error, DI_ERR_UNSUPPORTED,
                           "tools[%d].type: tools that the service runs itself are not supported",
                           index);
        }
        if (!name || name->type != DI_JSON_STRING) {
            return di_fail(error, DI_ERR_INVALID, "tools[%d].name: a string is needed", index);
        }
        di_build_next(out, &n);
        di_buffer_puts(out, "{\"type\":\"function\",\"function\":{");
        di_build_member(out, &members, "name", name);
        if (about) di_build_member(out, &members, "description", about);
        if (schema) di_build_member(out, &members, "parameters", schema);
        if (strict) di_build_member(out, &members, "strict", strict);
        di_buffer_puts(out, "}}");
    }
    di_buffer_putc(out, ']');
    return DI_OK;
}

/* tools: in OpenAI's form. */
static di_status read_choice(di_gen_request *r, const di_json *body, const di_json *tools,
                             di_constraint *form, const di_request_env *env, di_error *error) {
    const di_json *choice = di_field(body, "tool_choice");
    di_tool_choice out = {.kind = DI_GRAMMAR_TOOLS_AUTO};
    DI_TRY(di_field_bool(body, "tool_choice.disable_parallel_tool_use", &r->one_call, error));
    if (is_type(choice, "none")) {
        out.kind = DI_GRAMMAR_TOOLS_NONE;
    } else if (is_type(choice, "any") || is_type(choice, "tool")) {
        out.kind = DI_GRAMMAR_TOOLS_REQUIRED;
        if (is_type(choice, "tool")) {
            DI_TRY(di_field_text(body, "tool_choice.name", &out.name, error));
        }
        if (is_type(choice, "tool") && !out.name) {
            return di_field_wrong("tool_choice", "the name of a tool, with the type tool,", error);
        }
    } else if (choice && !is_type(choice, "auto")) {
        return di_field_wrong("tool_choice", "an object whose type is auto, any, tool or none,",
                              error);
    }
    return di_constraint_end(form, r, tools, &out, env, error);
}

/* {"type": "json_schema", "schema": ...} */
static di_status read_format(di_constraint *form, const di_json *format, const char *field,
                             di_error *error) {
    const di_json *schema = di_field(format, "schema");
    if (!format) return DI_OK;
    if (!is_type(format, "json_schema") || !schema) {
        return di_field_wrong(field, "a format of the type json_schema, with a schema,", error);
    }
    return di_constraint_form(form, DI_FORM_SCHEMA, schema, field, error);
}

/* ---- The body ---- */

static di_status read_thinking(di_gen_request *r, const di_json *body, di_prompt_options *out,
                               di_error *error) {
    const di_json *thinking = di_field(body, "thinking"), *type = di_field(thinking, "type");
    DI_TRY(di_openai_read_effort(r, body, "output_config.effort", out, error));
    if (!thinking) return DI_OK;
    out->thinking = di_json_is_string(type, "enabled") || di_json_is_string(type, "adaptive");
    if (out->thinking || di_json_is_string(type, "disabled")) return DI_OK;
    return di_field_wrong("thinking", "{\"type\": \"enabled\", \"adaptive\" or \"disabled\"}",
                          error);
}

static di_status read_prompt(di_gen_request *r, const di_json *body, di_constraint *form,
                             const di_request_env *env, di_arena *arena, di_error *error) {
    const di_json *messages = NULL, *tools = NULL, *given = di_field(body, "tools");
    di_prompt_options options = di_openai_prompt_options(r);
    di_buffer text = DI_BUFFER_EMPTY;
    DI_TRY(read_thinking(r, body, &options, error));
    di_status status = build_messages(body, &text, error);
    if (status == DI_OK) {
        status = di_build_parse(&text, arena, &messages, error);
    }
    if (status == DI_OK && given && given->length > 0) {
        status = build_tools(given, &text, error);
        if (status == DI_OK) status = di_build_parse(&text, arena, &tools, error);
    }
    di_buffer_free(&text);
    if (status != DI_OK) return status;
    status = di_openai_read_messages(r, messages, tools, &options, env, error);
    if (status != DI_OK) {
        di_places_rename(name_place, body, error);
        return status;
    }
    return read_choice(r, body, tools, form, env, error);
}

static di_status read_conversation(di_gen_request *r, const di_json *body, di_constraint *form,
                                   const di_request_env *env, di_error *error) {
    di_arena arena = DI_ARENA_EMPTY;
    r->dialect = DI_DIALECT_MESSAGES;
    r->n_choices = 1;
    DI_TRY(di_openai_read_model(r, body, error));
    di_status status = read_prompt(r, body, form, env, &arena, error);
    di_arena_free(&arena);
    return status;
}

di_status read_messages(di_generation *g, const di_json *body, di_error *error) {
    di_gen_request *r = &g->work_request;
    const di_request_env *env = &g->server->env;
    DI_TRY(read_unsupported(body, DI_DIALECT_MESSAGES, error));
    DI_TRY(di_field_int(body, "max_tokens", 1, 1 << 30, &r->max_tokens, error));
    if (r->max_tokens == 0) return di_field_wrong("max_tokens", "a whole number", error);
    DI_TRY(di_openai_read_sampling(r, body, env, error));
    DI_TRY(di_openai_read_stops(r, body, "stop_sequences", error));
    DI_TRY(di_field_bool(body, "stream", &r->stream, error));
    di_constraint form = DI_CONSTRAINT_NONE;
    DI_TRY(read_format(&form, di_field(di_field(body, "output_config"), "format"), "output_config",
                       error));
    DI_TRY(read_format(&form, di_field(body, "output_format"), "output_format", error));
    di_status status = read_conversation(r, body, &form, env, error);
    di_constraint_deinit(&form);
    return status == DI_OK ? read_check(r, env, error) : status;
}

di_status read_count_tokens(di_generation *g, const di_json *body, di_error *error) {
    di_gen_request r = {.n_prompts = 0};
    di_constraint none = DI_CONSTRAINT_NONE;
    di_status status = read_conversation(&r, body, &none, &g->server->env, error);
    if (status == DI_OK) {
        di_buffer_printf(&g->work_reply, "{\"input_tokens\":%zu}", r.prompts[0].size);
    }
    di_constraint_deinit(&none);
    di_gen_request_free(&r);
    return status;
}
