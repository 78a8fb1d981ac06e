#include "server/http_parse.h"

#include <string.h>
#include <strings.h>

#include "base/hex.h"

/* ---- The head ---- */

int64_t http_find_head(const char *bytes, size_t size, size_t *seen) {
    for (size_t i = *seen; i < size; i++) {
        const char *lf = memchr(bytes + i, '\n', size - i);
        if (!lf) break;
        i = (size_t)(lf - bytes);
        if (i == 0 || bytes[i - 1] != '\r') return -1;
        if (i >= 3 && bytes[i - 2] == '\n') return (int64_t)i + 1;
        if (i == 1) return 2; /* an empty line where a request should be: refused by the reader */
    }
    *seen = size;
    return 0;
}

/* Of letters, digits and `others`. */
static bool is_made_of(http_text text, const char *others) {
    for (size_t i = 0; i < text.size; i++) {
        char c = text.data[i];
        bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (!plain && (c == '\0' || !strchr(others, c))) return false;
    }
    return true;
}

static bool is_token(http_text text) {
    return text.size > 0 && is_made_of(text, "!#$%&'*+-.^_`|~");
}

bool http_text_is(http_text text, const char *other) {
    return text.data && strlen(other) == text.size && memcmp(text.data, other, text.size) == 0;
}

static bool is_word(http_text text, const char *word) {
    return strlen(word) == text.size && strncasecmp(text.data, word, text.size) == 0;
}

http_text http_get(const http_head *head, const char *name) {
    for (int i = 0; i < head->n_headers; i++) {
        if (is_word(head->headers[i].name, name)) return head->headers[i].value;
    }
    return (http_text){NULL, 0};
}

static int refuse(int status, const char *text, const char **why) {
    *why = text;
    return status;
}

/* What stands before `end`, up to `c`; moves *at behind it. */
static bool take_until(const char **at, const char *end, char c, http_text *out) {
    const char *found = memchr(*at, c, (size_t)(end - *at));
    if (!found) return false;
    *out = (http_text){*at, (size_t)(found - *at)};
    *at = found + 1;
    return true;
}

/* "http://host/path", as proxies are asked: the host is kept, to be compared with Host. */
static void cut_authority(http_text *target, http_text *authority) {
    static const char *const schemes[] = {"http://", "https://"};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(schemes[i]);
        if (target->size <= n || strncasecmp(target->data, schemes[i], n) != 0) continue;
        const char *begin = target->data + n, *end = target->data + target->size, *at = begin;
        while (at < end && *at != '/') at++;
        *authority = (http_text){begin, (size_t)(at - begin)};
        *target = (http_text){at, (size_t)(end - at)};
        return;
    }
}

static int read_target(http_text target, http_head *out, const char **why) {
    if (target.size > HTTP_MAX_TARGET) return refuse(414, "the request target is too long", why);
    cut_authority(&target, &out->authority);
    if (target.size == 0 || target.data[0] != '/') {
        return refuse(400, "the request target must be a path", why);
    }
    for (size_t i = 0; i < target.size; i++) {
        unsigned char c = (unsigned char)target.data[i];
        if (c <= ' ' || c >= 0x7F || c == '#') {
            return refuse(400, "there is a character in the request target that must be escaped",
                          why);
        }
    }
    const char *mark = memchr(target.data, '?', target.size);
    size_t n = mark ? (size_t)(mark - target.data) : target.size;
    out->path = (http_text){target.data, n};
    out->query = mark ? (http_text){mark + 1, target.size - n - 1} : (http_text){NULL, 0};
    return 0;
}

static int read_request_line(const char *line, size_t size, http_head *out, const char **why) {
    const char *at = line, *end = line + size;
    http_text target;
    if (!take_until(&at, end, ' ', &out->method) || !is_token(out->method) ||
        !take_until(&at, end, ' ', &target)) {
        return refuse(400, "the first line is no HTTP request", why);
    }
    http_text version = {at, (size_t)(end - at)};
    if (version.size != 8 || memcmp(at, "HTTP/", 5) != 0 || at[6] != '.') {
        return refuse(400, "the first line is no HTTP request", why);
    }
    if (!http_text_is(version, "HTTP/1.1") && !http_text_is(version, "HTTP/1.0")) {
        return refuse(505, "only HTTP/1.0 and HTTP/1.1 are spoken here", why);
    }
    out->minor = at[7] - '0';
    return read_target(target, out, why);
}

