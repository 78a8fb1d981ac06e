#include "cli/json_prompt.h"

#include "base/error.h"

di_status di_prompt_from_json(const di_tokenizer *tokenizer, const di_json *messages,
                              const di_json *tools, const di_prompt_options *options, di_ids *ids,
                              bool *thinking, di_error *error) {
    if (!messages || messages->type != DI_JSON_ARRAY || messages->length == 0) {
        return di_fail(error, DI_ERR_INVALID, "messages: a list, not empty, is needed");
    }
    if (tools && tools->type != DI_JSON_ARRAY) {
        return di_fail(error, DI_ERR_INVALID, "tools: a list is needed");
    }
    di_buffer text = DI_BUFFER_EMPTY, declared = DI_BUFFER_EMPTY;
    di_json_write(&text, messages);
    if (tools && tools->length > 0) di_json_write(&declared, tools);
    di_status status = text.failed || declared.failed
                           ? di_fail(error, DI_ERR_MEMORY, "out of memory: messages")
                           : di_prompt_from_messages(tokenizer, text.data, declared.data, options,
                                                     ids, thinking, error);
    di_buffer_free(&text);
    di_buffer_free(&declared);
    return status;
}
