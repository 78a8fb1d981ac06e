/* Whole numbers in what a user types: digits alone. */
#ifndef DI_BASE_DIGITS_H
#define DI_BASE_DIGITS_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* The number from least to most that text begins with, and where its digits end. False, with *out
 * and *end of no meaning, where none does or it is another one. */
static inline bool di_read_digits(const char *text, uint64_t least, uint64_t most, uint64_t *out,
                                  const char **end) {
    char *stop;
    if (*text < '0' || *text > '9') return false; /* strtoull takes signs and spaces */
    errno = 0;
    *out = strtoull(text, &stop, 10);
    *end = stop;
    return errno == 0 && *out >= least && *out <= most;
}

#endif
