#include "grammar/vocabulary_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    const char *bytes;
    uint32_t size;
    int32_t id;
} entry;

static int by_bytes(const void *a, const void *b) {
    const entry *x = a, *y = b;
    size_t n = x->size < y->size ? x->size : y->size;
    int order = memcmp(x->bytes, y->bytes, n);
    if (order) return order;
    if (x->size != y->size) return x->size < y->size ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

const char *vocabulary__bytes(const di_vocabulary *v, int32_t id, size_t *size) {
    *size = 0;
    if (id < 0 || id >= di_tokenizer_size(v->tokenizer)) return NULL;
    if (di_tokenizer_is_added(v->tokenizer, id) || vocabulary__is_end(v, id)) return NULL;
    const char *bytes = di_tokenizer_bytes(v->tokenizer, id, size);
    return *size > 0 && *size <= VOCABULARY_MAX_TOKEN ? bytes : NULL;
}

bool vocabulary__is_end(const di_vocabulary *v, int32_t id) {
    for (size_t i = 0; i < v->n_end; i++) {
        if (v->end_ids[i] == id) return true;
    }
    return false;
}

int32_t di_vocabulary_size(const di_vocabulary *v) { return v->n_ids; }

size_t di_vocabulary_words(const di_vocabulary *v) { return v->n_words; }

/* ---- Slices ---- */

/* The kinds, from wide to narrow. The bar U+FF5C is in none: it begins the markers that the raw text of
 * tool calls must not spell, so states there tell it from other characters. */
static bool in_kind(int kind, int c) {
    bool lower = c >= 'a' && c <= 'z';
    bool alnum = lower || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z');
    switch (kind) {
    case 0: return c >= 0x20 && c != '"' && c != '\\'; /* what JSON strings hold as it is */
    case 1: return alnum || c == ' ';
    case 2: return alnum;
    case 3: return lower || c == ' ';
    default: return lower;
    }
}

static bool kind_has_other_scripts(int kind) { return kind < 2; }

static void set_range(uint8_t row[256], int lo, int hi, uint8_t to) {
    for (int b = lo; b <= hi; b++) row[b] = to;
}

static void slice_automaton(slice *sl, int kind) {
    enum { BETWEEN, ONE, TWO, THREE, E0, ED, EF, BAR, F0, F4 };
    static const uint8_t within[VOCABULARY_SLICES] = {0x1f, 0x1e, 0x14, 0x18, 0x10};
    sl->within = within[kind];
    memset(sl->next, SLICE_OUT, sizeof sl->next);
    for (int c = 0; c < 0x80; c++) {
        if (in_kind(kind, c)) sl->next[BETWEEN][c] = BETWEEN;
    }
    if (!kind_has_other_scripts(kind)) return;
    uint8_t *first = sl->next[BETWEEN];
    set_range(first, 0xc2, 0xdf, ONE);
    set_range(first, 0xe1, 0xee, TWO);
    first[0xe0] = E0;
    first[0xed] = ED;
    first[0xef] = EF;
    first[0xf0] = F0;
    set_range(first, 0xf1, 0xf3, THREE);
    first[0xf4] = F4;
    set_range(sl->next[ONE], 0x80, 0xbf, BETWEEN);
    set_range(sl->next[TWO], 0x80, 0xbf, ONE);
    set_range(sl->next[THREE], 0x80, 0xbf, TWO);
    set_range(sl->next[E0], 0xa0, 0xbf, ONE);
    set_range(sl->next[ED], 0x80, 0x9f, ONE); /* no surrogates */
    set_range(sl->next[EF], 0x80, 0xbf, ONE);
    sl->next[EF][0xbd] = BAR;
    set_range(sl->next[BAR], 0x80, 0xbf, BETWEEN);
    sl->next[BAR][0x9c] = SLICE_OUT;
    set_range(sl->next[F0], 0x90, 0xbf, TWO);
    set_range(sl->next[F4], 0x80, 0x8f, TWO);
}

/* Characters of a token of the slice, 0 when it is not in it. */
static int32_t slice_chars(const slice *sl, const entry *e) {
    int32_t n = 0;
    uint8_t state = 0;
    for (uint32_t i = 0; i < e->size; i++) {
        state = sl->next[state][(unsigned char)e->bytes[i]];
        if (state == SLICE_OUT) return 0;
        n += state == 0;
    }
    return state == 0 ? n : 0;
}

static void set_bit(uint32_t *words, int32_t id) { words[id / 32] |= UINT32_C(1) << (id % 32); }

typedef struct counted {
    int32_t chars, id;
} counted;

static int by_chars(const void *a, const void *b) {
    const counted *x = a, *y = b;
    if (x->chars != y->chars) return x->chars < y->chars ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static bool slice_all(slice *sl, const counted *tokens, int32_t n, size_t n_words) {
    sl->all = calloc(n_words, sizeof *sl->all);
    for (int32_t i = 0; i < n && sl->all; i++) set_bit(sl->all, tokens[i].id);
    return sl->all != NULL;
}

static bool slice_counts(slice *sl, counted *tokens, int32_t n, size_t n_words) {
    qsort(tokens, (size_t)n, sizeof *tokens, by_chars);
    sl->longer = malloc(((size_t)n + 1) * sizeof *sl->longer);
    sl->longer_chars = malloc(((size_t)n + 1) * sizeof *sl->longer_chars);
    if (!sl->longer || !sl->longer_chars) return false;
    int32_t at = 0;
    for (int k = 1; k <= SLICE_COUNTED; k++) {
        sl->up_to[k] = calloc(n_words, sizeof *sl->up_to[k]);
        if (!sl->up_to[k]) return false;
        if (k > 1) memcpy(sl->up_to[k], sl->up_to[k - 1], n_words * sizeof *sl->up_to[k]);
        for (; at < n && tokens[at].chars <= k; at++) set_bit(sl->up_to[k], tokens[at].id);
    }
    for (; at < n; at++) {
        sl->longer[sl->n_longer] = tokens[at].id;
        sl->longer_chars[sl->n_longer++] = tokens[at].chars;
    }
    return true;
}

/* ---- Tries ---- */

/* Bytes that an entry shares with the one before it. */
static uint32_t shared(const entry *entries, size_t i) {
    if (i == 0) return 0;
    const entry *x = &entries[i - 1], *y = &entries[i];
    uint32_t n = 0;
    while (n < x->size && n < y->size && x->bytes[n] == y->bytes[n]) n++;
    return n;
}

/* kinds[d]: the slices of which the entry's bytes from d on are whole characters, a bit each. */
static void kinds_behind(const di_vocabulary *v, const entry *e, uint8_t *kinds) {
    kinds[e->size] = (1 << VOCABULARY_SLICES) - 1;
    for (uint32_t d = e->size; d-- > 0;) {
        uint8_t found = 0;
        for (int k = 0; k < VOCABULARY_SLICES; k++) {
            const slice *sl = &v->slices[k];
            uint8_t state = sl->next[0][(unsigned char)e->bytes[d]];
            uint32_t i = d + 1;
            while (state != 0 && state != SLICE_OUT && i < e->size) {
                state = sl->next[state][(unsigned char)e->bytes[i++]];
            }
            if (state == 0 && kinds[i] >> k & 1) found |= (uint8_t)(1 << k);
        }
        kinds[d] = found;
    }
}

/* From sorted entries. Tokens with the same bytes share a node and are chained by `twin`. */
static bool trie_build(const di_vocabulary *v, trie *t, const entry *entries, size_t n) {
    size_t n_nodes = 1;
    uint8_t kinds[VOCABULARY_MAX_TOKEN + 1];
    int32_t open[VOCABULARY_MAX_TOKEN + 1]; /* path to the last node */
    for (size_t i = 0; i < n; i++) n_nodes += entries[i].size - shared(entries, i);
    t->nodes = malloc(n_nodes * sizeof *t->nodes);
    t->tokens = malloc((n + 1) * sizeof *t->tokens);
    if (!t->nodes || !t->tokens) return false;
    int32_t depth = 0, n_tokens = 0;
    for (size_t i = 0; i < n; i++) {
        const entry *e = &entries[i];
        int32_t common = (int32_t)shared(entries, i), size = (int32_t)e->size;
        if (i > 0 && common == size && e->size == entries[i - 1].size) {
            v->twin[e->id] = t->tokens[n_tokens - 1];
            t->tokens[n_tokens - 1] = e->id;
            continue;
        }
        kinds_behind(v, e, kinds);
        while (depth > common) t->nodes[open[--depth]].end = t->n;
        for (int32_t d = 1; d <= common; d++) t->nodes[open[d - 1]].kinds &= kinds[d];
        for (; depth < size; depth++) {
            open[depth] = t->n;
            t->nodes[t->n++] = (trie_node){0, n_tokens, (uint16_t)(depth + 1),
                                           (uint8_t)e->bytes[depth], kinds[depth + 1]};
        }
        t->tokens[n_tokens++] = e->id;
    }
    while (depth > 0) t->nodes[open[--depth]].end = t->n;
    t->nodes[t->n] = (trie_node){.end = t->n, .first = n_tokens};
    return true;
}

/* ---- */

static bool slice_build(di_vocabulary *v, int kind, const entry *entries, size_t n) {
    slice *sl = &v->slices[kind];
    counted *in = malloc((n + 1) * sizeof *in);
    entry *out = malloc((n + 1) * sizeof *out);
    int32_t n_in = 0;
    size_t n_out = 0;
    bool ok = in && out;
    for (size_t i = 0; i < n && ok; i++) {
        int32_t chars = slice_chars(sl, &entries[i]);
        if (chars > 0) {
            in[n_in++] = (counted){chars, entries[i].id};
        } else {
            out[n_out++] = entries[i];
        }
    }
    ok = ok && slice_all(sl, in, n_in, v->n_words) &&
         (kind > 0 || slice_counts(sl, in, n_in, v->n_words)) &&
         trie_build(v, &sl->rest, out, n_out);
    free(in);
    free(out);
    return ok;
}

/* ---- */

static di_status no_memory(di_error *error) {
    return di_fail(error, DI_ERR_MEMORY,
                   "out of memory while preparing the vocabulary for grammars");
}

static di_status build(di_vocabulary *v, di_error *error) {
    entry *entries = malloc(((size_t)v->n_ids + 1) * sizeof *entries);
    v->twin = malloc(((size_t)v->n_ids + 1) * sizeof *v->twin);
    v->ordinary = calloc(v->n_words + 1, sizeof *v->ordinary);
    bool ok = entries && v->twin && v->ordinary;
    size_t n = 0;
    for (int32_t id = 0; id < v->n_ids && ok; id++) {
        size_t size;
        const char *bytes = vocabulary__bytes(v, id, &size);
        v->twin[id] = -1;
        if (!bytes) continue;
        set_bit(v->ordinary, id);
        entries[n++] = (entry){bytes, (uint32_t)size, id};
        if ((int32_t)size > v->longest) v->longest = (int32_t)size;
    }
    if (ok) qsort(entries, n, sizeof *entries, by_bytes);
    for (int kind = 0; kind < VOCABULARY_SLICES; kind++) slice_automaton(&v->slices[kind], kind);
    ok = ok && trie_build(v, &v->all, entries, n);
    for (int32_t id = 0; id < v->n_ids && ok; id++) v->has_twins |= v->twin[id] >= 0;
    for (int kind = 0; kind < VOCABULARY_SLICES && ok; kind++) {
        ok = slice_build(v, kind, entries, n);
    }
    free(entries);
    return ok ? DI_OK : no_memory(error);
}

di_status di_vocabulary_create(const di_tokenizer *tokenizer, int32_t n_ids, const int32_t *end_ids,
                               size_t n_end, di_vocabulary **out, di_error *error) {
    int32_t size = di_tokenizer_size(tokenizer);
    *out = NULL;
    if (n_ids == 0) n_ids = size;
    if (n_ids < size) {
        return di_fail(error, DI_ERR_INVALID, "a mask of %d ids is too short for a tokenizer of %d",
                       n_ids, size);
    }
    for (size_t i = 0; i < n_end; i++) {
        if (end_ids[i] < 0 || end_ids[i] >= n_ids) {
            return di_fail(error, DI_ERR_INVALID, "the end token %d is not below %d", end_ids[i],
                           n_ids);
        }
    }
    di_vocabulary *v = calloc(1, sizeof *v);
    if (!v) return no_memory(error);
    v->tokenizer = tokenizer;
    v->n_ids = n_ids;
    v->n_words = ((size_t)n_ids + 31) / 32;
    v->end_ids = malloc((n_end + 1) * sizeof *v->end_ids);
    di_status status = v->end_ids ? DI_OK : no_memory(error);
    if (status == DI_OK) {
        if (n_end) memcpy(v->end_ids, end_ids, n_end * sizeof *end_ids);
        v->n_end = n_end;
        status = build(v, error);
    }
    if (status != DI_OK) {
        di_vocabulary_destroy(v);
        return status;
    }
    *out = v;
    return DI_OK;
}

static void trie_free(trie *t) {
    free(t->nodes);
    free(t->tokens);
}

void di_vocabulary_destroy(di_vocabulary *v) {
    if (!v) return;
    for (int i = 0; i < VOCABULARY_SLICES; i++) {
        slice *sl = &v->slices[i];
        free(sl->all);
        for (int k = 0; k <= SLICE_COUNTED; k++) free(sl->up_to[k]);
        free(sl->longer);
        free(sl->longer_chars);
        trie_free(&sl->rest);
    }
    trie_free(&v->all);
    free(v->twin);
    free(v->ordinary);
    free(v->end_ids);
    free(v);
}
