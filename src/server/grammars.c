#include "server/grammars.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sha256.h"

enum { MAX_KEPT = 32 };

typedef struct kept {
    uint8_t key[DI_SHA256_BYTES];
    di_grammar *grammar; /* NULL: free */
    uint64_t used;
} kept;

struct di_grammars {
    di_vocabulary *vocabulary;
    pthread_mutex_t lock; /* of what follows; not held while compiling */
    kept all[MAX_KEPT];
    uint64_t clock;
    size_t max_bytes;
};

di_status di_grammars_create(const di_tokenizer *tokenizer, int32_t vocab_size, int32_t end_token,
                             size_t max_bytes, di_grammars **out, di_error *error) {
    di_grammars *g = calloc(1, sizeof *g);
    if (!g) return di_fail(error, DI_ERR_MEMORY, "out of memory: grammars");
    di_status status = di_vocabulary_create(tokenizer, vocab_size, &end_token, end_token >= 0,
                                            &g->vocabulary, error);
    if (status != DI_OK) {
        free(g);
        return status;
    }
    pthread_mutex_init(&g->lock, NULL);
    g->max_bytes = max_bytes;
    *out = g;
    return DI_OK;
}

void di_grammars_destroy(di_grammars *g) {
    if (!g) return;
    for (int i = 0; i < MAX_KEPT; i++) di_grammar_release(g->all[i].grammar);
    di_vocabulary_destroy(g->vocabulary);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static void write_key(const di_form_spec *spec, di_buffer *text) {
    di_buffer_printf(text, "%d %d %d %d %s\n", (int)spec->form, (int)spec->choice, spec->max_calls,
                     spec->any_space, spec->name ? spec->name : "");
    if (spec->source) di_json_write(text, spec->source);
    if (spec->beside) write_key(spec->beside, text);
}

static di_status key_of(const di_form_spec *spec, uint8_t key[DI_SHA256_BYTES], di_error *error) {
    di_buffer text = DI_BUFFER_EMPTY;
    write_key(spec, &text);
    if (!text.failed) di_sha256(text.data, text.size, key);
    di_status status =
        text.failed ? di_fail(error, DI_ERR_MEMORY, "out of memory: grammar") : DI_OK;
    di_buffer_free(&text);
    return status;
}

static di_grammar_form form_of(const di_form_spec *spec) {
    return (di_grammar_form){(di_grammar_form_kind)spec->form, spec->source};
}

static di_status compile(const di_grammars *g, const di_form_spec *spec, di_grammar **out,
                         di_error *error) {
    di_grammar_options options = di_grammar_options_defaults();
    di_grammar_form form = form_of(spec->beside ? spec->beside : spec);
    options.closed = true;
    /* As the model's own format writes JSON, and so that it cannot write blanks until its answer is cut. */
    options.space = spec->any_space ? DI_GRAMMAR_SPACE_FREE : DI_GRAMMAR_SPACE_PYTHON;
    if (spec->form != DI_FORM_TOOLS) {
        return di_grammar_compile_form(g->vocabulary, &options, &form, out, error);
    }
    const di_grammar_tools tools = {.tools = spec->source,
                                    .choice = spec->choice,
                                    .name = spec->name,
                                    .follow = spec->choice == DI_GRAMMAR_TOOLS_REQUIRED,
                                    .max_calls = spec->max_calls,
                                    .form = spec->beside ? &form : NULL};
    return di_grammar_compile_tools(g->vocabulary, &options, &tools, out, error);
}

/* ---- What is kept ---- */

static size_t kept_bytes(di_grammars *g) {
    size_t bytes = 0;
    for (int i = 0; i < MAX_KEPT; i++) {
        if (g->all[i].grammar) bytes += di_grammar_memory(g->all[i].grammar);
    }
    return bytes;
}

/* The least recently used one, but the newest, is no longer kept; NULL: there is no other. */
static di_grammar *drop_oldest(di_grammars *g) {
    kept *oldest = NULL;
    for (int i = 0; i < MAX_KEPT; i++) {
        kept *k = &g->all[i];
        if (k->grammar && k->used != g->clock && (!oldest || k->used < oldest->used)) oldest = k;
    }
    if (!oldest) return NULL;
    di_grammar *dropped = oldest->grammar;
    *oldest = (kept){.grammar = NULL};
    return dropped;
}

/* Those who use a dropped one go on with it. */
static void bound(di_grammars *g) {
    di_grammar *dropped[MAX_KEPT];
    int n = 0;
    pthread_mutex_lock(&g->lock);
    while (kept_bytes(g) > g->max_bytes && (dropped[n] = drop_oldest(g)) != NULL) n++;
    pthread_mutex_unlock(&g->lock);
    while (n > 0) di_grammar_release(dropped[--n]);
}

size_t di_grammars_memory(di_grammars *g) {
    pthread_mutex_lock(&g->lock);
    size_t bytes = kept_bytes(g);
    pthread_mutex_unlock(&g->lock);
    return bytes;
}

static di_grammar *find(di_grammars *g, const uint8_t key[DI_SHA256_BYTES]) {
    di_grammar *found = NULL;
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < MAX_KEPT && !found; i++) {
        kept *k = &g->all[i];
        if (!k->grammar || memcmp(k->key, key, DI_SHA256_BYTES) != 0) continue;
        k->used = ++g->clock;
        found = di_grammar_acquire(k->grammar);
    }
    pthread_mutex_unlock(&g->lock);
    return found;
}

static void keep(di_grammars *g, const uint8_t key[DI_SHA256_BYTES], di_grammar *grammar) {
    pthread_mutex_lock(&g->lock);
    kept *oldest = &g->all[0];
    for (int i = 1; i < MAX_KEPT; i++) {
        if (g->all[i].used < oldest->used) oldest = &g->all[i];
    }
    di_grammar *dropped = oldest->grammar;
    memcpy(oldest->key, key, DI_SHA256_BYTES);
    oldest->grammar = di_grammar_acquire(grammar);
    oldest->used = ++g->clock;
    pthread_mutex_unlock(&g->lock);
    di_grammar_release(dropped);
}

di_status di_grammars_get(di_grammars *g, const di_form_spec *spec, di_grammar **out,
                          di_error *error) {
    uint8_t key[DI_SHA256_BYTES];
    DI_TRY(key_of(spec, key, error));
    *out = find(g, key);
    if (!*out) {
        DI_TRY(compile(g, spec, out, error));
        keep(g, key, *out);
    }
    bound(g);
    return DI_OK;
}
