/* The set of parameter names of one call: open addressing, so that a model that writes a hundred
 * thousand parameters costs no more than their length. What it writes may be a stranger's choice, so
 * the hash has a secret: names that all fall into one place cannot be made. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/siphash.h"
#include "text/dsml.h"

typedef struct dsml_key {
    uint64_t hash;
    size_t start, size; /* of dsml_keys.bytes */
    bool used;
} dsml_key;

/* The slot that holds the key, or the free one where it belongs. */
static dsml_key *find_slot(const dsml_keys *keys, uint64_t hash, const char *key, size_t size) {
    size_t at = (size_t)hash & (keys->n_slots - 1);
    for (;; at = (at + 1) & (keys->n_slots - 1)) {
        dsml_key *slot = &keys->slots[at];
        if (!slot->used) return slot;
        if (slot->hash == hash && slot->size == size &&
            (size == 0 || memcmp(keys->bytes.data + slot->start, key, size) == 0)) {
            return slot;
        }
    }
}

static bool grow(dsml_keys *keys) {
    dsml_keys larger = *keys;
    if (keys->n_slots == 0 && di_siphash_seed(larger.secret) != 0) return false;
    larger.n_slots = keys->n_slots ? keys->n_slots * 2 : 16;
    larger.slots = calloc(larger.n_slots, sizeof *larger.slots);
    if (!larger.slots) return false;
    for (size_t i = 0; i < keys->n_slots; i++) {
        const dsml_key *old = &keys->slots[i];
        if (!old->used) continue;
        const char *bytes = old->size ? keys->bytes.data + old->start : "";
        *find_slot(&larger, old->hash, bytes, old->size) = *old;
    }
    free(keys->slots);
    *keys = larger;
    return true;
}

dsml_added dsml__keys_add(dsml_keys *keys, const char *key, size_t size) {
    if (keys->n_used * 2 >= keys->n_slots && !grow(keys)) return DSML_NO_MEMORY;
    uint64_t hash = di_siphash(keys->secret, key, size);
    dsml_key *slot = find_slot(keys, hash, key, size);
    if (slot->used) return DSML_DUPLICATE;
    *slot = (dsml_key){hash, keys->bytes.size, size, true};
    di_buffer_append(&keys->bytes, key, size);
    if (keys->bytes.failed) return DSML_NO_MEMORY;
    keys->n_used++;
    return DSML_ADDED;
}

/* Called once a call, so it must not cost the size of the largest call so far. */
void dsml__keys_clear(dsml_keys *keys) {
    if (keys->n_slots > 64) {
        free(keys->slots);
        keys->slots = NULL;
        keys->n_slots = 0;
    } else if (keys->n_slots) {
        memset(keys->slots, 0, keys->n_slots * sizeof *keys->slots);
    }
    keys->n_used = 0;
    di_buffer_clear(&keys->bytes);
}

void dsml__keys_free(dsml_keys *keys) {
    free(keys->slots);
    di_buffer_free(&keys->bytes);
    *keys = (dsml_keys)DSML_KEYS_EMPTY;
}
