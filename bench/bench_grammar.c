/* Cost of structured output on one core: bench_grammar [TOKENIZER_JSON [ANSWERS]]
 *
 * For each of a set of grammars: the time to compile it, then ANSWERS (10) random answers of at most
 * 300 tokens, the first under a grammar that has seen nothing yet, and the time of every mask. The last
 * line is over all masks. Times are of the processor, so that other programs do not count. Default:
 * the release's tokenizer where tests/text/released_tokenizer.sh has made it, with its 129,280
 * entries, otherwise the demo model's.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "grammar/grammar.h"

enum { MAX_TIMES = 400000, MAX_TOKENS = 300 };

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

typedef struct times {
    double us[MAX_TIMES];
    int n;
} times;

static times all, one;

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at(const times *t, double quantile) { return t->us[(int)(quantile * (t->n - 1))]; }

static void report(const char *name, double compile_us, times *t) {
    if (t->n == 0) return;
    qsort(t->us, (size_t)t->n, sizeof *t->us, compare);
    printf("%-14s compile %8.0f us; %6d masks: median %7.2f, p90 %7.2f, p99 %7.2f, max %8.1f us\n",
           name, compile_us, t->n, at(t, 0.5), at(t, 0.9), at(t, 0.99), at(t, 1));
}

static void add_time(double us) {
    if (one.n < MAX_TIMES) one.us[one.n++] = us;
    if (all.n < MAX_TIMES) all.us[all.n++] = us;
}

/* ---- Grammars ---- */

typedef enum kind { SCHEMA, OBJECT, REGEX, EBNF, TOOLS } kind;

static const struct {
    const char *name;
    kind kind;
    const char *text; /* NULL: made below */
} grammars[] = {
    {"person", SCHEMA,
     "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"age\": {\"type\": "
     "\"integer\", \"minimum\": 0, \"maximum\": 150}, \"tags\": {\"type\": \"array\", \"items\": "
     "{\"type\": \"string\"}}, \"email\": {\"type\": \"string\", \"format\": \"email\"}}, "
     "\"required\": [\"name\", \"age\"], \"additionalProperties\": false}"},
    {"bounded", SCHEMA,
     "{\"type\": \"object\", \"properties\": {\"title\": {\"type\": \"string\", \"minLength\": 3, "
     "\"maxLength\": 40}, \"code\": {\"type\": \"string\", \"pattern\": \"^[A-Z]{3}-[0-9]{4}$\"}, "
     "\"when\": {\"type\": \"string\", \"format\": \"date-time\"}, \"score\": {\"type\": \"number\", "
     "\"minimum\": 0, \"maximum\": 1}}, \"required\": [\"title\", \"code\", \"when\", \"score\"], "
     "\"additionalProperties\": false}"},
    {"tree", SCHEMA,
     "{\"$defs\": {\"node\": {\"type\": \"object\", \"properties\": {\"value\": {\"type\": "
     "[\"string\", \"number\", \"null\"]}, \"left\": {\"$ref\": \"#/$defs/node\"}, \"right\": "
     "{\"$ref\": \"#/$defs/node\"}}, \"required\": [\"value\"], \"additionalProperties\": false}}, "
     "\"$ref\": \"#/$defs/node\"}"},
    {"open", SCHEMA,
     "{\"type\": \"object\", \"properties\": {\"kind\": {\"enum\": [\"a\", \"b\", \"c\"]}, \"note\": "
     "{\"type\": \"string\"}}, \"required\": [\"kind\"], \"additionalProperties\": {\"anyOf\": "
     "[{\"type\": \"string\"}, {\"type\": \"number\"}, {\"type\": \"array\"}]}}"},
    {"10 kB", SCHEMA, NULL},
    {"json_object", OBJECT, NULL},
    {"regex", REGEX, "[A-Z][a-z]+( [a-z]+){3,20}\\.( [A-Z][a-z ,]*\\.)*"},
    {"ebnf", EBNF,
     "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\nterm ::= ident | num | "
     "\"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ "
     "\\t\\n]{0,20}\n"},
    {"tools", TOOLS,
     "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"strict\": true, "
     "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, "
     "\"unit\": {\"enum\": [\"C\", \"F\"]}, \"days\": {\"type\": \"integer\", \"minimum\": 1, "
     "\"maximum\": 14}}, \"required\": [\"city\"]}}}, {\"name\": \"search\", \"parameters\": "
     "{\"type\": \"object\"}}]"},
};

/* A schema of about 10 kB: an order with thirty kinds of positions. */
static void big_schema(di_buffer *out) {
    di_buffer_puts(out, "{\"type\": \"object\", \"properties\": {\"id\": {\"type\": \"string\", "
                        "\"format\": \"uuid\"}, \"positions\": {\"type\": \"array\", \"items\": "
                        "{\"anyOf\": [");
    for (int i = 0; out->size < 10000; i++) {
        di_buffer_printf(
            out,
            "%s{\"type\": \"object\", \"properties\": {\"kind\": {\"const\": \"kind_%d\"}, "
            "\"name_%d\": {\"type\": \"string\", \"maxLength\": %d}, \"amount\": {\"type\": "
            "\"number\", \"minimum\": 0, \"exclusiveMaximum\": %d}, \"unit\": {\"enum\": [\"kg\", "
            "\"m\", \"piece %d\"]}, \"optional\": {\"type\": [\"boolean\", \"null\"]}}, "
            "\"required\": [\"kind\", \"name_%d\", \"amount\"], \"additionalProperties\": false}",
            i ? ", " : "", i, i, 20 + i, 100 * (i + 1), i, i);
    }
    di_buffer_puts(out, "]}}}, \"required\": [\"id\", \"positions\"], \"additionalProperties\": "
                        "false}");
}

