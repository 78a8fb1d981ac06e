/* chat: a conversation in the terminal. What fails is told and the conversation goes on; only the
 * end of input, /quit, SIGTERM, or a terminal that cannot be read ends it; without a terminal
 * Ctrl-C does, too.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/chat_session.h"
#include "cli/cli.h"
#include "cli/generate.h"
#include "cli/line_input.h"
#include "cli/terminal.h"

di_status di_chat_make_prompt(const di_chat_session *session, const di_conversation *conversation,
                              di_ids *ids, bool *thinking, di_error *error) {
    di_buffer json = DI_BUFFER_EMPTY;
    di_conversation_write(conversation, &json);
    di_status status;
    if (json.failed) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory: conversation");
    } else {
        status = di_prompt_from_messages(session->tokenizer, json.data, NULL, &session->prompt, ids,
                                         thinking, error);
    }
    di_buffer_free(&json);
    return status;
}

static di_status generate(di_chat_session *session, const di_ids *prompt, bool thinking,
                          di_answer *answer, di_error *error) {
    const di_args *args = session->args;
    di_generation generation = {.engine = session->engine,
                                .progress = &session->progress,
                                .prompt = prompt,
                                .max_tokens = di_args_int(args, DI_OPT_MAX_TOKENS),
                                .thinking = thinking,
                                .show = true};
    generation.stops = di_args_list(args, DI_OPT_STOP, &generation.n_stops);
    DI_TRY(di_args_sampling(args, session->engine, &generation.sampling, error));
    /* With a seed of the user's the whole conversation is reproducible, yet /again is not the same.
     */
    generation.sampling.seed += session->turn++;
    di_status status = di_generate(&generation, answer, error);
    di_args_free_sampling(&generation.sampling);
    return status;
}

/* How the answer ended, where that is not by itself. */
static void tell_end(const di_chat_session *session, const di_answer *answer) {
    if (strcmp(answer->finish, "cancelled") == 0) fputs("stopped\n", stderr);
    if (strcmp(answer->finish, "length") != 0) return;
    int64_t most = di_args_int(session->args, DI_OPT_MAX_TOKENS);
    if (most > 0 && answer->ids.size >= (size_t)most) {
        fprintf(stderr, "the answer was cut: max-tokens is %" PRId64 "\n", most);
    } else {
        fprintf(stderr, "the answer was cut: the context of %" PRId64 " tokens is full\n",
                di_engine_get_info(session->engine).context);
    }
}

/* The model's turn. *added: there is an answer, and it is in the conversation; not so after a
 * failure, or when it was stopped before its first token. */
static di_status answer_turn(di_chat_session *session, bool *added, di_error *error) {
    di_ids prompt = {0};
    di_answer answer = {0};
    bool thinking;
    di_status status;
    *added = false;
    DI_TRY_DONE(di_chat_make_prompt(session, &session->conversation, &prompt, &thinking, error));
    DI_TRY_DONE(generate(session, &prompt, thinking, &answer, error));
    bool quiet = di_args_flag(session->args, DI_OPT_QUIET);
    if (answer.n_sampled > 0 && !quiet) di_answer_print_speed(&answer);
    tell_end(session, &answer);
    if (answer.n_sampled > 0) {
        status = di_conversation_add_answer(&session->conversation, &answer, error);
        *added = status == DI_OK;
    }
done:
    di_interrupt_clear();
    di_answer_free(&answer);
    di_ids_free(&prompt);
    return status;
}

/* The old answer is gone only once there is a new one. */
static di_status answer_again(di_chat_session *session, di_error *error) {
    di_conversation *conversation = &session->conversation;
    di_message old = {NULL, NULL};
    if (strcmp(di_conversation_last_role(conversation), "assistant") == 0) {
        old = di_conversation_take_last(conversation);
    }
    bool added;
    di_status status = answer_turn(session, &added, error);
    if (old.json && !added) {
        di_conversation_put_back(conversation, old);
    } else {
        di_message_free(&old);
    }
    return status;
}

static di_status take_line(di_chat_session *session, const di_buffer *line, di_error *error) {
    const char *text = line->data;
    size_t size = line->size;
    if (text[0] == '/' && text[1] != '/') {
        di_chat_next next;
        DI_TRY(di_chat_command(session, text, &next, error));
        return next == DI_CHAT_AGAIN ? answer_again(session, error) : DI_OK;
    }
    if (text[0] == '/') text++, size--;
    DI_TRY(di_conversation_add_user(&session->conversation, text, size, "the message", error));
    bool added;
    di_status status = answer_turn(session, &added, error);
    if (!added) di_conversation_drop_last(&session->conversation);
    return status;
}

static di_status talk(di_chat_session *session, di_error *error) {
    di_line_input *input = di_line_input_create("> ");
    if (!input) return di_fail(error, DI_ERR_MEMORY, "out of memory");
    di_buffer line = DI_BUFFER_EMPTY;
    di_status status = DI_OK;
    while (!session->leave && status == DI_OK && !di_interrupt_ending()) {
        di_line_result result = di_line_input_read(input, &line);
        if (result == DI_LINE_END) break;
        if (result == DI_LINE_FAILED) status = di_fail(error, DI_ERR_IO, "cannot read from stdin");
        if (result != DI_LINE_TEXT || line.size == 0) continue;
        di_error problem;
        if (take_line(session, &line, &problem) != DI_OK) {
            fprintf(stderr, "%s\n", problem.message);
            session->n_failed++;
        }
        fflush(stdout);
    }
    if (di_interrupt_ending()) status = di_fail(error, DI_ERR_CANCELLED, "interrupted");
    di_buffer_free(&line);
    di_line_input_destroy(input);
    return status;
}

static void greet(const di_chat_session *session) {
    if (!di_terminal_is(stdin) || di_args_flag(session->args, DI_OPT_QUIET)) return;
    fprintf(stderr, "%s, context %lld tokens. /help lists the commands, Ctrl-D leaves.\n",
            session->args->positional[0], (long long)di_engine_get_info(session->engine).context);
}

di_status di_cmd_chat(const di_args *args, di_error *error) {
    di_args changeable = *args; /* shares its lists with args, which frees them */
    di_chat_session session = {.args = &changeable, .prompt = di_prompt_options_defaults()};
    session.prompt.thinking = di_args_flag(args, DI_OPT_THINKING);
    session.prompt.effort = di_args_text(args, DI_OPT_EFFORT);
    di_status status;
    const char *directory = args->positional[0];
    di_interrupt_catch(di_terminal_is(stdin));
    DI_TRY_DONE(di_conversation_set_system(&session.conversation, di_args_text(args, DI_OPT_SYSTEM),
                                           error));
    DI_TRY_DONE(di_args_open_engine(args, directory, &session.progress, &session.engine, error));
    DI_TRY_DONE(di_engine_need_tokenizer(session.engine, directory, &session.tokenizer, error));
    greet(&session);
    DI_TRY_DONE(talk(&session, error));
    /* A script reads the exit code, a person has read the messages. */
    if (session.n_failed > 0 && !di_terminal_is(stdin)) {
        status =
            di_fail(error, DI_ERR_INVALID, "failed messages and commands: %d", session.n_failed);
    }
done:
    di_conversation_free(&session.conversation);
    di_engine_close(session.engine);
    return status;
}
