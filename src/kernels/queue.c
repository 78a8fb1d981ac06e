/* The queue of a host backend: a ring of jobs between the caller's thread and the worker's.
 *
 * A job is a header (what to run, how long it is) and its body: an argument struct, or what a
 * transfer needs and an upload's bytes. Jobs lie one behind the other in `ring`; the last one before
 * the ring's end may be empty, for none is broken in two. Positions are bytes since the beginning
 * and never wrap: `produced` is where the caller will write, `consumed` how far the worker is done,
 * and a mark is the position behind what was enqueued before it.
 *
 * The caller writes a job before it releases `produced`, which the worker acquires; the worker is
 * done with a job, results and all, before it releases `consumed`, which the caller acquires before
 * it reads results or writes over the job.
 *
 * Sleeping. Each side announces its sleep (worker_sleeps; caller_sleeps with wake_at) before it
 * looks at the other's position for the last time, and the other side moves its position before it
 * looks for a sleeper. These four are sequentially consistent, so one of the two sees the other.
 */
#include "kernels/queue.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/futex.h"
#include "base/team.h"

/* Two steps of the release take about 0.4 MB, with their masks: two of V / 8 bytes, for drafts and
 * for rows. */
#define RING_BYTES DI_QUEUE_RING_BYTES
/* Whatever the position, a job of this size fits behind an empty one. */
#define MAX_JOB_BYTES (RING_BYTES / 2)
#define NEVER UINT64_MAX
/* Turns that the worker waits awake, 2 to 4 us: longer than the caller's pauses between two jobs of
 * a step, and no longer than going to sleep and being woken takes, so that it does no harm where
 * threads outnumber cores. On a single core the other side cannot come meanwhile. The caller does
 * not spin: what it waits for takes long, and the team may need its core. */
enum { SPIN = 100 };

typedef struct queue_job {
    void (*run)(di_stream *s, const void *body);
    uint64_t bytes; /* header, body and filling */
} queue_job;
enum { JOB_ALIGN = 16 };
_Static_assert(sizeof(queue_job) == JOB_ALIGN, "a body follows its header, aligned");

typedef struct queue_call {
    void (*run)(void *user);
    void *user;
} queue_call;

typedef struct queue_transfer {
    di_ptr to, from;
    void *host;
    uint64_t size;
    int byte;
} queue_transfer;

struct di_stream {
    di_backend *inner;
    uint8_t *ring;
    pthread_t worker;
    bool started;
    /* The caller's alone. */
    uint64_t head; /* of `produced`, and what is being written */
    uint64_t seen; /* of `consumed`, when the caller last looked */
    /* The worker's alone. */
    int32_t spin;
    bool stop;
    uint64_t turned_ns; /* when it last found the queue empty, or not empty any more */

    _Alignas(64) _Atomic uint64_t produced; /* written by the caller */
    _Alignas(64) _Atomic uint64_t consumed; /* written by the worker */
    /* Rarely written, looked at for every job. */
    _Alignas(64) _Atomic uint64_t wake_at; /* the caller wants to know when this is consumed */
    _Atomic uint32_t caller_sleeps, worker_sleeps;
    /* Written by the worker when a batch begins or ends. */
    _Alignas(64) _Atomic uint64_t busy_ns, idle_ns, batches;
};

typedef struct queue_backend {
    di_backend base;
    di_stream stream;
} queue_backend;

/* ---- The worker ---- */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The worker alone writes these, so that a load and a store do. */
static void add(_Atomic uint64_t *counter, uint64_t n) {
    uint64_t sum = atomic_load_explicit(counter, memory_order_relaxed) + n;
    atomic_store_explicit(counter, sum, memory_order_relaxed);
}

/* Waits until something is enqueued behind `at`; returns where it ends. */
static uint64_t wait_for_jobs(di_stream *s, uint64_t at) {
    uint64_t end;
    for (int32_t i = 0; i < s->spin; i++) {
        end = atomic_load_explicit(&s->produced, memory_order_acquire);
        if (end != at) return end;
        di_spin_turn(i);
    }
    for (;;) {
        atomic_store(&s->worker_sleeps, 1);
        end = atomic_load(&s->produced);
        if (end != at) break;
        di_futex_wait(&s->worker_sleeps, 1);
    }
    atomic_store(&s->worker_sleeps, 0);
    return end;
}

