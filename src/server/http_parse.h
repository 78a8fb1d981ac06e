/* HTTP/1.1 requests (RFC 9110, 9112), strictly: what two readers could understand differently is
 * refused, for that is where one request is smuggled inside another.
 *
 * The head is looked for in what has come so far and read when it is whole; the body is decoded as
 * it comes. No state but what is in these structs, no sockets, any bytes.
 */
#ifndef DI_SERVER_HTTP_PARSE_H
#define DI_SERVER_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"

enum { HTTP_MAX_HEADERS = 100, HTTP_MAX_TARGET = 8192 };

typedef struct http_text {
    const char *data; /* not NUL-terminated */
    size_t size;
} http_text;

typedef struct http_header {
    http_text name, value; /* value without the blanks around it */
} http_header;

typedef struct http_head {
    http_text method;
    http_text path, query; /* of the target, in front of and behind '?' */
    http_text authority;   /* of a target that names one, then the same as Host; data NULL: none */
    int minor;             /* HTTP/1.minor: 0 or 1 */
    http_header headers[HTTP_MAX_HEADERS];
    int n_headers;
    int64_t content_length; /* 0 without a body; -1: chunked */
    bool keep_alive;        /* the client would go on */
    bool expects_continue;  /* "100 Continue" is waited for before the body comes */
} http_head;

/* Looks for the end of a head in `size` bytes, of which the first `*seen` were looked at before.
 * Returns the size of the head with the empty line behind it; 0: it is not whole yet (*seen is
 * moved on); -1: there is a line that does not end in CR LF. */
int64_t http_find_head(const char *bytes, size_t size, size_t *seen);

/* Reads a whole head; pointers go into `bytes`. Returns 0, or the status to refuse it with: 400,
 * 414, 431, 501 or 505, and *why. */
int http_read_head(const char *bytes, size_t size, http_head *out, const char **why);

/* The value of a header that may stand once, by its name in lower case; data NULL: not there. */
http_text http_get(const http_head *head, const char *name);
bool http_text_is(http_text text, const char *other);

/* The body. Start zeroed with `chunked` or `left` set. */
typedef struct http_body {
    bool chunked, done;
    uint64_t left; /* of the body, or of the chunk */
    int state;     /* of a chunked one */
    size_t n_line; /* bytes of a size line, of trailers */
    int n_digits;
} http_body;

/* Takes up to `size` bytes and appends the decoded ones to *out, which holds `max` at most before and after.
 * Returns how many bytes were taken, all of them unless `done`; -1: this is no chunked body; -2:
 * it is larger than max; -3: out of memory. */
int64_t http_read_body(http_body *body, const char *bytes, size_t size, size_t max, di_buffer *out);

#endif
