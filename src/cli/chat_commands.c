/* The / commands of chat: one table, one function each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/atomic_file.h"
#include "cli/chat_session.h"
#include "cli/input.h"

typedef di_status (*command_fn)(di_chat_session *session, const char *argument, di_chat_next *next,
                                di_error *error);

typedef struct command {
    const char *name, *argument, *help;
    command_fn run;
} command;

static di_status need(const char *argument, const char *usage, di_error *error) {
    if (*argument) return DI_OK;
    return di_fail(error, DI_ERR_USAGE, "write %s", usage);
}

static di_status do_clear(di_chat_session *session, const char *argument, di_chat_next *next,
                          di_error *error) {
    (void)argument;
    (void)next;
    (void)error;
    di_conversation_clear(&session->conversation);
    printf("The conversation is empty again.\n");
    return DI_OK;
}

static di_status do_system(di_chat_session *session, const char *argument, di_chat_next *next,
                           di_error *error) {
    (void)next;
    DI_TRY(di_conversation_set_system(&session->conversation, argument, error));
    printf(*argument ? "The system message is set.\n" : "There is no system message now.\n");
    return DI_OK;
}

static di_status do_think(di_chat_session *session, const char *argument, di_chat_next *next,
                          di_error *error) {
    (void)next;
    if (strcmp(argument, "on") == 0) {
        session->prompt.thinking = true;
    } else if (strcmp(argument, "off") == 0) {
        session->prompt.thinking = false;
    } else if (*argument) {
        return di_fail(error, DI_ERR_USAGE, "write /think on or /think off");
    }
    printf("Thinking is %s.\n", session->prompt.thinking ? "on" : "off");
    return DI_OK;
}

/* The level is tried on an empty conversation's worth of options first. */
static di_status do_effort(di_chat_session *session, const char *argument, di_chat_next *next,
                           di_error *error) {
    (void)next;
    DI_TRY(need(argument,
                "/effort none, minimal, low, medium, high, xhigh, max, ultra or a "
                "number from 1 to 100",
                error));
    di_prompt_options trial = session->prompt;
    trial.effort = argument;
    di_ids ids = {0};
    di_status status =
        di_prompt_from_messages(session->tokenizer, "[{\"role\": \"user\", \"content\": \"\"}]",
                                NULL, &trial, &ids, NULL, error);
    di_ids_free(&ids);
    if (status != DI_OK) return status;
    snprintf(session->effort, sizeof session->effort, "%s", argument);
    session->prompt.effort = session->effort;
    printf("Effort is %s.\n", session->effort);
    return DI_OK;
}

static bool can_be_set(const di_option *option) {
    return option->group == DI_GROUP_SAMPLING && option->type != DI_TYPE_LIST &&
           (option->verbs & DI_VERB_BIT(DI_VERB_CHAT));
}

static di_status do_set(di_chat_session *session, const char *argument, di_chat_next *next,
                        di_error *error) {
    (void)next;
    char name[32] = "";
    size_t n = strcspn(argument, " =");
    const char *value = argument + n + strspn(argument + n, " =");
    if (n > 0 && n < sizeof name) memcpy(name, argument, n);
    const di_option *option = *name ? di_option_find(session->args->verb, name) : NULL;
    if (!option || !can_be_set(option)) {
        di_buffer names = DI_BUFFER_EMPTY;
        for (int i = 0; i < DI_N_OPTIONS; i++) {
            if (!can_be_set(&di_options[i])) continue;
            di_buffer_printf(&names, "%s%s", names.size ? ", " : "", di_options[i].name);
        }
        di_status status = di_fail(error, DI_ERR_USAGE, "write /set NAME VALUE; names: %s",
                                   names.data ? names.data : "");
        di_buffer_free(&names);
        return status;
    }
    di_value *place = &session->args->values[option - di_options];
    DI_TRY(di_option_read(option, name, value, place, error));
    place->given = true;
    printf("%s is %s.\n", name, value);
    return DI_OK;
}

static di_status do_again(di_chat_session *session, const char *argument, di_chat_next *next,
                          di_error *error) {
    (void)argument;
    const di_conversation *c = &session->conversation;
    bool answered = strcmp(di_conversation_last_role(c), "assistant") == 0;
    if (c->n_messages == (answered ? 1 : 0)) {
        return di_fail(error, DI_ERR_USAGE, "there is nothing to answer yet");
    }
    *next = DI_CHAT_AGAIN;
    return DI_OK;
}

