/* What an operator reads: lines of key=value on stderr, with the priorities that journald knows when it
 * listens. */
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/lossy.h"
#include "server/server_internal.h"

/* A value as it is where nothing in it can be taken for another field of the line or for its end, and
 * as a JSON string where something can. */
static void put_value(di_buffer *line, const char *value) {
    bool plain = *value != '\0';
    for (const char *at = value; *at && plain; at++) {
        plain = *at > ' ' && *at < 127 && !strchr("\"'\\=", *at);
    }
    if (plain) {
        di_buffer_puts(line, value);
    } else {
        di_lossy_write(line, value, strlen(value));
    }
}

static void begin_line(di_buffer *line, const char *level) {
    struct timespec now;
    struct tm tm;
    char text[40];
    bool error = strcmp(level, "error") == 0;
    if (getenv("JOURNAL_STREAM")) {
        di_buffer_printf(line, "<%d>", error ? 3 : strcmp(level, "warn") == 0 ? 4 : 6);
    }
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    di_buffer_printf(line, "time=%s.%03ldZ level=%s ", text, now.tv_nsec / 1000000, level);
}

/* Whether a line can be written at once. Who reads them may have stopped (a pager, a log collector that is
 * stuck): the loop must not wait for him, for all clients would. A pipe with room takes 4 KiB in one go, and no
 * line is so long; a file always has room, and what is broken fails at once. */
static bool takes_line(FILE *log) {
    struct pollfd one = {.fd = fileno(log), .events = POLLOUT};
    return one.fd < 0 || (poll(&one, 1, 0) == 1 && one.revents != 0);
}

static void end_line(di_server *server, di_buffer *line) {
    di_buffer_putc(line, '\n');
    if (line->failed || !takes_line(server->options.log)) {
        server->n_log_lost++;
    } else {
        fwrite(line->data, 1, line->size, server->options.log);
        fflush(server->options.log);
    }
    di_buffer_free(line);
}

/* Of lines that were lost the next one tells. */
static void tell_lost(di_server *server) {
    di_buffer line = DI_BUFFER_EMPTY;
    uint64_t n = server->n_log_lost;
    if (n == 0 || !takes_line(server->options.log)) return;
    server->n_log_lost = 0;
    begin_line(&line, "warn");
    di_buffer_printf(&line, "event=log_lost lines=%" PRIu64, n);
    end_line(server, &line);
}

void server_log(di_server *server, const char *level, const char *format, ...) {
    di_buffer line = DI_BUFFER_EMPTY;
    char text[1500];
    va_list args;
    if (!server->options.log) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tell_lost(server);
    begin_line(&line, level);
    di_buffer_puts(&line, text);
    end_line(server, &line);
}

void server_log_message(di_server *server, const char *level, const char *event,
                        const char *message) {
    di_buffer line = DI_BUFFER_EMPTY;
    if (!server->options.log) return;
    tell_lost(server);
    begin_line(&line, level);
    di_buffer_printf(&line, "event=%s message=", event);
    di_lossy_write(&line, message, strlen(message));
    end_line(server, &line);
}

void server_log_listening(di_server *server, const char *address) {
    di_buffer line = DI_BUFFER_EMPTY;
    if (!server->options.log) return;
    begin_line(&line, "info");
    di_buffer_printf(&line, "event=listening address=%s model=", address);
    put_value(&line, server->options.models[0]);
    di_buffer_printf(&line, " context=%lld", (long long)server->env.context);
    end_line(server, &line);
}

static void log_client(const di_conn *conn, di_buffer *line) {
    struct sockaddr_storage address;
    int size = sizeof address;
    char text[64] = "-";
    if (uv_tcp_getpeername(&conn->tcp, (struct sockaddr *)&address, &size) == 0) {
        if (address.ss_family == AF_INET) {
            uv_ip4_name((struct sockaddr_in *)&address, text, sizeof text);
        } else if (address.ss_family == AF_INET6) {
            uv_ip6_name((struct sockaddr_in6 *)&address, text, sizeof text);
        }
    }
    di_buffer_printf(line, " client=%s", text);
    if (!conn->key) return;
    di_buffer_puts(line, " key=");
    put_value(line, conn->key->name);
}

/* Why nothing of the prompt was spared, and what of a conversation's calls was not ours: an agent that
 * is slow for it can be mended then. Of prompts that are many, the longest way that was there counts. */
