#include "server/openai_request.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/error.h"
#include "server/fields.h"
#include "server/turns.h"
#include "text/chat.h"

enum {
    MAX_TOKENS = 1 << 30,
    MAX_CHOICES = 128,
    MAX_TOP = 20,
    MAX_STOPS = 64,
    MAX_STOP =
        1024, /* bytes of one: every answer has its copy, and looks through it at every token */
    MAX_BIAS = 1000,
    MAX_PROMPTS = 1024
};

static di_status no_memory(const char *what, di_error *error) {
    return di_fail(error, DI_ERR_MEMORY, "out of memory: %s", what);
}

/* ---- Sampling and lengths ---- */

static di_status read_biases(di_gen_request *request, const di_json *body,
                             const di_request_env *env, di_error *error) {
    const di_json *biases = di_field(body, "logit_bias");
    if (!biases) return DI_OK;
    if (biases->type != DI_JSON_OBJECT) return di_field_wrong("logit_bias", "an object", error);
    di_token_bias *out = di_arena_calloc(&request->arena, biases->length + 1, sizeof *out);
    if (!out) return no_memory("logit_bias", error);
    int32_t n = 0;
    for (const di_json *b = biases->first; b; b = b->next, n++) {
        double value;
        size_t digits = strspn(b->key, "0123456789");
        long id =
            digits > 0 && digits == b->key_length && digits <= 9 ? strtol(b->key, NULL, 10) : -1;
        if (id < 0 || id >= env->vocab_size) {
            return di_fail(error, DI_ERR_INVALID,
                           "logit_bias: '%.40s' is no token id, they are 0 to %d", b->key,
                           env->vocab_size - 1);
        }
        if (!di_json_double(b, &value) || fabs(value) > MAX_BIAS) {
            return di_field_wrong("logit_bias", "a number from -1000 to 1000 for each token",
                                  error);
        }
        out[n] = (di_token_bias){(int32_t)id, (float)value};
    }
    request->sampling.biases = out;
    request->sampling.n_biases = n;
    return DI_OK;
}

di_status di_openai_read_sampling(di_gen_request *request, const di_json *body,
                                  const di_request_env *env, di_error *error) {
    di_sampling *s = &request->sampling;
    int64_t seed = 0, top_k;
    *s = env->sampling;
    top_k = s->top_k;
    DI_TRY(di_field_float(body, "temperature", &s->temperature, error));
    DI_TRY(di_field_float(body, "top_p", &s->top_p, error));
    DI_TRY(di_field_float(body, "min_p", &s->min_p, error));
    DI_TRY(di_field_float(body, "presence_penalty", &s->presence_penalty, error));
    DI_TRY(di_field_float(body, "frequency_penalty", &s->frequency_penalty, error));
    DI_TRY(di_field_float(body, "repetition_penalty", &s->repetition_penalty, error));
    DI_TRY(di_field_int(body, "top_k", -1, INT32_MAX, &top_k, error)); /* -1: vLLM's word for all */
    DI_TRY(di_field_int(body, "seed", 0, INT64_MAX, &seed, error));
    s->top_k = top_k > 0 ? (int32_t)top_k : 0;
    s->seed = (uint64_t)seed;
    request->has_seed = di_field(body, "seed") != NULL;
    DI_TRY(read_biases(request, body, env, error));
    return di_sampling_check(s, env->vocab_size, error);
}

di_status di_openai_read_model(di_gen_request *request, const di_json *body, di_error *error) {
    const char *model = "";
    DI_TRY(di_field_text(body, "model", &model, error));
    request->model_size = strlen(model);
    return di_gen_request_copy(request, model, request->model_size, &request->model, error);
}

di_status di_openai_read_stops(di_gen_request *request, const di_json *body, const char *key,
                               di_error *error) {
    const di_json *stop = di_field(body, key);
    if (!stop) return DI_OK;
    bool one = stop->type == DI_JSON_STRING;
    if ((!one && stop->type != DI_JSON_ARRAY) || (!one && stop->length > MAX_STOPS)) {
        return di_field_wrong(key, "a string or a list of at most 64 of them", error);
    }
    size_t n = one ? 1 : stop->length;
    request->stops = di_arena_calloc(&request->arena, n + 1, sizeof *request->stops);
    if (!request->stops) return no_memory(key, error);
    for (const di_json *item = one ? stop : stop->first; item; item = one ? NULL : item->next) {
        if (item->type != DI_JSON_STRING || item->length == 0 || item->length > MAX_STOP ||
            strlen(item->text) != item->length) {
            return di_field_wrong(key, "text of 1 to 1024 bytes without NUL", error);
        }
        DI_TRY(di_gen_request_copy(request, item->text, item->length,
                                   &request->stops[request->n_stops++], error));
    }
    return DI_OK;
}

