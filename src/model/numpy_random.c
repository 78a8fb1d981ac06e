/* numpy's default generator, as far as Engram's multipliers need it: SeedSequence, PCG64 (XSL-RR)
 * and Lemire's bounded draw, from their descriptions in model.md 5.2. Integers only, so the result
 * is the same everywhere.
 */
#include "model/engram.h"

__extension__ typedef unsigned __int128 u128;

/* SeedSequence's hash of one word; *constant changes with every call. */
static uint32_t hash_word(uint32_t value, uint32_t *constant, uint32_t factor) {
    value ^= *constant;
    *constant *= factor;
    value *= *constant;
    return value ^ (value >> 16);
}

static uint32_t mix_words(uint32_t x, uint32_t y) {
    uint32_t t = 0xca01f9ddu * x - 0x4973f715u * y;
    return t ^ (t >> 16);
}

/* The first four 64-bit words of SeedSequence(seed). */
static void seed_sequence(uint32_t seed, uint64_t words[4]) {
    uint32_t pool[4], constant = 0x43b0d7e5u;
    for (int i = 0; i < 4; i++) pool[i] = hash_word(i == 0 ? seed : 0, &constant, 0x931e8875u);
    for (int from = 0; from < 4; from++) {
        for (int to = 0; to < 4; to++) {
            if (to == from) continue;
            pool[to] = mix_words(pool[to], hash_word(pool[from], &constant, 0x931e8875u));
        }
    }
    constant = 0x8b51f9ddu;
    uint32_t out[8];
    for (int i = 0; i < 8; i++) out[i] = hash_word(pool[i % 4], &constant, 0x58f38dedu);
    for (int i = 0; i < 4; i++) words[i] = out[2 * i] | (uint64_t)out[2 * i + 1] << 32;
}

typedef struct pcg64 {
    u128 state, increment;
} pcg64;

static void pcg64_step(pcg64 *rng) {
    const u128 multiplier = (u128)0x2360ED051FC65DA4u << 64 | 0x4385DF649FCCF645u;
    rng->state = rng->state * multiplier + rng->increment;
}

static uint64_t pcg64_next(pcg64 *rng) {
    pcg64_step(rng);
    uint64_t x = (uint64_t)(rng->state >> 64) ^ (uint64_t)rng->state;
    unsigned turn = (unsigned)(rng->state >> 122);
    return x >> turn | x << (-turn & 63);
}

/* Uniform in [0, bound) without bias: Lemire's multiplication, redrawn where it would be uneven. */
static uint64_t pcg64_bounded(pcg64 *rng, uint64_t bound) {
    u128 product = (u128)pcg64_next(rng) * bound;
    if ((uint64_t)product < bound) {
        uint64_t threshold = -bound % bound;
        while ((uint64_t)product < threshold) product = (u128)pcg64_next(rng) * bound;
    }
    return (uint64_t)(product >> 64);
}

void di_numpy_integers(uint32_t seed, uint64_t bound, int32_t n, int64_t *out) {
    uint64_t words[4];
    seed_sequence(seed, words);
    pcg64 rng = {0, ((u128)words[2] << 64 | words[3]) << 1 | 1};
    pcg64_step(&rng);
    rng.state += (u128)words[0] << 64 | words[1];
    pcg64_step(&rng);
    for (int32_t i = 0; i < n; i++) out[i] = (int64_t)pcg64_bounded(&rng, bound);
}
