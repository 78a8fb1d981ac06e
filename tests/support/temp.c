#include "support/temp.h"

#include <dirent.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

char *temp_printf(const char *format, ...) {
    va_list args;
    char *text = NULL;
    va_start(args, format);
    assert_true(vasprintf(&text, format, args) >= 0);
    va_end(args);
    return text;
}

char *temp_dir_create(void) {
    const char *base = getenv("TMPDIR");
    char *path = temp_printf("%s/deepinfer-test-XXXXXX", base && *base ? base : "/tmp");
    assert_non_null(mkdtemp(path));
    return path;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

void temp_dir_destroy(char *directory) {
    chmod(directory, 0700);
    assert_int_equal(nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
    free(directory);
}

void temp_write(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

char *temp_read(const char *path, size_t *n) {
    struct stat st;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    size_t size = (size_t)st.st_size;
    char *bytes = malloc(size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, size, f), size);
    fclose(f);
    bytes[size] = '\0';
    if (n) *n = size;
    return bytes;
}

void temp_copy_dir(const char *from, const char *to) {
    DIR *dir = opendir(from);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char *source = temp_printf("%s/%s", from, entry->d_name);
        struct stat st;
        assert_int_equal(stat(source, &st), 0);
        if (S_ISREG(st.st_mode)) {
            size_t n;
            char *bytes = temp_read(source, &n), *target = temp_printf("%s/%s", to, entry->d_name);
            temp_write(target, bytes, n);
            free(target);
            free(bytes);
        }
        free(source);
    }
    closedir(dir);
}

char *temp_replace(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    if (!at) fail_msg("not found: %s", from);
    if (strstr(at + 1, from)) fail_msg("found more than once: %s", from);
    return temp_printf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

void temp_edit_header(const char *path, const char *from, const char *to) {
    size_t n;
    char *bytes = temp_read(path, &n);
    uint64_t header = 0;
    for (int i = 0; i < 8; i++) header |= (uint64_t)(uint8_t)bytes[i] << 8 * i;
    assert_true(n >= 8 && header <= n - 8);
    char *old = temp_printf("%.*s", (int)header, bytes + 8);
    char *edited = temp_replace(old, from, to);
    size_t length = strlen(edited), rest = n - 8 - (size_t)header;
    char *out = malloc(8 + length + rest);
    assert_non_null(out);
    for (int i = 0; i < 8; i++) out[i] = (char)(length >> 8 * i);
    memcpy(out + 8, edited, length);
    memcpy(out + 8 + length, bytes + 8 + header, rest);
    temp_write(path, out, 8 + length + rest);
    free(out);
    free(edited);
    free(old);
    free(bytes);
}

char *temp_root;

int temp_root_create(void **state) {
    (void)state;
    temp_root = temp_dir_create();
    return 0;
}

int temp_root_destroy(void **state) {
    (void)state;
    temp_dir_destroy(temp_root);
    temp_root = NULL;
    return 0;
}
