/* A connection: bytes to requests, answers to bytes, and the clocks that watch both. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/json.h"
#include "base/lossy.h"
#include "server/server_internal.h"

enum {
    MAX_HEAD = 65536,
    MAX_PIPELINED = 262144, /* sent while an answer is in progress */
    LINGER_MS = 2000,
    MIN_BODY_RATE = 16384, /* bytes a second, beside read_timeout_s */
    MAX_BODIES = 16,       /* times max_body: bytes of all bodies that are held */
    MAX_EMPTY_LINES = 2    /* in front of a request */
};

static uint64_t after_s(const di_conn *conn, double seconds) {
    return uv_now(&conn->server->loop) + (uint64_t)(seconds * 1000);
}

/* ---- Writing ---- */

typedef struct write_request {
    uv_write_t write;
    char *data;
    size_t size;
} write_request;

static void next_request(di_conn *conn);

size_t conn_unsent(const di_conn *conn) {
    return uv_stream_get_write_queue_size((const uv_stream_t *)&conn->tcp);
}

size_t conn_held(const di_conn *conn) {
    const di_generation *g = conn->generation;
    return conn->n_queued + (g ? g->events.size + g->writer.kept : 0);
}

static void on_written(uv_write_t *write, int status) {
    write_request *w = (write_request *)write;
    di_conn *conn = write->handle->data;
    conn->n_queued -= w->size;
    free(w->data);
    free(w);
    if (conn->state == DI_CONN_CLOSING) return;
    if (status < 0) {
        conn_close(conn);
        return;
    }
    conn->progress_ms = uv_now(&conn->server->loop);
    if (conn->generation) {
        generation_pump(conn->generation);
    } else if (conn->pending_next && conn_unsent(conn) == 0) {
        next_request(conn);
    }
}

static void send_bytes(di_conn *conn, di_buffer *data) {
    if (data->size > UINT_MAX) data->failed = true; /* libuv counts so */
    write_request *w = data->failed || data->size == 0 ? NULL : malloc(sizeof *w);
    if (!w || conn->state == DI_CONN_CLOSING) {
        bool lost = data->failed || (data->size > 0 && !w);
        di_buffer_free(data);
        free(w);
        if (lost && conn->state != DI_CONN_CLOSING) conn_close(conn);
        return;
    }
    uv_buf_t buffer = uv_buf_init(data->data, (unsigned)data->size);
    w->data = data->data;
    w->size = data->size;
    conn->n_sent += data->size;
    conn->n_queued += data->size;
    conn->server->metrics.bytes_sent += data->size;
    conn->last_write_ms = uv_now(&conn->server->loop);
    if (conn_unsent(conn) == 0) conn->progress_ms = conn->last_write_ms;
    *data = (di_buffer)DI_BUFFER_EMPTY;
    if (uv_write(&w->write, (uv_stream_t *)&conn->tcp, &buffer, 1, on_written) != 0) {
        conn->n_queued -= w->size;
        free(w->data);
        free(w);
        conn_close(conn);
    }
}

static const char *reason(int status) {
    switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Status";
    }
}

static void write_head(di_conn *conn, int status, const char *type, di_buffer *out) {
    di_server *server = conn->server;
    if (server->draining) conn->keep_alive = false;
    conn->status = status;
    conn->headers_sent = true;
    if (status / 100 < 6) server->metrics.statuses[status / 100]++;
    di_buffer_printf(out, "HTTP/1.1 %d %s\r\nServer: deepinfer\r\nDate: %s\r\n", status,
                     reason(status), server_date(server));
    if (type) di_buffer_printf(out, "Content-Type: %s\r\n", type);
    if (conn->request_id[0]) {
        di_buffer_printf(out, "X-Request-Id: %s\r\n", conn->request_id);
        /* What Anthropic's clients tell of an answer. */
        if (conn->anthropic) di_buffer_printf(out, "Request-Id: %s\r\n", conn->request_id);
    }
    if (conn->origin[0]) {
        di_buffer_printf(out, "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n", conn->origin);
    }
    if (!conn->keep_alive) {
        di_buffer_puts(out, "Connection: close\r\n");
    } else if (!conn->minor) {
        di_buffer_puts(out, "Connection: keep-alive\r\n");
    }
}

