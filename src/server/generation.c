/* A request from its body to the end of its answer, on the HTTP thread: read elsewhere, run by the
 * runner, written as fast as the client takes it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/error.h"
#include "server/read_internal.h"

enum {
    HIGH_WATER = 256 << 10,  /* bytes that wait for a client before the next are made of events */
    MAX_PROMPTS = 512 << 20, /* bytes of all prompts that wait or are answered */
    MAX_BACKLOG = 16 << 20,  /* of events for a client that takes nothing */
    MAX_NODES = 2 << 20      /* of a body's JSON: some 70 bytes each */
};

static const char whole_type[] = "application/json";
static const char stream_type[] = "text/event-stream; charset=utf-8";

/* ---- Life ---- */

static di_generation *create(di_conn *conn) {
    di_server *server = conn->server;
    di_generation *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->server = server;
    g->conn = conn;
    g->dialect = conn->route->dialect;
    g->after = server->generations;
    if (g->after) g->after->before = g;
    server->generations = g;
    memcpy(g->request_id, conn->request_id, sizeof g->request_id);
    snprintf(g->owner, sizeof g->owner, "%s", conn_owner(conn));
    snprintf(g->route, sizeof g->route, "%s", conn->route->path);
    g->work.data = g;
    conn->generation = g;
    return g;
}

static void destroy(di_generation *g) {
    if (g->after) g->after->before = g->before;
    if (g->before) {
        g->before->after = g->after;
    } else {
        g->server->generations = g->after;
    }
    if (g->has_writer) di_writer_deinit(&g->writer);
    di_job_destroy(g->job);
    di_job_destroy(g->work_job);
    di_gen_request_free(&g->work_request);
    di_buffer_free(&g->work_body);
    di_buffer_free(&g->work_reply);
    di_buffer_free(&g->events);
    free(g);
}

void generation_sweep(di_server *server) {
    for (di_generation *g = server->generations, *after; g; g = after) {
        after = g->after;
        if (g->dead) destroy(g);
    }
}

/* Nobody waits for it any more; it goes with the next sweep, for its callers may still hold it. */
static void release(di_generation *g) {
    g->conn = NULL;
    g->dead = true;
}

void generation_orphan(di_generation *g) {
    if (g->job) server_log_request(g->server, g->conn, g);
    g->conn = NULL;
    if (g->job && !g->done) di_runner_cancel(g->server->runner, g->job);
    if (g->job && g->done) g->dead = true;
}

static void write_cut(di_generation *g, const char *message) {
    di_conn *conn = g->conn;
    di_buffer out = DI_BUFFER_EMPTY;
    if (!conn->headers_sent) {
        conn_error(conn, 503, NULL, 0, message);
        return;
    }
    if (g->job->request.stream) {
        di_writer_fail(&g->writer, message, &out);
    } else {
        conn_write_error(conn, 503, NULL, message, &out);
    }
    conn_write(conn, &out);
    if (g->conn) conn_end(conn);
}

void generation_cut(di_generation *g, const char *why, const char *message) {
    if (!g->conn || g->ended) return;
    g->ended = true;
    g->cut_for = why;
    g->conn->keep_alive = false;
    write_cut(g, message);
    if (!g->conn) return; /* the client had left */
    /* Another thread may have it still; then it goes when that gives it back. */
    g->conn = NULL;
    if (g->job && !g->done) di_runner_cancel(g->server->runner, g->job);
    if (g->job && g->done) g->dead = true;
}

/* ---- The body, on another thread ---- */

/* An upper bound of the values in a text of JSON, without a tree. */
static size_t count_nodes(const char *text, size_t size) {
    size_t n = 1;
    bool quoted = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (quoted) {
            if (c == '\\') i++;
            if (c == '"') quoted = false;
        } else {
            quoted = c == '"';
            n += c == ',' || c == '[' || c == '{';
        }
    }
    return n;
}

di_status read_json(const di_buffer *text, const char *what, di_arena *arena, const di_json **out,
                    di_error *error) {
    const char *data = text->data ? text->data : "";
    if (count_nodes(data, text->size) > MAX_NODES) {
        return di_fail(error, DI_ERR_INVALID, "%s has more than %d values", what, MAX_NODES);
    }
    return di_json_parse(data, text->size, what, arena, out, error);
}

static di_status read_body(di_generation *g, di_arena *arena, di_error *error) {
    const di_json *body;
    DI_TRY(read_json(&g->work_body, "the body", arena, &body, error));
    if (body->type != DI_JSON_OBJECT) {
        return di_fail(error, DI_ERR_INVALID, "the body must be a JSON object");
    }
    DI_TRY(g->work_read(g, body, error));
    if (g->work_request.n_prompts == 0) return DI_OK;
    g->work_job =
        di_job_create(&g->work_request, &g->server->env, g->server->info.eos_token, error);
    return g->work_job ? DI_OK : error->status;
}

