/* Grammars: any text as a schema, an expression, GBNF, choices or tools, then any bytes as an answer.
 *
 * The first byte chooses the front end; the grammar ends at the first 0xff, the answer follows. What
 * compiles must let every place that is reached go on or end, and its mask must say so too.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const di_vocabulary *vocabulary(void) {
    static di_vocabulary *v;
    static di_tokenizer *t;
    static const int32_t end = 1;
    di_error error;
    if (!v &&
        (di_tokenizer_load(DI_SOURCE_DIR "/models/demo/tokenizer.json", &t, &error) != DI_OK ||
         di_vocabulary_create(t, 0, &end, 1, &v, &error) != DI_OK)) {
        fprintf(stderr, "%s\n", error.message);
        abort();
    }
    return v;
}

static di_status compile(uint8_t kind, const char *text, size_t size, di_grammar **out,
                         di_error *error) {
    if (kind % 8 == 0) return di_grammar_compile_regex(vocabulary(), text, size, out, error);
    if (kind % 8 == 1) return di_grammar_compile_ebnf(vocabulary(), text, size, out, error);
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *json;
    di_status status = di_json_parse(text, size, "fuzz", &arena, &json, error);
    di_grammar_options options = {.space = kind >> 4 & 1, .closed = kind >> 5 & 1};
    if (status == DI_OK && kind % 8 == 2) {
        status = di_grammar_compile_choices(vocabulary(), json, out, error);
    } else if (status == DI_OK && kind % 8 == 3) {
        di_grammar_tools tools = {.tools = json,
                                  .choice = kind >> 4 & 1 ? DI_GRAMMAR_TOOLS_AUTO
                                                          : DI_GRAMMAR_TOOLS_REQUIRED};
        static const di_grammar_form object = {.kind = DI_GRAMMAR_JSON_OBJECT};
        tools.strict = kind >> 5 & 1;
        tools.follow = kind >> 6 & 1;
        tools.form = kind >> 7 & 1 ? &object : NULL;
        status = di_grammar_compile_tools(vocabulary(), &options, &tools, out, error);
    } else if (status == DI_OK) {
        status = di_grammar_compile_schema(vocabulary(), &options, json, out, error);
    }
    di_arena_free(&arena);
    return status;
}

/* Some token may come, and one that the mask names is taken. */
static void check_place(di_grammar_matcher *m) {
    uint32_t words[1024];
    di_error error;
    if (di_vocabulary_words(vocabulary()) > 1024) abort();
    di_status status = di_grammar_matcher_mask(m, words, &error);
    if (status == DI_ERR_LIMIT || status == DI_ERR_MEMORY) return;
    if (status != DI_OK) abort();
    int n = 0;
    for (int32_t id = 0; id < di_vocabulary_size(vocabulary()); id++) {
        if (!(words[id / 32] >> (id % 32) & 1)) continue;
        if (n++ % 97 != 0) continue;
        status = di_grammar_matcher_advance(m, id, &error);
        if (status == DI_ERR_LIMIT) continue;
        if (status != DI_OK || !di_grammar_matcher_rollback(m, 1)) abort();
    }
    if (n == 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1 || size > 4096) return 0;
    const uint8_t *text = data + 1, *end = memchr(text, 0xff, size - 1);
    size_t length = end ? (size_t)(end - text) : size - 1;
    di_grammar *g = NULL;
    di_error error;
    di_status status = compile(*data, (const char *)text, length, &g, &error);
    if (status != DI_OK) {
        if (g || !*error.message) abort();
        return 0;
    }
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    if (!m) abort();
    check_place(m);
    for (const uint8_t *b = end ? end + 1 : data + size; b < data + size; b++) {
        size_t taken;
        if (di_grammar_matcher_advance_bytes(m, (const char *)b, 1, &taken, &error) != DI_OK)
            continue;
        if (b - data < 64 || *b % 16 == 0) check_place(m);
    }
    di_buffer forced = DI_BUFFER_EMPTY;
    di_grammar_matcher_forced(m, 50, &forced, &error);
    di_buffer_free(&forced);
    di_grammar_matcher_destroy(m);
    di_grammar_release(g);
    return 0;
}
