#include "support/sha256.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

/* The round constants are the first 32 bits of the fractions of the cube roots of the primes; the
 * initial state those of the square roots of the first eight. Integers only, so nothing rounds. */
static uint32_t root_fraction(uint64_t prime, int degree) {
    uint64_t low = 0, high = (uint64_t)1 << 36; /* the root times 2^32 */
    while (low + 1 < high) {
        uint64_t middle = (low + high) / 2;
        /* middle^degree <= prime * 2^(32 degree), in limbs of 32 bits */
        uint32_t product[4] = {1, 0, 0, 0}, a[2] = {(uint32_t)middle, (uint32_t)(middle >> 32)};
        for (int d = 0; d < degree; d++) {
            uint32_t next[4] = {0};
            for (int i = 0; i < 4; i++) {
                uint64_t carry = 0;
                for (int k = 0; k < 2 && i + k < 4; k++) {
                    uint64_t sum = (uint64_t)product[i] * a[k] + next[i + k] + carry;
                    next[i + k] = (uint32_t)sum;
                    carry = sum >> 32;
                }
                for (int k = i + 2; k < 4 && carry; k++) {
                    uint64_t sum = next[k] + carry;
                    next[k] = (uint32_t)sum;
                    carry = sum >> 32;
                }
            }
            memcpy(product, next, sizeof next);
        }
        uint64_t whole = degree == 2 ? ((uint64_t)product[3] << 32 | product[2]) : product[3];
        if (whole >= prime)
            high = middle;
        else
            low = middle;
    }
    return (uint32_t)low;
}

static void constants(uint32_t k[64], uint32_t h[8]) {
    int n = 0;
    for (uint32_t candidate = 2; n < 64; candidate++) {
        int prime = 1;
        for (uint32_t d = 2; d * d <= candidate; d++) prime &= candidate % d != 0;
        if (!prime) continue;
        k[n] = root_fraction(candidate, 3);
        if (n < 8) h[n] = root_fraction(candidate, 2);
        n++;
    }
}

static void block(uint32_t h[8], const uint32_t k[64], const uint8_t *bytes) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
        w[i] = (uint32_t)bytes[4 * i] << 24 | (uint32_t)bytes[4 * i + 1] << 16 |
               (uint32_t)bytes[4 * i + 2] << 8 | bytes[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t e = s[4], a = s[0];
        uint32_t t1 = s[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                      ((e & s[5]) ^ (~e & s[6])) + k[i] + w[i];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                      ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

void test_sha256(const void *bytes, size_t size, char hex[65]) {
    uint32_t k[64], h[8];
    constants(k, h);
    const uint8_t *at = bytes;
    size_t left = size;
    for (; left >= 64; at += 64, left -= 64) block(h, k, at);
    uint8_t tail[128] = {0};
    memcpy(tail, at, left);
    tail[left] = 0x80;
    size_t n = left < 56 ? 64 : 128;
    for (int i = 0; i < 8; i++) tail[n - 1 - (size_t)i] = (uint8_t)((uint64_t)size * 8 >> (8 * i));
    block(h, k, tail);
    if (n == 128) block(h, k, tail + 64);
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", (unsigned)h[i]);
}
