/* From a conversation in JSON to the ids of its prompt. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/json.h"
#include "deepinfer.h"
#include "text/chat.h"

di_prompt_options di_prompt_options_defaults(void) {
    return (di_prompt_options){.thinking = true, .effort = "high", .drop_thinking = true};
}

static di_status chat_options(const di_prompt_options *options, di_chat_options *out,
                              di_error *error) {
    di_error why;
    if (!options->effort) {
        return di_fail(error, DI_ERR_USAGE,
                       "effort is NULL; begin with di_prompt_options_defaults()");
    }
    *out = di_chat_options_defaults();
    out->drop_thinking = options->drop_thinking;
    if (di_chat_effort(options->effort, out, &why) != DI_OK) {
        return di_fail(error, why.status, "effort: %s", why.message);
    }
    if (!options->thinking) out->thinking = false;
    return DI_OK;
}

/* The answer begins inside a thought when the prompt ends with its opening marker. */
static bool ends_in_thought(const di_chat_prompt *prompt) {
    static const char marker[] = "<think>";
    if (prompt->n_pieces == 0) return false;
    const di_chat_piece *last = &prompt->pieces[prompt->n_pieces - 1];
    return last->is_marker && last->size == sizeof marker - 1 &&
           memcmp(last->text, marker, last->size) == 0;
}

di_status di_prompt_from_messages(const di_tokenizer *tokenizer, const char *messages,
                                  const char *tools, const di_prompt_options *options, di_ids *ids,
                                  bool *thinking, di_error *error) {
    di_chat_options chat;
    DI_TRY(chat_options(options, &chat, error));
    di_arena arena = DI_ARENA_EMPTY;
    di_status status;
    const di_json *conversation, *declared = NULL;
    di_chat_prompt prompt;
    DI_TRY_DONE(
        di_json_parse(messages, strlen(messages), "messages", &arena, &conversation, error));
    if (tools) DI_TRY_DONE(di_json_parse(tools, strlen(tools), "tools", &arena, &declared, error));
    DI_TRY_DONE(di_chat_encode(conversation, declared, &chat, &arena, &prompt, error));
    if (prompt.n_images > 0) {
        status = di_fail(error, DI_ERR_UNSUPPORTED,
                         "messages: images are not supported yet; leave them out");
        goto done;
    }
    DI_TRY_DONE(di_chat_tokenize(&prompt, tokenizer, ids, error));
    if (thinking) *thinking = ends_in_thought(&prompt);
done:
    di_arena_free(&arena);
    return status;
}
