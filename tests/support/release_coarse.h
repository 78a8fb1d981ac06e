/* Runs the operations that the model calls, which fuse several stored ones, from the stored inputs
 * of the first to the stored outputs of the last. */
#ifndef DI_TESTS_SUPPORT_RELEASE_COARSE_H
#define DI_TESTS_SUPPORT_RELEASE_COARSE_H

#include "support/device.h"
#include "support/release_vectors.h"

/* Every coarse operation that begins with this stored operation; returns how many. Memory is taken
 * from the device and not given back: the caller resets it. */
int release_run_coarse(const release_file *file, const release_op *op, device *dev,
                       release_score *score);

#endif
