/* Files: reading whole small ones, and mapping large ones read-only.
 *
 * Sizes are 64-bit throughout: a shard of the release may exceed 4 GiB, a table 98 GB.
 */
#ifndef DI_BASE_FILE_H
#define DI_BASE_FILE_H

#include <stdint.h>

#include "base/error.h"

typedef struct di_map {
    const uint8_t *data; /* NULL when not mapped; read-only */
    uint64_t size;       /* bytes, as the file had when it was opened */
} di_map;

/* Maps a whole regular file; reads nothing yet. An empty file gives data NULL, size 0. */
di_status di_map_open(di_map *map, const char *path, di_error *error);
void di_map_close(di_map *map);

/* Reads a whole file, at most max_bytes, into malloc'ed memory with a NUL behind it.
 * The caller frees *data. Fails with a message that names the limit when the file is larger. */
di_status di_file_read(const char *path, uint64_t max_bytes, char **data, uint64_t *size,
                       di_error *error);

#endif
