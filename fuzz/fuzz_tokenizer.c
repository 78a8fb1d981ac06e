/* The tokenizer. The first byte of an input says what the rest is:
 *
 *   'f'  a whole tokenizer.json
 *   'p'  parts of one, a line each: members of the vocabulary, merges, added tokens (the inside of
 *        the braces and brackets, put into tokenizer_template.json); then a text to encode with it
 *   else a text to encode with the tokenizer of a golden model
 *
 * Whatever is encoded must decode to the same bytes, and the streaming detokeniser must not depend
 * on how they were cut.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_stream(const char *text, size_t size) {
    di_detokenizer whole = DI_DETOKENIZER_EMPTY, parts = DI_DETOKENIZER_EMPTY;
    di_buffer a = DI_BUFFER_EMPTY, b = DI_BUFFER_EMPTY;
    di_detokenizer_push(&whole, text, size, &a);
    di_detokenizer_finish(&whole, &a);
    for (size_t at = 0, n; at < size; at += n) {
        n = 1 + (unsigned char)text[at] % 3;
        if (n > size - at) n = size - at;
        size_t before = b.size;
        di_detokenizer_push(&parts, text + at, n, &b);
        size_t more = b.size - before; /* whole characters only */
        if (more && di_utf8_valid_prefix(b.data + before, more) != more) abort();
    }
    di_detokenizer_finish(&parts, &b);
    if (a.size != b.size || (a.size && memcmp(a.data, b.data, a.size) != 0)) abort();
    di_buffer_free(&a);
    di_buffer_free(&b);
}

static void check_round_trip(const di_tokenizer *t, const char *text, size_t size) {
    for (int match = 0; match < 2; match++) {
        di_ids ids = {NULL, 0, 0};
        di_buffer back = DI_BUFFER_EMPTY;
        di_error error;
        if (di_tokenizer_encode(t, text, size, match, &ids, &error) != DI_OK ||
            di_tokenizer_decode(t, ids.data, ids.size, false, &back, &error) != DI_OK) {
            abort();
        }
        if (back.size != size || (size && memcmp(back.data, text, size) != 0)) abort();
        di_ids_free(&ids);
        di_buffer_free(&back);
    }
}

static void check_file(const char *json, size_t size, const char *text, size_t text_size) {
    di_tokenizer *t;
    di_error error;
    if (di_tokenizer_parse(json, size, "fuzz", &t, &error) != DI_OK) return;
    check_round_trip(t, text, text_size);
    int32_t n_classes, *map = malloc((size_t)di_tokenizer_size(t) * sizeof *map);
    if (map) di_tokenizer_engram_map(t, map, &n_classes, &error);
    free(map);
    di_tokenizer_destroy(t);
}

/* A file that must be there, with a NUL behind it; never freed. */
static const char *read_once(const char *path) {
    char *text;
    uint64_t size;
    di_error error;
    if (di_file_read(path, 1 << 24, &text, &size, &error) != DI_OK) abort();
    return text;
}

/* Puts the first three lines of data where the template has @, the rest is the text. */
static void check_parts(const char *data, size_t size) {
    static const char *template;
    if (!template) template = read_once(DI_SOURCE_DIR "/fuzz/tokenizer_template.json");
    di_buffer json = DI_BUFFER_EMPTY;
    const char *from = template, *mark;
    for (; (mark = strchr(from, '@')) != NULL; from = mark + 1) {
        const char *end = size ? memchr(data, '\n', size) : NULL;
        size_t n = end ? (size_t)(end - data) : size;
        di_buffer_append(&json, from, (size_t)(mark - from));
        di_buffer_append(&json, data, n);
        data += n + (end != NULL);
        size -= n + (end != NULL);
    }
    di_buffer_puts(&json, from);
    check_file(json.data, json.size, data, size);
    di_buffer_free(&json);
}

static void check_text(const char *text, size_t size) {
    static di_tokenizer *tokenizer;
    di_error error;
    if (!tokenizer &&
        di_tokenizer_load(DI_SOURCE_DIR "/tests/data/golden/tiny-a/model/tokenizer.json",
                          &tokenizer, &error) != DI_OK) {
        abort();
    }
    check_round_trip(tokenizer, text, size);
    check_stream(text, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *rest = (const char *)data + 1;
    if (size == 0) return 0;
    switch (data[0]) {
    case 'f': check_file(rest, size - 1, "a text, 123!", 12); return 0;
    case 'p': check_parts(rest, size - 1); return 0;
    default: check_text(rest, size - 1); return 0;
    }
}
