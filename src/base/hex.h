/* Hexadecimal digits. */
#ifndef DI_BASE_HEX_H
#define DI_BASE_HEX_H

/* The value of a digit, 0 to 15, in either case; -1: it is none. */
static inline int di_hex_digit(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

#endif