static void respond(di_conn *conn, int status, const char *type, const char *more,
                    di_buffer *body) {
    di_buffer out = DI_BUFFER_EMPTY;
    write_head(conn, status, type ? type : "application/json", &out);
    di_buffer_puts(&out, more);
    di_buffer_printf(&out, "Content-Length: %zu\r\n\r\n", body->size);
    if (!conn->head_only && body->size > 0) di_buffer_append(&out, body->data, body->size);
    if (body->failed) out.failed = true;
    di_buffer_free(body);
    send_bytes(conn, &out);
    conn_end(conn);
}

void conn_respond(di_conn *conn, int status, const char *type, di_buffer *body) {
    respond(conn, status, type, "", body);
}

void conn_respond_file(di_conn *conn, const di_page_file *file) {
    di_buffer body = DI_BUFFER_EMPTY;
    bool known = strcmp(conn->if_none_match, file->etag) == 0;
    char more[700];
    snprintf(more, sizeof more,
             "ETag: %s\r\nCache-Control: no-cache\r\nX-Content-Type-Options: nosniff\r\n"
             "Referrer-Policy: no-referrer\r\nContent-Security-Policy: %s\r\n",
             file->etag, DI_PAGE_POLICY);
    di_buffer_append(&body, (const char *)file->data, file->size);
    if (known) conn->head_only = true; /* the length is that of the file all the same */
    respond(conn, known ? 304 : 200, file->type, more, &body);
}

void conn_begin(di_conn *conn, int status, const char *type) {
    di_buffer out = DI_BUFFER_EMPTY;
    conn->chunked = conn->minor;
    if (!conn->chunked) conn->keep_alive = false; /* its end is that of the connection */
    write_head(conn, status, type, &out);
    di_buffer_puts(&out, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    if (conn->chunked) di_buffer_puts(&out, "Transfer-Encoding: chunked\r\n");
    di_buffer_puts(&out, "\r\n");
    send_bytes(conn, &out);
}

void conn_write(di_conn *conn, di_buffer *data) {
    if (!conn->chunked || data->size == 0 || data->failed) {
        send_bytes(conn, data);
        return;
    }
    di_buffer out = DI_BUFFER_EMPTY;
    if (di_buffer_reserve(&out, data->size + 24)) {
        di_buffer_printf(&out, "%zx\r\n", data->size);
        di_buffer_append(&out, data->data, data->size);
        di_buffer_puts(&out, "\r\n");
    }
    di_buffer_free(data);
    send_bytes(conn, &out);
}

/* ---- Errors ---- */

static const char *type_of(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
    }
}

/* OpenAI tells most of what a client did wrong by one type. */
static const char *openai_type_of(int status) {
    if (status == 429) return "rate_limit_error";
    if (status == 401) return "authentication_error";
    return status < 500 ? "invalid_request_error" : "server_error";
}

/* The field that a message begins with: "messages[0].role: ...". */
static size_t field_of(const char *message) {
    size_t n = strspn(message, "abcdefghijklmnopqrstuvwxyz_0123456789.[]");
    return n > 0 && message[n] == ':' && strncmp(message, "line", n) != 0 ? n : 0;
}

static const char *prompt_field(di_dialect dialect) {
    if (dialect == DI_DIALECT_COMPLETION) return "prompt";
    return dialect == DI_DIALECT_RESPONSES ? "input" : "messages";
}

void conn_write_error(const di_conn *conn, int status, const char *code, const char *message,
                      di_buffer *out) {
    if (conn->anthropic) {
        di_buffer_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":",
                         type_of(status));
        di_lossy_write(out, message, strlen(message));
        di_buffer_printf(out, "},\"request_id\":\"%s\"}", conn->request_id);
        return;
    }
    size_t n = status < 500 ? field_of(message) : 0;
    const char *field = n > 0 ? message : NULL;
    if (code && strcmp(code, "context_length_exceeded") == 0) {
        field = prompt_field(conn->route->dialect);
        n = strlen(field);
    }
    di_write_openai_error(out, message, openai_type_of(status), field, n, code);
}

/* more: header lines. */
static void respond_error(di_conn *conn, int status, const char *code, const char *more,
                          const char *message) {
    di_buffer body = DI_BUFFER_EMPTY;
    conn_write_error(conn, status, code, message, &body);
    respond(conn, status, NULL, more, &body);
}

