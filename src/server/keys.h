/* API keys: who may ask, and how much at a time.
 *
 * A file has one key a line: KEY NAME [concurrency=N] [rpm=N]; # begins a comment. Keys are kept as
 * SHA-256 digests, and every one is compared, to its last byte, whatever is found: how long that
 * takes says nothing. One thread.
 */
#ifndef DI_SERVER_KEYS_H
#define DI_SERVER_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/sha256.h"

typedef struct di_key {
    struct di_key *next;
    uint8_t digest[DI_SHA256_BYTES];
    char name[64];
    int64_t max_open, per_minute; /* 0: no limit */
    int64_t n_open;               /* requests in progress, which hold the record */
    double tokens, refilled;      /* of the rate's bucket; seconds */
    bool retired;                 /* not in the file any more; freed with its last request */
} di_key;

typedef struct di_keys {
    di_key *first;
    int n; /* not retired */
} di_keys;

/* Reads a file in place of what there is; records of keys that stay are kept. When it fails,
 * everything is as before. DI_ERR_INVALID names the line, never the key. */
di_status di_keys_load(di_keys *keys, const char *path, di_error *error);
void di_keys_free(di_keys *keys);

/* The record of a key, or NULL. */
di_key *di_keys_find(const di_keys *keys, const char *key, size_t size);

/* A request begins. False: it is one too many; *retry_s says when to try again. */
bool di_key_acquire(di_key *key, double now, int *retry_s);
void di_key_release(di_keys *keys, di_key *key);

#endif
