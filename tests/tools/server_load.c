/* Load for the server, from one thread, so that the server keeps the rest of the machine.
 *
 *     server_load streams PORT CLIENTS SECONDS [GREEDY]   streamed answers, one behind another a client
 *     server_load cancel  PORT CLIENTS COUNT              streams that are left at random moments
 *     server_load idle    PORT COUNT SECONDS              connections that ask once and then stay
 *     server_load bodies  PORT CLIENTS FILE               each line of FILE is a chat completion, once
 *
 * Client i comes from the address 127.0.0.0/8 of its own, which is how the server tells clients without
 * keys apart; the first GREEDY share one address. One JSON object on stdout says what was seen, in
 * seconds; what it means is the caller's to judge. Exit code 0 even where the server erred: `errors`
 * counts, and the first ones stand on stderr. An answer is good with status 200; a stream when it also
 * had a finish_reason, its usage and [DONE], text if it had tokens, and every line of it is UTF-8.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <uv.h>

#include "base/utf8.h"

enum { MAX_LINE = 8192, BUCKETS = 2048, SHOWN_ERRORS = 5, MAX_ERRORS = 10000 };

typedef enum mode { STREAMS, CANCEL, IDLE, BODIES, N_MODES } mode;

/* Seconds in buckets of 1 % each, from 10 microseconds on. */
typedef struct times {
    uint64_t counts[BUCKETS];
    uint64_t n;
    double max;
} times;

typedef struct client {
    uv_tcp_t tcp;
    uv_timer_t leave; /* CANCEL: when */
    uv_connect_t connect;
    uv_write_t write;
    int index, closing; /* handles that are not closed yet */
    bool open;          /* the connection stands */
    bool busy;          /* an answer is awaited */
    char *request;
    char line[MAX_LINE]; /* of the answer: what came of its present line */
    size_t n_line;
    int status; /* 0: the head's first line is awaited */
    bool in_head, streamed, failed;
    bool finished, counted, ended; /* a stream: its finish_reason, usage and [DONE] came */
    size_t length; /* bytes of the body that are still awaited, where the head says */
    double sent, last;
    uint64_t pieces; /* of text, before the end of time */
} client;

static struct {
    mode mode;
    int port, n_clients, n_greedy;
    double end;        /* no request begins later */
    uint64_t n_wanted; /* CANCEL: connections in all */
    char **bodies;     /* BODIES: what is asked, n_wanted of them */
    uint64_t n_begun, n_answers, n_errors, n_left, n_tokens;
    times first, gaps, whole;
    client *clients;
    uint64_t random;
    double begin, last_answer;
} load;

