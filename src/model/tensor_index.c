#include "model/tensor_index.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_name(const char *name) { /* FNV-1a, then the high bits folded in */
    uint64_t hash = 1469598103934665603u;
    for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 1099511628211u;
    return hash ^ hash >> 32;
}

bool di_tensor_index_init(di_tensor_index *index, int64_t n) {
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)n) slots *= 2; /* at most half full */
    index->mask = slots - 1;
    index->slots = calloc((size_t)slots, sizeof *index->slots);
    return index->slots != NULL;
}

void di_tensor_index_deinit(di_tensor_index *index) {
    free(index->slots);
    *index = (di_tensor_index){NULL, 0};
}

/* The slot that holds `name`, or the empty one where it would go. */
static int64_t *probe(const di_tensor_index *index, const di_tensor *tensors, const char *name) {
    for (uint64_t i = hash_name(name);; i++) {
        int64_t *slot = &index->slots[i & index->mask];
        if (*slot == 0 || strcmp(tensors[*slot - 1].name, name) == 0) return slot;
    }
}

int64_t di_tensor_index_find(const di_tensor_index *index, const di_tensor *tensors,
                             const char *name) {
    return *probe(index, tensors, name) - 1;
}

int64_t di_tensor_index_add(di_tensor_index *index, const di_tensor *tensors, int64_t position) {
    int64_t *slot = probe(index, tensors, tensors[position].name);
    if (*slot == 0) *slot = position + 1;
    return *slot - 1;
}