static void begin_batch(di_stream *s) {
    uint64_t now = now_ns();
    if (s->turned_ns != 0) add(&s->idle_ns, now - s->turned_ns);
    s->turned_ns = now;
}

static void end_batch(di_stream *s) {
    uint64_t now = now_ns();
    add(&s->busy_ns, now - s->turned_ns);
    add(&s->batches, 1);
    s->turned_ns = now;
}

static void consume(di_stream *s, uint64_t at) {
    atomic_store(&s->consumed, at);
    if (at < atomic_load(&s->wake_at)) return;
    /* In this order: should the caller be about to sleep again, it finds its flag taken down. */
    atomic_store(&s->wake_at, NEVER);
    atomic_store(&s->caller_sleeps, 0);
    di_futex_wake_all(&s->caller_sleeps);
}

static void *work_loop(void *arg) {
    di_stream *s = arg;
    pthread_setname_np(pthread_self(), "di-stream");
    for (uint64_t at = 0; !s->stop;) {
        uint64_t end = wait_for_jobs(s, at);
        begin_batch(s);
        while (at != end) {
            const queue_job *job = (const void *)(s->ring + at % RING_BYTES);
            uint64_t bytes = job->bytes;
            job->run(s, job + 1);
            at += bytes;
            if (at == end) end = atomic_load_explicit(&s->produced, memory_order_acquire);
            if (at == end) end_batch(s); /* before it is known that the last job is done */
            consume(s, at);
        }
    }
    return NULL;
}

/* ---- Enqueuing ---- */

static void wait_until(di_stream *s, uint64_t at) {
    while ((s->seen = atomic_load_explicit(&s->consumed, memory_order_acquire)) < at) {
        atomic_store(&s->caller_sleeps, 1);
        atomic_store(&s->wake_at, at);
        if (atomic_load(&s->consumed) < at) di_futex_wait(&s->caller_sleeps, 1);
        atomic_store(&s->wake_at, NEVER);
    }
}

static void wait_idle(di_stream *s) { wait_until(s, s->head); }

/* Up to MAX_JOB_BYTES at `head`, which must not go beyond the ring's end. */
static queue_job *place(di_stream *s, void (*run)(di_stream *, const void *), uint64_t bytes) {
    if (s->head + bytes - s->seen > RING_BYTES) {
        s->seen = atomic_load_explicit(&s->consumed, memory_order_acquire);
        if (s->head + bytes - s->seen > RING_BYTES) wait_until(s, s->head - RING_BYTES / 2);
    }
    queue_job *job = (void *)(s->ring + s->head % RING_BYTES);
    job->run = run;
    job->bytes = bytes;
    s->head += bytes;
    return job;
}

static void publish(di_stream *s) {
    atomic_store(&s->produced, s->head);
    if (atomic_load(&s->worker_sleeps) == 0) return;
    atomic_store(&s->worker_sleeps, 0);
    di_futex_wake_all(&s->worker_sleeps);
}

static void run_nothing(di_stream *s, const void *body) { (void)s, (void)body; }

/* Room for a job with a body of `size` bytes. It is enqueued by publish(), once that is written. */
static void *begin_job(di_stream *s, void (*run)(di_stream *, const void *), uint64_t size) {
    uint64_t bytes = (sizeof(queue_job) + size + JOB_ALIGN - 1) / JOB_ALIGN * JOB_ALIGN;
    uint64_t left = RING_BYTES - s->head % RING_BYTES;
    if (left < bytes) {
        place(s, run_nothing, left);
        publish(s);
    }
    return place(s, run, bytes) + 1;
}

/* ---- Operations ---- */

