#include "cli/batch_line.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/json_prompt.h"

enum { MAX_TOKENS = 1 << 30, MAX_CHOICES = 128, MAX_TOP = 20, MAX_STOPS = 64, MAX_BIAS = 1000 };

/* Of a line: four times the ids of a million tokens. The tree of its JSON takes up to 50 times as
 * much. */
enum { MAX_MIB = 32 };

/* ---- Fields ---- */

/* NULL: not there, or null. */
static const di_json *get(const di_json *object, const char *key) {
    const di_json *value = di_json_get(object, key);
    return value && value->type != DI_JSON_NULL ? value : NULL;
}

static di_status wrong(const char *key, const char *want, di_error *error) {
    return di_fail(error, DI_ERR_INVALID, "%s: %s is needed", key, want);
}

static di_status read_int(const di_json *body, const char *key, int64_t min, int64_t max,
                          int64_t *out, di_error *error) {
    const di_json *value = get(body, key);
    int64_t n;
    if (!value) return DI_OK;
    if (!di_json_int64(value, &n) || n < min || n > max) {
        return di_fail(error, DI_ERR_INVALID, "%s: a whole number from %lld to %lld is needed", key,
                       (long long)min, (long long)max);
    }
    *out = n;
    return DI_OK;
}

static di_status read_float(const di_json *body, const char *key, float *out, di_error *error) {
    const di_json *value = get(body, key);
    double x;
    if (!value) return DI_OK;
    if (!di_json_double(value, &x) || fabs(x) > (double)FLT_MAX) {
        return wrong(key, "a number in range", error);
    }
    *out = (float)x;
    return DI_OK;
}

static di_status read_bool(const di_json *body, const char *key, bool *out, di_error *error) {
    const di_json *value = get(body, key);
    if (!value || di_json_bool(value, out)) return DI_OK;
    return wrong(key, "true or false", error);
}

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
    const di_json *id = get(o, "custom_id");
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
    const di_json *o = line->body, *url = get(o, "url");
    if (!di_json_is_string(get(o, "method"), "POST")) return wrong("method", "\"POST\"", error);
    line->chat = di_json_is_string(url, "/v1/chat/completions");
    if (!line->chat && !di_json_is_string(url, "/v1/completions")) {
        return wrong("url", "\"/v1/chat/completions\" or \"/v1/completions\"", error);
    }
    line->body = get(o, "body");
    if (!line->body || line->body->type != DI_JSON_OBJECT) return wrong("body", "an object", error);
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
    const di_json *format = get(line->body, "response_format");
    if (format && !di_json_is_string(get(format, "type"), "text")) {
        return di_fail(error, DI_ERR_UNSUPPORTED, "response_format: only text is supported");
    }
    const di_json *choice = get(line->body, "tool_choice");
    if (choice && !di_json_is_string(choice, "auto")) {
        return di_fail(error, DI_ERR_UNSUPPORTED, "tool_choice: only \"auto\" is supported");
    }
    bool stream = false;
    DI_TRY(read_bool(line->body, "stream", &stream, error));
    return stream ? di_fail(error, DI_ERR_UNSUPPORTED, "stream: a batch cannot stream") : DI_OK;
}

/* ---- Sampling and lengths ---- */

static di_status read_biases(di_batch_line *line, di_error *error) {
    const di_json *biases = get(line->body, "logit_bias");
    if (!biases) return DI_OK;
    if (biases->type != DI_JSON_OBJECT) return wrong("logit_bias", "an object", error);
    di_token_bias *out = di_arena_calloc(&line->arena, biases->length + 1, sizeof *out);
    if (!out) return di_fail(error, DI_ERR_MEMORY, "out of memory: logit_bias");
    int32_t n = 0;
    for (const di_json *b = biases->first; b; b = b->next, n++) {
        double value;
        size_t digits = strspn(b->key, "0123456789");
        if (digits == 0 || digits != b->key_length || digits > 9) {
            return di_fail(error, DI_ERR_INVALID, "logit_bias: '%.40s' is no token id", b->key);
        }
        if (!di_json_double(b, &value) || fabs(value) > MAX_BIAS) {
            return wrong("logit_bias", "a number from -1000 to 1000 for each token", error);
        }
        out[n] = (di_token_bias){(int32_t)strtol(b->key, NULL, 10), (float)value};
    }
    line->sampling.biases = out;
    line->sampling.n_biases = n;
    return DI_OK;
}

