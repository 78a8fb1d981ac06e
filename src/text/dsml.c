/* Tools and calls on their way into a prompt. */
#include "text/dsml.h"

#include <string.h>

#include "text/chat_format.h"
#include "text/tools_preamble.h"

/* Where a message about a tool or call points: LIST[INDEX]. */
typedef struct place {
    const char *list;
    size_t index;
} place;

static di_status no_memory(di_error *error) {
    return di_fail(error, DI_ERR_MEMORY, "out of memory while encoding the conversation");
}

/* ---- Names and namespaces ---- */

static bool is_text(const di_json *value) {
    return value && value->type == DI_JSON_STRING && value->length > 0;
}

static bool is_null(const di_json *value) { return !value || value->type == DI_JSON_NULL; }

static bool has_separator(const char *text, size_t size) {
    return memmem(text, size, "::", 2) != NULL;
}

/* A namespace is a string, or {"name", "description"}; NULL when there is none. */
static di_status read_namespace(const di_json *object, place at, const di_json **name,
                                di_error *error) {
    const di_json *value = di_json_get(object, "namespace");
    *name = NULL;
    if (is_null(value)) return DI_OK;
    if (value->type == DI_JSON_OBJECT) value = di_json_get(value, "name");
    if (!is_text(value)) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s[%zu].namespace: must be a name or an object with a name", at.list,
                       at.index);
    }
    if (has_separator(value->text, value->length)) {
        return di_fail(error, DI_ERR_INVALID, "%s[%zu].namespace: '%s' must not contain '::'",
                       at.list, at.index, value->text);
    }
    *name = value;
    return DI_OK;
}

static bool same_text(const di_json *value, const char *text, size_t size) {
    return value->length == size && memcmp(value->text, text, size) == 0;
}

/* Appends NAME or NAMESPACE::NAME. A namespace may stand beside the function, in it, or in front of
 * its name already; all that are given must agree. `outer` may be the function itself. */
static di_status write_name(di_buffer *out, const di_json *outer, const di_json *function, place at,
                            di_error *error) {
    const di_json *name = di_json_get(function, "name");
    if (!is_text(name)) {
        return di_fail(error, DI_ERR_INVALID, "%s[%zu]: a function needs a name", at.list,
                       at.index);
    }
    const di_json *beside, *inside;
    DI_TRY(read_namespace(outer, at, &beside, error));
    DI_TRY(read_namespace(function, at, &inside, error));
    const di_json *space = beside ? beside : inside;
    const char *bare = name->text, *separator = memmem(name->text, name->length, "::", 2);
    size_t prefix = separator ? (size_t)(separator - name->text) : 0;
    if (separator) bare = separator + 2;
    size_t bare_size = name->length - (size_t)(bare - name->text);
    if (has_separator(bare, bare_size) || bare_size == 0 || (separator && prefix == 0)) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s[%zu]: the name '%s' must be NAME or NAMESPACE::NAME", at.list, at.index,
                       name->text);
    }
    if ((beside && inside && !same_text(beside, inside->text, inside->length)) ||
        (space && separator && !same_text(space, name->text, prefix))) {
        return di_fail(error, DI_ERR_INVALID, "%s[%zu]: '%s' is given two different namespaces",
                       at.list, at.index, name->text);
    }
    if (space && !separator) {
        di_buffer_append(out, space->text, space->length);
        di_buffer_puts(out, "::");
    }
    di_buffer_append(out, name->text, name->length);
    return DI_OK;
}

/* ---- Declaring tools ---- */

/* The description of the tool's namespace, or NULL. */
static const di_json *namespace_description(const di_json *outer, const di_json *function) {
    const di_json *space = di_json_get(outer, "namespace");
    if (is_null(space)) space = di_json_get(function, "namespace");
    const di_json *description = di_json_get(space, "description");
    return is_text(description) ? description : NULL;
}

