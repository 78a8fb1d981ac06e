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

/* From now on Ctrl-C (SIGINT), SIGTERM and SIGHUP only set a flag, whichever thread they come to. A
 * third one ends the program at once, with the terminal as it was. ctrl_c_clears: Ctrl-C means what
 * is being done, and di_interrupt_clear takes it back; otherwise it ends the program as the others
 * do. */
void di_interrupt_catch(bool ctrl_c_clears);
bool di_interrupt_seen(void);
void di_interrupt_clear(void);
/* The signal that the program is to end by, 0: none came. Nothing takes it back. */
int di_interrupt_ending(void);
/* Waits until a read of `fd` would not; false when the flag is set before, which cannot be missed.
 */
bool di_interrupt_wait(int fd);

double di_seconds(void); /* of a clock that only goes forward */

#endif
