/* Bodies of the OpenAI endpoints, as the server takes them. */
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/lossy.h"
#include "base/utf8.h"
#include "server/constraint.h"
#include "server/fields.h"
#include "server/openai_request.h"
#include "server/read_internal.h"

static di_status in_range(const char *name, double value, double min, double max, di_error *error) {
    if (value >= min && value <= max) return DI_OK;
    return di_fail(error, DI_ERR_INVALID, "%s: %g is not valid, the valid range of %s is [%g, %g]",
                   name, value, name, min, max);
}

di_status read_check(const di_gen_request *r, const di_request_env *env, di_error *error) {
    enum { MAX_ANSWERS = 1024 };
    const di_sampling *s = &r->sampling;
    if ((int64_t)r->n_prompts * r->n_choices > MAX_ANSWERS) {
        return di_fail(error, DI_ERR_INVALID, "n: a request has at most %d answers in all",
                       MAX_ANSWERS);
    }
    DI_TRY(in_range("temperature", (double)s->temperature, 0, 2, error));
    DI_TRY(in_range("presence_penalty", (double)s->presence_penalty, -2, 2, error));
    DI_TRY(in_range("frequency_penalty", (double)s->frequency_penalty, -2, 2, error));
    for (int32_t i = 0; i < r->n_prompts; i++) {
        int64_t needed = (int64_t)r->prompts[i].size + (r->max_tokens > 0 ? r->max_tokens : 1);
        if (needed - (r->max_tokens < 0) <= env->context) continue;
        return di_fail(error, DI_ERR_LIMIT, "the context is too short for the request");
    }
    return DI_OK;
}

static di_status read_stream(di_gen_request *r, const di_json *body, di_error *error) {
    DI_TRY(di_field_bool(body, "stream", &r->stream, error));
    DI_TRY(di_field_bool(body, "stream_options.include_usage", &r->include_usage, error));
    if (!di_field(body, "stream_options") || r->stream) return DI_OK;
    return di_fail(error, DI_ERR_INVALID, "stream_options: needs stream true");
}

/* A completion has no turn that ends it, so it has a bound where none is given: OpenAI's and vLLM's, or with a
 * suffix, which only DeepSeek's service takes, that service's. It does not make a prompt too long. */
static void bound_completion(di_gen_request *r, const di_json *body, const di_request_env *env) {
    enum { TOKENS = 16, FILL_TOKENS = 4096 };
    const di_json *suffix = di_field(body, "suffix");
    int64_t left = env->context;
    if (r->dialect != DI_DIALECT_COMPLETION || r->max_tokens != 0) return;
    for (int32_t i = 0; i < r->n_prompts; i++) {
        int64_t here = env->context - (int64_t)r->prompts[i].size;
        if (here < left) left = here;
    }
    r->max_tokens = suffix && suffix->length > 0 ? FILL_TOKENS : TOKENS;
    if (left > 0 && left < r->max_tokens) r->max_tokens = left;
}

/* vLLM's, for measurements: the answer ends by its length, or by a stop text. */
static di_status read_ignore_eos(di_gen_request *r, const di_json *body, const di_request_env *env,
                                 di_error *error) {
    bool ignore = false;
    DI_TRY(di_field_bool(body, "ignore_eos", &ignore, error));
    return ignore ? di_constraint_forbid(r, "<｜end▁of▁sentence｜>", env, error) : DI_OK;
}

static di_status read_both(di_generation *g, const di_json *body, di_dialect dialect,
                           di_error *error) {
    di_gen_request *r = &g->work_request;
    const di_request_env *env = &g->server->env;
    DI_TRY(read_unsupported(body, dialect, error));
    DI_TRY(di_openai_read(r, body, dialect, env, error));
    bound_completion(r, body, env);
    DI_TRY(read_ignore_eos(r, body, env, error));
    DI_TRY(read_stream(r, body, error));
    DI_TRY(di_constraint_read(r, body, env, error));
    return read_check(r, env, error);
}

di_status read_chat(di_generation *g, const di_json *body, di_error *error) {
    return read_both(g, body, DI_DIALECT_CHAT, error);
}

/* ---- Completions ---- */

/* The prompts as texts: as they came, or what their ids spell. */
static di_status read_echo(di_gen_request *r, const di_json *body, const di_request_env *env,
                           di_error *error) {
    enum { MAX_ECHO = 32 << 20 }; /* they go out at once */
    const di_json *prompt = di_field(body, "prompt");
    size_t all = 0;
    bool many = prompt->type == DI_JSON_ARRAY && prompt->first->type != DI_JSON_NUMBER;
    const di_json *item = many ? prompt->first : prompt;
    size_t n = (size_t)r->n_prompts;
    r->echoes = di_arena_calloc(&r->arena, n, sizeof *r->echoes);
    r->echo_sizes = di_arena_calloc(&r->arena, n, sizeof *r->echo_sizes);
    if (!r->echoes || !r->echo_sizes) return di_fail(error, DI_ERR_MEMORY, "out of memory: echo");
    for (size_t i = 0; i < n; i++, item = many ? item->next : NULL) {
        char *text = NULL;
        size_t size = item->length;
        if (item->type != DI_JSON_STRING) {
            DI_TRY(di_tokenizer_text(env->tokenizer, r->prompts[i].data, r->prompts[i].size, false,
                                     &text, &size, error));
            size = di_utf8_valid_prefix(text, size);
        }
        di_status status =
            di_gen_request_copy(r, text ? text : item->text, size, &r->echoes[i], error);
        di_free(text);
        if (status != DI_OK) return status;
        r->echo_sizes[i] = size;
        all += size * (size_t)r->n_choices;
    }
    if (all <= MAX_ECHO) return DI_OK;
    return di_fail(error, DI_ERR_UNSUPPORTED, "echo: the answers would repeat more than %d bytes",
                   MAX_ECHO);
}

