/* Reading a tokenizer.json: the JSON tree, then tokens, added tokens, merges, each checked. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "text/tokenizer_alphabet.h"
#include "text/tokenizer_internal.h"

#define DAMAGED "the file is damaged or was edited; fetch it again"

enum { FILE_LIMIT = 256 << 20 }; /* bytes; the released file has about 8 MB */

typedef struct loader {
    di_tokenizer *t;
    const char *what;
    di_error *error;
    const di_json *vocab, *merges, *added; /* added may be NULL */
} loader;

static di_status no_memory(loader *l) {
    return di_fail(l->error, DI_ERR_MEMORY, "%s: no memory for the tokenizer", l->what);
}

/* An id in range as an int32, checked. */
static di_status read_id(loader *l, const di_json *value, const char *text, size_t size,
                         int32_t *id) {
    int64_t number;
    if (di_json_int64(value, &number) && number >= 0 && number < TOKENIZER_MAX_SIZE) {
        *id = (int32_t)number;
        return DI_OK;
    }
    return di_fail(l->error, DI_ERR_INVALID, "%s: token %s has id %s, expected 0 to %d: " DAMAGED,
                   l->what, quote__text(text, size).text, quote__json(value).text,
                   TOKENIZER_MAX_SIZE - 1);
}

static const di_json *content_of(const di_json *entry) {
    const di_json *content = di_json_get(entry, "content");
    if (!content || content->type != DI_JSON_STRING || content->length == 0) return NULL;
    return memchr(content->text, '\0', content->length) ? NULL : content;
}

/* Checks the kinds of everything and makes room for the highest id. */
static di_status make_room(loader *l) {
    int32_t highest = -1, id;
    for (const di_json *item = l->vocab->first; item; item = item->next) {
        DI_TRY(read_id(l, item, item->key, item->key_length, &id));
        if (id > highest) highest = id;
    }
    size_t index = 0;
    for (const di_json *item = l->added ? l->added->first : NULL; item;
         item = item->next, index++) {
        const di_json *content = content_of(item);
        if (!content) {
            return di_fail(l->error, DI_ERR_INVALID,
                           "%s: added token %zu has no content, or a NUL in it: " DAMAGED, l->what,
                           index);
        }
        DI_TRY(read_id(l, di_json_get(item, "id"), content->text, content->length, &id));
        if (id > highest) highest = id;
    }
    l->t->size = highest + 1;
    l->t->tokens = di_arena_calloc(&l->t->arena, (size_t)highest + 1, sizeof *l->t->tokens);
    return l->t->tokens ? DI_OK : no_memory(l);
}

static di_status same_id(loader *l, int32_t id, const char *text, size_t size) {
    const char *other = l->t->tokens[id].spelling;
    return di_fail(l->error, DI_ERR_INVALID, "%s: tokens %s and %s have the same id %d: " DAMAGED,
                   l->what, quote__text(other, strlen(other)).text, quote__text(text, size).text,
                   id);
}

/* The vocabulary. An entry outside the byte alphabet keeps `bytes` NULL: read_added must fill it.
 */
static di_status read_vocab(loader *l) {
    di_tokenizer *t = l->t;
    if (!words__init(t, l->vocab->length)) return no_memory(l);
    for (const di_json *item = l->vocab->first; item; item = item->next) {
        int32_t id;
        DI_TRY(read_id(l, item, item->key, item->key_length, &id));
        token_data *token = &t->tokens[id];
        if (token->spelling) return same_id(l, id, item->key, item->key_length);
        token->spelling = di_arena_strndup(&t->arena, item->key, item->key_length);
        char *bytes = di_arena_alloc(&t->arena, item->key_length + 1);
        if (!token->spelling || !bytes) return no_memory(l);
        size_t size = di_alphabet_bytes(item->key, item->key_length, bytes);
        if (size == 0) continue;
        bytes[size] = '\0';
        token->bytes = bytes;
        token->size = (uint32_t)size;
        words__add(t, id);
    }
    return DI_OK;
}

