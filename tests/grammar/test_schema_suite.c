/* ctest: slow */
/* The public JSON Schema test suite, of drafts 4 to 2020-12: for every schema that compiles, the grammar
 * takes exactly the valid values. A schema that is refused must be refused for what is listed here, and as
 * many as are counted. Everything is read as 2020-12. schema_suite.sh fetches the suite: draft 4 from npm,
 * the others from a package of Debian. */
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

/* Files with schemas that are refused, and a word of the reason. */
static const struct {
    const char *file, *reason;
} refused[] = {
    {"anchor.json", "inside the document"},
    {"contains.json", "/contains: this keyword"},
    {"definitions.json", "inside the document"}, /* the draft's own schema */
    {"defs.json", "inside the document"},
    {"dependencies.json", "minProperties"},
    {"dependentSchemas.json", "minProperties"},
    {"dynamicRef.json", "inside the document"},
    {"dynamicRef.json", "$id below the root"},
    {"dynamicRef.json", "unevaluatedProperties"},
    {"format.json", "this format"},
    {"id.json", "inside the document"},
    {"maxContains.json", "/contains: this keyword"},
    {"maximum.json", "must be a number"}, /* draft 4: exclusiveMaximum is a boolean */
    {"minContains.json", "/contains: this keyword"},
    {"minimum.json", "must be a number"},
    {"multipleOf.json", "up to 5000"},
    {"not.json", "unevaluatedProperties"},
    {"optional/bignum.json", "must be a number"},
    {"optional/cross-draft.json", "inside the document"},
    {"optional/dependencies-compatibility.json", "minProperties"},
    {"optional/ecmascript-regex.json", "Unicode properties"},
    {"optional/ecmascript-regex.json", "inside the document"},
    {"optional/format/regex.json", "this format"},
    {"optional/format/relative-json-pointer.json", "this format"},
    {"optional/format/unknown.json", "this format"},
    {"optional/format/uri-template.json", "this format"},
    {"optional/refOfUnknownKeyword.json", "unknown-keyword: this keyword"},
    {"recursiveRef.json", "$id below the root"},
    {"ref.json", "inside the document"},
    {"ref.json", "$id below the root"},
    {"ref.json", "not supported"}, /* draft 4: the parts stand under unknown words */
    {"ref.json", "leads nowhere"}, /* drafts 6 and 7: "#name" in an $id */
    {"refRemote.json", "inside the document"},
    {"refRemote.json", "$id below the root"},
    {"refRemote.json", "/id: this keyword"}, /* draft 4's word for $id */
    {"unevaluatedItems.json", "unevaluatedItems"},
    {"unevaluatedItems.json", "/contains: this keyword"},
    {"unevaluatedProperties.json", "unevaluatedProperties"},
    {"uniqueItems.json", "uniqueItems"},
    {"unknownKeyword.json", "this keyword"},
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
    /* Multiples are written without an exponent. */
    {"optional/float-overflow.json", "valid if optional overflow handling is implemented"},
    /* Beside $ref other words count from 2019-09 on. */
    {"ref.json", "ref valid, maxItems ignored"},
    /* A remote schema of schemas takes a word its meaning. */
    {"vocabulary.json", "no validation: invalid number, but it still validates"},
    /* What a string contains says nothing from 2019-09 on. */
    {"optional/content.json", "an invalid JSON document"},
    {"optional/content.json", "an invalid base64 string (% is not a valid character)"},
    {"optional/content.json", "a validly-encoded invalid JSON document"},
    {"optional/content.json", "an invalid base64 string that is valid JSON"},
};

/* Formats that take less than their RFC: a valid string may be refused, an invalid one is not taken. */
static const char *const narrow[] = {"date-time",    "time", "email", "idn-email",    "ipv6",
                                     "idn-hostname", "uri",  "iri",   "iri-reference"};

static int n_tests, n_refused, n_different;

static const char *text_of(const di_json *object, const char *key) {
    return di_json_get(object, key)->text;
}

static bool may_be_refused(const char *file, const char *message) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (!strcmp(refused[i].file, file) && strstr(message, refused[i].reason)) return true;
    }
    return false;
}

static bool may_differ(const char *file, const char *description, bool valid) {
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow && valid; i++) {
        char name[64];
        snprintf(name, sizeof name, "optional/format/%s.json", narrow[i]);
        if (strcmp(file, name) == 0) return true;
    }
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
        if (may_be_refused(file, error.message)) return 0;
        print_error("%s / %s: refused: %s\n", file, description, error.message);
        return 1;
    }
    for (const di_json *k = di_json_get(group, "tests")->first; k; k = k->next) {
        bool valid = di_json_get(k, "valid")->type == DI_JSON_TRUE;
        bool taken = !never && grammar_accepts_value(grammar, di_json_get(k, "data"), 5000);
        n_tests++;
        if (taken == valid) continue;
        if (may_differ(file, text_of(k, "description"), valid)) {
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
    if (!folder && strcmp(inner, "optional/format/") == 0)
        return 0; /* draft 4 has a file instead */
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

/* How many there are is counted, so that nothing is refused or lost unseen. */
static void run_draft(const char *root, int tests, int refusals, int differences) {
    n_tests = n_refused = n_different = 0;
    int n_failed =
        run_folder(root, "") + run_folder(root, "optional/") + run_folder(root, "optional/format/");
    print_message("%d values, %d schemas refused, %d known differences\n", n_tests, n_refused,
                  n_different);
    assert_int_equal(n_failed, 0);
    assert_int_equal(n_tests, tests);
    assert_int_equal(n_refused, refusals);
    assert_int_equal(n_different, differences);
    grammar_vocabulary_free();
}

static void test_draft_4(void **state) {
    (void)state;
    const char *root = getenv("DI_SCHEMA_SUITE");
    if (!root) skip();
    run_draft(root, 258, 13, 2);
}

static void run_later_draft(const char *draft, int tests, int refusals, int differences) {
    const char *root = getenv("DI_SCHEMA_DRAFTS");
    char path[4096];
    if (!root) skip();
    snprintf(path, sizeof path, "%s/%s", root, draft);
    run_draft(path, tests, refusals, differences);
}

static void test_draft_6(void **state) {
    (void)state;
    run_later_draft("draft6", 934, 39, 10);
}

static void test_draft_7(void **state) {
    (void)state;
    run_later_draft("draft7", 1187, 49, 47);
}

static void test_draft_2019(void **state) {
    (void)state;
    run_later_draft("draft2019-09", 1389, 110, 43);
}

static void test_draft_2020(void **state) {
    (void)state;
    run_later_draft("draft2020-12", 1391, 118, 48);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draft_4),    cmocka_unit_test(test_draft_6),
        cmocka_unit_test(test_draft_7),    cmocka_unit_test(test_draft_2019),
        cmocka_unit_test(test_draft_2020),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
