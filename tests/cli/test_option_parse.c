/* The option table by itself, and the parser on it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* The files whole: the program is not a library. */
#include "cli/option_parse.c"
#include "cli/option_suggest.c"
#include "cli/option_table.c"

static const di_verb run_verb = {.id = DI_VERB_RUN,
                                 .name = "run",
                                 .arguments = "MODEL [PROMPT]",
                                 .min_args = 1,
                                 .max_args = 2};
static const di_verb help_verb = {.id = DI_VERB_HELP,
                                  .name = "help",
                                  .arguments = "[VERB]",
                                  .min_args = 0,
                                  .max_args = 1};

/* ---- The table ---- */

static bool is_number(const di_option *o) {
    return o->type == DI_TYPE_INT || o->type == DI_TYPE_REAL || o->type == DI_TYPE_SIZE;
}

static void test_rows_are_complete(void **state) {
    (void)state;
    for (int i = 0; i < DI_N_OPTIONS; i++) {
        const di_option *o = &di_options[i];
        assert_non_null(o->name);
        assert_true(strlen(o->name) < DI_OPTION_NAME);
        assert_true(strncmp(o->name, "no-", 3) != 0);
        assert_int_not_equal(o->verbs, 0);
        assert_non_null(o->help);
        assert_int_equal(o->help[strlen(o->help) - 1], '.');
        assert_true(di_option_has_value(o) == (o->value != NULL));
        assert_true((o->type == DI_TYPE_CHOICE) == (o->choices != NULL));
        assert_true(is_number(o) == (o->min < o->max));
        if (di_option_has_value(o)) assert_true(o->default_value || o->default_note);
        if (o->type == DI_TYPE_SWITCH) assert_non_null(o->default_value);
        int n_named = 0, n_found = 0;
        for (const char *c = o->conflicts; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL) {
            n_named++;
        }
        for (int j = 0; j < DI_N_OPTIONS; j++) {
            if (!in_choices(o->conflicts, di_options[j].name)) continue;
            n_found++; /* no contradiction without a verb that takes both */
            assert_true(j != i && (o->verbs & di_options[j].verbs) != 0);
        }
        assert_int_equal(n_found, n_named);
    }
}

static void test_defaults_are_in_range(void **state) {
    (void)state;
    for (int i = 0; i < DI_N_OPTIONS; i++) {
        if (!di_options[i].default_value) continue;
        di_value value = {0};
        if (!read_value(&di_options[i], di_options[i].default_value, &value)) {
            fail_msg("--%s: default %s", di_options[i].name, di_options[i].default_value);
        }
    }
}

static void test_names_are_unique_in_a_verb(void **state) {
    (void)state;
    for (int i = 0; i < DI_N_OPTIONS; i++) {
        for (int j = 0; j < i; j++) {
            const di_option *a = &di_options[i], *b = &di_options[j];
            if (!(a->verbs & b->verbs)) continue;
            assert_string_not_equal(a->name, b->name);
            if (a->letter) assert_int_not_equal(a->letter, b->letter);
        }
    }
}

/* A habit leads to an option that there is, and never hides one of ours. */
static void test_habits(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof habits / sizeof *habits; i++) {
        bool found = false;
        for (int j = 0; j < DI_N_OPTIONS; j++) {
            found |= strcmp(di_options[j].name, habits[i].ours) == 0;
            assert_string_not_equal(di_options[j].name, habits[i].theirs);
        }
        if (!found) fail_msg("--%s: there is no --%s", habits[i].theirs, habits[i].ours);
    }
}

/* ---- Parsing ---- */

static di_status parse(const di_verb *verb, int argc, const char *const *argv, di_args *args,
                       di_error *error) {
    return di_args_parse(verb, argc, (char *const *)(uintptr_t)argv, args, error);
}

static void test_values(void **state) {
    (void)state;
    static const char *const argv[] = {"model",
                                       "--threads",
                                       "3",
                                       "--temperature=0.5",
                                       "--presence-penalty",
                                       "-1.5",
                                       "--memory",
                                       "1.5G",
                                       "--seed",
                                       "18446744073709551615",
                                       "--numerics=float",
                                       "--no-thinking",
                                       "--json",
                                       "--stop",
                                       "a",
                                       "--stop=--",
                                       "--system",
                                       "",
                                       "-q",
                                       "--",
                                       "--not-an-option"};
    di_args args;
    di_error error;
    assert_int_equal(parse(&run_verb, 21, argv, &args, &error), DI_OK);
    assert_int_equal(di_args_int(&args, DI_OPT_THREADS), 3);
    assert_true(di_args_real(&args, DI_OPT_TEMPERATURE) == 0.5);
    assert_true(di_args_real(&args, DI_OPT_PRESENCE_PENALTY) == -1.5);
    assert_int_equal(di_args_unsigned(&args, DI_OPT_MEMORY), 1610612736);
    assert_true(di_args_unsigned(&args, DI_OPT_SEED) == UINT64_MAX);
    assert_string_equal(di_args_text(&args, DI_OPT_NUMERICS), "float");
    assert_false(di_args_flag(&args, DI_OPT_THINKING));
    assert_true(di_args_flag(&args, DI_OPT_JSON));
    assert_true(di_args_flag(&args, DI_OPT_QUIET));
    assert_string_equal(di_args_text(&args, DI_OPT_SYSTEM), "");
    int n;
    const char *const *stops = di_args_list(&args, DI_OPT_STOP, &n);
    assert_int_equal(n, 2);
    assert_string_equal(stops[0], "a");
    assert_string_equal(stops[1], "--");
    assert_int_equal(args.n_positional, 2);
    assert_string_equal(args.positional[1], "--not-an-option");
    di_args_free(&args);
}

