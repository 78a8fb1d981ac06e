/* The tier in memory: fixed slots in one block, found by the same index and dropped by the same
 * list as the pool's pages. Operations are done when they are begun; only their completions wait,
 * so that callers cannot come to rely on it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "kv/kv_internal.h"
#include "kv/kv_tier.h"

enum { MAX_UNDER_WAY = 1024, MAX_ENTRIES = 1 << 28, ALIGN = 64 };

typedef struct ram_tier {
    di_kv_tier tier; /* first: the door */
    int32_t max_entries;
    int32_t n_entries; /* slots below it are in use or in `holes` */
    int32_t n_holes;
    uint64_t stride;   /* bytes from slot to slot */
    uint8_t *payloads; /* [max_entries][stride] */
    di_kv_name *names; /* [max_entries] */
    uint32_t *crcs;    /* [max_entries] */
    int32_t *holes;    /* [max_entries], slots of dropped entries */
    kv__link *links;   /* [max_entries + 1] by last use */
    kv__table index;
    di_kv_completion ready[MAX_UNDER_WAY]; /* a ring: n_ready from first_ready on */
    int32_t first_ready, n_ready;
    di_kv_tier_stats stats;
} ram_tier;

/* Rounding the table up to a power of two makes this no line, but it never falls. */
static uint64_t bytes_for(uint64_t stride, int32_t n) {
    uint64_t each = stride + sizeof(di_kv_name) + sizeof(uint32_t) + sizeof(int32_t);
    return sizeof(ram_tier) + (uint64_t)n * each + ((uint64_t)n + 1) * sizeof(kv__link) +
           kv__table_bytes(n);
}

static int32_t entries_for(uint64_t stride, uint64_t max_bytes) {
    int32_t least = 0, beyond = MAX_ENTRIES + 1; /* 0 fits by definition */
    if (max_bytes / stride < MAX_ENTRIES) beyond = (int32_t)(max_bytes / stride) + 1;
    while (beyond - least > 1) {
        int32_t middle = least + (beyond - least) / 2;
        if (bytes_for(stride, middle) <= max_bytes) {
            least = middle;
        } else {
            beyond = middle;
        }
    }
    return least;
}

static bool complete(ram_tier *ram, uint64_t tag, di_kv_tier_op op, di_kv_tier_result result,
                     int32_t n_pages) {
    int32_t at = (ram->first_ready + ram->n_ready++) % MAX_UNDER_WAY;
    ram->ready[at] = (di_kv_completion){tag, op, result, n_pages};
    if (ram->tier.notify) ram->tier.notify(ram->tier.notify_user);
    return true;
}

static void use(ram_tier *ram, int32_t entry) {
    kv__lru_remove(ram->links, entry);
    kv__lru_add_newest(ram->links, ram->max_entries, entry);
}

static void drop(ram_tier *ram, int32_t entry) {
    kv__table_remove(&ram->index, entry);
    kv__lru_remove(ram->links, entry);
    ram->holes[ram->n_holes++] = entry;
    ram->stats.n_pages--;
}

static bool ram_get(di_kv_tier *tier, const di_kv_name *name, void *to, uint64_t tag) {
    ram_tier *ram = (ram_tier *)tier;
    if (ram->n_ready == MAX_UNDER_WAY) return false;
    int32_t entry = kv__table_find(&ram->index, name);
    if (entry >= 0) {
        memcpy(to, ram->payloads + (uint64_t)entry * ram->stride, (size_t)tier->page_bytes);
        /* What was copied is what must be whole. */
        if (di_crc32c(0, to, (size_t)tier->page_bytes) == ram->crcs[entry]) {
            use(ram, entry);
            ram->stats.hits++;
            return complete(ram, tag, DI_KV_GET, DI_KV_DONE, 1);
        }
        drop(ram, entry);
        ram->stats.damaged++;
    }
    ram->stats.misses++;
    return complete(ram, tag, DI_KV_GET, DI_KV_MISS, 0);
}

/* A slot for a new entry: one dropped, one never used, or the oldest entry's. */
static int32_t find_room(ram_tier *ram) {
    if (ram->n_holes == 0 && ram->n_entries == ram->max_entries) {
        drop(ram, kv__lru_oldest(ram->links, ram->max_entries));
        ram->stats.evicted++;
    }
    return ram->n_holes > 0 ? ram->holes[--ram->n_holes] : ram->n_entries++;
}

