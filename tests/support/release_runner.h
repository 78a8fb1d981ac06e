/* Runs one stored operation on a backend and compares what comes out. */
#ifndef DI_TESTS_SUPPORT_RELEASE_RUNNER_H
#define DI_TESTS_SUPPORT_RELEASE_RUNNER_H

#include "support/device.h"
#include "support/release_vectors.h"

/* Limits that hold for every stored operation of the file. */
di_limits release_limits(const release_file *file);

/* Returns false when nothing knows how to run this operation. Memory is taken from the device and
 * not given back: the caller resets it. */
bool release_run(const release_file *file, const release_op *op, device *dev, release_score *score);

#endif
