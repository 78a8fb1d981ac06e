/* A text as rows of tokens. */
#include "base/error.h"
#include "cli/eval_set.h"
#include "cli/input.h"

/* Whole rows only, so that all are alike; a text that is shorter than one is one. */
static di_status add_rows(di_eval_set *set, const di_ids *text, const di_eval_limits *limits,
                          di_error *error) {
    size_t row = DI_EVAL_ROW_TOKENS, prompt = limits->row_prompt;
    if (text->size < row) {
        prompt = prompt * text->size / row;
        row = text->size;
    }
    int64_t number = 0;
    for (size_t at = 0; at + row <= text->size; at += row) {
        if (limits->lines > 0 && number == limits->lines) break;
        di_eval_item *item;
        DI_TRY(di_eval_add_item(set, &item, error));
        item->line = ++number;
        item->n_given = row - prompt;
        item->max_tokens = -1; /* the given tokens alone */
        DI_TRY(di_ids_append(&item->ids, text->data + at, row, error));
    }
    return DI_OK;
}

di_status di_eval_read_text(di_eval_set *set, const char *path, const di_tokenizer *tokenizer,
                            const di_eval_limits *limits, di_error *error) {
    di_buffer input = DI_BUFFER_EMPTY;
    di_ids ids = {0};
    di_status status;
    DI_TRY_DONE(di_input_file(path, &input, error));
    if (input.size > 0) {
        DI_TRY_DONE(di_tokenizer_encode(tokenizer, input.data, input.size, false, &ids, error));
    }
    if (ids.size < 2) {
        status = di_fail(error, DI_ERR_INVALID, "%s is too short: two tokens are needed", path);
        goto done;
    }
    DI_TRY_DONE(di_eval_add_group(set, path, true, error));
    status = add_rows(set, &ids, limits, error);
done:
    di_ids_free(&ids);
    di_buffer_free(&input);
    return status;
}