static di_status read_sampling(di_batch_line *line, const di_engine *engine, di_error *error) {
    const di_json *body = line->body;
    di_sampling *s = &line->sampling;
    int64_t seed = 0, top_k;
    *s = di_engine_sampling(engine);
    top_k = s->top_k;
    DI_TRY(read_float(body, "temperature", &s->temperature, error));
    DI_TRY(read_float(body, "top_p", &s->top_p, error));
    DI_TRY(read_float(body, "min_p", &s->min_p, error));
    DI_TRY(read_float(body, "presence_penalty", &s->presence_penalty, error));
    DI_TRY(read_float(body, "frequency_penalty", &s->frequency_penalty, error));
    DI_TRY(read_float(body, "repetition_penalty", &s->repetition_penalty, error));
    DI_TRY(read_int(body, "top_k", 0, INT32_MAX, &top_k, error));
    DI_TRY(read_int(body, "seed", 0, INT64_MAX, &seed, error));
    s->top_k = (int32_t)top_k;
    s->seed = (uint64_t)seed;
    line->has_seed = get(body, "seed") != NULL;
    DI_TRY(read_biases(line, error));
    return di_sampling_check(s, di_engine_get_info(engine).vocab_size, error);
}

static di_status read_stops(di_batch_line *line, di_error *error) {
    const di_json *stop = get(line->body, "stop");
    if (!stop) return DI_OK;
    bool one = stop->type == DI_JSON_STRING;
    if ((!one && stop->type != DI_JSON_ARRAY) || (!one && stop->length > MAX_STOPS)) {
        return wrong("stop", "a string or a list of at most 64 of them", error);
    }
    size_t n = one ? 1 : stop->length;
    line->stops = di_arena_calloc(&line->arena, n + 1, sizeof *line->stops);
    if (!line->stops) return di_fail(error, DI_ERR_MEMORY, "out of memory: stop");
    for (const di_json *item = one ? stop : stop->first; item; item = one ? NULL : item->next) {
        if (item->type != DI_JSON_STRING || item->length == 0 ||
            strlen(item->text) != item->length) {
            return wrong("stop", "text, not empty and without NUL,", error);
        }
        line->stops[line->n_stops++] = item->text;
    }
    return DI_OK;
}

static di_status read_lengths(di_batch_line *line, di_error *error) {
    int64_t n = 1, newer = 0;
    DI_TRY(read_int(line->body, "max_tokens", 1, MAX_TOKENS, &line->max_tokens, error));
    DI_TRY(read_int(line->body, "max_completion_tokens", 1, MAX_TOKENS, &newer, error));
    if (newer > 0 && line->max_tokens > 0 && newer != line->max_tokens) {
        return di_fail(error, DI_ERR_INVALID,
                       "max_completion_tokens: differs from max_tokens; give one of them");
    }
    if (newer > 0) line->max_tokens = newer;
    DI_TRY(read_int(line->body, "n", 1, MAX_CHOICES, &n, error));
    line->n_choices = (int32_t)n;
    return DI_OK;
}

static di_status read_logprobs(di_batch_line *line, di_error *error) {
    int64_t top = 0;
    if (line->chat) {
        DI_TRY(read_bool(line->body, "logprobs", &line->logprobs, error));
        DI_TRY(read_int(line->body, "top_logprobs", 0, MAX_TOP, &top, error));
        if (top > 0 && !line->logprobs) {
            return di_fail(error, DI_ERR_INVALID, "top_logprobs: needs logprobs true");
        }
    } else {
        DI_TRY(read_int(line->body, "logprobs", 0, MAX_TOP, &top, error));
        line->logprobs = get(line->body, "logprobs") != NULL;
    }
    line->top_logprobs = (int32_t)top;
    return DI_OK;
}

/* ---- The prompt ---- */

