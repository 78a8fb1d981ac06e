/* The fingerprint of a model: enough of its files that two models which differ have different ones,
 * and no more, so that 475 GiB take well under a second. Samples are read and not mapped: a file
 * that shrinks meanwhile is an error then and not a signal.
 *
 * What is hashed: tag; digests of config.json, tokenizer.json, token_map.json (zeros for an absent
 * one); number of shards; of each its size and the digests of its header (with the eight bytes of
 * its length) and of its samples.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/file.h"
#include "base/sha256.h"
#include "kv/kv.h"

static const char TAG[] = "deepinfer.model.1";

enum { N_SAMPLES = 64, SAMPLE_BYTES = 4096, HEADER_MAX_BYTES = 512 << 20, TEXT_MAX = 512 << 20 };

static void add_u64(di_buffer *out, uint64_t value) {
    for (int i = 0; i < 8; i++) di_buffer_putc(out, (char)(value >> 8 * i));
}

static void add_digest(di_buffer *out, const void *bytes, uint64_t size) {
    uint8_t digest[DI_SHA256_BYTES];
    di_sha256(bytes, (size_t)size, digest);
    di_buffer_append(out, digest, sizeof digest);
}

/* A small file of the directory; an absent one counts as zeros when it may be absent. */
static di_status add_file(di_buffer *out, const char *directory, const char *name, bool optional,
                          di_error *error) {
    di_buffer path = DI_BUFFER_EMPTY;
    di_buffer_printf(&path, "%s/%s", directory, name);
    if (path.failed) return di_fail(error, DI_ERR_MEMORY, "out of memory: path of %s", name);
    di_status status = DI_OK;
    char *data = NULL;
    uint64_t size = 0;
    if (optional && access(path.data, F_OK) != 0 && errno == ENOENT) {
        static const uint8_t absent[DI_SHA256_BYTES];
        di_buffer_append(out, absent, sizeof absent);
    } else if ((status = di_file_read(path.data, TEXT_MAX, &data, &size, error)) == DI_OK) {
        add_digest(out, data, size);
    }
    free(data);
    di_buffer_free(&path);
    return status;
}

static di_status read_at(int fd, const char *path, uint64_t offset, uint8_t *to, uint64_t size,
                         di_error *error) {
    while (size > 0) {
        ssize_t n = pread(fd, to, (size_t)size, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return di_fail_errno(error, errno, "cannot read %s", path);
        if (n == 0) return di_fail(error, DI_ERR_IO, "%s became shorter while it was read", path);
        to += n;
        offset += (uint64_t)n;
        size -= (uint64_t)n;
    }
    return DI_OK;
}

/* data_at is where the shard's data begin. All of it when it is no more than the samples. */
static di_status add_samples(di_buffer *out, int fd, const char *path, uint64_t data_at,
                             uint64_t data_bytes, di_error *error) {
    uint8_t *samples = malloc(N_SAMPLES * SAMPLE_BYTES);
    if (!samples) return di_fail(error, DI_ERR_MEMORY, "out of memory: samples of %s", path);
    di_status status = DI_OK;
    uint64_t n = N_SAMPLES * SAMPLE_BYTES;
    if (data_bytes <= n) {
        n = data_bytes;
        status = read_at(fd, path, data_at, samples, n, error);
    } else {
        /* Sample i at i / 63 of the way, so that the first and the last bytes are among them. */
        uint64_t span = data_bytes - SAMPLE_BYTES, steps = N_SAMPLES - 1;
        for (uint64_t i = 0; i < N_SAMPLES && status == DI_OK; i++) {
            uint64_t offset = span / steps * i + span % steps * i / steps;
            status = read_at(fd, path, data_at + offset, samples + i * SAMPLE_BYTES, SAMPLE_BYTES,
                             error);
        }
    }
    if (status == DI_OK) add_digest(out, samples, n);
    free(samples);
    return status;
}

static di_status add_header(di_buffer *out, int fd, const char *path, uint64_t size,
                            uint64_t *data_at, di_error *error) {
    uint8_t length[8];
    if (size < sizeof length) {
        return di_fail(error, DI_ERR_INVALID, "%s is no safetensors file: %" PRIu64 " bytes", path,
                       size);
    }
    DI_TRY(read_at(fd, path, 0, length, sizeof length, error));
    uint64_t header = 0;
    for (int i = 8; i-- > 0;) header = header << 8 | length[i];
    if (header > size - sizeof length || header > HEADER_MAX_BYTES) {
        return di_fail(error, DI_ERR_INVALID, "%s: a header of %" PRIu64 " bytes is too large",
                       path, header);
    }
    *data_at = sizeof length + header;
    uint8_t *bytes = malloc((size_t)*data_at);
    if (!bytes) return di_fail(error, DI_ERR_MEMORY, "out of memory: header of %s", path);
    di_status status = read_at(fd, path, 0, bytes, *data_at, error);
    if (status == DI_OK) add_digest(out, bytes, *data_at);
    free(bytes);
    return status;
}

static di_status add_shard(di_buffer *out, const char *path, di_error *error) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return di_fail_errno(error, errno, "cannot open %s", path);
    di_status status;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        status = di_fail_errno(error, errno, "cannot stat %s", path);
        goto done;
    }
    uint64_t size = (uint64_t)st.st_size, data_at = 0;
    add_u64(out, size);
    DI_TRY_DONE(add_header(out, fd, path, size, &data_at, error));
    status = add_samples(out, fd, path, data_at, size - data_at, error);
done:
    close(fd);
    return status;
}

di_status di_kv_fingerprint(const char *directory, const di_checkpoint *checkpoint,
                            di_kv_name *fingerprint, di_error *error) {
    di_buffer text = DI_BUFFER_EMPTY;
    di_status status;
    int32_t n_shards = di_checkpoint_n_shards(checkpoint);
    di_buffer_puts(&text, TAG);
    DI_TRY_DONE(add_file(&text, directory, "config.json", false, error));
    DI_TRY_DONE(add_file(&text, directory, "tokenizer.json", true, error));
    DI_TRY_DONE(add_file(&text, directory, "token_map.json", true, error));
    add_u64(&text, (uint64_t)n_shards);
    for (int32_t i = 0; i < n_shards; i++) {
        DI_TRY_DONE(add_shard(&text, di_checkpoint_shard_path(checkpoint, i), error));
    }
    if (text.failed) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory: fingerprint of %s", directory);
        goto done;
    }
    di_sha256(text.data, text.size, fingerprint->bytes);
done:
    di_buffer_free(&text);
    return status;
}