void conn_error(di_conn *conn, int status, const char *code, int retry_s, const char *message) {
    char more[100] = "";
    if (retry_s > 0) snprintf(more, sizeof more, "Retry-After: %d\r\n", retry_s);
    if (status == 401) snprintf(more, sizeof more, "WWW-Authenticate: Bearer\r\n");
    if (status == 429) conn->server->metrics.rejected++;
    respond_error(conn, status, code, more, message);
}

void conn_fail(di_conn *conn, const di_error *why) {
    switch (why->status) {
    case DI_ERR_USAGE:
    case DI_ERR_INVALID: conn_error(conn, 400, "invalid_value", 0, why->message); break;
    case DI_ERR_LIMIT: conn_error(conn, 400, "context_length_exceeded", 0, why->message); break;
    case DI_ERR_UNSUPPORTED: conn_error(conn, 400, "unsupported_value", 0, why->message); break;
    case DI_ERR_MEMORY: conn_error(conn, 503, NULL, 1, why->message); break;
    default: conn_error(conn, 500, NULL, 0, why->message); break;
    }
}

/* ---- Life ---- */

static void on_closed(uv_handle_t *handle) {
    di_conn *conn = handle->data;
    di_server *server = conn->server;
    if (conn->after) conn->after->before = conn->before;
    if (conn->before) {
        conn->before->after = conn->after;
    } else {
        server->conns = conn->after;
    }
    server->n_conns--;
    server->metrics.connections_open--;
    di_buffer_free(&conn->in);
    free(conn);
    server_check_end(server);
}

static void drop_body(di_conn *conn) {
    conn->server->body_bytes -= conn->body.size;
    di_buffer_free(&conn->body);
}

static void drop_key(di_conn *conn) {
    if (conn->key) di_key_release(&conn->server->keys, conn->key);
    conn->key = NULL;
}

void conn_close(di_conn *conn) {
    if (conn->state == DI_CONN_CLOSING) return;
    conn->state = DI_CONN_CLOSING;
    if (conn->generation) generation_orphan(conn->generation);
    conn->generation = NULL;
    drop_body(conn);
    drop_key(conn);
    uv_close((uv_handle_t *)&conn->tcp, on_closed);
}

static void on_shutdown(uv_shutdown_t *request, int status) {
    di_conn *conn = request->handle->data;
    if (status < 0) conn_close(conn);
}

/* The client may still be sending: a close now would throw away what it has not read. */
static void linger(di_conn *conn) {
    conn->state = DI_CONN_LINGER;
    conn->deadline_ms = 0;
    di_buffer_free(&conn->in);
    if (uv_shutdown(&conn->shutdown, (uv_stream_t *)&conn->tcp, on_shutdown) != 0) {
        conn_close(conn);
    }
}

static void reset(di_conn *conn) {
    conn->state = DI_CONN_HEAD;
    conn->route = NULL;
    conn->anthropic = conn->head_only = conn->headers_sent = conn->chunked = false;
    conn->pending_next = false;
    conn->seen = 0;
    conn->n_empty_lines = 0;
    conn->n_sent = 0;
    conn->origin[0] = conn->request_id[0] = conn->detail[0] = conn->if_none_match[0] = '\0';
    conn->deadline_ms = after_s(conn, conn->server->options.idle_timeout_s);
}

void conn_end(di_conn *conn) {
    if (conn->state == DI_CONN_CLOSING) return;
    if (conn->chunked) {
        di_buffer out = DI_BUFFER_EMPTY;
        di_buffer_puts(&out, "0\r\n\r\n");
        send_bytes(conn, &out);
        if (conn->state == DI_CONN_CLOSING) return;
    }
    server_log_request(conn->server, conn, conn->generation);
    conn->generation = NULL;
    bool whole = conn->body_reader.done;
    drop_body(conn);
    drop_key(conn);
    if (!conn->keep_alive || !whole) {
        linger(conn);
        return;
    }
    conn->pending_next = true; /* once the answer is written: see on_written */
}

/* ---- The request ---- */

static void refuse(di_conn *conn, int status, const char *code, const char *message) {
    conn->keep_alive = false;
    conn_error(conn, status, code, 0, message);
}

static bool same_origin(http_text origin, http_text host) {
    static const char *const schemes[] = {"http://", "https://"};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(schemes[i]);
        if (origin.size == n + host.size && memcmp(origin.data, schemes[i], n) == 0 &&
            memcmp(origin.data + n, host.data, host.size) == 0) {
            return true;
        }
    }
    return false;
}