static bool is_text(const token_data *token, const di_json *content) {
    return strlen(token->spelling) == content->length &&
           memcmp(token->spelling, content->text, content->length) == 0;
}

/* What stands at the id of an added token must be nothing, or the same text in the vocabulary. Text
 * that stands for other bytes there (a blank is spelled U+0120) could not be told apart later. */
static di_status check_place(loader *l, const di_json *content, int32_t id) {
    const token_data *token = &l->t->tokens[id];
    if (!token->spelling) return DI_OK;
    if (token->flags & TOKEN_ADDED || !is_text(token, content)) {
        return same_id(l, id, content->text, content->length);
    }
    if (!token->bytes || (token->size == content->length &&
                          memcmp(token->bytes, content->text, content->length) == 0)) {
        return DI_OK;
    }
    return di_fail(l->error, DI_ERR_UNSUPPORTED,
                   "%s: added token %s is in the vocabulary too, where it stands for other bytes; "
                   "such a file is not supported",
                   l->what, quote__text(content->text, content->length).text);
}

/* The vocabulary must not have the same text under another id. (Text outside the alphabet needs no
 * look: such an entry of the vocabulary must itself be an added token, see read_added.) */
static di_status check_vocab(loader *l, const di_json *content, int32_t id) {
    char *bytes = di_arena_alloc(&l->t->arena, content->length);
    if (!bytes) return no_memory(l);
    size_t size = di_alphabet_bytes(content->text, content->length, bytes);
    int32_t word = size ? words__find(l->t, bytes, size) : -1;
    if (word < 0 || word == id) return DI_OK;
    return di_fail(l->error, DI_ERR_INVALID,
                   "%s: added token %s has id %d, but %d in the vocabulary: " DAMAGED, l->what,
                   quote__text(content->text, content->length).text, id, word);
}

static di_status check_flags(loader *l, const di_json *item, const di_json *content) {
    static const char *const flags[] = {"single_word", "lstrip", "rstrip"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        const di_json *flag = di_json_get(item, flags[i]);
        if (!flag || flag->type == DI_JSON_FALSE || flag->type == DI_JSON_NULL) continue;
        return di_fail(l->error, DI_ERR_UNSUPPORTED,
                       "%s: added token %s has %s set, which is not supported: only added tokens "
                       "that match exactly are",
                       l->what, quote__text(content->text, content->length).text, flags[i]);
    }
    return DI_OK;
}

static di_status read_added_token(loader *l, const di_json *item) {
    di_tokenizer *t = l->t;
    const di_json *content = content_of(item);
    int32_t id;
    DI_TRY(read_id(l, di_json_get(item, "id"), content->text, content->length, &id));
    DI_TRY(check_flags(l, item, content));
    DI_TRY(check_place(l, content, id));
    DI_TRY(check_vocab(l, content, id));
    bool special = false, normalized = false;
    di_json_bool(di_json_get(item, "special"), &special);
    di_json_bool(di_json_get(item, "normalized"), &normalized);
    token_data *token = &t->tokens[id];
    token->spelling = di_arena_strndup(&t->arena, content->text, content->length);
    if (!token->spelling) return no_memory(l);
    token->bytes = token->spelling;
    token->size = (uint32_t)content->length;
    token->flags |= TOKEN_ADDED | (special ? (unsigned)TOKEN_SPECIAL : 0u);
    added_set *set = &t->added[normalized];
    set->ids[set->n++] = id;
    return DI_OK;
}

/* Two added tokens with one content would make matching a matter of luck. */
static di_status check_distinct(loader *l, const added_set *set) {
    di_tokenizer *t = l->t;
    for (size_t i = 0; i < set->n; i++) {
        const token_data *token = &t->tokens[set->ids[i]];
        int32_t other = set->ids[i];
        for (int s = 0; s < 2 && other == set->ids[i]; s++) {
            int32_t id =
                t->added[s].n ? added__match(t, &t->added[s], token->bytes, token->size) : -1;
            if (id >= 0 && t->tokens[id].size == token->size) other = id;
        }
        if (other == set->ids[i]) continue;
        int32_t first = other < set->ids[i] ? other : set->ids[i];
        return di_fail(l->error, DI_ERR_INVALID,
                       "%s: added token %s has the two ids %d and %d: " DAMAGED, l->what,
                       quote__text(token->bytes, token->size).text, first,
                       first == other ? set->ids[i] : other);
    }
    return DI_OK;
}

