/* The lines of a text that say something: what JSONL files are read by.
 */
#ifndef DI_CLI_LINES_H
#define DI_CLI_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Start with data and size set, the rest zeroed. */
typedef struct di_lines {
    const char *data;
    size_t size, at;
    int64_t number; /* of the line that was given last, from 1 */
} di_lines;

/* The next line that is not blank, without its newline; false at the end. A byte order mark at the
 * beginning of the text belongs to no line. */
bool di_lines_next(di_lines *lines, const char **text, size_t *size);

#endif
