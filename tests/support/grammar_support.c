#include "support/grammar_support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static di_tokenizer *tokenizer;
static di_vocabulary *vocabulary;

const di_tokenizer *grammar_tokenizer(void) {
    di_error error;
    if (!tokenizer && di_tokenizer_load(DI_SOURCE_DIR "/models/demo/tokenizer.json", &tokenizer,
                                        &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    return tokenizer;
}

const di_vocabulary *grammar_vocabulary(void) {
    static const int32_t end = 1;
    di_error error;
    if (!vocabulary && di_vocabulary_create(grammar_tokenizer(), 0, &end, 1, &vocabulary, &error)) {
        fail_msg("%s", error.message);
    }
    return vocabulary;
}

void grammar_vocabulary_free(void) {
    di_vocabulary_destroy(vocabulary);
    di_tokenizer_destroy(tokenizer);
    vocabulary = NULL;
    tokenizer = NULL;
}

int grammar_vocabulary_done(void **state) {
    (void)state;
    grammar_vocabulary_free();
    return 0;
}

uint32_t grammar_random(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state ^ *state >> 29;
    return (uint32_t)((x * 0xbf58476d1ce4e5b9u) >> 33) % below;
}

static di_status compile(const char *text, const di_grammar_options *options, di_grammar **out,
                         di_error *error) {
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *json;
    di_status status = di_json_parse(text, strlen(text), "schema", &arena, &json, error);
    if (status != DI_OK) fail_msg("%s", error->message);
    status = di_grammar_compile_schema(grammar_vocabulary(), options, json, out, error);
    di_arena_free(&arena);
    return status;
}

di_grammar *grammar_of_schema(const char *schema, const di_grammar_options *options) {
    di_grammar *grammar;
    di_error error;
    if (compile(schema, options, &grammar, &error) != DI_OK) {
        fail_msg("%s: %.500s", error.message, schema);
    }
    return grammar;
}

const char *grammar_refusal(const char *schema) {
    static di_error error;
    di_grammar *grammar;
    if (compile(schema, NULL, &grammar, &error) == DI_OK) fail_msg("%s: was taken", schema);
    return error.message;
}

bool grammar_accepts(di_grammar *grammar, const char *text, size_t size) {
    di_grammar_matcher *m = di_grammar_matcher_create(grammar, -1);
    di_error error;
    size_t taken;
    assert_non_null(m);
    bool ok = di_grammar_matcher_advance_bytes(m, text, size, &taken, &error) == DI_OK &&
              di_grammar_matcher_accepting(m);
    di_grammar_matcher_destroy(m);
    return ok;
}

/* ---- Values in all orders ---- */

enum { MAX_OBJECTS = 64, MAX_MEMBERS = 6 };

typedef struct orders {
    di_grammar *grammar;
    di_json *root, *objects[MAX_OBJECTS];
    int n, left;
} orders;

static di_json *copy_tree(orders *o, di_arena *arena, const di_json *from) {
    di_json *to = di_arena_alloc(arena, sizeof *to);
    assert_non_null(to);
    *to = *from;
    di_json *head = NULL, **last = &head;
    for (const di_json *k = from->first; k; k = k->next) {
        di_json *child = copy_tree(o, arena, k);
        child->next = NULL;
        *last = child;
        last = &child->next;
    }
    to->first = head;
    bool permuted = to->type == DI_JSON_OBJECT && to->length > 1 && to->length <= MAX_MEMBERS;
    if (permuted && o->n < MAX_OBJECTS) o->objects[o->n++] = to;
    return to;
}

void grammar_write_value(di_buffer *out, const di_json *value) {
    int64_t integer;
    if (value->type == DI_JSON_NUMBER) {
        if (di_json_int64(value, &integer)) {
            di_buffer_printf(out, "%lld", (long long)integer);
        } else {
            di_buffer_append(out, value->text, value->length);
        }
    } else if (value->type == DI_JSON_ARRAY || value->type == DI_JSON_OBJECT) {
        bool object = value->type == DI_JSON_OBJECT;
        di_buffer_putc(out, object ? '{' : '[');
        for (const di_json *k = value->first; k; k = k->next) {
            if (k != value->first) di_buffer_puts(out, ", ");
            if (object) {
                di_json_write_string(out, k->key, k->key_length);
                di_buffer_puts(out, ": ");
            }
            grammar_write_value(out, k);
        }
        di_buffer_putc(out, object ? '}' : ']');
    } else {
        di_json_write(out, value);
    }
}

static bool try_from(orders *o, int i) {
    if (o->left <= 0) return false;
    if (i == o->n) {
        di_buffer text = DI_BUFFER_EMPTY;
        o->left--;
        grammar_write_value(&text, o->root);
        bool ok = grammar_accepts(o->grammar, text.data, text.size);
        di_buffer_free(&text);
        return ok;
    }
    /* All orders of one object's members, by rotating each in turn to the place being filled. */
    di_json *object = o->objects[i], *members[MAX_MEMBERS], *k = object->first;
    int n = (int)object->length, at[MAX_MEMBERS] = {0};
    for (int m = 0; m < n; m++, k = k->next) members[m] = k;
    for (int depth = 0;;) {
        for (int m = 0; m < n; m++) members[m]->next = m + 1 < n ? members[m + 1] : NULL;
        object->first = members[0];
        if (try_from(o, i + 1)) return true;
        /* Heap's algorithm, with its counters in `at`. */
        for (depth = 1; depth < n && at[depth] >= depth; depth++) at[depth] = 0;
        if (depth >= n) return false;
        int other = depth % 2 ? at[depth] : 0;
        di_json *swap = members[other];
        members[other] = members[depth];
        members[depth] = swap;
        at[depth]++;
    }
}

bool grammar_accepts_value(di_grammar *grammar, const di_json *value, int limit) {
    di_arena arena = DI_ARENA_EMPTY;
    orders o = {.grammar = grammar, .left = limit};
    o.root = copy_tree(&o, &arena, value);
    bool ok = try_from(&o, 0);
    di_arena_free(&arena);
    return ok;
}

/* ---- Random answers ---- */

void grammar_check_mask(di_grammar_matcher *m) {
    const di_vocabulary *v = grammar_vocabulary();
    uint32_t *words = calloc(di_vocabulary_words(v), sizeof *words);
    di_error error;
    assert_non_null(words);
    assert_int_equal(di_grammar_matcher_mask(m, words, &error), DI_OK);
    for (int32_t id = 0; id < di_vocabulary_size(v); id++) {
        bool allowed = words[id / 32] >> (id % 32) & 1;
        bool taken = di_grammar_matcher_advance(m, id, &error) == DI_OK;
        if (taken) assert_true(di_grammar_matcher_rollback(m, 1));
        if (allowed != taken) {
            fail_msg("token %d (%s): the mask says %d, the matcher %d", id,
                     di_tokenizer_spelling(grammar_tokenizer(), id), allowed, taken);
        }
    }
    free(words);
}

/* A normal random number from two uniform ones. */
static double normal(uint64_t *state) {
    double u = (grammar_random(state, 1u << 24) + 1.0) / ((1u << 24) + 1.0);
    double v = grammar_random(state, 1u << 24) / (double)(1u << 24);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Gumbel-max over the allowed ids: a draw from softmax(logits / temperature). */
static int32_t draw(const uint32_t *words, int32_t n_ids, double temperature, uint64_t *state) {
    int32_t best = -1;
    double highest = 0;
    for (int32_t id = 0; id < n_ids; id++) {
        if (!(words[id / 32] >> (id % 32) & 1)) continue;
        double u = (grammar_random(state, 1u << 24) + 0.5) / (1u << 24);
        double score = normal(state) / temperature - log(-log(u));
        if (best >= 0 && score <= highest) continue;
        best = id;
        highest = score;
    }
    return best;
}

bool grammar_sample(di_grammar *grammar, uint64_t seed, double temperature, int max_tokens,
                    int check_every, di_buffer *out) {
    const di_vocabulary *v = grammar_vocabulary();
    di_grammar_matcher *m = di_grammar_matcher_create(grammar, -1);
    uint32_t *words = calloc(di_vocabulary_words(v), sizeof *words);
    di_error error;
    assert_non_null(m);
    assert_non_null(words);
    for (int i = 0; i < max_tokens && !di_grammar_matcher_ended(m); i++) {
        if (check_every > 0 && i % check_every == 0) grammar_check_mask(m);
        if (di_grammar_matcher_mask(m, words, &error) != DI_OK) fail_msg("%s", error.message);
        int32_t id = draw(words, di_vocabulary_size(v), temperature, &seed);
        if (id < 0) fail_msg("nothing may follow %.*s", (int)out->size, out->data);
        if (di_grammar_matcher_advance(m, id, &error) != DI_OK) fail_msg("%s", error.message);
        size_t size;
        const char *bytes = di_tokenizer_bytes(grammar_tokenizer(), id, &size);
        if (!di_grammar_matcher_ended(m)) di_buffer_append(out, bytes, size);
    }
    bool ended = di_grammar_matcher_ended(m);
    free(words);
    di_grammar_matcher_destroy(m);
    return ended;
}