/* Of the two names the newer one counts where both are there. A completion that only echoes its prompt
 * may have no tokens of its own. */
static di_status read_lengths(di_gen_request *request, const di_json *body, di_error *error) {
    int64_t n = 1, least = 1;
    bool echo = false;
    if (request->dialect == DI_DIALECT_COMPLETION) {
        DI_TRY(di_field_bool(body, "echo", &echo, error));
        least = echo ? 0 : 1;
    }
    DI_TRY(di_field_int(body, "max_tokens", least, MAX_TOKENS, &request->max_tokens, error));
    if (echo && di_field(body, "max_tokens") && request->max_tokens == 0) request->max_tokens = -1;
    DI_TRY(di_field_int(body, "max_completion_tokens", 1, MAX_TOKENS, &request->max_tokens, error));
    DI_TRY(di_field_int(body, "n", 1, MAX_CHOICES, &n, error));
    request->n_choices = (int32_t)n;
    return DI_OK;
}

static di_status read_logprobs(di_gen_request *request, const di_json *body, di_error *error) {
    int64_t top = 0;
    if (request->dialect == DI_DIALECT_CHAT) {
        DI_TRY(di_field_bool(body, "logprobs", &request->logprobs, error));
        DI_TRY(di_field_int(body, "top_logprobs", 0, MAX_TOP, &top, error));
        if (top > 0 && !request->logprobs) {
            return di_fail(error, DI_ERR_INVALID, "top_logprobs: needs logprobs true");
        }
    } else {
        DI_TRY(di_field_int(body, "logprobs", 0, MAX_TOP, &top, error));
        request->logprobs = di_field(body, "logprobs") != NULL;
    }
    request->top_logprobs = (int32_t)top;
    return DI_OK;
}

/* ---- A conversation ---- */

static di_status read_effort(di_gen_request *request, const di_json *object, const char *key,
                             di_prompt_options *out, di_error *error) {
    const char *text = NULL;
    DI_TRY(di_field_text(object, key, &text, error));
    return text ? di_gen_request_copy(request, text, strlen(text), &out->effort, error) : DI_OK;
}

/* thinking: a bool, or {"type": "enabled"} and "disabled"; and what vLLM and SGLang call
 * chat_template_kwargs. */
static di_status read_thinking(di_gen_request *request, const di_json *body, di_prompt_options *out,
                               di_error *error) {
    const di_json *kwargs = di_field(body, "chat_template_kwargs");
    const di_json *thinking = di_field(body, "thinking");
    if (kwargs && kwargs->type != DI_JSON_OBJECT) {
        return di_field_wrong("chat_template_kwargs", "an object", error);
    }
    DI_TRY(di_field_bool(kwargs, "enable_thinking", &out->thinking, error));
    DI_TRY(di_field_bool(kwargs, "thinking", &out->thinking, error));
    DI_TRY(di_field_bool(kwargs, "drop_thinking", &out->drop_thinking, error));
    DI_TRY(read_effort(request, kwargs, "reasoning_effort", out, error));
    DI_TRY(read_effort(request, body, "reasoning_effort", out, error));
    if (!thinking || di_json_bool(thinking, &out->thinking)) return DI_OK;
    const di_json *type = di_field(thinking, "type");
    out->thinking = di_json_is_string(type, "enabled") || di_json_is_string(type, "adaptive");
    if (out->thinking || di_json_is_string(type, "disabled")) return DI_OK;
    return di_field_wrong("thinking", "true, false or {\"type\": \"enabled\" or \"disabled\"}",
                          error);
}

/* A conversation as the encoder takes it, and what will stand in it in place of some turns. */
typedef struct conversation {
    const di_request_env *env;
    di_arena *arena;
    const di_json *messages;
    di_json *spare; /* members for copies of messages */
    char mark[40];  /* the text of a turn that is known, its number behind it: random */
    bool *thinking; /* of those: it begins in a thought; */
    di_ids *ids;    /* and its tokens */
    size_t n;
    int n_calling; /* turns that called tools, known or not */
} conversation;

