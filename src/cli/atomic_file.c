/* Where the file system can, the file has no name until it is whole: then nothing is left behind
 * even by a program that is killed. Where it cannot, it has one beside its place.
 */
#include "cli/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void release(di_atomic_file *file) {
    free(file->path);
    free(file->temporary);
    memset(file, 0, sizeof *file);
}

/* A nameless file in the directory of file->path; -1 where there is no such thing. */
static int open_nameless(const di_atomic_file *file) {
    char *directory = strdup(file->path);
    if (!directory) return -1;
    char *slash = strrchr(directory, '/');
    if (slash) slash[slash == directory ? 1 : 0] = '\0';
    int fd = -1;
    /* It is given its name through /proc. */
    if (access("/proc/self/fd", X_OK) == 0) {
        fd = open(slash ? directory : ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
    }
    free(directory);
    return fd;
}

static di_status open_file(di_atomic_file *file, const struct stat *old, di_error *error) {
    file->fd = open_nameless(file);
    if (file->fd < 0) {
        file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        file->named = file->fd >= 0;
    }
    if (file->fd < 0) return di_fail_errno(error, errno, "cannot create %s", file->path);
    /* What took the old one's place must not be open to more people than that was. */
    if (old && fchmod(file->fd, old->st_mode & 0777) != 0) {
        return di_fail_errno(error, errno, "cannot create %s", file->path);
    }
    return DI_OK;
}

di_status di_atomic_create(di_atomic_file *file, const char *path, di_error *error) {
    memset(file, 0, sizeof *file);
    struct stat st;
    bool there = stat(path, &st) == 0;
    if (there && !S_ISREG(st.st_mode)) {
        return di_fail(error, DI_ERR_USAGE, "%s is there already and no regular file", path);
    }
    file->path = there ? realpath(path, NULL) : strdup(path);
    if (file->path && asprintf(&file->temporary, "%s.%ld.tmp", file->path, (long)getpid()) < 0) {
        file->temporary = NULL;
    }
    if (!file->path || !file->temporary) {
        release(file);
        return di_fail(error, DI_ERR_MEMORY, "out of memory: %s", path);
    }
    file->fd = -1;
    di_status status = open_file(file, there ? &st : NULL, error);
    if (status != DI_OK) di_atomic_abandon(file);
    return status;
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

/* A name for what has none; an old file can only be replaced by one that has. */
static bool give_name(di_atomic_file *file) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file->fd);
    (void)unlink(file->temporary); /* of a program that had this number before */
    file->named = linkat(AT_FDCWD, link, AT_FDCWD, file->temporary, AT_SYMLINK_FOLLOW) == 0;
    return file->named;
}

di_status di_atomic_commit(di_atomic_file *file, di_error *error) {
    di_status status = DI_OK;
    /* Without it a crash of the machine could leave the name and nothing behind it. */
    if (fsync(file->fd) != 0 && errno != EINVAL) {
        status = di_fail_errno(error, errno, "cannot write %s", file->path);
    } else if (!file->named && !give_name(file)) {
        status = di_fail_errno(error, errno, "cannot put %s into its place", file->path);
    } else if (rename(file->temporary, file->path) != 0) {
        status = di_fail_errno(error, errno, "cannot put %s into its place", file->path);
    } else {
        file->named = false;
    }
    di_atomic_abandon(file);
    return status;
}

void di_atomic_abandon(di_atomic_file *file) {
    if (!file->temporary) return;
    if (file->fd >= 0) close(file->fd);
    if (file->named) unlink(file->temporary);
    release(file);
}