static void test_defaults(void **state) {
    (void)state;
    static const char *const argv[] = {"model", "-"};
    di_args args;
    di_error error;
    assert_int_equal(parse(&run_verb, 2, argv, &args, &error), DI_OK);
    assert_string_equal(di_args_text(&args, DI_OPT_BACKEND), "auto");
    assert_int_equal(di_args_int(&args, DI_OPT_CHUNK), 256);
    assert_int_equal(di_args_unsigned(&args, DI_OPT_MEMORY), 0);
    assert_true(di_args_flag(&args, DI_OPT_THINKING));
    assert_false(di_args_given(&args, DI_OPT_THINKING));
    assert_null(di_args_text(&args, DI_OPT_SYSTEM));
    assert_string_equal(args.positional[1], "-");
    di_args_free(&args);
}

static void test_last_one_counts(void **state) {
    (void)state;
    static const char *const argv[] = {"m",          "--top-k",       "3",
                                       "--thinking", "--no-thinking", "--top-k=4"};
    di_args args;
    di_error error;
    assert_int_equal(parse(&run_verb, 6, argv, &args, &error), DI_OK);
    assert_int_equal(di_args_int(&args, DI_OPT_TOP_K), 4);
    assert_false(di_args_flag(&args, DI_OPT_THINKING));
    di_args_free(&args);
}

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double want; /* 0: refused */
    } cases[] = {{"1048576", 1048576},
                 {"1M", 1048576},
                 {"1MiB", 1048576},
                 {"2g", 2147483648.0},
                 {"8GB", 8589934592.0},
                 {"1T", 1099511627776.0},
                 {"0.5M", 0},
                 {"1", 0},
                 {"G", 0},
                 {"1GiBs", 0},
                 {"1X", 0},
                 {"-1G", 0},
                 {"1e3G", 1073741824000.0},
                 {"nan", 0},
                 {"1e999", 0},
                 {"9999T", 0},
                 {"", 0},
                 {" 1G", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_value value = {0};
        bool ok = read_value(&di_options[DI_OPT_MEMORY], cases[i].text, &value);
        if (ok != (cases[i].want != 0) || (double)value.unsigned_64 != cases[i].want) {
            fail_msg("'%s' gave %d, %llu", cases[i].text, ok,
                     (unsigned long long)value.unsigned_64);
        }
    }
}

/* ---- Refusals ---- */

typedef struct refusal {
    const di_verb *verb;
    const char *argv[3];
    const char *message;
} refusal;

