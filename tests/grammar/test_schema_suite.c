/* ctest: slow */
/* The public JSON Schema test suite (npm json-schema-test-suite, draft 4, the newest that npm has):
 * for every schema that compiles, the grammar takes exactly the valid values. A schema that is refused
 * must be one of those listed here. schema_suite.sh fetches the suite. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/grammar_support.h"

/* FILE / DESCRIPTION of what is refused, and a word of the reason. */
static const struct {
    const char *file, *description, *reason;
} refused[] = {
    {"definitions.json", "valid definition", "inside the document"},
    {"definitions.json", "invalid definition", "inside the document"},
    {"maximum.json", "exclusiveMaximum validation", "must be a number"}, /* draft 4: a boolean */
    {"minimum.json", "exclusiveMinimum validation", "must be a number"},
    {"optional/bignum.json", "float comparison with high precision", "must be a number"},
    {"optional/bignum.json", "float comparison with high precision on negative numbers",
     "must be a number"},
    {"ref.json", "escaped pointer ref", "not supported"}, /* the parts stand under unknown words */
    {"ref.json", "remote ref, containing refs itself", "inside the document"},
    {"refRemote.json", "remote ref", "inside the document"},
    {"refRemote.json", "fragment within remote ref", "inside the document"},
    {"refRemote.json", "ref within remote ref", "inside the document"},
    {"refRemote.json", "change resolution scope", "not supported"},
    {"uniqueItems.json", "uniqueItems validation", "uniqueItems"},
};

/* Values on which we differ, and why. */
static const struct {
    const char *file, *description;
} different[] = {
    /* "//host/path" is a reference, no URI, in every later draft. */
    {"optional/format.json", "a valid protocol-relative URI"},
    /* 1.0 is an integer from draft 6 on. */
    {"optional/zeroTerminatedFloats.json",
     "a float is not an integer even without fractional part"},
};

static int n_tests, n_refused, n_different;

static const char *text_of(const di_json *object, const char *key) {
    return di_json_get(object, key)->text;
}

static bool may_be_refused(const char *file, const char *description, const char *message) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (!strcmp(refused[i].file, file) && !strcmp(refused[i].description, description)) {
            return strstr(message, refused[i].reason) != NULL;
        }
    }
    return false;
}

static bool may_differ(const char *file, const char *description) {
    for (size_t i = 0; i < sizeof different / sizeof *different; i++) {
        if (!strcmp(different[i].file, file) && !strcmp(different[i].description, description)) {
            return true;
        }
    }
    return false;
}

static int run_group(const char *file, const di_json *group) {
    const char *description = text_of(group, "description");
    di_grammar *grammar = NULL;
    di_error error;
    di_status status = di_grammar_compile_schema(grammar_vocabulary(), NULL,
                                                 di_json_get(group, "schema"), &grammar, &error);
    bool never = status == DI_ERR_INVALID && strstr(error.message, "no text satisfies");
    int n_failed = 0;
    if (status != DI_OK && !never) {
        n_refused++;
        if (may_be_refused(file, description, error.message)) return 0;
        print_error("%s / %s: refused: %s\n", file, description, error.message);
        return 1;
    }
    for (const di_json *k = di_json_get(group, "tests")->first; k; k = k->next) {
        bool valid = di_json_get(k, "valid")->type == DI_JSON_TRUE;
        bool taken = !never && grammar_accepts_value(grammar, di_json_get(k, "data"), 5000);
        n_tests++;
        if (taken == valid) continue;
        if (may_differ(file, text_of(k, "description"))) {
            n_different++;
            continue;
        }
        print_error("%s / %s / %s: the suite says %d, the grammar %d\n", file, description,
                    text_of(k, "description"), valid, taken);
        n_failed++;
    }
    di_grammar_release(grammar);
    return n_failed;
}

static int run_file(const char *root, const char *name) {
    char path[4096], *text;
    uint64_t size;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *groups = NULL;
    di_error error;
    int n_failed = 0;
    snprintf(path, sizeof path, "%s/%s", root, name);
    if (di_file_read(path, 1 << 24, &text, &size, &error) != DI_OK ||
        di_json_parse(text, (size_t)size, name, &arena, &groups, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    for (const di_json *k = groups->first; k; k = k->next) n_failed += run_group(name, k);
    free(text);
    di_arena_free(&arena);
    return n_failed;
}

static int run_folder(const char *root, const char *inner) {
    char path[4096], name[512];
    int n_failed = 0;
    snprintf(path, sizeof path, "%s/%s", root, inner);
    DIR *folder = opendir(path);
    if (!folder) fail_msg("%s cannot be read", path);
    for (const struct dirent *entry; (entry = readdir(folder));) {
        size_t n = strlen(entry->d_name);
        if (n < 5 || strcmp(entry->d_name + n - 5, ".json") != 0) continue;
        snprintf(name, sizeof name, "%s%s", inner, entry->d_name);
        n_failed += run_file(root, name);
    }
    closedir(folder);
    return n_failed;
}

static void test_the_suite_agrees(void **state) {
    (void)state;
    const char *root = getenv("DI_SCHEMA_SUITE");
    if (!root) skip();
    int n_failed = run_folder(root, "") + run_folder(root, "optional/");
    print_message("%d values, %d schemas refused, %d known differences\n", n_tests, n_refused,
                  n_different);
    assert_int_equal(n_failed, 0);
    assert_true(n_tests > 200);
    assert_int_equal(n_refused, sizeof refused / sizeof *refused);
    grammar_vocabulary_free();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_suite_agrees)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