/* thinking: a bool, or {"type": "enabled"} and "disabled". */
static di_status read_thinking(const di_json *body, di_prompt_options *out, di_error *error) {
    const di_json *thinking = get(body, "thinking"), *effort = get(body, "reasoning_effort");
    if (effort && (effort->type != DI_JSON_STRING || strlen(effort->text) != effort->length)) {
        return wrong("reasoning_effort", "a string", error);
    }
    if (effort) out->effort = effort->text;
    if (!thinking || di_json_bool(thinking, &out->thinking)) return DI_OK;
    const di_json *type = get(thinking, "type");
    out->thinking = di_json_is_string(type, "enabled");
    if (out->thinking || di_json_is_string(type, "disabled")) return DI_OK;
    return wrong("thinking", "true, false or {\"type\": \"enabled\" or \"disabled\"}", error);
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
        if (!di_json_is_string(get(m, "role"), "user") || get(m, "content")) continue;
        return di_fail(error, DI_ERR_INVALID, "messages[%d].content: a user's message needs one",
                       index);
    }
    return DI_OK;
}

static di_status read_chat(di_batch_line *line, const di_tokenizer *tokenizer, di_error *error) {
    const di_json *messages = get(line->body, "messages"), *tools = get(line->body, "tools");
    di_prompt_options options = di_prompt_options_defaults();
    DI_TRY(read_thinking(line->body, &options, error));
    DI_TRY(check_messages(messages, error));
    return di_prompt_from_json(tokenizer, messages, tools, &options, &line->prompt, &line->thinking,
                               error);
}

/* Text as in `run --raw`: the begin token is put first unless it is there. */
static di_status read_text(di_batch_line *line, const di_json *prompt, const di_engine *engine,
                           di_error *error) {
    int32_t bos = di_engine_get_info(engine).bos_token;
    di_ids text = {0};
    di_status status = di_tokenizer_encode(di_engine_tokenizer(engine), prompt->text,
                                           prompt->length, true, &text, error);
    if (status == DI_OK && bos >= 0 && (text.size == 0 || text.data[0] != bos)) {
        status = di_ids_append(&line->prompt, &bos, 1, error);
    }
    if (status == DI_OK) status = di_ids_append(&line->prompt, text.data, text.size, error);
    di_ids_free(&text);
    return status;
}

static di_status read_completion(di_batch_line *line, const di_engine *engine, di_error *error) {
    const di_json *prompt = get(line->body, "prompt");
    if (!prompt || prompt->length == 0) return wrong("prompt", "a text, not empty,", error);
    if (prompt->type == DI_JSON_STRING) return read_text(line, prompt, engine, error);
    if (prompt->type != DI_JSON_ARRAY) return wrong("prompt", "a text or token ids", error);
    for (const di_json *item = prompt->first; item; item = item->next) {
        int64_t id;
        if (item->type == DI_JSON_STRING || item->type == DI_JSON_ARRAY) {
            return di_fail(error, DI_ERR_UNSUPPORTED,
                           "prompt: a list of prompts is not supported; give each its own line");
        }
        if (!di_json_int64(item, &id) || id < 0 || id >= di_engine_get_info(engine).vocab_size) {
            return di_fail(error, DI_ERR_INVALID, "prompt: token ids are whole numbers below %d",
                           di_engine_get_info(engine).vocab_size);
        }
        DI_TRY(di_ids_append(&line->prompt, &(int32_t){(int32_t)id}, 1, error));
    }
    return DI_OK;
}

static di_status check_length(const di_batch_line *line, const di_engine *engine, di_error *error) {
    int64_t context = di_engine_get_info(engine).context;
    if (line->prompt.size < (size_t)context) return DI_OK;
    return di_fail(error, DI_ERR_LIMIT,
                   "%s: %zu tokens and one of answer do not fit the context of %lld; shorten it "
                   "or give a larger --context",
                   line->chat ? "messages" : "prompt", line->prompt.size, (long long)context);
}

di_status di_batch_line_read(di_batch_line *line, const di_engine *engine, di_error *error) {
    DI_TRY(read_envelope(line, error));
    DI_TRY(check_known(line, error));
    const di_json *model = get(line->body, "model");
    if (model && model->type != DI_JSON_STRING) return wrong("model", "a string", error);
    line->model = model ? model->text : "";
    line->model_size = model ? model->length : 0;
    DI_TRY(read_sampling(line, engine, error));
    DI_TRY(read_lengths(line, error));
    DI_TRY(read_logprobs(line, error));
    DI_TRY(read_stops(line, error));
    DI_TRY(line->chat ? read_chat(line, di_engine_tokenizer(engine), error)
                      : read_completion(line, engine, error));
    return check_length(line, engine, error);
}

void di_batch_line_free(di_batch_line *line) {
    di_ids_free(&line->prompt);
    di_arena_free(&line->arena);
}
