#include "cli/terminal.h"

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

/* Written by the handler, read by the main thread. */
static volatile sig_atomic_t interrupts;

static void on_interrupt(int signal_number) {
    if (++interrupts >= 3) _exit(128 + signal_number);
}

void di_interrupt_catch(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt; /* without SA_RESTART: a waiting read must return */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool di_interrupt_seen(void) { return interrupts > 0; }

void di_interrupt_clear(void) { interrupts = 0; }

double di_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