#define QUEUE_OP(name)                                                                             \
    static void run_##name(di_stream *s, const void *body) {                                       \
        s->inner->ops->name(s->inner->stream, body);                                               \
    }                                                                                              \
    static void queue_##name(di_stream *s, const di_##name##_args *args) {                         \
        _Static_assert(_Alignof(di_##name##_args) <= JOB_ALIGN, "bodies are aligned so");          \
        memcpy(begin_job(s, run_##name, sizeof *args), args, sizeof *args);                        \
        publish(s);                                                                                \
    }
DI_EACH_OP(QUEUE_OP)
#undef QUEUE_OP

#define QUEUE_ENTRY(name) .name = queue_##name,
static const di_ops queue_ops = {DI_EACH_OP(QUEUE_ENTRY)};
#undef QUEUE_ENTRY

/* ---- Transfers ---- */

static void run_upload(di_stream *s, const void *body) {
    const queue_transfer *t = body;
    s->inner->upload(s->inner->stream, t->to, t + 1, t->size);
}

static void run_stamp(di_stream *s, const void *body) {
    const queue_transfer *t = body;
    s->inner->stamp(s->inner->stream, t->host);
}

static void run_download(di_stream *s, const void *body) {
    const queue_transfer *t = body;
    s->inner->download(s->inner->stream, t->host, t->from, t->size);
}

static void run_copy(di_stream *s, const void *body) {
    const queue_transfer *t = body;
    s->inner->copy(s->inner->stream, t->to, t->from, t->size);
}

static void run_fill(di_stream *s, const void *body) {
    const queue_transfer *t = body;
    s->inner->fill(s->inner->stream, t->to, t->byte, t->size);
}

static void run_discard(di_stream *s, const void *body) {
    const queue_transfer *t = body;
    s->inner->discard(s->inner->stream, t->host, t->size);
}

static void run_call(di_stream *s, const void *body) {
    const queue_call *c = body;
    s->inner->call(s->inner->stream, c->run, c->user);
}

static void upload(di_stream *s, di_ptr to, const void *host, uint64_t size) {
    if (size > MAX_JOB_BYTES - sizeof(queue_job) - sizeof(queue_transfer)) {
        wait_idle(s); /* the worker touches nothing until the next job is published */
        s->inner->upload(s->inner->stream, to, host, size);
        return;
    }
    queue_transfer *t = begin_job(s, run_upload, sizeof *t + size);
    *t = (queue_transfer){.to = to, .size = size};
    if (size > 0) memcpy(t + 1, host, (size_t)size);
    publish(s);
}

static void enqueue_transfer(di_stream *s, void (*run)(di_stream *, const void *),
                             queue_transfer transfer) {
    queue_transfer *t = begin_job(s, run, sizeof *t);
    *t = transfer;
    publish(s);
}

static void stamp(di_stream *s, double *host) {
    enqueue_transfer(s, run_stamp, (queue_transfer){.host = host, .size = sizeof *host});
}

static void download(di_stream *s, void *host, di_ptr from, uint64_t size) {
    enqueue_transfer(s, run_download, (queue_transfer){.from = from, .host = host, .size = size});
}

static void copy(di_stream *s, di_ptr to, di_ptr from, uint64_t size) {
    enqueue_transfer(s, run_copy, (queue_transfer){.to = to, .from = from, .size = size});
}

static void fill(di_stream *s, di_ptr to, int byte, uint64_t size) {
    enqueue_transfer(s, run_fill, (queue_transfer){.to = to, .size = size, .byte = byte});
}

static void discard(di_stream *s, const void *host, uint64_t size) {
    void *same = (void *)(uintptr_t)host; /* read as const again by the inner backend */
    enqueue_transfer(s, run_discard, (queue_transfer){.host = same, .size = size});
}

static void call(di_stream *s, void (*run)(void *user), void *user) {
    queue_call *c = begin_job(s, run_call, sizeof *c);
    *c = (queue_call){run, user};
    publish(s);
}

static uint64_t mark(di_stream *s) { return s->head; }

static di_status wait_mark(di_stream *s, uint64_t point, di_error *error) {
    (void)error;
    wait_until(s, point);
    return DI_OK;
}

/* ---- Memory ---- */

static di_backend *inner_of(const di_backend *backend) { return backend->stream->inner; }

static uint64_t workspace_bytes(const di_backend *backend, const di_limits *limits) {
    return inner_of(backend)->workspace_bytes(inner_of(backend), limits);
}

static di_status prepare(di_backend *backend, const di_limits *limits, di_error *error) {
    wait_idle(backend->stream);
    return inner_of(backend)->prepare(inner_of(backend), limits, error);
}

static di_status alloc(di_backend *backend, uint64_t size, const char *what, di_ptr *out,
                       di_error *error) {
    return inner_of(backend)->alloc(inner_of(backend), size, what, out, error);
}

static di_status alloc_shared(di_backend *backend, uint64_t size, const char *what, void **host,
                              di_ptr *out, di_error *error) {
    return inner_of(backend)->alloc_shared(inner_of(backend), size, what, host, out, error);
}

static void free_memory(di_backend *backend, di_ptr memory) {
    if (memory.address == 0) return;
    wait_idle(backend->stream);
    inner_of(backend)->free(inner_of(backend), memory);
}

static di_status bind(di_backend *backend, const void *host, uint64_t size, const char *what,
                      di_ptr *out, di_error *error) {
    return inner_of(backend)->bind(inner_of(backend), host, size, what, out, error);
}

static di_status bind_matrix(di_backend *backend, const di_host_matrix *m, const char *what,
                             di_matrix *out, di_error *error) {
    return inner_of(backend)->bind_matrix(inner_of(backend), m, what, out, error);
}

static uint64_t matrix_bytes(const di_backend *backend, const di_host_matrix *m) {
    return di_packed_bytes(inner_of(backend), m);
}

/* ---- Life ---- */

static void run_stop(di_stream *s, const void *body) {
    (void)body;
    s->stop = true;
}

static void destroy(di_backend *backend) {
    if (!backend) return;
    di_stream *s = backend->stream;
    if (s->started) {
        begin_job(s, run_stop, 0);
        publish(s);
        pthread_join(s->worker, NULL); /* it does what is ahead of that first */
    }
    s->inner->destroy(s->inner);
    free(s->ring);
    free(backend);
}

di_queue_stats di_backend_queue_stats(const di_backend *backend) {
    if (backend->ops != &queue_ops) return (di_queue_stats){0};
    const di_stream *s = backend->stream;
    return (di_queue_stats){
        .busy_s = (double)atomic_load_explicit(&s->busy_ns, memory_order_relaxed) * 1e-9,
        .idle_s = (double)atomic_load_explicit(&s->idle_ns, memory_order_relaxed) * 1e-9,
        .batches = atomic_load_explicit(&s->batches, memory_order_relaxed),
    };
}

/* The backend without its thread. Owns `inner` when it returns one. */
static queue_backend *create_stopped(di_backend *inner) {
    queue_backend *self = aligned_alloc(64, (sizeof *self + 63) / 64 * 64);
    uint8_t *ring = aligned_alloc(64, RING_BYTES);
    if (!self || !ring) {
        free(self);
        free(ring);
        return NULL;
    }
    memset(self, 0, sizeof *self);
    memset(ring, 0, RING_BYTES); /* so that its pages are there before the first step */
    self->base = (di_backend){
        .name = inner->name,
        .ops = &queue_ops,
        .numerics = inner->numerics,
        .a_bytes = inner->a_bytes,
        .f_bytes = inner->f_bytes,
        .stream = &self->stream,
        .workspace_bytes = workspace_bytes,
        .prepare = prepare,
        .alloc = alloc,
        .free = free_memory,
        .bind = bind,
        .bind_matrix = bind_matrix,
        .matrix_bytes = matrix_bytes,
        .upload = upload,
        .download = download,
        .stamp = stamp,
        .alloc_shared = alloc_shared,
        .call = call,
        .copy = copy,
        .fill = fill,
        .discard = discard,
        .mark = mark,
        .wait = wait_mark,
        .destroy = destroy,
    };
    self->stream.inner = inner;
    self->stream.ring = ring;
    atomic_init(&self->stream.wake_at, NEVER);
    return self;
}

di_status di_backend_create_queue(di_backend *inner, di_backend **out, di_error *error) {
    *out = NULL;
    const char *name = inner->name; /* a constant: it outlives the backend */
    queue_backend *self = create_stopped(inner);
    if (!self) {
        inner->destroy(inner);
        return di_fail(error, DI_ERR_MEMORY, "%s backend: no memory for a queue of %llu bytes",
                       name, (unsigned long long)RING_BYTES);
    }
    di_stream *s = &self->stream;
    s->spin = di_cores_available() > 1 ? SPIN : 0;
    int failure = pthread_create(&s->worker, NULL, work_loop, s);
    if (failure) {
        destroy(&self->base);
        return di_fail_errno(error, failure, "starting the thread of the %s backend's stream",
                             name);
    }
    s->started = true;
    *out = &self->base;
    return DI_OK;
}