static const char story[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story about a fox.\"}], "
    "\"thinking\": false, \"temperature\": 1, \"max_tokens\": 64, \"stream\": true, "
    "\"stream_options\": {\"include_usage\": true}}";

static double now(void) { return (double)uv_hrtime() * 1e-9; }

static double random_part(void) { /* [0, 1), xorshift */
    load.random ^= load.random << 13;
    load.random ^= load.random >> 7;
    load.random ^= load.random << 17;
    return (double)(load.random >> 11) * 0x1p-53;
}

static double bound_of(int bucket) {
    double x = 1e-5;
    for (int i = 0; i < bucket; i++) x *= 1.01;
    return x;
}

static void times_add(times *t, double seconds) {
    static double bounds[BUCKETS];
    if (bounds[0] == 0) {
        for (int i = 0; i < BUCKETS; i++) bounds[i] = bound_of(i);
    }
    int low = 0, high = BUCKETS - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (bounds[middle] < seconds) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    t->counts[low]++;
    t->n++;
    if (seconds > t->max) t->max = seconds;
}

static double times_quantile(const times *t, double part) {
    uint64_t sum = 0;
    for (int i = 0; i < BUCKETS; i++) {
        sum += t->counts[i];
        if (sum > 0 && (double)sum >= part * (double)t->n) return bound_of(i);
    }
    return 0;
}

static void begin_connection(client *c);
static void ask(client *c);

static void count_error(const client *c, const char *what) {
    if (load.n_errors++ < SHOWN_ERRORS) {
        fprintf(stderr, "server_load: client %d: %s: %.300s\n", c->index, what, c->line);
    }
}

/* The answer is no good; it is read to its end all the same. */
static void blame(client *c, const char *what) {
    if (!c->failed) count_error(c, what);
    c->failed = true;
}

static bool is_more(void) {
    if (load.n_errors >= MAX_ERRORS) return false; /* nobody serves: do not ask for ever */
    if (load.mode == STREAMS) return now() < load.end;
    return load.n_begun < load.n_wanted;
}

static void on_closed(uv_handle_t *handle) {
    client *c = handle->data;
    if (--c->closing > 0) return;
    if (load.mode != IDLE && is_more()) begin_connection(c);
}

static void end_connection(client *c) {
    if (uv_is_closing((uv_handle_t *)&c->tcp)) return;
    c->open = false;
    c->closing = 2;
    uv_close((uv_handle_t *)&c->tcp, on_closed);
    uv_close((uv_handle_t *)&c->leave, on_closed);
}

/* The connection is lost, or its answer wrong. */
static void fail(client *c, const char *what) {
    count_error(c, what);
    end_connection(c);
}

static void count_usage(client *c, const char *text) {
    static const char name[] = "\"completion_tokens\":";
    const char *found = strstr(text, name);
    if (!found) return;
    uint64_t n = strtoull(found + sizeof name - 1, NULL, 10);
    c->counted = true;
    if (n > 0 && c->streamed && load.mode != BODIES && c->last == 0) blame(c, "tokens and no text");
    load.n_tokens += n;
}

static void end_answer(client *c) {
    c->busy = false;
    if (c->status != 200) blame(c, "no good answer");
    if (c->failed) {
        end_connection(c);
        return;
    }
    load.n_answers++;
    load.last_answer = now();
    times_add(&load.whole, load.last_answer - c->sent);
    uv_timer_stop(&c->leave);
    if (load.mode == IDLE) return;
    if (load.mode != CANCEL && is_more()) {
        ask(c);
    } else {
        end_connection(c);
    }
}

static void read_head_line(client *c) {
    static const char length[] = "content-length:", type[] = "content-type: text/event-stream";
    if (c->status == 0) {
        if (c->n_line == 0) return; /* the blank line behind the last answer's last chunk */
        if (sscanf(c->line, "HTTP/1.1 %d", &c->status) != 1) blame(c, "no answer's head");
    } else if (strncasecmp(c->line, length, sizeof length - 1) == 0) {
        c->length = strtoul(c->line + sizeof length - 1, NULL, 10);
    } else if (strncasecmp(c->line, type, sizeof type - 1) == 0) {
        c->streamed = true;
    } else if (c->n_line == 0) {
        c->in_head = false;
    }
}

static void end_chunks(client *c) {
    if (c->streamed && !c->finished) blame(c, "a stream without a finish_reason");
    if (!c->counted) blame(c, "an answer without usage");
    if (c->streamed && !c->ended) blame(c, "a stream without [DONE]");
    end_answer(c);
}

/* A line of a body in chunks: a stream, or an answer in one piece that had blanks in front of it. Sizes of
 * chunks are lines too, and are let be; the server puts whole events into chunks, so no line of an event is
 * cut by one. The last chunk, a 0, ends the answer. */
static void read_chunk_line(client *c) {
    if (strcmp(c->line, "0") == 0) {
        end_chunks(c);
        return;
    }
    if (di_utf8_valid_prefix(c->line, c->n_line) != c->n_line) blame(c, "no UTF-8");
    if (!c->streamed) count_usage(c, c->line);
    if (!c->streamed || strncmp(c->line, "data: ", 6) != 0) return;
    if (strcmp(c->line, "data: [DONE]") == 0) c->ended = true;
    if (strstr(c->line, "\"error\"")) blame(c, "an error in a stream");
    if (strstr(c->line, "\"finish_reason\":\"")) c->finished = true;
    if (strstr(c->line, "\"content\":\"")) {
        double t = now();
        times_add(c->last > 0 ? &load.gaps : &load.first, t - (c->last > 0 ? c->last : c->sent));
        c->last = t;
        c->pieces += t < load.end;
    }
    count_usage(c, c->line);
}

/* Takes the line that is whole in c->line, its end left out. */
static void end_line(client *c) {
    if (c->n_line > 0 && c->line[c->n_line - 1] == '\r') c->n_line--;
    c->line[c->n_line] = '\0';
    if (c->in_head) {
        read_head_line(c);
        if (!c->in_head && c->status != 200) end_answer(c);
    } else {
        read_chunk_line(c);
    }
    c->n_line = 0;
}

/* Bytes of a body whose length is known; what is asked of it stands in its end. */
static size_t read_plain(client *c, const char *bytes, size_t n) {
    if (n > c->length) n = c->length;
    for (size_t i = 0; i < n; i++) {
        if (c->n_line == MAX_LINE - 1) { /* keep the second half */
            memmove(c->line, c->line + MAX_LINE / 2, MAX_LINE - 1 - MAX_LINE / 2);
            c->n_line = MAX_LINE - 1 - MAX_LINE / 2;
        }
        c->line[c->n_line++] = bytes[i];
    }
    c->length -= n;
    if (c->length == 0) {
        c->line[c->n_line] = '\0';
        count_usage(c, c->line);
        c->n_line = 0;
        end_answer(c);
    }
    return n;
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer) {
    client *c = stream->data;
    if (n < 0) {
        c->line[c->n_line] = '\0';
        if (c->busy || load.mode == IDLE) {
            fail(c, uv_strerror((int)n));
        } else {
            end_connection(c);
        }
        return;
    }
    for (size_t i = 0; i < (size_t)n && c->busy && c->open;) {
        if (!c->in_head && c->length > 0) {
            i += read_plain(c, buffer->base + i, (size_t)n - i);
        } else if (buffer->base[i++] == '\n') {
            end_line(c);
        } else if (c->n_line < MAX_LINE - 1) {
            c->line[c->n_line++] = buffer->base[i - 1];
        } else {
            blame(c, "a line that is too long");
        }
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer) {
    static char bytes[65536]; /* one thread, and used up before the next read */
    (void)handle, (void)suggested;
    *buffer = uv_buf_init(bytes, sizeof bytes);
}

static void on_leave(uv_timer_t *timer) {
    client *c = timer->data;
    load.n_left++;
    end_connection(c);
}

static void on_written(uv_write_t *request, int status) {
    client *c = request->data;
    if (status < 0 && status != UV_ECANCELED) fail(c, uv_strerror(status));
}

static void make_request(client *c, const char *body) {
    free(c->request);
    size_t size = strlen(body) + 200;
    c->request = malloc(size);
    if (!c->request) abort();
    if (load.mode == IDLE) {
        snprintf(c->request, size, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    } else {
        snprintf(c->request, size,
                 "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                 "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                 strlen(body), body);
    }
}

static void ask(client *c) {
    make_request(c, load.bodies ? load.bodies[load.n_begun] : story);
    load.n_begun++;
    c->busy = c->in_head = true;
    c->streamed = c->finished = c->counted = c->ended = c->failed = false;
    c->status = 0;
    c->length = c->n_line = 0;
    c->sent = now();
    c->last = 0;
    uv_buf_t buffer = uv_buf_init(c->request, (unsigned)strlen(c->request));
    uv_write(&c->write, (uv_stream_t *)&c->tcp, &buffer, 1, on_written);
    if (load.mode == CANCEL) {
        /* From before it is read until most have ended by themselves, more often early. */
        double part = random_part();
        uv_timer_start(&c->leave, on_leave, (uint64_t)(part * part * 2000), 0);
    }
}

static void on_connected(uv_connect_t *connect, int status) {
    client *c = connect->data;
    if (status < 0) {
        c->line[0] = '\0';
        if (status != UV_ECANCELED) fail(c, uv_strerror(status));
        return;
    }
    c->open = true;
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
    if (load.mode == IDLE || is_more()) {
        ask(c);
    } else {
        end_connection(c);
    }
}

static void begin_connection(client *c) {
    struct sockaddr_in to, from;
    char address[32];
    int host = c->index < load.n_greedy ? 1 : c->index + 2;
    snprintf(address, sizeof address, "127.%d.%d.%d", 1 + host / 62500, host / 250 % 250,
             1 + host % 250);
    uv_tcp_init(uv_default_loop(), &c->tcp);
    uv_timer_init(uv_default_loop(), &c->leave);
    c->tcp.data = c->leave.data = c->connect.data = c->write.data = c;
    uv_ip4_addr(address, 0, &from);
    uv_ip4_addr("127.0.0.1", load.port, &to);
    int status = uv_tcp_bind(&c->tcp, (const struct sockaddr *)&from, 0);
    if (status == 0) {
        status = uv_tcp_connect(&c->connect, &c->tcp, (const struct sockaddr *)&to, on_connected);
    }
    if (status < 0) fail(c, uv_strerror(status));
}

static void read_bodies(const char *path) {
    char *line = NULL;
    size_t size = 0, room = 0;
    ssize_t n;
    FILE *file = fopen(path, "r");
    if (!file) {
        perror(path);
        exit(2);
    }
    while ((n = getline(&line, &size, file)) > 0) {
        if (line[n - 1] == '\n') line[n - 1] = '\0';
        if (load.n_wanted == room) {
            room = 2 * room + 64;
            load.bodies = realloc(load.bodies, room * sizeof *load.bodies);
            if (!load.bodies) abort();
        }
        load.bodies[load.n_wanted++] = strdup(line);
    }
    free(line);
    fclose(file);
}

static void print_times(const char *name, const times *t) {
    printf(", \"%s\": {\"n\": %" PRIu64 ", \"p50\": %.5f, \"p99\": %.5f, \"max\": %.5f}", name,
           t->n, times_quantile(t, 0.5), times_quantile(t, 0.99), t->max);
}

/* Pieces of text (a token, or a few that were drafted) that clients with an address of their own got while
 * all asked: extremes and Jain's index, (sum x)^2 / (n sum x^2), which is 1 where all got the same. */
static void print_fairness(void) {
    uint64_t least = UINT64_MAX, most = 0, greedy = 0;
    double sum = 0, squares = 0;
    int n = load.n_clients - load.n_greedy;
    for (int i = 0; i < load.n_clients; i++) {
        uint64_t pieces = load.clients[i].pieces;
        if (i < load.n_greedy) {
            greedy += pieces;
            continue;
        }
        sum += (double)pieces;
        squares += (double)pieces * (double)pieces;
        if (pieces < least) least = pieces;
        if (pieces > most) most = pieces;
    }
    printf(", \"pieces\": {\"least\": %" PRIu64 ", \"mean\": %.1f, \"most\": %" PRIu64
           ", \"jain\": %.4f, \"greedy\": %" PRIu64 "}",
           least, sum / n, most, squares > 0 ? sum * sum / (n * squares) : 0, greedy);
}

static void print_report(void) {
    uv_rusage_t usage;
    uv_getrusage(&usage);
    printf("{\"begun\": %" PRIu64 ", \"answers\": %" PRIu64 ", \"errors\": %" PRIu64
           ", \"left\": %" PRIu64 ", \"tokens\": %" PRIu64 ", \"seconds\": %.3f, \"cpu\": %.2f",
           load.n_begun, load.n_answers, load.n_errors, load.n_left, load.n_tokens,
           load.last_answer - load.begin,
           (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec));
    print_times("first", &load.first);
    print_times("gaps", &load.gaps);
    print_times("whole", &load.whole);
    if (load.mode == STREAMS) print_fairness();
    puts("}");
}

static void on_idle_over(uv_timer_t *timer) {
    for (int i = 0; i < load.n_clients; i++) end_connection(&load.clients[i]);
    uv_close((uv_handle_t *)timer, NULL);
}

int main(int argc, char **argv) {
    static const char *const names[N_MODES] = {"streams", "cancel", "idle", "bodies"};
    uv_timer_t idle;
    load.mode = 0;
    while (argc > 1 && load.mode < N_MODES && strcmp(argv[1], names[load.mode]) != 0) load.mode++;
    if (argc < 5 || load.mode == N_MODES) {
        fputs("usage: server_load streams|cancel|idle|bodies PORT CLIENTS SECONDS|COUNT|FILE "
              "[GREEDY]\n",
              stderr);
        return 2;
    }
    load.port = atoi(argv[2]);
    load.n_clients = atoi(argv[3]);
    load.n_greedy = argc > 5 ? atoi(argv[5]) : 0;
    load.random = 88172645463325252u;
    load.begin = now();
    if (load.mode == STREAMS) load.end = load.begin + atof(argv[4]);
    if (load.mode == CANCEL) load.n_wanted = strtoull(argv[4], NULL, 10);
    if (load.mode == BODIES) read_bodies(argv[4]);
    load.clients = calloc((size_t)load.n_clients, sizeof *load.clients);
    if (!load.clients) abort();
    if (load.mode == IDLE) {
        uv_timer_init(uv_default_loop(), &idle);
        uv_timer_start(&idle, on_idle_over, (uint64_t)(1000 * atof(argv[4])), 0);
    }
    for (int i = 0; i < load.n_clients; i++) {
        load.clients[i].index = i;
        begin_connection(&load.clients[i]);
    }
    uv_run(uv_default_loop(), UV_RUN_DEFAULT);
    print_report();
    return 0;
}