static http_text trim(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    while (end > at && (end[-1] == ' ' || end[-1] == '\t')) end--;
    return (http_text){at, (size_t)(end - at)};
}

static int read_header(const char *line, size_t size, http_head *out, const char **why) {
    const char *at = line, *end = line + size;
    http_header header;
    if (*line == ' ' || *line == '\t') return refuse(400, "a folded header line", why);
    if (!take_until(&at, end, ':', &header.name) || !is_token(header.name)) {
        return refuse(400, "a header line without a name", why);
    }
    header.value = trim(at, end);
    for (size_t i = 0; i < header.value.size; i++) {
        unsigned char c = (unsigned char)header.value.data[i];
        if ((c < ' ' && c != '\t') || c == 0x7F) {
            return refuse(400, "a control character in a header", why);
        }
    }
    if (out->n_headers == HTTP_MAX_HEADERS) return refuse(431, "too many headers", why);
    out->headers[out->n_headers++] = header;
    return 0;
}

static int count(const http_head *head, const char *name) {
    int n = 0;
    for (int i = 0; i < head->n_headers; i++) n += is_word(head->headers[i].name, name);
    return n;
}

static int read_framing(http_head *out, const char **why) {
    int n_length = count(out, "content-length"), n_coding = count(out, "transfer-encoding");
    if (n_length > 1 || n_coding > 1 || (n_length > 0 && n_coding > 0)) {
        return refuse(400, "the length of the body is said more than once", why);
    }
    if (n_coding > 0) {
        if (out->minor == 0) return refuse(400, "HTTP/1.0 has no transfer codings", why);
        if (!is_word(http_get(out, "transfer-encoding"), "chunked")) {
            return refuse(501, "the only transfer coding known here is chunked", why);
        }
        out->content_length = -1;
        return 0;
    }
    http_text length = http_get(out, "content-length");
    if (n_length > 0 && (length.size == 0 || length.size > 18)) {
        return refuse(400, "Content-Length is no number of bytes", why);
    }
    for (size_t i = 0; i < length.size; i++) {
        if (length.data[i] < '0' || length.data[i] > '9') {
            return refuse(400, "Content-Length is no number of bytes", why);
        }
        out->content_length = out->content_length * 10 + (length.data[i] - '0');
    }
    return 0;
}

static bool has_word(http_text list, const char *word) {
    const char *at = list.data, *end = list.data + list.size;
    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma ? comma : end;
        if (is_word(trim(at, stop), word)) return true;
        at = stop + 1;
    }
    return false;
}

/* Whether one of the words behind Connection is this. The list may stand in several lines. */
static bool connection_says(const http_head *head, const char *word) {
    for (int i = 0; i < head->n_headers; i++) {
        const http_header *h = &head->headers[i];
        if (is_word(h->name, "connection") && has_word(h->value, word)) return true;
    }
    return false;
}

static int read_meaning(http_head *out, const char **why) {
    int n_host = count(out, "host");
    http_text host = http_get(out, "host"), named = out->authority;
    if (n_host > 1 || (n_host == 0 && out->minor == 1)) {
        return refuse(400, "exactly one Host header is needed", why);
    }
    if (!is_made_of(host, "-._~%!$&'()*+,;=:[]")) { /* RFC 3986, with a port */
        return refuse(400, "there is a character in the Host header that no host has", why);
    }
    if (named.data && (named.size != host.size ||
                       (host.size > 0 && strncasecmp(named.data, host.data, host.size) != 0))) {
        return refuse(400, "the host of the request target is not that of the Host header", why);
    }
    out->keep_alive =
        !connection_says(out, "close") && (out->minor == 1 || connection_says(out, "keep-alive"));
    out->expects_continue = out->minor == 1 && is_word(http_get(out, "expect"), "100-continue");
    return read_framing(out, why);
}