/* A member in front hides another of its name. */
static void put_member(conversation *c, di_json *message, di_json member) {
    di_json *at = c->spare++;
    *at = member;
    at->key_length = strlen(at->key);
    at->next = message->first;
    message->first = at;
    message->length++;
}

/* A turn that was sampled here says its mark, and nothing else but its calls, by which the encoder
 * orders results. */
static di_status mark_turn(conversation *c, di_json *message, di_error *error) {
    bool found;
    DI_TRY(di_turns_find(c->env->turns, message, &found, &c->thinking[c->n], &c->ids[c->n], error));
    c->n_calling += di_field(message, "tool_calls") != NULL;
    if (!found) return DI_OK;
    char *text = di_arena_alloc(c->arena, sizeof c->mark + 24);
    if (!text) return no_memory("messages", error);
    int size = snprintf(text, sizeof c->mark + 24, "%s%zu", c->mark, c->n++);
    put_member(c, message,
               (di_json){.type = DI_JSON_STRING,
                         .text = text,
                         .length = (size_t)size,
                         .key = "content"});
    put_member(c, message, (di_json){.type = DI_JSON_NULL, .key = "reasoning_content"});
    put_member(c, message, (di_json){.type = DI_JSON_NULL, .key = "reasoning"});
    return DI_OK;
}

/* What the encoder knows by other names: a turn to be continued is "wo_eos" there and "prefix" in
 * DeepSeek's service; "developer" is OpenAI's newer word for "system", and the model knows that one. */
static di_status adapt_message(conversation *c, di_json *message, di_error *error) {
    static const char system[] = "system";
    const di_json *role = di_field(message, "role");
    bool prefix = false;
    if (message->type != DI_JSON_OBJECT) return DI_OK;
    if (di_json_is_string(role, "developer")) {
        put_member(c, message,
                   (di_json){.type = DI_JSON_STRING,
                             .text = system,
                             .length = sizeof system - 1,
                             .key = "role"});
    }
    DI_TRY(di_field_bool(message, "prefix", &prefix, error));
    if (prefix && (message->next || !di_json_is_string(role, "assistant"))) {
        return di_fail(error, DI_ERR_INVALID,
                       "messages: prefix belongs to a last message of the role assistant");
    }
    if (prefix) put_member(c, message, (di_json){.type = DI_JSON_TRUE, .key = "wo_eos"});
    return c->mark[0] && !prefix ? mark_turn(c, message, error) : DI_OK;
}

static di_status adapt(conversation *c, const di_json *messages, di_error *error) {
    enum { MEMBERS = 5 }; /* of a message at most */
    size_t n = messages->length;
    di_json *list = di_arena_calloc(c->arena, (1 + MEMBERS) * n + 1, sizeof *list);
    c->thinking = di_arena_calloc(c->arena, n, sizeof *c->thinking);
    c->ids = di_arena_calloc(c->arena, n, sizeof *c->ids);
    if (!list || !c->thinking || !c->ids) return no_memory("messages", error);
    di_json *at = list + 1;
    c->spare = at + n;
    *list = *messages;
    list->first = at;
    c->messages = list;
    for (const di_json *m = messages->first; m; m = m->next, at++) {
        *at = *m;
        at->next = m->next ? at + 1 : NULL;
        DI_TRY(adapt_message(c, at, error));
    }
    return DI_OK;
}

static bool is_marker(const di_chat_prompt *prompt, size_t i, const char *marker) {
    if (i >= prompt->n_pieces) return false;
    const di_chat_piece *piece = &prompt->pieces[i];
    return piece->is_marker && piece->size == strlen(marker) &&
           memcmp(piece->text, marker, piece->size) == 0;
}

/* The number of the turn that a piece stands for, or -1. */
static int64_t turn_at(const conversation *c, const di_chat_prompt *prompt, size_t i) {
    const di_chat_piece *piece = &prompt->pieces[i];
    size_t n = strlen(c->mark);
    if (n == 0 || piece->is_marker || piece->size <= n || memcmp(piece->text, c->mark, n) != 0) {
        return -1;
    }
    char digits[24] = "";
    for (size_t k = 0; k + 1 < sizeof digits && n + k < piece->size; k++) {
        if (piece->text[n + k] < '0' || piece->text[n + k] > '9') break;
        digits[k] = piece->text[n + k];
    }
    return strtoll(digits, NULL, 10);
}

