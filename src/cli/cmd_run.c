/* run: one prompt, streamed to the terminal. */
#include <string.h>

#include "cli/cli.h"
#include "cli/conversation.h"
#include "cli/engine_args.h"
#include "cli/generate.h"
#include "cli/input.h"
#include "cli/terminal.h"

typedef struct run {
    const di_args *args;
    di_progress progress;
    di_buffer input;
    di_ids prompt;
    bool thinking;
    di_engine *engine;
    di_sampling sampling;
    di_answer answer;
} run;

/* The text is a whole prompt; the begin token is put first unless it is there. */
static di_status raw_prompt(run *r, const di_tokenizer *tokenizer, di_error *error) {
    if (r->input.size == 0) return di_fail(error, DI_ERR_USAGE, "the prompt is empty");
    int32_t bos = di_engine_get_info(r->engine).bos_token;
    di_ids text = {0};
    di_status status = di_tokenizer_encode(tokenizer, r->input.data, r->input.size,
                                           di_args_flag(r->args, DI_OPT_MATCH_ADDED), &text, error);
    if (status == DI_OK && bos >= 0 && text.data[0] != bos) {
        status = di_ids_append(&r->prompt, &bos, 1, error);
    }
    if (status == DI_OK) status = di_ids_append(&r->prompt, text.data, text.size, error);
    di_ids_free(&text);
    return status;
}

static di_status chat_prompt(run *r, const di_tokenizer *tokenizer, di_error *error) {
    di_prompt_options options = di_prompt_options_defaults();
    options.thinking = di_args_flag(r->args, DI_OPT_THINKING);
    options.effort = di_args_text(r->args, DI_OPT_EFFORT);
    di_conversation conversation = {0};
    di_buffer json = DI_BUFFER_EMPTY;
    di_status status;
    const char *system = di_args_text(r->args, DI_OPT_SYSTEM);
    DI_TRY_DONE(di_conversation_set_system(&conversation, system, error));
    DI_TRY_DONE(di_conversation_add_user(&conversation, r->input.data ? r->input.data : "",
                                         r->input.size, "the prompt", error));
    di_conversation_write(&conversation, &json);
    if (json.failed) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory: prompt");
        goto done;
    }
    status = di_prompt_from_messages(tokenizer, json.data, NULL, &options, &r->prompt, &r->thinking,
                                     error);
done:
    di_conversation_free(&conversation);
    di_buffer_free(&json);
    return status;
}

static di_status show_prompt(const run *r, const di_tokenizer *tokenizer, di_error *error) {
    char *text;
    size_t size;
    DI_TRY(
        di_tokenizer_text(tokenizer, r->prompt.data, r->prompt.size, false, &text, &size, error));
    fwrite(text, 1, size, stderr);
    fputc('\n', stderr);
    di_free(text);
    return DI_OK;
}

static di_status make_prompt(run *r, di_error *error) {
    const di_tokenizer *tokenizer;
    DI_TRY(di_engine_need_tokenizer(r->engine, r->args->positional[0], &tokenizer, error));
    if (di_args_flag(r->args, DI_OPT_RAW)) {
        DI_TRY(raw_prompt(r, tokenizer, error));
    } else {
        DI_TRY(chat_prompt(r, tokenizer, error));
    }
    return di_args_flag(r->args, DI_OPT_SHOW_PROMPT) ? show_prompt(r, tokenizer, error) : DI_OK;
}

static di_status answer(run *r, di_error *error) {
    bool json = di_args_flag(r->args, DI_OPT_JSON);
    di_generation generation = {.engine = r->engine,
                                .progress = &r->progress,
                                .prompt = &r->prompt,
                                .sampling = r->sampling,
                                .max_tokens = di_args_int(r->args, DI_OPT_MAX_TOKENS),
                                .raw = di_args_flag(r->args, DI_OPT_RAW),
                                .thinking = r->thinking,
                                .show = !json};
    generation.stops = di_args_list(r->args, DI_OPT_STOP, &generation.n_stops);
    DI_TRY(di_generate(&generation, &r->answer, error));
    if (json) {
        di_buffer out = DI_BUFFER_EMPTY;
        di_answer_write_json(&r->answer, &out);
        if (!out.failed) fwrite(out.data, 1, out.size, stdout);
        bool failed = out.failed;
        di_buffer_free(&out);
        if (failed) return di_fail(error, DI_ERR_MEMORY, "out of memory printing");
    }
    fflush(stdout);
    bool quiet = di_args_flag(r->args, DI_OPT_QUIET);
    if (r->answer.n_sampled > 0 && !quiet) di_answer_print_speed(&r->answer);
    if (strcmp(r->answer.finish, "cancelled") == 0) {
        return di_fail(error, DI_ERR_CANCELLED, "interrupted");
    }
    return DI_OK;
}

/* One newline at the end of what a shell pipes in is not part of the prompt. */
static void trim_newline(di_buffer *text) {
    if (text->size > 0 && text->data[text->size - 1] == '\n') text->data[--text->size] = '\0';
}

di_status di_cmd_run(const di_args *args, di_error *error) {
    run r = {.args = args};
    const char *argument = args->n_positional > 1 ? args->positional[1] : NULL;
    bool from_stdin = !argument || strcmp(argument, "-") == 0;
    di_status status;
    di_interrupt_catch(false);
    DI_TRY_DONE(di_input_text(argument, "the prompt", &r.input, error));
    if (from_stdin && !di_args_flag(args, DI_OPT_RAW)) trim_newline(&r.input);
    if (r.input.size == 0) {
        status = di_fail(error, DI_ERR_USAGE, "the prompt is empty");
        goto done;
    }
    DI_TRY_DONE(di_args_open_engine(args, args->positional[0], &r.progress, &r.engine, error));
    DI_TRY_DONE(di_args_sampling(args, r.engine, &r.sampling, error));
    DI_TRY_DONE(make_prompt(&r, error));
    status = answer(&r, error);
done:
    di_answer_free(&r.answer);
    di_args_free_sampling(&r.sampling);
    di_engine_close(r.engine);
    di_ids_free(&r.prompt);
    di_buffer_free(&r.input);
    return status;
}
