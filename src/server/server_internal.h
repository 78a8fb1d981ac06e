/* What the files of the HTTP thread share. Everything here is that thread's, but for `work_*` of a
 * generation while a body is read.
 */
#ifndef DI_SERVER_SERVER_INTERNAL_H
#define DI_SERVER_SERVER_INTERNAL_H

#include <uv.h>

#include "server/http_parse.h"
#include "server/keys.h"
#include "server/metrics.h"
#include "server/page.h"
#include "server/runner.h"
#include "server/server.h"
#include "server/stored.h"
#include "server/timeline.h"
#include "server/writer.h"

typedef struct di_server di_server;
typedef struct di_conn di_conn;
typedef struct di_generation di_generation;

/* ---- Routes ---- */

typedef struct di_route {
    const char *method, *path;
    /* The body is there. It must answer, or start a generation. */
    void (*handle)(di_conn *conn);
    bool open;          /* no key is asked for */
    di_dialect dialect; /* of generations and of errors */
} di_route;

/* By method and path, of which a route that ends in '/' takes a part: *detail. NULL: *status is 404 or
 * 405, and then *allow the methods that there are. */
const di_route *di_route_find(http_text method, http_text path, http_text *detail, int *status,
                              const char **allow);
/* Messages and its relatives have errors of their own form. */
bool di_path_is_anthropic(http_text path);

/* ---- Connections ---- */

typedef enum di_conn_state {
    DI_CONN_HEAD, /* a request is waited for or begins */
    DI_CONN_BODY,
    DI_CONN_BUSY,   /* it is being answered */
    DI_CONN_LINGER, /* answered; what the client still sends is read over, so that it reads this */
    DI_CONN_CLOSING
} di_conn_state;

struct di_conn {
    uv_tcp_t tcp;
    uv_shutdown_t shutdown;
    di_server *server;
    di_conn *before, *after;
    di_conn_state state;
    uint64_t deadline_ms; /* of the state; 0: none */
    di_buffer in;         /* came, and not understood yet */
    size_t in_counted;    /* of its memory, in the server's in_bytes */
    size_t seen;          /* of it, in search of the end of a head */
    int n_empty_lines;    /* that were skipped in front of it */

    /* The request. */
    const di_route *route;
    bool anthropic; /* the form of errors */
    bool head_only, minor, keep_alive;
    char detail[256];       /* of the path, behind the route's; "" otherwise */
    char unknown[100];      /* for the log: of a path that is none of ours so much, escaped */
    char if_none_match[80]; /* "": not asked; a longer list counts as that */
    char origin[256];       /* that may read the answer; "": none to be named */
    di_key *key;
    http_body body_reader;
    di_buffer body;
    double begun; /* seconds */

    /* The answer. */
    di_generation *generation; /* in progress */
    char request_id[40];
    int status;
    const char *closed_for; /* why the server gave it up, a word; NULL: the client left */
    bool headers_sent, chunked, pending_next;
    uint64_t n_sent;        /* bytes of this answer */
    size_t n_queued;        /* given to the socket, and not free again */
    uint64_t last_write_ms; /* something was given to the socket */
    uint64_t progress_ms;   /* the client took something */
    size_t unsent;          /* then: what it had not taken */
};

void conn_accept(di_server *server);
void conn_tick(di_conn *conn, uint64_t now_ms);
void conn_close(di_conn *conn); /* at once */
/* At once, by the server: the log says why, in a word. */
void conn_give_up(di_conn *conn, const char *why);

/* A whole answer of JSON or text; the buffer is emptied and freed. type NULL: JSON. */
void conn_respond(di_conn *conn, int status, const char *type, di_buffer *body);
/* A file of the page, or that the client has it. */
void conn_respond_file(di_conn *conn, const di_page_file *file);
/* An error in the form of the route's dialect, and an answer whole. retry_s 0: no Retry-After. */
void conn_error(di_conn *conn, int status, const char *code, int retry_s, const char *message);
/* The body of one alone, for an answer that has begun. */
void conn_write_error(const di_conn *conn, int status, const char *code, const char *message,
                      di_buffer *out);
/* From why a body could not be taken, or from a failure of ours: its status, code and field. */
void conn_fail(di_conn *conn, const di_error *why);

