/* The loop: listening, signals, clocks, and the way down. */
#include "server/server.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "server/grammars.h"
#include "server/server_internal.h"
#include "server/turns.h"

enum { TICK_MS = 100, BACKLOG = 1024, MAX_TURNS = 32 << 20 };

di_server_options di_server_options_defaults(void) {
    return (di_server_options){.host = "127.0.0.1",
                               .port = 8000,
                               .max_queue = 1024,
                               .max_connections = 16384,
                               .max_body = (size_t)32 << 20,
                               .max_unsent = (size_t)1 << 30,
                               .response_store = (size_t)64 << 20,
                               .keep_alive_s = 10,
                               .read_timeout_s = 20,
                               .idle_timeout_s = 75,
                               .write_timeout_s = 60,
                               .drain_timeout_s = 30,
                               .page = true,
                               .metrics_prefix = "deepinfer:",
                               .prefix_cache = true,
                               .log_requests = true};
}

/* ---- Events of the engine's thread ---- */

/* That thread's. */
static void wake_loop(void *user) { uv_async_send(&((di_server *)user)->wake); }

static void check_engine(di_server *server) {
    di_runner_stats stats = di_runner_get_stats(server->runner);
    if (!stats.failed || server->failed) return;
    server->failed = true;
    server_log_message(server, "error", "engine_failed", stats.message);
}

static void on_wake(uv_async_t *wake) {
    di_server *server = wake->data;
    bool done;
    for (;;) {
        di_buffer_clear(&server->scratch);
        di_job *job = di_runner_take(server->runner, &server->scratch, &done);
        if (!job) break;
        generation_take(job->owner, &server->scratch, done);
    }
    check_engine(server);
    server_log_slow_steps(server);
    generation_sweep(server);
    server_check_end(server);
}

/* ---- The way down ---- */

static void on_listener_closed(uv_handle_t *handle) { (void)handle; }

static void begin_drain(di_server *server, const char *why) {
    if (server->draining) return;
    server->draining = true;
    server->drain_until = di_clock() + server->options.drain_timeout_s;
    server_log(server, "info", "event=drain reason=%s open=%lld timeout_s=%g", why,
               (long long)server->n_open, server->options.drain_timeout_s);
    uv_close((uv_handle_t *)&server->listener, on_listener_closed);
    for (di_conn *c = server->conns; c; c = c->after) {
        if (c->state == DI_CONN_HEAD && c->in.size == 0) conn_close(c);
    }
}

/* Answers that are in progress end as errors, which their clients get a moment to take; others just end. */
static void cut_all(di_server *server) {
    enum { MOMENT_S = 1 };
    server->cut = true;
    server->drain_until = di_clock() + MOMENT_S;
    server_log(server, "warn", "event=cut open=%lld", (long long)server->n_open);
    for (di_generation *g = server->generations; g; g = g->after) {
        generation_cut(g, "server_stopped", "the server is stopping");
    }
    for (di_conn *c = server->conns; c; c = c->after) {
        if (c->state != DI_CONN_LINGER) conn_close(c);
    }
}

static void close_all(di_server *server) {
    for (di_conn *c = server->conns; c; c = c->after) conn_close(c);
}

void server_check_end(di_server *server) {
    if (!server->draining || server->ending || server->conns || server->generations) return;
    server->ending = true;
    uv_close((uv_handle_t *)&server->wake, NULL);
    uv_close((uv_handle_t *)&server->timer, NULL);
    for (int i = 0; i < 3; i++) uv_close((uv_handle_t *)&server->signals[i], NULL);
}

static void load_keys_again(di_server *server) {
    di_error error;
    if (!server->options.key_file) return;
    if (di_keys_load(&server->keys, server->options.key_file, &error) == DI_OK) {
        server_log(server, "info", "event=keys_loaded n=%d", server->keys.n);
    } else {
        server_log_message(server, "error", "keys_kept", error.message);
    }
}

static void on_signal(uv_signal_t *handle, int number) {
    di_server *server = handle->data;
    if (number == SIGHUP) {
        load_keys_again(server);
    } else if (server->cut) {
        close_all(server);
    } else if (server->draining) {
        cut_all(server);
    } else {
        begin_drain(server, number == SIGTERM ? "SIGTERM" : "SIGINT");
    }
    server_check_end(server);
}

/* Readers that are slow, though not so slow as to be given up for it, may be many: where what waits for
 * all of them is too much, the one that holds most goes. One a tick, for its memory is not free at once. */
