#include "base/utf8.h"

#include <string.h>

/* Length that a lead byte announces and the range of its second byte (Unicode, table 3-7). */
static size_t lead(unsigned char c, unsigned char *low, unsigned char *high) {
    *low = 0x80;
    *high = 0xBF;
    if (c < 0x80) return 1;
    if (c < 0xC2 || c > 0xF4) return 0;
    if (c < 0xE0) return 2;
    if (c < 0xF0) {
        if (c == 0xE0) *low = 0xA0;
        if (c == 0xED) *high = 0x9F;
        return 3;
    }
    if (c == 0xF0) *low = 0x90;
    if (c == 0xF4) *high = 0x8F;
    return 4;
}

/* How many of the first n bytes follow the form of one sequence; *length is what it should have. */
static size_t match(const char *bytes, size_t n, size_t *length) {
    unsigned char low, high;
    *length = lead((unsigned char)bytes[0], &low, &high);
    if (*length == 0) return 0;
    size_t i = 1;
    for (; i < *length && i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c < low || c > high) break;
        low = 0x80;
        high = 0xBF;
    }
    return i;
}

size_t di_utf8_decode(const char *bytes, size_t n, uint32_t *code) {
    size_t length;
    if (match(bytes, n, &length) != length || length == 0) return 0;
    static const unsigned char mask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t value = (unsigned char)bytes[0] & mask[length];
    for (size_t i = 1; i < length; i++) value = value << 6 | ((unsigned char)bytes[i] & 0x3F);
    *code = value;
    return length;
}

size_t di_utf8_valid_prefix(const char *bytes, size_t n) {
    size_t at = 0;
    while (at < n) {
        if (n - at >= 8) { /* eight ASCII bytes at once */
            uint64_t word;
            memcpy(&word, bytes + at, 8);
            if (!(word & 0x8080808080808080u)) {
                at += 8;
                continue;
            }
        }
        size_t length;
        if (match(bytes + at, n - at, &length) != length || length == 0) break;
        at += length;
    }
    return at;
}

size_t di_utf8_incomplete_tail(const char *bytes, size_t n) {
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const char *from = bytes + n - back;
        if (((unsigned char)*from & 0xC0) == 0x80) continue;
        size_t length;
        return match(from, back, &length) == back && length > back ? back : 0;
    }
    return 0;
}

size_t di_utf8_encode(uint32_t code, char bytes[4]) {
    if (code < 0x80) {
        bytes[0] = (char)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, code >>= 6) bytes[i] = (char)(0x80 | (code & 0x3F));
    static const unsigned char mark[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    bytes[0] = (char)(mark[length] | code);
    return length;
}
