#include "server/recent.h"

#include <string.h>

static size_t bucket_of(const char *key, size_t key_size) {
    size_t hash = 0;
    for (size_t i = 0; i < key_size; i++) hash = hash * 31 + (unsigned char)key[i];
    return hash % DI_RECENT_BUCKETS;
}

static void unlink_use(di_recent *set, di_recent_entry *e) {
    *(e->older ? &e->older->newer : &set->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &set->newest) = e->older;
}

static void link_newest(di_recent *set, di_recent_entry *e) {
    e->newer = NULL;
    e->older = set->newest;
    *(e->older ? &e->older->newer : &set->oldest) = e;
    set->newest = e;
}

void di_recent_init(di_recent *set, size_t max_bytes, void (*free_entry)(di_recent_entry *entry)) {
    *set = (di_recent){.max_bytes = max_bytes, .free_entry = free_entry};
}

void di_recent_deinit(di_recent *set) {
    while (set->oldest) di_recent_drop(set, set->oldest);
}

static void link_before(di_recent *set, di_recent_entry *e, di_recent_entry *newer) {
    e->newer = newer;
    e->older = newer->older;
    *(e->older ? &e->older->newer : &set->oldest) = e;
    newer->older = e;
}

/* Room for it, and into its bucket; false: it is too large. */
static bool insert(di_recent *set, di_recent_entry *entry) {
    if (entry->bytes > set->max_bytes) return false;
    while (set->bytes > set->max_bytes - entry->bytes) di_recent_drop(set, set->oldest);
    di_recent_entry **bucket = &set->buckets[bucket_of(entry->key, entry->key_size)];
    entry->next = *bucket;
    *bucket = entry;
    set->bytes += entry->bytes;
    return true;
}

bool di_recent_add(di_recent *set, di_recent_entry *entry) {
    if (!insert(set, entry)) return false;
    link_newest(set, entry);
    return true;
}

bool di_recent_add_before(di_recent *set, di_recent_entry *entry, const char *newer,
                          size_t newer_size) {
    if (!insert(set, entry)) return false;
    di_recent_entry *found = di_recent_find(set, newer, newer_size);
    if (found && found != entry) {
        link_before(set, entry, found);
    } else {
        link_newest(set, entry);
    }
    return true;
}

di_recent_entry *di_recent_find(const di_recent *set, const char *key, size_t key_size) {
    di_recent_entry *e = set->buckets[bucket_of(key, key_size)];
    while (e && (e->key_size != key_size || memcmp(e->key, key, key_size) != 0)) e = e->next;
    return e;
}

void di_recent_use(di_recent *set, di_recent_entry *entry) {
    unlink_use(set, entry);
    link_newest(set, entry);
}

void di_recent_drop(di_recent *set, di_recent_entry *entry) {
    di_recent_entry **at = &set->buckets[bucket_of(entry->key, entry->key_size)];
    while (*at != entry) at = &(*at)->next;
    *at = entry->next;
    unlink_use(set, entry);
    set->bytes -= entry->bytes;
    set->free_entry(entry);
}
