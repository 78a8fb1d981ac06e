/* Random JSON Schemas, for property tests. */
#ifndef DI_TESTS_GRAMMAR_SCHEMAS_H
#define DI_TESTS_GRAMMAR_SCHEMAS_H

#include "base/buffer.h"

#include <stdint.h>

/* Appends one; the same seed gives the same. Some contradict themselves, and are then refused. */
void grammar_random_schema(uint64_t seed, di_buffer *out);

#endif
