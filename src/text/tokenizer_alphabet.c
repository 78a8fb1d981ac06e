#include "text/tokenizer_alphabet.h"

#include <stdint.h>

#include "base/utf8.h"

/* The byte of a character, or -1. U+0100 + k stands for the k-th byte that does not stand for
 * itself: 00-20, 7F-A0, AD. */
static int byte_of(uint32_t code) {
    if ((code >= 0x21 && code <= 0x7E) || (code >= 0xA1 && code <= 0xFF && code != 0xAD)) {
        return (int)code;
    }
    if (code >= 0x100 && code <= 0x120) return (int)(code - 0x100);
    if (code >= 0x121 && code <= 0x142) return (int)(code - 0x121 + 0x7F);
    return code == 0x143 ? 0xAD : -1;
}

size_t di_alphabet_bytes(const char *spelling, size_t size, char *bytes) {
    size_t n = 0;
    for (size_t at = 0, length; at < size; at += length) {
        uint32_t code;
        length = di_utf8_decode(spelling + at, size - at, &code);
        int byte = length ? byte_of(code) : -1;
        if (byte < 0) return 0;
        bytes[n++] = (char)byte;
    }
    return n;
}