/* An answer in pieces: the head, its body (freed), the end. */
void conn_begin(di_conn *conn, int status, const char *type);
void conn_write(di_conn *conn, di_buffer *data);
void conn_end(di_conn *conn);
/* Who it is, as a hash: a key, or an address. */
uint32_t conn_client(const di_conn *conn);
/* Whose what it keeps is: a key's name, or "" where there are no keys. */
const char *conn_owner(const di_conn *conn);
/* Bytes that wait for the client. */
size_t conn_unsent(const di_conn *conn);
/* Bytes of memory that its answer takes here. */
size_t conn_held(const di_conn *conn);

/* ---- Generations ---- */

struct di_generation {
    uv_work_t work;
    di_server *server;
    di_conn *conn; /* NULL: the client left */
    di_generation *before, *after;
    di_dialect dialect;

    /* The reading of the body, on another thread. */
    di_status (*work_read)(di_generation *g, const di_json *body, di_error *error);
    di_buffer work_body;
    di_gen_request work_request; /* becomes the job; no prompts: there is none, but a reply */
    di_buffer work_reply;        /* the body of an answer */
    di_job *work_job;
    di_error work_error;
    const char *work_code; /* of that, where it has one of its own; or NULL */

    di_job *job;
    di_writer writer;
    bool has_writer, ended, dead;
    const char *cut_for; /* see generation_cut; NULL */
    int64_t n_choices;   /* that count in server->n_open */
    size_t prompt_bytes;
    di_buffer events; /* that came and are not written yet */
    bool done;        /* they are the last */

    char owner[64]; /* see conn_owner */
    /* For the log, once the job is gone. */
    char request_id[40], route[40];
};

typedef di_status (*di_read_fn)(di_generation *g, const di_json *body, di_error *error);

/* Parses the connection's body on another thread, has it read there, and goes on: `read` fills
 * work_request, which becomes a job, or work_reply, which is the answer. */
void generation_start(di_conn *conn, di_read_fn read);
/* The runner has events for it. */
void generation_take(di_generation *g, di_buffer *events, bool done);
/* The client can take more. */
void generation_pump(di_generation *g);
/* It ends here, as an error in the words of its dialect; the engine is told. `why`: for the log. */
void generation_cut(di_generation *g, const char *why, const char *message);
/* It left. */
void generation_orphan(di_generation *g);
void generation_tick(di_generation *g);
/* Frees those that nobody needs any more. */
void generation_sweep(di_server *server);

/* ---- The server ---- */

struct di_server {
    di_server_options options;
    di_engine_info info;
    di_request_env env;
    uv_loop_t loop;
    uv_tcp_t listener;
    uv_async_t wake;
    uv_timer_t timer;
    uv_signal_t signals[3];
    di_runner *runner;
    di_keys keys;
    di_stored *stored;
    di_metrics metrics;
    di_process_stats process;
    di_timeline *timeline; /* NULL without options.debug */
    di_conn *conns;
    int64_t n_conns;
    di_generation *generations;
    int64_t n_open;      /* answers that wait or are computed */
    size_t body_bytes;   /* of bodies that are held */
    size_t in_bytes;     /* of memory for what came and is not understood yet */
    size_t prompt_bytes; /* of prompts that wait or are answered */
    int64_t started;     /* Unix time */
    bool draining, ending, failed;
    bool cut;          /* answers in progress were ended */
    bool accept_again; /* there was no memory for a connection: libuv waits until it is taken */
    double drain_until;
    di_buffer scratch;
    char read_buffer[65536];
    char date[64];
    int64_t date_of;
    uint64_t n_log_lost; /* lines that nobody took, and that were not told of */
};

/* What is told of a name that is none of the model's here, and the one that is. */
void server_unknown_model(const di_server *server, const char *name, char *out, size_t size);
void server_log(di_server *server, const char *level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with a message, or with where it listens and the model's name: texts of any bytes, which are quoted
 * as JSON is. */
void server_log_message(di_server *server, const char *level, const char *event,
                        const char *message);
void server_log_listening(di_server *server, const char *address);
/* One line for an answered request. g NULL: it was no generation. */
void server_log_request(di_server *server, di_conn *conn, const di_generation *g);
/* Steps that were slow, and have not been told yet. */
void server_log_slow_steps(di_server *server);
const char *server_date(di_server *server);
/* Ends when nothing is left to do. */
void server_check_end(di_server *server);

#endif