static di_status do_undo(di_chat_session *session, const char *argument, di_chat_next *next,
                         di_error *error) {
    (void)argument;
    (void)next;
    di_conversation *c = &session->conversation;
    if (c->n_messages == 0) return di_fail(error, DI_ERR_USAGE, "there is nothing to take back");
    if (strcmp(di_conversation_last_role(c), "assistant") == 0) di_conversation_drop_last(c);
    di_conversation_drop_last(c);
    printf("The last exchange is taken back; %zu messages are left.\n", c->n_messages);
    return DI_OK;
}

static di_status do_save(di_chat_session *session, const char *argument, di_chat_next *next,
                         di_error *error) {
    (void)next;
    DI_TRY(need(argument, "/save FILE", error));
    di_buffer json = DI_BUFFER_EMPTY;
    di_atomic_file file = {0};
    di_status status;
    di_conversation_write(&session->conversation, &json);
    di_buffer_putc(&json, '\n');
    if (json.failed) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory saving the conversation");
        goto done;
    }
    DI_TRY_DONE(di_atomic_create(&file, argument, error));
    DI_TRY_DONE(di_atomic_write(&file, 0, json.data, json.size, error));
    DI_TRY_DONE(di_atomic_commit(&file, error));
    printf("Saved to %s.\n", argument);
done:
    di_atomic_abandon(&file);
    di_buffer_free(&json);
    return status;
}

/* What no prompt can be made of is refused before it takes the place of what is there. */
static di_status do_load(di_chat_session *session, const char *argument, di_chat_next *next,
                         di_error *error) {
    (void)next;
    DI_TRY(need(argument, "/load FILE", error));
    if (strcmp(argument, "-") == 0) {
        return di_fail(error, DI_ERR_USAGE,
                       "stdin is where the messages come from; a file of that name is ./-");
    }
    di_buffer json = DI_BUFFER_EMPTY;
    di_conversation fresh = {0};
    di_ids ids = {0};
    di_status status;
    DI_TRY_DONE(di_input_file(argument, &json, error));
    DI_TRY_DONE(di_conversation_read(&fresh, json.data, json.size, argument, error));
    if (fresh.n_messages > 0) {
        DI_TRY_DONE(di_chat_make_prompt(session, &fresh, &ids, NULL, error));
    }
    di_conversation_free(&session->conversation);
    session->conversation = fresh;
    fresh = (di_conversation){0};
    printf("%zu messages loaded.\n", session->conversation.n_messages);
done:
    di_conversation_free(&fresh);
    di_ids_free(&ids);
    di_buffer_free(&json);
    return status;
}

static di_status do_quit(di_chat_session *session, const char *argument, di_chat_next *next,
                         di_error *error) {
    (void)argument;
    (void)next;
    (void)error;
    session->leave = true;
    return DI_OK;
}

static di_status do_help(di_chat_session *session, const char *argument, di_chat_next *next,
                         di_error *error);

static const command commands[] = {
    {"help", "", "this list", do_help},
    {"again", "", "answer the last message once more", do_again},
    {"undo", "", "take back the last message and its answer", do_undo},
    {"clear", "", "begin a new conversation; the system message stays", do_clear},
    {"system", "TEXT", "set the system message; without TEXT take it away", do_system},
    {"think", "on|off", "let the model think before it answers", do_think},
    {"effort", "LEVEL", "how thoroughly to think: low, high, max, 1 to 100, none", do_effort},
    {"set", "NAME VALUE", "change a sampling option, such as temperature", do_set},
    {"save", "FILE", "write the conversation as JSON", do_save},
    {"load", "FILE", "go on with a saved conversation", do_load},
    {"quit", "", "leave (Ctrl-D does too)", do_quit},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static di_status do_help(di_chat_session *session, const char *argument, di_chat_next *next,
                         di_error *error) {
    (void)session;
    (void)argument;
    (void)next;
    (void)error;
    for (int i = 0; i < N_COMMANDS; i++) {
        int width = printf("  /%s %s", commands[i].name, commands[i].argument);
        printf("%*s%s\n", width < 22 ? 22 - width : 1, "", commands[i].help);
    }
    printf("A line that ends in a backslash goes on in the next; pasted lines stay together.\n"
           "Ctrl-C stops an answer and keeps what there is of it. To begin a message with a\n"
           "slash, write //.\n");
    return DI_OK;
}

di_status di_chat_command(di_chat_session *session, const char *line, di_chat_next *next,
                          di_error *error) {
    *next = DI_CHAT_WAIT;
    size_t n = strcspn(line + 1, " \n");
    const char *argument = line + 1 + n + strspn(line + 1 + n, " \n");
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strlen(commands[i].name) == n && memcmp(commands[i].name, line + 1, n) == 0) {
            return commands[i].run(session, argument, next, error);
        }
    }
    return di_fail(error, DI_ERR_USAGE, "there is no command /%.*s; /help lists them",
                   n < 40 ? (int)n : 40, line + 1);
}
