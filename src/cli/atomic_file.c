#include "cli/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

di_status di_atomic_create(di_atomic_file *file, const char *path, di_error *error) {
    memset(file, 0, sizeof *file);
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        return di_fail(error, DI_ERR_USAGE, "%s is there already and no regular file", path);
    }
    size_t size = strlen(path) + 32;
    char *temporary = malloc(size), *copy = strdup(path);
    if (!temporary || !copy) {
        free(temporary);
        free(copy);
        return di_fail(error, DI_ERR_MEMORY, "out of memory: %s", path);
    }
    snprintf(temporary, size, "%s.%ld.tmp", path, (long)getpid());
    file->fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file->fd < 0) {
        di_status status = di_fail_errno(error, errno, "cannot create %s", path);
        free(temporary);
        free(copy);
        return status;
    }
    file->temporary = temporary;
    file->path = copy;
    return DI_OK;
}

di_status di_atomic_write(di_atomic_file *file, uint64_t offset, const void *bytes, uint64_t n,
                          di_error *error) {
    const uint8_t *from = bytes;
    while (n > 0) {
        ssize_t written =
            pwrite(file->fd, from, n < (1u << 30) ? (size_t)n : 1u << 30, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return di_fail_errno(error, errno, "cannot write %s", file->path);
        from += written;
        offset += (uint64_t)written;
        n -= (uint64_t)written;
    }
    return DI_OK;
}

static void release(di_atomic_file *file) {
    free(file->path);
    free(file->temporary);
    memset(file, 0, sizeof *file);
}

di_status di_atomic_commit(di_atomic_file *file, di_error *error) {
    di_status status = DI_OK;
    if (close(file->fd) != 0) {
        status = di_fail_errno(error, errno, "cannot write %s", file->path);
    } else if (rename(file->temporary, file->path) != 0) {
        status = di_fail_errno(error, errno, "cannot put %s into its place", file->path);
    }
    if (status != DI_OK) unlink(file->temporary);
    release(file);
    return status;
}

void di_atomic_abandon(di_atomic_file *file) {
    if (!file->temporary) return;
    close(file->fd);
    unlink(file->temporary);
    release(file);
}
