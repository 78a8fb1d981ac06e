/* Answers to bytes: heads, whole bodies, pieces, and errors in the form of each dialect. */
#include <stdio.h>
#include <string.h>

#include "base/lossy.h"
#include "server/connection_internal.h"

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
    /* What is left of a body is not read, so no request can be found behind it. */
    if (server->draining || !conn->body_reader.done) conn->keep_alive = false;
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

void conn__respond(di_conn *conn, int status, const char *type, const char *more, di_buffer *body) {
    di_buffer out = DI_BUFFER_EMPTY;
    write_head(conn, status, type ? type : "application/json", &out);
    di_buffer_puts(&out, more);
    di_buffer_printf(&out, "Content-Length: %zu\r\n\r\n", body->size);
    if (!conn->head_only && body->size > 0) di_buffer_append(&out, body->data, body->size);
    if (body->failed) out.failed = true;
    di_buffer_free(body);
    conn__send(conn, &out);
    conn_end(conn);
}

void conn_respond(di_conn *conn, int status, const char *type, di_buffer *body) {
    conn__respond(conn, status, type, "", body);
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
    conn__respond(conn, known ? 304 : 200, file->type, more, &body);
}

void conn_begin(di_conn *conn, int status, const char *type) {
    di_buffer out = DI_BUFFER_EMPTY;
    conn->chunked = conn->minor;
    if (!conn->chunked) conn->keep_alive = false; /* its end is that of the connection */
    write_head(conn, status, type, &out);
    di_buffer_puts(&out, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    if (conn->chunked) di_buffer_puts(&out, "Transfer-Encoding: chunked\r\n");
    di_buffer_puts(&out, "\r\n");
    conn__send(conn, &out);
}

void conn_write(di_conn *conn, di_buffer *data) {
    if (!conn->chunked || data->size == 0 || data->failed) {
        conn__send(conn, data);
        return;
    }
    di_buffer out = DI_BUFFER_EMPTY;
    if (di_buffer_reserve(&out, data->size + 24)) {
        di_buffer_printf(&out, "%zx\r\n", data->size);
        di_buffer_append(&out, data->data, data->size);
        di_buffer_puts(&out, "\r\n");
    }
    di_buffer_free(data);
    conn__send(conn, &out);
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
void conn__respond_error(di_conn *conn, int status, const char *code, const char *more,
                         const char *message) {
    di_buffer body = DI_BUFFER_EMPTY;
    conn_write_error(conn, status, code, message, &body);
    conn__respond(conn, status, NULL, more, &body);
}

void conn_error(di_conn *conn, int status, const char *code, int retry_s, const char *message) {
    char more[100] = "";
    if (retry_s > 0) snprintf(more, sizeof more, "Retry-After: %d\r\n", retry_s);
    if (status == 401) snprintf(more, sizeof more, "WWW-Authenticate: Bearer\r\n");
    if (status == 429) conn->server->metrics.rejected++;
    conn__respond_error(conn, status, code, more, message);
}

void conn_fail(di_conn *conn, const di_error *why) {
    switch (why->status) {
    case DI_ERR_USAGE:
    case DI_ERR_INVALID: conn_error(conn, 400, "invalid_value", 0, why->message); break;
    case DI_ERR_UNSUPPORTED: conn_error(conn, 400, "unsupported_value", 0, why->message); break;
    case DI_ERR_MEMORY: conn_error(conn, 503, NULL, 1, why->message); break;
    default: conn_error(conn, 500, NULL, 0, why->message); break;
    }
}

void conn__refuse(di_conn *conn, int status, const char *code, const char *message) {
    conn->keep_alive = false;
    conn_error(conn, status, code, 0, message);
}
