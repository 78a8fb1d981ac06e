/* Lines typed by a person: with editing and history where libedit is built in and stdin is a
 * terminal, plain otherwise.
 */
#ifndef DI_CLI_LINE_INPUT_H
#define DI_CLI_LINE_INPUT_H

#include "base/buffer.h"
#include "base/error.h"

typedef struct di_line_input di_line_input;

typedef enum di_line_result {
    DI_LINE_TEXT,        /* a message is in *out */
    DI_LINE_END,         /* Ctrl-D, or the end of the file */
    DI_LINE_INTERRUPTED, /* Ctrl-C: what was typed is gone */
    DI_LINE_FAILED       /* the terminal cannot be read, or out of memory */
} di_line_result;

/* NULL when out of memory. `prompt` is copied. */
di_line_input *di_line_input_create(const char *prompt);
void di_line_input_destroy(di_line_input *input);

/* One message, without its last newline. It has several lines when one ends in a backslash, or, on
 * a terminal, when more arrived at once (a paste). Clears the interrupt flag. */
di_line_result di_line_input_read(di_line_input *input, di_buffer *out);

#endif