static void bound_unsent(di_server *server) {
    di_conn *most = NULL;
    size_t all = 0, largest = 0;
    for (di_conn *c = server->conns; c; c = c->after) {
        size_t held = conn_held(c);
        all += held;
        if (held <= largest) continue;
        largest = held;
        most = c;
    }
    if (all <= server->options.max_unsent) return;
    server_log(server, "warn", "event=slow_readers unsent=%zu given_up=%s bytes=%zu", all,
               most->request_id, largest);
    conn_give_up(most, "slow_reader");
}

static void on_timer(uv_timer_t *timer) {
    di_server *server = timer->data;
    uint64_t now_ms = uv_now(&server->loop);
    for (di_conn *c = server->conns, *after; c; c = after) {
        after = c->after;
        conn_tick(c, now_ms);
    }
    bound_unsent(server);
    if (server->accept_again && !server->draining) conn_accept(server);
    if (server->failed) begin_drain(server, "engine_failed");
    if (server->draining && di_clock() > server->drain_until) {
        if (server->cut) {
            close_all(server);
        } else {
            cut_all(server);
        }
    }
    generation_sweep(server);
    server_check_end(server);
}

/* ---- The way up ---- */

static void on_connection(uv_stream_t *listener, int status) {
    if (status == 0) conn_accept(listener->data);
}

static di_status fail_uv(int code, const char *what, di_error *error) {
    return di_fail(error, DI_ERR_IO, "%s: %s", what, uv_strerror(code));
}

static di_status fail_listen(int code, const di_server_options *o, di_error *error) {
    char what[200];
    snprintf(what, sizeof what, "cannot listen on %.100s port %d", o->host, o->port);
    return fail_uv(code, what, error);
}

static di_status read_address(const di_server_options *o, struct sockaddr_storage *out,
                              di_error *error) {
    int code = strchr(o->host, ':') ? uv_ip6_addr(o->host, o->port, (struct sockaddr_in6 *)out)
                                    : uv_ip4_addr(o->host, o->port, (struct sockaddr_in *)out);
    if (code == 0) return DI_OK;
    return di_fail(error, DI_ERR_USAGE, "--host: '%.100s' is no address such as 127.0.0.1 or ::1",
                   o->host);
}

static di_status listen_at(di_server *server, di_error *error) {
    struct sockaddr_storage address;
    DI_TRY(read_address(&server->options, &address, error));
    int code = uv_tcp_bind(&server->listener, (struct sockaddr *)&address, 0);
    if (code == 0) code = uv_listen((uv_stream_t *)&server->listener, BACKLOG, on_connection);
    return code == 0 ? DI_OK : fail_listen(code, &server->options, error);
}

/* A socket that is bound as libuv binds, and closed again. */
static di_status try_address(const di_server_options *o, di_error *error) {
    struct sockaddr_storage address;
    DI_TRY(read_address(o, &address, error));
    bool six = address.ss_family == AF_INET6;
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    int code = fd < 0 ? -errno : 0;
    if (code == 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) code = -errno;
    if (code == 0 && bind(fd, (struct sockaddr *)&address,
                          six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in)) != 0) {
        code = -errno;
    }
    if (fd >= 0) close(fd);
    return code == 0 ? DI_OK : fail_listen(code, o, error);
}

di_status di_server_check(const di_server_options *options, di_error *error) {
    DI_TRY(try_address(options, error));
    if (!options->key_file) return DI_OK;
    di_keys keys = {0};
    di_status status = di_keys_load(&keys, options->key_file, error);
    di_keys_free(&keys);
    return status;
}

/* Every connection is a file. */
static void raise_file_limit(di_server *server) {
    struct rlimit limit;
    rlim_t wanted = (rlim_t)server->options.max_connections + 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted) {
        server_log(server, "warn", "event=file_limit wanted=%lld got=%lld", (long long)wanted,
                   (long long)limit.rlim_cur);
    }
}

static void say_where(di_server *server) {
    struct sockaddr_storage address;
    int size = sizeof address;
    char host[64] = "";
    if (uv_tcp_getsockname(&server->listener, (struct sockaddr *)&address, &size) != 0) return;
    bool six = address.ss_family == AF_INET6;
    if (six) {
        uv_ip6_name((struct sockaddr_in6 *)&address, host, sizeof host);
    } else {
        uv_ip4_name((struct sockaddr_in *)&address, host, sizeof host);
    }
    int port = ntohs(six ? ((struct sockaddr_in6 *)&address)->sin6_port
                         : ((struct sockaddr_in *)&address)->sin_port);
    char where[100];
    snprintf(where, sizeof where, "http://%s%s%s:%d", six ? "[" : "", host, six ? "]" : "", port);
    server_log_listening(server, where);
    bool local = strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
    if (!local && !server->options.key_file) {
        server_log_message(server, "warn", "open_to_all",
                           "other machines may ask without a key; see --api-keys");
    }
}

