#include "server/responses_conversation.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "server/fields.h"
#include "server/json_build.h"
#include "server/places.h"
#include "text/chat.h"

enum { MAX_REFERENCES = 4096 }; /* to items that were kept; each takes a search */

/* ---- Places ----
 *
 * What a message was made of: an item of the input by its number, one of the past as PAST - number, or one of the
 * two that are a text of their own. */
enum { PAST = -1, INSTRUCTIONS = INT_MIN, WHOLE_INPUT };

typedef struct origin {
    int item;
    int first_call; /* of it, in the list of all calls' items */
} origin;

static void name_item(int item, char *out, size_t size) {
    if (item >= 0) {
        snprintf(out, size, "input[%d]", item);
    } else if (item <= WHOLE_INPUT) {
        snprintf(out, size, "%s", item == INSTRUCTIONS ? "instructions" : "input");
    } else {
        snprintf(out, size, "previous_response_id: items[%d]", PAST - item);
    }
}

static const di_json *item_at(const di_json *list, int n) {
    const di_json *item = list->first;
    while (n-- > 0) item = item->next;
    return item;
}

/* The result of a call has its content in `output`. */
static const char *content_of(const di_json *item) {
    return di_json_is_string(di_field(item, "type"), "function_call_output") ? "output" : "content";
}

static void name_place(const void *user, const di_place *place, char *out, size_t size) {
    const di_responses_conversation *c = user;
    origin of;
    memcpy(&of, c->places.data + place->message * sizeof of, sizeof of);
    if (place->call >= 0) {
        size_t at = (size_t)of.first_call + (size_t)place->call;
        memcpy(&of.item, c->calls.data + at * sizeof of.item, sizeof of.item);
    }
    name_item(of.item, out, size);
    if (!place->content || of.item <= WHOLE_INPUT) return;
    const di_json *item = of.item >= 0 ? item_at(di_field(c->body, "input"), of.item)
                                       : item_at(c->past, PAST - of.item);
    size_t n = strlen(out);
    snprintf(out + n, size - n, ".%s", content_of(item));
}

void di_responses_conversation_rename(const di_responses_conversation *c, di_error *error) {
    di_places_rename(name_place, c, error);
}

/* ---- Messages ----
 *
 * What the model did stands in several items (reasoning, message, function_call); they become one
 * message of the assistant, which is open until something else comes. */
typedef struct builder {
    di_responses_conversation *c;
    di_buffer *out;
    int n;          /* messages */
    int item;       /* that is read, as in origins, */
    char where[64]; /* and its name */
    bool open;      /* one of the assistant is being gathered, of items from `first` on: */
    int first;
    int n_references;
    size_t reference_bytes; /* of what they stand for: a few bytes may name much, many times */
    di_buffer thought, text, calls;
    int n_calls, n_all_calls;
} builder;

static void begin_item(builder *b, int item) {
    b->item = item;
    name_item(item, b->where, sizeof b->where);
}

static void begin_message(builder *b, int item, int n_calls) {
    const origin of = {item, b->n_all_calls - n_calls};
    di_buffer_append(&b->c->places, (const char *)&of, sizeof of);
    di_build_next(b->out, &b->n);
}

static void open_assistant(builder *b) {
    if (!b->open) b->first = b->item;
    b->open = true;
}

static void close_assistant(builder *b) {
    int n = 1;
    if (!b->open) return;
    b->open = false;
    begin_message(b, b->first, b->n_calls);
    di_buffer_puts(b->out, "{\"role\":\"assistant\"");
    di_build_text(b->out, &n, "content", b->text.data ? b->text.data : "", b->text.size);
    if (b->thought.size > 0) {
        di_build_text(b->out, &n, "reasoning_content", b->thought.data, b->thought.size);
    }
    if (b->n_calls > 0) {
        di_buffer_puts(b->out, ",\"tool_calls\":[");
        di_buffer_append(b->out, b->calls.data, b->calls.size);
        di_buffer_putc(b->out, ']');
    }
    di_buffer_putc(b->out, '}');
    if (b->thought.failed || b->text.failed || b->calls.failed) b->out->failed = true;
    di_buffer_clear(&b->thought);
    di_buffer_clear(&b->text);
    di_buffer_clear(&b->calls);
    b->n_calls = 0;
}

static bool is_type(const di_json *item, const char *type) {
    return di_json_is_string(di_field(item, "type"), type);
}

/* Texts of an answer, which may be in parts, behind those before. They are looked through here, for their places
 * are lost in what is joined. */
