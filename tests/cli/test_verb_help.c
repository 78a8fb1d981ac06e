/* What the tables become: help, manual pages, completion scripts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/option_table.c"
#include "support/program.h"
#include "support/temp.h"

static const struct {
    di_verb_id id;
    const char *name;
} verbs[] = {{DI_VERB_RUN, "run"},           {DI_VERB_CHAT, "chat"},   {DI_VERB_SCORE, "score"},
             {DI_VERB_TOKENIZE, "tokenize"}, {DI_VERB_HELP, "help"},   {DI_VERB_INSPECT, "inspect"},
             {DI_VERB_SYNTH, "synth"},       {DI_VERB_BATCH, "batch"}, {DI_VERB_BENCH, "bench"},
             {DI_VERB_EVAL, "eval"}};
enum { N_VERBS = sizeof verbs / sizeof verbs[0] };

static const program_result *run(const char *format, const char *verb) {
    char command[200];
    snprintf(command, sizeof command, format, verb);
    return program_run(command, NULL);
}

static void contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' is not in:\n%.2000s", part, text);
}

static void test_overview_names_every_verb(void **state) {
    (void)state;
    const program_result *r = program_run("help", NULL);
    assert_int_equal(r->code, 0);
    assert_string_equal(r->error, "");
    for (int i = 0; i < N_VERBS; i++) {
        char line[40];
        snprintf(line, sizeof line, "\n  %-10s ", verbs[i].name);
        contains(r->out, line);
    }
    char *help = strdup(r->out);
    assert_string_equal(program_run("--help", NULL)->out, help);
    r = program_run("", NULL);
    assert_int_equal(r->code, 2);
    assert_string_equal(r->error, help);
    assert_string_equal(r->out, "");
    free(help);
}

/* The line that an option's entry begins with, up to what follows its name. */
static bool lists(const char *help, const di_option *o) {
    char head[80];
    const char *negated = o->type == DI_TYPE_SWITCH ? "[no-]" : "";
    if (o->letter) {
        snprintf(head, sizeof head, "\n  -%c, --%s%s", o->letter, negated, o->name);
    } else {
        snprintf(head, sizeof head, "\n      --%s%s", negated, o->name);
    }
    const char *at = strstr(help, head);
    return at && (at[strlen(head)] == ' ' || at[strlen(head)] == '\n');
}

static void test_help_names_every_option(void **state) {
    (void)state;
    for (int i = 0; i < N_VERBS; i++) {
        const program_result *r = run("help %s", verbs[i].name);
        assert_int_equal(r->code, 0);
        for (int j = 0; j < DI_N_OPTIONS; j++) {
            bool taken = (di_options[j].verbs & DI_VERB_BIT(verbs[i].id)) != 0;
            if (lists(r->out, &di_options[j]) != taken) {
                fail_msg("help %s: --%s", verbs[i].name, di_options[j].name);
            }
        }
        char *help = strdup(r->out);
        assert_string_equal(run("%s --help", verbs[i].name)->out, help);
        free(help);
    }
}

static void test_help_fits_the_terminal(void **state) {
    (void)state;
    for (int i = 0; i < N_VERBS; i++) {
        const char *line = run("help %s", verbs[i].name)->out;
        const char *end = strstr(line, "\nExamples\n");
        while (*line && (!end || line < end)) {
            size_t n = strcspn(line, "\n");
            if (n > 80) fail_msg("help %s: %.*s", verbs[i].name, (int)n, line);
            line += n + 1;
        }
    }
}

static void test_unknown_verbs(void **state) {
    (void)state;
    const program_result *r = program_run("frobnicate", NULL);
    assert_int_equal(r->code, 2);
    assert_string_equal(r->error,
                        "deepinfer: unknown verb 'frobnicate'; 'deepinfer help' lists the "
                        "verbs\n");
    r = program_run("--frobnicate", NULL);
    assert_int_equal(r->code, 2);
    assert_string_equal(r->error,
                        "deepinfer: unknown option '--frobnicate'; 'deepinfer help' lists "
                        "the verbs\n");
    program_refuses("help frobnicate", NULL, 2,
                    "help: there is no verb 'frobnicate'; 'deepinfer help' lists them");
}

static void test_version(void **state) {
    (void)state;
    const program_result *r = program_run("--version", NULL);
    assert_int_equal(r->code, 0);
    assert_int_equal(strncmp(r->out, "deepinfer ", 10), 0);
    assert_true(r->out[10] >= '0' && r->out[10] <= '9');
}

