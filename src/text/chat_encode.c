/* Rendering turns: the wire format of spec chat.md 4, one function a kind of turn. */
#include <string.h>

#include "text/chat.h"
#include "text/chat_format.h"
#include "text/chat_pieces.h"
#include "text/chat_turns.h"
#include "text/dsml.h"

typedef struct encoder {
    const di_chat_options *options;
    chat_turns turns;
    chat_pieces pieces;
    di_arena *arena;
    di_error *error;
} encoder;

/* ---- Contents ---- */

static void write_part(chat_pieces *out, const chat_part *part);

static void write_parts(chat_pieces *out, const chat_part *parts) {
    for (const chat_part *part = parts; part; part = part->next) {
        if (part != parts) chat__puts(out, "\n\n");
        write_part(out, part);
    }
}

/* Recurses once at most: a result holds no results. */
static void write_part(chat_pieces *out, const chat_part *part) {
    switch (part->kind) {
    case CHAT_PART_TEXT: chat__text(out, part->text, part->size); return;
    case CHAT_PART_IMAGE: chat__image(out, part->record); return;
    case CHAT_PART_RESULT:
        chat__puts(out, "<tool_result>");
        write_parts(out, part->parts);
        chat__puts(out, "</tool_result>");
        return;
    case CHAT_PART_UNSUPPORTED:
        chat__puts(out, "[Unsupported ");
        chat__text(out, part->text, part->size);
        chat__puts(out, "]");
        return;
    }
}

/* ---- Turns ---- */

static di_status write_system(encoder *e, size_t i) {
    const chat_turn *turn = &e->turns.items[i];
    if (i > 0) chat__marker(&e->pieces, CHAT_SYSTEM);
    write_parts(&e->pieces, turn->parts);
    if (turn->tools[0] || turn->tools[1]) {
        di_buffer where = DI_BUFFER_EMPTY;
        di_buffer_printf(&where, "messages[%zu].tools", turn->source);
        const char *names[2] = {where.failed ? "tools" : where.data, "tools"};
        chat__puts(&e->pieces, "\n\n");
        di_status status = dsml__write_tools(&e->pieces, turn->tools, names, e->error);
        di_buffer_free(&where);
        DI_TRY(status);
    }
    if (turn->response_format) {
        chat__puts(&e->pieces, "\n\n## Response Format:\n\nYou MUST strictly adhere to the "
                               "following schema to reply:\n");
        chat__json(&e->pieces, turn->response_format);
    }
    return DI_OK;
}

/* Whether the thought of an assistant turn is part of the prompt; then it is closed even when it is
 * empty. */
static bool shows_thought(const encoder *e, size_t i) {
    if (!e->options->thinking || (i > 0 && e->turns.items[i - 1].task)) return false;
    return !e->turns.drop_thinking || (ptrdiff_t)i > e->turns.last_user;
}

static di_status write_assistant(encoder *e, size_t i) {
    const chat_turn *turn = &e->turns.items[i];
    if (shows_thought(e, i)) {
        if (turn->reasoning) chat__text(&e->pieces, turn->reasoning->text, turn->reasoning->length);
        chat__marker(&e->pieces, CHAT_THINK_CLOSE);
    }
    write_parts(&e->pieces, turn->parts);
    if (turn->calls) {
        di_buffer where = DI_BUFFER_EMPTY;
        di_buffer_printf(&where, "messages[%zu].tool_calls", turn->source);
        chat__puts(&e->pieces, "\n\n");
        di_status status =
            dsml__write_calls(&e->pieces, turn->calls, where.failed ? "tool_calls" : where.data,
                              e->arena, e->error);
        di_buffer_free(&where);
        DI_TRY(status);
    }
    if (!turn->open) chat__marker(&e->pieces, CHAT_EOS);
    return DI_OK;
}

/* What follows a turn when the model is to speak next, or a reminder. */
static void write_transition(encoder *e, size_t i) {
    const chat_turn *turn = &e->turns.items[i];
    if (i + 1 < e->turns.n) {
        chat_role next = e->turns.items[i + 1].role;
        if (next != CHAT_ROLE_ASSISTANT && next != CHAT_ROLE_REMINDER) return;
    }
    bool thinking = e->options->thinking;
    if (turn->task) {
        if (di_json_is_string(turn->task, "action")) {
            chat__marker(&e->pieces, CHAT_ASSISTANT);
            chat__marker(&e->pieces, thinking ? CHAT_THINK_OPEN : CHAT_THINK_CLOSE);
        }
        char marker[32] = "<｜"; /* the tasks' names are known and short */
        strcat(strcat(marker, turn->task->text), "｜>");
        chat__marker(&e->pieces, marker);
    } else if (turn->role == CHAT_ROLE_USER || (turn->role == CHAT_ROLE_SYSTEM && i > 0)) {
        bool open = thinking && (!e->turns.drop_thinking || (ptrdiff_t)i >= e->turns.last_user);
        chat__marker(&e->pieces, CHAT_ASSISTANT);
        chat__marker(&e->pieces, open ? CHAT_THINK_OPEN : CHAT_THINK_CLOSE);
    }
}

static di_status write_turn(encoder *e, size_t i) {
    const chat_turn *turn = &e->turns.items[i];
    switch (turn->role) {
    case CHAT_ROLE_SYSTEM: DI_TRY(write_system(e, i)); break;
    case CHAT_ROLE_USER:
        chat__marker(&e->pieces, CHAT_USER);
        write_parts(&e->pieces, turn->parts);
        break;
    case CHAT_ROLE_REMINDER:
        chat__marker(&e->pieces, CHAT_REMINDER);
        write_parts(&e->pieces, turn->parts);
        break;
    case CHAT_ROLE_ASSISTANT: DI_TRY(write_assistant(e, i)); break;
    case CHAT_ROLE_UNKNOWN: break; /* refused before */
    }
    write_transition(e, i);
    return DI_OK;
}

/* The head: BOS, and the effort in front of everything when there is to be a thought. */
static void write_head(encoder *e) {
    if (e->options->add_bos) chat__marker(&e->pieces, CHAT_BOS);
    if (e->options->thinking || e->turns.items[0].role == CHAT_ROLE_SYSTEM) {
        chat__marker(&e->pieces, CHAT_SYSTEM);
    }
    if (e->options->thinking) {
        di_buffer_printf(&e->pieces.text,
                         "Reasoning Effort: %d (range 1-100, the higher the value, the more "
                         "thorough the reasoning)\n\n",
                         e->options->reasoning_effort);
    }
}

di_status di_chat_encode(const di_json *messages, const di_json *tools,
                         const di_chat_options *options, di_arena *arena, di_chat_prompt *out,
                         di_error *error) {
    memset(out, 0, sizeof *out);
    if (options->thinking && (options->reasoning_effort < 1 || options->reasoning_effort > 100)) {
        return di_fail(error, DI_ERR_USAGE, "reasoning_effort: %d is not in 1..100",
                       options->reasoning_effort);
    }
    encoder e = {.options = options, .arena = arena, .error = error};
    DI_TRY(chat__read_turns(messages, tools, options, arena, &e.turns, error));
    write_head(&e);
    di_status status = DI_OK;
    for (size_t i = 0; i < e.turns.n && status == DI_OK; i++) status = write_turn(&e, i);
    if (status == DI_OK) status = chat__finish(&e.pieces, arena, out, error);
    chat__free(&e.pieces);
    return status;
}
