#include "base/crc32c.h"

#include <string.h>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

/* x^32 + x^28 + ... + 1 with the bits reversed; a table for half a byte fits two cache lines. */
static const uint32_t NIBBLE[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

uint32_t di_crc32c_portable(uint32_t crc, const void *data, size_t size) {
    const uint8_t *at = data;
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= at[i];
        crc = (crc >> 4) ^ NIBBLE[crc & 15];
        crc = (crc >> 4) ^ NIBBLE[crc & 15];
    }
    return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const void *data,
                                                               size_t size) {
    const uint8_t *at = data;
    uint64_t state = ~crc;
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        state = _mm_crc32_u64(state, word);
    }
    for (; size > 0; at++, size--) state = _mm_crc32_u8((uint32_t)state, *at);
    return ~(uint32_t)state;
}
#endif

uint32_t di_crc32c(uint32_t crc, const void *data, size_t size) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42(crc, data, size);
#endif
    return di_crc32c_portable(crc, data, size);
}
