#include "cli/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool di_terminal_is(FILE *stream) { return isatty(fileno(stream)) == 1; }

bool di_terminal_has_style(FILE *stream) {
    const char *term = getenv("TERM"), *plain = getenv("NO_COLOR");
    return di_terminal_is(stream) && !(plain && *plain) && !(term && strcmp(term, "dumb") == 0);
}

/* Written by the handler, read by the main thread. The pipe holds a byte for each signal. */
static volatile sig_atomic_t interrupts;
static int pipe_ends[2] = {-1, -1};

static void on_interrupt(int signal_number) {
    int saved = errno;
    if (++interrupts >= 3) _exit(128 + signal_number);
    if (pipe_ends[1] >= 0 && write(pipe_ends[1], "", 1) < 0) {
        /* A full pipe says what is needed, too. */
    }
    errno = saved;
}

void di_interrupt_catch(void) {
    if (pipe_ends[0] < 0 && pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        pipe_ends[0] = pipe_ends[1] = -1;
    }
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt; /* without SA_RESTART: a waiting read should return */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool di_interrupt_seen(void) { return interrupts > 0; }

void di_interrupt_clear(void) {
    char bytes[16];
    interrupts = 0;
    while (pipe_ends[0] >= 0 && read(pipe_ends[0], bytes, sizeof bytes) > 0) {
    }
}

int di_interrupt_fd(void) { return pipe_ends[0]; }

double di_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
