/* JSON: any bytes. What parses is written, must parse again, and be written the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void touch(const di_json *value) {
    int64_t integer;
    double number;
    bool flag;
    di_json_int64(value, &integer);
    di_json_double(value, &number);
    di_json_bool(value, &flag);
    di_json_is_string(value, "a");
    di_json_get(value, "a");
    for (const di_json *item = value->first; item; item = item->next) touch(item);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    di_arena arena = DI_ARENA_EMPTY;
    di_buffer once = DI_BUFFER_EMPTY, twice = DI_BUFFER_EMPTY;
    const di_json *root;
    di_error error;
    if (di_json_parse((const char *)data, size, "fuzz", &arena, &root, &error) == DI_OK) {
        touch(root);
        di_json_write(&once, root);
        /* A number too large for a double is written as Infinity, which is not JSON. */
        if (!strstr(once.data, "Infinity")) {
            if (di_json_parse(once.data, once.size, "again", &arena, &root, &error) != DI_OK)
                abort();
            di_json_write(&twice, root);
            if (once.size != twice.size || memcmp(once.data, twice.data, once.size) != 0) abort();
        }
    }
    di_buffer_free(&once);
    di_buffer_free(&twice);
    di_arena_free(&arena);
    return 0;
}