static di_status compile(const di_vocabulary *v, int i, const char *text, di_grammar **out,
                         double *us, di_error *error) {
    size_t size = text ? strlen(text) : 0;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *json = NULL;
    bool is_json = grammars[i].kind == SCHEMA || grammars[i].kind == TOOLS;
    if (is_json && di_json_parse(text, size, "schema", &arena, &json, error) != DI_OK) {
        return DI_ERR_INVALID;
    }
    double start = now_us();
    di_status status = DI_OK;
    di_grammar_tools tools = {.tools = json, .choice = DI_GRAMMAR_TOOLS_REQUIRED};
    switch (grammars[i].kind) {
    case SCHEMA: status = di_grammar_compile_schema(v, NULL, json, out, error); break;
    case OBJECT: status = di_grammar_compile_json_object(v, NULL, out, error); break;
    case REGEX: status = di_grammar_compile_regex(v, text, size, out, error); break;
    case EBNF: status = di_grammar_compile_ebnf(v, text, size, out, error); break;
    case TOOLS: status = di_grammar_compile_tools(v, NULL, &tools, out, error); break;
    }
    *us = now_us() - start;
    di_arena_free(&arena);
    return status;
}

/* ---- Answers ---- */

static uint64_t random_next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* A random allowed id, with the end token as likely as all others together. */
static int32_t draw(const uint32_t *words, size_t n_words, int32_t end, uint64_t *state) {
    uint64_t n = 0, k;
    if ((words[end / 32] >> (end % 32) & 1) && random_next(state) % 2) return end;
    for (size_t i = 0; i < n_words; i++) n += (uint64_t)__builtin_popcount(words[i]);
    if (n == 0) return -1;
    k = random_next(state) % n;
    for (size_t i = 0; i < n_words; i++) {
        uint32_t word = words[i], count = (uint32_t)__builtin_popcount(word);
        if (k >= count) {
            k -= count;
            continue;
        }
        for (; k > 0; k--) word &= word - 1;
        return (int32_t)(i * 32) + __builtin_ctz(word);
    }
    return -1;
}

static bool answer(const di_vocabulary *v, di_grammar *g, int32_t end, uint64_t seed,
                   uint32_t *words, di_error *error) {
    di_grammar_matcher *m = di_grammar_matcher_create(g, -1);
    bool ok = m != NULL;
    for (int i = 0; ok && i < MAX_TOKENS && !di_grammar_matcher_ended(m); i++) {
        double start = now_us();
        ok = di_grammar_matcher_mask(m, words, error) == DI_OK;
        add_time(now_us() - start);
        int32_t id = draw(words, di_vocabulary_words(v), end, &seed);
        ok = ok && id >= 0 && di_grammar_matcher_advance(m, id, error) == DI_OK;
    }
    di_grammar_matcher_destroy(m);
    return ok;
}

static int bench(const di_vocabulary *v, int i, int32_t end, int n_answers, uint32_t *words) {
    di_buffer made = DI_BUFFER_EMPTY;
    di_grammar *g = NULL;
    di_error error = {0};
    double us = 0, best = 1e18;
    if (!grammars[i].text && grammars[i].kind == SCHEMA) big_schema(&made);
    const char *text = made.data ? made.data : grammars[i].text;
    bool ok = true;
    for (int k = 0; k < 5 && ok; k++) {
        di_grammar_release(g);
        ok = compile(v, i, text, &g, &us, &error) == DI_OK;
        if (us < best) best = us;
    }
    one.n = 0;
    for (int k = 0; k < n_answers && ok; k++) {
        ok = answer(v, g, end, 0x9e3779b97f4a7c15u + (uint64_t)k * 77, words, &error);
    }
    if (ok) {
        report(grammars[i].name, best, &one);
    } else {
        fprintf(stderr, "%s: %s\n", grammars[i].name, error.message);
    }
    di_grammar_release(g);
    di_buffer_free(&made);
    return !ok;
}

int main(int argc, char **argv) {
    const char *released = "build/released-tokenizer/tokenizer.json";
    const char *path = argc > 1                      ? argv[1]
                       : access(released, R_OK) == 0 ? released
                                                     : "models/demo/tokenizer.json";
    int n_answers = argc > 2 ? atoi(argv[2]) : 10, failed = 0;
    di_tokenizer *tokenizer;
    di_vocabulary *v;
    di_error error;
    if (di_tokenizer_load(path, &tokenizer, &error) != DI_OK) {
        fprintf(stderr, "bench_grammar: %s\n", error.message);
        return 1;
    }
    int32_t end = di_tokenizer_added_id(tokenizer, "<｜end▁of▁sentence｜>");
    if (end < 0) end = 0;
    double start = now_us();
    if (di_vocabulary_create(tokenizer, 0, &end, 1, &v, &error) != DI_OK) {
        fprintf(stderr, "bench_grammar: %s\n", error.message);
        return 1;
    }
    printf("%s: %d ids, vocabulary made in %.0f ms\n", path, di_vocabulary_size(v),
           (now_us() - start) / 1000);
    uint32_t *words = calloc(di_vocabulary_words(v), sizeof *words);
    for (size_t i = 0; words && i < sizeof grammars / sizeof *grammars; i++) {
        failed |= bench(v, (int)i, end, n_answers, words);
    }
    report("all", 0, &all);
    free(words);
    di_vocabulary_destroy(v);
    di_tokenizer_destroy(tokenizer);
    return failed || !words;
}
