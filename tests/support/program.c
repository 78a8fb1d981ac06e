#include "support/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static program_result result;

/* A temporary file without a name. */
static FILE *scratch(void) {
    FILE *file = tmpfile();
    assert_non_null(file);
    return file;
}

static char *contents(FILE *file, size_t *size) {
    fseek(file, 0, SEEK_END);
    long n = ftell(file);
    assert_true(n >= 0);
    rewind(file);
    char *text = malloc((size_t)n + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)n, file), n);
    text[n] = '\0';
    *size = (size_t)n;
    fclose(file);
    return text;
}

/* Through the shell: its quoting, and "< FILE" and "> FILE" where a test needs them. */
static void become(const char *command, int in, int out, int error) {
    char *line = NULL;
    if (asprintf(&line, "exec timeout 250 '%s/deepinfer' %s", DI_BUILD_DIR, command) < 0)
        _exit(125);
    if (chdir(DI_SOURCE_DIR) != 0) _exit(125);
    dup2(in, 0);
    dup2(out, 1);
    dup2(error, 2);
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(125);
}

/* Cuts the first line that begins so out of the text; the caller frees it. */
static char *take_line(char *text, const char *begin) {
    char *at = strncmp(text, begin, strlen(begin)) == 0 ? text : NULL;
    for (char *end = text; !at && (end = strchr(end, '\n')) != NULL;) {
        if (strncmp(++end, begin, strlen(begin)) == 0) at = end;
    }
    if (!at) return NULL;
    size_t n = strcspn(at, "\n");
    char *line = strndup(at, n);
    assert_non_null(line);
    n += at[n] == '\n';
    memmove(at, at + n, strlen(at + n) + 1);
    return line;
}

const program_result *program_run(const char *command, const char *input) {
    FILE *in = scratch(), *out = scratch(), *error = scratch();
    fputs(input ? input : "", in);
    fflush(in);
    rewind(in);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) become(command, fileno(in), fileno(out), fileno(error));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    free(result.out);
    free(result.error);
    free(result.backend);
    size_t error_size;
    result.out = contents(out, &result.out_size);
    result.error = contents(error, &error_size);
    result.backend = take_line(result.error, "backend: ");
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    fclose(in);
    if (result.code == 124) fail_msg("deepinfer %s: did not end", command);
    return &result;
}

bool program_can_compute(void) {
    const program_result *r = program_run("score models/demo -q --context 64 --ids -", "0");
    return r->code == 0 || !strstr(r->error, "AVX2");
}

void program_refuses(const char *command, const char *input, int code, const char *message) {
    const program_result *r = program_run(command, input);
    char *want = NULL;
    assert_true(asprintf(&want, "deepinfer %s\n", message) > 0);
    if (strcmp(r->error, want) != 0 || r->code != code) {
        fail_msg("deepinfer %s\n  gave %d, %s  not   %d, %s", command, r->code, r->error, code,
                 want);
    }
    free(want);
}