static di_status read_added(loader *l) {
    di_tokenizer *t = l->t;
    size_t n = l->added ? l->added->length : 0;
    for (int s = 0; s < 2; s++) {
        t->added[s].ids = di_arena_alloc(&t->arena, n * sizeof(int32_t));
        if (!t->added[s].ids) return no_memory(l);
    }
    for (const di_json *item = l->added ? l->added->first : NULL; item; item = item->next) {
        DI_TRY(read_added_token(l, item));
    }
    for (int s = 0; s < 2; s++) {
        if (!added__sort(t, &t->added[s])) return no_memory(l);
    }
    for (int s = 0; s < 2; s++) DI_TRY(check_distinct(l, &t->added[s]));
    for (int32_t id = 0; id < t->size; id++) {
        const token_data *token = &t->tokens[id];
        if (!token->spelling || token->bytes) continue;
        return di_fail(
            l->error, DI_ERR_INVALID,
            "%s: token %s (id %d) is neither in the byte-level alphabet nor an added token: " DAMAGED,
            l->what, quote__text(token->spelling, strlen(token->spelling)).text, id);
    }
    return DI_OK;
}

/* The two parts of a merge, written as "a b" or ["a", "b"]; false when it is neither. */
static bool merge_parts(const di_json *item, const char *text[2], size_t size[2]) {
    if (item->type == DI_JSON_ARRAY && item->length == 2) {
        const di_json *a = item->first, *b = a->next;
        if (a->type != DI_JSON_STRING || b->type != DI_JSON_STRING) return false;
        text[0] = a->text, size[0] = a->length;
        text[1] = b->text, size[1] = b->length;
        return true;
    }
    const char *space = item->type == DI_JSON_STRING ? memchr(item->text, ' ', item->length) : NULL;
    if (!space) return false;
    text[0] = item->text, size[0] = (size_t)(space - item->text);
    text[1] = space + 1, size[1] = item->length - size[0] - 1;
    return true;
}

/* Finds the token of text (alphabet) through `bytes`, which receives what it stands for. */
static di_status find_part(loader *l, uint32_t rank, const char *text, size_t size, char *bytes,
                           size_t *n, int32_t *id) {
    *n = di_alphabet_bytes(text, size, bytes);
    *id = *n ? words__find(l->t, bytes, *n) : -1;
    if (*id >= 0) return DI_OK;
    return di_fail(l->error, DI_ERR_INVALID, "%s: merge %u: %s is not in the vocabulary: " DAMAGED,
                   l->what, rank, quote__text(text, size).text);
}

static di_status read_merge(loader *l, const di_json *item, uint32_t rank, di_buffer *bytes) {
    const char *text[2];
    size_t size[2], n[2];
    int32_t part[2];
    if (!merge_parts(item, text, size)) {
        return di_fail(
            l->error, DI_ERR_INVALID,
            "%s: merge %u is %s, expected \"left right\" or [\"left\", \"right\"]: " DAMAGED,
            l->what, rank, quote__json(item).text);
    }
    di_buffer_clear(bytes);
    if (!di_buffer_reserve(bytes, size[0] + size[1])) return no_memory(l);
    DI_TRY(find_part(l, rank, text[0], size[0], bytes->data, &n[0], &part[0]));
    DI_TRY(find_part(l, rank, text[1], size[1], bytes->data + n[0], &n[1], &part[1]));
    int32_t id = words__find(l->t, bytes->data, n[0] + n[1]);
    if (id < 0) {
        return di_fail(
            l->error, DI_ERR_INVALID,
            "%s: merge %u: %s and %s give a token that is not in the vocabulary: " DAMAGED, l->what,
            rank, quote__text(text[0], size[0]).text, quote__text(text[1], size[1]).text);
    }
    if (merges__add(l->t, part[0], part[1], rank, id)) return DI_OK;
    return di_fail(l->error, DI_ERR_INVALID, "%s: merge %u of %s and %s is there twice: " DAMAGED,
                   l->what, rank, quote__text(text[0], size[0]).text,
                   quote__text(text[1], size[1]).text);
}