static void write_described(chat_pieces *pieces, const di_json *space, const di_json *own,
                            di_buffer *scratch) {
    di_buffer_clear(scratch);
    di_buffer_append(scratch, space->text, space->length);
    di_buffer_putc(scratch, '\n');
    if (own && own->type == DI_JSON_STRING) di_buffer_append(scratch, own->text, own->length);
    di_json_write_string(&pieces->text, scratch->data ? scratch->data : "", scratch->size);
    if (scratch->failed) pieces->text.failed = true;
}

/* One line: the function object in the order received, with the qualified name, the namespace's
 * description in front of its own, and no "namespace". */
static di_status write_schema(chat_pieces *pieces, const di_json *tool, place at,
                              di_buffer *scratch, di_error *error) {
    const di_json *function = di_json_get(tool, "function");
    if (!function) function = tool;
    if (function->type != DI_JSON_OBJECT) {
        return di_fail(error, DI_ERR_INVALID, "%s[%zu]: must be a function object", at.list,
                       at.index);
    }
    const di_json *name = di_json_get(function, "name");
    const di_json *space = di_json_get(function, "namespace");
    const di_json *own = di_json_get(function, "description");
    const di_json *description = namespace_description(tool, function);
    di_buffer *out = &pieces->text;
    bool first = true;
    if (!name) return write_name(scratch, tool, function, at, error); /* says what is missing */
    di_buffer_putc(out, '{');
    for (const di_json *item = function->first; item; item = item->next) {
        if (item == space) continue;
        if (!first) di_buffer_puts(out, ", ");
        first = false;
        di_json_write_string(out, item->key, item->key_length);
        di_buffer_puts(out, ": ");
        if (item == name) {
            di_buffer_clear(scratch);
            DI_TRY(write_name(scratch, tool, function, at, error));
            di_json_write_string(out, scratch->data, scratch->size);
            if (scratch->failed) return no_memory(error);
        } else if (description && item == own) {
            write_described(pieces, description, own, scratch);
        } else {
            di_json_write(out, item);
        }
    }
    if (description && !own) {
        di_buffer_puts(out, ", \"description\": ");
        write_described(pieces, description, NULL, scratch);
    }
    di_buffer_putc(out, '}');
    return DI_OK;
}

static di_status write_schemas(chat_pieces *pieces, const di_json *const lists[2],
                               const char *const where[2], di_error *error) {
    di_buffer scratch = DI_BUFFER_EMPTY;
    di_status status = DI_OK;
    bool first = true;
    for (int i = 0; i < 2 && status == DI_OK; i++) {
        const di_json *tool = lists[i] ? lists[i]->first : NULL;
        for (size_t k = 0; tool && status == DI_OK; tool = tool->next, k++) {
            if (!first) chat__puts(pieces, "\n");
            first = false;
            status = write_schema(pieces, tool, (place){where[i], k}, &scratch, error);
        }
    }
    di_buffer_free(&scratch);
    return status;
}

/* What a named field of the preamble stands for. */
static const struct field {
    const char *name, *value;
    bool is_marker;
} fields[] = {
    {"{dsml_token}", CHAT_DSML, true},
    {"{tc_block_name}", DSML_CALLS, false},
    {"{tool_call_tag_name}", DSML_INVOKE, false},
    {"{tool_parameter_tag_name}", DSML_PARAMETER, false},
    {"{thinking_start_token}", CHAT_THINK_OPEN, true},
    {"{thinking_end_token}", CHAT_THINK_CLOSE, true},
};

di_status dsml__write_tools(chat_pieces *pieces, const di_json *const lists[2],
                            const char *const where[2], di_error *error) {
    const char *at = di_tools_preamble;
    for (const char *brace; (brace = strchr(at, '{')) != NULL;) {
        chat__text(pieces, at, (size_t)(brace - at));
        at = strchr(brace, '}') + 1;
        size_t size = (size_t)(at - brace);
        const struct field *field = NULL;
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
            if (strlen(fields[i].name) == size && memcmp(fields[i].name, brace, size) == 0) {
                field = &fields[i];
            }
        }
        if (!field) { /* {tool_schemas} */
            DI_TRY(write_schemas(pieces, lists, where, error));
        } else if (field->is_marker) {
            chat__marker(pieces, field->value);
        } else {
            chat__puts(pieces, field->value);
        }
    }
    chat__puts(pieces, at);
    return DI_OK;
}

