/* The output of a batch: whole lines or nothing, and what a former run has done.
 *
 * Every result has a key that follows from the request alone: of its custom_id, or, for a line that
 * cannot be told by one, of its number. The key is the result's id in the file, so the file itself
 * says what is done, and a program that is killed at any moment goes on where it was.
 */
#ifndef DI_CLI_BATCH_FILE_H
#define DI_CLI_BATCH_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct di_batch_key {
    uint8_t bytes[16];
} di_batch_key;

enum { DI_BATCH_KEY_TEXT = 33 }; /* as hex, with its NUL */

di_batch_key di_batch_key_of_id(const char *custom_id, size_t size);
di_batch_key di_batch_key_of_line(int64_t number);
void di_batch_key_text(const di_batch_key *key, char text[DI_BATCH_KEY_TEXT]);

/* A set of keys. Start zeroed. */
typedef struct di_batch_set {
    di_batch_key *keys;
    bool *used;
    size_t n, capacity;
} di_batch_set;

bool di_batch_set_has(const di_batch_set *set, const di_batch_key *key);
di_status di_batch_set_add(di_batch_set *set, const di_batch_key *key, di_error *error);
void di_batch_set_free(di_batch_set *set);

/* What every line of results begins with, the key's text behind it. */
#define DI_BATCH_LINE_HEAD "{\"id\": \"batch_req_"

typedef struct di_batch_file {
    int fd; /* -1: not open */
    const char *path;
    di_batch_set done; /* of lines that were there when it was opened */
} di_batch_file;

/* Opens or makes the file, locks it, reads its lines and cuts off a torn last one. DI_ERR_USAGE when
 * it is `input` itself, no regular file, in use by another batch, or holds anything else than
 * results. Close in any case. */
di_status di_batch_file_open(di_batch_file *file, const char *path, const char *input,
                             di_error *error);
/* One line, its newline included, by one write. */
di_status di_batch_file_append(di_batch_file *file, const char *line, size_t size, di_error *error);
void di_batch_file_close(di_batch_file *file);

#endif
