/* ctest: slow */
/* Random answers under random schemas: whatever is sampled through the masks, at temperature 2 and
 * from random logits, and ends, is valid; what was cut is a beginning; at least half end. Then every
 * valid answer is changed a little, and grammar and validator must say the same of the result.
 *
 * The validator is ajv (npm), by judge.mjs: grammar_campaign.sh fetches it. The number of answers is
 * $DI_GRAMMAR_ANSWERS (1,000). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/grammar_schemas.h"
#include "support/grammar_support.h"
#include "support/temp.h"

enum { ANSWERS_PER_SCHEMA = 8, MAX_TOKENS = 300, CHANGES = 3 };

typedef struct campaign {
    FILE *file;
    int n_schemas, n_refused, n_answers, n_ended;
} campaign;

/* ---- Changing a value ---- */

/* The k-th value of a tree in preorder; *k counts down. */
static di_json *nth(di_json *v, uint32_t *k) {
    if ((*k)-- == 0) return v;
    for (di_json *c = v->first; c;) {
        di_json *found = nth(c, k);
        if (found) return found;
        const di_json *next = c->next;
        c = next ? c->next : NULL;
    }
    return NULL;
}

static uint32_t count(const di_json *v) {
    uint32_t n = 1;
    for (const di_json *c = v->first; c; c = c->next) n += count(c);
    return n;
}

static di_json *copy(di_arena *arena, const di_json *from) {
    di_json *to = di_arena_alloc(arena, sizeof *to), *head = NULL, **last = &head;
    assert_non_null(to);
    *to = *from;
    to->next = NULL;
    for (const di_json *k = from->first; k; k = k->next) {
        *last = copy(arena, k);
        last = &(*last)->next;
    }
    to->first = head;
    return to;
}

/* Another value in place of one, which keeps its key and place. */
static void replace(di_arena *arena, di_json *v, const char *text) {
    const di_json *other;
    di_error error;
    assert_int_equal(di_json_parse(text, strlen(text), "value", arena, &other, &error), DI_OK);
    di_json *copied = copy(arena, other);
    v->type = copied->type;
    v->text = copied->text;
    v->length = copied->length;
    v->first = copied->first;
}

static void change(di_arena *arena, di_json *root, uint64_t *state) {
    static const char *const others[] = {"null", "true",  "0",  "7",  "-151",    "2.5",
                                         "\"\"", "\"a\"", "[]", "{}", "\"red\"", "[1]"};
    uint32_t k = grammar_random(state, count(root));
    di_json *v = nth(root, &k);
    switch (grammar_random(state, 4)) {
    case 0: /* one child fewer */
        if (v->first) {
            v->first = v->first->next;
            v->length--;
            break;
        }
        /* fall through */
    case 1: /* a string one character longer, a number with another digit */
        if (v->type == DI_JSON_STRING) {
            char *longer = di_arena_alloc(arena, v->length + 4);
            assert_non_null(longer);
            memcpy(longer, v->text, v->length);
            memcpy(longer + v->length, "\xc3\xa9", 3);
            v->text = longer;
            v->length += 2;
            break;
        }
        /* fall through */
    default: replace(arena, v, others[grammar_random(state, 12)]); break;
    }
}

/* Numbers with exponents, and more digits than the grammar writes, are valid but never written. */
static bool is_comparable(const di_json *v) {
    if (v->type == DI_JSON_NUMBER) {
        return v->length <= 14 && !strchr(v->text, 'e') && !strchr(v->text, 'E');
    }
    for (const di_json *c = v->first; c; c = c->next) {
        if (!is_comparable(c)) return false;
    }
    return true;
}

/* {"text": ..., "taken": ...}, the changed value and what the grammar says. */
static void write_changes(campaign *c, di_grammar *grammar, const di_buffer *text, uint64_t seed) {
    di_buffer line = DI_BUFFER_EMPTY, changed = DI_BUFFER_EMPTY;
    for (int i = 0, n = 0; i < CHANGES; i++) {
        di_arena arena = DI_ARENA_EMPTY;
        const di_json *value;
        di_error error;
        if (di_json_parse(text->data, text->size, "answer", &arena, &value, &error) == DI_OK) {
            di_json *root = copy(&arena, value);
            change(&arena, root, &seed);
            if (is_comparable(root)) {
                bool taken = grammar_accepts_value(grammar, root, 1000);
                di_buffer_clear(&changed);
                grammar_write_value(&changed, root);
                di_buffer_puts(&line, n++ ? ", {\"text\": " : "{\"text\": ");
                di_json_write_string(&line, changed.data, changed.size);
                di_buffer_puts(&line, taken ? ", \"taken\": true}" : ", \"taken\": false}");
            }
        }
        di_arena_free(&arena);
    }
    fprintf(c->file, "%s", line.data ? line.data : "");
    di_buffer_free(&line);
    di_buffer_free(&changed);
}

