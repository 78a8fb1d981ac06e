/* The tokenizer for users of the library: opened by directory, text as plain memory. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "text/tokenizer.h"

di_status di_tokenizer_open(const char *path, di_tokenizer **out, di_error *error) {
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return di_tokenizer_load(path, out, error);
    char file[PATH_MAX];
    int n = snprintf(file, sizeof file, "%s/tokenizer.json", path);
    if (n < 0 || n >= (int)sizeof file) {
        return di_fail(error, DI_ERR_USAGE, "the path of the model directory is too long");
    }
    return di_tokenizer_load(file, out, error);
}

di_status di_tokenizer_text(const di_tokenizer *tokenizer, const int32_t *ids, size_t n,
                            bool skip_special, char **text, size_t *size, di_error *error) {
    di_buffer buffer = DI_BUFFER_EMPTY;
    di_status status = di_tokenizer_decode(tokenizer, ids, n, skip_special, &buffer, error);
    di_buffer_puts(&buffer, ""); /* memory also for no text */
    if (status == DI_OK && (buffer.failed || !buffer.data)) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory: text of %zu tokens", n);
    }
    if (status != DI_OK) {
        di_buffer_free(&buffer);
        return status;
    }
    *text = buffer.data;
    *size = buffer.size;
    return DI_OK;
}

void di_free(void *memory) { free(memory); }
