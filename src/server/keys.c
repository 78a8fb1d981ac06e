#include "server/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/file.h"

enum { MAX_FILE = 4 << 20, MAX_KEYS = 10000 }; /* each is compared for every request */

/* ---- The file ---- */

static bool read_limit(const char *word, const char *name, int64_t *out) {
    size_t n = strlen(name);
    char *end;
    if (strncmp(word, name, n) != 0 || word[n] < '0' || word[n] > '9') return false;
    long long value = strtoll(word + n, &end, 10);
    if (*end || value < 1 || value > 1000000000) return false;
    *out = value;
    return true;
}

/* KEY NAME [concurrency=N] [rpm=N]; NULL *out: there is none in the line. */
static di_status read_line(char *line, const char *path, int number, di_key **out,
                           di_error *error) {
    char *save = NULL, *comment = strchr(line, '#');
    if (comment) *comment = '\0';
    char *key = strtok_r(line, " \t\r", &save), *name = strtok_r(NULL, " \t\r", &save);
    *out = NULL;
    if (!key) return DI_OK;
    if (!name || strlen(name) >= sizeof(*out)->name || strlen(key) < 8) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s: line %d: a key of 8 characters or more and a short name are needed",
                       path, number);
    }
    di_key *record = calloc(1, sizeof *record);
    if (!record) return di_fail(error, DI_ERR_MEMORY, "out of memory: keys");
    di_sha256(key, strlen(key), record->digest);
    snprintf(record->name, sizeof record->name, "%s", name);
    for (char *word; (word = strtok_r(NULL, " \t\r", &save)) != NULL;) {
        if (read_limit(word, "concurrency=", &record->max_open) ||
            read_limit(word, "rpm=", &record->per_minute)) {
            continue;
        }
        free(record);
        return di_fail(error, DI_ERR_INVALID,
                       "%s: line %d: behind the name there may be concurrency=N and rpm=N", path,
                       number);
    }
    *out = record;
    return DI_OK;
}

static void free_list(di_key *key) {
    while (key) {
        di_key *next = key->next;
        free(key);
        key = next;
    }
}

static di_status read_lines(char *text, const char *path, di_key **out, int *n, di_error *error) {
    char *line = text;
    *out = NULL;
    *n = 0;
    for (int number = 1; line; number++) {
        char *end = strchr(line, '\n');
        di_key *key;
        if (end) *end = '\0';
        di_status status = read_line(line, path, number, &key, error);
        if (status == DI_OK && key && ++*n > MAX_KEYS) {
            free(key);
            status = di_fail(error, DI_ERR_INVALID, "%s: more than %d keys", path, MAX_KEYS);
        }
        if (status != DI_OK) {
            free_list(*out);
            *out = NULL;
            return status;
        }
        if (key) {
            key->next = *out;
            *out = key;
        }
        line = end ? end + 1 : NULL;
    }
    if (*out) return DI_OK;
    return di_fail(error, DI_ERR_INVALID, "%s: there is no key in it", path);
}

static di_key *find(di_key *list, const uint8_t digest[DI_SHA256_BYTES]) {
    di_key *found = NULL;
    for (di_key *key = list; key; key = key->next) {
        uint8_t differs = 0;
        for (int i = 0; i < DI_SHA256_BYTES; i++) differs |= key->digest[i] ^ digest[i];
        if (differs == 0 && !key->retired) found = key;
    }
    return found;
}

static int by_digest(const void *a, const void *b) {
    const di_key *const *left = a, *const *right = b;
    return memcmp((*left)->digest, (*right)->digest, DI_SHA256_BYTES);
}

/* The keys of a list in the order of their digests, to be freed. A key with two names would have the
 * limits of one of them. */
static di_status sort(di_key *list, int n, const char *path, di_key ***out, di_error *error) {
    di_key **sorted = calloc((size_t)n, sizeof *sorted);
    if (!sorted) return di_fail(error, DI_ERR_MEMORY, "out of memory: keys");
    for (int i = 0; i < n; i++, list = list->next) sorted[i] = list;
    qsort(sorted, (size_t)n, sizeof *sorted, by_digest);
    for (int i = 1; i < n; i++) {
        if (by_digest(&sorted[i - 1], &sorted[i]) != 0) continue;
        di_status status = di_fail(error, DI_ERR_INVALID, "%s: '%s' and '%s' have the same key",
                                   path, sorted[i - 1]->name, sorted[i]->name);
        free(sorted);
        return status;
    }
    *out = sorted;
    return DI_OK;
}

/* The new list, of n in their order, takes the place of the old one: what stays keeps its record, for
 * requests hold it. */
static void replace(di_keys *keys, di_key *list, di_key **sorted, int n) {
    di_key *old = keys->first, *next;
    for (di_key *key = old; key; key = key->next) {
        di_key **found = bsearch(&key, sorted, (size_t)n, sizeof *sorted, by_digest);
        di_key *same = found && !key->retired ? *found : NULL;
        key->retired = same == NULL;
        if (!same) continue;
        memcpy(key->name, same->name, sizeof key->name);
        key->max_open = same->max_open;
        key->per_minute = same->per_minute;
        same->retired = true; /* here: not needed */
    }
    keys->first = NULL;
    for (int pass = 0; pass < 2; pass++) {
        for (di_key *key = pass ? list : old; key; key = next) {
            next = key->next;
            if (key->retired && (pass == 1 || key->n_open == 0)) {
                free(key);
                continue;
            }
            key->next = keys->first;
            keys->first = key;
        }
    }
}

di_status di_keys_load(di_keys *keys, const char *path, di_error *error) {
    char *text;
    uint64_t size;
    di_key *list = NULL, **sorted = NULL;
    int n = 0;
    DI_TRY(di_file_read(path, MAX_FILE, &text, &size, error));
    di_status status = strlen(text) == size ? read_lines(text, path, &list, &n, error)
                                            : di_fail(error, DI_ERR_INVALID, "%s is no text", path);
    if (text) explicit_bzero(text, (size_t)size);
    free(text);
    if (status == DI_OK) status = sort(list, n, path, &sorted, error);
    if (status != DI_OK) {
        free_list(list);
        return status;
    }
    replace(keys, list, sorted, n);
    free(sorted);
    keys->n = n;
    return DI_OK;
}

void di_keys_free(di_keys *keys) {
    free_list(keys->first);
    memset(keys, 0, sizeof *keys);
}

/* ---- Requests ---- */

di_key *di_keys_find(const di_keys *keys, const char *key, size_t size) {
    uint8_t digest[DI_SHA256_BYTES];
    di_sha256(key, size, digest);
    return find(keys->first, digest);
}

bool di_key_acquire(di_key *key, double now, int *retry_s) {
    *retry_s = 1;
    if (key->max_open > 0 && key->n_open >= key->max_open) return false;
    if (key->per_minute > 0) {
        double most = (double)key->per_minute, rate = most / 60;
        key->tokens += (now - key->refilled) * rate;
        if (key->refilled == 0 || key->tokens > most) key->tokens = most;
        key->refilled = now;
        if (key->tokens < 1) {
            *retry_s = 1 + (int)((1 - key->tokens) / rate);
            return false;
        }
        key->tokens -= 1;
    }
    key->n_open++;
    return true;
}

void di_key_release(di_keys *keys, di_key *key) {
    if (--key->n_open > 0 || !key->retired) return;
    for (di_key **at = &keys->first; *at; at = &(*at)->next) {
        if (*at != key) continue;
        *at = key->next;
        free(key);
        return;
    }
}
