#include "server/json_build.h"

#include <string.h>

#include "base/error.h"

void di_build_next(di_buffer *out, int *n) {
    if ((*n)++ > 0) di_buffer_putc(out, ',');
}

static void key_of(di_buffer *out, int *n, const char *key) {
    di_build_next(out, n);
    di_json_write_string(out, key, strlen(key));
    di_buffer_putc(out, ':');
}

void di_build_member(di_buffer *out, int *n, const char *key, const di_json *value) {
    key_of(out, n, key);
    di_json_write(out, value);
}

void di_build_text(di_buffer *out, int *n, const char *key, const char *text, size_t size) {
    key_of(out, n, key);
    di_json_write_string(out, text, size);
}

di_status di_build_parse(di_buffer *text, di_arena *arena, const di_json **out, di_error *error) {
    di_status status = text->failed
                           ? di_fail(error, DI_ERR_MEMORY, "out of memory: messages")
                           : di_json_parse(text->data, text->size, "messages", arena, out, error);
    di_buffer_free(text);
    return status;
}
