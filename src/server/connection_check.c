/* What a head asks for, and whether who asks may: origins, paths, keys, types of bodies. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/hex.h"
#include "server/connection_internal.h"

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
        conn__refuse(conn, 401, "invalid_api_key",
                     given.data ? "this API key is not known here"
                                : "an API key is needed: \"Authorization: Bearer KEY\", or "
                                  "\"X-Api-Key: KEY\"");
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
    conn__respond(conn, 200, NULL, more, &body);
}

/* What a POST carries must say that it is JSON: a page of another site cannot without asking. */
static bool check_type(const http_head *head) {
    static const char json[] = "application/json";
    http_text type = http_get(head, "content-type");
    size_t n = sizeof json - 1;
    return type.data && type.size >= n && strncasecmp(type.data, json, n) == 0 &&
           (type.size == n || type.data[n] == ';' || type.data[n] == ' ');
}

/* The name at the end of a path, whose %XX are bytes: clients escape the '/' of a model's name. What is no
 * name of anything here, as one that is too long or has a NUL, is "". */
static void read_detail(http_text text, char *out, size_t size) {
    size_t n = 0;
    for (size_t i = 0; i < text.size; i++) {
        int c = (unsigned char)text.data[i];
        if (c == '%') {
            int high = i + 2 < text.size ? di_hex_digit(text.data[i + 1]) : -1;
            int low = i + 2 < text.size ? di_hex_digit(text.data[i + 2]) : -1;
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

/* What an operator may read of a path that anybody may have sent: a beginning, and nothing but printing
 * characters that cannot be taken for another field of the line. */
static void note_unknown(di_conn *conn, http_text path) {
    size_t n = 0, size = sizeof conn->unknown;
    size_t i = 0;
    for (; i < path.size && n + 8 < size; i++) {
        unsigned char c = (unsigned char)path.data[i];
        bool plain = c > ' ' && c < 127 && !strchr("\"'\\=", c);
        n += (size_t)snprintf(conn->unknown + n, size - n, plain ? "%c" : "\\x%02x", c);
    }
    if (i < path.size) snprintf(conn->unknown + n, size - n, "...");
}

bool conn__check_head(di_conn *conn, const http_head *head) {
    int status = 0;
    const char *allow = NULL;
    conn->anthropic = di_path_is_anthropic(head->path) || http_get(head, "anthropic-version").data;
    conn->head_only = http_text_is(head->method, "HEAD");
    if (!check_origin(conn, head)) {
        conn__refuse(conn, 403, "origin_not_allowed",
                     "pages of this origin may not ask; see --cors");
        return false;
    }
    http_text method = conn->head_only ? (http_text){"GET", 3} : head->method;
    if (http_text_is(method, "OPTIONS") && conn->origin[0]) {
        answer_preflight(conn, head);
        return false;
    }
    http_text detail = {NULL, 0};
    conn->route = di_route_find(method, head->path, &detail, &status, &allow);
    if (!conn->route) note_unknown(conn, head->path);
    read_detail(detail, conn->detail, sizeof conn->detail);
    http_text match = http_get(head, "if-none-match");
    if (match.data && match.size < sizeof conn->if_none_match) {
        snprintf(conn->if_none_match, sizeof conn->if_none_match, "%.*s", (int)match.size,
                 match.data);
    }
    if (!conn->route && status == 405) {
        char more[64];
        snprintf(more, sizeof more, "Allow: %s\r\n", allow);
        conn__respond_error(conn, 405, "method_not_allowed", more,
                            "this path takes another method");
        return false;
    }
    if (!conn->route) {
        conn_error(conn, 404, "not_found", 0, "there is nothing under this path");
        return false;
    }
    if (!check_key(conn, head)) return false;
    if (http_text_is(method, "POST") && !check_type(head)) {
        conn__refuse(conn, 415, "unsupported_media_type",
                     "Content-Type: application/json is needed");
        return false;
    }
    if (http_get(head, "content-encoding").size > 0) {
        conn__refuse(conn, 415, "unsupported_media_type",
                     "bodies with a Content-Encoding are not read");
        return false;
    }
    return true;
}