int http_read_head(const char *bytes, size_t size, http_head *out, const char **why) {
    memset(out, 0, sizeof *out);
    const char *at = bytes, *end = bytes + size;
    for (int line = 0; at < end; line++) {
        const char *lf = memchr(at, '\n', (size_t)(end - at));
        if (!lf || lf == at || lf[-1] != '\r') return refuse(400, "a line without its end", why);
        size_t n = (size_t)(lf - at) - 1;
        if (memchr(at, '\r', n) || memchr(at, '\0', n)) {
            return refuse(400, "a control character in the head", why);
        }
        if (n == 0) break;
        int status = line == 0 ? read_request_line(at, n, out, why) : read_header(at, n, out, why);
        if (status != 0) return status;
        at = lf + 1;
    }
    if (!out->method.data) return refuse(400, "an empty line where a request should be", why);
    return read_meaning(out, why);
}

/* ---- The body ---- */

enum {
    CHUNK_SIZE,
    CHUNK_EXTENSION,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    TRAILER,
    TRAILER_LINE,
    TRAILER_LF,
    LAST_LF
};
enum { MAX_SIZE_LINE = 256, MAX_TRAILERS = 8192 };

/* A byte of the line with a chunk's size. */
static bool size_byte(http_body *body, char c) {
    int digit = di_hex_digit(c);
    if (++body->n_line > MAX_SIZE_LINE) return false;
    if (body->state == CHUNK_SIZE && digit >= 0) {
        body->left = body->left * 16 + (uint64_t)digit;
        return ++body->n_digits <= 15;
    }
    if (c == '\r' && body->n_digits > 0) {
        body->state = CHUNK_SIZE_LF;
        return true;
    }
    if (body->state == CHUNK_SIZE && c != ';') return false;
    bool whole = body->state == CHUNK_EXTENSION || body->n_digits > 0;
    body->state = CHUNK_EXTENSION;
    return whole && ((unsigned char)c >= ' ' || c == '\t') && c != 0x7F;
}

/* Trailers are read over: nothing here needs them. */
static bool trailer_byte(http_body *body, char c) {
    if (++body->n_line > MAX_TRAILERS) return false;
    switch (body->state) {
    case TRAILER: body->state = c == '\r' ? LAST_LF : TRAILER_LINE; return c != '\n';
    case TRAILER_LINE:
        if (c == '\r') body->state = TRAILER_LF;
        return c != '\n';
    case TRAILER_LF: body->state = TRAILER; return c == '\n';
    default: body->done = c == '\n'; return body->done;
    }
}

static bool chunk_byte(http_body *body, char c) {
    switch (body->state) {
    case CHUNK_SIZE:
    case CHUNK_EXTENSION: return size_byte(body, c);
    case CHUNK_SIZE_LF:
        body->state = body->left > 0 ? CHUNK_DATA : TRAILER;
        body->n_line = 0;
        return c == '\n';
    case CHUNK_DATA_CR: body->state = CHUNK_DATA_LF; return c == '\r';
    case CHUNK_DATA_LF:
        body->state = CHUNK_SIZE;
        body->n_line = 0;
        body->n_digits = 0;
        return c == '\n';
    default: return trailer_byte(body, c);
    }
}

int64_t http_read_body(http_body *body, const char *bytes, size_t size, size_t max,
                       di_buffer *out) {
    size_t at = 0;
    if (!body->chunked && body->left == 0) body->done = true;
    while (at < size && !body->done) {
        if (body->chunked && body->state != CHUNK_DATA) {
            if (!chunk_byte(body, bytes[at++])) return -1;
            if (body->state == CHUNK_DATA && body->left > max - out->size) return -2;
            continue;
        }
        size_t n = body->left < size - at ? (size_t)body->left : size - at;
        if (n > max - out->size) return -2;
        di_buffer_append(out, bytes + at, n);
        if (out->failed) return -3;
        at += n;
        body->left -= n;
        if (body->left > 0) break;
        if (body->chunked) {
            body->state = CHUNK_DATA_CR;
        } else {
            body->done = true;
        }
    }
    return (int64_t)at;
}
