/* Engram's token map: tokens whose texts differ only in case, accents, width or blanks share a
 * class.
 *
 * For each token alone: its bytes as text. If that has U+FFFD in it (not UTF-8, or that character
 * itself), the key is its spelling in the vocabulary. Otherwise the key is the normalised text, or
 * the text itself when nothing would be left of it. Equal keys are one class.
 *
 * Normalised: NFKC, NFD, without marks (Mn, Mc, Me), lower case character by character, every run
 * of blank, tab, CR, LF one blank, white space stripped at both ends unless the whole is one blank.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/tokenizer_alphabet.h"
#include "text/tokenizer_internal.h"
#include "text/unicode_class.h"

enum { LONE_BLANK = 0xE000 }; /* stands for a blank that stripping must not take */

typedef struct codes {
    utf8proc_int32_t *data;
    size_t size, capacity;
} codes;

/* NFKC and then NFD is NFKD: composing changes nothing that decomposing does not undo. False when
 * there is no memory. */
static bool decompose(codes *c, const char *text, size_t size) {
    for (;;) {
        utf8proc_ssize_t n =
            utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, c->data,
                               (utf8proc_ssize_t)c->capacity,
                               (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                   UTF8PROC_COMPAT));
        if (n < 0) return false; /* the text is valid UTF-8, so nothing else can be wrong */
        c->size = (size_t)n;
        if (c->size <= c->capacity) return true;
        utf8proc_int32_t *data = realloc(c->data, 2 * c->size * sizeof *data);
        if (!data) return false;
        c->data = data;
        c->capacity = 2 * c->size;
    }
}

static bool is_mark(utf8proc_int32_t code) {
    utf8proc_category_t category = utf8proc_category(code);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
           category == UTF8PROC_CATEGORY_ME;
}

static bool is_space(utf8proc_int32_t code) {
    return di_unicode_class((uint32_t)code) & DI_UNICODE_SPACE;
}

/* Marks away, lower case, runs of blanks to one. In place: nothing here grows. */
static void fold(codes *c) {
    size_t n = 0;
    bool in_blank = false;
    for (size_t i = 0; i < c->size; i++) {
        utf8proc_int32_t code = c->data[i];
        if (is_mark(code)) continue;
        bool blank = code == ' ' || code == '\t' || code == '\r' || code == '\n';
        if (!blank || !in_blank) c->data[n++] = blank ? ' ' : utf8proc_tolower(code);
        in_blank = blank;
    }
    c->size = n;
}

/* Strips and writes as UTF-8. A text that has LONE_BLANK itself gets a blank for it too: so does
 * the release. */
static void write_key(const codes *c, di_buffer *key) {
    size_t from = 0, to = c->size;
    if (!(to == 1 && c->data[0] == ' ')) {
        while (from < to && is_space(c->data[from])) from++;
        while (to > from && is_space(c->data[to - 1])) to--;
    }
    for (; from < to; from++) {
        char bytes[4];
        uint32_t code = c->data[from] == LONE_BLANK ? ' ' : (uint32_t)c->data[from];
        di_buffer_append(key, bytes, di_utf8_encode(code, bytes));
    }
}

static bool is_clean_utf8(const char *text, size_t size) {
    if (di_utf8_valid_prefix(text, size) != size) return false;
    return !memmem(text, size, "\xEF\xBF\xBD", 3);
}

/* The key of a token, in `key`. The release decodes a token by the byte alphabet, added tokens too,
 * and takes it as it is when a character is not in there. */
static bool make_key(const char *spelling, codes *scratch, di_buffer *text, di_buffer *key) {
    size_t size = strlen(spelling);
    di_buffer_clear(text);
    di_buffer_clear(key);
    if (!di_buffer_reserve(text, size)) return false;
    text->size = di_alphabet_bytes(spelling, size, text->data);
    if (text->size == 0) di_buffer_append(text, spelling, size);
    if (!is_clean_utf8(text->data, text->size)) {
        di_buffer_append(key, spelling, size);
    } else {
        if (!decompose(scratch, text->data, text->size)) return false;
        fold(scratch);
        write_key(scratch, key);
        if (key->size == 0) di_buffer_append(key, text->data, text->size);
    }
    return !key->failed;
}

/* The keys met so far, each with its class. */
typedef struct key_slot {
    const char *key; /* NULL: free */
    size_t size;
    int32_t class;
} key_slot;

typedef struct key_table {
    key_slot *slots;
    size_t mask;
    int32_t n_classes;
    di_arena arena; /* the keys */
} key_table;

static size_t hash_key(const char *key, size_t size) {
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    for (size_t i = 0; i < size; i++) hash = (hash ^ (unsigned char)key[i]) * 1099511628211u;
    return (size_t)(hash ^ (hash >> 32));
}

/* The class of a key, a new one at its first appearance; -1 without memory. */
static int32_t class_of(key_table *table, const di_buffer *key) {
    size_t at = hash_key(key->data, key->size) & table->mask;
    for (; table->slots[at].key; at = (at + 1) & table->mask) {
        const key_slot *slot = &table->slots[at];
        if (slot->size == key->size && memcmp(slot->key, key->data, key->size) == 0) {
            return slot->class;
        }
    }
    const char *copy = di_arena_strndup(&table->arena, key->data, key->size);
    if (!copy) return -1;
    table->slots[at] = (key_slot){copy, key->size, table->n_classes};
    return table->n_classes++;
}

static di_status check_gaps(const di_tokenizer *t, di_error *error) {
    for (int32_t id = 0; id < t->size; id++) {
        if (t->tokens[id].spelling) continue;
        return di_fail(
            error, DI_ERR_INVALID,
            "Engram's token map: the tokenizer has no token with id %d of 0 to %d, so classes "
            "cannot be numbered; use the tokenizer.json that belongs to the model",
            id, t->size - 1);
    }
    return DI_OK;
}

di_status di_tokenizer_engram_map(const di_tokenizer *t, int32_t *map, int32_t *n_classes,
                                  di_error *error) {
    DI_TRY(check_gaps(t, error));
    size_t capacity = 16;
    while (capacity < 2 * (size_t)t->size) capacity *= 2;
    key_table table = {calloc(capacity, sizeof *table.slots), capacity - 1, 0, DI_ARENA_EMPTY};
    codes scratch = {NULL, 0, 0};
    di_buffer text = DI_BUFFER_EMPTY, key = DI_BUFFER_EMPTY;
    bool good = table.slots != NULL;
    for (int32_t id = 0; good && id < t->size; id++) {
        good = make_key(t->tokens[id].spelling, &scratch, &text, &key) &&
               (map[id] = class_of(&table, &key)) >= 0;
    }
    *n_classes = table.n_classes;
    di_arena_free(&table.arena);
    free(table.slots);
    free(scratch.data);
    di_buffer_free(&text);
    di_buffer_free(&key);
    return good ? DI_OK : di_fail(error, DI_ERR_MEMORY, "no memory for Engram's token map");
}
