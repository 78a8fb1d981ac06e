/* tokenize: text to ids and back. Needs the tokenizer only. */
#include <string.h>

#include "base/json.h"
#include "base/lossy.h"
#include "cli/cli.h"
#include "cli/input.h"

static di_status print(di_buffer *out, di_error *error) {
    if (out->failed) return di_fail(error, DI_ERR_MEMORY, "out of memory printing");
    fwrite(out->data, 1, out->size, stdout);
    return DI_OK;
}

static void write_ids(const di_tokenizer *tokenizer, const di_ids *ids, bool json, di_buffer *out) {
    di_buffer_puts(out, json ? "{\"ids\": [" : "");
    for (size_t i = 0; i < ids->size; i++) {
        di_buffer_printf(out, "%s%d", i == 0 ? "" : json ? ", " : " ", ids->data[i]);
    }
    if (json) {
        di_buffer_puts(out, "], \"tokens\": [");
        for (size_t i = 0; i < ids->size; i++) {
            const char *spelling = di_tokenizer_spelling(tokenizer, ids->data[i]);
            di_buffer_puts(out, i ? ", " : "");
            di_json_write_string(out, spelling, strlen(spelling));
        }
        di_buffer_puts(out, "]}");
    }
    di_buffer_putc(out, '\n');
}

static di_status encode(const di_args *args, const di_tokenizer *tokenizer, const di_buffer *text,
                        di_buffer *out, di_error *error) {
    di_ids ids = {0};
    di_status status = di_tokenizer_encode(tokenizer, text->data ? text->data : "", text->size,
                                           di_args_flag(args, DI_OPT_MATCH_ADDED), &ids, error);
    if (status == DI_OK) write_ids(tokenizer, &ids, di_args_flag(args, DI_OPT_JSON), out);
    di_ids_free(&ids);
    return status;
}

static di_status decode(const di_args *args, const di_tokenizer *tokenizer, const di_buffer *list,
                        di_buffer *out, di_error *error) {
    di_ids ids = {0};
    char *text = NULL;
    size_t size = 0;
    di_status status = di_input_ids(list->data ? list->data : "", list->size, "ids", &ids, error);
    if (status == DI_OK) {
        status = di_tokenizer_text(tokenizer, ids.data, ids.size, false, &text, &size, error);
    }
    if (status == DI_OK) {
        if (di_args_flag(args, DI_OPT_JSON)) {
            di_buffer_puts(out, "{\"text\": ");
            di_lossy_write(out, text, size);
            di_buffer_puts(out, "}\n");
        } else {
            di_buffer_append(out, text, size);
        }
    }
    di_free(text);
    di_ids_free(&ids);
    return status;
}

di_status di_cmd_tokenize(const di_args *args, di_error *error) {
    di_tokenizer *tokenizer = NULL;
    di_buffer input = DI_BUFFER_EMPTY, output = DI_BUFFER_EMPTY;
    bool back = di_args_flag(args, DI_OPT_DECODE);
    const char *argument = args->n_positional > 1 ? args->positional[1] : NULL;
    di_status status;
    DI_TRY_DONE(di_tokenizer_open(args->positional[0], &tokenizer, error));
    DI_TRY_DONE(di_input_text(argument, back ? "the list of ids" : "the text", &input, error));
    if (back) {
        DI_TRY_DONE(decode(args, tokenizer, &input, &output, error));
    } else {
        DI_TRY_DONE(encode(args, tokenizer, &input, &output, error));
    }
    status = print(&output, error);
done:
    di_buffer_free(&input);
    di_buffer_free(&output);
    di_tokenizer_destroy(tokenizer);
    return status;
}
