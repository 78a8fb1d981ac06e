#include "cli/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"

static di_status no_memory(di_error *error) {
    return di_fail(error, DI_ERR_MEMORY, "out of memory: conversation");
}

/* Takes the text of *json. */
static di_status add(di_conversation *conversation, const char *role, size_t role_size,
                     di_buffer *json, di_error *error) {
    size_t n = conversation->n_messages;
    di_message *more = realloc(conversation->messages, (n + 1) * sizeof *more);
    char *copy = strndup(role, role_size);
    if (more) conversation->messages = more;
    if (!more || !copy || json->failed) {
        free(copy);
        di_buffer_free(json);
        return no_memory(error);
    }
    more[n] = (di_message){copy, json->data};
    conversation->n_messages = n + 1;
    return DI_OK;
}

di_status di_conversation_set_system(di_conversation *conversation, const char *text,
                                     di_error *error) {
    char *copy = NULL;
    if (text && *text) {
        size_t size = strlen(text);
        if (di_utf8_valid_prefix(text, size) != size) {
            return di_fail(error, DI_ERR_USAGE, "the system message is not valid UTF-8");
        }
        copy = strdup(text);
        if (!copy) return no_memory(error);
    }
    free(conversation->system);
    conversation->system = copy;
    return DI_OK;
}

di_status di_conversation_add_user(di_conversation *conversation, const char *text, size_t size,
                                   const char *what, di_error *error) {
    if (size == 0) return di_fail(error, DI_ERR_USAGE, "%s is empty", what);
    size_t valid = di_utf8_valid_prefix(text, size);
    if (valid != size) {
        return di_fail(error, DI_ERR_USAGE, "%s is not valid UTF-8 (byte %zu)", what, valid);
    }
    di_buffer json = DI_BUFFER_EMPTY;
    di_buffer_puts(&json, "{\"role\": \"user\", \"content\": ");
    di_json_write_string(&json, text, size);
    di_buffer_putc(&json, '}');
    return add(conversation, "user", 4, &json, error);
}

static void write_text(di_buffer *out, const di_buffer *text) {
    di_json_write_string(out, text->data ? text->data : "", text->size);
}

di_status di_conversation_add_answer(di_conversation *conversation, const di_answer *answer,
                                     di_error *error) {
    di_buffer json = DI_BUFFER_EMPTY;
    di_buffer_puts(&json, "{\"role\": \"assistant\", \"content\": ");
    write_text(&json, &answer->text);
    if (answer->thought.size > 0) {
        di_buffer_puts(&json, ", \"reasoning_content\": ");
        write_text(&json, &answer->thought);
    }
    for (int i = 0; i < answer->n_calls; i++) {
        di_buffer_puts(&json, i ? ", " : ", \"tool_calls\": [");
        di_buffer_printf(&json,
                         "{\"id\": \"call_%d\", \"type\": \"function\", \"function\": "
                         "{\"name\": ",
                         i);
        write_text(&json, &answer->calls[i].name);
        di_buffer_puts(&json, ", \"arguments\": ");
        write_text(&json, &answer->calls[i].arguments);
        di_buffer_puts(&json, i + 1 == answer->n_calls ? "}}]" : "}}");
    }
    di_buffer_putc(&json, '}');
    return add(conversation, "assistant", 9, &json, error);
}

void di_conversation_drop_last(di_conversation *conversation) {
    if (conversation->n_messages == 0) return;
    di_message_free(&conversation->messages[--conversation->n_messages]);
}

di_message di_conversation_take_last(di_conversation *conversation) {
    return conversation->messages[--conversation->n_messages];
}

/* The place it had is still there. */
void di_conversation_put_back(di_conversation *conversation, di_message message) {
    conversation->messages[conversation->n_messages++] = message;
}

void di_message_free(di_message *message) {
    free(message->role);
    free(message->json);
    *message = (di_message){NULL, NULL};
}

const char *di_conversation_last_role(const di_conversation *conversation) {
    size_t n = conversation->n_messages;
    return n ? conversation->messages[n - 1].role : "";
}

void di_conversation_clear(di_conversation *conversation) {
    while (conversation->n_messages > 0) di_conversation_drop_last(conversation);
}

void di_conversation_free(di_conversation *conversation) {
    di_conversation_clear(conversation);
    free(conversation->messages);
    free(conversation->system);
    memset(conversation, 0, sizeof *conversation);
}

void di_conversation_write(const di_conversation *conversation, di_buffer *out) {
    di_buffer_putc(out, '[');
    if (conversation->system) {
        di_buffer_puts(out, "{\"role\": \"system\", \"content\": ");
        di_json_write_string(out, conversation->system, strlen(conversation->system));
        di_buffer_putc(out, '}');
    }
    for (size_t i = 0; i < conversation->n_messages; i++) {
        if (i > 0 || conversation->system) di_buffer_puts(out, ",\n ");
        di_buffer_puts(out, conversation->messages[i].json);
    }
    di_buffer_putc(out, ']');
}

static di_status read_message(di_conversation *into, const di_json *message, bool first,
                              const char *what, size_t number, di_error *error) {
    const di_json *role = di_json_get(message, "role"), *content = di_json_get(message, "content");
    if (!role || role->type != DI_JSON_STRING) {
        return di_fail(error, DI_ERR_INVALID, "%s: message %zu has no role", what, number);
    }
    if (first && di_json_is_string(role, "system") && content && content->type == DI_JSON_STRING &&
        message->length == 2) {
        return di_conversation_set_system(into, content->text, error);
    }
    di_buffer json = DI_BUFFER_EMPTY;
    di_json_write(&json, message);
    return add(into, role->text, role->length, &json, error);
}

di_status di_conversation_read(di_conversation *conversation, const char *json, size_t size,
                               const char *what, di_error *error) {
    di_arena arena = DI_ARENA_EMPTY;
    di_conversation fresh = {0};
    const di_json *list;
    di_status status;
    DI_TRY_DONE(di_json_parse(json, size, what, &arena, &list, error));
    if (list->type != DI_JSON_ARRAY) {
        status = di_fail(error, DI_ERR_INVALID, "%s: a list of messages is expected", what);
        goto done;
    }
    size_t number = 0;
    for (const di_json *message = list->first; message; message = message->next) {
        DI_TRY_DONE(read_message(&fresh, message, number == 0, what, number, error));
        number++;
    }
    di_conversation_free(conversation);
    *conversation = fresh;
    fresh = (di_conversation){0};
done:
    di_conversation_free(&fresh);
    di_arena_free(&arena);
    return status;
}