static di_status tokenize(const di_chat_prompt *prompt, size_t from, size_t to,
                          const di_request_env *env, di_ids *out, di_error *error) {
    di_chat_prompt part = {.pieces = prompt->pieces + from, .n_pieces = to - from};
    return from < to ? di_chat_tokenize(&part, env->tokenizer, out, error) : DI_OK;
}

/* The prompt with the tokens of known turns in their places: from behind the marker that opened the
 * answer to the end of the turn. *fits false: the prompt opens one otherwise than it was sampled. */
static di_status splice(const conversation *c, const di_chat_prompt *prompt, di_ids *out,
                        bool *fits, di_error *error) {
    size_t from = 0;
    for (size_t i = 0; i < prompt->n_pieces; i++) {
        int64_t turn = turn_at(c, prompt, i);
        if (turn < 0) continue;
        bool thought = i >= 2 && is_marker(prompt, i - 2, "<think>");
        *fits =
            *fits && i >= 2 && is_marker(prompt, i - 1, "</think>") && thought == c->thinking[turn];
        DI_TRY(tokenize(prompt, from, thought ? i - 1 : i, c->env, out, error));
        DI_TRY(di_ids_append(out, c->ids[turn].data, c->ids[turn].size, error));
        while (i < prompt->n_pieces && !is_marker(prompt, i, "<｜end▁of▁sentence｜>")) i++;
        from = i;
    }
    return tokenize(prompt, from, prompt->n_pieces, c->env, out, error);
}

static di_status encode_with(di_gen_request *request, conversation *c, const di_json *messages,
                             const di_json *tools, const di_chat_options *options, bool *fits,
                             di_error *error) {
    di_chat_prompt prompt;
    di_ids *out = &request->prompts[0];
    DI_TRY(adapt(c, messages, error));
    DI_TRY(di_chat_encode(c->messages, tools, options, c->arena, &prompt, error));
    if (prompt.n_images > 0) {
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "messages: images are not supported yet; leave them out");
    }
    *fits = true;
    out->size = 0;
    DI_TRY(splice(c, &prompt, out, fits, error));
    /* The answer begins inside a thought when the prompt ends with its opening marker. */
    request->thinking = is_marker(&prompt, prompt.n_pieces - 1, "<think>");
    return DI_OK;
}

/* Known turns first; where one does not fit, as it is told. */
static di_status encode(di_gen_request *request, const di_json *messages, const di_json *tools,
                        const di_chat_options *options, di_arena *arena, const di_request_env *env,
                        di_error *error) {
    uint64_t random[2];
    bool fits = false;
    di_status status = DI_OK;
    DI_TRY(di_gen_request_prompts(request, 1, error));
    bool drawn = env->turns && getrandom(random, sizeof random, 0) == (ssize_t)sizeof random;
    for (int known = drawn; known >= 0 && !fits && status == DI_OK; known--) {
        conversation c = {.env = env, .arena = arena};
        if (known) {
            snprintf(c.mark, sizeof c.mark, "%016" PRIx64 "%016" PRIx64 "-", random[0], random[1]);
        }
        status = encode_with(request, &c, messages, tools, options, &fits, error);
        if (known) request->n_turns = c.n_calling;
        request->n_known_turns = fits ? (int)c.n : 0;
        for (size_t i = 0; i < c.n; i++) di_ids_free(&c.ids[i]);
    }
    return status;
}

/* Parts that the model cannot be shown stand in its prompt as "[Unsupported TYPE]", which helps nobody here.
 * `outer`: the place of the list in the message. */
static di_status check_parts(const di_json *content, size_t index, const char *outer, bool inner,
                             di_error *error) {
    static const char *const known[] = {"text", "image_url", "image", "tool_result"};
    enum { N_KNOWN = sizeof known / sizeof *known };
    size_t at = 0;
    if (!content || content->type != DI_JSON_ARRAY) return DI_OK;
    for (const di_json *part = content->first; part; part = part->next, at++) {
        const di_json *type = di_field(part, "type");
        int i = 0, n_known = inner ? N_KNOWN - 1 : N_KNOWN;
        if (!type || type->type != DI_JSON_STRING) continue; /* the encoder has words for it */
        while (i < n_known && !di_json_is_string(type, known[i])) i++;
        if (i == n_known) {
            return di_fail(
                error, DI_ERR_UNSUPPORTED,
                "messages[%zu].%s[%zu].type: parts of the type '%.40s' are not supported", index,
                outer, at, type->text);
        }
        if (i < N_KNOWN - 1) continue;
        char where[64];
        snprintf(where, sizeof where, "content[%zu].content", at);
        DI_TRY(check_parts(di_field(part, "content"), index, where, true, error));
    }
    return DI_OK;
}