static di_status join_text(const builder *b, const char *at, const di_json *text, di_buffer *out,
                           di_error *error) {
    char where[100];
    if (!text || text->type != DI_JSON_STRING) return DI_OK;
    snprintf(where, sizeof where, "%s.%s", b->where, at);
    di_buffer_append(out, text->text, text->length);
    return di_chat_check_text(where, text->text, text->length, error);
}

static di_status join(const builder *b, const di_json *item, const char *key, di_buffer *out,
                      di_error *error) {
    const di_json *content = di_field(item, key);
    int index = 0;
    if (!content || content->type != DI_JSON_ARRAY) return join_text(b, key, content, out, error);
    for (const di_json *p = content->first; p; p = p->next, index++) {
        char at[40];
        snprintf(at, sizeof at, "%s[%d].text", key, index);
        DI_TRY(join_text(b, at, di_field(p, "text"), out, error));
    }
    return DI_OK;
}

/* The parts of a user's or system's message: input_text is text. */
static di_status build_content(builder *b, const di_json *item, di_error *error) {
    const char *key = content_of(item);
    const di_json *content = di_field(item, key);
    int n = 0, index = 0;
    if (content && content->type == DI_JSON_STRING) {
        di_json_write(b->out, content);
        return DI_OK;
    }
    if (!content || content->type != DI_JSON_ARRAY) {
        return di_fail(error, DI_ERR_INVALID, "%s.%s: a text or a list of parts is needed",
                       b->where, key);
    }
    di_buffer_putc(b->out, '[');
    for (const di_json *p = content->first; p; p = p->next, index++) {
        const di_json *text = di_field(p, "text");
        int members = 1;
        bool is_text = is_type(p, "input_text") || is_type(p, "output_text") || is_type(p, "text");
        if (!is_text || !text || text->type != DI_JSON_STRING) {
            return di_fail(error, DI_ERR_UNSUPPORTED, "%s.%s[%d]: only parts of text are supported",
                           b->where, key, index);
        }
        di_build_next(b->out, &n);
        di_buffer_puts(b->out, "{\"type\":\"text\"");
        di_build_member(b->out, &members, "text", text);
        di_buffer_putc(b->out, '}');
    }
    di_buffer_putc(b->out, ']');
    return DI_OK;
}

static di_status add_message(builder *b, const di_json *item, di_error *error) {
    const di_json *role = di_field(item, "role");
    static const char *const names[] = {"user", "system", "developer"};
    int i = 0;
    if (di_json_is_string(role, "assistant")) {
        open_assistant(b);
        return join(b, item, "content", &b->text, error);
    }
    while (i < 3 && !di_json_is_string(role, names[i])) i++;
    if (i == 3) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s.role: user, assistant, system or developer is needed", b->where);
    }
    close_assistant(b);
    begin_message(b, b->item, 0);
    di_buffer_printf(b->out, "{\"role\":\"%s\",\"content\":", i == 0 ? "user" : "system");
    DI_TRY(build_content(b, item, error));
    di_buffer_putc(b->out, '}');
    return DI_OK;
}

static di_status need_text(const builder *b, const di_json *item, const char *key,
                           di_error *error) {
    const di_json *value = di_field(item, key);
    if (value && value->type == DI_JSON_STRING) return DI_OK;
    return di_fail(error, DI_ERR_INVALID, "%s.%s: a string is needed", b->where, key);
}

static di_status add_call(builder *b, const di_json *item, di_error *error) {
    int n = 0, members = 1;
    DI_TRY(need_text(b, item, "name", error));
    if (di_field(item, "name")->length == 0) {
        return di_fail(error, DI_ERR_INVALID, "%s.name: it is empty", b->where);
    }
    DI_TRY(need_text(b, item, "arguments", error));
    DI_TRY(need_text(b, item, "call_id", error));
    open_assistant(b);
    di_buffer_append(&b->c->calls, (const char *)&b->item, sizeof b->item);
    b->n_all_calls++;
    di_build_next(&b->calls, &b->n_calls);
    di_buffer_puts(&b->calls, "{\"type\":\"function\",\"function\":{");
    di_build_member(&b->calls, &n, "name", di_field(item, "name"));
    di_build_member(&b->calls, &n, "arguments", di_field(item, "arguments"));
    di_buffer_putc(&b->calls, '}');
    di_build_member(&b->calls, &members, "id", di_field(item, "call_id"));
    di_buffer_putc(&b->calls, '}');
    return DI_OK;
}