static void on_work(uv_work_t *work) {
    di_generation *g = work->data;
    di_arena arena = DI_ARENA_EMPTY;
    g->work_error.status = read_body(g, &arena, &g->work_error);
    di_arena_free(&arena);
}

/* ---- And back ---- */

static void refuse(di_generation *g, int status, const char *code, int retry_s,
                   const char *message) {
    di_conn *conn = g->conn;
    conn->generation = NULL;
    release(g);
    conn_error(conn, status, code, retry_s, message);
}

/* Both numbers, in the words that clients of each service look for. */
static void refuse_length(di_generation *g, const di_error *why) {
    const di_gen_request *r = &g->work_request;
    size_t most = 0;
    for (int32_t i = 0; i < r->n_prompts; i++) {
        if (r->prompts[i].size > most) most = r->prompts[i].size;
    }
    char message[400];
    long long answer = r->max_tokens > 0 ? r->max_tokens : 1, context = g->server->env.context;
    if (r->dialect == DI_DIALECT_MESSAGES && most >= (size_t)context) {
        snprintf(message, sizeof message, "prompt is too long: %zu tokens > %lld maximum", most,
                 context);
    } else if (r->dialect == DI_DIALECT_MESSAGES) {
        snprintf(message, sizeof message,
                 "input length and `max_tokens` exceed context limit: %zu + %lld > %lld, decrease "
                 "input length or `max_tokens` and try again",
                 most, answer, context);
    } else {
        snprintf(
            message, sizeof message,
            "This model's maximum context length is %lld tokens. However, you requested %lld "
            "tokens (%zu in the messages, %lld in the completion). Please reduce the length of "
            "the messages or completion.",
            context, (long long)most + answer, most, answer);
    }
    refuse(g, 400, "context_length_exceeded", 0, most ? message : why->message);
}

static void answer_error(di_generation *g) {
    di_conn *conn = g->conn;
    if (g->work_error.status == DI_ERR_LIMIT) {
        refuse_length(g, &g->work_error);
        return;
    }
    if (g->work_code) {
        refuse(g, 400, g->work_code, 0, g->work_error.message);
        return;
    }
    conn->generation = NULL;
    release(g);
    conn_fail(conn, &g->work_error);
}

static void answer_reply(di_generation *g) {
    di_conn *conn = g->conn;
    di_buffer body = g->work_reply;
    g->work_reply = (di_buffer)DI_BUFFER_EMPTY;
    conn->generation = NULL;
    release(g);
    conn_respond(conn, 200, NULL, &body);
}

/* Anthropic's clients name Anthropic's models, as DeepSeek's service expects of them. */
static bool knows_model(const di_generation *g) {
    const di_gen_request *r = &g->work_job->request;
    const di_server_options *o = &g->server->options;
    if (o->any_model || r->model_size == 0 || r->dialect == DI_DIALECT_MESSAGES) return true;
    for (int i = 0; i < o->n_models; i++) {
        if (strcmp(o->models[i], r->model) == 0) return true;
    }
    return false;
}

static void refuse_model(di_generation *g) {
    char message[500];
    server_unknown_model(g->server, g->work_job->request.model, message, sizeof message);
    refuse(g, 404, "model_not_found", 0, message);
}

static void begin(di_generation *g) {
    di_server *server = g->server;
    di_conn *conn = g->conn;
    di_job *job = g->job;
    job->owner = g;
    job->client = conn_client(conn);
    job->arrived = conn->begun;
    di_runner_submit(server->runner, job);
    if (!job->request.stream) return;
    di_buffer out = DI_BUFFER_EMPTY;
    conn_begin(conn, 200, stream_type);
    if (!g->conn) return;
    di_writer_begin(&g->writer, &out);
    if (out.size > 0) conn_write(conn, &out);
}

/* bytes: of prompts, which wait in memory. */
static bool has_room(const di_server *server, int64_t n, size_t bytes) {
    int64_t most = server->options.max_batch + server->options.max_queue;
    return server->n_open == 0 ||
           (server->n_open + n <= most && server->prompt_bytes + bytes <= MAX_PROMPTS);
}

static size_t bytes_of(const di_gen_request *r) {
    size_t n = 0;
    for (int32_t i = 0; i < r->n_prompts; i++) n += r->prompts[i].size;
    return n * sizeof(int32_t) + r->items.size;
}

static void take_place(di_generation *g, int64_t n, size_t bytes) {
    g->n_choices = n;
    g->prompt_bytes = bytes;
    g->server->n_open += n;
    g->server->prompt_bytes += bytes;
}

static void give_place(di_generation *g) {
    g->server->n_open -= g->n_choices;
    g->server->prompt_bytes -= g->prompt_bytes;
    g->n_choices = 0;
    g->prompt_bytes = 0;
}