/* ---- Calls in the history ---- */

/* "<" or "</", the marker, the tag name. */
static void write_tag(chat_pieces *pieces, const char *bracket, const char *name) {
    chat__puts(pieces, bracket);
    chat__marker(pieces, CHAT_DSML);
    chat__puts(pieces, name);
}

static void write_parameter(chat_pieces *pieces, const char *key, size_t key_size,
                            const di_json *value) {
    bool is_string = value->type == DI_JSON_STRING;
    write_tag(pieces, "<", DSML_PARAMETER);
    chat__puts(pieces, " name=\"");
    chat__text(pieces, key, key_size);
    chat__puts(pieces, is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    if (is_string) {
        chat__text(pieces, value->text, value->length);
    } else {
        chat__json(pieces, value);
    }
    write_tag(pieces, "</", DSML_PARAMETER);
    chat__puts(pieces, ">");
}

/* Arguments come as an object, as its JSON text, or as the JSON text of that text; *object is NULL
 * when they are anything else. */
static di_status read_arguments(const di_json *arguments, di_arena *arena, const di_json **object,
                                di_error *error) {
    for (int i = 0; i < 2 && arguments->type == DI_JSON_STRING; i++) {
        const di_json *inner;
        di_error ignored;
        di_status status =
            di_json_parse(arguments->text, arguments->length, "arguments", arena, &inner, &ignored);
        if (status == DI_ERR_MEMORY) return no_memory(error);
        if (status != DI_OK) break;
        arguments = inner;
    }
    *object = arguments->type == DI_JSON_OBJECT ? arguments : NULL;
    return DI_OK;
}

static di_status write_arguments(chat_pieces *pieces, const di_json *arguments, di_arena *arena,
                                 di_error *error) {
    static const char fallback[] = "arguments";
    if (!arguments) return DI_OK; /* a call without the field has no parameters */
    const di_json *object;
    DI_TRY(read_arguments(arguments, arena, &object, error));
    if (!object) {
        write_parameter(pieces, fallback, sizeof fallback - 1, arguments);
        return DI_OK;
    }
    for (const di_json *item = object->first; item; item = item->next) {
        if (item != object->first) chat__puts(pieces, "\n");
        write_parameter(pieces, item->key, item->key_length, item);
    }
    return DI_OK;
}

static di_status write_call(chat_pieces *pieces, const di_json *call, place at, di_arena *arena,
                            di_error *error) {
    const di_json *function = di_json_get(call, "function");
    if (!function) function = call;
    if (function->type != DI_JSON_OBJECT) {
        return di_fail(error, DI_ERR_INVALID, "%s[%zu]: must be a function call object", at.list,
                       at.index);
    }
    write_tag(pieces, "<", DSML_INVOKE);
    chat__puts(pieces, " name=\"");
    DI_TRY(write_name(&pieces->text, call, function, at, error));
    chat__puts(pieces, "\">\n");
    DI_TRY(write_arguments(pieces, di_json_get(function, "arguments"), arena, error));
    chat__puts(pieces, "\n");
    write_tag(pieces, "</", DSML_INVOKE);
    chat__puts(pieces, ">");
    return DI_OK;
}

di_status dsml__write_calls(chat_pieces *pieces, const di_json *calls, const char *where,
                            di_arena *arena, di_error *error) {
    write_tag(pieces, "<", DSML_CALLS);
    chat__puts(pieces, ">\n");
    size_t i = 0;
    for (const di_json *call = calls->first; call; call = call->next, i++) {
        if (i) chat__puts(pieces, "\n");
        DI_TRY(write_call(pieces, call, (place){where, i}, arena, error));
    }
    chat__puts(pieces, "\n");
    write_tag(pieces, "</", DSML_CALLS);
    chat__puts(pieces, ">");
    return DI_OK;
}
