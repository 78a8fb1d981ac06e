/* What stands under which path, and the endpoints that need no body. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/lossy.h"
#include "server/page.h"
#include "server/read_internal.h"

/* ---- Endpoints ---- */

static void answer_text(di_conn *conn, int status, const char *text) {
    di_buffer body = DI_BUFFER_EMPTY;
    di_buffer_puts(&body, text);
    conn_respond(conn, status, NULL, &body);
}

/* The process is well: its engine has not failed. */
static void handle_health(di_conn *conn) {
    bool failed = di_runner_get_stats(conn->server->runner).failed;
    answer_text(conn, failed ? 503 : 200,
                failed ? "{\"status\":\"failed\"}" : "{\"status\":\"ok\"}");
}

/* It would take a request now. */
static void handle_ready(di_conn *conn) {
    const di_server *server = conn->server;
    bool failed = di_runner_get_stats(conn->server->runner).failed;
    bool full = server->n_open >= server->options.max_batch + server->options.max_queue;
    if (failed || server->draining || full) {
        answer_text(conn, 503,
                    failed             ? "{\"status\":\"failed\"}"
                    : server->draining ? "{\"status\":\"draining\"}"
                                       : "{\"status\":\"full\"}");
    } else {
        answer_text(conn, 200, "{\"status\":\"ready\"}");
    }
}

static void handle_version(di_conn *conn) {
    di_buffer body = DI_BUFFER_EMPTY;
    di_buffer_printf(&body, "{\"version\":\"%s\"}", di_version());
    conn_respond(conn, 200, NULL, &body);
}

static void write_model(const di_conn *conn, const char *name, di_buffer *out) {
    const di_server *server = conn->server;
    di_buffer_puts(out, "{\"id\":");
    di_lossy_write(out, name, strlen(name));
    if (conn->anthropic) {
        time_t started = (time_t)server->started;
        struct tm tm;
        char text[40];
        gmtime_r(&started, &tm);
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
        di_buffer_puts(out, ",\"type\":\"model\",\"display_name\":");
        di_lossy_write(out, name, strlen(name));
        di_buffer_printf(out, ",\"created_at\":\"%s\"}", text);
        return;
    }
    di_buffer_printf(out,
                     ",\"object\":\"model\",\"created\":%" PRId64
                     ",\"owned_by\":\"deepinfer\",\"max_model_len\":%" PRId64 "}",
                     server->started, server->env.context);
}

void server_unknown_model(const di_server *server, const char *name, char *out, size_t size) {
    snprintf(out, size, "The model `%.200s` does not exist; here it is called `%.200s`.", name,
             server->options.models[0]);
}

static void handle_models(di_conn *conn) {
    const di_server_options *o = &conn->server->options;
    di_buffer body = DI_BUFFER_EMPTY;
    di_buffer_puts(&body, conn->anthropic ? "{\"data\":[" : "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < o->n_models; i++) {
        if (i > 0) di_buffer_putc(&body, ',');
        write_model(conn, o->models[i], &body);
    }
    di_buffer_putc(&body, ']');
    if (conn->anthropic) {
        di_buffer_puts(&body, ",\"has_more\":false,\"first_id\":");
        di_lossy_write(&body, o->models[0], strlen(o->models[0]));
        di_buffer_puts(&body, ",\"last_id\":");
        di_lossy_write(&body, o->models[o->n_models - 1], strlen(o->models[o->n_models - 1]));
    }
    di_buffer_putc(&body, '}');
    conn_respond(conn, 200, NULL, &body);
}

static void handle_model(di_conn *conn) {
    const di_server_options *o = &conn->server->options;
    di_buffer body = DI_BUFFER_EMPTY;
    int i = 0;
    while (i < o->n_models && strcmp(o->models[i], conn->detail) != 0) i++;
    if (i == o->n_models) {
        char message[500];
        server_unknown_model(conn->server, conn->detail, message, sizeof message);
        conn_error(conn, 404, "model_not_found", 0, message);
        return;
    }
    write_model(conn, o->models[i], &body);
    conn_respond(conn, 200, NULL, &body);
}