/* Output that nobody got is no success, whoever printed it. */
static void test_output_that_is_lost(void **state) {
    (void)state;
    static const struct {
        const char *command, *who;
    } cases[] = {{"--help", ""}, {"--version", ""}, {"help run", " help"}, {"run --help", " run"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char *const lost[] = {">/dev/full", ">&-"};
        for (size_t j = 0; j < 2; j++) {
            char command[60], want[80];
            snprintf(command, sizeof command, "%s %s", cases[i].command, lost[j]);
            snprintf(want, sizeof want, "deepinfer%s: cannot write to stdout", cases[i].who);
            const program_result *r = program_run(command, NULL);
            assert_int_equal(strncmp(r->error, want, strlen(want)), 0);
            assert_int_equal(r->code, 1);
        }
    }
}

/* Pipes the output of a verb's page or script to a shell command, which must be silent and succeed;
 * false when the checker is not installed. */
static bool accepted(const char *checker, const char *command, const char *arguments) {
    char line[600];
    snprintf(line, sizeof line, "command -v %s >/dev/null", checker);
    if (system(line) != 0) return false;
    snprintf(line, sizeof line, "out=$('%s/deepinfer' help %s | %s 2>&1) && test -z \"$out\"",
             DI_BUILD_DIR, arguments, command);
    if (system(line) != 0) fail_msg("%s complains about help %s", checker, arguments);
    return true;
}

static void test_manual_pages(void **state) {
    (void)state;
    bool checked = accepted("groff", "groff -man -Tascii -ww -z", "--man");
    for (int i = 0; i < N_VERBS; i++) {
        const program_result *r = run("help %s --man", verbs[i].name);
        assert_int_equal(r->code, 0);
        contains(r->out, ".SH NAME\n");
        contains(r->out, "\n.SH OPTIONS\n");
        contains(r->out, "\n.SH EXIT STATUS\n");
        char arguments[60];
        snprintf(arguments, sizeof arguments, "%s --man", verbs[i].name);
        if (checked) accepted("groff", "groff -man -Tascii -ww -z", arguments);
    }
    if (!checked) print_message("groff is not installed: pages are not checked by it\n");
}

/* Examples come out as they are to be typed: quotes are roff's own, too. */
static void test_manual_keeps_quotes(void **state) {
    (void)state;
    contains(run("help %s --man", "chat")->out, "system \\(dqAnswer in one sentence.\\(dq\n");
    if (system("command -v groff >/dev/null") != 0) return;
    char line[400];
    snprintf(line, sizeof line,
             "'%s/deepinfer' help chat --man | groff -man -Tascii -P-cbou | "
             "grep -q 'MODEL --system \"Answer in one sentence\\.\"'",
             DI_BUILD_DIR);
    assert_int_equal(system(line), 0);
}

static void test_completion_scripts(void **state) {
    (void)state;
    static const char *const shells[][3] = {{"bash", "bash -n", "--completion bash"},
                                            {"zsh", "zsh -n", "--completion zsh"},
                                            {"fish", "fish -n", "--completion fish"}};
    for (size_t i = 0; i < 3; i++) {
        if (!accepted(shells[i][0], shells[i][1], shells[i][2])) {
            print_message("%s is not installed: its script is not checked\n", shells[i][0]);
        }
        char command[64];
        snprintf(command, sizeof command, "help %s", shells[i][2]);
        const program_result *r = program_run(command, NULL);
        assert_int_equal(r->code, 0);
        contains(r->out, "repetition-penalty");
        contains(r->out, "no-thinking");
    }
}

/* What bash offers for a line, in `folder`: one a line here, joined by commas in `want`. The last
 * word is the one to complete. */
static void offers_in(const char *folder, const char *words, int at, const char *want) {
    char line[800];
    snprintf(line, sizeof line,
             "cd '%s' && bash -c 'source <(\"%s/deepinfer\" help --completion bash)\n"
             "COMP_WORDS=(deepinfer %s)\nCOMP_CWORD=%d\n_deepinfer\nIFS=,\n"
             "echo \"${COMPREPLY[*]}\"'",
             folder, DI_BUILD_DIR, words, at);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    char got[4096] = "";
    assert_non_null(fgets(got, sizeof got, pipe));
    pclose(pipe);
    got[strcspn(got, "\n")] = '\0';
    assert_string_equal(got, want);
}

static void offers(const char *words, int at, const char *want) { offers_in("/", words, at, want); }

static void test_bash_completes(void **state) {
    (void)state;
    if (access("/bin/bash", X_OK) != 0) skip();
    offers("tok", 1, "tokenize");
    offers("run --temp", 2, "--temperature");
    offers("run m --no-", 3, "--no-thinking,--no-match-added");
    offers("run m --backend \"\"", 4, "auto,cpu,cuda,ref");
    offers("score m --numerics re", 4, "release");
    offers("tokenize --temp", 2, "");
    offers("help sc", 2, "score");
    /* Names with blanks stay whole. */
    char *root = temp_dir_create(), *path = temp_printf("%s/my ids", root);
    temp_write(path, "1", 1);
    offers_in(root, "score my", 2, "my ids");
    offers_in(root, "score m --ids my", 4, "my ids");
    free(path);
    temp_dir_destroy(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overview_names_every_verb),
        cmocka_unit_test(test_help_names_every_option),
        cmocka_unit_test(test_help_fits_the_terminal),
        cmocka_unit_test(test_unknown_verbs),
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_output_that_is_lost),
        cmocka_unit_test(test_manual_pages),
        cmocka_unit_test(test_manual_keeps_quotes),
        cmocka_unit_test(test_completion_scripts),
        cmocka_unit_test(test_bash_completes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
