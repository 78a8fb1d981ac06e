/* Tiers: places below the device that hold pages by name: memory, disks, other machines.
 *
 * A tier is a map from names to page_bytes of payload (the page exactly as the device has it), and
 * may lose any entry at any time. Operations are begun here and end in a completion, which poll
 * hands out: on the caller's thread, in no promised order, each exactly once. A tier may work with
 * threads, rings or sockets of its own behind that; nothing here waits but destroy.
 *
 * All functions are called by one thread, the engine's. Payloads are host memory; how they get to
 * and from the device (di_backend's upload and download) is the caller's.
 */
#ifndef DI_KV_KV_TIER_H
#define DI_KV_KV_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kv/kv.h"

typedef enum di_kv_tier_op { DI_KV_GET, DI_KV_PUT, DI_KV_PREFETCH } di_kv_tier_op;

typedef enum di_kv_tier_result {
    DI_KV_DONE,
    DI_KV_MISS,  /* get: not there, or damaged and therefore dropped */
    DI_KV_FAILED /* the tier could not: refused, I/O error. A get of it counts as a miss */
} di_kv_tier_result;

typedef struct di_kv_completion {
    uint64_t tag; /* the caller's */
    di_kv_tier_op op;
    di_kv_tier_result result;
    int32_t n_pages; /* of a prefetch: how many names from the first on are there; else 1 if DONE */
} di_kv_completion;

typedef struct di_kv_tier_stats {
    uint64_t n_pages, bytes, max_bytes; /* held; taken, bookkeeping included; allowed */
    uint64_t hits, misses, damaged;     /* of gets; damaged ones are misses too */
    uint64_t stored, evicted;           /* pages put that were not there; dropped for room */
} di_kv_tier_stats;

typedef struct di_kv_tier di_kv_tier;

struct di_kv_tier {
    const char *kind;    /* "ram" */
    uint64_t page_bytes; /* of every payload */

    /* The three below return false, and there will be no completion, when too many operations are
     * under way: poll first. What pointers refer to stays valid and unchanged until the completion;
     * `names` of prefetch may be reused at once. */

    /* Reads a page into `to`, which holds anything at all until and unless it completes DONE. */
    bool (*get)(di_kv_tier *tier, const di_kv_name *name, void *to, uint64_t tag);
    /* Stores a page; it is there already is DONE as well. */
    bool (*put)(di_kv_tier *tier, const di_kv_name *name, const void *from, uint64_t tag);
    /* These pages, a chain from its beginning, will be wanted soon: brings them nearer, keeps them
     * for a while, and tells how many there are. n >= 1. */
    bool (*prefetch)(di_kv_tier *tier, const di_kv_name *names, int32_t n, uint64_t tag);

    /* Up to max completions; their number. */
    int32_t (*poll)(di_kv_tier *tier, di_kv_completion *out, int32_t max);
    di_kv_tier_stats (*stats)(const di_kv_tier *tier);
    /* Ends what is under way; no pointer is used after it, completions not polled are lost. */
    void (*destroy)(di_kv_tier *tier);

    /* Set by the caller before the first operation, or NULL: called when a completion becomes
     * ready, on any thread, possibly inside get, put or prefetch. It may only wake somebody. */
    void (*notify)(void *user);
    void *notify_user;
};

/* Pages in memory, at most max_bytes in all (bookkeeping included), the least recently used dropped
 * for new ones. Payloads carry a CRC32C that get checks. The memory is taken now, and used as it
 * fills. DI_ERR_USAGE when not one page fits, DI_ERR_MEMORY. The caller destroys *out. */
di_status di_kv_tier_ram_create(uint64_t page_bytes, uint64_t max_bytes, di_kv_tier **out,
                                di_error *error);

#endif
