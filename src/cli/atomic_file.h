/* Files that appear whole or not at all: written beside their place, on the disk before they are
 * moved to it. A link is followed: what it points to is replaced, with the permissions it had.
 */
#ifndef DI_CLI_ATOMIC_FILE_H
#define DI_CLI_ATOMIC_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct di_atomic_file {
    int fd;
    bool named;             /* `temporary` exists */
    char *path, *temporary; /* NULL: not open */
} di_atomic_file;

/* DI_ERR_USAGE when path is there and no regular file. */
di_status di_atomic_create(di_atomic_file *file, const char *path, di_error *error);
/* All n bytes at `offset`. */
di_status di_atomic_write(di_atomic_file *file, uint64_t offset, const void *bytes, uint64_t n,
                          di_error *error);
/* Puts the file into its place. Closed afterwards, also after a failure. */
di_status di_atomic_commit(di_atomic_file *file, di_error *error);
/* Removes what was written. Fine on a zeroed or committed file. */
void di_atomic_abandon(di_atomic_file *file);

#endif