static void draw_seed(di_gen_request *r) {
    uint32_t seed; /* short, so that every reader of JSON keeps it */
    if (r->has_seed) return;
    r->sampling.seed = getrandom(&seed, sizeof seed, 0) == (ssize_t)sizeof seed ? seed : 0;
}

static void on_worked(uv_work_t *work, int status) {
    di_generation *g = work->data;
    di_server *server = g->server;
    (void)status;
    server->body_bytes -= g->work_body.size;
    di_buffer_free(&g->work_body);
    give_place(g);
    if (!g->conn) {
        g->dead = true;
    } else if (g->work_error.status != DI_OK) {
        answer_error(g);
    } else if (!g->work_job) {
        answer_reply(g);
    } else if (!knows_model(g)) {
        refuse_model(g);
    } else if (!has_room(server, g->work_job->n_choices, bytes_of(&g->work_job->request))) {
        refuse(g, 429, "overloaded", 1, "too many requests are waiting; try again later");
    } else {
        di_error error;
        draw_seed(&g->work_job->request);
        g->has_writer = true;
        if (di_writer_init(&g->writer, g->work_job, server->env.tokenizer,
                           server->options.models[0], &error) != DI_OK) {
            refuse(g, 503, NULL, 1, error.message);
            return;
        }
        g->job = g->work_job;
        g->work_job = NULL;
        take_place(g, g->job->n_choices, bytes_of(&g->job->request));
        begin(g);
    }
    server_check_end(server);
}

void generation_start(di_conn *conn, di_read_fn read) {
    di_server *server = conn->server;
    if (server->failed) {
        conn_error(conn, 503, NULL, 0, "the engine has failed");
        return;
    }
    if (!has_room(server, 1, 0)) {
        conn_error(conn, 429, "overloaded", 1, "too many requests are waiting; try again later");
        return;
    }
    di_generation *g = create(conn);
    if (!g) {
        conn_error(conn, 503, NULL, 1, "out of memory");
        return;
    }
    g->work_read = read;
    g->work_body = conn->body;
    conn->body = (di_buffer)DI_BUFFER_EMPTY;
    take_place(g, 1, 0);
    if (uv_queue_work(&server->loop, &g->work, on_work, on_worked) != 0) {
        server->body_bytes -= g->work_body.size;
        give_place(g);
        refuse(g, 503, NULL, 1, "no thread can be had");
    }
}

/* ---- The answer ---- */

static void keep_response(di_generation *g) {
    const di_gen_request *r = &g->job->request;
    char id[DI_STORED_ID];
    di_buffer body = DI_BUFFER_EMPTY;
    di_writer_whole(&g->writer, &body);
    snprintf(id, sizeof id, "resp_%s", g->writer.id);
    di_stored_put(g->server->stored, &(di_stored_response){.id = id,
                                                           .owner = g->owner,
                                                           .previous = r->previous,
                                                           .given = &r->items,
                                                           .answer = &g->writer.items,
                                                           .body = &body});
    di_buffer_free(&body);
}

/* What a client may come back with, before it can. */
static void keep(di_generation *g) {
    if (g->job->request.has_tools) di_writer_keep_turns(&g->writer, g->server->env.turns);
    if (g->job->request.stores && !g->writer.failed) keep_response(g);
}

/* The connection tells the log of it as it ends. */
static void end(di_generation *g) {
    g->ended = true;
    conn_end(g->conn);
    release(g);
}

static void answer_whole(di_generation *g) {
    di_conn *conn = g->conn;
    di_buffer body = DI_BUFFER_EMPTY;
    if (g->writer.failed && !conn->headers_sent) {
        g->ended = true;
        conn_error(conn, 500, NULL, 0, g->writer.failure);
        release(g);
        return;
    }
    if (g->writer.failed) {
        conn_write_error(conn, 500, NULL, g->writer.failure, &body);
    } else {
        di_writer_whole(&g->writer, &body);
    }
    if (conn->headers_sent) {
        conn_write(conn, &body);
        if (g->conn) end(g);
        return;
    }
    g->ended = true;
    conn_respond(conn, 200, whole_type, &body);
    release(g);
}

/* What came goes to the writer. Of an answer that failed there nothing more is needed. */
static void write_events(di_generation *g, di_buffer *out) {
    di_writer_events(&g->writer, &g->events, g->done, out);
    di_buffer_clear(&g->events);
    if (g->done) keep(g);
    if (g->writer.failed && !g->done) di_runner_cancel(g->server->runner, g->job);
}

static void pump_stream(di_generation *g) {
    if (conn_unsent(g->conn) > HIGH_WATER) return;
    if (g->events.size == 0 && !g->done) return;
    di_buffer out = DI_BUFFER_EMPTY;
    write_events(g, &out);
    if (out.size > 0 || out.failed) conn_write(g->conn, &out);
    if (g->conn && g->done) end(g);
}

