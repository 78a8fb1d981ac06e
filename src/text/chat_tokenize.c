/* The prompt as ids: text without added-token matching, markers by their own ids. */
#include <string.h>

#include "text/chat.h"

static di_status add_marker(const di_chat_piece *piece, const di_tokenizer *tokenizer, di_ids *out,
                            di_error *error) {
    char content[64];
    int32_t id = -1;
    if (piece->size < sizeof content) {
        memcpy(content, piece->text, piece->size);
        content[piece->size] = '\0';
        id = di_tokenizer_added_id(tokenizer, content);
    }
    if (id < 0) {
        return di_fail(error, DI_ERR_INVALID,
                       "the tokenizer has no token %.*s, which the chat format needs",
                       (int)piece->size, piece->text);
    }
    return di_ids_append(out, &id, 1, error);
}

di_status di_chat_tokenize(const di_chat_prompt *prompt, const di_tokenizer *tokenizer, di_ids *out,
                           di_error *error) {
    size_t before = out->size;
    di_status status = DI_OK;
    for (size_t i = 0; i < prompt->n_pieces && status == DI_OK; i++) {
        const di_chat_piece *piece = &prompt->pieces[i];
        if (piece->is_marker) {
            status = add_marker(piece, tokenizer, out, error);
        } else {
            status = di_tokenizer_encode(tokenizer, piece->text, piece->size, false, out, error);
        }
    }
    if (status != DI_OK) out->size = before;
    return status;
}
