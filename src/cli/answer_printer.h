/* An answer as it comes, on stdout: thoughts dimmed and only where asked for, calls on lines of their
 * own.
 */
#ifndef DI_CLI_ANSWER_PRINTER_H
#define DI_CLI_ANSWER_PRINTER_H

#include <stdbool.h>
#include <stddef.h>

#include "deepinfer.h"

/* Start zeroed but for the first three. */
typedef struct di_answer_printer {
    bool show, thoughts, style;
    bool in_thought;
    char last; /* character printed, 0: none */
} di_answer_printer;

void di_answer_printer_part(di_answer_printer *printer, di_part part, const char *text,
                            size_t size);
/* The last line ended, and the style off. */
void di_answer_printer_end(di_answer_printer *printer);

#endif
