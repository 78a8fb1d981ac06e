/* Tests of the verbs: runs the program that was built and keeps what it says. */
#ifndef DI_TESTS_PROGRAM_H
#define DI_TESTS_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>

typedef struct program_result {
    int code;          /* exit code; 128 + signal when it was killed */
    char *out, *error; /* NUL-terminated */
    /* The line on stderr that says what computes, "backend: cpu (...)", which is not in `error`:
     * what it says depends on the machine. NULL: there was none. */
    char *backend;
    size_t out_size;
} program_result;

enum { PROGRAM_MAX_ARGS = 40 };

/* `command` is what follows "deepinfer", as a shell would take it, in the source folder (so that
 * models/demo is found). `input` goes to stdin; NULL: it is empty. The result is valid until the
 * next call. Fails the test when the program does not end within a minute. */
const program_result *program_run(const char *command, const char *input);

/* False where the cpu backend cannot run (no AVX2): a test of verbs that compute is skipped then.
 */
bool program_can_compute(void);

/* Runs and compares: exit code, and the whole of stderr ("deepinfer " in front and a newline behind
 * are added). */
void program_refuses(const char *command, const char *input, int code, const char *message);

#endif