/* ---- */

static void check_cut(di_grammar *grammar, const di_buffer *text) {
    di_grammar_matcher *m = di_grammar_matcher_create(grammar, -1);
    di_error error;
    size_t taken;
    if (di_grammar_matcher_advance_bytes(m, text->data ? text->data : "", text->size, &taken,
                                         &error) != DI_OK) {
        fail_msg("a cut answer is no beginning: %s", error.message);
    }
    di_grammar_matcher_destroy(m);
}

static void answer(campaign *c, di_grammar *grammar, uint64_t seed, bool first) {
    di_buffer text = DI_BUFFER_EMPTY, quoted = DI_BUFFER_EMPTY;
    bool ended =
        grammar_sample(grammar, seed, 2.0, MAX_TOKENS, first && seed % 16 == 0 ? 40 : 0, &text);
    c->n_answers++;
    c->n_ended += ended;
    if (ended) {
        assert_true(grammar_accepts(grammar, text.data, text.size));
        di_json_write_string(&quoted, text.data, text.size);
        fprintf(c->file, "%s{\"text\": %s, \"changes\": [", first ? "" : ", ", quoted.data);
        write_changes(c, grammar, &text, seed);
        fprintf(c->file, "]}");
    } else {
        check_cut(grammar, &text);
        fprintf(c->file, "%snull", first ? "" : ", ");
    }
    di_buffer_free(&text);
    di_buffer_free(&quoted);
}

static void one_schema(campaign *c, uint64_t seed, int n) {
    di_buffer text = DI_BUFFER_EMPTY;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *schema;
    di_grammar *grammar;
    di_error error;
    grammar_random_schema(seed, &text);
    if (di_json_parse(text.data, text.size, "schema", &arena, &schema, &error) != DI_OK) {
        fail_msg("%s: %s", text.data, error.message);
    }
    c->n_schemas++;
    /* Blanks are few in what is compared: a temperature of 2 would write little else. */
    di_grammar_options options = di_grammar_options_defaults();
    options.space = seed % 4 ? DI_GRAMMAR_SPACE_PYTHON : DI_GRAMMAR_SPACE_FREE;
    if (di_grammar_compile_schema(grammar_vocabulary(), &options, schema, &grammar, &error) !=
        DI_OK) {
        c->n_refused++;
        if (getenv("DI_GRAMMAR_VERBOSE")) print_message("%s: %s\n", error.message, text.data);
    } else {
        fprintf(c->file, "{\"schema\": %s, \"answers\": [", text.data);
        for (int i = 0; i < n; i++) answer(c, grammar, seed * 1000 + (uint64_t)i, i == 0);
        fprintf(c->file, "]}\n");
        di_grammar_release(grammar);
    }
    di_buffer_free(&text);
    di_arena_free(&arena);
}

static void test_answers_are_valid(void **state) {
    (void)state;
    const char *wanted = getenv("DI_GRAMMAR_ANSWERS"), *judge = getenv("DI_GRAMMAR_JUDGE");
    const char *first = getenv("DI_GRAMMAR_SEED");
    int n = wanted ? atoi(wanted) : 1000;
    if (!judge) skip();
    char *path = temp_printf("%s/answers.jsonl", temp_root);
    campaign c = {.file = fopen(path, "w")};
    assert_non_null(c.file);
    for (uint64_t seed = first ? (uint64_t)atoll(first) : 1; c.n_answers < n; seed++) {
        one_schema(&c, seed, ANSWERS_PER_SCHEMA);
    }
    assert_int_equal(fclose(c.file), 0);
    print_message("%d schemas (%d refused), %d answers, %d ended\n", c.n_schemas, c.n_refused,
                  c.n_answers, c.n_ended);
    char *command = temp_printf("%s '%s'", judge, path);
    assert_int_equal(system(command), 0);
    assert_true(c.n_ended * 2 >= c.n_answers);
    assert_true(c.n_refused * 4 < c.n_schemas);
    free(command);
    free(path);
    grammar_vocabulary_free();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers_are_valid)};
    return cmocka_run_group_tests(tests, temp_root_create, temp_root_destroy);
}
