/* An engine of requests whose page pool is too small for them: what pre-emption needs. */
#ifndef DI_TESTS_SUPPORT_SMALL_POOL_H
#define DI_TESTS_SUPPORT_SMALL_POOL_H

#include "deepinfer.h"

/* The least options.memory, in bytes, with which the pool has n_pages or more; that is exactly
 * n_pages where it is the pages of all contexts halved some times. Opens and closes some engines;
 * fails the test when none opens. */
uint64_t small_pool_memory(const char *model, const di_engine_options *options, int64_t n_pages);

#endif
