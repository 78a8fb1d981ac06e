/* How the program was called, for documents that say what was measured. */
#ifndef DI_CLI_COMMAND_LINE_H
#define DI_CLI_COMMAND_LINE_H

#include "base/buffer.h"

/* Appends the command as a JSON string: its words with blanks between, as the system has them, at
 * most 4096 bytes; "" where the system does not tell. */
void di_command_line_write(di_buffer *out);

#endif
