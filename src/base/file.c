#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static di_status open_regular(const char *path, int *fd, uint64_t *size, di_error *error) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would wait for a writer */
    if (*fd < 0) return di_fail_errno(error, errno, "cannot open %s", path);
    struct stat st;
    di_status status = DI_OK;
    if (fstat(*fd, &st) != 0) {
        status = di_fail_errno(error, errno, "cannot stat %s", path);
    } else if (!S_ISREG(st.st_mode)) {
        status = di_fail(error, DI_ERR_IO, "%s is not a regular file", path);
    } else {
        *size = (uint64_t)st.st_size;
    }
    if (status != DI_OK) close(*fd);
    return status;
}

di_status di_map_open(di_map *map, const char *path, di_error *error) {
    *map = (di_map){NULL, 0};
    int fd;
    uint64_t size;
    DI_TRY(open_regular(path, &fd, &size, error));
    if (size > 0) {
        void *data = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
        int map_errno = errno;
        close(fd);
        if (data == MAP_FAILED) return di_fail_errno(error, map_errno, "cannot map %s", path);
        map->data = data;
        map->size = size;
        return DI_OK;
    }
    close(fd);
    return DI_OK;
}

void di_map_close(di_map *map) {
    if (map->data) munmap((void *)(uintptr_t)map->data, (size_t)map->size);
    *map = (di_map){NULL, 0};
}

static di_status read_all(int fd, char *data, uint64_t size, const char *path, di_error *error) {
    uint64_t at = 0;
    while (at < size) {
        ssize_t n = read(fd, data + at, (size_t)(size - at));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return di_fail_errno(error, errno, "cannot read %s", path);
        if (n == 0) return di_fail(error, DI_ERR_IO, "%s became shorter while it was read", path);
        at += (uint64_t)n;
    }
    return DI_OK;
}

di_status di_file_read(const char *path, uint64_t max_bytes, char **data, uint64_t *size,
                       di_error *error) {
    *data = NULL;
    int fd;
    DI_TRY(open_regular(path, &fd, size, error));
    di_status status = DI_OK;
    if (*size > max_bytes) {
        status = di_fail(error, DI_ERR_INVALID,
                         "%s has %" PRIu64 " bytes; at most %" PRIu64 " are accepted", path, *size,
                         max_bytes);
    } else if (!(*data = malloc((size_t)*size + 1))) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory reading %s (%" PRIu64 " bytes)", path,
                         *size);
    } else {
        status = read_all(fd, *data, *size, path, error);
        (*data)[*size] = '\0';
    }
    close(fd);
    if (status != DI_OK) {
        free(*data);
        *data = NULL;
    }
    return status;
}
