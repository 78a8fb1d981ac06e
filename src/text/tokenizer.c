/* Encoding, decoding and looking up. How a text becomes ids:
 *
 *   text -> added tokens cut out (tokenizer_added.c) -> pieces (pretokenize.c)
 *        -> tokens: the whole piece at once, or merges (tokenizer_merge.c)
 */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "text/pretokenize.h"
#include "text/tokenizer_internal.h"

/* Text without added tokens. */
static di_status encode_plain(const di_tokenizer *t, const char *text, size_t size, di_ids *out,
                              di_error *error) {
    for (size_t at = 0, length; at < size; at += length) {
        length = di_pretokenize_next(text + at, size - at);
        int32_t id = words__find(t, text + at, length);
        if (id >= 0 && t->tokens[id].flags & TOKEN_WHOLE) {
            DI_TRY(di_ids_append(out, &id, 1, error));
        } else {
            DI_TRY(piece__merge(t, text + at, length, out, error));
        }
    }
    return DI_OK;
}

/* Cuts the tokens of added[set] and then of the following sets out of the text. */
static di_status encode_from(const di_tokenizer *t, int set, const char *text, size_t size,
                             di_ids *out, di_error *error) {
    if (set == 2) return encode_plain(t, text, size, out, error);
    const added_set *added = &t->added[set];
    size_t plain = 0; /* where the text not yet encoded begins */
    for (size_t at = 0; at < size && added->n;) {
        unsigned char c = (unsigned char)text[at];
        int32_t id = added->first[c] < added->first[c + 1]
                         ? added__match(t, added, text + at, size - at)
                         : -1;
        if (id < 0) {
            at++;
            continue;
        }
        DI_TRY(encode_from(t, set + 1, text + plain, at - plain, out, error));
        DI_TRY(di_ids_append(out, &id, 1, error));
        at += t->tokens[id].size;
        plain = at;
    }
    return encode_from(t, set + 1, text + plain, size - plain, out, error);
}

di_status di_tokenizer_encode(const di_tokenizer *t, const char *text, size_t size,
                              bool match_added, di_ids *out, di_error *error) {
    size_t before = out->size;
    di_status status = encode_from(t, match_added ? 0 : 2, text, size, out, error);
    if (status != DI_OK) out->size = before;
    return status;
}

int32_t di_tokenizer_size(const di_tokenizer *t) { return t->size; }

static const token_data *token_at(const di_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->size && t->tokens[id].spelling ? &t->tokens[id] : NULL;
}

int32_t di_tokenizer_added_id(const di_tokenizer *t, const char *content) {
    size_t size = strlen(content);
    for (int set = 0; size && set < 2; set++) {
        int32_t id = added__match(t, &t->added[set], content, size);
        if (id >= 0 && t->tokens[id].size == size) return id;
    }
    return -1;
}

const char *di_tokenizer_bytes(const di_tokenizer *t, int32_t id, size_t *size) {
    const token_data *found = token_at(t, id);
    *size = found ? found->size : 0;
    return found ? found->bytes : NULL;
}

const char *di_tokenizer_spelling(const di_tokenizer *t, int32_t id) {
    const token_data *found = token_at(t, id);
    return found ? found->spelling : NULL;
}

bool di_tokenizer_is_added(const di_tokenizer *t, int32_t id) {
    const token_data *found = token_at(t, id);
    return found && found->flags & TOKEN_ADDED;
}

bool di_tokenizer_is_special(const di_tokenizer *t, int32_t id) {
    const token_data *found = token_at(t, id);
    return found && found->flags & TOKEN_SPECIAL;
}

di_status di_tokenizer_decode(const di_tokenizer *t, const int32_t *ids, size_t n,
                              bool skip_special, di_buffer *out, di_error *error) {
    for (size_t i = 0; i < n; i++) {
        const token_data *found = token_at(t, ids[i]);
        if (!found) {
            return di_fail(error, DI_ERR_INVALID,
                           "token id %d at index %zu: the tokenizer has no such token (its ids are "
                           "0 to %d)",
                           ids[i], i, t->size - 1);
        }
        if (skip_special && found->flags & TOKEN_SPECIAL) continue;
        di_buffer_append(out, found->bytes, found->size);
    }
    if (out->failed)
        return di_fail(error, DI_ERR_MEMORY, "no memory for the text of %zu tokens", n);
    return DI_OK;
}

void di_tokenizer_destroy(di_tokenizer *t) {
    if (!t) return;
    di_arena_free(&t->arena);
    free(t);
}
