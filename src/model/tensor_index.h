/* Name -> position in an array of tensors, by hashing: a checkpoint has 10^5 names. */
#ifndef DI_MODEL_TENSOR_INDEX_H
#define DI_MODEL_TENSOR_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "model/checkpoint.h"

typedef struct di_tensor_index {
    int64_t *slots; /* position + 1; 0 is empty */
    uint64_t mask;  /* number of slots - 1 */
} di_tensor_index;

/* Room for n names; false when out of memory. */
bool di_tensor_index_init(di_tensor_index *index, int64_t n);
void di_tensor_index_deinit(di_tensor_index *index);

/* Position of `name` in tensors[], or -1. */
int64_t di_tensor_index_find(const di_tensor_index *index, const di_tensor *tensors,
                             const char *name);

/* Enters tensors[position]. Returns `position`, or the position of an earlier one of that name. */
int64_t di_tensor_index_add(di_tensor_index *index, const di_tensor *tensors, int64_t position);

#endif