/* An answer has to follow: behind a turn that is closed, or behind calls without results, the format has
 * no place for one. */
static di_status check_messages(const di_gen_request *request, const di_json *messages,
                                di_error *error) {
    const di_json *last = NULL;
    size_t index = 0;
    bool prefix = false, open = false;
    for (const di_json *m = messages->first; m; m = m->next, index++) {
        DI_TRY(check_parts(di_field(m, "content"), index, "content", false, error));
        last = m;
    }
    if (!di_json_is_string(di_field(last, "role"), "assistant")) return DI_OK;
    const char *field = request->dialect == DI_DIALECT_RESPONSES ? "input" : "messages";
    const di_json *calls = di_field(last, "tool_calls");
    if (calls && calls->length > 0) {
        return di_fail(error, DI_ERR_INVALID, "%s: the results of the last tool calls are missing",
                       field);
    }
    DI_TRY(di_field_bool(last, "prefix", &prefix, error));
    DI_TRY(di_field_bool(last, "wo_eos", &open, error));
    if (prefix || open) return DI_OK;
    return di_fail(error, DI_ERR_INVALID, "%s: the last one must be the user's or a tool's%s",
                   field,
                   request->dialect == DI_DIALECT_CHAT
                       ? ", or the assistant's with \"prefix\": true"
                       : "");
}

static const char *effort_field(const di_gen_request *request) {
    switch (request->dialect) {
    case DI_DIALECT_RESPONSES: return "reasoning.effort";
    case DI_DIALECT_MESSAGES: return "output_config.effort";
    default: return "reasoning_effort";
    }
}

static bool has_tools(const di_json *messages, const di_json *tools) {
    for (const di_json *m = messages->first; m && !tools; m = m->next) tools = di_field(m, "tools");
    return tools != NULL;
}

di_status di_openai_read_messages(di_gen_request *request, const di_json *messages,
                                  const di_json *tools, const di_prompt_options *options,
                                  const di_request_env *env, di_error *error) {
    if (!messages || messages->type != DI_JSON_ARRAY || messages->length == 0) {
        return di_field_wrong("messages", "a list, not empty,", error);
    }
    if (tools && tools->type != DI_JSON_ARRAY) return di_field_wrong("tools", "a list", error);
    if (tools && tools->length == 0) tools = NULL;
    DI_TRY(check_messages(request, messages, error));
    request->has_tools = has_tools(messages, tools);
    di_chat_options chat = di_chat_options_defaults();
    di_error why;
    chat.drop_thinking = options->drop_thinking;
    if (di_chat_effort(options->effort, &chat, &why) != DI_OK) {
        return di_fail(error, why.status, "%s: %s", effort_field(request), why.message);
    }
    if (!options->thinking) chat.thinking = false;
    di_arena arena = DI_ARENA_EMPTY;
    di_status status = encode(request, messages, tools, &chat, &arena, env, error);
    di_arena_free(&arena);
    return status;
}

static di_status read_chat(di_gen_request *request, const di_json *body, const di_request_env *env,
                           di_error *error) {
    di_prompt_options options = di_prompt_options_defaults();
    DI_TRY(read_thinking(request, body, &options, error));
    return di_openai_read_messages(request, di_field(body, "messages"), di_field(body, "tools"),
                                   &options, env, error);
}

/* ---- Texts and ids ---- */

/* Text as in `run --raw`: the begin token is put first unless it is there. */
static di_status read_text(const di_json *text, const di_request_env *env, di_ids *out,
                           di_error *error) {
    di_ids ids = {0};
    di_status status =
        di_tokenizer_encode(env->tokenizer, text->text, text->length, true, &ids, error);
    if (status == DI_OK && env->bos_token >= 0 &&
        (ids.size == 0 || ids.data[0] != env->bos_token)) {
        status = di_ids_append(out, &env->bos_token, 1, error);
    }
    if (status == DI_OK) status = di_ids_append(out, ids.data, ids.size, error);
    di_ids_free(&ids);
    return status;
}

static di_status read_ids(const di_json *list, const di_request_env *env, di_ids *out,
                          di_error *error) {
    for (const di_json *item = list->first; item; item = item->next) {
        int64_t id;
        if (!di_json_int64(item, &id) || id < 0 || id >= env->vocab_size) {
            return di_fail(error, DI_ERR_INVALID, "prompt: token ids are whole numbers below %d",
                           env->vocab_size);
        }
        DI_TRY(di_ids_append(out, &(int32_t){(int32_t)id}, 1, error));
    }
    return DI_OK;
}

