/* A conversation in OpenAI's form to the tokens of its prompt: checked, adapted to the encoder, and with turns that
 * were sampled here put back as they were (turns.h). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/error.h"
#include "server/fields.h"
#include "server/openai_request.h"
#include "server/turns.h"
#include "text/chat.h"

static di_status no_memory(di_error *error) {
    return di_fail(error, DI_ERR_MEMORY, "out of memory: messages");
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
    if (!text) return no_memory(error);
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

static di_status read_flag(const di_json *message, size_t index, const char *key, bool *out,
                           di_error *error) {
    const di_json *value = di_field(message, key);
    if (!value || di_json_bool(value, out)) return DI_OK;
    return di_fail(error, DI_ERR_INVALID, "messages[%zu].%s: true or false is needed", index, key);
}

/* What the encoder knows by other names: a turn to be continued is "wo_eos" there and "prefix" in
 * DeepSeek's service; "developer" is OpenAI's newer word for "system", and the model knows that one. */
static di_status adapt_message(conversation *c, di_json *message, di_error *error) {
    static const char system[] = "system";
    const di_json *role = di_field(message, "role");
    bool prefix = false;
    size_t index = (size_t)(message - c->messages->first);
    if (message->type != DI_JSON_OBJECT) return DI_OK;
    if (di_json_is_string(role, "developer")) {
        put_member(c, message,
                   (di_json){.type = DI_JSON_STRING,
                             .text = system,
                             .length = sizeof system - 1,
                             .key = "role"});
    }
    DI_TRY(read_flag(message, index, "prefix", &prefix, error));
    if (prefix && (message->next || !di_json_is_string(role, "assistant"))) {
        return di_fail(error, DI_ERR_INVALID,
                       "messages[%zu].prefix: belongs to a last message of the role assistant",
                       index);
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
    if (!list || !c->thinking || !c->ids) return no_memory(error);
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

/* What follows the last marker is the beginning of the answer: a turn that is left open. Its tokens do not
 * depend on what stands in front of the marker. */
static di_status count_begun(di_gen_request *request, const di_chat_prompt *prompt,
                             const di_request_env *env, di_error *error) {
    size_t from = prompt->n_pieces;
    di_ids ids = {0};
    while (from > 0 && !prompt->pieces[from - 1].is_marker) from--;
    di_status status = tokenize(prompt, from, prompt->n_pieces, env, &ids, error);
    request->n_begun = ids.size;
    di_ids_free(&ids);
    return status;
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
    return count_begun(request, &prompt, c->env, error);
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

/* ---- What there may be ---- */

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
        const di_json *content = di_field(m, "content");
        if (!content && di_json_is_string(di_field(m, "role"), "user")) {
            return di_fail(error, DI_ERR_INVALID,
                           "messages[%zu].content: a text or a list of parts is needed", index);
        }
        const di_json *calls = di_field(m, "tool_calls");
        if (calls && calls->type != DI_JSON_ARRAY) {
            return di_fail(error, DI_ERR_INVALID, "messages[%zu].tool_calls: a list is needed",
                           index);
        }
        DI_TRY(check_parts(content, index, "content", false, error));
        last = m;
    }
    if (!di_json_is_string(di_field(last, "role"), "assistant")) return DI_OK;
    const char *field = request->dialect == DI_DIALECT_RESPONSES ? "input" : "messages";
    const di_json *calls = di_field(last, "tool_calls");
    if (calls && calls->length > 0) {
        return di_fail(error, DI_ERR_INVALID, "%s: the results of the last tool calls are missing",
                       field);
    }
    DI_TRY(read_flag(last, index - 1, "prefix", &prefix, error));
    DI_TRY(read_flag(last, index - 1, "wo_eos", &open, error));
    if (prefix || open) return DI_OK;
    return di_fail(error, DI_ERR_INVALID, "%s: the last one must be the user's or a tool's%s",
                   field,
                   request->dialect == DI_DIALECT_CHAT
                       ? ", or the assistant's with \"prefix\": true"
                       : "");
}

/* ---- The prompt ---- */

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
