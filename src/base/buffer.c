#include "base/buffer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool di_buffer_reserve(di_buffer *buffer, size_t more) {
    if (buffer->failed || more >= SIZE_MAX / 2 - buffer->size) {
        buffer->failed = true;
        return false;
    }
    size_t needed = buffer->size + more + 1;
    if (needed <= buffer->capacity) return true;
    size_t capacity = buffer->capacity * 2 > needed ? buffer->capacity * 2 : needed;
    if (capacity < 64) capacity = 64;
    char *data = realloc(buffer->data, capacity);
    if (!data) {
        buffer->failed = true;
        return false;
    }
    data[buffer->size] = '\0';
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

void di_buffer_append(di_buffer *buffer, const void *bytes, size_t n) {
    if (!di_buffer_reserve(buffer, n)) return;
    if (n) memcpy(buffer->data + buffer->size, bytes, n);
    buffer->size += n;
    buffer->data[buffer->size] = '\0';
}

void di_buffer_puts(di_buffer *buffer, const char *text) {
    di_buffer_append(buffer, text, strlen(text));
}

void di_buffer_putc(di_buffer *buffer, char c) { di_buffer_append(buffer, &c, 1); }

void di_buffer_printf(di_buffer *buffer, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    if (n >= 0 && di_buffer_reserve(buffer, (size_t)n)) {
        vsnprintf(buffer->data + buffer->size, (size_t)n + 1, format, again);
        buffer->size += (size_t)n;
    } else {
        buffer->failed = true;
    }
    va_end(again);
    va_end(args);
}

void di_buffer_clear(di_buffer *buffer) {
    buffer->size = 0;
    buffer->failed = false;
    if (buffer->data) buffer->data[0] = '\0';
}

void di_buffer_free(di_buffer *buffer) {
    free(buffer->data);
    *buffer = (di_buffer)DI_BUFFER_EMPTY;
}
