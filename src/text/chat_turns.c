/* The conversation before rendering: reading, merging, dropping. Ordering is chat_results.c. */
#include "text/chat_turns.h"

#include <stdio.h>
#include <string.h>

#include "text/chat_format.h"
#include "text/chat_results.h"

/* The message being read. */
typedef struct reader {
    di_arena *arena;
    di_error *error;
    size_t index;
    ptrdiff_t outer; /* the block of its content that is a result and being read, or -1 */
} reader;

static di_status no_memory(di_error *error) {
    return di_fail(error, DI_ERR_MEMORY, "out of memory while encoding the conversation");
}

/* False, empty or zero as Python sees it: such fields count as absent. */
static bool is_falsy(const di_json *value) {
    if (!value) return true;
    int64_t number;
    switch (value->type) {
    case DI_JSON_NULL:
    case DI_JSON_FALSE: return true;
    case DI_JSON_TRUE: return false;
    case DI_JSON_NUMBER: return di_json_int64(value, &number) && number == 0;
    case DI_JSON_STRING:
    case DI_JSON_ARRAY:
    case DI_JSON_OBJECT: break;
    }
    return value->length == 0;
}

/* A string member; NULL when absent or null. */
static di_status read_string(reader *r, const di_json *message, const char *key,
                             const di_json **out) {
    const di_json *value = di_json_get(message, key);
    *out = value && value->type != DI_JSON_NULL ? value : NULL;
    if (!*out || value->type == DI_JSON_STRING) return DI_OK;
    return di_fail(r->error, DI_ERR_INVALID, "messages[%zu].%s: must be a string", r->index, key);
}

static di_status read_list(reader *r, const di_json *message, const char *key,
                           const di_json **out) {
    const di_json *value = di_json_get(message, key);
    *out = is_falsy(value) ? NULL : value;
    if (!*out || value->type == DI_JSON_ARRAY) return DI_OK;
    return di_fail(r->error, DI_ERR_INVALID, "messages[%zu].%s: must be a list", r->index, key);
}

/* ---- Content ---- */

di_status di_chat_check_text(const char *where, const char *text, size_t size, di_error *error) {
    if (!memmem(text, size, CHAT_IMAGE, sizeof CHAT_IMAGE - 1)) return DI_OK;
    return di_fail(
        error, DI_ERR_INVALID,
        "%s: the text spells the image marker %s; send an image block, or change the text", where,
        CHAT_IMAGE);
}

/* Where errors find it: the content that is being read, or a block of it. */
typedef struct place {
    char text[96];
} place;

static place content_place(const reader *r) {
    place at;
    int n = snprintf(at.text, sizeof at.text, "messages[%zu].content", r->index);
    if (r->outer >= 0) {
        snprintf(at.text + n, sizeof at.text - (size_t)n, "[%td].content", r->outer);
    }
    return at;
}

static place block_place(const reader *r, size_t position) {
    place at = content_place(r);
    size_t n = strlen(at.text);
    snprintf(at.text + n, sizeof at.text - n, "[%zu]", position);
    return at;
}

static di_status add_part(reader *r, chat_part ***tail, chat_part_kind kind, const char *text,
                          size_t size, chat_part **out) {
    chat_part *part = di_arena_calloc(r->arena, 1, sizeof *part);
    if (!part) return no_memory(r->error);
    part->kind = kind;
    part->text = text;
    part->size = size;
    **tail = part;
    *tail = &part->next;
    if (out) *out = part;
    return DI_OK;
}

static di_status add_text(reader *r, chat_part ***tail, place at, const char *text, size_t size) {
    DI_TRY(di_chat_check_text(at.text, text, size, r->error));
    return add_part(r, tail, CHAT_PART_TEXT, text, size, NULL);
}

static bool is_filled(const di_json *value) {
    return value && (value->type == DI_JSON_STRING || value->type == DI_JSON_OBJECT) &&
           value->length > 0;
}

