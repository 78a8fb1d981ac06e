/* The terminal: what it can show, and Ctrl-C. */
#ifndef DI_CLI_TERMINAL_H
#define DI_CLI_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

/* True when escape sequences may be written to `stream`: a terminal, not "dumb", NO_COLOR unset. */
bool di_terminal_has_style(FILE *stream);
bool di_terminal_is(FILE *stream);

#define DI_STYLE_DIM "\033[2m"
#define DI_STYLE_BOLD "\033[1m"
#define DI_STYLE_OFF "\033[0m"

/* From now on Ctrl-C (SIGINT) and SIGTERM only set a flag, whichever thread they come to. A third
 * one before the flag is cleared ends the program at once. */
void di_interrupt_catch(void);
bool di_interrupt_seen(void);
void di_interrupt_clear(void);
/* Readable while the flag is set, for poll: a wait on it and on something else cannot miss a
 * signal. -1 before di_interrupt_catch. */
int di_interrupt_fd(void);

double di_seconds(void); /* of a clock that only goes forward */

#endif
