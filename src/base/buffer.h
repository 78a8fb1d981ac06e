/* A growing byte buffer, for text that is put together piece by piece.
 *
 * The caller embeds it, starts with DI_BUFFER_EMPTY and ends with di_buffer_free. Out of memory is
 * sticky: later appends do nothing and `failed` stays true, so that a writer checks once at its
 * end. `data` is NUL-terminated whenever it is not NULL; the NUL is not counted in `size`.
 */
#ifndef DI_BASE_BUFFER_H
#define DI_BASE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct di_buffer {
    char *data;
    size_t size, capacity; /* bytes */
    bool failed;
} di_buffer;

#define DI_BUFFER_EMPTY                                                                            \
    { NULL, 0, 0, false }

/* Makes room for `more` bytes behind `size`; false when out of memory. */
bool di_buffer_reserve(di_buffer *buffer, size_t more);
void di_buffer_append(di_buffer *buffer, const void *bytes, size_t n);
void di_buffer_puts(di_buffer *buffer, const char *text);
void di_buffer_putc(di_buffer *buffer, char c);
void di_buffer_printf(di_buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Keeps the memory. */
void di_buffer_clear(di_buffer *buffer);
void di_buffer_free(di_buffer *buffer);

#endif
