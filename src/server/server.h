/* The HTTP server over one engine: the dialects that clients already speak.
 *
 * One thread runs the event loop (libuv) and all connections, another the engine (runner.h), and a
 * few of libuv's read bodies. README.md of this folder says how they work together.
 */
#ifndef DI_SERVER_SERVER_H
#define DI_SERVER_SERVER_H

#include <stdio.h>

#include "deepinfer.h"

typedef struct di_server_options {
    const char *host;          /* an address; default "127.0.0.1" */
    int port;                  /* 0: any that is free; default 8000 */
    const char *const *models; /* n_models names that requests may give; the first is the one that
                                  answers carry. At least one */
    int n_models;
    bool any_model;       /* every other name is taken as well */
    const char *key_file; /* keys.h; NULL (default): everybody may ask */
    const char *cors;     /* origins whose pages may read answers, separated by commas, or "*"; NULL
                             (default): none */
    int64_t max_queue;    /* answers that may wait beside those that are computed; default 1024 */
    int64_t max_connections; /* default 16384 */
    size_t max_body;         /* bytes of a request; default 32 MiB */
    size_t max_unsent;       /* bytes of answers that wait for their readers; default 1 GiB */
    size_t response_store;   /* bytes for responses that are kept (stored.h); 0: none; default 64
                                MiB */
    double keep_alive_s;     /* a stream that has nothing to say says so this often; default 10 */
    double read_timeout_s;   /* for a head, and for a body that does not go on; default 20 */
    double idle_timeout_s;   /* of a connection between requests; default 75 */
    double write_timeout_s;  /* of a client that takes nothing; default 60 */
    double drain_timeout_s;  /* for answers in progress once a signal came; default 30 */
    bool page;               /* the page at /; default true */
    const char *metrics_prefix; /* default "deepinfer:" */
    int32_t max_batch;          /* that of the engine */
    bool prefix_cache;          /* the same; default true */
    bool debug;                 /* /debug/timeline; default false */
    double slow_step_s;         /* a step that takes longer is logged; default 0: none */
    FILE *log;                  /* NULL: silence */
    bool log_requests;          /* one line each; default true */
} di_server_options;

di_server_options di_server_options_defaults(void);

/* Whether host, port and key_file will do, as far as that shows beforehand: what a slow model is opened
 * for only then. DI_ERR_USAGE for a host that is no address, DI_ERR_IO where nobody can listen or no
 * file is, DI_ERR_INVALID for a wrong line of keys. */
di_status di_server_check(const di_server_options *options, di_error *error);

/* Serves until SIGTERM or SIGINT, then until the answers in progress have ended or the drain timeout
 * is over; then, or with a second signal, those that are left end as errors, and a second later, or with
 * a third signal, everything ends. SIGHUP reads the keys again. The engine must serve requests
 * and is the server's for that time. DI_OK after a signal; DI_ERR_IO when it cannot listen; the
 * engine's error when that failed. */
di_status di_server_run(di_engine *engine, const di_server_options *options, di_error *error);

#endif