static bool ram_put(di_kv_tier *tier, const di_kv_name *name, const void *from, uint64_t tag) {
    ram_tier *ram = (ram_tier *)tier;
    if (ram->n_ready == MAX_UNDER_WAY) return false;
    int32_t entry = kv__table_find(&ram->index, name);
    if (entry >= 0) {
        use(ram, entry);
        return complete(ram, tag, DI_KV_PUT, DI_KV_DONE, 1);
    }
    entry = find_room(ram);
    memcpy(ram->payloads + (uint64_t)entry * ram->stride, from, (size_t)tier->page_bytes);
    ram->crcs[entry] = di_crc32c(0, from, (size_t)tier->page_bytes);
    ram->names[entry] = *name;
    kv__table_insert(&ram->index, entry);
    kv__lru_add_newest(ram->links, ram->max_entries, entry);
    ram->stats.n_pages++;
    ram->stats.stored++;
    return complete(ram, tag, DI_KV_PUT, DI_KV_DONE, 1);
}

static bool ram_prefetch(di_kv_tier *tier, const di_kv_name *names, int32_t n, uint64_t tag) {
    ram_tier *ram = (ram_tier *)tier;
    if (ram->n_ready == MAX_UNDER_WAY) return false;
    int32_t held = 0;
    while (held < n && kv__table_find(&ram->index, &names[held]) >= 0) held++;
    /* The first is used last: the end of a chain is of no use without its beginning. */
    for (int32_t i = held; i-- > 0;) use(ram, kv__table_find(&ram->index, &names[i]));
    return complete(ram, tag, DI_KV_PREFETCH, DI_KV_DONE, held);
}

static int32_t ram_poll(di_kv_tier *tier, di_kv_completion *out, int32_t max) {
    ram_tier *ram = (ram_tier *)tier;
    int32_t n = 0;
    for (; n < max && ram->n_ready > 0; n++, ram->n_ready--) {
        out[n] = ram->ready[ram->first_ready];
        ram->first_ready = (ram->first_ready + 1) % MAX_UNDER_WAY;
    }
    return n;
}

static di_kv_tier_stats ram_stats(const di_kv_tier *tier) {
    return ((const ram_tier *)tier)->stats;
}

static void ram_destroy(di_kv_tier *tier) {
    ram_tier *ram = (ram_tier *)tier;
    kv__table_deinit(&ram->index);
    free(ram->links);
    free(ram->holes);
    free(ram->crcs);
    free(ram->names);
    free(ram->payloads);
    free(ram);
}

static bool take_memory(ram_tier *ram) {
    size_t n = (size_t)ram->max_entries;
    ram->payloads = aligned_alloc(ALIGN, n * (size_t)ram->stride);
    ram->names = malloc(n * sizeof *ram->names);
    ram->crcs = malloc(n * sizeof *ram->crcs);
    ram->holes = malloc(n * sizeof *ram->holes);
    ram->links = malloc((n + 1) * sizeof *ram->links);
    return ram->payloads && ram->names && ram->crcs && ram->holes && ram->links &&
           kv__table_init(&ram->index, ram->names, ram->max_entries);
}

di_status di_kv_tier_ram_create(uint64_t page_bytes, uint64_t max_bytes, di_kv_tier **out,
                                di_error *error) {
    *out = NULL;
    if (page_bytes < 1 || page_bytes > (uint64_t)1 << 40) {
        return di_fail(error, DI_ERR_USAGE, "memory tier: pages of %" PRIu64 " bytes", page_bytes);
    }
    uint64_t stride = (page_bytes + ALIGN - 1) / ALIGN * ALIGN;
    int32_t n = entries_for(stride, max_bytes);
    if (n < 1) {
        return di_fail(error, DI_ERR_USAGE,
                       "memory tier: %" PRIu64 " bytes do not hold one page; allow %" PRIu64
                       " or more",
                       max_bytes, bytes_for(stride, 1));
    }
    ram_tier *ram = calloc(1, sizeof *ram);
    if (!ram) return di_fail(error, DI_ERR_MEMORY, "out of memory: memory tier");
    ram->tier = (di_kv_tier){.kind = "ram",
                             .page_bytes = page_bytes,
                             .get = ram_get,
                             .put = ram_put,
                             .prefetch = ram_prefetch,
                             .poll = ram_poll,
                             .stats = ram_stats,
                             .destroy = ram_destroy};
    ram->max_entries = n;
    ram->stride = stride;
    ram->stats.max_bytes = max_bytes;
    ram->stats.bytes = bytes_for(stride, n);
    if (!take_memory(ram)) {
        ram_destroy(&ram->tier);
        return di_fail(error, DI_ERR_MEMORY,
                       "out of memory: memory tier of %" PRIu64 " MiB; allow less",
                       (max_bytes >> 20) + 1);
    }
    kv__lru_init(ram->links, n);
    *out = &ram->tier;
    return DI_OK;
}
