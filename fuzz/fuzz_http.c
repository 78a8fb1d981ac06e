/* Any bytes as HTTP requests, one behind the other: found at the same places however they are cut,
 * and what is read stays inside of what was given. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "require.h"
#include "server/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int64_t find(const char *text, size_t size, size_t step) {
    size_t seen = 0;
    int64_t n = 0;
    for (size_t have = step; n == 0; have += step) {
        if (have > size) have = size;
        n = http_find_head(text, have, &seen);
        if (have == size) break;
    }
    return n;
}

static void check_text(http_text t, const char *text, size_t size) {
    REQUIRE(!t.data || (t.data >= text && t.size <= size && t.data + t.size <= text + size));
}

/* Bytes of the body that belong to it, or a failure. */
static int64_t decode(const http_head *head, const char *text, size_t size, size_t step,
                      di_buffer *out) {
    http_body body = {.chunked = head->content_length < 0,
                      .left = head->content_length < 0 ? 0 : (uint64_t)head->content_length};
    size_t at = 0;
    di_buffer_clear(out);
    do {
        size_t n = size - at < step ? size - at : step;
        int64_t taken = http_read_body(&body, text + at, n, 1000, out);
        if (taken < 0) return taken;
        REQUIRE((size_t)taken <= n && out->size <= 1000);
        at += (size_t)taken;
    } while (!body.done && at < size);
    return body.done ? (int64_t)at : -9;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    di_buffer whole = DI_BUFFER_EMPTY, pieces = DI_BUFFER_EMPTY;
    for (;;) {
        http_head head;
        const char *why = NULL;
        int64_t n = find(text, size, size ? size : 1);
        REQUIRE(n == find(text, size, 1) && n == find(text, size, 7));
        if (n <= 0 || http_read_head(text, (size_t)n, &head, &why) != 0) break;
        check_text(head.method, text, (size_t)n);
        check_text(head.path, text, (size_t)n);
        check_text(head.query, text, (size_t)n);
        check_text(head.authority, text, (size_t)n);
        for (int i = 0; i < head.n_headers; i++) {
            check_text(head.headers[i].name, text, (size_t)n);
            check_text(head.headers[i].value, text, (size_t)n);
        }
        text += n;
        size -= (size_t)n;
        int64_t used = decode(&head, text, size, size ? size : 1, &whole);
        REQUIRE(used == decode(&head, text, size, 1, &pieces));
        /* Of what is refused there may be less or more. */
        REQUIRE((used < 0 && used != -9) || whole.size == pieces.size);
        REQUIRE((used < 0 && used != -9) ||
                (whole.size == 0 || memcmp(whole.data, pieces.data, whole.size) == 0));
        if (used < 0) break;
        text += used;
        size -= (size_t)used;
    }
    di_buffer_free(&whole);
    di_buffer_free(&pieces);
    return 0;
}
