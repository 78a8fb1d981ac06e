/* Temporary directories and small files for tests. Everything asserts: a test that cannot set up
 * its files has failed. */
#ifndef DI_TESTS_SUPPORT_TEMP_H
#define DI_TESTS_SUPPORT_TEMP_H

#include <stddef.h>

/* A new directory; free() the path. */
char *temp_dir_create(void);
/* Removes it with all that is in it, and frees the path. */
void temp_dir_destroy(char *directory);

/* One for all tests of a program: setup and teardown of a group. */
extern char *temp_root;
int temp_root_create(void **state);
int temp_root_destroy(void **state);

/* printf into malloc'ed memory. */
char *temp_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));

void temp_write(const char *path, const void *bytes, size_t n);
/* The file with a NUL behind it; free() it. n may be NULL. */
char *temp_read(const char *path, size_t *n);
/* Copies every regular file of a directory into another, flat. */
void temp_copy_dir(const char *from, const char *to);

/* `text` with `from`, which must occur exactly once, replaced; free() it. */
char *temp_replace(const char *text, const char *from, const char *to);

/* The same inside the header of a safetensors file, in place on disk. */
void temp_edit_header(const char *path, const char *from, const char *to);

#endif
