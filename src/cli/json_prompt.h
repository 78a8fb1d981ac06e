/* From messages that are JSON already to the ids of a prompt. */
#ifndef DI_CLI_JSON_PROMPT_H
#define DI_CLI_JSON_PROMPT_H

#include "base/json.h"
#include "deepinfer.h"

/* di_prompt_from_messages with the fields of a request: messages must be a list that is not empty,
 * tools a list or NULL; DI_ERR_INVALID otherwise. */
di_status di_prompt_from_json(const di_tokenizer *tokenizer, const di_json *messages,
                              const di_json *tools, const di_prompt_options *options, di_ids *ids,
                              bool *thinking, di_error *error);

#endif