void generation_pump(di_generation *g) {
    if (!g->conn || !g->has_writer || g->ended) return;
    if (g->job->request.stream) {
        pump_stream(g);
        return;
    }
    di_buffer none = DI_BUFFER_EMPTY;
    write_events(g, &none);
    di_buffer_free(&none);
    if (g->done) answer_whole(g);
}

static void count_times(di_generation *g) {
    di_metrics *m = &g->server->metrics;
    const di_job *job = g->job;
    double now = di_clock(), started = job->started > 0 ? job->started : job->first;
    di_histogram_add(&m->whole, now - job->arrived);
    if (job->first == 0) return;
    if (started > job->first) started = job->first;
    di_histogram_add(&m->first_token, job->first - job->arrived);
    di_histogram_add(&m->queue, started - job->arrived);
    di_histogram_add(&m->prefill, job->first - started);
    di_histogram_add(&m->decode, job->last - job->first);
    di_histogram_add(&m->inference, job->last - started);
}

/* The events of ends, whether or not somebody will read them. */
static void count_ends(di_generation *g, const di_buffer *events) {
    static const di_outcome outcomes[] = {[DI_REASON_STOP] = DI_OUTCOME_STOP,
                                          [DI_REASON_LENGTH] = DI_OUTCOME_LENGTH,
                                          [DI_REASON_CALLS] = DI_OUTCOME_CALLS,
                                          [DI_REASON_CANCELLED] = DI_OUTCOME_ABORT,
                                          [DI_REASON_FAILED] = DI_OUTCOME_ERROR};
    di_metrics *m = &g->server->metrics;
    di_event e;
    for (size_t at = 0; di_event_next(events, &at, &e);) {
        di_end_record record;
        if (e.kind != DI_EVENT_END) continue;
        memcpy(&record, e.data, sizeof record);
        m->outcomes[outcomes[record.reason]]++;
        m->answer_tokens += (uint64_t)record.n_answer;
        m->reasoning_tokens += (uint64_t)record.n_reasoning;
        di_histogram_add(&m->answer_sizes, (double)record.n_answer);
        if (record.n_answer > 1) {
            di_histogram_add(&m->per_token, record.seconds / (double)(record.n_answer - 1));
        }
        if (e.choice % g->job->request.n_choices != 0) continue;
        m->prompt_tokens += (uint64_t)record.n_prompt;
        m->cached_tokens += (uint64_t)record.n_cached;
        di_histogram_add(&m->prompt_sizes, (double)record.n_prompt);
    }
}

static void keep_for_timeline(const di_generation *g) {
    const di_job *job = g->job;
    di_timeline_request r = {.arrived = job->arrived,
                             .started = job->started,
                             .first = job->first,
                             .last = job->last,
                             .ended = di_clock(),
                             .n_choices = job->n_choices};
    if (!g->server->timeline) return;
    snprintf(r.id, sizeof r.id, "%s", g->request_id);
    di_timeline_add(g->server->timeline, &r);
}

void generation_take(di_generation *g, di_buffer *events, bool done) {
    count_ends(g, events);
    if (done) {
        g->done = true;
        count_times(g);
        keep_for_timeline(g);
        give_place(g);
    }
    if (!g->conn) {
        if (done) g->dead = true;
        return;
    }
    if (g->events.size == 0) {
        di_buffer swap = g->events;
        g->events = *events;
        *events = swap;
    } else {
        di_buffer_append(&g->events, events->data, events->size);
        g->events.failed |= events->failed;
    }
    if (g->events.failed || g->events.size > MAX_BACKLOG) {
        conn_give_up(g->conn, g->events.failed ? "out_of_memory" : "slow_reader");
        return;
    }
    generation_pump(g);
}

/* A stream says by a comment, an answer in one piece by a blank that JSON allows in front of it, that
 * somebody is still there. */
void generation_tick(di_generation *g) {
    di_conn *conn = g->conn;
    di_buffer out = DI_BUFFER_EMPTY;
    if (!conn || !g->has_writer || g->ended || conn_unsent(conn) > 0) return;
    uint64_t now_ms = uv_now(&g->server->loop), last_ms = conn->last_write_ms;
    if (!conn->headers_sent) last_ms = now_ms - (uint64_t)((di_clock() - conn->begun) * 1000);
    if (now_ms < last_ms + (uint64_t)(g->server->options.keep_alive_s * 1000)) return;
    if (!conn->headers_sent) conn_begin(conn, 200, whole_type);
    if (!g->conn) return;
    di_buffer_puts(&out, g->job->request.stream ? g->writer.ops->keep_alive : "\n");
    conn_write(conn, &out);
}
