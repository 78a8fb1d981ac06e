/* UTF-8: strict decoding (no surrogates, no overlong forms, nothing above U+10FFFF). */
#ifndef DI_BASE_UTF8_H
#define DI_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decodes one code point from n > 0 bytes. Returns its length 1..4, or 0 when the bytes do not
 * begin with a valid, complete sequence (then *code is untouched). */
size_t di_utf8_decode(const char *bytes, size_t n, uint32_t *code);

/* Length of the longest valid prefix; n when all of it is valid. */
size_t di_utf8_valid_prefix(const char *bytes, size_t n);

/* How many bytes at the end are the beginning of a valid sequence that is not complete: 0..3. */
size_t di_utf8_incomplete_tail(const char *bytes, size_t n);

/* Writes 1..4 bytes; code must be a scalar value. */
size_t di_utf8_encode(uint32_t code, char bytes[4]);

#endif
