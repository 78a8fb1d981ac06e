#include "base/siphash.h"

#include <sys/random.h>

int di_siphash_seed(uint64_t key[2]) {
    size_t size = 2 * sizeof *key;
    return getrandom(key, size, 0) == (ssize_t)size ? 0 : -1;
}

static uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

static void rounds(uint64_t v[4], int n) {
    for (int i = 0; i < n; i++) {
        v[0] += v[1];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[0] = rotate(v[0], 32);
        v[2] += v[3];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[2] = rotate(v[2], 32);
    }
}

/* n <= 8 bytes as a little-endian number. */
static uint64_t load(const unsigned char *at, size_t n) {
    uint64_t word = 0;
    for (size_t i = 0; i < n; i++) word |= (uint64_t)at[i] << 8 * i;
    return word;
}

static void absorb(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    rounds(v, 2);
    v[0] ^= word;
}

uint64_t di_siphash(const uint64_t key[2], const void *data, size_t size) {
    const unsigned char *at = data;
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
                     key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u};
    size_t left = size;
    for (; left >= 8; left -= 8, at += 8) absorb(v, load(at, 8));
    absorb(v, load(at, left) | (uint64_t)(size & 0xFF) << 56);
    v[2] ^= 0xFF;
    rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
