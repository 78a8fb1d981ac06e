/* Lists of token ids. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

di_status ids__reserve(di_ids *ids, size_t more, di_error *error) {
    if (more <= ids->capacity - ids->size) return DI_OK;
    size_t limit = SIZE_MAX / 2 / sizeof *ids->data;
    int32_t *data = NULL;
    size_t capacity = 0;
    if (more <= limit - ids->size) {
        capacity = ids->size + more + ids->size / 2; /* half as much again: amortised growth */
        data = realloc(ids->data, capacity * sizeof *data);
    }
    if (!data) return di_fail(error, DI_ERR_MEMORY, "no memory for %zu more token ids", more);
    ids->data = data;
    ids->capacity = capacity;
    return DI_OK;
}

di_status di_ids_append(di_ids *ids, const int32_t *more, size_t n, di_error *error) {
    DI_TRY(ids__reserve(ids, n, error));
    if (n) memcpy(ids->data + ids->size, more, n * sizeof *more);
    ids->size += n;
    return DI_OK;
}

void di_ids_free(di_ids *ids) {
    free(ids->data);
    *ids = (di_ids){NULL, 0, 0};
}
