#include "cli/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/terminal.h"

static di_status read_all(int fd, const char *what, di_buffer *out, di_error *error) {
    enum { BLOCK = 1 << 16, MAX_BYTES = 1 << 30 };
    while (di_buffer_reserve(out, BLOCK)) {
        if (!di_interrupt_wait(fd)) return di_fail(error, DI_ERR_CANCELLED, "interrupted");
        ssize_t n = read(fd, out->data + out->size, BLOCK);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return di_fail_errno(error, errno, "cannot read %s", what);
        out->size += (size_t)n;
        out->data[out->size] = '\0';
        if (out->size > MAX_BYTES) {
            return di_fail(error, DI_ERR_LIMIT, "%s is longer than 1 GiB", what);
        }
        if (n == 0) return DI_OK;
    }
    return di_fail(error, DI_ERR_MEMORY, "out of memory reading %s", what);
}

di_status di_input_file(const char *path, di_buffer *out, di_error *error) {
    if (strcmp(path, "-") == 0) return read_all(STDIN_FILENO, "stdin", out, error);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return di_fail_errno(error, errno, "cannot open %s", path);
    di_status status = read_all(fd, path, out, error);
    close(fd);
    return status;
}

di_status di_input_text(const char *argument, const char *what, di_buffer *out, di_error *error) {
    if (!argument && di_terminal_is(stdin)) {
        return di_fail(error, DI_ERR_USAGE, "%s is missing: give it as an argument or on stdin",
                       what);
    }
    if (!argument || strcmp(argument, "-") == 0) {
        return read_all(STDIN_FILENO, "stdin", out, error);
    }
    di_buffer_puts(out, argument);
    return out->failed ? di_fail(error, DI_ERR_MEMORY, "out of memory") : DI_OK;
}

di_status di_input_ids(const char *text, size_t size, const char *what, di_ids *out,
                       di_error *error) {
    static const char between[] = " \t\r\n\v\f,";
    size_t at = 0, line = 1;
    while (at < size) {
        if (text[at] == '\n') line++;
        if (text[at] && strchr(between, text[at])) {
            at++;
            continue;
        }
        size_t begin = at;
        int64_t id = 0;
        while (at < size && text[at] >= '0' && text[at] <= '9' && id <= INT32_MAX) {
            id = id * 10 + (text[at++] - '0');
        }
        bool ended = at == size || (text[at] && strchr(between, text[at]));
        if (!ended || id > INT32_MAX) {
            size_t end = begin;
            while (end < size && end - begin < 20 && !strchr(between, text[end])) end++;
            return di_fail(error, DI_ERR_INVALID, "%s: line %zu: '%.*s' is no token id", what, line,
                           (int)(end - begin), text + begin);
        }
        int32_t narrow = (int32_t)id;
        DI_TRY(di_ids_append(out, &narrow, 1, error));
    }
    return DI_OK;
}