static const refusal refusals[] = {
    {&run_verb,
     {"m", "--temperature", "nan"},
     "--temperature: 'nan' is not a number from 0 to 100"},
    {&run_verb,
     {"m", "--temperature", "inf"},
     "--temperature: 'inf' is not a number from 0 to 100"},
    {&run_verb,
     {"m", "--temperature", "1e999"},
     "--temperature: '1e999' is not a number from 0 to 100"},
    {&run_verb,
     {"m", "--temperature", "-0.1"},
     "--temperature: '-0.1' is not a number from 0 to 100"},
    {&run_verb,
     {"m", "--temperature", "0x1"},
     "--temperature: '0x1' is not a number from 0 to 100"},
    {&run_verb, {"m", "--temperature", "1 "}, "--temperature: '1 ' is not a number from 0 to 100"},
    {&run_verb, {"m", "--temperature", ""}, "--temperature: '' is not a number from 0 to 100"},
    {&run_verb,
     {"m", "--temperature", "true"},
     "--temperature: 'true' is not a number from 0 to 100"},
    {&run_verb, {"m", "--top-p", "1.01"}, "--top-p: '1.01' is not a number from 0 to 1"},
    {&run_verb,
     {"m", "--top-k", "1.5"},
     "--top-k: '1.5' is not a whole number from 0 to 2147483647"},
    {&run_verb,
     {"m", "--top-k", "1e3"},
     "--top-k: '1e3' is not a whole number from 0 to 2147483647"},
    {&run_verb,
     {"m", "--threads", "99999999999999999999"},
     "--threads: '99999999999999999999' is not a whole number from 0 to 1024"},
    {&run_verb, {"m", "--threads", "-1"}, "--threads: '-1' is not a whole number from 0 to 1024"},
    {&run_verb,
     {"m", "--context", "0"},
     "--context: '0' is not a whole number from 1 to 1073741824 (tokens)"},
    {&run_verb,
     {"m", "--seed", "18446744073709551616"},
     "--seed: '18446744073709551616' is not a whole number from 0 to 18446744073709551615"},
    {&run_verb,
     {"m", "--seed", "-1"},
     "--seed: '-1' is not a whole number from 0 to 18446744073709551615"},
    {&run_verb,
     {"m", "--memory", "lots"},
     "--memory: 'lots' is not a number of bytes from 1M to 1024T, such as 8G"},
    {&run_verb, {"m", "--backend", "gpu"}, "--backend: 'gpu' is not one of auto, cpu, cuda, ref"},
    {&run_verb, {"m", "--backend", "cp"}, "--backend: 'cp' is not one of auto, cpu, cuda, ref"},
    {&run_verb, {"m", "--numerics=", "x"}, "--numerics: '' is not one of float, release"},
    {&run_verb,
     {"m", "x", "--seed"},
     "--seed needs a value: a whole number from 0 to 18446744073709551615"},
    {&run_verb, {"m", "--json=yes", "x"}, "--json takes no value"},
    {&run_verb, {"m", "--thinking=no", "x"}, "--thinking takes no value"},
    {&run_verb,
     {"m", "x", "--temprature"},
     "unknown option --temprature; did you mean --temperature?"},
    {&run_verb,
     {"m", "x", "--frobnicate"},
     "unknown option --frobnicate; usage: deepinfer run MODEL [PROMPT] [options], which 'deepinfer "
     "help run' lists"},
    {&run_verb, {"m", "x", "--no-json"}, "unknown option --no-json; did you mean --json?"},
    {&run_verb, {"m", "x", "--temp"}, "unknown option --temp; did you mean --temperature?"},
    {&run_verb, {"m", "x", "-n"}, "unknown option -n; did you mean --max-tokens?"},
    {&run_verb,
     {"m", "x", "--por"},
     "--port is no option of 'run'; 'deepinfer help run' lists its options"},
    {&run_verb, {"m", "x", "--logi"}, "unknown option --logi; did you mean --logit-bias?"},
    {&run_verb, {"m", "x", "--seef"}, "unknown option --seef; did you mean --seed?"},
    {&run_verb,
     {"m", "x", "--max-model-len=9"},
     "unknown option --max-model-len=9; did you mean --context?"},
    {&run_verb,
     {"m", "x", "--max-num-seqs"}, /* run has no --max-batch */
     "unknown option --max-num-seqs; usage: deepinfer run MODEL [PROMPT] [options], which 'deepinfer "
     "help run' lists"},
    {&run_verb,
     {"-m", "x"},
     "unknown option -m; usage: deepinfer run MODEL [PROMPT] [options], which 'deepinfer help run' "
     "lists"},
    {&run_verb,
     {"m", "x", "-qh"},
     "unknown option -qh; usage: deepinfer run MODEL [PROMPT] [options], which 'deepinfer help run' "
     "lists"},
    {&run_verb,
     {"m", "x", "--logits"},
     "--logits is no option of 'run'; 'deepinfer help run' lists its options"},
    {&run_verb,
     {"m", "two", "words"},
     "unexpected argument 'words' (text of several words needs quotes); usage: deepinfer run MODEL "
     "[PROMPT]"},
    {&run_verb,
     {"-q", "--json", "--raw"},
     "an argument is missing; usage: deepinfer run MODEL [PROMPT]"},
    {&run_verb, {"m", "--system=x", "--raw"}, "--system means nothing with --raw; leave out one"},
    {&run_verb, {"m", "--raw", "--effort=3"}, "--effort means nothing with --raw; leave out one"},
    {&run_verb,
     {"m", "--raw", "--no-thinking"},
     "--thinking means nothing with --raw; leave out one"},
    {&help_verb,
     {"a", "--completion=zsh", "--man"},
     "--completion means nothing with --man; leave out one"},
    {&help_verb,
     {"a", "--completion", "tcsh"},
     "--completion: 'tcsh' is not one of bash, zsh, fish"},
};

static void test_refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        di_args args;
        di_error error = {DI_OK, ""};
        assert_int_equal(parse(refusals[i].verb, 3, refusals[i].argv, &args, &error), DI_ERR_USAGE);
        assert_string_equal(error.message, refusals[i].message);
        di_args_free(&args);
    }
}

static void test_very_long_names(void **state) {
    (void)state;
    char name[5000];
    memset(name, 'x', sizeof name);
    memcpy(name, "--", 2);
    name[sizeof name - 1] = '\0';
    const char *argv[] = {"m", name};
    di_args args;
    di_error error;
    assert_int_equal(parse(&run_verb, 2, argv, &args, &error), DI_ERR_USAGE);
    di_args_free(&args);
}

static void test_help_needs_no_arguments(void **state) {
    (void)state;
    static const char *const argv[] = {"--help"};
    di_args args;
    di_error error;
    assert_int_equal(parse(&run_verb, 1, argv, &args, &error), DI_OK);
    di_args_free(&args);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_complete),
        cmocka_unit_test(test_defaults_are_in_range),
        cmocka_unit_test(test_names_are_unique_in_a_verb),
        cmocka_unit_test(test_habits),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_last_one_counts),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_very_long_names),
        cmocka_unit_test(test_help_needs_no_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
