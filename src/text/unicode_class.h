/* Unicode classes of code points, as the pre-tokeniser needs them: one byte of bits each.
 *
 * Unicode 15.0.0, from a generated table, and not from a library: the version decides the ids of a
 * text, so it must not change with the machine. Thread-safe; never fails.
 */
#ifndef DI_TEXT_UNICODE_CLASS_H
#define DI_TEXT_UNICODE_CLASS_H

#include <stdint.h>

enum {
    DI_UNICODE_LETTER = 1,       /* \p{L} */
    DI_UNICODE_MARK = 2,         /* \p{M} */
    DI_UNICODE_NUMBER = 4,       /* \p{N} */
    DI_UNICODE_SYMBOL = 8,       /* \p{P} or \p{S} */
    DI_UNICODE_SPACE = 16,       /* \s: the property White_Space (see pretokenize.c) */
    DI_UNICODE_NEWLINE = 32,     /* CR or LF; SPACE too */
    DI_UNICODE_CJK = 64,         /* U+4E00-9FA5, U+3040-30FF: step 2 of the pre-tokeniser */
    DI_UNICODE_ASCII_PUNCT = 128 /* the 32 of ASCII; SYMBOL too */
};

extern const uint8_t di_unicode_class_index[0x110000 / 128];
extern const uint8_t di_unicode_class_block[][128];

/* The bits of `code`, which must be below 0x110000; 0 for unassigned, control, private, ... */
static inline uint8_t di_unicode_class(uint32_t code) {
    return di_unicode_class_block[di_unicode_class_index[code >> 7]][code & 127];
}

#endif