static void handle_metrics(di_conn *conn) {
    di_server *server = conn->server;
    di_buffer body = DI_BUFFER_EMPTY;
    di_runner_stats stats = di_runner_get_stats(server->runner);
    di_metrics_write(&server->metrics, &stats.metrics, &stats.engine,
                     server->options.metrics_prefix, server->options.models[0], &body);
    if (di_process_stats_read(&server->process, server->n_conns))
        di_metrics_write_process(&server->process, &body);
    conn_respond(conn, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

/* ---- Responses that were kept ---- */

static void refuse_response(di_conn *conn) {
    char message[320];
    snprintf(message, sizeof message, "Response with id '%s' not found.", conn->detail);
    conn_error(conn, 404, "response_not_found", 0, message);
}

static void handle_response(di_conn *conn) {
    di_buffer body = DI_BUFFER_EMPTY;
    if (di_stored_body(conn->server->stored, conn->detail, conn_owner(conn), &body)) {
        conn_respond(conn, 200, NULL, &body);
    } else {
        refuse_response(conn);
    }
}

static void handle_forget_response(di_conn *conn) {
    di_buffer body = DI_BUFFER_EMPTY;
    if (!di_stored_remove(conn->server->stored, conn->detail, conn_owner(conn))) {
        refuse_response(conn);
        return;
    }
    di_buffer_puts(&body, "{\"id\":");
    di_lossy_write(&body, conn->detail, strlen(conn->detail));
    di_buffer_puts(&body, ",\"object\":\"response\",\"deleted\":true}");
    conn_respond(conn, 200, NULL, &body);
}

/* ---- The page ---- */

static void handle_file(di_conn *conn, const char *name) {
    const di_page_file *file = conn->server->options.page ? di_page_find(name) : NULL;
    if (file) {
        conn_respond_file(conn, file);
    } else {
        conn_error(conn, 404, "not_found", 0, "there is nothing under this path");
    }
}

static void handle_page(di_conn *conn) { handle_file(conn, "index.html"); }
static void handle_page_file(di_conn *conn) { handle_file(conn, conn->detail); }

/* The last steps and requests; with --debug only. */
static void handle_timeline(di_conn *conn) {
    di_server *server = conn->server;
    di_buffer body = DI_BUFFER_EMPTY;
    di_trace trace;
    di_error error;
    if (!server->timeline) {
        conn_error(conn, 404, NULL, 0,
                   "there is no timeline: the server was started without --debug");
    } else if (di_runner_trace(server->runner, &trace, &error) != DI_OK) {
        conn_error(conn, 503, NULL, 1, error.message);
    } else {
        di_timeline_write(server->timeline, &trace, &body);
        di_trace_deinit(&trace);
        conn_respond(conn, 200, NULL, &body);
    }
}

static void handle_chat(di_conn *conn) { generation_start(conn, read_chat); }
static void handle_completion(di_conn *conn) { generation_start(conn, read_completion); }
static void handle_responses(di_conn *conn) { generation_start(conn, read_responses); }
static void handle_messages(di_conn *conn) { generation_start(conn, read_messages); }
static void handle_count_tokens(di_conn *conn) { generation_start(conn, read_count_tokens); }
static void handle_tokenize(di_conn *conn) { generation_start(conn, read_tokenize); }
static void handle_detokenize(di_conn *conn) { generation_start(conn, read_detokenize); }

/* ---- Paths ---- */

/* DeepSeek's own addresses are those without /v1, and /beta. */
static const di_route routes[] = {
    {"GET", "/", handle_page, true, DI_DIALECT_CHAT},
    {"GET", "/page/", handle_page_file, true, DI_DIALECT_CHAT},
    {"GET", "/health", handle_health, true, DI_DIALECT_CHAT},
    {"GET", "/ready", handle_ready, true, DI_DIALECT_CHAT},
    {"GET", "/version", handle_version, true, DI_DIALECT_CHAT},
    {"GET", "/metrics", handle_metrics, true, DI_DIALECT_CHAT},
    {"GET", "/debug/timeline", handle_timeline, false, DI_DIALECT_CHAT},
    {"GET", "/v1/models", handle_models, false, DI_DIALECT_CHAT},
    {"GET", "/models", handle_models, false, DI_DIALECT_CHAT},
    {"GET", "/v1/models/", handle_model, false, DI_DIALECT_CHAT},
    {"GET", "/anthropic/v1/models", handle_models, false, DI_DIALECT_MESSAGES},
    {"GET", "/anthropic/v1/models/", handle_model, false, DI_DIALECT_MESSAGES},
    {"POST", "/v1/chat/completions", handle_chat, false, DI_DIALECT_CHAT},
    {"POST", "/chat/completions", handle_chat, false, DI_DIALECT_CHAT},
    {"POST", "/beta/chat/completions", handle_chat, false, DI_DIALECT_CHAT},
    {"POST", "/v1/completions", handle_completion, false, DI_DIALECT_COMPLETION},
    {"POST", "/completions", handle_completion, false, DI_DIALECT_COMPLETION},
    {"POST", "/beta/completions", handle_completion, false, DI_DIALECT_COMPLETION},
    {"POST", "/v1/responses", handle_responses, false, DI_DIALECT_RESPONSES},
    {"POST", "/responses", handle_responses, false, DI_DIALECT_RESPONSES},
    {"GET", "/v1/responses/", handle_response, false, DI_DIALECT_RESPONSES},
    {"DELETE", "/v1/responses/", handle_forget_response, false, DI_DIALECT_RESPONSES},
    {"POST", "/v1/messages", handle_messages, false, DI_DIALECT_MESSAGES},
    {"POST", "/anthropic/v1/messages", handle_messages, false, DI_DIALECT_MESSAGES},
    {"POST", "/v1/messages/count_tokens", handle_count_tokens, false, DI_DIALECT_MESSAGES},
    {"POST", "/anthropic/v1/messages/count_tokens", handle_count_tokens, false,
     DI_DIALECT_MESSAGES},
    {"POST", "/tokenize", handle_tokenize, false, DI_DIALECT_CHAT},
    {"POST", "/detokenize", handle_detokenize, false, DI_DIALECT_CHAT},
};

/* A route that ends in '/' takes what is below it, but for the root. */
static bool matches(http_text path, const char *route, http_text *detail) {
    size_t n = strlen(route);
    if (http_text_is(path, route)) return true;
    if (n == 1 || route[n - 1] != '/' || path.size <= n || memcmp(path.data, route, n) != 0)
        return false;
    *detail = (http_text){path.data + n, path.size - n};
    return true;
}

const di_route *di_route_find(http_text method, http_text path, http_text *detail, int *status,
                              const char **allow) {
    *status = 404;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!matches(path, routes[i].path, detail)) continue;
        if (http_text_is(method, routes[i].method)) return &routes[i];
        /* The only path with two methods is that of a response. */
        *allow = *status == 405                         ? "GET, HEAD, DELETE"
                 : strcmp(routes[i].method, "GET") == 0 ? "GET, HEAD"
                                                        : routes[i].method;
        *status = 405;
    }
    return NULL;
}

bool di_path_is_anthropic(http_text path) {
    static const char *const starts[] = {"/v1/messages", "/anthropic/"};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(starts[i]);
        if (path.size >= n && memcmp(path.data, starts[i], n) == 0) return true;
    }
    return false;
}