static di_status start_handles(di_server *server, di_error *error) {
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    int code = uv_async_init(&server->loop, &server->wake, on_wake);
    if (code == 0) code = uv_timer_init(&server->loop, &server->timer);
    if (code == 0) code = uv_tcp_init(&server->loop, &server->listener);
    for (int i = 0; i < 3 && code == 0; i++) {
        code = uv_signal_init(&server->loop, &server->signals[i]);
        server->signals[i].data = server;
        if (code == 0) code = uv_signal_start(&server->signals[i], on_signal, numbers[i]);
    }
    if (code != 0) return fail_uv(code, "cannot start the event loop", error);
    server->wake.data = server->timer.data = server->listener.data = server;
    code = uv_timer_start(&server->timer, on_timer, TICK_MS, TICK_MS);
    return code == 0 ? DI_OK : fail_uv(code, "cannot start the clock", error);
}

static void close_handle(uv_handle_t *handle, void *user) {
    (void)user;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

static di_status set_up(di_server *server, di_engine *engine, di_error *error) {
    server->info = di_engine_get_info(engine);
    server->env = di_request_env_of(engine);
    server->env.turns = di_turns_create(MAX_TURNS);
    server->stored = di_stored_create(server->options.response_store);
    server->started = (int64_t)time(NULL);
    server->metrics.prompt_sizes.tokens = server->metrics.answer_sizes.tokens = true;
    if (!server->env.turns || !server->stored) {
        return di_fail(error, DI_ERR_MEMORY, "out of memory: server");
    }
    return di_grammars_create(server->env.tokenizer, server->env.vocab_size, server->info.eos_token,
                              DI_GRAMMARS_BYTES, &server->env.grammars, error);
}

static void free_server(di_server *server) {
    di_keys_free(&server->keys);
    di_stored_destroy(server->stored);
    di_turns_destroy(server->env.turns);
    di_grammars_destroy(server->env.grammars);
    di_buffer_free(&server->scratch);
    free(server->timeline);
    free(server);
}

static di_status serve(di_server *server, di_engine *engine, di_error *error) {
    if (server->options.debug) {
        server->timeline = calloc(1, sizeof *server->timeline);
        if (!server->timeline) return di_fail(error, DI_ERR_MEMORY, "out of memory: server");
    }
    DI_TRY(start_handles(server, error));
    DI_TRY(listen_at(server, error));
    const di_runner_options runner = {.max_batch = server->options.max_batch,
                                      .trace_steps = server->timeline ? DI_TIMELINE_STEPS : 0,
                                      .slow_s = server->options.slow_step_s,
                                      .wake = wake_loop,
                                      .user = server};
    DI_TRY(di_runner_create(engine, &runner, &server->runner, error));
    say_where(server);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    di_runner_stats stats = di_runner_get_stats(server->runner);
    server_log_slow_steps(server);
    di_runner_destroy(server->runner);
    server_log(server, "info", "event=stopped");
    if (!stats.failed) return DI_OK;
    return di_fail(error, DI_ERR_IO, "%s", stats.message);
}

di_status di_server_run(di_engine *engine, const di_server_options *options, di_error *error) {
    di_server *server = calloc(1, sizeof *server);
    if (!server) return di_fail(error, DI_ERR_MEMORY, "out of memory: server");
    server->options = *options;
    di_status status = set_up(server, engine, error);
    int code = status == DI_OK ? uv_loop_init(&server->loop) : 0;
    if (code != 0) status = fail_uv(code, "cannot make an event loop", error);
    if (status != DI_OK) {
        free_server(server);
        return status;
    }
    if (options->key_file) status = di_keys_load(&server->keys, options->key_file, error);
    signal(SIGPIPE, SIG_IGN);
    raise_file_limit(server);
    if (status == DI_OK) status = serve(server, engine, error);
    /* What a failure half way left open. */
    uv_walk(&server->loop, close_handle, NULL);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    uv_loop_close(&server->loop);
    free_server(server);
    return status;
}
