/* A backend for tests that behaves like a distant device, built on the scalar twins.
 *
 * Operations run on another thread, in order, late: at a wait(), when the queue is full, or after a
 * short random delay. A di_ptr is an address that faults when the host reads through it. Argument
 * structs and uploads are copied at the call; a download's host bytes are garbage until it ran.
 * Whoever works with it as with "ref", bit for bit, has kept the rules of backend.h.
 */
#ifndef DI_TESTS_SUPPORT_LATE_BACKEND_H
#define DI_TESTS_SUPPORT_LATE_BACKEND_H

#include "kernels/backend.h"

di_status late_backend_create(di_numerics numerics, di_backend **out, di_error *error);

#endif
