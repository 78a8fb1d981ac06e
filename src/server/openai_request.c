#include "server/openai_request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "server/fields.h"

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

/* DeepSeek's service had two names for the two modes of one model: "deepseek-chat" does not think,
 * "deepseek-reasoner" does, as every other name does here. */
di_prompt_options di_openai_prompt_options(const di_gen_request *request) {
    di_prompt_options options = di_prompt_options_defaults();
    if (strcmp(request->model, "deepseek-chat") == 0) options.thinking = false;
    return options;
}

di_status di_openai_read_effort(di_gen_request *request, const di_json *body, const char *key,
                                di_prompt_options *out, di_error *error) {
    const char *text = NULL;
    DI_TRY(di_field_text(body, key, &text, error));
    if (!text) return DI_OK;
    /* Also where the model's name says otherwise; "none" turns it off itself. */
    out->thinking = true;
    return di_gen_request_copy(request, text, strlen(text), &out->effort, error);
}

/* thinking: a bool, or {"type": "enabled"} and "disabled"; and what vLLM and SGLang call
 * chat_template_kwargs. */
static di_status read_thinking(di_gen_request *request, const di_json *body, di_prompt_options *out,
                               di_error *error) {
    const di_json *thinking = di_field(body, "thinking");
    DI_TRY(
        di_openai_read_effort(request, body, "chat_template_kwargs.reasoning_effort", out, error));
    DI_TRY(di_openai_read_effort(request, body, "reasoning_effort", out, error));
    DI_TRY(di_field_bool(body, "chat_template_kwargs.enable_thinking", &out->thinking, error));
    DI_TRY(di_field_bool(body, "chat_template_kwargs.thinking", &out->thinking, error));
    DI_TRY(di_field_bool(body, "chat_template_kwargs.drop_thinking", &out->drop_thinking, error));
    if (!thinking || di_json_bool(thinking, &out->thinking)) return DI_OK;
    const di_json *type = di_field(thinking, "type");
    out->thinking = di_json_is_string(type, "enabled") || di_json_is_string(type, "adaptive");
    if (out->thinking || di_json_is_string(type, "disabled")) return DI_OK;
    return di_field_wrong("thinking", "true, false or {\"type\": \"enabled\" or \"disabled\"}",
                          error);
}

static di_status read_chat(di_gen_request *request, const di_json *body, const di_request_env *env,
                           di_error *error) {
    di_prompt_options options = di_openai_prompt_options(request);
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
