/* Real bytes in a sparse checkpoint. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "model/checkpoint.h"
#include "model/synth.h"

enum { INDEX_MAX_BYTES = 100000000 };

/* The file that holds `tensor`, by the index or the single file. */
static di_status find_file(const char *directory, const char *tensor, char *path, size_t size,
                           di_error *error) {
    char index[4096], *text;
    uint64_t n;
    snprintf(path, size, "%s/model.safetensors", directory);
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", directory);
    if (access(index, F_OK) != 0) return DI_OK;
    DI_TRY(di_file_read(index, INDEX_MAX_BYTES, &text, &n, error));
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *document;
    di_status status = di_json_parse(text, (size_t)n, index, &arena, &document, error);
    if (status == DI_OK) {
        const di_json *file = di_json_get(di_json_get(document, "weight_map"), tensor);
        if (!file || file->type != DI_JSON_STRING || strchr(file->text, '/')) {
            status = di_fail(error, DI_ERR_USAGE, "%s has no tensor %s", index, tensor);
        } else {
            snprintf(path, size, "%s/%s", directory, file->text);
        }
    }
    di_arena_free(&arena);
    free(text);
    return status;
}

static di_status write_at(const char *path, uint64_t at, const uint8_t *bytes, uint64_t n,
                          di_error *error) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return di_fail_errno(error, errno, "cannot open %s", path);
    di_status status = DI_OK;
    while (n > 0 && status == DI_OK) {
        ssize_t put = pwrite(fd, bytes, (size_t)n, (off_t)at);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) {
            status = di_fail_errno(error, errno, "cannot write %s", path);
        } else {
            bytes += put;
            at += (uint64_t)put;
            n -= (uint64_t)put;
        }
    }
    if (close(fd) != 0 && status == DI_OK) {
        status = di_fail_errno(error, errno, "cannot write %s", path);
    }
    return status;
}

di_status di_synth_plant(const char *directory, const char *tensor, uint64_t offset,
                         const void *bytes, uint64_t n, di_error *error) {
    char path[4096];
    di_safetensors *file;
    DI_TRY(find_file(directory, tensor, path, sizeof path, error));
    DI_TRY(di_safetensors_open(path, &file, error));
    di_status status = DI_OK;
    const di_tensor *t = di_safetensors_find(file, tensor);
    if (!t) {
        status = di_fail(error, DI_ERR_USAGE, "%s has no tensor %s", path, tensor);
    } else if (offset > t->bytes || n > t->bytes - offset) {
        status = di_fail(error, DI_ERR_USAGE,
                         "%s: bytes %" PRIu64 " to %" PRIu64 " are outside tensor %s of %" PRIu64,
                         path, offset, offset + n, tensor, t->bytes);
    } else {
        status = write_at(path, di_safetensors_offset(file, t) + offset, bytes, n, error);
    }
    di_safetensors_close(file);
    return status;
}
