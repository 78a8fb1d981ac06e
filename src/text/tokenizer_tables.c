/* The two hash tables of the tokenizer: pairs of tokens -> merge, bytes -> token. Open addressing
 * with linear probing, at most half full, built once. */
#include <string.h>

#include "text/tokenizer_internal.h"

static size_t mix(uint64_t value) {
    value *= 0x9E3779B97F4A7C15u; /* 2^64 / golden ratio: spreads neighbouring ids */
    return (size_t)(value ^ (value >> 32));
}

/* A power of two, at least 2 n. */
static size_t capacity_for(size_t n) {
    size_t capacity = 16;
    while (capacity < 2 * n) capacity *= 2;
    return capacity;
}

bool merges__init(di_tokenizer *t, size_t n) {
    size_t capacity = capacity_for(n);
    t->merges = di_arena_calloc(&t->arena, capacity, sizeof *t->merges);
    if (!t->merges) return false;
    for (size_t i = 0; i < capacity; i++) t->merges[i].key = MERGE_EMPTY;
    t->merge_mask = capacity - 1;
    return true;
}

static uint64_t pair_key(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static merge_slot *merge_place(const di_tokenizer *t, uint64_t key) {
    size_t at = mix(key) & t->merge_mask;
    while (t->merges[at].key != key && t->merges[at].key != MERGE_EMPTY) {
        at = (at + 1) & t->merge_mask;
    }
    return &t->merges[at];
}

bool merges__add(di_tokenizer *t, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    uint64_t key = pair_key(left, right);
    merge_slot *slot = merge_place(t, key);
    if (slot->key == key) return false;
    *slot = (merge_slot){key, rank, id};
    return true;
}

const merge_slot *merges__find(const di_tokenizer *t, int32_t left, int32_t right) {
    const merge_slot *slot = merge_place(t, pair_key(left, right));
    return slot->key == MERGE_EMPTY ? NULL : slot;
}

static uint64_t load(const char *bytes, size_t n) {
    uint64_t word = 0;
    memcpy(&word, bytes, n);
    return word;
}

static size_t hash_bytes(const char *bytes, size_t size) {
    uint64_t hash = size;
    for (; size >= 8; bytes += 8, size -= 8) hash = mix(hash ^ load(bytes, 8));
    return mix(hash ^ load(bytes, size));
}

bool words__init(di_tokenizer *t, size_t n) {
    size_t capacity = capacity_for(n);
    t->words = di_arena_calloc(&t->arena, capacity, sizeof *t->words);
    if (!t->words) return false;
    for (size_t i = 0; i < capacity; i++) t->words[i].id = -1;
    t->word_mask = capacity - 1;
    return true;
}

/* Slot of the token with these bytes, or the free one where it would be. */
static word_slot *word_place(const di_tokenizer *t, const char *bytes, size_t size, size_t hash) {
    size_t at = hash & t->word_mask;
    for (; t->words[at].id >= 0; at = (at + 1) & t->word_mask) {
        if (t->words[at].hash != (uint32_t)hash) continue;
        const token_data *word = &t->tokens[t->words[at].id];
        if (word->size == size && memcmp(word->bytes, bytes, size) == 0) break;
    }
    return &t->words[at];
}

void words__add(di_tokenizer *t, int32_t id) {
    const token_data *word = &t->tokens[id];
    size_t hash = hash_bytes(word->bytes, word->size);
    *word_place(t, word->bytes, word->size, hash) = (word_slot){(uint32_t)hash, id};
    if (word->size > t->longest_word) t->longest_word = word->size;
}

int32_t words__find(const di_tokenizer *t, const char *bytes, size_t size) {
    if (size > t->longest_word) return -1;
    return word_place(t, bytes, size, hash_bytes(bytes, size))->id;
}
