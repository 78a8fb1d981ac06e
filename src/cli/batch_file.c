#include "cli/batch_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/file.h"
#include "base/sha256.h"

/* ---- Keys ---- */

static di_batch_key key_of(const char *kind, const char *text, size_t size) {
    di_batch_key key = {{0}};
    uint8_t whole[DI_SHA256_BYTES], parts[2 * DI_SHA256_BYTES];
    di_sha256(kind, strlen(kind), parts);
    di_sha256(text, size, parts + DI_SHA256_BYTES);
    di_sha256(parts, sizeof parts, whole);
    memcpy(key.bytes, whole, sizeof key.bytes);
    return key;
}

di_batch_key di_batch_key_of_id(const char *custom_id, size_t size) {
    return key_of("custom_id", custom_id, size);
}

di_batch_key di_batch_key_of_line(int64_t number) {
    char text[24];
    int n = snprintf(text, sizeof text, "%" PRId64, number);
    return key_of("line", text, (size_t)n);
}

void di_batch_key_text(const di_batch_key *key, char text[DI_BATCH_KEY_TEXT]) {
    for (size_t i = 0; i < sizeof key->bytes; i++) {
        snprintf(text + 2 * i, 3, "%02x", key->bytes[i]);
    }
}

static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_key(const char *text, di_batch_key *key) {
    for (size_t i = 0; i < sizeof key->bytes; i++) {
        int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
        if (low < 0) return false;
        key->bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* ---- Sets: open addressing, at most half full; keys are hashes already ---- */

static size_t place(const di_batch_set *set, const di_batch_key *key) {
    uint64_t hash;
    memcpy(&hash, key->bytes, sizeof hash);
    size_t at = (size_t)hash & (set->capacity - 1);
    while (set->used[at] && memcmp(&set->keys[at], key, sizeof *key) != 0) {
        at = (at + 1) & (set->capacity - 1);
    }
    return at;
}

bool di_batch_set_has(const di_batch_set *set, const di_batch_key *key) {
    return set->capacity > 0 && set->used[place(set, key)];
}

static di_status grow(di_batch_set *set, di_error *error) {
    size_t capacity = set->capacity ? 2 * set->capacity : 256;
    di_batch_set more = {.keys = calloc(capacity, sizeof *more.keys),
                         .used = calloc(capacity, sizeof *more.used),
                         .n = set->n,
                         .capacity = capacity};
    if (!more.keys || !more.used) {
        di_batch_set_free(&more);
        return di_fail(error, DI_ERR_MEMORY, "out of memory: names of requests");
    }
    for (size_t i = 0; i < set->capacity; i++) {
        if (!set->used[i]) continue;
        size_t at = place(&more, &set->keys[i]);
        more.keys[at] = set->keys[i];
        more.used[at] = true;
    }
    di_batch_set_free(set);
    *set = more;
    return DI_OK;
}

di_status di_batch_set_add(di_batch_set *set, const di_batch_key *key, di_error *error) {
    if (2 * (set->n + 1) > set->capacity) DI_TRY(grow(set, error));
    size_t at = place(set, key);
    if (set->used[at]) return DI_OK;
    set->keys[at] = *key;
    set->used[at] = true;
    set->n++;
    return DI_OK;
}

void di_batch_set_free(di_batch_set *set) {
    free(set->keys);
    free(set->used);
    memset(set, 0, sizeof *set);
}

/* ---- The file ---- */

static di_status foreign(const di_batch_file *file, int64_t line, di_error *error) {
    return di_fail(error, DI_ERR_USAGE,
                   "%s: line %" PRId64 " is no result of a batch; give another file", file->path,
                   line);
}

/* One line of `size` bytes, the newline not counted. */
static di_status read_line(di_batch_file *file, const char *text, size_t size, int64_t number,
                           di_error *error) {
    static const size_t head = sizeof DI_BATCH_LINE_HEAD - 1;
    di_batch_key key;
    if (size < head + DI_BATCH_KEY_TEXT || memcmp(text, DI_BATCH_LINE_HEAD, head) != 0 ||
        !read_key(text + head, &key) || text[head + DI_BATCH_KEY_TEXT - 1] != '"' ||
        text[size - 1] != '}') {
        return foreign(file, number, error);
    }
    return di_batch_set_add(&file->done, &key, error);
}

/* Only what looks like the beginning of a result is cut off: never the end of another file. */
static di_status cut_torn(const di_batch_file *file, const char *text, size_t size, size_t whole,
                          int64_t number, di_error *error) {
    static const size_t head = sizeof DI_BATCH_LINE_HEAD - 1;
    size_t n = size - whole;
    if (n == 0) return DI_OK;
    if (memcmp(text + whole, DI_BATCH_LINE_HEAD, n < head ? n : head) != 0) {
        return foreign(file, number, error);
    }
    if (ftruncate(file->fd, (off_t)whole) == 0) return DI_OK;
    return di_fail_errno(error, errno, "cannot cut off the torn last line of %s", file->path);
}

static di_status read_lines(di_batch_file *file, const char *text, size_t size, di_error *error) {
    size_t at = 0;
    int64_t number = 1;
    for (const char *end; (end = memchr(text + at, '\n', size - at)) != NULL; number++) {
        size_t n = (size_t)(end - text) - at;
        DI_TRY(read_line(file, text + at, n, number, error));
        at += n + 1;
    }
    return cut_torn(file, text, size, at, number, error);
}

static di_status check_file(const di_batch_file *file, const char *input, di_error *error) {
    struct stat out, in;
    if (fstat(file->fd, &out) != 0) return di_fail_errno(error, errno, "%s", file->path);
    if (!S_ISREG(out.st_mode)) {
        return di_fail(error, DI_ERR_USAGE, "%s is no regular file", file->path);
    }
    if (stat(input, &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino) {
        return di_fail(error, DI_ERR_USAGE, "%s is the input and cannot be the output", file->path);
    }
    if (flock(file->fd, LOCK_EX | LOCK_NB) == 0) return DI_OK;
    if (errno == EWOULDBLOCK) {
        return di_fail(error, DI_ERR_USAGE, "%s is in use by another batch", file->path);
    }
    return di_fail_errno(error, errno, "cannot lock %s", file->path);
}

di_status di_batch_file_open(di_batch_file *file, const char *path, const char *input,
                             di_error *error) {
    memset(file, 0, sizeof *file);
    file->path = path;
    /* Without waiting: a pipe without a reader is refused below. */
    file->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (file->fd < 0) return di_fail_errno(error, errno, "cannot open %s", path);
    DI_TRY(check_file(file, input, error));
    di_map map;
    DI_TRY(di_map_open(&map, path, error));
    di_status status =
        map.size == 0 ? DI_OK : read_lines(file, (const char *)map.data, (size_t)map.size, error);
    di_map_close(&map);
    return status;
}

di_status di_batch_file_append(di_batch_file *file, const char *line, size_t size,
                               di_error *error) {
    ssize_t n;
    do {
        n = write(file->fd, line, size);
    } while (n < 0 && errno == EINTR);
    if (n == (ssize_t)size) return DI_OK;
    if (n < 0) return di_fail_errno(error, errno, "cannot write to %s", file->path);
    /* The torn line is cut off by the next run. */
    return di_fail(error, DI_ERR_IO, "cannot write to %s: the disk may be full", file->path);
}

void di_batch_file_close(di_batch_file *file) {
    if (file->path && file->fd >= 0) close(file->fd);
    file->fd = -1;
    di_batch_set_free(&file->done);
}
