/* Text that may hold any bytes, such as a file name, as JSON. */
#ifndef DI_BASE_LOSSY_H
#define DI_BASE_LOSSY_H

#include <stddef.h>

#include "base/buffer.h"

/* Appends a quoted string; bytes that are no UTF-8 cannot stand in JSON, and each becomes U+FFFD. */
void di_lossy_write(di_buffer *out, const char *text, size_t size);

#endif