/* image_url: a string or {"url"}; image: "source", "url" or "data". */
static bool has_source(const di_json *block) {
    if (di_json_is_string(di_json_get(block, "type"), "image_url")) {
        const di_json *url = di_json_get(block, "image_url");
        if (url && url->type == DI_JSON_OBJECT) url = di_json_get(url, "url");
        return url && url->type == DI_JSON_STRING && url->length > 0;
    }
    return is_filled(di_json_get(block, "source")) || is_filled(di_json_get(block, "url")) ||
           is_filled(di_json_get(block, "data"));
}

static di_status read_image(reader *r, const di_json *block, size_t position, chat_part ***tail) {
    if (!has_source(block)) {
        return di_fail(r->error, DI_ERR_INVALID, "%s: the image has no source (a URL or data)",
                       block_place(r, position).text);
    }
    chat_part *part = NULL;
    DI_TRY(add_part(r, tail, CHAT_PART_IMAGE, NULL, 0, &part));
    part->record = block;
    return DI_OK;
}

static di_status read_content(reader *r, const di_json *content, bool in_result, chat_part ***tail);

/* A message with the role of a tool, or a block of a user's as the Anthropic dialect has it, which then
 * stands at `outer`. */
static di_status read_result(reader *r, const di_json *block, ptrdiff_t outer, chat_part ***tail) {
    const di_json *id = di_json_get(block, "tool_use_id");
    if (!id) id = di_json_get(block, "tool_call_id");
    bool named = id && id->type == DI_JSON_STRING;
    chat_part *part = NULL;
    DI_TRY(
        add_part(r, tail, CHAT_PART_RESULT, named ? id->text : "", named ? id->length : 0, &part));
    chat_part **inner = &part->parts;
    r->outer = outer;
    di_status status = read_content(r, di_json_get(block, "content"), true, &inner);
    r->outer = -1;
    return status;
}

static di_status read_block(reader *r, const di_json *block, size_t position, bool in_result,
                            chat_part ***tail) {
    if (block->type == DI_JSON_STRING) {
        return add_text(r, tail, block_place(r, position), block->text, block->length);
    }
    const di_json *type = di_json_get(block, "type");
    if (!type || type->type != DI_JSON_STRING) {
        return di_fail(r->error, DI_ERR_INVALID, "%s: must be a block with a type",
                       block_place(r, position).text);
    }
    if (di_json_is_string(type, "text")) {
        const di_json *text = di_json_get(block, "text");
        place at = block_place(r, position);
        if (text && text->type != DI_JSON_STRING) {
            return di_fail(r->error, DI_ERR_INVALID, "%s.text: must be a string", at.text);
        }
        size_t n = strlen(at.text);
        snprintf(at.text + n, sizeof at.text - n, ".text");
        return add_text(r, tail, at, text ? text->text : "", text ? text->length : 0);
    }
    if (di_json_is_string(type, "image_url") || di_json_is_string(type, "image")) {
        return read_image(r, block, position, tail);
    }
    if (!in_result && di_json_is_string(type, "tool_result")) {
        return read_result(r, block, (ptrdiff_t)position, tail);
    }
    return add_part(r, tail, CHAT_PART_UNSUPPORTED, type->text, type->length, NULL);
}

/* A string, a list of blocks, or nothing, which is an empty text. */
static di_status read_content(reader *r, const di_json *content, bool in_result,
                              chat_part ***tail) {
    if (!content || content->type == DI_JSON_NULL) {
        return add_part(r, tail, CHAT_PART_TEXT, "", 0, NULL);
    }
    if (content->type == DI_JSON_STRING) {
        return add_text(r, tail, content_place(r), content->text, content->length);
    }
    if (content->type != DI_JSON_ARRAY) {
        return di_fail(r->error, DI_ERR_INVALID, "%s: must be a string or a list of blocks",
                       content_place(r).text);
    }
    size_t position = 0;
    for (const di_json *block = content->first; block; block = block->next, position++) {
        DI_TRY(read_block(r, block, position, in_result, tail));
    }
    return DI_OK;
}

/* ---- Messages ---- */