static di_status add_result(builder *b, const di_json *item, di_error *error) {
    int n = 1;
    DI_TRY(need_text(b, item, "call_id", error));
    close_assistant(b);
    begin_message(b, b->item, 0);
    di_buffer_puts(b->out, "{\"role\":\"tool\"");
    di_build_member(b->out, &n, "tool_call_id", di_field(item, "call_id"));
    di_buffer_puts(b->out, ",\"content\":");
    DI_TRY(build_content(b, item, error));
    di_buffer_putc(b->out, '}');
    return DI_OK;
}

static di_status add_item(builder *b, const di_json *item, di_error *error);

/* An item of a response that was kept, by its id. */
static di_status add_reference(builder *b, const di_json *item, di_error *error) {
    const di_json *found;
    di_buffer text = DI_BUFFER_EMPTY;
    DI_TRY(need_text(b, item, "id", error));
    if (b->n_references++ == MAX_REFERENCES) {
        return di_fail(error, DI_ERR_UNSUPPORTED, "input: there are more than %d references",
                       MAX_REFERENCES);
    }
    const char *id = di_field(item, "id")->text;
    di_status status = DI_OK;
    if (!di_stored_find(b->c->stored, id, b->c->owner, &text)) {
        status = di_fail(error, DI_ERR_INVALID,
                         "%s.id: there is no item '%.60s' here; send it itself", b->where, id);
    }
    b->reference_bytes += text.size;
    if (status == DI_OK && b->reference_bytes > b->c->max_bytes) {
        status = di_fail(error, DI_ERR_UNSUPPORTED,
                         "input: the items that are referred to have more than %zu bytes",
                         b->c->max_bytes);
    }
    if (status == DI_OK) status = di_build_parse(&text, b->c->arena, &found, error);
    di_buffer_free(&text);
    return status == DI_OK ? add_item(b, found, error) : status;
}

static di_status add_item(builder *b, const di_json *item, di_error *error) {
    if (is_type(item, "item_reference")) return add_reference(b, item, error);
    if (is_type(item, "function_call")) return add_call(b, item, error);
    if (is_type(item, "function_call_output")) return add_result(b, item, error);
    if (is_type(item, "reasoning")) {
        const di_json *content = di_field(item, "content");
        open_assistant(b);
        return join(b, item, content && content->length > 0 ? "content" : "summary", &b->thought,
                    error);
    }
    if (item->type == DI_JSON_OBJECT && (!di_field(item, "type") || is_type(item, "message"))) {
        return add_message(b, item, error);
    }
    return di_fail(error, DI_ERR_UNSUPPORTED, "%s.type: items of this type are not supported",
                   b->where);
}

/* A text that is a message of its own. */
static void add_text(builder *b, int item, const char *role, const di_json *text) {
    int n = 1;
    close_assistant(b);
    begin_message(b, item, 0);
    di_buffer_printf(b->out, "{\"role\":\"%s\"", role);
    di_build_member(b->out, &n, "content", text);
    di_buffer_putc(b->out, '}');
}

static di_status add_all(builder *b, di_error *error) {
    const di_json *input = di_field(b->c->body, "input");
    const di_json *system = di_field(b->c->body, "instructions");
    int index = 0;
    if (system && system->type != DI_JSON_STRING) {
        return di_field_wrong("instructions", "a string", error);
    }
    if (system) add_text(b, INSTRUCTIONS, "system", system);
    if (!input || input->length == 0 ||
        (input->type != DI_JSON_STRING && input->type != DI_JSON_ARRAY)) {
        return di_field_wrong("input", "a text or a list", error);
    }
    for (const di_json *i = b->c->past ? b->c->past->first : NULL; i; i = i->next, index++) {
        begin_item(b, PAST - index);
        DI_TRY(add_item(b, i, error));
    }
    if (input->type == DI_JSON_STRING) {
        add_text(b, WHOLE_INPUT, "user", input);
        return DI_OK;
    }
    index = 0;
    for (const di_json *i = input->first; i; i = i->next, index++) {
        begin_item(b, index);
        DI_TRY(add_item(b, i, error));
    }
    close_assistant(b);
    return DI_OK;
}

di_status di_responses_conversation_build(di_responses_conversation *c, di_error *error) {
    builder b = {.c = c, .out = &c->out};
    di_buffer_putc(&c->out, '[');
    di_status status = add_all(&b, error);
    di_buffer_putc(&c->out, ']');
    if (c->places.failed || c->calls.failed) c->out.failed = true;
    di_buffer_free(&b.thought);
    di_buffer_free(&b.text);
    di_buffer_free(&b.calls);
    return status;
}

void di_responses_conversation_deinit(di_responses_conversation *c) {
    di_buffer_free(&c->out);
    di_buffer_free(&c->places);
    di_buffer_free(&c->calls);
}
