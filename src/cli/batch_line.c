#include "cli/batch_line.h"

#include <string.h>

#include "base/error.h"
#include "server/fields.h"
#include "server/openai_request.h"

/* Of a line: four times the ids of a million tokens. The tree of its JSON takes up to 50 times as
 * much. */
enum { MAX_MIB = 32 };

/* ---- The envelope ---- */

static di_status parse(di_batch_line *line, const char *text, size_t size, const char *what,
                       const di_json **out, di_error *error) {
    if (size > (size_t)MAX_MIB << 20) {
        return di_fail(error, DI_ERR_INVALID, "%s: %zu bytes, a request has at most %d MiB", what,
                       size, MAX_MIB);
    }
    di_error why;
    di_status status = di_json_parse(text, size, "", &line->arena, out, &why);
    if (status == DI_OK) return DI_OK;
    /* The parser counts lines too, and this is the only one. */
    static const char place[] = ": line 1, ";
    size_t n = strncmp(why.message, place, sizeof place - 1) == 0 ? sizeof place - 1 : 0;
    return di_fail(error, status, "%s, %s", what, why.message + n);
}

di_status di_batch_line_open(di_batch_line *line, const char *text, size_t size, const char *what,
                             di_error *error) {
    const di_json *o;
    DI_TRY(parse(line, text, size, what, &o, error));
    if (o->type != DI_JSON_OBJECT) {
        return di_fail(error, DI_ERR_INVALID, "%s: no JSON object", what);
    }
    const di_json *id = di_field(o, "custom_id");
    if (!id || id->type != DI_JSON_STRING || id->length == 0) {
        return di_fail(error, DI_ERR_INVALID, "%s: custom_id: a string, not empty, is needed",
                       what);
    }
    line->custom_id = id->text;
    line->custom_id_size = id->length;
    line->body = o;
    return DI_OK;
}

static di_status read_envelope(di_batch_line *line, di_error *error) {
    const di_json *o = line->body, *url = di_field(o, "url");
    if (!di_json_is_string(di_field(o, "method"), "POST"))
        return di_field_wrong("method", "\"POST\"", error);
    line->chat = di_json_is_string(url, "/v1/chat/completions");
    if (!line->chat && !di_json_is_string(url, "/v1/completions")) {
        return di_field_wrong("url", "\"/v1/chat/completions\" or \"/v1/completions\"", error);
    }
    line->body = di_field(o, "body");
    if (!line->body || line->body->type != DI_JSON_OBJECT)
        return di_field_wrong("body", "an object", error);
    return DI_OK;
}

/* ---- What is known ---- */

static bool among(const char *key, const char *const *names) {
    while (*names && strcmp(*names, key) != 0) names++;
    return *names != NULL;
}

/* A typing error in "temperature" must not run ten thousand requests at the default. */
static di_status check_known(const di_batch_line *line, di_error *error) {
    static const char *const both[] = {"model", "max_tokens", "max_completion_tokens",
                                       "temperature", "top_p", "top_k", "min_p", "seed", "stop",
                                       "n", "logprobs", "logit_bias", "presence_penalty",
                                       "frequency_penalty", "repetition_penalty", "stream",
                                       /* nothing to do with the answer */
                                       "user", "metadata", "store", "service_tier",
                                       "safety_identifier", "prompt_cache_key", NULL};
    static const char *const chat[] = {"messages",        "tools",    "tool_choice",
                                       "top_logprobs",    "thinking", "reasoning_effort",
                                       "response_format", NULL};
    static const char *const completion[] = {"prompt", NULL};
    for (const di_json *field = line->body->first; field; field = field->next) {
        if (field->type == DI_JSON_NULL) continue;
        if (strlen(field->key) == field->key_length &&
            (among(field->key, both) || among(field->key, line->chat ? chat : completion))) {
            continue;
        }
        return di_fail(error, DI_ERR_UNSUPPORTED, "%.80s: this field is not supported%s",
                       field->key, line->chat ? " in a chat completion" : " in a completion");
    }
    const di_json *format = di_field(line->body, "response_format");
    if (format && !di_json_is_string(di_field(format, "type"), "text")) {
        return di_fail(error, DI_ERR_UNSUPPORTED, "response_format: only text is supported");
    }
    const di_json *choice = di_field(line->body, "tool_choice");
    if (choice && !di_json_is_string(choice, "auto")) {
        return di_fail(error, DI_ERR_UNSUPPORTED, "tool_choice: only \"auto\" is supported");
    }
    bool stream = false;
    DI_TRY(di_field_bool(line->body, "stream", &stream, error));
    return stream ? di_fail(error, DI_ERR_UNSUPPORTED, "stream: a batch cannot stream") : DI_OK;
}

/* The same inside a message: whose "contents" nobody reads would be answered as if it were empty. */
static di_status check_messages(const di_json *messages, di_error *error) {
    static const char *const known[] =
        {"role",      "content", "tool_calls",      "tool_call_id", "name",   "reasoning_content",
         "reasoning", "tools",   "response_format", "task",         "wo_eos", "refusal",
         NULL};
    int index = 0;
    if (!messages || messages->type != DI_JSON_ARRAY) return DI_OK; /* refused by who reads it */
    for (const di_json *m = messages->first; m; m = m->next, index++) {
        for (const di_json *field = m->type == DI_JSON_OBJECT ? m->first : NULL; field;
             field = field->next) {
            bool whole = strlen(field->key) == field->key_length;
            if (field->type == DI_JSON_NULL || (whole && among(field->key, known))) continue;
            return di_fail(error, DI_ERR_UNSUPPORTED,
                           "messages[%d].%.80s: this field is not supported", index, field->key);
        }
        if (!di_json_is_string(di_field(m, "role"), "user") || di_field(m, "content")) continue;
        return di_fail(error, DI_ERR_INVALID, "messages[%d].content: a user's message needs one",
                       index);
    }
    return DI_OK;
}

/* What the reader would take, and a batch does not: it names its results by lines. */
static di_status check_values(const di_batch_line *line, di_error *error) {
    const di_json *prompt = di_field(line->body, "prompt");
    const di_json *older = di_field(line->body, "max_tokens");
    const di_json *newer = di_field(line->body, "max_completion_tokens");
    int64_t a, b;
    if (di_json_int64(older, &a) && di_json_int64(newer, &b) && a != b) {
        return di_fail(error, DI_ERR_INVALID,
                       "max_completion_tokens: differs from max_tokens; give one of them");
    }
    if (line->chat) return check_messages(di_field(line->body, "messages"), error);
    for (const di_json *item = prompt && prompt->type == DI_JSON_ARRAY ? prompt->first : NULL; item;
         item = item->next) {
        if (item->type != DI_JSON_STRING && item->type != DI_JSON_ARRAY) continue;
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "prompt: a list of prompts is not supported; give each its own line");
    }
    return DI_OK;
}

di_status di_batch_line_read(di_batch_line *line, const di_request_env *env, di_error *error) {
    DI_TRY(read_envelope(line, error));
    DI_TRY(check_known(line, error));
    DI_TRY(check_values(line, error));
    return di_openai_read(&line->request, line->body,
                          line->chat ? DI_DIALECT_CHAT : DI_DIALECT_COMPLETION, env, error);
}

void di_batch_line_free(di_batch_line *line) {
    di_gen_request_free(&line->request);
    di_arena_free(&line->arena);
}
