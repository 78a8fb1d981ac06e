/* The index by name: linear probing from the name's first bytes, which are as good as random, in a
 * table at most half full. Removal moves later entries back, so there are no graves and a lookup
 * stops at the first empty slot for ever.
 */
#include <stdlib.h>
#include <string.h>

#include "kv/kv_internal.h"

static uint32_t n_slots(int32_t n) {
    uint32_t slots = 2;
    while (slots < 2 * (uint32_t)n) slots *= 2;
    return slots;
}

uint64_t kv__table_bytes(int32_t n) { return (uint64_t)n_slots(n) * sizeof(int32_t); }

bool kv__table_init(kv__table *table, const di_kv_name *names, int32_t n) {
    *table = (kv__table){malloc((size_t)kv__table_bytes(n)), n_slots(n) - 1, names};
    if (table->slots) memset(table->slots, 0xff, (size_t)kv__table_bytes(n)); /* all -1 */
    return table->slots != NULL;
}

void kv__table_deinit(kv__table *table) {
    free(table->slots);
    table->slots = NULL;
}

static uint32_t home(const kv__table *table, const di_kv_name *name) {
    uint32_t bits;
    memcpy(&bits, name->bytes, sizeof bits);
    return bits & table->mask;
}

/* Where the name is, or the empty slot where it would be. */
static uint32_t slot_of(const kv__table *table, const di_kv_name *name) {
    uint32_t slot = home(table, name);
    while (table->slots[slot] >= 0 && !di_kv_name_equal(&table->names[table->slots[slot]], name)) {
        slot = (slot + 1) & table->mask;
    }
    return slot;
}

int32_t kv__table_find(const kv__table *table, const di_kv_name *name) {
    return table->slots[slot_of(table, name)];
}

void kv__table_insert(kv__table *table, int32_t entry) {
    uint32_t slot = slot_of(table, &table->names[entry]);
    assert(table->slots[slot] < 0);
    table->slots[slot] = entry;
}

void kv__table_remove(kv__table *table, int32_t entry) {
    uint32_t hole = slot_of(table, &table->names[entry]);
    assert(table->slots[hole] == entry);
    for (uint32_t at = (hole + 1) & table->mask; table->slots[at] >= 0;
         at = (at + 1) & table->mask) {
        /* It may move back into the hole unless its home lies behind the hole. */
        uint32_t from_home = (at - home(table, &table->names[table->slots[at]])) & table->mask;
        uint32_t from_hole = (at - hole) & table->mask;
        if (from_home < from_hole) continue;
        table->slots[hole] = table->slots[at];
        hole = at;
    }
    table->slots[hole] = -1;
}
