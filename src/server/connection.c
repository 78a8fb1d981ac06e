/* A connection: its life, bytes to requests, and the clocks that watch it. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "server/connection_internal.h"

enum {
    MAX_HEAD = 65536,
    MAX_PIPELINED = 262144, /* sent while an answer is in progress */
    MAX_IN = 64 << 20,      /* of all heads and what is pipelined, more or less: see has_share */
    LINGER_MS = 2000,
    MIN_BODY_RATE = 16384, /* bytes a second: what came buys time for more */
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

static void count_in(di_conn *conn) {
    if (conn->in.size == 0) di_buffer_free(&conn->in); /* an idle connection costs little */
    conn->server->in_bytes += conn->in.capacity - conn->in_counted;
    conn->in_counted = conn->in.capacity;
}

/* Where all have too much, nobody may have more than his part of it. So those who hold little are served, and all
 * have less than twice the bound. */
static bool has_share(const di_conn *conn) {
    const di_server *server = conn->server;
    return server->in_bytes <= MAX_IN || conn->in.capacity <= MAX_IN / (size_t)server->n_conns;
}

size_t conn_unsent(const di_conn *conn) {
    return uv_stream_get_write_queue_size((const uv_stream_t *)&conn->tcp);
}

size_t conn_held(const di_conn *conn) {
    const di_generation *g = conn->generation;
    return conn->n_queued + (g ? g->events.size + g->writer.kept + g->writer.items.size : 0);
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

void conn__send(di_conn *conn, di_buffer *data) {
    if (data->size > UINT_MAX) data->failed = true; /* libuv counts so */
    write_request *w = data->failed || data->size == 0 ? NULL : malloc(sizeof *w);
    if (!w || conn->state == DI_CONN_CLOSING) {
        bool lost = data->failed || (data->size > 0 && !w);
        di_buffer_free(data);
        free(w);
        if (lost && conn->state != DI_CONN_CLOSING) conn_give_up(conn, "out_of_memory");
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
    count_in(conn);
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

void conn_give_up(di_conn *conn, const char *why) {
    conn->closed_for = why;
    conn_close(conn);
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
    count_in(conn);
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
    conn->status = 0;
    conn->closed_for = NULL;
    conn->n_sent = 0;
    conn->origin[0] = conn->request_id[0] = conn->detail[0] = conn->unknown[0] =
        conn->if_none_match[0] = '\0';
    conn->deadline_ms = after_s(conn, conn->server->options.idle_timeout_s);
}

void conn_end(di_conn *conn) {
    if (conn->state == DI_CONN_CLOSING) return;
    if (conn->chunked) {
        di_buffer out = DI_BUFFER_EMPTY;
        di_buffer_puts(&out, "0\r\n\r\n");
        conn__send(conn, &out);
        if (conn->state == DI_CONN_CLOSING) return;
    }
    server_log_request(conn->server, conn, conn->generation);
    conn->generation = NULL;
    drop_body(conn);
    drop_key(conn);
    if (!conn->keep_alive) {
        linger(conn);
        return;
    }
    conn->pending_next = true; /* once the answer is written: see on_written */
}

/* ---- The request ---- */

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
        conn__refuse(conn, 413, "request_too_large", message);
        return false;
    }
    if (length > body_room(conn)) {
        refuse_body(conn);
        return false;
    }
    conn->deadline_ms = after_s(conn, o->read_timeout_s);
    if (head->expects_continue && head->content_length != 0) {
        di_buffer out = DI_BUFFER_EMPTY;
        di_buffer_puts(&out, "HTTP/1.1 100 Continue\r\n\r\n");
        conn__send(conn, &out);
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

/* A request that has not come to its end, and will not. */
static void refuse_head(di_conn *conn, int status, const char *code, int retry_s,
                        const char *message) {
    if (conn->state == DI_CONN_HEAD) name_request(conn);
    conn->state = DI_CONN_BUSY;
    conn->minor = true;
    conn->keep_alive = false;
    conn_error(conn, status, code, retry_s, message);
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
        conn__refuse(conn, large ? 431 : 400, NULL,
                     large ? "the head of the request is too large"
                           : "a line does not end in CR LF");
        return false;
    }
    int status = http_read_head(conn->in.data, (size_t)n, &head, &why);
    if (status != 0) {
        conn__refuse(conn, status, NULL, why);
        return false;
    }
    conn->minor = head.minor == 1;
    conn->keep_alive = head.keep_alive;
    conn->body_reader.chunked = head.content_length < 0;
    conn->body_reader.left = head.content_length < 0 ? 0 : (uint64_t)head.content_length;
    conn->body_reader.done = head.content_length == 0;
    bool go_on = conn__check_head(conn, &head) && expect_body(conn, &head);
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
    conn->deadline_ms += (conn->body.size - before) * 1000 / MIN_BODY_RATE;
    if (n < 0) {
        conn->state = DI_CONN_BUSY;
        conn->deadline_ms = 0;
        if (n == -1) conn__refuse(conn, 400, NULL, "the body is not chunked as it should be");
        if (n == -2 && room < max) refuse_body(conn);
        if (n == -2 && room >= max)
            conn__refuse(conn, 413, "request_too_large", "the body is too large");
        if (n == -3) conn__refuse(conn, 503, NULL, "out of memory");
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

/* The first bytes of a request are there. */
static void begin_head(di_conn *conn) {
    conn->begun = di_clock();
    conn->deadline_ms = after_s(conn, conn->server->options.read_timeout_s);
}

static void next_request(di_conn *conn) {
    reset(conn);
    if (conn->server->draining) {
        linger(conn);
        return;
    }
    if (conn->in.size == 0) return;
    begin_head(conn);
    process(conn);
    count_in(conn);
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
    if (conn->state == DI_CONN_HEAD && conn->in.size == 0) begin_head(conn);
    di_buffer_append(&conn->in, bytes, size);
    if (conn->in.failed || (conn->state == DI_CONN_BUSY && conn->in.size > MAX_PIPELINED)) {
        conn_give_up(conn, conn->in.failed ? "out_of_memory" : "sent_ahead");
        return;
    }
    process(conn);
    count_in(conn);
    if (conn->state == DI_CONN_CLOSING || conn->state == DI_CONN_LINGER || has_share(conn)) return;
    if (conn->state == DI_CONN_HEAD) {
        refuse_head(conn, 429, "overloaded", 1, "too many bytes of requests are being read");
    } else {
        conn_give_up(conn, "sent_ahead");
    }
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
        conn_give_up(conn, "client_stuck");
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
        refuse_head(conn, 408, NULL, 0, "the request did not come in time");
    } else {
        conn_close(conn);
    }
}