/* A name that only this machine or its address goes by. Another name may have been made to point here by
 * the page that asks (DNS rebinding), so that its origin looks like ours. */
static bool is_local(http_text host) {
    size_t n = host.size;
    for (size_t i = 0; i < host.size; i++) {
        if (host.data[i] == ':' && host.data[0] != '[') {
            n = i;
            break;
        }
    }
    if (n == 9 && strncasecmp(host.data, "localhost", 9) == 0) return true;
    if (n > 0 && host.data[0] == '[') return true;
    size_t numeric = 0;
    while (numeric < n && strchr("0123456789.", host.data[numeric])) numeric++;
    return n > 0 && numeric == n;
}

static bool listed(const char *list, http_text origin) {
    while (list && *list) {
        size_t n = strcspn(list, ",");
        if (n == origin.size && memcmp(list, origin.data, n) == 0) return true;
        list += n + (list[n] == ',');
    }
    return false;
}

/* A page of another site must neither read answers nor make the machine work: browsers tell where a
 * request comes from. */
static bool check_origin(di_conn *conn, const http_head *head) {
    const char *cors = conn->server->options.cors;
    http_text origin = http_get(head, "origin"), host = http_get(head, "host");
    if (!origin.data || origin.size >= sizeof conn->origin) return !origin.data;
    bool all = cors && strcmp(cors, "*") == 0;
    if (all || listed(cors, origin)) {
        snprintf(conn->origin, sizeof conn->origin, "%.*s", all ? 1 : (int)origin.size,
                 all ? "*" : origin.data);
        return true;
    }
    return host.data && same_origin(origin, host) &&
           (is_local(host) || conn->server->options.key_file);
}

static bool check_key(di_conn *conn, const http_head *head) {
    static const char bearer[] = "Bearer ";
    http_text given = http_get(head, "authorization"), other = http_get(head, "x-api-key");
    size_t n = sizeof bearer - 1;
    if (!conn->server->options.key_file || conn->route->open) return true;
    if (given.data && given.size > n && strncasecmp(given.data, bearer, n) == 0) {
        given = (http_text){given.data + n, given.size - n};
    } else {
        given = other;
    }
    di_key *key = given.data ? di_keys_find(&conn->server->keys, given.data, given.size) : NULL;
    if (!key) {
        refuse(conn, 401, "invalid_api_key",
               given.data ? "this API key is not known here" : "an API key is needed");
        return false;
    }
    int retry_s;
    if (!di_key_acquire(key, di_clock(), &retry_s)) {
        conn->keep_alive = false;
        conn_error(conn, 429, "rate_limit_exceeded", retry_s, "this API key has reached its limit");
        return false;
    }
    conn->key = key;
    return true;
}

static void answer_preflight(di_conn *conn, const http_head *head) {
    di_buffer body = DI_BUFFER_EMPTY;
    http_text asked = http_get(head, "access-control-request-headers");
    bool plain = asked.data && asked.size < 1000;
    char more[1300];
    snprintf(
        more, sizeof more,
        "Access-Control-Allow-Methods: GET, POST, DELETE\r\nAccess-Control-Allow-Headers: %.*s\r\n"
        "Access-Control-Max-Age: 600\r\n",
        plain ? (int)asked.size : 13, plain ? asked.data : "authorization");
    respond(conn, 200, NULL, more, &body);
}

/* What a POST carries must say that it is JSON: a page of another site cannot without asking. */
static bool check_type(const http_head *head) {
    static const char json[] = "application/json";
    http_text type = http_get(head, "content-type");
    size_t n = sizeof json - 1;
    return type.data && type.size >= n && strncasecmp(type.data, json, n) == 0 &&
           (type.size == n || type.data[n] == ';' || type.data[n] == ' ');
}

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The name at the end of a path, whose %XX are bytes: clients escape the '/' of a model's name. What is no
 * name of anything here, as one that is too long or has a NUL, is "". */
static void read_detail(http_text text, char *out, size_t size) {
    size_t n = 0;
    for (size_t i = 0; i < text.size; i++) {
        int c = (unsigned char)text.data[i];
        if (c == '%') {
            int high = i + 2 < text.size ? hex(text.data[i + 1]) : -1;
            int low = i + 2 < text.size ? hex(text.data[i + 2]) : -1;
            c = high < 0 || low < 0 ? 0 : high * 16 + low;
            i += 2;
        }
        if (c == 0 || n + 1 == size) {
            n = 0;
            break;
        }
        out[n++] = (char)c;
    }
    out[n] = '\0';
}