static void log_cache(const di_generation *g, int64_t n_prompt, int64_t n_cached, di_buffer *line) {
    enum { PAGE = 64 }; /* tokens: what is found at a time */
    const di_gen_request *r = &g->job->request;
    int64_t n_found = 0;
    for (int32_t i = 0; i < g->writer.n_choices; i++) {
        int64_t found = g->writer.choices[i].end.n_found;
        if (found > n_found) n_found = found;
    }
    if (n_cached == 0) {
        di_buffer_printf(line, " cache=%s",
                         !g->server->options.prefix_cache ? "off"
                         : n_prompt <= PAGE               ? "too_short"
                         : n_found > 0                    ? "no_windows"
                                                          : "nothing_alike");
    }
    if (n_cached == 0 && n_found > 0) di_buffer_printf(line, " found=%" PRId64, n_found);
    if (r->n_turns > 0) {
        di_buffer_printf(line, " turns_known=%d/%d", r->n_known_turns, r->n_turns);
    }
    /* And why a later one will not know this. */
    if (g->writer.let_go) di_buffer_puts(line, " turn_kept=too_large");
}

static void log_generation(const di_generation *g, di_buffer *line) {
    static const char *const reasons[] = {"stop", "length", "tool_calls", "cancelled", "failed"};
    const di_job *job = g->job;
    di_writer_usage u = di_writer_get_usage(&g->writer);
    di_buffer_printf(line, " stream=%d choices=%d", job->request.stream, job->n_choices);
    if (!g->done || g->cut_for) { /* what it took is told with its end, which has not come yet */
        const char *why = g->cut_for ? g->cut_for : g->conn ? g->conn->closed_for : NULL;
        di_buffer_printf(line, " finish=%s", why ? why : "client_left");
        return;
    }
    di_buffer_printf(line,
                     " prompt=%" PRId64 " cached=%" PRId64 " answer=%" PRId64 " reasoning=%" PRId64,
                     u.n_prompt, u.n_cached, u.n_answer, u.n_reasoning);
    double started = job->started > 0 ? job->started : job->first;
    log_cache(g, u.n_prompt, u.n_cached, line);
    di_buffer_printf(line, " finish=%s", reasons[g->writer.choices[0].end.reason]);
    if (g->writer.failed) {
        di_buffer_puts(line, " error=");
        di_lossy_write(line, g->writer.failure, strlen(g->writer.failure));
    }
    if (job->first == 0) return;
    di_buffer_printf(line, " queue_s=%.4f ttft_s=%.4f decode_s=%.4f",
                     (started < job->first ? started : job->first) - job->arrived,
                     job->first - job->arrived, job->last - job->first);
}

void server_log_request(di_server *server, di_conn *conn, const di_generation *g) {
    di_buffer line = DI_BUFFER_EMPTY;
    if (!server->options.log || !server->options.log_requests) return;
    tell_lost(server);
    begin_line(&line, conn->status >= 500 ? "error" : "info");
    di_buffer_printf(&line, "event=request id=%s route=%s", conn->request_id,
                     conn->route ? conn->route->path : "-");
    if (conn->unknown[0]) di_buffer_printf(&line, " path=%s", conn->unknown);
    di_buffer_printf(&line, " status=%d", conn->status);
    if (g && g->has_writer && g->job) log_generation(g, &line);
    di_buffer_printf(&line, " bytes=%" PRIu64 " total_s=%.4f", conn->n_sent,
                     di_clock() - conn->begun);
    log_client(conn, &line);
    end_line(server, &line);
}

void server_log_slow_steps(di_server *server) {
    di_slow_step slow;
    while (di_runner_take_slow(server->runner, &slow)) {
        const di_step_trace *s = &slow.step;
        server_log(server, "warn",
                   "event=slow_step step=%" PRIu64 " rows=%d prompt_rows=%d blocks=%d verified=%d "
                   "ahead=%d step_s=%.4f schedule_s=%.4f build_s=%.4f enqueue_s=%.4f wait_s=%.4f "
                   "deliver_s=%.4f device_s=%.4f not_told=%" PRIu64,
                   s->step, s->rows, s->prompt_rows, s->blocks, s->verified, s->ahead, slow.seconds,
                   s->build - s->schedule, s->enqueue - s->build, s->enqueued - s->enqueue,
                   s->deliver - s->wait, s->delivered - s->deliver, s->end - s->begin, slow.n_lost);
    }
}

const char *server_date(di_server *server) {
    time_t now = time(NULL);
    struct tm tm;
    if (server->date_of != (int64_t)now) {
        gmtime_r(&now, &tm);
        strftime(server->date, sizeof server->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
        server->date_of = (int64_t)now;
    }
    return server->date;
}
