/* Files that appear whole or not at all: written beside their place and renamed at the end. */
#ifndef DI_CLI_ATOMIC_FILE_H
#define DI_CLI_ATOMIC_FILE_H

#include <stdint.h>

#include "base/error.h"

typedef struct di_atomic_file {
    int fd;
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
