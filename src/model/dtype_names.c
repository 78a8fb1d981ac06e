#include "model/dtype_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const names[DI_N_DTYPES] = {"F32", "BF16", "F8_E4M3", "F8_E8M0", "I8",
                                               "I64", "I32",  "I16",     "U8"};

const char *di_dtype_name(di_dtype dtype) { return names[dtype]; }

di_dtype di_dtype_from_name(const char *name, size_t length) {
    for (int i = 0; i < DI_N_DTYPES; i++) {
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0) return (di_dtype)i;
    }
    return DI_N_DTYPES;
}

const char *di_shape_print(char *out, size_t size, const int64_t *shape, int32_t n_dims) {
    size_t at = (size_t)snprintf(out, size, "[");
    for (int32_t i = 0; i < n_dims && at < size; i++) {
        at += (size_t)snprintf(out + at, size - at, "%s%" PRId64, i ? ", " : "", shape[i]);
    }
    if (at < size) snprintf(out + at, size - at, "]");
    return out;
}

bool di_name_is_plain(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7F) return false;
    }
    return true;
}