static di_status read_task(reader *r, const di_json *message, const di_json **task) {
    static const char *const known[] = {"action", "query", "authority",
                                        "domain", "title", "read_url"};
    DI_TRY(read_string(r, message, "task", task));
    if (!*task) return DI_OK;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (di_json_is_string(*task, known[i])) return DI_OK;
    }
    return di_fail(r->error, DI_ERR_INVALID,
                   "messages[%zu].task: unknown task '%.60s' (action, query, authority, domain, "
                   "title, read_url)",
                   r->index, (*task)->text);
}

static di_status read_open(reader *r, const di_json *message, bool *open) {
    const di_json *value = di_json_get(message, "wo_eos");
    *open = false;
    if (!value || value->type == DI_JSON_NULL || di_json_bool(value, open)) return DI_OK;
    return di_fail(r->error, DI_ERR_INVALID, "messages[%zu].wo_eos: must be true or false",
                   r->index);
}

static di_status read_thought(reader *r, const di_json *message, const di_json **out) {
    static const char *const names[] = {"reasoning_content", "reasoning"};
    *out = NULL;
    for (int i = 0; i < 2 && !*out; i++) {
        place at;
        DI_TRY(read_string(r, message, names[i], out));
        if (!*out) continue;
        snprintf(at.text, sizeof at.text, "messages[%zu].%s", r->index, names[i]);
        DI_TRY(di_chat_check_text(at.text, (*out)->text, (*out)->length, r->error));
    }
    return DI_OK;
}

/* What a message may carry beside its content. */
static di_status read_extras(reader *r, const di_json *message, chat_turn *turn) {
    DI_TRY(read_list(r, message, "tools", &turn->tools[0]));
    DI_TRY(read_task(r, message, &turn->task));
    if (turn->role == CHAT_ROLE_SYSTEM) {
        const di_json *format = di_json_get(message, "response_format");
        turn->response_format = is_falsy(format) ? NULL : format;
    }
    if (turn->role != CHAT_ROLE_ASSISTANT) return DI_OK;
    DI_TRY(read_thought(r, message, &turn->reasoning));
    DI_TRY(read_list(r, message, "tool_calls", &turn->calls));
    return read_open(r, message, &turn->open);
}

/* `developer` is refused even where the format would drop an unknown role in silence: clients use
 * it for instructions, and the format has none of it (other engines disagree about its meaning). */
static di_status read_role(reader *r, const di_json *message, chat_role *role, bool *is_tool) {
    static const struct {
        const char *name;
        chat_role role;
    } known[] = {{"system", CHAT_ROLE_SYSTEM},
                 {"user", CHAT_ROLE_USER},
                 {"tool", CHAT_ROLE_USER},
                 {"assistant", CHAT_ROLE_ASSISTANT},
                 {"latest_reminder", CHAT_ROLE_REMINDER}};
    if (message->type != DI_JSON_OBJECT) {
        return di_fail(r->error, DI_ERR_INVALID, "messages[%zu]: must be an object", r->index);
    }
    const di_json *name = di_json_get(message, "role");
    if (!name || name->type != DI_JSON_STRING) {
        return di_fail(r->error, DI_ERR_INVALID, "messages[%zu].role: must be a string", r->index);
    }
    if (di_json_is_string(name, "developer")) {
        return di_fail(
            r->error, DI_ERR_INVALID,
            "messages[%zu].role: this model has no role 'developer'; send it as 'system'",
            r->index);
    }
    *is_tool = di_json_is_string(name, "tool");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (di_json_is_string(name, known[i].name)) *role = known[i].role;
    }
    return DI_OK;
}

static void start_turn(chat_turns *turns, chat_role role, size_t source) {
    chat_turn *turn = &turns->items[turns->n++];
    turn->role = role;
    turn->source = source;
    turn->tail = &turn->parts;
}

/* Results and users join the user turn before them, unless that one has a task. A user message that
 * joins leaves its own task behind, as in the reference. */
