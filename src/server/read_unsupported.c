/* Fields of the services and engines that this server stands in for, which would change the answer and
 * are not here. Who sends one must hear of it: an answer that was made without looks like one with it. */
#include "base/error.h"
#include "server/fields.h"
#include "server/read_internal.h"

enum {
    CHAT = 1 << DI_DIALECT_CHAT,
    COMPLETION = 1 << DI_DIALECT_COMPLETION,
    RESPONSES = 1 << DI_DIALECT_RESPONSES,
    MESSAGES = 1 << DI_DIALECT_MESSAGES,
    OPENAI = CHAT | COMPLETION
};

static const struct {
    const char *field;
    unsigned dialects;
    bool zero_counts; /* 0 asks for something, too */
    const char *advice;
} fields[] = {
    /* OpenAI */
    {"functions", CHAT, false, "send tools"},
    {"audio", CHAT, false, "answers are text"},
    {"web_search_options", CHAT, false, "send a tool"},
    {"conversation", RESPONSES, false,
     "send the whole conversation in input, or go on by previous_response_id"},
    {"prompt", RESPONSES, false, "send its text in input"},
    {"background", RESPONSES, false, "an answer is made while its client waits"},
    {"top_logprobs", RESPONSES, false, "ask for a chat completion"},
    /* vLLM */
    {"continue_final_message", CHAT, false, "send \"prefix\": true in the last message"},
    {"echo", CHAT, false, "leave it out"},
    {"min_tokens", OPENAI, false, "leave it out"},
    {"stop_token_ids", OPENAI, false, "send texts in stop"},
    {"bad_words", OPENAI, false, "send logit_bias"},
    {"allowed_token_ids", OPENAI, false, "send a form, such as structured_outputs"},
    {"include_stop_str_in_output", OPENAI, false, "leave it out"},
    {"use_beam_search", OPENAI, false, "leave it out"},
    {"truncate_prompt_tokens", OPENAI, false, "send a shorter prompt"},
    {"prompt_logprobs", OPENAI, true, "send echo and logprobs to /v1/completions"},
    {"prompt_embeds", COMPLETION, false, "send a prompt"},
    /* Anthropic */
    {"mcp_servers", MESSAGES, false, "send tools"},
    {"container", MESSAGES, false, "leave it out"},
};

/* What asks for nothing: clients send defaults. */
static bool is_idle(const di_json *value, bool zero_counts) {
    int64_t n;
    switch (value->type) {
    case DI_JSON_NULL:
    case DI_JSON_FALSE: return true;
    case DI_JSON_NUMBER: return !zero_counts && di_json_int64(value, &n) && n == 0;
    case DI_JSON_STRING:
    case DI_JSON_ARRAY: return value->length == 0;
    default: return false;
    }
}

di_status read_unsupported(const di_json *body, di_dialect dialect, di_error *error) {
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (!(fields[i].dialects & 1u << dialect)) continue;
        const di_json *value = di_json_get(body, fields[i].field);
        if (!value || is_idle(value, fields[i].zero_counts)) continue;
        return di_fail(error, DI_ERR_UNSUPPORTED, "%s: it is not supported; %s", fields[i].field,
                       fields[i].advice);
    }
    return DI_OK;
}
