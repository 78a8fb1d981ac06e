/* Storage types of the release's files and caches. */
#ifndef DI_KERNELS_DTYPE_H
#define DI_KERNELS_DTYPE_H

#include <stdint.h>

#include "base/inline.h"

typedef enum di_dtype {
    DI_F32,      /* safetensors "F32" */
    DI_BF16,     /* "BF16": the upper half of a float32 */
    DI_F8_E4M3,  /* "F8_E4M3": OCP e4m3fn, max 448, no infinities, 0x7F and 0xFF are NaN */
    DI_F8_E8M0,  /* "F8_E8M0": a scale 2^(byte - 127); 255 is NaN */
    DI_FP4_PAIR, /* "I8": two e2m1 codes a byte, low nibble first */
    DI_I64,      /* "I64", "I32", "I16", "U8": in test vectors only */
    DI_I32,
    DI_I16,
    DI_U8,
    DI_N_DTYPES
} di_dtype;

/* Bytes of one stored element (of a FP4_PAIR: one byte, two values). */
DI_INLINE uint64_t di_dtype_bytes(di_dtype dtype) {
    static const uint8_t bytes[DI_N_DTYPES] = {4, 2, 1, 1, 1, 8, 4, 2, 1};
    return bytes[dtype];
}

#endif