static di_status read_message(reader *r, const di_json *message, chat_turns *turns) {
    chat_role role = CHAT_ROLE_UNKNOWN;
    bool is_tool = false;
    DI_TRY(read_role(r, message, &role, &is_tool));
    chat_turn *last = turns->n ? &turns->items[turns->n - 1] : NULL;
    bool joins = role == CHAT_ROLE_USER && last && last->role == role && !last->task;
    if (!joins) {
        start_turn(turns, role, r->index);
        last = &turns->items[turns->n - 1];
    }
    if (role == CHAT_ROLE_UNKNOWN) return read_list(r, message, "tools", &last->tools[0]);
    if (is_tool) return read_result(r, message, -1, &last->tail);
    DI_TRY(read_content(r, di_json_get(message, "content"), false, &last->tail));
    chat_turn extras = {.role = role};
    DI_TRY(read_extras(r, message, joins ? &extras : last));
    if (joins && extras.tools[0]) last->tools[0] = extras.tools[0]; /* counts against dropping */
    return DI_OK;
}

/* ---- The whole ---- */

/* Tools of the request belong to the first system turn, or to a new one in front. */
static void place_request_tools(chat_turns *turns, const di_json *tools) {
    size_t at = 0;
    while (at < turns->n && turns->items[at].role != CHAT_ROLE_SYSTEM) at++;
    if (at == turns->n) {
        memmove(turns->items + 1, turns->items, turns->n * sizeof *turns->items);
        memset(turns->items, 0, sizeof *turns->items);
        turns->items[0].role = CHAT_ROLE_SYSTEM;
        turns->n++;
        at = 0;
    }
    turns->items[at].tools[1] = tools;
}

static void find_last_user(chat_turns *turns) {
    turns->last_user = -1;
    for (size_t i = 0; i < turns->n; i++) {
        chat_role role = turns->items[i].role;
        if (role == CHAT_ROLE_USER || (role == CHAT_ROLE_SYSTEM && i > 0)) {
            turns->last_user = (ptrdiff_t)i;
        }
    }
}

/* Turns of unknown roles before the last user turn go; their thoughts are left out in rendering. */
static void drop_unknown(chat_turns *turns) {
    size_t kept = 0;
    for (size_t i = 0; i < turns->n; i++) {
        bool drop = turns->items[i].role == CHAT_ROLE_UNKNOWN && (ptrdiff_t)i < turns->last_user;
        if (!drop) turns->items[kept++] = turns->items[i];
    }
    turns->n = kept;
    find_last_user(turns);
}

static di_status refuse_unknown(const chat_turns *turns, const di_json *messages, di_error *error) {
    for (size_t i = 0; i < turns->n; i++) {
        if (turns->items[i].role != CHAT_ROLE_UNKNOWN) continue;
        const di_json *message = messages->first;
        for (size_t k = 0; k < turns->items[i].source; k++) message = message->next;
        return di_fail(error, DI_ERR_INVALID,
                       "messages[%zu].role: unknown role '%.60s' (system, user, assistant, tool, "
                       "latest_reminder)",
                       turns->items[i].source, di_json_get(message, "role")->text);
    }
    return DI_OK;
}

di_status chat__read_turns(const di_json *messages, const di_json *tools,
                           const di_chat_options *options, di_arena *arena, chat_turns *out,
                           di_error *error) {
    if (!messages || messages->type != DI_JSON_ARRAY || !messages->first) {
        return di_fail(error, DI_ERR_INVALID, "messages: must be a list with at least one message");
    }
    if (tools && tools->type != DI_JSON_NULL && tools->type != DI_JSON_ARRAY) {
        return di_fail(error, DI_ERR_INVALID, "tools: must be a list");
    }
    *out = (chat_turns){.last_user = -1};
    out->items = di_arena_calloc(arena, messages->length + 1, sizeof *out->items);
    if (!out->items) return no_memory(error);
    reader r = {arena, error, 0, -1};
    for (const di_json *message = messages->first; message; message = message->next, r.index++) {
        DI_TRY(read_message(&r, message, out));
    }
    if (!is_falsy(tools)) place_request_tools(out, tools);
    DI_TRY(chat__sort_results(out, arena, error));

    out->drop_thinking = options->drop_thinking;
    for (size_t i = 0; i < out->n; i++) {
        if (out->items[i].tools[0] || out->items[i].tools[1]) out->drop_thinking = false;
    }
    find_last_user(out);
    if (options->thinking && out->drop_thinking) drop_unknown(out);
    return refuse_unknown(out, messages, error);
}