/* A text, a list of ids, or a list of these. */
static di_status read_prompts(di_gen_request *request, const di_json *prompt,
                              const di_request_env *env, di_error *error) {
    if (!prompt || prompt->length == 0) {
        return di_field_wrong("prompt", "a text, not empty,", error);
    }
    bool text = prompt->type == DI_JSON_STRING;
    if (!text && prompt->type != DI_JSON_ARRAY) {
        return di_field_wrong("prompt", "a text or token ids", error);
    }
    bool many =
        !text && (prompt->first->type == DI_JSON_STRING || prompt->first->type == DI_JSON_ARRAY);
    if (many && prompt->length > MAX_PROMPTS) {
        return di_field_wrong("prompt", "a list of at most 1024 prompts", error);
    }
    DI_TRY(di_gen_request_prompts(request, many ? prompt->length : 1, error));
    if (text) return read_text(prompt, env, &request->prompts[0], error);
    if (!many) return read_ids(prompt, env, &request->prompts[0], error);
    di_ids *out = request->prompts;
    for (const di_json *item = prompt->first; item; item = item->next, out++) {
        bool right = item->length > 0;
        if (right && item->type == DI_JSON_STRING) {
            DI_TRY(read_text(item, env, out, error));
        } else if (right && item->type == DI_JSON_ARRAY) {
            DI_TRY(read_ids(item, env, out, error));
        } else {
            return di_field_wrong("prompt", "a text or token ids, not empty, in each item", error);
        }
    }
    return DI_OK;
}

/* Text to be filled in between the prompt and the suffix, by the markers for it. */
static di_status read_fill(di_gen_request *request, const di_json *prompt, const di_json *suffix,
                           const di_request_env *env, di_error *error) {
    static const char *const names[] = {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"};
    int32_t marks[3];
    for (int i = 0; i < 3; i++) {
        marks[i] = di_tokenizer_added_id(env->tokenizer, names[i]);
        if (marks[i] >= 0) continue;
        return di_fail(error, DI_ERR_UNSUPPORTED, "suffix: this model has no token %s", names[i]);
    }
    if (suffix->type != DI_JSON_STRING) return di_field_wrong("suffix", "a string", error);
    if (!prompt || prompt->type != DI_JSON_STRING) {
        return di_field_wrong("prompt", "one text, with suffix,", error);
    }
    DI_TRY(di_gen_request_prompts(request, 1, error));
    di_ids *out = &request->prompts[0];
    if (env->bos_token >= 0) DI_TRY(di_ids_append(out, &env->bos_token, 1, error));
    DI_TRY(di_ids_append(out, &marks[0], 1, error));
    DI_TRY(di_tokenizer_encode(env->tokenizer, prompt->text, prompt->length, false, out, error));
    DI_TRY(di_ids_append(out, &marks[1], 1, error));
    DI_TRY(di_tokenizer_encode(env->tokenizer, suffix->text, suffix->length, false, out, error));
    return di_ids_append(out, &marks[2], 1, error);
}

static di_status read_completion(di_gen_request *request, const di_json *body,
                                 const di_request_env *env, di_error *error) {
    const di_json *suffix = di_field(body, "suffix"), *prompt = di_field(body, "prompt");
    if (suffix && !(suffix->type == DI_JSON_STRING && suffix->length == 0)) {
        return read_fill(request, prompt, suffix, env, error);
    }
    return read_prompts(request, prompt, env, error);
}

/* ---- The body ---- */

di_status di_openai_read(di_gen_request *request, const di_json *body, di_dialect dialect,
                         const di_request_env *env, di_error *error) {
    request->dialect = dialect;
    DI_TRY(di_openai_read_model(request, body, error));
    DI_TRY(di_openai_read_sampling(request, body, env, error));
    DI_TRY(read_lengths(request, body, error));
    DI_TRY(read_logprobs(request, body, error));
    DI_TRY(di_openai_read_stops(request, body, "stop", error));
    bool chat = dialect == DI_DIALECT_CHAT;
    DI_TRY(chat ? read_chat(request, body, env, error)
                : read_completion(request, body, env, error));
    return di_gen_request_fits(request, env, chat ? "messages" : "prompt", error);
}
