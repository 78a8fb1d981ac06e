/* Names in safetensors headers: of storage types, both ways, and of tensors. */
#ifndef DI_MODEL_DTYPE_NAMES_H
#define DI_MODEL_DTYPE_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

/* "F8_E4M3"; of DI_FP4_PAIR "I8". */
const char *di_dtype_name(di_dtype dtype);

/* DI_N_DTYPES when the name is not one of ours. */
di_dtype di_dtype_from_name(const char *name, size_t length);

/* Prints "[5120, 1152]" into out, shortened when it does not fit. Returns out. */
const char *di_shape_print(char *out, size_t size, const int64_t *shape, int32_t n_dims);

/* True when `text` may stand in a message of one line: no NUL, line end or other control character.
 */
bool di_name_is_plain(const char *text, size_t length);

#endif
