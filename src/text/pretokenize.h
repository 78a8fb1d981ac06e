/* The DeepSeek pre-tokeniser: cuts text into the pieces inside which tokens are formed.
 *
 * What three regular expressions say (pretokenize.c has them), by hand, in one pass from left to
 * right. Any bytes are allowed: a byte that is no part of valid UTF-8 counts as one character
 * without any class. Thread-safe, no state, no allocation, never fails.
 */
#ifndef DI_TEXT_PRETOKENIZE_H
#define DI_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

/* Length of the first piece of text[0..size), size > 0: 1..size bytes. The pieces of a text are
 * found by calling it again behind each piece: nothing before a piece's start has any influence. */
size_t di_pretokenize_next(const char *text, size_t size);

/* The patterns of the three steps in the normal form of di_pretokenize_is_step. */
extern const char *const di_pretokenize_patterns[3];

/* Whether `pattern` (length bytes) is that of step 0..2. Files write it in two ways, which mean
 * the same: CR and LF as escapes or as themselves, the double quote with a backslash or without. */
bool di_pretokenize_is_step(const char *pattern, size_t length, int step);

#endif
