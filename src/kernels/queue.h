/* A host backend with a stream of its own: operations are computed on a thread that follows, while
 * the thread that enqueues them goes on (the engine builds step N+1 while step N computes).
 *
 * It wraps a backend of host memory whose operations run at once ("cpu", "ref") and is that backend
 * in all that can be seen (name, numerics, types, memory, bits) but for the time at which things
 * happen. The thread that enqueues is backend.h's one thread, the engine's. The stream's thread
 * calls the inner backend's operations and is member 0 of its team.
 *
 * Enqueuing copies the argument struct, or the bytes of an upload, into a ring; nothing is
 * allocated and no lock is taken. When the ring is full the caller sleeps until half of it is free.
 * An upload of more than 2 MiB waits until the stream is idle. So do prepare, free and destroy, and
 * nothing else but wait.
 */
#ifndef DI_KERNELS_QUEUE_H
#define DI_KERNELS_QUEUE_H

#include <stdint.h>

#include "kernels/backend.h"

#define DI_QUEUE_RING_BYTES (UINT64_C(4) << 20) /* of host memory, soon all resident */

/* Takes `inner` in any case: destroying *out destroys it, and a failure (DI_ERR_MEMORY, or
 * DI_ERR_IO when the system starts no thread) has destroyed it. `out` may point to the variable
 * that inner came from. Its alloc and bind must not touch the stream: they are called while
 * operations run. */
di_status di_backend_create_queue(di_backend *inner, di_backend **out, di_error *error);

/* What the stream's thread did since the backend was created. A batch is a run of jobs between
 * which the thread never found the queue empty; between two batches it had nothing to do. A step
 * that is enqueued before the one ahead of it is done continues that one's batch, so `idle_s` over a
 * run of steps is the sum of the gaps in which the workers were done and nobody had given them
 * more. The time before the first job and after the last one counts for nothing. */
typedef struct di_queue_stats {
    double busy_s; /* in batches */
    double idle_s; /* between one batch and the next */
    uint64_t batches;
} di_queue_stats;

/* Callable at any time from the thread that enqueues: a batch that runs is not counted yet. Behind
 * a wait for the stream's end everything is. Zeros for a backend that is no queue. */
di_queue_stats di_backend_queue_stats(const di_backend *backend);

#endif
