#include "api/stop_match.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

di_status di_stop_match_init(di_stop_match *match, const char *const *stops, int n,
                             di_error *error) {
    memset(match, 0, sizeof *match);
    if (n == 0) return DI_OK;
    match->stops = calloc((size_t)n, sizeof *match->stops);
    if (!match->stops) return di_fail(error, DI_ERR_MEMORY, "out of memory: stop texts");
    for (int i = 0; i < n; i++) {
        size_t size = strlen(stops[i]);
        if (size == 0) return di_fail(error, DI_ERR_USAGE, "stop: an empty text ends no answer");
        if (di_utf8_valid_prefix(stops[i], size) != size) {
            return di_fail(error, DI_ERR_USAGE, "stop: text %d is not valid UTF-8", i + 1);
        }
        match->stops[i] = strdup(stops[i]);
        if (!match->stops[i]) return di_fail(error, DI_ERR_MEMORY, "out of memory: stop texts");
        match->n_stops = i + 1;
    }
    return DI_OK;
}

void di_stop_match_deinit(di_stop_match *match) {
    for (int i = 0; i < match->n_stops; i++) free(match->stops[i]);
    free(match->stops);
    di_buffer_free(&match->held);
    memset(match, 0, sizeof *match);
}

/* Where the stop text begins that is complete first (of several, the longest), or `size`; *which: its
 * number. First in time, not in place: then it does not matter how the text was cut. */
static size_t find(const di_stop_match *match, const char *text, size_t size, int *which) {
    size_t best = size, best_end = size + 1;
    for (int i = 0; i < match->n_stops; i++) {
        size_t length = strlen(match->stops[i]);
        const char *at = memmem(text, size, match->stops[i], length);
        if (!at) continue;
        size_t begin = (size_t)(at - text), end = begin + length;
        if (end < best_end || (end == best_end && begin < best)) {
            best = begin;
            best_end = end;
            *which = i;
        }
    }
    return best;
}

/* Bytes at the end that may be the beginning of a stop text. */
static size_t open_tail(const di_stop_match *match, const char *text, size_t size) {
    size_t best = 0;
    for (int i = 0; i < match->n_stops; i++) {
        size_t most = strlen(match->stops[i]) - 1;
        if (most > size) most = size;
        for (size_t n = most; n > best; n--) {
            if (memcmp(text + size - n, match->stops[i], n) == 0) best = n;
        }
    }
    return best;
}

void di_stop_match_push(di_stop_match *match, const char *text, size_t size, di_buffer *out) {
    if (match->stopped) match->behind += size;
    if (match->stopped || size == 0) return;
    if (match->n_stops == 0) {
        di_buffer_append(out, text, size);
        return;
    }
    di_buffer_append(&match->held, text, size);
    if (match->held.failed) {
        out->failed = true;
        return;
    }
    char *held = match->held.data;
    size_t n = match->held.size, give = find(match, held, n, &match->which);
    if (give < n) {
        match->stopped = true;
        match->behind = n - give;
        di_buffer_append(out, held, give);
        di_buffer_clear(&match->held);
        return;
    }
    size_t keep = open_tail(match, held, n);
    di_buffer_append(out, held, n - keep);
    memmove(held, held + n - keep, keep);
    match->held.size = keep;
    held[keep] = '\0';
}

void di_stop_match_flush(di_stop_match *match, di_buffer *out) {
    if (!match->stopped && match->held.size > 0) {
        di_buffer_append(out, match->held.data, match->held.size);
    }
    di_buffer_clear(&match->held);
}