/* From here on the head's bytes are not needed any more. False: it was refused. */
static bool check_head(di_conn *conn, const http_head *head) {
    int status = 0;
    const char *allow = NULL;
    conn->anthropic = di_path_is_anthropic(head->path) || http_get(head, "anthropic-version").data;
    conn->head_only = http_text_is(head->method, "HEAD");
    if (!check_origin(conn, head)) {
        refuse(conn, 403, "origin_not_allowed", "pages of this origin may not ask; see --cors");
        return false;
    }
    http_text method = conn->head_only ? (http_text){"GET", 3} : head->method;
    if (http_text_is(method, "OPTIONS") && conn->origin[0]) {
        answer_preflight(conn, head);
        return false;
    }
    http_text detail = {NULL, 0};
    conn->route = di_route_find(method, head->path, &detail, &status, &allow);
    read_detail(detail, conn->detail, sizeof conn->detail);
    http_text match = http_get(head, "if-none-match");
    if (match.data && match.size < sizeof conn->if_none_match) {
        snprintf(conn->if_none_match, sizeof conn->if_none_match, "%.*s", (int)match.size,
                 match.data);
    }
    if (!conn->route && status == 405) {
        char more[64];
        snprintf(more, sizeof more, "Allow: %s\r\n", allow);
        respond_error(conn, 405, "method_not_allowed", more, "this path takes another method");
        return false;
    }
    if (!conn->route) {
        conn_error(conn, 404, "not_found", 0, "there is nothing under this path");
        return false;
    }
    if (!check_key(conn, head)) return false;
    if (http_text_is(method, "POST") && !check_type(head)) {
        refuse(conn, 415, "unsupported_media_type", "Content-Type: application/json is needed");
        return false;
    }
    if (http_get(head, "content-encoding").size > 0) {
        refuse(conn, 415, "unsupported_media_type", "bodies with a Content-Encoding are not read");
        return false;
    }
    return true;
}

/* Bytes that a body may have beside all others. */
static size_t body_room(const di_conn *conn) {
    size_t most = MAX_BODIES * conn->server->options.max_body;
    size_t others = conn->server->body_bytes - conn->body.size;
    return others < most ? most - others : 0;
}

static void refuse_body(di_conn *conn) {
    conn->keep_alive = false;
    conn_error(conn, 429, "overloaded", 1, "too many bytes of requests are being read");
}

static bool expect_body(di_conn *conn, const http_head *head) {
    const di_server_options *o = &conn->server->options;
    uint64_t length = head->content_length > 0 ? (uint64_t)head->content_length : 0;
    if (length > o->max_body) {
        char message[120];
        snprintf(message, sizeof message, "the body has %" PRIu64 " bytes, at most %zu are taken",
                 length, o->max_body);
        refuse(conn, 413, "request_too_large", message);
        return false;
    }
    if (length > body_room(conn)) {
        refuse_body(conn);
        return false;
    }
    double seconds = o->read_timeout_s;
    seconds += (double)(head->content_length < 0 ? o->max_body : length) / MIN_BODY_RATE;
    conn->deadline_ms = after_s(conn, seconds);
    if (head->expects_continue && head->content_length != 0) {
        di_buffer out = DI_BUFFER_EMPTY;
        di_buffer_puts(&out, "HTTP/1.1 100 Continue\r\n\r\n");
        send_bytes(conn, &out);
    }
    return conn->state != DI_CONN_CLOSING;
}

static void name_request(di_conn *conn) {
    unsigned char random[12];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return;
    memcpy(conn->request_id, "req_", 5);
    for (size_t i = 0; i < sizeof random; i++) {
        snprintf(conn->request_id + 4 + 2 * i, 3, "%02x", random[i]);
    }
}

