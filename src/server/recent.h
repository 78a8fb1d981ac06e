/* What was used lately, by key, bounded by bytes: what was not used for longest goes first.
 *
 * Entries are the caller's structs that begin with a di_recent_entry; in the set they are the set's, which
 * frees them by the caller's function. No lock: its owner has one.
 */
#ifndef DI_SERVER_RECENT_H
#define DI_SERVER_RECENT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct di_recent_entry {
    const char *key; /* of the entry's own memory; random, so that no hash is attacked */
    size_t key_size;
    size_t bytes;                                 /* that it takes, itself included */
    struct di_recent_entry *next, *older, *newer; /* the set's */
} di_recent_entry;

enum { DI_RECENT_BUCKETS = 16384 }; /* small responses may be a hundred thousand */

typedef struct di_recent {
    di_recent_entry *buckets[DI_RECENT_BUCKETS];
    di_recent_entry *oldest, *newest;
    size_t bytes, max_bytes;
    void (*free_entry)(di_recent_entry *entry);
} di_recent;

void di_recent_init(di_recent *set, size_t max_bytes, void (*free_entry)(di_recent_entry *entry));
void di_recent_deinit(di_recent *set);

/* As the newest; others make room for it. False: it is larger than all that may be kept, and the
 * caller's. A key is not added twice. */
bool di_recent_add(di_recent *set, di_recent_entry *entry);
/* The same, as if it had been used just before `newer`, if that is still there once there is room; otherwise as the
 * newest. */
bool di_recent_add_before(di_recent *set, di_recent_entry *entry, const char *newer,
                          size_t newer_size);
/* NULL: there is none. Looking is no use. */
di_recent_entry *di_recent_find(const di_recent *set, const char *key, size_t key_size);
/* It becomes the newest. */
void di_recent_use(di_recent *set, di_recent_entry *entry);
void di_recent_drop(di_recent *set, di_recent_entry *entry);

#endif
