/* tokenize, with the demo tokenizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/program.h"

static void prints(const char *command, const char *input, const char *want) {
    const program_result *r = program_run(command, input);
    if (r->code != 0 || strcmp(r->out, want) != 0 || *r->error) {
        fail_msg("deepinfer %s\n  gave %d, '%s', %s", command, r->code, r->out, r->error);
    }
}

static void test_encode(void **state) {
    (void)state;
    prints("tokenize models/demo 'Hello, world 12'", NULL, "42 579 81 14 1154 223 19 20\n");
    prints("tokenize models/demo/tokenizer.json 'Hello, world 12'", NULL,
           "42 579 81 14 1154 223 19 20\n");
    prints("tokenize models/demo", "12\n", "19 20 201\n");
    prints("tokenize models/demo ''", NULL, "\n");
    prints("tokenize models/demo --json 'a é'", NULL,
           "{\"ids\": [67, 223, 130, 105], \"tokens\": [\"a\", \"Ġ\", \"Ã\", \"©\"]}\n");
}

static void test_added_tokens(void **state) {
    (void)state;
    prints("tokenize models/demo '<｜User｜>1'", NULL, "2546 19\n");
    const program_result *r =
        program_run("tokenize models/demo --no-match-added '<｜User｜>1'", NULL);
    assert_int_equal(r->code, 0);
    assert_null(strstr(r->out, "2546"));
}

static void test_decode(void **state) {
    (void)state;
    prints("tokenize models/demo --decode '42 579 81, 14'", NULL, "Hello,");
    prints("tokenize models/demo --decode -", "2546\n19\n", "<｜User｜>1");
    prints("tokenize models/demo --decode ''", NULL, "");
    prints("tokenize models/demo --decode --json '42 579 81'", NULL, "{\"text\": \"Hello\"}\n");
}

/* Any bytes come back, also those that are no text. */
static void test_round_trip(void **state) {
    (void)state;
    static const char bytes[] = "caf\xC3\xA9 \xF0\x9F\xA6\x8A\r\n\t  x\xFF\x80\xC3 \x01 end";
    const program_result *r = program_run("tokenize models/demo --no-match-added", bytes);
    assert_int_equal(r->code, 0);
    char *ids = strdup(r->out);
    r = program_run("tokenize models/demo --decode", ids);
    assert_int_equal(r->out_size, sizeof bytes - 1);
    assert_memory_equal(r->out, bytes, sizeof bytes - 1);
    free(ids);
}

static void test_refusals(void **state) {
    (void)state;
    program_refuses("tokenize models/demo --decode --match-added 5", NULL, 2,
                    "tokenize: --match-added means nothing with --decode; leave out one");
    program_refuses("tokenize models/demo --decode '1 two'", NULL, 1,
                    "tokenize: ids: line 1: 'two' is no token id");
    program_refuses("tokenize models/absent a", NULL, 1,
                    "tokenize: cannot open models/absent: No such file or directory");
    program_refuses("tokenize models/demo --temperature 1 a", NULL, 2,
                    "tokenize: --temperature is no option of 'tokenize'; 'deepinfer help tokenize' "
                    "lists its options");
    const program_result *r = program_run("tokenize models/demo --decode 99999", NULL);
    assert_int_equal(r->code, 1);
    assert_non_null(strstr(r->error, "99999"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),   cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_decode),   cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