/* Returns whether there is more to do with what is in `in`. */
static bool take_head(di_conn *conn) {
    http_head head;
    const char *why = NULL;
    int64_t n = http_find_head(conn->in.data, conn->in.size, &conn->seen);
    bool large = n > MAX_HEAD || (n == 0 && conn->in.size > MAX_HEAD);
    if (n == 0 && !large) return false;
    conn->begun = di_clock();
    conn->minor = true;
    conn->keep_alive = false;
    conn->state = DI_CONN_BUSY;
    conn->deadline_ms = 0;
    conn->body_reader = (http_body){.done = false};
    name_request(conn);
    if (n < 0 || large) {
        refuse(conn, large ? 431 : 400, NULL,
               large ? "the head of the request is too large" : "a line does not end in CR LF");
        return false;
    }
    int status = http_read_head(conn->in.data, (size_t)n, &head, &why);
    if (status != 0) {
        refuse(conn, status, NULL, why);
        return false;
    }
    conn->minor = head.minor == 1;
    conn->keep_alive = head.keep_alive;
    conn->body_reader.chunked = head.content_length < 0;
    conn->body_reader.left = head.content_length < 0 ? 0 : (uint64_t)head.content_length;
    conn->body_reader.done = head.content_length == 0;
    bool go_on = check_head(conn, &head) && expect_body(conn, &head);
    if (conn->state == DI_CONN_LINGER || conn->state == DI_CONN_CLOSING) return false;
    if (go_on) conn->state = DI_CONN_BODY;
    conn->in.size -= (size_t)n;
    memmove(conn->in.data, conn->in.data + n, conn->in.size);
    return go_on;
}

/* Returns how many of the bytes were taken. */
static size_t take_body(di_conn *conn, const char *bytes, size_t size) {
    size_t before = conn->body.size, max = conn->server->options.max_body, room = body_room(conn);
    int64_t n =
        http_read_body(&conn->body_reader, bytes, size, room < max ? room : max, &conn->body);
    conn->server->body_bytes += conn->body.size - before;
    if (n < 0) {
        conn->state = DI_CONN_BUSY;
        conn->deadline_ms = 0;
        if (n == -1) refuse(conn, 400, NULL, "the body is not chunked as it should be");
        if (n == -2 && room < max) refuse_body(conn);
        if (n == -2 && room >= max) refuse(conn, 413, "request_too_large", "the body is too large");
        if (n == -3) refuse(conn, 503, NULL, "out of memory");
        return size;
    }
    if (conn->body_reader.done) {
        conn->state = DI_CONN_BUSY;
        conn->deadline_ms = 0;
        conn->route->handle(conn);
    }
    return (size_t)n;
}

/* Empty lines in front of a request are forgiven, as RFC 9112 asks; some, for a client that sends nothing
 * else would be waited for without end. */
static void skip_empty_lines(di_conn *conn) {
    while (conn->n_empty_lines < MAX_EMPTY_LINES && conn->in.size >= 2 &&
           memcmp(conn->in.data, "\r\n", 2) == 0) {
        memmove(conn->in.data, conn->in.data + 2, conn->in.size -= 2);
        conn->seen = 0;
        conn->n_empty_lines++;
    }
}

/* As much as can be done with what came. */
static void process(di_conn *conn) {
    for (;;) {
        if (conn->state == DI_CONN_HEAD) {
            skip_empty_lines(conn);
            if (conn->in.size == 0 || !take_head(conn)) return;
        } else if (conn->state == DI_CONN_BODY) {
            size_t n = take_body(conn, conn->in.data, conn->in.size);
            if (conn->state == DI_CONN_LINGER || conn->state == DI_CONN_CLOSING) return;
            memmove(conn->in.data, conn->in.data + n, conn->in.size - n);
            conn->in.size -= n;
            if (conn->state == DI_CONN_BODY) return;
        } else {
            return;
        }
    }
}

static void next_request(di_conn *conn) {
    reset(conn);
    if (conn->server->draining) {
        linger(conn);
        return;
    }
    if (conn->in.size == 0) {
        di_buffer_free(&conn->in); /* an idle connection costs little */
        return;
    }
    conn->deadline_ms = after_s(conn, conn->server->options.read_timeout_s);
    process(conn);
}

/* ---- Reading ---- */

