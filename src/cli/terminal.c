#include "cli/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

bool di_terminal_is(FILE *stream) { return isatty(fileno(stream)) == 1; }

bool di_terminal_has_style(FILE *stream) {
    const char *term = getenv("TERM"), *plain = getenv("NO_COLOR");
    return di_terminal_is(stream) && !(plain && *plain) && !(term && strcmp(term, "dumb") == 0);
}

/* Written by the handler, read by the main thread. The pipe holds a byte for each signal. */
static volatile sig_atomic_t interrupts; /* Ctrl-C since the last clear */
static volatile sig_atomic_t ending, endings;
static bool clearable;
static int pipe_ends[2] = {-1, -1};

/* The terminal as it was, for a program that ends at once. */
static struct termios modes;
static bool has_modes, has_style;

static void restore_terminal(void) {
    if (has_modes && tcgetpgrp(STDIN_FILENO) == getpgrp()) {
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &modes);
    }
    /* A terminal that takes nothing must not hold up the end. */
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (has_style && poll(&out, 1, 0) == 1 &&
        write(STDOUT_FILENO, DI_STYLE_OFF "\r\n", sizeof DI_STYLE_OFF + 1) < 0) {
        /* There is nobody left to tell. */
    }
}

/* Calls only what a handler may. */
static void on_interrupt(int signal_number) {
    int saved = errno;
    bool third;
    if (clearable && signal_number == SIGINT) {
        third = ++interrupts >= 3;
    } else {
        if (!ending) ending = signal_number;
        third = ++endings >= 3;
    }
    if (third) {
        restore_terminal();
        _exit(128 + signal_number);
    }
    if (pipe_ends[1] >= 0 && write(pipe_ends[1], "", 1) < 0) {
        /* A full pipe says what is needed, too. */
    }
    errno = saved;
}

static void catch_signal(int signal_number) {
    struct sigaction action, old;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    /* A write that a signal breaks off would lose what stdio holds; reads wait in
     * di_interrupt_wait, which comes back all the same. */
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (signal_number == SIGHUP && sigaction(SIGHUP, NULL, &old) == 0 &&
        old.sa_handler == SIG_IGN) {
        return; /* nohup */
    }
    sigaction(signal_number, &action, NULL);
}

void di_interrupt_catch(bool ctrl_c_clears) {
    if (pipe_ends[0] < 0 && pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        pipe_ends[0] = pipe_ends[1] = -1;
    }
    clearable = ctrl_c_clears;
    has_modes = tcgetattr(STDIN_FILENO, &modes) == 0;
    has_style = di_terminal_has_style(stdout);
    catch_signal(SIGINT);
    catch_signal(SIGTERM);
    catch_signal(SIGHUP);
}

bool di_interrupt_seen(void) { return interrupts > 0 || ending != 0; }

int di_interrupt_ending(void) { return ending; }

void di_interrupt_clear(void) {
    char bytes[16];
    interrupts = 0;
    while (pipe_ends[0] >= 0 && read(pipe_ends[0], bytes, sizeof bytes) > 0) {
    }
    if (ending && pipe_ends[1] >= 0 && write(pipe_ends[1], "", 1) < 0) {
        /* As above. */
    }
}

bool di_interrupt_wait(int fd) {
    struct pollfd both[2] = {{.fd = fd, .events = POLLIN}, {.fd = pipe_ends[0], .events = POLLIN}};
    for (;;) {
        int n = poll(both, 2, -1);
        if (di_interrupt_seen()) return false;
        if ((n < 0 && errno != EINTR) || (n > 0 && both[0].revents != 0)) return true;
    }
}

double di_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