di_status read_completion(di_generation *g, const di_json *body, di_error *error) {
    di_gen_request *r = &g->work_request;
    int64_t best_of = 1;
    DI_TRY(read_both(g, body, DI_DIALECT_COMPLETION, error));
    DI_TRY(di_field_bool(body, "echo", &r->echo, error));
    DI_TRY(di_field_int(body, "best_of", 1, 128, &best_of, error));
    if (best_of > r->n_choices) {
        return di_fail(error, DI_ERR_UNSUPPORTED, "best_of: more answers than n are not supported");
    }
    const di_json *suffix = di_field(body, "suffix");
    if (r->echo && suffix && suffix->length > 0) {
        return di_fail(error, DI_ERR_INVALID, "echo: means nothing together with suffix");
    }
    r->scores_prompt = r->echo && (r->logprobs || r->max_tokens < 0);
    if (r->scores_prompt && r->n_choices > 1) {
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "n: with echo and logprobs, or without tokens of its own, a prompt has one "
                       "answer");
    }
    return r->echo ? read_echo(r, body, &g->server->env, error) : DI_OK;
}

/* ---- Tokens ---- */

static void write_ids(const di_ids *ids, int64_t context, di_buffer *out) {
    di_buffer_printf(out, "{\"count\":%zu,\"max_model_len\":%lld,\"tokens\":[", ids->size,
                     (long long)context);
    for (size_t i = 0; i < ids->size; i++) {
        di_buffer_printf(out, "%s%d", i ? "," : "", ids->data[i]);
    }
    di_buffer_puts(out, "]}");
}

/* {"prompt": text} as text is read in a completion, or {"messages": [...]} as a chat's prompt. */
di_status read_tokenize(di_generation *g, const di_json *body, di_error *error) {
    const di_request_env *env = &g->server->env;
    const di_json *prompt = di_field(body, "prompt");
    bool special = true;
    di_ids ids = {0};
    if (di_field(body, "messages")) {
        /* As a request that is never run. */
        di_gen_request r = {.n_prompts = 0};
        di_request_env wide = *env;
        wide.context = INT64_MAX;
        di_status status = di_openai_read(&r, body, DI_DIALECT_CHAT, &wide, error);
        if (status == DI_OK) write_ids(&r.prompts[0], env->context, &g->work_reply);
        di_gen_request_free(&r);
        return status;
    }
    if (!prompt || prompt->type != DI_JSON_STRING) {
        return di_field_wrong("prompt", "a text, or messages,", error);
    }
    DI_TRY(di_field_bool(body, "add_special_tokens", &special, error));
    di_status status = DI_OK;
    if (special && env->bos_token >= 0) status = di_ids_append(&ids, &env->bos_token, 1, error);
    if (status == DI_OK) {
        status =
            di_tokenizer_encode(env->tokenizer, prompt->text, prompt->length, true, &ids, error);
    }
    if (status == DI_OK) write_ids(&ids, env->context, &g->work_reply);
    di_ids_free(&ids);
    return status;
}

di_status read_detokenize(di_generation *g, const di_json *body, di_error *error) {
    const di_request_env *env = &g->server->env;
    const di_json *tokens = di_field(body, "tokens");
    di_buffer text = DI_BUFFER_EMPTY;
    if (!tokens || tokens->type != DI_JSON_ARRAY) {
        return di_field_wrong("tokens", "a list of token ids", error);
    }
    for (const di_json *t = tokens->first; t; t = t->next) {
        int64_t id;
        size_t size = 0;
        bool known = di_json_int64(t, &id) && id >= 0 && id < env->vocab_size;
        const char *bytes = known ? di_tokenizer_bytes(env->tokenizer, (int32_t)id, &size) : NULL;
        if (!bytes) {
            di_buffer_free(&text);
            return di_fail(error, DI_ERR_INVALID, "tokens: %.40s is no token id",
                           t->type == DI_JSON_NUMBER ? t->text : "something else");
        }
        di_buffer_append(&text, bytes, size);
    }
    di_buffer_puts(&g->work_reply, "{\"prompt\":");
    di_lossy_write(&g->work_reply, text.data ? text.data : "", text.size);
    di_buffer_putc(&g->work_reply, '}');
    if (text.failed) g->work_reply.failed = true;
    di_buffer_free(&text);
    return DI_OK;
}
