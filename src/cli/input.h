/* Texts and token ids that a verb is given. */
#ifndef DI_CLI_INPUT_H
#define DI_CLI_INPUT_H

#include "base/buffer.h"
#include "deepinfer.h"

/* A whole file, "-" for stdin, at most 1 GiB. The caller frees *out, also after a failure. */
di_status di_input_file(const char *path, di_buffer *out, di_error *error);

/* The text of an argument: itself, or stdin for "-" and for NULL when stdin is no terminal.
 * `what` names it in the message for NULL on a terminal ("a prompt"). */
di_status di_input_text(const char *argument, const char *what, di_buffer *out, di_error *error);

/* Token ids separated by white space (and commas); `what` names the source in messages. */
di_status di_input_ids(const char *text, size_t size, const char *what, di_ids *out,
                       di_error *error);

#endif
