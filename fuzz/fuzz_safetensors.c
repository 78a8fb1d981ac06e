/* Headers of safetensors files. An input whose first byte is even is a whole file without that
 * byte; otherwise two bytes give the number of tensor bytes and the rest is the header's JSON, so
 * that the fuzzer need not guess lengths. What is accepted must be readable to its last byte,
 * inside the file and free of overlap.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/checkpoint.h"

static void demand(int condition) {
    if (!condition) abort();
}

static void write_all(int fd, const void *bytes, size_t n) {
    demand(n == 0 || write(fd, bytes, n) == (ssize_t)n);
}

static void make_file(int fd, const uint8_t *data, size_t size) {
    static const uint8_t zeros[65536];
    if (size == 0 || data[0] % 2 == 0) {
        write_all(fd, data + (size > 0), size - (size > 0));
        return;
    }
    if (size < 3) return;
    size_t n_data = data[1] | (size_t)data[2] << 8, header = size - 3;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)header >> 8 * i);
    write_all(fd, length, 8);
    write_all(fd, data + 3, header);
    write_all(fd, zeros, n_data);
}

static void check(const di_safetensors *file, uint64_t file_size) {
    uint64_t total = 0;
    unsigned sum = 0;
    for (int64_t i = 0; i < di_safetensors_count(file); i++) {
        const di_tensor *t = di_safetensors_at(file, i);
        demand(di_safetensors_find(file, t->name) == t);
        demand(di_safetensors_offset(file, t) + t->bytes <= file_size);
        for (uint64_t b = 0; b < t->bytes; b += 997) sum += t->data[b];
        if (t->bytes > 0) sum += t->data[t->bytes - 1];
        total += t->bytes;
    }
    demand(total < file_size && sum < UINT32_MAX); /* the header takes at least 8 bytes */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    demand(fd >= 0);
    make_file(fd, data, size);
    off_t file_size = lseek(fd, 0, SEEK_END);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    di_safetensors *file;
    di_error error;
    if (di_safetensors_open(path, &file, &error) == DI_OK) {
        check(file, (uint64_t)file_size);
        di_safetensors_close(file);
    } else {
        demand(error.message[0] != '\0' && !strchr(error.message, '\n'));
    }
    close(fd);
    return 0;
}
