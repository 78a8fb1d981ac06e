/* The byte-level alphabet of vocabulary files: each byte is written as one character, so that a
 * token is printable text. Printable bytes of Latin-1 stand for themselves (0x21-7E, A1-AC, AE-FF),
 * the other 68 in order for U+0100 on: a blank is written as U+0120.
 */
#ifndef DI_TEXT_TOKENIZER_ALPHABET_H
#define DI_TEXT_TOKENIZER_ALPHABET_H

#include <stddef.h>

/* Writes the bytes that `spelling` (size bytes of UTF-8) stands for to `bytes`, which has room for
 * `size`; returns how many. 0 when it has a character outside the alphabet, or none at all. */
size_t di_alphabet_bytes(const char *spelling, size_t size, char *bytes);

#endif