static di_status read_merges(loader *l) {
    if (!merges__init(l->t, l->merges->length)) return no_memory(l);
    di_buffer bytes = DI_BUFFER_EMPTY;
    uint32_t rank = 0;
    di_status status = DI_OK;
    for (const di_json *item = l->merges->first; item && status == DI_OK; item = item->next) {
        status = read_merge(l, item, rank++, &bytes);
    }
    di_buffer_free(&bytes);
    return status;
}

static di_status find_bytes(loader *l) {
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        if ((l->t->byte_id[b] = words__find(l->t, &byte, 1)) >= 0) continue;
        return di_fail(
            l->error, DI_ERR_INVALID,
            "%s: the vocabulary has no token for byte 0x%02X, so not every text has ids: " DAMAGED,
            l->what, b);
    }
    return DI_OK;
}

/* Finds out which tokens their own bytes lead to: see TOKEN_WHOLE. */
static di_status mark_whole(loader *l) {
    di_tokenizer *t = l->t;
    di_ids ids = {NULL, 0, 0};
    di_status status = DI_OK;
    for (size_t i = 0; i <= t->word_mask && status == DI_OK; i++) {
        int32_t id = t->words[i].id;
        if (id < 0) continue;
        ids.size = 0;
        status = piece__merge(t, t->tokens[id].bytes, t->tokens[id].size, &ids, l->error);
        if (status == DI_OK && ids.size == 1 && ids.data[0] == id)
            t->tokens[id].flags |= TOKEN_WHOLE;
    }
    di_ids_free(&ids);
    return status;
}

static di_status load_tree(loader *l, const di_json *root) {
    DI_TRY(form__check(root, l->what, l->error));
    const di_json *model = di_json_get(root, "model");
    l->vocab = di_json_get(model, "vocab");
    l->merges = di_json_get(model, "merges");
    l->added = di_json_get(root, "added_tokens");
    if (l->added && l->added->type == DI_JSON_NULL) l->added = NULL;
    if (!l->vocab || l->vocab->type != DI_JSON_OBJECT || !l->merges ||
        l->merges->type != DI_JSON_ARRAY || (l->added && l->added->type != DI_JSON_ARRAY)) {
        return di_fail(
            l->error, DI_ERR_INVALID,
            "%s: model.vocab must be an object, model.merges and added_tokens lists: " DAMAGED,
            l->what);
    }
    DI_TRY(make_room(l));
    DI_TRY(read_vocab(l));
    DI_TRY(read_added(l));
    DI_TRY(find_bytes(l));
    DI_TRY(read_merges(l));
    return mark_whole(l);
}

di_status di_tokenizer_parse(const char *json, size_t size, const char *what, di_tokenizer **out,
                             di_error *error) {
    *out = NULL;
    loader l = {calloc(1, sizeof *l.t), what, error, NULL, NULL, NULL};
    if (!l.t) return no_memory(&l);
    di_arena tree = DI_ARENA_EMPTY;
    const di_json *root;
    di_status status = di_json_parse(json, size, what, &tree, &root, error);
    if (status == DI_OK) status = load_tree(&l, root);
    di_arena_free(&tree);
    if (status == DI_OK) {
        *out = l.t;
    } else {
        di_tokenizer_destroy(l.t);
    }
    return status;
}

di_status di_tokenizer_load(const char *path, di_tokenizer **out, di_error *error) {
    *out = NULL;
    char *text;
    uint64_t size;
    DI_TRY(di_file_read(path, FILE_LIMIT, &text, &size, error));
    di_status status = di_tokenizer_parse(text, (size_t)size, path, out, error);
    free(text);
    return status;
}