static void on_alloc(uv_handle_t *handle, size_t size, uv_buf_t *out) {
    di_conn *conn = handle->data;
    (void)size;
    *out = uv_buf_init(conn->server->read_buffer, sizeof conn->server->read_buffer);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer) {
    di_conn *conn = stream->data;
    if (conn->state == DI_CONN_CLOSING || n == 0) return;
    if (n < 0) {
        conn_close(conn); /* a half that is closed is a client that left */
        return;
    }
    if (conn->state == DI_CONN_LINGER) return;
    const char *bytes = buffer->base;
    size_t size = (size_t)n;
    if (conn->state == DI_CONN_BODY && conn->in.size == 0) {
        size_t taken = take_body(conn, bytes, size);
        if (conn->state == DI_CONN_LINGER || conn->state == DI_CONN_CLOSING) return;
        bytes += taken;
        size -= taken;
        if (size == 0) return;
    }
    if (conn->state == DI_CONN_HEAD && conn->in.size == 0) {
        conn->deadline_ms = after_s(conn, conn->server->options.read_timeout_s);
    }
    di_buffer_append(&conn->in, bytes, size);
    if (conn->in.failed || (conn->state == DI_CONN_BUSY && conn->in.size > MAX_PIPELINED)) {
        conn_close(conn);
        return;
    }
    process(conn);
}

const char *conn_owner(const di_conn *conn) { return conn->key ? conn->key->name : ""; }

uint32_t conn_client(const di_conn *conn) {
    uint32_t hash = 2166136261u; /* FNV-1a: who shares a place with another shares his turns */
    struct sockaddr_storage address;
    int size = sizeof address;
    const unsigned char *bytes = conn->key ? conn->key->digest : NULL;
    size_t n = conn->key ? sizeof conn->key->digest : 0;
    if (!conn->key && uv_tcp_getpeername(&conn->tcp, (struct sockaddr *)&address, &size) == 0) {
        bool six = address.ss_family == AF_INET6;
        const struct sockaddr_in6 *a6 = (const struct sockaddr_in6 *)&address;
        const struct sockaddr_in *a4 = (const struct sockaddr_in *)&address;
        bytes = six ? (const unsigned char *)&a6->sin6_addr : (const unsigned char *)&a4->sin_addr;
        n = six ? sizeof a6->sin6_addr : sizeof a4->sin_addr;
    }
    for (size_t i = 0; i < n; i++) hash = (hash ^ bytes[i]) * 16777619u;
    return hash ^ hash >> 16;
}

void conn_accept(di_server *server) {
    di_conn *conn = calloc(1, sizeof *conn);
    server->accept_again = !conn || uv_tcp_init(&server->loop, &conn->tcp) != 0;
    if (server->accept_again) {
        free(conn);
        return;
    }
    conn->server = server;
    conn->tcp.data = conn;
    conn->after = server->conns;
    if (conn->after) conn->after->before = conn;
    server->conns = conn;
    server->n_conns++;
    server->metrics.connections++;
    server->metrics.connections_open++;
    reset(conn);
    if (uv_accept((uv_stream_t *)&server->listener, (uv_stream_t *)&conn->tcp) != 0 ||
        server->n_conns > server->options.max_connections ||
        uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read) != 0) {
        conn_close(conn);
        return;
    }
    (void)uv_tcp_nodelay(&conn->tcp, 1);
}

/* ---- Clocks ---- */

/* A client that takes nothing for a long time is as good as gone. */
static bool is_stuck(di_conn *conn, uint64_t now_ms) {
    size_t unsent = conn_unsent(conn);
    if (unsent == 0 || unsent < conn->unsent) conn->progress_ms = now_ms;
    conn->unsent = unsent;
    double seconds = conn->server->options.write_timeout_s;
    return unsent > 0 && now_ms > conn->progress_ms + (uint64_t)(seconds * 1000);
}

void conn_tick(di_conn *conn, uint64_t now_ms) {
    if (conn->state == DI_CONN_CLOSING) return;
    if (is_stuck(conn, now_ms)) {
        conn_close(conn);
        return;
    }
    if (conn->state == DI_CONN_LINGER && conn->deadline_ms == 0 && conn_unsent(conn) == 0) {
        conn->deadline_ms = now_ms + LINGER_MS;
    }
    if (conn->state == DI_CONN_BUSY && conn->generation) {
        generation_tick(conn->generation);
        return;
    }
    if (conn->state == DI_CONN_HEAD && conn->in.size == 0 && conn->server->draining) {
        conn_close(conn);
        return;
    }
    if (conn->deadline_ms == 0 || now_ms < conn->deadline_ms) return;
    if (conn->state == DI_CONN_BODY || (conn->state == DI_CONN_HEAD && conn->in.size > 0)) {
        conn->state = DI_CONN_BUSY;
        conn->minor = true;
        refuse(conn, 408, NULL, "the request did not come in time");
    } else {
        conn_close(conn);
    }
}
